/* optimizer_cuda.cu - a thread a value; the grid strides over those beyond it. Each operation is
 * named with its rounding, so that nvcc contracts none of them and the bits are those of
 * kernels/optimizer_ref.c.
 */
#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/optimizer_cuda.h"
#include "kernels/cuda/pack.cuh"

enum { THREADS = 256 };

static __global__ void __launch_bounds__(THREADS)
    adamw_kernel(struct adamw_factors f, float *weights, float *m, float *v, const float *grad,
                 int64_t N) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < N; i += step) {
        const float g = __fmul_rn(grad[i], f.grad_scale);
        const float w = __fmul_rn(weights[i], f.keep);
        const float first = __fadd_rn(__fmul_rn(f.beta1, m[i]), __fmul_rn(f.part1, g));
        const float second =
            __fadd_rn(__fmul_rn(f.beta2, v[i]), __fmul_rn(__fmul_rn(f.part2, g), g));
        const float denominator = __fadd_rn(__fmul_rn(__fsqrt_rn(second), f.root_scale), f.eps);
        m[i] = first;
        v[i] = second;
        weights[i] = __fsub_rn(w, __fdiv_rn(__fmul_rn(f.step_size, first), denominator));
    }
}

static __global__ void __launch_bounds__(THREADS)
    sgd_kernel(struct sgd sgd, float *weights, float *velocity, const float *grad, int64_t N) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < N; i += step) {
        const float w = weights[i];
        float g = __fmul_rn(grad[i], sgd.grad_scale);
        g = __fadd_rn(g, __fmul_rn(sgd.decay, w));
        if (sgd.step != 1 && velocity != NULL)
            g = __fadd_rn(__fmul_rn(sgd.momentum, velocity[i]), g);
        if (velocity != NULL) velocity[i] = g;
        weights[i] = __fsub_rn(w, __fmul_rn(sgd.lr, g));
    }
}

// A thread's sum is of every step-th four values, loaded at once (N 4) or one by one.
template <int N>
static __global__ void __launch_bounds__(THREADS)
    squares_kernel(const float *grad, double *parts, int64_t count) {
    const int64_t step = (int64_t)gridDim.x * THREADS * 4;
    double sum = 0.0;
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4; i < count; i += step) {
        for (int j = 0; j < 4; j += N) {
            if (i + j >= count) break;
            const pack<N> g = pack_load<N>(grad + i + j);
            for (int k = 0; k < N; k++)
                sum += (double)g.lane[k] * (double)g.lane[k]; // exact products
        }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(THREADS)
    parts_kernel(const double *parts, double *to, int count) {
    double sum = 0.0;
    for (int i = (int)threadIdx.x; i < count; i += THREADS)
        sum += parts[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *to = sum;
}

static __global__ void __launch_bounds__(THREADS)
    add_kernel(const float *values, float *sum, int64_t N) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < N; i += step)
        sum[i] = __fadd_rn(sum[i], values[i]);
}

int optimizer_cuda_adamw(const struct adamw_factors *factors, float *weights, float *m, float *v,
                         const float *grad, int64_t N, struct CUstream_st *stream) {
    return kernel_launch(adamw_kernel, kernel_blocks(N, THREADS), dim3(THREADS), 0, stream,
                         *factors, weights, m, v, grad, N);
}

int optimizer_cuda_sgd(const struct sgd *sgd, float *weights, float *velocity, const float *grad,
                       int64_t N, struct CUstream_st *stream) {
    return kernel_launch(sgd_kernel, kernel_blocks(N, THREADS), dim3(THREADS), 0, stream, *sgd,
                         weights, velocity, grad, N);
}

int optimizer_cuda_sum_of_squares(const float *grad, int64_t N, double *scratch, double *sum,
                                  struct CUstream_st *stream) {
    const int64_t most = (N + THREADS * 4 - 1) / (THREADS * 4);
    const int parts = most < OPTIMIZER_CUDA_PARTS ? (int)most : OPTIMIZER_CUDA_PARTS;
    const cudaError_t error =
        kernel_launch(packable(N, grad) ? squares_kernel<4> : squares_kernel<1>,
                      dim3((unsigned)parts), dim3(THREADS), 0, stream, grad, scratch, N);
    if (error != cudaSuccess) return error;
    return kernel_launch(parts_kernel, dim3(1), dim3(THREADS), 0, stream, scratch, sum, parts);
}

int optimizer_cuda_add(const float *values, float *sum, int64_t N, struct CUstream_st *stream) {
    return kernel_launch(add_kernel, kernel_blocks(N, THREADS), dim3(THREADS), 0, stream, values,
                         sum, N);
}
