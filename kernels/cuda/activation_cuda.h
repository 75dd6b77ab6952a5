/* activation_cuda.h - bias and GELU in one pass, and SwiGLU, on a CUDA device: they keep the
 * formulas and shapes of kernels/activation.h.
 *
 * All arrays f32 on the stream's device and the caller's; R, F >= 1. Each call queues its work on
 * the stream and returns 0, or the cudaError_t of a launch that failed. Any thread may call.
 */
#ifndef RUBATO_KERNELS_CUDA_ACTIVATION_CUDA_H
#define RUBATO_KERNELS_CUDA_ACTIVATION_CUDA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* a cudaStream_t points to it */

/* y [R, F] = gelu(x [R, F] + bias [F]). */
int activation_cuda_gelu_bias_forward(const float *x, const float *bias, float *y, int64_t R,
                                      int64_t F, struct CUstream_st *stream);

/* dx [R, F] = dy [R, F] * gelu'(x [R, F] + bias [F]); dx may be dy. */
int activation_cuda_gelu_bias_backward(const float *x, const float *bias, const float *dy,
                                       float *dx, int64_t R, int64_t F, struct CUstream_st *stream);

/* x [R, 2F], a row's F gates and then its F ups -> y [R, F]. */
int activation_cuda_swiglu_forward(const float *x, float *y, int64_t R, int64_t F,
                                   struct CUstream_st *stream);

/* dy [R, F] -> dx [R, 2F]; dx may be x. */
int activation_cuda_swiglu_backward(const float *x, const float *dy, float *dx, int64_t R,
                                    int64_t F, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
