/* norm_cuda.h - layer norm and root mean square norm on a CUDA device: kernels/norm.h and
 * kernels/rms_norm.h, whose formulas, shapes and _add they keep.
 *
 * The root mean square norm is the one without means: mean, bias and dbias are NULL, and not used.
 * All arrays f32 on the stream's device, the caller's, none overlapping another but as residual.h
 * says; rows R >= 1, channels C >= 1. Sums run in f32 in one fixed order: the same bits in every
 * run, other ones than the CPU's. Each call queues its work on the stream and returns 0, or the
 * cudaError_t of a launch that failed. Any thread may call.
 */
#ifndef RUBATO_KERNELS_CUDA_NORM_CUDA_H
#define RUBATO_KERNELS_CUDA_NORM_CUDA_H

#include "kernels/norm.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* a cudaStream_t points to it */

struct norm_cuda {
    int64_t R, C;
    float eps;
    struct CUstream_st *stream;
};

/* residual->x + branch [R, C] -> residual->sum, or x alone where branch is NULL, without a sum;
 * of it and gain, bias [C] -> result->y [R, C], mean, rstd [R]. */
int norm_cuda_forward(const struct norm_cuda *norm, const struct residual *residual,
                      const float *gain, const float *bias, const struct norm_result *result);

/* dy [R, C] -> dx [R, C] +=, dgain [C] +=, dbias [C] +=; with [norm_cuda_scratch(R, C)] scratch. */
int norm_cuda_backward_add(const struct norm_cuda *norm, const struct norm_saved *saved,
                           const float *dy, float *dx, float *dgain, float *dbias, float *scratch);
int64_t norm_cuda_scratch(int64_t R, int64_t C);

#ifdef __cplusplus
}
#endif
#endif
