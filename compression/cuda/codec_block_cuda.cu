/* codec_block_cuda.cu - what an encoding does for a block as a whole: rows that are all zero, ahead
 * of its tiles; behind them the payload's head and the result.
 */
#include "compression/cuda/codec_cuda.h"
#include "compression/cuda/codec_encode.cuh"
#include "compression/randk_places.h"

enum { ROW_THREADS = 256, ROW_WARPS = ROW_THREADS / 32, PIECE = 4096, LOADS = 4 };
enum { SUM_THREADS = 128, SUM_PARTS = 512, SUMS = 3 };

/* A warp looks at a piece of a row, up to its first value that is not zero. */
static __global__ void __launch_bounds__(ROW_THREADS)
    rows_kernel(struct codec_launch launch, const float *values, uint32_t *rows) {
    const int64_t pieces = (launch.cols + PIECE - 1) / PIECE;
    const int64_t here = (int64_t)blockIdx.x * ROW_WARPS + threadIdx.x / 32;
    const int64_t row = here / pieces, first = here % pieces * PIECE;
    const int64_t end = row < launch.rows ? min(first + PIECE, launch.cols) : first;
    const float *from = values + row * launch.cols;
    bool found = false;
    for (int64_t col = first; col < end && !found; col += 32 * LOADS) {
        uint32_t seen = 0;
        for (int i = 0; i < LOADS; i++) {
            const int64_t at = col + 32 * i + threadIdx.x % 32;
            if (at < end) seen |= magnitude(from[at]);
        }
        found = __any_sync(WARP, seen != 0);
    }
    if (!found || threadIdx.x % 32 != 0) return;
    const uint32_t bit = 1U << (row % 32);
    const uint32_t old = atomicOr(&rows[CODEC_ROWS_HEAD + row / 32], bit);
    if ((old & bit) == 0) atomicAdd(&rows[CODEC_ROWS_FOUND], 1U);
}

static __device__ void put_mask(const struct codec_launch &launch, const struct row_mask &mask,
                                uint8_t *wire) {
    const bool told = mask.bits != nullptr;
    if (threadIdx.x == 0) {
        wire[0] = told ? 1 : 0;
        if (told) put_word(wire + 1, (uint32_t)launch.cols);
    }
    if (!told) return;
    for (int64_t i = threadIdx.x; i < (launch.rows + 7) / 8; i += SUM_THREADS) {
        const int64_t left = launch.rows - 8 * i;
        const uint32_t here = left < 8 ? (1U << left) - 1 : 0xff;
        wire[5 + i] = (uint8_t)(~mask.bits[i] & here);
    }
}

/* What comes before the first tile. */
static __device__ void put_head(const struct codec_launch &launch, const struct row_mask &mask,
                                uint8_t *wire) {
    const int64_t head = head_bytes(launch, mask);
    const uint32_t codec = launch.codec;
    if (codec == CODEC_INT4 || codec == CODEC_QSGD || codec == CODEC_ONEBIT ||
        codec == CODEC_SIGNSGD)
        put_mask(launch, has(launch, CODEC_LAUNCH_SHOWS) ? mask : row_mask{nullptr, 0, 1}, wire);
    if (threadIdx.x != 0) return;
    if (codec == CODEC_FP8) wire[0] = has(launch, CODEC_LAUNCH_E5M2) ? 1 : 0;
    if (codec == CODEC_INT4 || codec == CODEC_QSGD)
        wire[head - 1] = has(launch, CODEC_LAUNCH_HAD) ? 2 : 0;
    if (codec != CODEC_TOPK && codec != CODEC_TOPK_GLOBAL && codec != CODEC_RANDK &&
        codec != CODEC_POWERSGD && codec != CODEC_POWERSGD_SHARED)
        return;
    for (int i = 0; i < 4 && 4 * i < head; i++)
        put_word(wire + 4 * i, launch.number[i]);
}

/* sum of parts [0, count), one after the other, `together` of them at a time first. */
struct summing {
    const double *parts;
    int64_t count;
    uint32_t together; /* a power of two, at most SUM_PARTS */
    double sum, part;
};

static __device__ void add_parts(struct summing *summing, const double *here, int64_t first) {
    const int64_t end = min(first + SUM_PARTS, summing->count);
    for (int64_t i = first; i < end; i++) {
        summing->part = __dadd_rn(summing->part, here[i - first]);
        if (((i + 1) & (summing->together - 1)) != 0 && i + 1 < summing->count) continue;
        summing->sum = __dadd_rn(summing->sum, summing->part);
        summing->part = 0.0;
    }
}

/* Are values read that are sent, and no others? Then no tile has sums but of what was sent. */
static __device__ bool picks(const struct codec_launch &launch) {
    return launch.codec == CODEC_RANDK && !has(launch, CODEC_LAUNCH_FEEDBACK);
}

/* The order of additions is the host's; so one thread adds up each of the three sums, from what all
 * have brought near. */
static __device__ double add_up(const struct codec_launch &launch, const double *sums) {
    __shared__ double parts[SUMS][SUM_PARTS];
    const int64_t tiles = (launch.count + TILE - 1) / TILE;
    const int mine = (int)(threadIdx.x / 32);
    struct summing summing = {sums, launch.square_parts, 1, 0.0, 0.0};
    if (mine > 0)
        summing = {sums + launch.square_parts + (mine - 1) * tiles, picks(launch) ? 0 : tiles,
                   launch.fold_parts, 0.0, 0.0};
    for (int64_t first = 0; first < tiles; first += SUM_PARTS) {
        __syncthreads();
        for (int i = (int)(threadIdx.x % 32); mine < SUMS && i < SUM_PARTS; i += 32) {
            if (first + i < summing.count) parts[mine][i] = summing.parts[first + i];
        }
        __syncthreads();
        if (mine < SUMS && threadIdx.x % 32 == 0) add_parts(&summing, parts[mine], first);
    }
    return summing.sum;
}

static __global__ void __launch_bounds__(SUM_THREADS)
    finish_kernel(struct codec_launch launch, const uint32_t *rows, const double *sums,
                  uint8_t *wire, struct codec_cuda_result *result) {
    const struct row_mask mask = found_mask(launch, rows);
    const bool filled = rows[CODEC_ROWS_SPECIAL] != 0 && !has(launch, CODEC_LAUNCH_SPECIALS);
    const double nan = (double)__uint_as_float(INFINITY_BITS | QUIET_BIT);
    if (filled && threadIdx.x == 0) put_word(wire, INFINITY_BITS | QUIET_BIT);
    if (!filled) put_head(launch, mask, wire);
    const double sum = add_up(launch, sums);
    if (threadIdx.x == 0) {
        result->square_sum = filled ? nan : sum;
        result->codec = filled ? (uint32_t)CODEC_FILL : launch.codec;
        result->bytes =
            filled ? 4 : (uint64_t)(head_bytes(launch, mask) + rows[CODEC_ROWS_GAPS] + launch.body);
        if (picks(launch)) result->gradient_square_sum = sum / (double)launch.number[RANDK_PERIOD];
    }
    if (threadIdx.x == 32 && !picks(launch)) result->gradient_square_sum = sum;
    if (threadIdx.x == 64) result->residual_square_sum = sum;
}

int codec_launch_rows(const struct codec_launch *launch, const struct codec_arrays *arrays,
                      struct CUstream_st *stream) {
    const int64_t warps = launch->rows * ((launch->cols + PIECE - 1) / PIECE);
    const dim3 blocks((unsigned)((warps + ROW_WARPS - 1) / ROW_WARPS));
    return kernel_launch(rows_kernel, blocks, dim3(ROW_THREADS), 0, stream, *launch, arrays->values,
                         arrays->rows);
}

int codec_launch_finish(const struct codec_launch *launch, const struct codec_arrays *arrays,
                        struct CUstream_st *stream) {
    return kernel_launch(finish_kernel, dim3(1), dim3(SUM_THREADS), 0, stream, *launch,
                         arrays->rows, arrays->sums, arrays->wire, arrays->result);
}
