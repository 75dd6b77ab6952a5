/* flash_tile.cuh - tiles of rows and columns of scores in f32, what flash_cuda.cu is made of.
 *
 * A block has TILE rows (of queries, or of keys) and TILE columns (of the other ones) at a time,
 * and its threads are GROUPS x LANES: thread (group, lane) has ROWS neighbouring rows and four
 * neighbouring columns of the scores, and of sums the same rows and WIDTH of the D values.
 * In shared memory, tiles are [TILE, PITCH] floats, zero from the head's size and the sequence's
 * end on. A tile's rows lie interleaved there: row number `place` is index place % n * (TILE / n) +
 * place / n, where n is GROUPS or LANES, so that neighbouring threads read neighbouring rows, which
 * are in different banks of memory. Scores are [TILE, SCORE_PITCH], of rows and of columns both by
 * place; a thread reads only the rows of its group, and LANES divides 32, so that __syncwarp() is
 * enough between writing and reading them.
 */
#ifndef RUBATO_KERNELS_CUDA_FLASH_TILE_CUH
#define RUBATO_KERNELS_CUDA_FLASH_TILE_CUH

#include "kernels/cuda/flash_layout.cuh"

// D: the widest head, a multiple of 32.
template <int D_, int TILE_, int THREADS_> struct flash_geometry {
    static constexpr int D = D_, TILE = TILE_, THREADS = THREADS_;
    static constexpr int COLUMNS = 4, LANES = TILE / COLUMNS, GROUPS = THREADS / LANES;
    static constexpr int ROWS = TILE / GROUPS, WIDTH = D / LANES;
    static constexpr int PACK = WIDTH % 4 == 0 ? 4 : 2; // values of sums that lie together
    static constexpr int PITCH = D + 4, SCORE_PITCH = TILE + LANES;
    static constexpr int TILE_FLOATS = TILE * PITCH, SCORE_FLOATS = TILE * SCORE_PITCH;
    static_assert(32 % LANES == 0 && TILE % GROUPS == 0 && WIDTH % PACK == 0, "whole parts");
    static_assert(ROWS * COLUMNS <= 32, "kept_scores() has a bit for each");
};

template <class G> static __device__ __forceinline__ int lane_of_thread() {
    return (int)threadIdx.x % G::LANES;
}
template <class G> static __device__ __forceinline__ int group_of_thread() {
    return (int)threadIdx.x / G::LANES;
}

// Positions first .. first + TILE - 1 of one head -> a tile, interleaved by N. All threads call.
template <class G, int N>
static __device__ __forceinline__ void load_tile(const flash_layout &layout, const float *from,
                                                 int64_t stride, int64_t first, float *to) {
    constexpr int QUADS = G::D / 4;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < G::TILE * QUADS; i += G::THREADS) {
        const int place = i / QUADS, d = i % QUADS * 4;
        const int64_t position = first + place % N * (G::TILE / N) + place / N;
        float4 values = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
        if (position < layout.T)
            values = load_four(from + position * stride + d, layout.D - d, layout.packs);
        *(float4 *)(to + place * G::PITCH + d) = values;
    }
}

// s = rows [TILE, D] columns [TILE, D]'.
template <class G>
static __device__ __forceinline__ void multiply_scores(const float *rows, const float *columns,
                                                       float (&s)[G::ROWS][G::COLUMNS]) {
    const float *row = rows + group_of_thread<G>() * G::PITCH;
    const float *column = columns + lane_of_thread<G>() * G::PITCH;
#pragma unroll
    for (int i = 0; i < G::ROWS; i++) {
        for (int j = 0; j < G::COLUMNS; j++)
            s[i][j] = 0.0F;
    }
#pragma unroll 1
    for (int d = 0; d < G::D; d += 4) {
        float4 b[G::COLUMNS];
#pragma unroll
        for (int j = 0; j < G::COLUMNS; j++)
            b[j] = *(const float4 *)(column + j * G::LANES * G::PITCH + d);
#pragma unroll
        for (int i = 0; i < G::ROWS; i++) {
            const float4 a = *(const float4 *)(row + i * G::GROUPS * G::PITCH + d);
#pragma unroll
            for (int j = 0; j < G::COLUMNS; j++) {
                s[i][j] += a.x * b[j].x; // one multiply-add each
                s[i][j] += a.y * b[j].y;
                s[i][j] += a.z * b[j].z;
                s[i][j] += a.w * b[j].w;
            }
        }
    }
}

// -> scores in shared memory, for multiply_values(). The warp waits before and after.
template <class G>
static __device__ __forceinline__ void share_scores(const float (&s)[G::ROWS][G::COLUMNS],
                                                    float *scores) {
    float *row = scores + group_of_thread<G>() * G::SCORE_PITCH + lane_of_thread<G>();
    __syncwarp(0xffffffffU); // others may still read what was there
#pragma unroll
    for (int i = 0; i < G::ROWS; i++) {
#pragma unroll
        for (int j = 0; j < G::COLUMNS; j++)
            row[i * G::GROUPS * G::SCORE_PITCH + j * G::LANES] = s[i][j];
    }
    __syncwarp(0xffffffffU);
}

// sums [TILE rows, D] += scores [TILE rows, TILE columns] values [TILE columns, D].
template <class G>
static __device__ __forceinline__ void multiply_values(const float *scores, const float *values,
                                                       float (&sums)[G::ROWS][G::WIDTH]) {
    const float *row = scores + group_of_thread<G>() * G::SCORE_PITCH;
    const float *column = values + lane_of_thread<G>() * G::PACK;
#pragma unroll 1
    for (int place = 0; place < G::TILE; place += 4) {
        pack<4> s[G::ROWS];
#pragma unroll
        for (int i = 0; i < G::ROWS; i++)
            s[i] = pack_load<4>(row + i * G::GROUPS * G::SCORE_PITCH + place);
#pragma unroll
        for (int n = 0; n < 4; n++) {
#pragma unroll
            for (int w = 0; w < G::WIDTH; w += G::PACK) {
                const pack<G::PACK> v =
                    pack_load<G::PACK>(column + (place + n) * G::PITCH + w * G::LANES);
#pragma unroll
                for (int i = 0; i < G::ROWS; i++) {
#pragma unroll
                    for (int k = 0; k < G::PACK; k++)
                        sums[i][w + k] += s[i].lane[n] * v.lane[k];
                }
            }
        }
    }
}

// sums times factor -> positions first .. first + TILE - 1 of one head, as far as these are there.
template <class G>
static __device__ __forceinline__ void
store_sums(const flash_layout &layout, const float (&sums)[G::ROWS][G::WIDTH], float factor,
           int64_t first, float *to, int64_t stride) {
    const int64_t position = first + group_of_thread<G>() * G::ROWS;
    float *row = to + position * stride;
#pragma unroll
    for (int i = 0; i < G::ROWS; i++) {
#pragma unroll
        for (int w = 0; w < G::WIDTH; w += G::PACK) {
            const int d = w * G::LANES + lane_of_thread<G>() * G::PACK;
            pack<G::PACK> v;
            for (int k = 0; k < G::PACK; k++)
                v.lane[k] = sums[i][w + k] * factor;
            if (position + i >= layout.T || d >= layout.D) continue;
            if (layout.packs) pack_store(row + i * stride + d, v);
            for (int k = 0; k < G::PACK && !layout.packs && d + k < layout.D; k++)
                row[i * stride + d + k] = v.lane[k];
        }
    }
}

// On the diagonal, where rows and columns start with the same position: no query sees later keys.
// KEYS: the rows are the keys, else the columns.
template <class G, bool KEYS>
static __device__ __forceinline__ void hide_later_keys(float (&s)[G::ROWS][G::COLUMNS]) {
    const int row = group_of_thread<G>() * G::ROWS, column = lane_of_thread<G>() * G::COLUMNS;
#pragma unroll
    for (int i = 0; i < G::ROWS; i++) {
#pragma unroll
        for (int j = 0; j < G::COLUMNS; j++) {
            if (KEYS ? row + i > column + j : column + j > row + i) s[i][j] = -INFINITY;
        }
    }
}

// Which scores of the thread dropout keeps: bit i * COLUMNS + j. first_row and first_column are
// positions, multiples of TILE.
template <class G, bool KEYS>
static __device__ __forceinline__ uint32_t kept_scores(const flash_layout &layout, int64_t head,
                                                       int64_t first_row, int64_t first_column) {
    constexpr int KEY_COUNT = KEYS ? G::ROWS : G::COLUMNS;
    constexpr int QUERY_COUNT = KEYS ? G::COLUMNS : G::ROWS;
    const int64_t row = first_row + group_of_thread<G>() * G::ROWS;
    const int64_t column = first_column + lane_of_thread<G>() * G::COLUMNS;
    const int64_t key = KEYS ? row : column, query = KEYS ? column : row;
    const int word = KEY_COUNT % 4 == 0 ? 0 : (int)(key % 4); // of the first key
    uint32_t kept = 0;
#pragma unroll 1
    for (int q = 0; q < QUERY_COUNT; q++) {
#pragma unroll
        for (int k = 0; k < KEY_COUNT; k += 4) {
            const uint4 words = dropout_words(layout, head, query + q, (key + k) / 4);
#pragma unroll
            for (int n = 0; n < 4 && k + n < KEY_COUNT; n++) {
                const int bit = KEYS ? (k + n) * G::COLUMNS + q : q * G::COLUMNS + k + n;
                if (dropout_word(words, word + n) >= layout.dropout.threshold) kept |= 1U << bit;
            }
        }
    }
    return kept;
}

#endif
