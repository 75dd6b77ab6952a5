/* optimizer_cuda.cu - a thread a value. Each operation is named with its rounding, so that nvcc
 * contracts none of them and the bits are those of kernels/optimizer_ref.c.
 */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/optimizer_cuda.h"
#include "kernels/optimizer_factors.h"

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
        const float denominator =
            __fadd_rn(__fdiv_rn(__fsqrt_rn(second), f.root_correction), f.eps);
        m[i] = first;
        v[i] = second;
        weights[i] = __fsub_rn(w, __fdiv_rn(__fmul_rn(f.step_size, first), denominator));
    }
}

int optimizer_cuda_adamw(const struct adamw *adamw, float *weights, float *m, float *v,
                         const float *grad, int64_t N, struct CUstream_st *stream) {
    return kernel_launch(adamw_kernel, kernel_blocks(N, THREADS), dim3(THREADS), 0, stream,
                         optimizer_adamw_factors(adamw), weights, m, v, grad, N);
}
