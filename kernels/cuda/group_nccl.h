/* group_nccl.h - kernels/group.h among CUDA devices, through NCCL.
 *
 * NCCL is loaded when a group is first opened; its few functions that are used are declared in
 * group_nccl.c, so that no header of it is needed.
 */
#ifndef RUBATO_KERNELS_CUDA_GROUP_NCCL_H
#define RUBATO_KERNELS_CUDA_GROUP_NCCL_H

#include "kernels/group.h"

extern const struct group_ops group_nccl;

#endif
