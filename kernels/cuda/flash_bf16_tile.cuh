/* flash_bf16_tile.cuh - tiles of scores on the tensor cores, what flash_bf16_cuda.cu is made of.
 *
 * A block has ROWS rows (of queries, or of keys) and COLUMNS columns (of the other ones) at a time;
 * each of its warps has STRIPS strips of 16 rows for itself, so that between the products only the
 * warp has to wait. In shared memory, tiles are [rows, PITCH] bfloat16, zero from the head's size
 * and the sequence's end on; scores are [ROWS, SCORE_PITCH] f32, and what becomes of them for the
 * next product is written over the same row's start as bfloat16. The pitches spread rows over the
 * banks of memory, and keep what wmma reads and writes aligned to 32 bytes.
 */
#ifndef RUBATO_KERNELS_CUDA_FLASH_BF16_TILE_CUH
#define RUBATO_KERNELS_CUDA_FLASH_BF16_TILE_CUH

#include "kernels/cuda/flash_layout.cuh"

#include <cuda_bf16.h>
#include <mma.h>

namespace wmma = nvcuda::wmma;

// D: the widest head, a multiple of 64.
template <int D_, int STRIPS_> struct bf16_geometry {
    static constexpr int D = D_, STRIPS = STRIPS_, STEPS = D / 16;
    static constexpr int WARPS = 4, THREADS = 32 * WARPS;
    static constexpr int WARP_ROWS = 16 * STRIPS, ROWS = WARPS * WARP_ROWS, COLUMNS = 64;
    static constexpr int PITCH = D + 8, SCORE_PITCH = COLUMNS + 4;
    static constexpr int ROW_VALUES = ROWS * PITCH, COLUMN_VALUES = COLUMNS * PITCH;
    static constexpr int SCORES = ROWS * SCORE_PITCH;
    // Columns of scores at a time, in strips: what there are registers for beside the sums.
    static constexpr int AT_ONCE = STRIPS > 1 ? 2 : 4;
};

using bf16_left = wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major>;
using bf16_right = wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::row_major>;
using bf16_right_t = wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::col_major>;
using f32_sums = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;
enum { HELD = f32_sums::num_elements }; // values of a strip's 16 x 16 that a lane has
static_assert(HELD == 8, "accumulator_rows() has 4 bits for each");

struct __align__(8) bf16_four {
    __nv_bfloat162 low, high;
};

static __device__ __forceinline__ bf16_four round_four(float a, float b, float c, float d) {
    return {__floats2bfloat162_rn(a, b), __floats2bfloat162_rn(c, d)};
}

static __device__ __forceinline__ int lane_of_thread() {
    return (int)threadIdx.x % 32;
}
static __device__ __forceinline__ int warp_of_thread() {
    return (int)threadIdx.x / 32;
}

// Positions first .. first + COUNT - 1 of one head -> a tile. All threads call.
template <class G, int COUNT>
static __device__ __forceinline__ void load_rounded(const flash_layout &layout, const float *from,
                                                    int64_t stride, int64_t first,
                                                    __nv_bfloat16 *to) {
    constexpr int QUADS = G::D / 4;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < COUNT * QUADS; i += G::THREADS) {
        const int place = i / QUADS, d = i % QUADS * 4;
        float4 v = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
        if (first + place < layout.T)
            v = load_four(from + (first + place) * stride + d, layout.D - d, layout.packs);
        *(bf16_four *)(to + place * G::PITCH + d) = round_four(v.x, v.y, v.z, v.w);
    }
}

// The warp's scores [WARP_ROWS, COLUMNS] = its rows [WARP_ROWS, D] columns [COLUMNS, D]'.
template <class G>
static __device__ __forceinline__ void
multiply_scores(const __nv_bfloat16 *rows, const __nv_bfloat16 *columns, float *scores) {
#pragma unroll 1
    for (int column = 0; column < G::COLUMNS; column += 16 * G::AT_ONCE) {
        f32_sums s[G::STRIPS][G::AT_ONCE];
#pragma unroll
        for (int i = 0; i < G::STRIPS; i++) {
#pragma unroll
            for (int j = 0; j < G::AT_ONCE; j++)
                wmma::fill_fragment(s[i][j], 0.0F);
        }
#pragma unroll 1
        for (int d = 0; d < G::D; d += 16) {
            bf16_left a[G::STRIPS];
#pragma unroll
            for (int i = 0; i < G::STRIPS; i++)
                wmma::load_matrix_sync(a[i], rows + i * 16 * G::PITCH + d, G::PITCH);
#pragma unroll
            for (int j = 0; j < G::AT_ONCE; j++) {
                bf16_right_t b;
                wmma::load_matrix_sync(b, columns + (column + j * 16) * G::PITCH + d, G::PITCH);
#pragma unroll
                for (int i = 0; i < G::STRIPS; i++)
                    wmma::mma_sync(s[i][j], a[i], b, s[i][j]);
            }
        }
#pragma unroll
        for (int i = 0; i < G::STRIPS; i++) {
#pragma unroll
            for (int j = 0; j < G::AT_ONCE; j++)
                wmma::store_matrix_sync(scores + i * 16 * G::SCORE_PITCH + column + j * 16, s[i][j],
                                        G::SCORE_PITCH, wmma::mem_row_major);
        }
    }
}

template <class G>
static __device__ __forceinline__ void clear_sums(f32_sums (&sums)[G::STRIPS][G::STEPS]) {
#pragma unroll
    for (int i = 0; i < G::STRIPS; i++) {
#pragma unroll
        for (int d = 0; d < G::STEPS; d++)
            wmma::fill_fragment(sums[i][d], 0.0F);
    }
}

// sums [WARP_ROWS, D] += what became of scores [WARP_ROWS, COLUMNS] times values [COLUMNS, D].
template <class G>
static __device__ __forceinline__ void multiply_values(const float *scores,
                                                       const __nv_bfloat16 *values,
                                                       f32_sums (&sums)[G::STRIPS][G::STEPS]) {
    constexpr int PITCH = 2 * G::SCORE_PITCH;
    const __nv_bfloat16 *rows = (const __nv_bfloat16 *)scores;
#pragma unroll 1
    for (int column = 0; column < G::COLUMNS; column += 16) {
        bf16_left a[G::STRIPS];
#pragma unroll
        for (int i = 0; i < G::STRIPS; i++)
            wmma::load_matrix_sync(a[i], rows + i * 16 * PITCH + column, PITCH);
#pragma unroll
        for (int d = 0; d < G::STEPS; d++) {
            bf16_right b;
            wmma::load_matrix_sync(b, values + column * G::PITCH + d * 16, G::PITCH);
#pragma unroll
            for (int i = 0; i < G::STRIPS; i++)
                wmma::mma_sync(sums[i][d], a[i], b, sums[i][d]);
        }
    }
}

// Of a row in `scores`, 64 values from column `first` on -> to, as far as the head is wide.
static __device__ __forceinline__ void store_row(const flash_layout &layout, const float *row,
                                                 int first, float *to) {
    const int d = first + lane_of_thread() % 16 * 4;
    const float4 v = *(const float4 *)(row + d - first);
    if (layout.packs) {
        if (d < layout.D) *(float4 *)(to + d) = v;
        return;
    }
    if (d < layout.D) to[d] = v.x;
    if (d + 1 < layout.D) to[d + 1] = v.y;
    if (d + 2 < layout.D) to[d + 2] = v.z;
    if (d + 3 < layout.D) to[d + 3] = v.w;
}

// The warp's sums times factor -> positions first .. first + WARP_ROWS - 1 of one head, as far as
// these are there, by way of its scores.
template <class G>
static __device__ __forceinline__ void
store_sums(const flash_layout &layout, f32_sums (&sums)[G::STRIPS][G::STEPS], float factor,
           int64_t first, float *scores, float *to, int64_t stride) {
#pragma unroll
    for (int d = 0; d < G::STEPS; d += 4) {
        __syncwarp(0xffffffffU); // other lanes may still read the scores
#pragma unroll
        for (int i = 0; i < G::STRIPS; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
#pragma unroll
                for (int n = 0; n < HELD; n++)
                    sums[i][d + j].x[n] *= factor;
                wmma::store_matrix_sync(scores + i * 16 * G::SCORE_PITCH + j * 16, sums[i][d + j],
                                        G::SCORE_PITCH, wmma::mem_row_major);
            }
        }
        __syncwarp(0xffffffffU);
#pragma unroll 1
        for (int row = lane_of_thread() / 16; row < G::WARP_ROWS; row += 2) {
            if (first + row < layout.T)
                store_row(layout, scores + row * G::SCORE_PITCH, d * 16,
                          to + (first + row) * stride);
        }
    }
}

#endif
