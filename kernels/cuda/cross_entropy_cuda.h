/* cross_entropy_cuda.h - softmax, loss and the logits' gradient on a CUDA device:
 * kernels/cross_entropy.h, whose formula it keeps, also for logits that are not finite.
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
