/* flash_wide_cuda.cu - a warp a query or a key, see flash_wide_cuda.h. Its lanes share a head's
 * values; sums of y and of the gradients are kept in these arrays themselves.
 */
#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/flash_layout.cuh"
#include "kernels/cuda/flash_wide_cuda.h"

enum { THREADS = 128, WARPS = THREADS / 32 };

static __device__ __forceinline__ int64_t warp_number() {
    return (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
}

// In all lanes. All lanes call.
static __device__ __forceinline__ float warp_dot(const float *a, const float *b, int64_t count) {
    float sum = 0.0F;
#pragma unroll 1
    for (int64_t i = threadIdx.x % 32; i < count; i += 32)
        sum += a[i] * b[i];
    return warp_sum(sum);
}

static __device__ __forceinline__ float dropout_factor_at(const flash_layout &layout, int64_t head,
                                                          int64_t query, int64_t key) {
    if (layout.dropout.threshold == 0) return layout.dropout.scale;
    return dropout_factor_of(layout, dropout_words(layout, head, query, key / 4), (int)(key % 4));
}

// delta [B, heads, T]; a warp a position and head.
static __global__ void __launch_bounds__(THREADS)
    delta_kernel(flash_layout layout, const float *dy, const float *y, float *delta) {
    const int64_t row = warp_number(), heads = layout.heads, T = layout.T;
    if (row < layout.B * T * heads) {
        const float sum = warp_dot(dy + row * layout.D, y + row * layout.D, layout.D);
        const int64_t b = row / (T * heads), t = row / heads % T;
        if (threadIdx.x % 32 == 0) delta[(b * heads + row % heads) * T + t] = sum;
    }
}

static __device__ __forceinline__ void forward_query(const flash_layout &layout, int64_t number,
                                                     const float *qkv, float *lse, float *y) {
    const int64_t t = number % layout.T, head = number / layout.T;
    const int64_t b = head / layout.heads, h = head % layout.heads;
    const int64_t kv = h / (layout.heads / layout.kv_heads), stride = layout.stride_qkv;
    const float *query = qkv + query_at(layout, b, h) + t * stride;
    float *row = y + y_at(layout, b, h) + t * layout.stride_y;
    const float *key = qkv + key_at(layout, b, kv), *value = qkv + value_at(layout, b, kv);
    float most = -INFINITY, total = 0.0F;
    for (int64_t s = 0; s <= t; s++, key += stride, value += stride) {
        const float score = warp_dot(query, key, layout.D);
        const float high = fmaxf(most, score);
        const float factor = exp2f((most - high) * layout.scale_log2);
        const float p = exp2f((score - high) * layout.scale_log2);
        const float kept = p * dropout_factor_at(layout, head, t, s);
        most = high;
        total = total * factor + p;
        for (int64_t d = threadIdx.x % 32; d < layout.D; d += 32)
            row[d] = (s > 0 ? row[d] * factor : 0.0F) + kept * value[d];
    }
#pragma unroll 1
    for (int64_t d = threadIdx.x % 32; d < layout.D; d += 32)
        row[d] /= total;
    if (threadIdx.x % 32 == 0) lse[number] = most * layout.scale + logf(total);
}

// 8 blocks: up to 64 registers, where ptxas would rather spill some and run more blocks.
static __global__ void __launch_bounds__(THREADS, 8)
    forward_kernel(flash_layout layout, const float *qkv, float *lse, float *y) {
    const int64_t number = warp_number();
    if (number < layout.B * layout.heads * layout.T) forward_query(layout, number, qkv, lse, y);
}

// One query and one key.
struct pair_rows {
    int64_t head, t, s;
    const float *query, *key, *value, *dy;
};

// The probability after dropout, and the score's gradient, in all lanes.
static __device__ __forceinline__ float2 pair_gradient(const flash_layout &layout,
                                                       const pair_rows &pair, const float *lse,
                                                       const float *delta) {
    const int64_t row = pair.head * layout.T + pair.t;
    const float score = warp_dot(pair.query, pair.key, layout.D);
    const float dp = warp_dot(pair.dy, pair.value, layout.D);
    const float p = exp2f(score * layout.scale_log2 - lse[row] * flash_log2_e);
    const float factor = dropout_factor_at(layout, pair.head, pair.t, pair.s);
    return make_float2(p * factor, p * (dp * factor - delta[row]) * layout.scale);
}

static __device__ __forceinline__ pair_rows pair_of(const flash_layout &layout, const float *qkv,
                                                    const float *dy, const int64_t (&at)[4]) {
    const int64_t b = at[0], h = at[1], t = at[2], s = at[3], stride = layout.stride_qkv;
    const int64_t kv = h / (layout.heads / layout.kv_heads);
    return {b * layout.heads + h,
            t,
            s,
            qkv + query_at(layout, b, h) + t * stride,
            qkv + key_at(layout, b, kv) + s * stride,
            qkv + value_at(layout, b, kv) + s * stride,
            dy + y_at(layout, b, h) + t * layout.stride_y};
}

static __global__ void __launch_bounds__(THREADS)
    query_gradients_kernel(flash_layout layout, const float *qkv, const float *lse,
                           const float *delta, const float *dy, float *dqkv) {
    const int64_t number = warp_number(), t = number % layout.T, head = number / layout.T;
    const int64_t b = head / layout.heads, h = head % layout.heads;
    float *to = dqkv + query_at(layout, b, h) + t * layout.stride_qkv;
    for (int64_t s = 0; s <= t && b < layout.B; s++) {
        const pair_rows pair = pair_of(layout, qkv, dy, {b, h, t, s});
        const float2 gradient = pair_gradient(layout, pair, lse, delta);
        for (int64_t d = threadIdx.x % 32; d < layout.D; d += 32)
            to[d] = (s > 0 ? to[d] : 0.0F) + gradient.y * pair.key[d];
    }
}

static __global__ void __launch_bounds__(THREADS)
    key_gradients_kernel(flash_layout layout, const float *qkv, const float *lse,
                         const float *delta, const float *dy, float *dqkv) {
    const int64_t number = warp_number(), s = number % layout.T, kv_head = number / layout.T;
    const int64_t b = kv_head / layout.kv_heads, kv = kv_head % layout.kv_heads;
    const int64_t group = layout.heads / layout.kv_heads;
    float *dkey = dqkv + key_at(layout, b, kv) + s * layout.stride_qkv;
    float *dvalue = dqkv + value_at(layout, b, kv) + s * layout.stride_qkv;
    const int64_t turns = b < layout.B ? (layout.T - s) * group : 0;
    for (int64_t turn = 0; turn < turns; turn++) {
        const pair_rows pair =
            pair_of(layout, qkv, dy, {b, kv * group + turn % group, s + turn / group, s});
        const float2 gradient = pair_gradient(layout, pair, lse, delta);
        for (int64_t d = threadIdx.x % 32; d < layout.D; d += 32) {
            dkey[d] = (turn > 0 ? dkey[d] : 0.0F) + gradient.y * pair.query[d];
            dvalue[d] = (turn > 0 ? dvalue[d] : 0.0F) + gradient.x * pair.dy[d];
        }
    }
}

template <class... P, class... A>
static cudaError_t launch_warps(void (*kernel)(P...), int64_t warps, cudaStream_t stream,
                                A... arguments) {
    const int64_t blocks = (warps + WARPS - 1) / WARPS;
    return kernel_launch(kernel, dim3((unsigned)blocks), dim3(THREADS), 0, stream, arguments...);
}

int flash_wide_cuda_delta(const struct attention_shape *shape, const float *dy, const float *y,
                          float *delta, struct CUstream_st *stream) {
    const flash_layout layout = flash_layout_of(shape, dy, y);
    return launch_warps(delta_kernel, layout.B * layout.heads * layout.T, stream, layout, dy, y,
                        delta);
}

int flash_wide_cuda_forward(const struct attention_shape *shape, const float *qkv, float *lse,
                            float *y, struct CUstream_st *stream) {
    const flash_layout layout = flash_layout_of(shape, qkv, y);
    return launch_warps(forward_kernel, layout.B * layout.heads * layout.T, stream, layout, qkv,
                        lse, y);
}

int flash_wide_cuda_backward(const struct attention_shape *shape,
                             const struct attention_saved *saved, const float *dy, float *dqkv,
                             const float *delta, struct CUstream_st *stream) {
    const flash_layout layout = flash_layout_of(shape, saved->qkv, dy, dqkv);
    const cudaError_t error =
        launch_warps(key_gradients_kernel, layout.B * layout.kv_heads * layout.T, stream, layout,
                     saved->qkv, saved->lse, delta, dy, dqkv);
    if (error != cudaSuccess) return error;
    return launch_warps(query_gradients_kernel, layout.B * layout.heads * layout.T, stream, layout,
                        saved->qkv, saved->lse, delta, dy, dqkv);
}
