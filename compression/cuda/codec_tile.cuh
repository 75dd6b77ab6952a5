/* codec_tile.cuh - a tile: 512 values in the registers of 16 lanes, half a warp.
 *
 * Lane l has the values l, l + 16, l + 32, ..., so that it adds up what the host's logical lane l
 * does, in the same order; folding the lanes in halves gives the host's sum in each of them. What
 * is past the block's end is 0. All threads of a block take part in every collective over whole
 * warps; tiles past the end are empty.
 */
#ifndef RUBATO_COMPRESSION_CUDA_CODEC_TILE_CUH
#define RUBATO_COMPRESSION_CUDA_CODEC_TILE_CUH

#include "compression/cuda/codec_launch.h"
#include "compression/cuda/codec_numbers.cuh"

enum { TILE = 512, TILE_LANES = 16, EACH = 32, THREADS = 128, BLOCK_TILES = 8 };
enum { SCALED = 128, SCALED_EACH = 8 }; /* values that share a scale, and of them a lane's */

static const uint32_t WARP = 0xffffffffU;

struct tile {
    int64_t index, offset; /* of the first value */
    int n;                 /* values, 0 .. 512 */
    int lane;
    uint32_t lanes; /* the lanes of its half of the warp */
};

static __device__ __forceinline__ struct tile tile_of(int64_t count, int64_t index) {
    struct tile tile;
    tile.index = index;
    tile.offset = tile.index * TILE;
    const int64_t left = count - tile.offset;
    tile.n = (int)min(max(left, (int64_t)0), (int64_t)TILE);
    tile.lane = threadIdx.x % TILE_LANES;
    tile.lanes = 0xffffU << (threadIdx.x % 32 / TILE_LANES * TILE_LANES);
    return tile;
}

/* The thread's of the group-th BLOCK_TILES tiles. */
static __device__ __forceinline__ struct tile tile_at(int64_t count, int64_t group) {
    return tile_of(count, group * BLOCK_TILES + threadIdx.x / TILE_LANES);
}

static __device__ __forceinline__ struct tile tile_here(int64_t count) {
    return tile_at(count, blockIdx.x);
}

static inline dim3 tile_blocks(int64_t count) {
    return dim3((unsigned)((count + TILE * BLOCK_TILES - 1) / (TILE * BLOCK_TILES)));
}

/* Where the lane's j-th value lies in the tile. */
static __device__ __forceinline__ int place_of(const struct tile &tile, int j) {
    return tile.lane + TILE_LANES * j;
}

/* Over the lanes of a tile, in each of them. `lanes`: who calls. */
static __device__ __forceinline__ float lanes_sum(float value, uint32_t lanes = WARP) {
#pragma unroll
    for (int distance = TILE_LANES / 2; distance > 0; distance /= 2)
        value = __fadd_rn(value, __shfl_xor_sync(lanes, value, distance));
    return value;
}

static __device__ __forceinline__ int lanes_total(int value) {
#pragma unroll
    for (int distance = TILE_LANES / 2; distance > 0; distance /= 2)
        value += __shfl_xor_sync(WARP, value, distance);
    return value;
}

static __device__ __forceinline__ uint32_t lanes_max(uint32_t value) {
#pragma unroll
    for (int distance = TILE_LANES / 2; distance > 0; distance /= 2)
        value = max(value, __shfl_xor_sync(WARP, value, distance));
    return value;
}

/* The tile's bits of a vote of the whole warp: bit l is lane l's. */
static __device__ __forceinline__ uint32_t lanes_vote(bool vote) {
    return __ballot_sync(WARP, vote) >> (threadIdx.x % 32 / TILE_LANES * TILE_LANES) & 0xffff;
}

/* ---- values of a lane as bits: bit j is the j-th's */

/* Those that lie below `end` in the tile. */
static __device__ __forceinline__ uint32_t values_below(const struct tile &tile, int end) {
    const int count = (end - tile.lane + TILE_LANES - 1) / TILE_LANES;
    if (end <= tile.lane) return 0;
    return count >= EACH ? ~0U : (1U << count) - 1;
}

static __device__ __forceinline__ void drop_values(float (&values)[EACH], uint32_t bits) {
#pragma unroll
    for (int j = 0; j < EACH; j++)
        values[j] = bits >> j & 1 ? 0.0F : values[j];
}

/* ---- rows that are all zero */

/* A bit a row, 1 for zero once it is flipped. bits NULL: no row is zero. */
struct row_mask {
    const uint8_t *bits;
    uint32_t flip;
    int64_t cols;
};

static __device__ __forceinline__ bool row_is_zero(const struct row_mask &mask, int64_t row) {
    return ((mask.bits[row / 8] ^ mask.flip) >> (row % 8) & 1) != 0;
}

/* The values of a tile that lie in one row. */
struct row_piece {
    int64_t row;
    int from, to;
};

static __device__ __forceinline__ int piece_end(const struct tile &tile, int64_t end) {
    return (int)min(end, (int64_t)tile.n);
}

static __device__ __forceinline__ struct row_piece first_piece(const struct tile &tile,
                                                               int64_t cols) {
    const int64_t row = tile.offset / cols;
    return {row, 0, piece_end(tile, (row + 1) * cols - tile.offset)};
}

static __device__ __forceinline__ struct row_piece next_piece(const struct tile &tile, int64_t cols,
                                                              const struct row_piece &piece) {
    return {piece.row + 1, piece.to, piece_end(tile, piece.to + cols)};
}

/* The lane's values that lie in zero rows; *active: how many of the tile's do not. */
static __device__ __forceinline__ uint32_t masked_values(const struct tile &tile,
                                                         const struct row_mask &mask, int *active) {
    uint32_t masked = 0;
    *active = tile.n;
    if (mask.bits == nullptr) return 0;
    for (struct row_piece piece = first_piece(tile, mask.cols); piece.from < tile.n;
         piece = next_piece(tile, mask.cols, piece)) {
        if (!row_is_zero(mask, piece.row)) continue;
        masked |= values_below(tile, piece.to) & ~values_below(tile, piece.from);
        *active -= piece.to - piece.from;
    }
    return masked;
}

/* ---- sums */

static __device__ __forceinline__ float lane_squares(const float (&values)[EACH], uint32_t bits) {
    float sum = 0.0F;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        if (bits >> j & 1) sum = __fadd_rn(sum, __fmul_rn(values[j], values[j]));
    }
    return sum;
}

/* In double, one value after the other, as the host adds up what f32 cannot hold. */
static __device__ __forceinline__ double exact_squares(const float (&values)[EACH],
                                                       double sum = 0.0) {
#pragma unroll
    for (int j = 0; j < EACH; j++) {
#pragma unroll 1
        for (int lane = 0; lane < TILE_LANES; lane++) {
            const double value = (double)__shfl_sync(WARP, values[j], lane, TILE_LANES);
            sum = __dadd_rn(sum, __dmul_rn(value, value));
        }
    }
    return sum;
}

/* The sum of squares of what rows that were sent hold back: row by row where some were not. */
static __device__ __forceinline__ double
kept_squares(const struct tile &tile, const struct row_mask &mask, const float (&kept)[EACH]) {
    if (mask.bits == nullptr) return (double)lanes_sum(lane_squares(kept, ~0U), tile.lanes);
    double sum = 0.0;
    for (struct row_piece piece = first_piece(tile, mask.cols); piece.from < tile.n;
         piece = next_piece(tile, mask.cols, piece)) {
        if (row_is_zero(mask, piece.row)) continue;
        const uint32_t bits = values_below(tile, piece.to) & ~values_below(tile, piece.from);
        sum = __dadd_rn(sum, (double)lanes_sum(lane_squares(kept, bits), tile.lanes));
    }
    return sum;
}

#endif
