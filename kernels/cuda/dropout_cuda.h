/* dropout_cuda.h - dropout on a CUDA device: dropout_rows() of kernels/dropout.h, with its bits.
 *
 * Arrays f32 on the stream's device and the caller's; the struct, on the host, has been read when
 * the call returns. Queues its work on the stream and returns 0, or the cudaError_t of a launch
 * that failed. Any thread may call.
 */
#ifndef RUBATO_KERNELS_CUDA_DROPOUT_CUDA_H
#define RUBATO_KERNELS_CUDA_DROPOUT_CUDA_H

#include "kernels/dropout.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* a cudaStream_t points to it */

/* y [R, C] = x [R, C] dropped; y may be x. R, C >= 1, R < 2^32. */
int dropout_cuda_rows(const struct dropout *dropout, const float *x, float *y, int64_t R, int64_t C,
                      struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
