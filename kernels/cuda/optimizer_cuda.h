/* optimizer_cuda.h - AdamW on a CUDA device: optimizer_adamw() of kernels/optimizer.h, with its
 * bits.
 *
 * weights, m, v [N] in place, grad [N] read only: f32 on the stream's device, the caller's, none
 * overlapping another; N >= 1. Queues its work on the stream and returns 0, or the cudaError_t of a
 * launch that failed. Any thread may call.
 */
#ifndef RUBATO_KERNELS_CUDA_OPTIMIZER_CUDA_H
#define RUBATO_KERNELS_CUDA_OPTIMIZER_CUDA_H

#include "kernels/optimizer.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* a cudaStream_t points to it */

int optimizer_cuda_adamw(const struct adamw *adamw, float *weights, float *m, float *v,
                         const float *grad, int64_t N, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
