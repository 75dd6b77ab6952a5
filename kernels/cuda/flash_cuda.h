/* flash_cuda.h - causal attention on a CUDA device in f32: kernels/attention.h, whose formulas,
 * shapes and dropout they keep.
 *
 * Tiles of queries and of keys meet in shared memory, and no score leaves the chip (Dao,
 * FlashAttention-2, arXiv 2307.08691). Forward's block has a tile of queries, and the keys up to it
 * pass by; backward makes the probabilities again from lse, once for the gradients of keys and
 * values, whose block has a tile of keys (of all query heads that share it), and once for those of
 * queries. So each sum has one owner, and its terms one order: the same bits in every run.
 *
 * Cost, with N = B * heads * T * (T + 1) / 2 pairs of positions: forward 4 N D operations, backward
 * 14 N D, in f32, without the tensor cores. Each array is read and written once, but keys and
 * values in forward, and all of qkv and dy in backward, once for each tile of 64 (32 for D > 128 in
 * backward) on the other side: from the L2 cache, mostly. Head sizes up to 32, 64, 96, 128 and 256
 * are padded to that; wider ones go a warp a query or key, without tiles: right, but slow. Where a
 * block can have 99 KiB of shared memory only, backward's tiles are of 32 for D > 64, and heads
 * wider than 128 go without tiles.
 *
 * All arrays f32 on the stream's device and the caller's, none overlapping another. Each call
 * queues its work on the stream and returns 0, or the cudaError_t of a launch that failed. Any
 * thread may call.
 */
#ifndef RUBATO_KERNELS_CUDA_FLASH_CUDA_H
#define RUBATO_KERNELS_CUDA_FLASH_CUDA_H

#include "kernels/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* a cudaStream_t points to it */

/* qkv [B, T, (heads + 2 * kv_heads) * D] -> y [B, T, heads * D], lse [B, heads, T]. */
int flash_cuda_forward(const struct attention_shape *shape, const float *qkv, float *lse, float *y,
                       struct CUstream_st *stream);

/* dy [B, T, heads * D] -> dqkv, as qkv (overwritten); delta [B, heads, T] is scratch: the sums of
 * dy * y over a head. */
int flash_cuda_backward(const struct attention_shape *shape, const struct attention_saved *saved,
                        const float *dy, float *dqkv, float *delta, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
