/* rope_cuda.h - rotary position embeddings on a CUDA device: kernels/rope.h, whose order and shapes
 * they keep.
 *
 * qkv f32 on the stream's device and the caller's, in place; the shape, on the host, has been read
 * when the call returns. Each queues its work on the stream and returns 0, or the cudaError_t of a
 * launch that failed, also for a head_size beyond ROPE_HEAD_MAX. Any thread may call.
 */
#ifndef RUBATO_KERNELS_CUDA_ROPE_CUDA_H
#define RUBATO_KERNELS_CUDA_ROPE_CUDA_H

#include "kernels/rope.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* a cudaStream_t points to it */

int rope_cuda_forward(const struct rope_shape *shape, float *qkv, struct CUstream_st *stream);
int rope_cuda_backward(const struct rope_shape *shape, float *dqkv, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
