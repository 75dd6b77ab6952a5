/* rope_cuda.cu - a block a position, of all sequences of its stride: it makes the position's sines
 * and cosines once and turns each sequence's row with them, a thread packs of planes.
 *
 * Angles as in rope_cpu.c: angle = n * pi / 2 + r with n whole and |r| <= pi / 4, in double; sine
 * and cosine of r are f32 polynomials, minimax on that range (Cephes, sinf.c).
 */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/rope_cuda.h"

#include <math.h>

enum {
    THREADS = 256,
    BLOCKS = 2048 // so many at least, where there are sequences enough
};

struct turn {
    int64_t B, T, row;      // sequences, positions, values of a row of qkv
    int turned, count;      // heads that are turned, planes of each
    double position;        // of the first row
    double direction, rate; // plane i turns by direction * position * 2^(rate * i)
};

static __device__ __forceinline__ void sine_cosine(double angle, float *sine, float *cosine) {
    const double n = rint(angle * 0.63661977236758134308); // below 2^31, as positions are
    const float r = (float)(angle - n * 1.57079632679489661923), z = r * r;
    const float s = r + r * z * (-1.6666654611e-1F + z * (8.3321608736e-3F - z * 1.9515295891e-4F));
    const float tail =
        4.166664568298827e-2F + z * (z * 2.443315711809948e-5F - 1.388731625493765e-3F);
    const float c = 1.0F - 0.5F * z + z * z * tail;
    const int quarter = (int)(int64_t)n & 3;
    const float first = quarter & 1 ? c : s, second = quarter & 1 ? s : c;
    *sine = quarter & 2 ? -first : first;
    *cosine = (quarter + 1) & 2 ? -second : second;
}

template <int N>
static __global__ void __launch_bounds__(THREADS) turn_kernel(struct turn turn, float *qkv) {
    DYNAMIC_SHARED unsigned char dynamic_shared[];
    const int count = turn.count, planes = turn.turned * count, threads = (int)blockDim.x;
    float *const sines = (float *)dynamic_shared, *const cosines = sines + count;
    const double position = turn.direction * (turn.position + blockIdx.x);
    for (int i = (int)threadIdx.x; i < count; i += threads)
        sine_cosine(position * exp2(turn.rate * i), &sines[i], &cosines[i]);
    __syncthreads();
    for (int64_t b = blockIdx.y; b < turn.B; b += gridDim.y) {
        float *row = qkv + (b * turn.T + blockIdx.x) * turn.row;
        for (int plane = (int)threadIdx.x * N; plane < planes; plane += threads * N) {
            const int i = plane % count;
            float *first = row + (plane - i) * 2 + i;
            const pack<N> sine = pack_load<N>(sines + i), cosine = pack_load<N>(cosines + i);
            pack<N> one = pack_load<N>(first), other = pack_load<N>(first + count);
            for (int k = 0; k < N; k++) {
                const float x = one.lane[k], y = other.lane[k];
                one.lane[k] = x * cosine.lane[k] - y * sine.lane[k];
                other.lane[k] = y * cosine.lane[k] + x * sine.lane[k];
            }
            pack_store(first, one);
            pack_store(first + count, other);
        }
    }
}

static cudaError_t rotate(const struct rope_shape *shape, float *qkv, double direction,
                          cudaStream_t stream) {
    const int64_t turned = shape->heads + shape->kv_heads, count = shape->head_size / 2;
    if (count > ROPE_HEAD_MAX / 2) return cudaErrorInvalidValue;
    const struct turn turn = {shape->B,
                              shape->T,
                              (turned + shape->kv_heads) * shape->head_size,
                              (int)turned,
                              (int)count,
                              (double)shape->position,
                              direction,
                              -2.0 / (double)shape->head_size * log2(shape->theta)};
    const int64_t share = (BLOCKS + shape->T - 1) / shape->T;
    const dim3 grid((unsigned)shape->T, (unsigned)(share < shape->B ? share : shape->B));
    const bool packs = packable(count, qkv);
    return kernel_launch(packs ? turn_kernel<4> : turn_kernel<1>, grid,
                         kernel_threads(turned * count / (packs ? 4 : 1), THREADS),
                         (size_t)count * 2 * sizeof(float), stream, turn, qkv);
}

int rope_cuda_forward(const struct rope_shape *shape, float *qkv, struct CUstream_st *stream) {
    return rotate(shape, qkv, 1.0, stream);
}

int rope_cuda_backward(const struct rope_shape *shape, float *dqkv, struct CUstream_st *stream) {
    return rotate(shape, dqkv, -1.0, stream);
}
