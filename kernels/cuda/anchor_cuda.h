/* anchor_cuda.h - kernels/anchor.h on a CUDA device, with its bits.
 *
 * Arrays [N] f32 on the stream's device, the caller's, none overlapping another; N >= 1. Each call
 * queues its work on the stream and returns 0, or the cudaError_t of a launch that failed. Any
 * thread may call.
 */
#ifndef RUBATO_KERNELS_CUDA_ANCHOR_CUDA_H
#define RUBATO_KERNELS_CUDA_ANCHOR_CUDA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* a cudaStream_t points to it */

int anchor_cuda_delta(const float *anchor, const float *weights, float factor, float *delta,
                      int64_t N, struct CUstream_st *stream);
int anchor_cuda_mix(const float *anchor, float mix, float *weights, int64_t N,
                    struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
