/* flash_bf16_cuda.cu - attention on the tensor cores, see flash_bf16_cuda.h; flash_bf16_tile.cuh
 * has the tiles. The passes go as in flash_cuda.cu.
 *
 * In forward two lanes have a row of scores between them; in backward a lane has 4 x 4 scores at a
 * time, so that one call of the generator serves the four keys of a query.
 */
#include "kernels/cuda/flash_bf16_cuda.h"
#include "kernels/cuda/flash_bf16_tile.cuh"
#include "kernels/cuda/flash_wide_cuda.h"

// What forward carries along for a row: the largest score, and the sum of the exponentials of the
// lane's columns.
struct online_row {
    float most, total;
};

// A query's scores with COLUMNS keys, in `row`.
struct score_row {
    int64_t head, query, first_key;
    float *row;
};

// Where quad k of the lane's columns begins: the two lanes of a row, and those of the next three
// rows, read from different banks.
static __device__ __forceinline__ int quad_column(int k) {
    return k / 4 * 32 + lane_of_thread() % 2 * 16 + k % 4 * 4;
}

// Which of the lane's scores dropout keeps: bit 4 * k + n is quad k's n-th.
template <class G>
static __device__ __forceinline__ uint32_t kept_columns(const flash_layout &layout,
                                                        const score_row &at) {
    uint32_t kept = 0;
#pragma unroll 1
    for (int k = 0; k < G::COLUMNS / 8; k++) {
        const uint4 words =
            dropout_words(layout, at.head, at.query, (at.first_key + quad_column(k)) / 4);
        kept |= kept_words(layout, words) << (4 * k);
    }
    return kept;
}

// Scores -> their exponentials over the maximum so far, dropped, as bfloat16. Returns what sums
// made with the former maximum must be multiplied by.
template <class G>
static __device__ __forceinline__ float online_softmax(const flash_layout &layout,
                                                       const score_row &at, online_row &carried) {
    constexpr int QUADS = G::COLUMNS / 8;
    const int64_t seen = at.query - at.first_key; // columns beyond are later keys
    float s[QUADS][4], most = carried.most;
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        const pack<4> four = pack_load<4>(at.row + quad_column(k));
#pragma unroll
        for (int n = 0; n < 4; n++) {
            s[k][n] = quad_column(k) + n > seen ? -INFINITY : four.lane[n];
            most = fmaxf(most, s[k][n]);
        }
    }
    most = fmaxf(most, __shfl_xor_sync(0xffffffffU, most, 1));
    const float high = most * layout.scale_log2;
    const float factor = exp2f(carried.most * layout.scale_log2 - high);
    carried.most = most;
    carried.total *= factor;
    uint32_t kept = 0;
    if (layout.dropout.threshold != 0) kept = kept_columns<G>(layout, at);
    __syncwarp(0xffffffffU); // the other lane has read its scores
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
#pragma unroll
        for (int n = 0; n < 4; n++) {
            s[k][n] = exp2f(s[k][n] * layout.scale_log2 - high);
            carried.total += s[k][n];
        }
#pragma unroll
        for (int n = 0; n < 4 && layout.dropout.threshold != 0; n++)
            s[k][n] = (kept >> (4 * k + n) & 1) != 0 ? s[k][n] * layout.dropout.scale : 0.0F;
        *(bf16_four *)((__nv_bfloat16 *)at.row + quad_column(k)) =
            round_four(s[k][0], s[k][1], s[k][2], s[k][3]);
    }
    return factor;
}

// The row of a strip that each value of an accumulator is of, 4 bits for each: how values lie in a
// fragment is the chip's own, but the same for all accumulators. `scores` is overwritten,
// and the lanes must meet before it is again.
template <class G> static __device__ __forceinline__ uint32_t accumulator_rows(float *scores) {
    const int row = lane_of_thread() / 2;
    for (int n = 0; n < 8; n++)
        scores[row * G::SCORE_PITCH + lane_of_thread() % 2 * 8 + n] = (float)row;
    __syncwarp(0xffffffffU);
    f32_sums numbers;
    wmma::load_matrix_sync(numbers, scores, G::SCORE_PITCH, wmma::mem_row_major);
    uint32_t rows = 0;
#pragma unroll
    for (int n = 0; n < HELD; n++)
        rows |= (uint32_t)numbers.x[n] << (4 * n);
    return rows;
}

// Each row of sums times its factor [WARP_ROWS].
template <class G>
static __device__ __forceinline__ void scale_rows(uint32_t rows, const float *factors,
                                                  f32_sums (&sums)[G::STRIPS][G::STEPS]) {
#pragma unroll
    for (int i = 0; i < G::STRIPS; i++) {
        float factor[HELD];
#pragma unroll
        for (int n = 0; n < HELD; n++)
            factor[n] = factors[i * 16 + (rows >> (4 * n) & 15)];
#pragma unroll
        for (int d = 0; d < G::STEPS; d++) {
#pragma unroll
            for (int n = 0; n < HELD; n++)
                sums[i][d].x[n] *= factor[n];
        }
    }
}

// A block a tile of queries of a head; those with the most keys first.
template <class G>
static __global__ void __launch_bounds__(G::THREADS)
    forward_kernel(flash_layout layout, const float *qkv, float *lse, float *y) {
    DYNAMIC_SHARED __align__(128) unsigned char dynamic_shared[];
    __nv_bfloat16 *queries = (__nv_bfloat16 *)dynamic_shared, *keys = queries + G::ROW_VALUES;
    __nv_bfloat16 *values = keys + G::COLUMN_VALUES;
    const int own = warp_of_thread() * G::WARP_ROWS, lane = lane_of_thread();
    float *scores = (float *)(values + G::COLUMN_VALUES) + own * G::SCORE_PITCH;
    float *factors = (float *)(values + G::COLUMN_VALUES) + G::SCORES + own;
    // The thread's own, a strip's THREADS apart: there are no registers for them.
    online_row *carried = (online_row *)(factors - own + G::ROWS) + threadIdx.x;
    const int64_t pairs = layout.B * layout.heads, head = blockIdx.x % pairs;
    const int64_t b = head / layout.heads, h = head % layout.heads;
    const int64_t kv = h / (layout.heads / layout.kv_heads), stride = layout.stride_qkv;
    const int64_t first = (gridDim.x / pairs - 1 - blockIdx.x / pairs) * G::ROWS;
    const int64_t end = first + G::ROWS < layout.T ? first + G::ROWS : layout.T;
    const uint32_t rows = accumulator_rows<G>(scores);
    f32_sums sums[G::STRIPS][G::STEPS];
    clear_sums<G>(sums);
    for (int i = 0; i < G::STRIPS; i++)
        carried[i * G::THREADS] = {-INFINITY, 0.0F};
    load_rounded<G, G::ROWS>(layout, qkv + query_at(layout, b, h), stride, first, queries);
    for (int64_t key = 0; key < end; key += G::COLUMNS) {
        __syncthreads(); // others may still read the last keys and values
        load_rounded<G, G::COLUMNS>(layout, qkv + key_at(layout, b, kv), stride, key, keys);
        load_rounded<G, G::COLUMNS>(layout, qkv + value_at(layout, b, kv), stride, key, values);
        __syncthreads();
        if (key >= first + own + G::WARP_ROWS) continue; // all of them come later
        multiply_scores<G>(queries + own * G::PITCH, keys, scores);
        __syncwarp(0xffffffffU);
#pragma unroll 1
        for (int i = 0; i < G::STRIPS; i++) {
            const int row = i * 16 + lane / 2;
            const score_row at = {head, first + own + row, key, scores + row * G::SCORE_PITCH};
            const float factor = online_softmax<G>(layout, at, carried[i * G::THREADS]);
            if (lane % 2 == 0) factors[row] = factor;
        }
        __syncwarp(0xffffffffU);
        scale_rows<G>(rows, factors, sums);
        multiply_values<G>(scores, values, sums);
    }
    __syncwarp(0xffffffffU); // other lanes may still read factors
#pragma unroll
    for (int i = 0; i < G::STRIPS; i++) {
        const int64_t query = first + own + i * 16 + lane / 2;
        const online_row mine = carried[i * G::THREADS];
        const float total = mine.total + __shfl_xor_sync(0xffffffffU, mine.total, 1);
        if (lane % 2 != 0) continue;
        factors[i * 16 + lane / 2] = 1.0F / total;
        if (query < layout.T) lse[head * layout.T + query] = mine.most * layout.scale + logf(total);
    }
    __syncwarp(0xffffffffU);
    scale_rows<G>(rows, factors, sums);
    store_sums<G>(layout, sums, 1.0F, first + own, scores, y + y_at(layout, b, h), layout.stride_y);
}

// Of one head: a strip's scores and the gradients of what the values were multiplied by, both
// [16, SCORE_PITCH], with the first positions of rows and columns; of the queries (the columns, or
// the rows) the logarithms to base 2 of their sums, and delta.
struct gradient_strip {
    int64_t head, first_row, first_column;
    float *scores, *gradients;
    const float *log2_sums, *delta;
};

// A lane's 4 x 4 of these -> probabilities (after dropout) and gradients of the scores (unscaled),
// in the same places. `row` and `column`: their first. KEYS: the rows are the keys, else the
// columns.
template <bool KEYS>
static __device__ __forceinline__ void
gradient_square(const flash_layout &layout, const gradient_strip &strip, int row, int column,
                pack<4> (&s)[4], pack<4> (&d)[4]) {
    const int64_t key = KEYS ? strip.first_row + row : strip.first_column + column;
    const int64_t query = KEYS ? strip.first_column + column : strip.first_row + row;
    const int statistic = KEYS ? column : row, seen = (int)(query - key);
    uint32_t kept = 0xFFFFU; // bit 4 * q + k
#pragma unroll 1
    for (int q = 0; q < 4 && layout.dropout.threshold != 0; q++) {
        const uint4 words = dropout_words(layout, strip.head, query + q, key / 4);
        kept = kept >> 4 | kept_words(layout, words) << 12;
    }
#pragma unroll
    for (int q = 0; q < 4; q++) {
        const float log2_sum = strip.log2_sums[statistic + q];
        const float delta = strip.delta[statistic + q];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float &score = KEYS ? s[k].lane[q] : s[q].lane[k];
            float &gradient = KEYS ? d[k].lane[q] : d[q].lane[k];
            const float factor = (kept >> (4 * q + k) & 1) != 0 ? layout.dropout.scale : 0.0F;
            const float p = k > seen + q ? 0.0F : exp2f(score * layout.scale_log2 - log2_sum);
            score = p * factor;
            gradient = p * (gradient * factor - delta);
        }
    }
}

// The whole strip, as bfloat16. In two passes: what one writes lies over what it or the last one
// has read, after the warp has waited.
template <class G, bool KEYS>
static __device__ __forceinline__ void softmax_gradient(const flash_layout &layout,
                                                        const gradient_strip &strip) {
    const int row = lane_of_thread() / 8 * 4;
#pragma unroll 1
    for (int pass = 0; pass < 2; pass++) {
        const int column = 32 * pass + lane_of_thread() % 8 * 4;
        pack<4> s[4], d[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[i] = pack_load<4>(strip.scores + (row + i) * G::SCORE_PITCH + column);
            d[i] = pack_load<4>(strip.gradients + (row + i) * G::SCORE_PITCH + column);
        }
        gradient_square<KEYS>(layout, strip, row, column, s, d);
        __syncwarp(0xffffffffU);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int place = (row + i) * 2 * G::SCORE_PITCH + column;
            *(bf16_four *)((__nv_bfloat16 *)strip.scores + place) =
                round_four(s[i].lane[0], s[i].lane[1], s[i].lane[2], s[i].lane[3]);
            *(bf16_four *)((__nv_bfloat16 *)strip.gradients + place) =
                round_four(d[i].lane[0], d[i].lane[1], d[i].lane[2], d[i].lane[3]);
        }
    }
    __syncwarp(0xffffffffU);
}

// Of 64 queries, for gradient_strip; those beyond the sequence have dy = 0, and add nothing.
static __device__ __forceinline__ void load_statistics(const flash_layout &layout, const float *lse,
                                                       const float *delta, int64_t head,
                                                       int64_t query, float *to) {
    const int i = (int)threadIdx.x;
    if (i >= 64) return;
    const bool there = query + i < layout.T;
    to[i] = there ? lse[head * layout.T + query + i] * flash_log2_e : 0.0F;
    to[64 + i] = there ? delta[head * layout.T + query + i] : 0.0F;
}

// KEYS: a block a tile of keys of a head of keys and values; the queries from there on pass by, of
// each head that looks at it. Else a block a tile of queries of a head, and the keys up to it.
template <class G, bool KEYS>
static __global__ void __launch_bounds__(G::THREADS)
    backward_kernel(flash_layout layout, const float *qkv, const float *lse, const float *delta,
                    const float *dy, float *dqkv) {
    static_assert(G::ROWS == 64 && G::COLUMNS == 64 && G::STRIPS == 1, "one size of tile");
    DYNAMIC_SHARED __align__(128) unsigned char dynamic_shared[];
    __nv_bfloat16 *rows = (__nv_bfloat16 *)dynamic_shared, *more_rows = rows + G::ROW_VALUES;
    __nv_bfloat16 *columns = more_rows + G::ROW_VALUES;
    __nv_bfloat16 *more_columns = columns + G::COLUMN_VALUES;
    const int own = warp_of_thread() * G::WARP_ROWS;
    float *scores = (float *)(more_columns + G::COLUMN_VALUES) + own * G::SCORE_PITCH;
    float *gradients = scores + G::SCORES;
    float *statistics = (float *)(more_columns + G::COLUMN_VALUES) + 2 * G::SCORES;
    const int64_t group = layout.heads / layout.kv_heads, stride = layout.stride_qkv;
    const int64_t per = KEYS ? layout.kv_heads : layout.heads, pairs = layout.B * per;
    const int64_t tiles = gridDim.x / pairs, tile = blockIdx.x / pairs;
    const int64_t b = blockIdx.x % pairs / per, mine = blockIdx.x % per;
    const int64_t kv = KEYS ? mine : mine / group;
    const int64_t first = (KEYS ? tile : tiles - 1 - tile) * 64; // the longest first
    const float *key = qkv + key_at(layout, b, kv), *value = qkv + value_at(layout, b, kv);
    f32_sums sums[G::STRIPS][G::STEPS], value_sums[G::STRIPS][G::STEPS];
    clear_sums<G>(sums);
    if (KEYS) clear_sums<G>(value_sums);
    const float *row = KEYS ? key : qkv + query_at(layout, b, mine);
    const float *more_row = KEYS ? value : dy + y_at(layout, b, mine);
    load_rounded<G, 64>(layout, row, stride, first, rows);
    load_rounded<G, 64>(layout, more_row, KEYS ? stride : layout.stride_y, first, more_rows);
    const int64_t turns = KEYS ? (tiles - tile) * group : tiles - tile;
    for (int64_t turn = 0; turn < turns; turn++) {
        const int64_t h = KEYS ? mine * group + turn % group : mine;
        const int64_t other = KEYS ? first + turn / group * 64 : turn * 64;
        const float *column = KEYS ? qkv + query_at(layout, b, h) : key;
        const float *more_column = KEYS ? dy + y_at(layout, b, h) : value;
        const int64_t head = b * layout.heads + h;
        __syncthreads(); // others may still read the last columns
        load_rounded<G, 64>(layout, column, stride, other, columns);
        load_rounded<G, 64>(layout, more_column, KEYS ? layout.stride_y : stride, other,
                            more_columns);
        load_statistics(layout, lse, delta, head, KEYS ? other : first, statistics);
        __syncthreads();
        multiply_scores<G>(rows + own * G::PITCH, columns, scores);
        multiply_scores<G>(more_rows + own * G::PITCH, more_columns, gradients);
        __syncwarp(0xffffffffU);
        const float *mean = statistics + (KEYS ? 0 : own);
        softmax_gradient<G, KEYS>(layout,
                                  {head, first + own, other, scores, gradients, mean, mean + 64});
        if (KEYS) multiply_values<G>(scores, more_columns, value_sums);
        multiply_values<G>(gradients, columns, sums);
    }
    float *to = dqkv + (KEYS ? key_at(layout, b, mine) : query_at(layout, b, mine));
    store_sums<G>(layout, sums, layout.scale, first + own, scores, to, stride);
    if (KEYS)
        store_sums<G>(layout, value_sums, 1.0F, first + own, scores,
                      dqkv + value_at(layout, b, mine), stride);
}

template <class... P, class... A>
static cudaError_t launch_tiles(void (*kernel)(flash_layout, P...), int64_t blocks, int bytes,
                                cudaStream_t stream, const flash_layout &layout, A... arguments) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    return kernel_launch(kernel, dim3((unsigned)blocks), dim3(128), (size_t)bytes, stream, layout,
                         arguments...);
}

template <class G> static constexpr int forward_bytes() {
    return (G::ROW_VALUES + 2 * G::COLUMN_VALUES) * (int)sizeof(__nv_bfloat16) +
           (G::SCORES + G::ROWS + 2 * G::STRIPS * G::THREADS) * (int)sizeof(float);
}
template <class G> static constexpr int backward_bytes() {
    return 2 * (G::ROW_VALUES + G::COLUMN_VALUES) * (int)sizeof(__nv_bfloat16) +
           (2 * G::SCORES + 2 * G::ROWS) * (int)sizeof(float);
}

template <int D> static bool fits() {
    constexpr int bytes = forward_bytes<bf16_geometry<D, 2>>();
    static_assert(backward_bytes<bf16_geometry<D, 1>>() <= bytes, "what fits goes both ways");
    return shared_memory_fits(bytes);
}

template <class G>
static cudaError_t forward(const flash_layout &layout, const float *qkv, float *lse, float *y,
                           cudaStream_t stream) {
    const int64_t tiles = (layout.T + G::ROWS - 1) / G::ROWS;
    return launch_tiles(forward_kernel<G>, layout.B * layout.heads * tiles, forward_bytes<G>(),
                        stream, layout, qkv, lse, y);
}

template <class G>
static cudaError_t backward(const flash_layout &layout, const struct attention_saved *saved,
                            const float *dy, float *dqkv, const float *delta, cudaStream_t stream) {
    const int bytes = backward_bytes<G>();
    const int64_t tiles = (layout.T + G::ROWS - 1) / G::ROWS * layout.B;
    const cudaError_t error = launch_tiles(backward_kernel<G, true>, layout.kv_heads * tiles, bytes,
                                           stream, layout, saved->qkv, saved->lse, delta, dy, dqkv);
    if (error != cudaSuccess) return error;
    return launch_tiles(backward_kernel<G, false>, layout.heads * tiles, bytes, stream, layout,
                        saved->qkv, saved->lse, delta, dy, dqkv);
}

bool flash_bf16_cuda_takes(const struct attention_shape *shape) {
    const int64_t D = shape->head_size;
    return D <= 64 ? fits<64>() : D <= FLASH_BF16_HEAD_MAX && fits<128>();
}

int flash_bf16_cuda_forward(const struct attention_shape *shape, const float *qkv, float *lse,
                            float *y, struct CUstream_st *stream) {
    const flash_layout layout = flash_layout_of(shape, qkv, y);
    if (!flash_bf16_cuda_takes(shape)) return cudaErrorInvalidValue;
    return layout.D <= 64 ? forward<bf16_geometry<64, 2>>(layout, qkv, lse, y, stream)
                          : forward<bf16_geometry<128, 2>>(layout, qkv, lse, y, stream);
}

int flash_bf16_cuda_backward(const struct attention_shape *shape,
                             const struct attention_saved *saved, const float *dy, float *dqkv,
                             float *delta, struct CUstream_st *stream) {
    const flash_layout layout = flash_layout_of(shape, saved->qkv, dy, dqkv);
    if (!flash_bf16_cuda_takes(shape)) return cudaErrorInvalidValue;
    const int error = flash_wide_cuda_delta(shape, dy, saved->y, delta, stream);
    if (error != 0) return error;
    return layout.D <= 64 ? backward<bf16_geometry<64, 1>>(layout, saved, dy, dqkv, delta, stream)
                          : backward<bf16_geometry<128, 1>>(layout, saved, dy, dqkv, delta, stream);
}
