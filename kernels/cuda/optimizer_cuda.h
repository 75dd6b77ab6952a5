/* optimizer_cuda.h - kernels/optimizer.h on a CUDA device: AdamW and SGD with its bits, and the sum
 * of squares. And the sum of two gradients.
 *
 * Arrays on the stream's device, the caller's, none overlapping another; N >= 1. Each call queues
 * its work on the stream and returns 0, or the cudaError_t of a launch that failed. Any thread may
 * call.
 */
#ifndef RUBATO_KERNELS_CUDA_OPTIMIZER_CUDA_H
#define RUBATO_KERNELS_CUDA_OPTIMIZER_CUDA_H

#include "kernels/optimizer_factors.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* a cudaStream_t points to it */

/* weights, m, v [N] f32 in place, grad [N] f32 read only. */
int optimizer_cuda_adamw(const struct adamw_factors *factors, float *weights, float *m, float *v,
                         const float *grad, int64_t N, struct CUstream_st *stream);

/* weights, velocity [N] f32 in place, grad [N] f32 read only. velocity NULL: there is no momentum,
 * and what is subtracted is lr * g. */
int optimizer_cuda_sgd(const struct sgd *sgd, float *weights, float *velocity, const float *grad,
                       int64_t N, struct CUstream_st *stream);

/* grad [N] f32 -> sum [1] f64 of its squares, with scratch [OPTIMIZER_CUDA_PARTS] f64. The order of
 * additions is this file's own and N's alone: the same bits in every run and on every device. */
enum { OPTIMIZER_CUDA_PARTS = 1024 };
int optimizer_cuda_sum_of_squares(const float *grad, int64_t N, double *scratch, double *sum,
                                  struct CUstream_st *stream);

/* sum [N] f32 += values [N] f32, each rounded once. */
int optimizer_cuda_add(const float *values, float *sum, int64_t N, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
