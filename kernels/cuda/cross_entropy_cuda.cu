/* cross_entropy_cuda.cu - a block a row, which is read twice and written once: a pass for the
 * largest logit and the sum of exponentials, which is scaled as the largest grows (Milakov,
 * Gimelshein, arXiv 1805.02867), and a pass for the gradient, in place.
 *
 * Rows of an odd length begin anywhere: packs are taken from where 16 bytes are aligned, and the
 * values before and behind them one by one.
 */
#include "kernels/cuda/cross_entropy_cuda.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack.cuh"

#include <math.h>

enum { THREADS = 512 };

// sum of e^(x - most) over the values seen; most is -inf before the first.
struct softmax {
    float most, sum;
};

// e^(x - most), where -inf counts as 0 even if all else is -inf, and a NaN stays one.
static __device__ __forceinline__ float term(float x, float most) {
    return x == -INFINITY ? 0.0F : expf(x - most);
}

// What a sum of terms is multiplied by when the largest grows; equal infinities leave it.
static __device__ __forceinline__ float rescale(float from, float to) {
    return from == to ? 1.0F : expf(from - to);
}

template <int N>
static __device__ __forceinline__ struct softmax seen(struct softmax s, pack<N> x) {
    float most = s.most, sum = 0.0F;
    for (int i = 0; i < N; i++)
        most = fmaxf(most, x.lane[i]);
    for (int i = 0; i < N; i++)
        sum += term(x.lane[i], most);
    return {most, s.sum * rescale(s.most, most) + sum};
}

static __device__ __forceinline__ struct softmax join(struct softmax a, struct softmax b) {
    const float most = fmaxf(a.most, b.most);
    return {most, a.sum * rescale(a.most, most) + b.sum * rescale(b.most, most)};
}

static __device__ __forceinline__ struct softmax warp_join(struct softmax s) {
    for (int distance = 16; distance > 0; distance /= 2)
        s = join(s, {__shfl_xor_sync(0xffffffffU, s.most, distance),
                     __shfl_xor_sync(0xffffffffU, s.sum, distance)});
    return s;
}

// In every thread, the one of all threads. Called once.
static __device__ __forceinline__ struct softmax block_join(struct softmax s) {
    __shared__ float most[32], sum[32];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    s = warp_join(s);
    if (lane == 0) {
        most[warp] = s.most;
        sum[warp] = s.sum;
    }
    __syncthreads();
    const bool used = lane < blockDim.x / 32;
    return warp_join({used ? most[lane] : -INFINITY, used ? sum[lane] : 0.0F});
}

// The part of a row between `begin` and `end` is whole packs.
struct middle {
    int64_t begin, end;
};

template <int N>
static __device__ __forceinline__ struct middle middle_of(int64_t start, int64_t V) {
    const int64_t ahead = (N - start % N) % N, begin = ahead < V ? ahead : V;
    return {begin, begin + (V - begin) / N * N};
}

template <int N>
static __device__ __forceinline__ struct softmax row_softmax(const float *row, struct middle packs,
                                                             int64_t V) {
    struct softmax s = {-INFINITY, 0.0F};
    for (int64_t v = threadIdx.x; v < packs.begin; v += blockDim.x)
        s = seen<1>(s, {row[v]});
    for (int64_t v = packs.begin + threadIdx.x * N; v < packs.end; v += blockDim.x * N)
        s = seen<N>(s, pack_load<N>(row + v));
    for (int64_t v = packs.end + threadIdx.x; v < V; v += blockDim.x)
        s = seen<1>(s, {row[v]});
    return block_join(s);
}

// What becomes of logits in the second pass. factor = scale / sum; onehot is taken off the target.
struct gradient {
    float most, factor, onehot;
    int64_t target;
};

template <int N>
static __device__ __forceinline__ void put(float *row, int64_t v, const struct gradient &g) {
    pack<N> x = pack_load<N>(row + v);
    for (int i = 0; i < N; i++)
        x.lane[i] = expf(x.lane[i] - g.most) * g.factor - (v + i == g.target ? g.onehot : 0.0F);
    pack_store(row + v, x);
}

template <int N>
static __device__ __forceinline__ void row_gradient(float *row, struct middle packs, int64_t V,
                                                    const struct gradient &g) {
    for (int64_t v = threadIdx.x; v < packs.begin; v += blockDim.x)
        put<1>(row, v, g);
    for (int64_t v = packs.begin + threadIdx.x * N; v < packs.end; v += blockDim.x * N)
        put<N>(row, v, g);
    for (int64_t v = packs.end + threadIdx.x; v < V; v += blockDim.x)
        put<1>(row, v, g);
}

template <int N>
static __global__ void __launch_bounds__(THREADS)
    rows_kernel(float *logits, const int32_t *targets, float *losses, int64_t V, float scale) {
    const int64_t start = (int64_t)blockIdx.x * V, target = targets[blockIdx.x];
    const bool want_gradient = scale > 0.0F || scale < 0.0F;
    float *row = logits + start;
    if (target < 0) { // the whole block
        for (int64_t v = threadIdx.x; want_gradient && v < V; v += blockDim.x)
            row[v] = 0.0F;
        if (threadIdx.x == 0) losses[blockIdx.x] = 0.0F;
    } else {
        const struct middle packs = middle_of<N>(start, V);
        const float at_target = row[target];
        const struct softmax s = row_softmax<N>(row, packs, V);
        if (threadIdx.x == 0) losses[blockIdx.x] = logf(s.sum) + (s.most - at_target);
        if (want_gradient) row_gradient<N>(row, packs, V, {s.most, scale / s.sum, scale, target});
    }
}

template <int N>
static cudaError_t rows(float *logits, const int32_t *targets, float *losses, int64_t R, int64_t V,
                        float scale, cudaStream_t stream) {
    return kernel_launch(rows_kernel<N>, dim3((unsigned)R), kernel_threads(V / N + 1, THREADS), 0,
                         stream, logits, targets, losses, V, scale);
}

int cross_entropy_cuda(float *logits, const int32_t *targets, float *losses, int64_t R, int64_t V,
                       float scale, struct CUstream_st *stream) {
    return packable(0, logits) ? rows<4>(logits, targets, losses, R, V, scale, stream)
                               : rows<1>(logits, targets, losses, R, V, scale, stream);
}
