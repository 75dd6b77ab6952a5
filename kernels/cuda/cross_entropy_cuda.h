/* cross_entropy_cuda.h - softmax, loss and the logits' gradient on a CUDA device:
 * kernels/cross_entropy.h, whose formula it keeps, also for logits that are not finite.
 *
 * Rows are whole: who computes logits takes a chunk of rows at a time, of all of the vocabulary
 * (worker/model_memory.c: 512 MiB, so 2,624 rows of GPT-2's 50,257 tokens, 512 of 262,144; its
 * least, 64 rows, are as large at 2 million tokens). Chunks of the vocabulary would save none of
 * that, as the largest logit and the sum of a row are known only behind its last chunk, so that the
 * gradient would take the head's product once more. Beside the head's three products, 6 C
 * operations a logit, 12 bytes a logit are moved: two reads and a write.
 *
 * Arrays on the stream's device and the caller's; no memory beside them. Sums run in f32 in one
 * fixed order: the same bits in every run. Queues its work on the stream and returns 0, or the
 * cudaError_t of a launch that failed. Any thread may call.
 */
#ifndef RUBATO_KERNELS_CUDA_CROSS_ENTROPY_CUDA_H
#define RUBATO_KERNELS_CUDA_CROSS_ENTROPY_CUDA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* a cudaStream_t points to it */

/* logits [R, V] f32, targets [R] i32 -> losses [R] f32, and with scale != 0 the gradient in the
 * logits' place. R, V >= 1. */
int cross_entropy_cuda(float *logits, const int32_t *targets, float *losses, int64_t R, int64_t V,
                       float scale, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
