/* flash_cuda.cu - attention by tiles, see flash_cuda.h; flash_tile.cuh has the tiles.
 *
 * Forward carries each query's maximum and sum along (online softmax): a row's maximum is known to
 * all lanes, the sum is kept in parts, one a lane, until the end. Keys and values take turns in one
 * place of shared memory, so that more blocks fit on a multiprocessor: one computes while another
 * one waits for memory.
 */
#include "kernels/cuda/flash_cuda.h"
#include "kernels/cuda/flash_tile.cuh"
#include "kernels/cuda/flash_wide_cuda.h"

// The largest of the row, in all of its lanes.
template <class G> static __device__ __forceinline__ float row_most(float value) {
    for (int distance = G::LANES / 2; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffU, value, distance));
    return value;
}

template <class G> static __device__ __forceinline__ float row_sum(float value) {
    for (int distance = G::LANES / 2; distance > 0; distance /= 2)
        value += __shfl_xor_sync(0xffffffffU, value, distance);
    return value;
}

// What forward carries along for a thread's rows.
template <class G> struct online {
    float most[G::ROWS];           // of the scores, unscaled
    float total[G::ROWS];          // of the exponentials of the thread's columns
    float sums[G::ROWS][G::WIDTH]; // of y
};

// Scores -> their exponentials over the row's maximum so far, to which total and sums are brought.
template <class G>
static __device__ __forceinline__ void
online_softmax(float scale_log2, float (&s)[G::ROWS][G::COLUMNS], online<G> &carried) {
#pragma unroll
    for (int i = 0; i < G::ROWS; i++) {
        float most = carried.most[i];
#pragma unroll
        for (int j = 0; j < G::COLUMNS; j++)
            most = fmaxf(most, s[i][j]);
        most = row_most<G>(most);
        const float high = most * scale_log2;
        const float factor = exp2f(carried.most[i] * scale_log2 - high);
        carried.most[i] = most;
        carried.total[i] *= factor;
#pragma unroll
        for (int j = 0; j < G::COLUMNS; j++) {
            s[i][j] = exp2f(s[i][j] * scale_log2 - high);
            carried.total[i] += s[i][j];
        }
#pragma unroll
        for (int w = 0; w < G::WIDTH; w++)
            carried.sums[i][w] *= factor;
    }
}

template <class G>
static __device__ __forceinline__ void drop_scores(const flash_layout &layout, uint32_t kept,
                                                   float (&s)[G::ROWS][G::COLUMNS]) {
#pragma unroll
    for (int i = 0; i < G::ROWS; i++) {
#pragma unroll
        for (int j = 0; j < G::COLUMNS; j++)
            s[i][j] =
                (kept >> (i * G::COLUMNS + j) & 1) != 0 ? s[i][j] * layout.dropout.scale : 0.0F;
    }
}

// A block a tile of queries of a head; those with the most keys first.
template <class G>
static __global__ void __launch_bounds__(G::THREADS)
    forward_kernel(flash_layout layout, const float *qkv, float *lse, float *y) {
    DYNAMIC_SHARED unsigned char dynamic_shared[];
    float *queries = (float *)dynamic_shared, *other = queries + G::TILE_FLOATS;
    float *scores = other + G::TILE_FLOATS;
    const int64_t pairs = layout.B * layout.heads, head = blockIdx.x % pairs;
    const int64_t b = head / layout.heads, h = head % layout.heads;
    const int64_t kv = h / (layout.heads / layout.kv_heads), stride = layout.stride_qkv;
    const int64_t first = (gridDim.x / pairs - 1 - blockIdx.x / pairs) * G::TILE;
    online<G> carried = {};
#pragma unroll
    for (int i = 0; i < G::ROWS; i++)
        carried.most[i] = -INFINITY;
    load_tile<G, G::GROUPS>(layout, qkv + query_at(layout, b, h), stride, first, queries);
    for (int64_t key = 0; key <= first; key += G::TILE) {
        float s[G::ROWS][G::COLUMNS];
        __syncthreads(); // others may still read the last values
        load_tile<G, G::LANES>(layout, qkv + key_at(layout, b, kv), stride, key, other);
        __syncthreads();
        multiply_scores<G>(queries, other, s);
        if (key == first) hide_later_keys<G, false>(s);
        __syncthreads();
        load_tile<G, G::LANES>(layout, qkv + value_at(layout, b, kv), stride, key, other);
        online_softmax<G>(layout.scale_log2, s, carried);
        if (layout.dropout.threshold != 0)
            drop_scores<G>(layout, kept_scores<G, false>(layout, head, first, key), s);
        share_scores<G>(s, scores);
        __syncthreads();
        multiply_values<G>(scores, other, carried.sums);
    }
#pragma unroll
    for (int i = 0; i < G::ROWS; i++) {
        const int64_t query = first + group_of_thread<G>() * G::ROWS + i;
        const float total = row_sum<G>(carried.total[i]);
#pragma unroll
        for (int w = 0; w < G::WIDTH; w++)
            carried.sums[i][w] /= total;
        if (lane_of_thread<G>() == 0 && query < layout.T)
            lse[head * layout.T + query] = carried.most[i] * layout.scale + logf(total);
    }
    store_sums<G>(layout, carried.sums, 1.0F, first, y + y_at(layout, b, h), layout.stride_y);
}

// Scores s and gradients d of what the values were multiplied by (before dropout) -> probabilities
// (after dropout), and gradients of the scores, unscaled.
// KEYS: the rows are the keys, else the columns. Queries beyond the sequence have dy = 0, so that
// they add nothing.
template <class G, bool KEYS>
static __device__ __forceinline__ void
softmax_gradient(const flash_layout &layout, const float *lse, const float *delta,
                 const int64_t (&at)[3], float (&s)[G::ROWS][G::COLUMNS],
                 float (&d)[G::ROWS][G::COLUMNS]) {
    constexpr int QUERIES = KEYS ? G::COLUMNS : G::ROWS;
    const int64_t head = at[0], first_row = at[1], first_column = at[2];
    const int64_t query = KEYS ? first_column + lane_of_thread<G>() * G::COLUMNS
                               : first_row + group_of_thread<G>() * G::ROWS;
    float log2_sum[QUERIES], mean[QUERIES];
#pragma unroll
    for (int q = 0; q < QUERIES; q++) {
        const bool there = query + q < layout.T;
        log2_sum[q] = there ? lse[head * layout.T + query + q] * flash_log2_e : 0.0F;
        mean[q] = there ? delta[head * layout.T + query + q] : 0.0F;
    }
    if (first_row == first_column) hide_later_keys<G, KEYS>(s);
    uint32_t kept = ~0U;
    if (layout.dropout.threshold != 0)
        kept = kept_scores<G, KEYS>(layout, head, first_row, first_column);
#pragma unroll
    for (int i = 0; i < G::ROWS; i++) {
#pragma unroll
        for (int j = 0; j < G::COLUMNS; j++) {
            const int q = KEYS ? j : i;
            const float factor =
                (kept >> (i * G::COLUMNS + j) & 1) != 0 ? layout.dropout.scale : 0.0F;
            const float p = exp2f(s[i][j] * layout.scale_log2 - log2_sum[q]);
            s[i][j] = p * factor;
            d[i][j] = p * (d[i][j] * factor - mean[q]);
        }
    }
}

// KEYS: a block a tile of keys of a head of keys and values; the queries from there on pass by, of
// each head that looks at it. Else a block a tile of queries of a head, and the keys up to it.
template <class G, bool KEYS>
static __global__ void __launch_bounds__(G::THREADS)
    backward_kernel(flash_layout layout, const float *qkv, const float *lse, const float *delta,
                    const float *dy, float *dqkv) {
    DYNAMIC_SHARED unsigned char dynamic_shared[];
    float *rows = (float *)dynamic_shared, *more_rows = rows + G::TILE_FLOATS;
    float *columns = more_rows + G::TILE_FLOATS, *more_columns = columns + G::TILE_FLOATS;
    float *scores = more_columns + G::TILE_FLOATS;
    const int64_t group = layout.heads / layout.kv_heads, stride = layout.stride_qkv;
    const int64_t pairs = layout.B * (KEYS ? layout.kv_heads : layout.heads);
    const int64_t tiles = gridDim.x / pairs, tile = blockIdx.x / pairs;
    const int64_t b = blockIdx.x % pairs / (pairs / layout.B);
    const int64_t own = blockIdx.x % pairs % (pairs / layout.B), kv = KEYS ? own : own / group;
    const int64_t first = (KEYS ? tile : tiles - 1 - tile) * G::TILE; // the longest first
    const float *key = qkv + key_at(layout, b, kv), *value = qkv + value_at(layout, b, kv);
    float sums[G::ROWS][G::WIDTH] = {}, value_sums[G::ROWS][G::WIDTH] = {};
    if (KEYS) {
        load_tile<G, G::GROUPS>(layout, key, stride, first, rows);
        load_tile<G, G::GROUPS>(layout, value, stride, first, more_rows);
    } else {
        load_tile<G, G::GROUPS>(layout, qkv + query_at(layout, b, own), stride, first, rows);
        load_tile<G, G::GROUPS>(layout, dy + y_at(layout, b, own), layout.stride_y, first,
                                more_rows);
    }
    const int64_t turns = KEYS ? (tiles - tile) * group : first / G::TILE + 1;
    for (int64_t turn = 0; turn < turns; turn++) {
        const int64_t h = KEYS ? own * group + turn % group : own;
        const int64_t other = KEYS ? first + turn / group * G::TILE : turn * G::TILE;
        float s[G::ROWS][G::COLUMNS], d[G::ROWS][G::COLUMNS];
        __syncthreads(); // others may still read the last columns
        if (KEYS) {
            load_tile<G, G::LANES>(layout, qkv + query_at(layout, b, h), stride, other, columns);
            load_tile<G, G::LANES>(layout, dy + y_at(layout, b, h), layout.stride_y, other,
                                   more_columns);
        } else {
            load_tile<G, G::LANES>(layout, key, stride, other, columns);
            load_tile<G, G::LANES>(layout, value, stride, other, more_columns);
        }
        __syncthreads();
        multiply_scores<G>(rows, columns, s);
        multiply_scores<G>(more_rows, more_columns, d);
        const int64_t at[3] = {b * layout.heads + h, first, other};
        softmax_gradient<G, KEYS>(layout, lse, delta, at, s, d);
        if (KEYS) {
            share_scores<G>(s, scores);
            multiply_values<G>(scores, more_columns, value_sums);
        }
        share_scores<G>(d, scores);
        multiply_values<G>(scores, columns, sums);
    }
    float *to = dqkv + (KEYS ? key_at(layout, b, own) : query_at(layout, b, own));
    store_sums<G>(layout, sums, layout.scale, first, to, stride);
    if (KEYS)
        store_sums<G>(layout, value_sums, 1.0F, first, dqkv + value_at(layout, b, own), stride);
}

template <class G> static constexpr int shared_bytes(int tiles_held) {
    return (tiles_held * G::TILE_FLOATS + G::SCORE_FLOATS) * (int)sizeof(float);
}

enum { FORWARD_TILES = 2, BACKWARD_TILES = 4 }; // that a block holds, beside its scores

template <class G> static bool fits(int tiles_held) {
    return shared_memory_fits(shared_bytes<G>(tiles_held));
}

template <class G, class... P, class... A>
static cudaError_t launch_tiles(void (*kernel)(flash_layout, P...), int64_t pairs, int tiles_held,
                                cudaStream_t stream, const flash_layout &layout, A... arguments) {
    const int bytes = shared_bytes<G>(tiles_held);
    const int64_t tiles = (layout.T + G::TILE - 1) / G::TILE;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    return kernel_launch(kernel, dim3((unsigned)(pairs * tiles)), dim3(G::THREADS), (size_t)bytes,
                         stream, layout, arguments...);
}

template <class G>
static cudaError_t forward(const flash_layout &layout, const float *qkv, float *lse, float *y,
                           cudaStream_t stream) {
    return launch_tiles<G>(forward_kernel<G>, layout.B * layout.heads, FORWARD_TILES, stream,
                           layout, qkv, lse, y);
}

template <class G>
static cudaError_t backward(const flash_layout &layout, const struct attention_saved *saved,
                            const float *dy, float *dqkv, const float *delta, cudaStream_t stream) {
    const cudaError_t error =
        launch_tiles<G>(backward_kernel<G, true>, layout.B * layout.kv_heads, BACKWARD_TILES,
                        stream, layout, saved->qkv, saved->lse, delta, dy, dqkv);
    if (error != cudaSuccess) return error;
    return launch_tiles<G>(backward_kernel<G, false>, layout.B * layout.heads, BACKWARD_TILES,
                           stream, layout, saved->qkv, saved->lse, delta, dy, dqkv);
}

int flash_cuda_forward(const struct attention_shape *shape, const float *qkv, float *lse, float *y,
                       struct CUstream_st *stream) {
    const flash_layout layout = flash_layout_of(shape, qkv, y);
    if (layout.D <= 32) return forward<flash_geometry<32, 64, 128>>(layout, qkv, lse, y, stream);
    if (layout.D <= 64) return forward<flash_geometry<64, 64, 128>>(layout, qkv, lse, y, stream);
    if (layout.D <= 96) return forward<flash_geometry<96, 64, 128>>(layout, qkv, lse, y, stream);
    if (layout.D <= 128) return forward<flash_geometry<128, 64, 128>>(layout, qkv, lse, y, stream);
    if (layout.D <= 256 && fits<flash_geometry<256, 64, 256>>(FORWARD_TILES))
        return forward<flash_geometry<256, 64, 256>>(layout, qkv, lse, y, stream);
    return flash_wide_cuda_forward(shape, qkv, lse, y, stream);
}

int flash_cuda_backward(const struct attention_shape *shape, const struct attention_saved *saved,
                        const float *dy, float *dqkv, float *delta, struct CUstream_st *stream) {
    const flash_layout layout = flash_layout_of(shape, saved->qkv, dy, dqkv);
    const int error = flash_wide_cuda_delta(shape, dy, saved->y, delta, stream);
    if (error != 0) return error;
    if (layout.D <= 32)
        return backward<flash_geometry<32, 64, 128>>(layout, saved, dy, dqkv, delta, stream);
    if (layout.D <= 64)
        return backward<flash_geometry<64, 64, 128>>(layout, saved, dy, dqkv, delta, stream);
    if (layout.D <= 96 && fits<flash_geometry<96, 64, 256>>(BACKWARD_TILES))
        return backward<flash_geometry<96, 64, 256>>(layout, saved, dy, dqkv, delta, stream);
    if (layout.D <= 128 && fits<flash_geometry<128, 64, 256>>(BACKWARD_TILES))
        return backward<flash_geometry<128, 64, 256>>(layout, saved, dy, dqkv, delta, stream);
    if (layout.D <= 128)
        return backward<flash_geometry<128, 32, 128>>(layout, saved, dy, dqkv, delta, stream);
    if (layout.D <= 256 && fits<flash_geometry<256, 32, 128>>(BACKWARD_TILES))
        return backward<flash_geometry<256, 32, 128>>(layout, saved, dy, dqkv, delta, stream);
    return flash_wide_cuda_backward(shape, saved, dy, dqkv, delta, stream);
}
