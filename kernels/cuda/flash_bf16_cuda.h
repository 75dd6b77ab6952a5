/* flash_bf16_cuda.h - attention on the tensor cores of a CUDA device: flash_cuda.h's twin, with
 * bfloat16 operands and f32 sums.
 *
 * Queries, keys, values and dy are rounded (to nearest even) on their way to shared memory, and the
 * probabilities and the gradients of the scores before they are multiplied; scores, softmax, lse,
 * delta and all sums are f32. Products are 16 x 16 x 16 by nvcuda::wmma. Arrays, shapes, what
 * is read how often, and that the bits are the same in every run: as in flash_cuda.h.
 *
 * Cost: 4 N D operations forward and 14 N D backward on the tensor cores; tiles are of 64 keys, and
 * of 128 queries in forward, 64 in backward. Scores pass through shared memory between products,
 * since a fragment's layout is the chip's own.
 */
#ifndef RUBATO_KERNELS_CUDA_FLASH_BF16_CUDA_H
#define RUBATO_KERNELS_CUDA_FLASH_BF16_CUDA_H

#include "kernels/attention.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* a cudaStream_t points to it */

enum { FLASH_BF16_HEAD_MAX = 128 };

/* Whether heads are at most so wide, and the current device has shared memory enough: where a block
 * cannot have 105 KiB, only heads up to 64 are taken. The others are answered with
 * cudaErrorInvalidValue. */
bool flash_bf16_cuda_takes(const struct attention_shape *shape);

int flash_bf16_cuda_forward(const struct attention_shape *shape, const float *qkv, float *lse,
                            float *y, struct CUstream_st *stream);
int flash_bf16_cuda_backward(const struct attention_shape *shape,
                             const struct attention_saved *saved, const float *dy, float *dqkv,
                             float *delta, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
