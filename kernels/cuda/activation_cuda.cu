/* activation_cuda.cu - a thread a value; the grid strides over the values beyond it. */
#include "kernels/cuda/activation_cuda.h"
#include "kernels/cuda/launch.cuh"

enum { THREADS = 256 };

static const float root_2_over_pi = 0.79788456080286535588F;
static const float cubic = 0.044715F;

// u of kernels/activation.h, twice: gelu(v) = v * sigmoid(2 u).
static __device__ __forceinline__ float sigmoid_2u(float v) {
    const float u = root_2_over_pi * (v + cubic * v * v * v);
    return 1.0F / (1.0F + expf(-2.0F * u));
}

static __global__ void __launch_bounds__(THREADS)
    gelu_bias_forward_kernel(const float *x, const float *bias, float *y, int64_t count,
                             int64_t F) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        const float v = x[i] + bias[i % F];
        y[i] = v * sigmoid_2u(v);
    }
}

// With s = sigmoid(2 u): gelu' = s + v s (1 - s) 2 u'.
static __global__ void __launch_bounds__(THREADS)
    gelu_bias_backward_kernel(const float *x, const float *bias, const float *dy, float *dx,
                              int64_t count, int64_t F) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        const float v = x[i] + bias[i % F], s = sigmoid_2u(v);
        const float slope = 2.0F * root_2_over_pi * (1.0F + 3.0F * cubic * v * v);
        dx[i] = dy[i] * (s + v * s * (1.0F - s) * slope);
    }
}

int activation_cuda_gelu_bias_forward(const float *x, const float *bias, float *y, int64_t R,
                                      int64_t F, struct CUstream_st *stream) {
    return kernel_launch(gelu_bias_forward_kernel, kernel_blocks(R * F, THREADS), dim3(THREADS), 0,
                         stream, x, bias, y, R * F, F);
}

int activation_cuda_gelu_bias_backward(const float *x, const float *bias, const float *dy,
                                       float *dx, int64_t R, int64_t F,
                                       struct CUstream_st *stream) {
    return kernel_launch(gelu_bias_backward_kernel, kernel_blocks(R * F, THREADS), dim3(THREADS), 0,
                         stream, x, bias, dy, dx, R * F, F);
}
