/* anchor_cuda.cu - a thread a value; the grid strides over those beyond it. Each operation is named
 * with its rounding, so that nvcc contracts none of them and the bits are those of
 * kernels/anchor_cpu.c.
 */
#include "kernels/cuda/anchor_cuda.h"
#include "kernels/cuda/launch.cuh"

enum { THREADS = 256 };

static __global__ void __launch_bounds__(THREADS)
    delta_kernel(const float *anchor, const float *weights, float factor, float *delta, int64_t N) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < N; i += step)
        delta[i] = __fmul_rn(__fsub_rn(anchor[i], weights[i]), factor);
}

static __global__ void __launch_bounds__(THREADS)
    mix_kernel(const float *anchor, float mix, float part, float *weights, int64_t N) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < N; i += step)
        weights[i] = __fadd_rn(__fmul_rn(mix, weights[i]), __fmul_rn(part, anchor[i]));
}

int anchor_cuda_delta(const float *anchor, const float *weights, float factor, float *delta,
                      int64_t N, struct CUstream_st *stream) {
    return kernel_launch(delta_kernel, kernel_blocks(N, THREADS), dim3(THREADS), 0, stream, anchor,
                         weights, factor, delta, N);
}

int anchor_cuda_mix(const float *anchor, float mix, float *weights, int64_t N,
                    struct CUstream_st *stream) {
    return kernel_launch(mix_kernel, kernel_blocks(N, THREADS), dim3(THREADS), 0, stream, anchor,
                         mix, 1.0F - mix, weights, N);
}
