/* flash_wide_cuda.h - attention on a CUDA device for heads of any size, without tiles; and the sums
 * of dy * y that every backward pass starts with. For kernels/cuda: models use attention_cuda.h.
 *
 * A warp has a query (or, for their gradients, a key) and reads each other position's row from
 * memory: right, but slow, and meant for heads that are too wide for tiles. Conventions, shapes and
 * results are those of flash_cuda.h.
 */
#ifndef RUBATO_KERNELS_CUDA_FLASH_WIDE_CUDA_H
#define RUBATO_KERNELS_CUDA_FLASH_WIDE_CUDA_H

#include "kernels/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* a cudaStream_t points to it */

int flash_wide_cuda_forward(const struct attention_shape *shape, const float *qkv, float *lse,
                            float *y, struct CUstream_st *stream);

/* delta [B, heads, T] as flash_wide_cuda_delta() makes it. */
int flash_wide_cuda_backward(const struct attention_shape *shape,
                             const struct attention_saved *saved, const float *dy, float *dqkv,
                             const float *delta, struct CUstream_st *stream);

/* dy, y [B, T, heads * D] -> delta [B, heads, T]: the sum of dy * y over a head. */
int flash_wide_cuda_delta(const struct attention_shape *shape, const float *dy, const float *y,
                          float *delta, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
