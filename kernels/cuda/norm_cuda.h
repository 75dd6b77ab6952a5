/* norm_cuda.h - layer norm and root mean square norm on a CUDA device: kernels/norm.h and
 * kernels/rms_norm.h, whose formulas, shapes and _add they keep.
 *
 * All arrays f32 on the stream's device, the caller's, none overlapping another; rows R >= 1,
 * channels C >= 1. Sums run in f32 in one fixed order: the same bits in every run, other ones than
 * the CPU's. Each call queues its work on the stream and returns 0, or the cudaError_t of a launch
 * that failed. Any thread may call.
 */
#ifndef RUBATO_KERNELS_CUDA_NORM_CUDA_H
#define RUBATO_KERNELS_CUDA_NORM_CUDA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* a cudaStream_t points to it */

struct norm_cuda {
    int64_t R, C;
    float eps;
    struct CUstream_st *stream;
};

/* x [R, C], gain [C], bias [C] -> y [R, C], mean [R], rstd [R]. */
int norm_cuda_forward(const struct norm_cuda *norm, const float *x, const float *gain,
                      const float *bias, float *y, float *mean, float *rstd);

/* x [R, C], gain [C] -> y [R, C], rstd [R]. */
int norm_cuda_rms_forward(const struct norm_cuda *norm, const float *x, const float *gain, float *y,
                          float *rstd);

/* What the forward pass had and made; mean is NULL for the root mean square norm. */
struct norm_cuda_saved {
    const float *x, *mean, *rstd, *gain;
};

/* dbias is NULL, and nothing made of it, for the root mean square norm. */
struct norm_cuda_gradients {
    float *dx, *dgain, *dbias;
    float *scratch; /* [norm_cuda_scratch(R, C)] f32 on the device */
};

/* dy [R, C] -> dx [R, C] +=, dgain [C] +=, dbias [C] +=. */
int norm_cuda_backward_add(const struct norm_cuda *norm, const struct norm_cuda_saved *saved,
                           const float *dy, const struct norm_cuda_gradients *gradients);

/* In values. */
int64_t norm_cuda_scratch(int64_t R, int64_t C);

#ifdef __cplusplus
}
#endif
#endif
