/* activation_cuda.cu - a thread a pack of a row, which it takes in every row of its stride. The
 * formulas, and where they are held so that no term overflows, are those of activation_cpu.c.
 */
#include "kernels/cuda/activation_cuda.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack.cuh"

enum { THREADS = 256 };

static const float root_2_over_pi = 0.79788456080286535588F;
static const float cubic = 0.044715F;

// e^(-2 u) of kernels/activation.h: gelu(v) = v / (1 + e).
static __device__ __forceinline__ float exp_2u(float v) {
    return expf(-2.0F * (root_2_over_pi * (v + cubic * (v * v * v))));
}

static __device__ __forceinline__ float gelu_slope(float v) {
    v = v < -10.0F ? -10.0F : v; // comparisons that let a NaN through
    v = v > 10.0F ? 10.0F : v;
    const float slope = 2.0F * root_2_over_pi * (1.0F + 3.0F * cubic * (v * v));
    const float e = exp_2u(v), sigmoid = 1.0F / (1.0F + e);
    return sigmoid + v * slope * (sigmoid * (e * sigmoid));
}

template <int N>
static __global__ void __launch_bounds__(THREADS)
    gelu_bias_forward_kernel(const float *x, const float *bias, float *y, int64_t R, int64_t F) {
    const int64_t c = pack_column<N>();
    if (c >= F) return;
    const pack<N> add = pack_load<N>(bias + c);
    for (int64_t r = blockIdx.y; r < R; r += gridDim.y) {
        pack<N> v = pack_load<N>(x + r * F + c);
        for (int i = 0; i < N; i++) {
            const float sum = v.lane[i] + add.lane[i];
            v.lane[i] = sum / (1.0F + exp_2u(sum));
        }
        pack_store(y + r * F + c, v);
    }
}

template <int N>
static __global__ void __launch_bounds__(THREADS)
    gelu_bias_backward_kernel(const float *x, const float *bias, const float *dy, float *dx,
                              int64_t R, int64_t F) {
    const int64_t c = pack_column<N>();
    if (c >= F) return;
    const pack<N> add = pack_load<N>(bias + c);
    for (int64_t r = blockIdx.y; r < R; r += gridDim.y) {
        const pack<N> v = pack_load<N>(x + r * F + c);
        pack<N> d = pack_load<N>(dy + r * F + c);
        for (int i = 0; i < N; i++)
            d.lane[i] *= gelu_slope(v.lane[i] + add.lane[i]);
        pack_store(dx + r * F + c, d);
    }
}

template <int N>
static __global__ void __launch_bounds__(THREADS)
    swiglu_forward_kernel(const float *x, float *y, int64_t R, int64_t F) {
    const int64_t c = pack_column<N>();
    if (c >= F) return;
    for (int64_t r = blockIdx.y; r < R; r += gridDim.y) {
        const pack<N> gate = pack_load<N>(x + 2 * r * F + c);
        pack<N> v = pack_load<N>(x + 2 * r * F + F + c);
        for (int i = 0; i < N; i++)
            v.lane[i] *= gate.lane[i] / (1.0F + expf(-gate.lane[i]));
        pack_store(y + r * F + c, v);
    }
}

// dx may be x: a thread reads what it overwrites, and before.
template <int N>
static __global__ void __launch_bounds__(THREADS)
    swiglu_backward_kernel(const float *x, const float *dy, float *dx, int64_t R, int64_t F) {
    const int64_t c = pack_column<N>();
    if (c >= F) return;
    for (int64_t r = blockIdx.y; r < R; r += gridDim.y) {
        pack<N> gate = pack_load<N>(x + 2 * r * F + c);
        pack<N> up = pack_load<N>(x + 2 * r * F + F + c);
        const pack<N> d = pack_load<N>(dy + r * F + c);
        for (int i = 0; i < N; i++) {
            const float g = gate.lane[i] < -88.0F ? -88.0F : gate.lane[i];
            const float e = expf(-g), sigmoid = 1.0F / (1.0F + e);
            gate.lane[i] = d.lane[i] * up.lane[i] * (sigmoid + g * (sigmoid * (e * sigmoid)));
            up.lane[i] = d.lane[i] * (g * sigmoid);
        }
        pack_store(dx + 2 * r * F + c, gate);
        pack_store(dx + 2 * r * F + F + c, up);
    }
}

template <int N, class... P, class... A>
static cudaError_t launch(void (*kernel)(P...), int64_t R, int64_t F, cudaStream_t stream,
                          A... arrays) {
    const dim3 threads = kernel_threads(F / N, THREADS);
    return kernel_launch(kernel, kernel_rows(R, F / N, threads), threads, 0, stream, arrays..., R,
                         F);
}

int activation_cuda_gelu_bias_forward(const float *x, const float *bias, float *y, int64_t R,
                                      int64_t F, struct CUstream_st *stream) {
    return packable(F, x, bias, y)
               ? launch<4>(gelu_bias_forward_kernel<4>, R, F, stream, x, bias, y)
               : launch<1>(gelu_bias_forward_kernel<1>, R, F, stream, x, bias, y);
}

int activation_cuda_gelu_bias_backward(const float *x, const float *bias, const float *dy,
                                       float *dx, int64_t R, int64_t F,
                                       struct CUstream_st *stream) {
    return packable(F, x, bias, dy, dx)
               ? launch<4>(gelu_bias_backward_kernel<4>, R, F, stream, x, bias, dy, dx)
               : launch<1>(gelu_bias_backward_kernel<1>, R, F, stream, x, bias, dy, dx);
}

int activation_cuda_swiglu_forward(const float *x, float *y, int64_t R, int64_t F,
                                   struct CUstream_st *stream) {
    return packable(F, x, y) ? launch<4>(swiglu_forward_kernel<4>, R, F, stream, x, y)
                             : launch<1>(swiglu_forward_kernel<1>, R, F, stream, x, y);
}

int activation_cuda_swiglu_backward(const float *x, const float *dy, float *dx, int64_t R,
                                    int64_t F, struct CUstream_st *stream) {
    return packable(F, x, dy, dx) ? launch<4>(swiglu_backward_kernel<4>, R, F, stream, x, dy, dx)
                                  : launch<1>(swiglu_backward_kernel<1>, R, F, stream, x, dy, dx);
}
