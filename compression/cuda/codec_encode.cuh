/* codec_encode.cuh - the pass of compression/encoder.c over a block, a tile in 16 lanes: scale and
 * residual, the codec's bytes, what they decode to, and what is held back of it.
 *
 * A codec is a struct KIND of static members, as a struct scheme is of pointers:
 *   sums_squares  false: another kernel adds up what was sent
 *   place(launch, index)  bytes between the first tile and that one
 *   encode(launch, tile, active, a, at, sent)  the tile -> at; active: values in rows that are not
 *       all zero; sent: what it decodes to, or what finish() makes that of. Returns the sum of the
 *       squares of what it decodes to; negative: not known
 *   finish(launch, tile, sent)
 *   decode(launch, tile, at, values)  at: behind the row mask, or where the payload begins
 */
#ifndef RUBATO_COMPRESSION_CUDA_CODEC_ENCODE_CUH
#define RUBATO_COMPRESSION_CUDA_CODEC_ENCODE_CUH

#include "compression/cuda/codec_int8.cuh"
#include "kernels/cuda/launch.cuh"

static __device__ __forceinline__ bool has(const struct codec_launch &launch, uint32_t flag) {
    return (launch.flags & flag) != 0;
}

/* What codec_launch_rows() found. */
static __device__ __forceinline__ struct row_mask found_mask(const struct codec_launch &launch,
                                                             const uint32_t *rows) {
    const bool any = has(launch, CODEC_LAUNCH_ROWS) && rows[CODEC_ROWS_FOUND] < launch.rows;
    return {any ? (const uint8_t *)(rows + CODEC_ROWS_HEAD) : nullptr, 0xff, launch.cols};
}

/* Bytes of a mask that is told, behind the byte that says so. */
static __device__ __forceinline__ int64_t mask_bytes(int64_t rows) {
    return 4 + (rows + 7) / 8;
}

static __device__ __forceinline__ int64_t head_bytes(const struct codec_launch &launch,
                                                     const struct row_mask &mask) {
    const bool told = mask.bits != nullptr && has(launch, CODEC_LAUNCH_SHOWS);
    return launch.head + (told ? mask_bytes(launch.rows) : 0);
}

/* a = scale * values + residual. Returns the sum of the squares of scale * values, and notes what
 * is not finite. */
template <bool FEEDBACK>
static __device__ __forceinline__ double
load_tile(const struct codec_launch &launch, const struct tile &tile, const float *values,
          const uint8_t *residual, uint32_t *rows, float (&a)[EACH]) {
    const bool as_is = !FEEDBACK && launch.scale == 1.0F;
    float kept[EACH], sum = 0.0F;
    uint32_t most = 0;
    if (FEEDBACK) residual_load(launch.residual_type, residual, tile, kept);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int place = place_of(tile, j);
        a[j] = place < tile.n ? values[tile.offset + place] : 0.0F;
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const float scaled = host_nan(__fmul_rn(a[j], launch.scale), a[j], launch.scale);
        sum = __fadd_rn(sum, __fmul_rn(scaled, scaled));
        if (FEEDBACK)
            a[j] = host_nan(__fadd_rn(scaled, kept[j]), scaled, kept[j]);
        else if (!as_is)
            a[j] = scaled;
        most = max(most, magnitude(a[j]));
    }
    const bool special = __any_sync(WARP, most >= INFINITY_BITS);
    if (special && threadIdx.x % 32 == 0) atomicOr(&rows[CODEC_ROWS_SPECIAL], 1U);
    return (double)lanes_sum(sum);
}

/* residual = beta * residual + (1 - beta) * (a - sent), 0 where that is not finite. Returns the sum
 * of its squares. `sent` becomes it. */
static __device__ __forceinline__ double
settle_tile(const struct codec_launch &launch, const struct tile &tile, const struct row_mask &mask,
            uint32_t masked, const float (&a)[EACH], float (&sent)[EACH], uint8_t *residual) {
    const float beta = launch.beta, rest = __fsub_rn(1.0F, beta);
    const bool whole = mask.bits != nullptr && launch.residual_type == RESIDUAL_INT8;
    float old[EACH];
    if (beta != 0.0F || whole) residual_load(launch.residual_type, residual, tile, old);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        float kept = __fsub_rn(a[j], sent[j]);
        if (beta != 0.0F) kept = __fadd_rn(__fmul_rn(beta, old[j]), __fmul_rn(rest, kept));
        if (magnitude(kept) >= INFINITY_BITS) kept = 0.0F;
        if (whole && (masked >> j & 1)) kept = old[j];
        sent[j] = kept;
    }
    const double squares = kept_squares(tile, mask, sent);
    residual_store(launch.residual_type, residual, tile, sent, masked);
    return squares;
}

/* What was sent, and the sum of its squares, from what encode() gave. */
template <class KIND, bool FEEDBACK>
static __device__ __forceinline__ double sent_squares(const struct codec_launch &launch,
                                                      const struct tile &tile, uint32_t hidden,
                                                      double squares, float (&sent)[EACH]) {
    bool known = squares >= 0.0;
    if (FEEDBACK || __any_sync(WARP, !known || !isfinite(squares))) {
        KIND::finish(launch, tile, sent);
        drop_values(sent, hidden | ~values_below(tile, tile.n));
    }
    if (__any_sync(WARP, !known)) {
        const double sum = (double)lanes_sum(lane_squares(sent, ~0U));
        if (!known) squares = sum;
    }
    if (__any_sync(WARP, !isfinite(squares))) {
        const double sum = exact_squares(sent);
        if (!isfinite(squares)) squares = sum;
    }
    return squares;
}

static __device__ __forceinline__ void put_sums(const struct codec_launch &launch,
                                                const struct tile &tile, double *sums,
                                                double gradient, double kept) {
    const int64_t tiles = (launch.count + TILE - 1) / TILE;
    if (tile.lane != 0 || tile.n == 0) return;
    sums[launch.square_parts + tile.index] = gradient;
    sums[launch.square_parts + tiles + tile.index] = kept;
}

template <class KIND, bool FEEDBACK>
static __global__ void __launch_bounds__(THREADS, FEEDBACK ? 1 : 4)
    encode_kernel(struct codec_launch launch, const float *values, uint8_t *residual, uint8_t *wire,
                  uint32_t *rows, double *sums) {
    const struct tile tile = tile_here(launch.count);
    const struct row_mask mask = found_mask(launch, rows);
    float a[EACH], sent[EACH];
    int active;
    const uint32_t masked = masked_values(tile, mask, &active);
    const double gradient = load_tile<FEEDBACK>(launch, tile, values, residual, rows, a);
    if (FEEDBACK) drop_values(a, masked);
    uint8_t *at = wire + head_bytes(launch, mask) + KIND::place(launch, tile.index);
    double squares = KIND::encode(launch, tile, active, a, at, sent);
    if (KIND::sums_squares) {
        const bool told = mask.bits != nullptr && has(launch, CODEC_LAUNCH_SHOWS);
        // A rotation keeps the norm of whole blocks, but not of what a mask or the end leaves.
        if (has(launch, CODEC_LAUNCH_HAD) && (tile.n % SCALED != 0 || told)) squares = -1.0;
        const uint32_t hidden = told ? masked : 0;
        squares = sent_squares<KIND, FEEDBACK>(launch, tile, hidden, squares, sent);
        if (tile.lane == 0 && tile.n > 0) sums[tile.index] = squares;
    }
    double kept = 0.0;
    if (FEEDBACK) kept = settle_tile(launch, tile, mask, masked, a, sent, residual);
    put_sums(launch, tile, sums, gradient, kept);
}

/* The mask in a payload's head, which it lets out; *head: the bytes up to its end. */
static __device__ __forceinline__ struct row_mask told_mask(const uint8_t *wire, int64_t count,
                                                            int64_t *head) {
    *head = 1;
    if (wire[0] == 0) return {nullptr, 0, 1};
    const int64_t cols = get_word(wire + 1);
    *head += mask_bytes((count + cols - 1) / cols);
    return {wire + 5, 0, cols};
}

template <class KIND>
static __global__ void __launch_bounds__(THREADS)
    decode_kernel(struct codec_launch launch, const uint8_t *wire, float *out, bool add) {
    const struct tile tile = tile_here(launch.count);
    struct row_mask mask = {nullptr, 0, 1};
    float values[EACH];
    int64_t head = 0;
    int active;
    if (has(launch, CODEC_LAUNCH_SHOWS)) mask = told_mask(wire, launch.count, &head);
    KIND::decode(launch, tile, wire + head, values);
    drop_values(values, masked_values(tile, mask, &active));
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int place = place_of(tile, j);
        if (place >= tile.n) continue;
        float *to = out + tile.offset + place;
        *to = add ? __fadd_rn(*to, values[j]) : values[j];
    }
}

template <class KIND>
static int encode_launch(const struct codec_launch *launch, const struct codec_arrays *arrays,
                         cudaStream_t stream) {
    const dim3 blocks = tile_blocks(launch->count);
    auto kernel = (launch->flags & CODEC_LAUNCH_FEEDBACK) != 0 ? encode_kernel<KIND, true>
                                                               : encode_kernel<KIND, false>;
    return kernel_launch(kernel, blocks, dim3(THREADS), 0, stream, *launch, arrays->values,
                         arrays->residual, arrays->wire, arrays->rows, arrays->sums);
}

template <class KIND>
static int decode_launch(const struct codec_launch *launch, const uint8_t *wire, float *out,
                         bool add, cudaStream_t stream) {
    return kernel_launch(decode_kernel<KIND>, tile_blocks(launch->count), dim3(THREADS), 0, stream,
                         *launch, wire, out, add);
}

#endif
