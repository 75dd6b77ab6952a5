/* codec_topk_global_cuda.cu - topk over a whole block: the k largest magnitudes, exactly, of equals
 * the first; and the gaps between their places (compression/scheme_topk.c).
 *
 * Each pass over the block makes the values that are looked at anew, of the gradient and what was
 * held back. Three passes count how often the next bits of magnitudes occur, highest bits first,
 * which gives the k-th largest, the threshold. One counts in each tile who is above it and who is
 * equal to it, one finds which places a tile sends and how many bytes their gaps take, and one
 * writes. Between passes one block of threads adds up what lies ahead of each tile, so that nothing
 * depends on who comes first.
 */
#include "compression/cuda/codec_encode.cuh"

enum { TOPK_HEAD = 4, SCAN_THREADS = 256, SCAN_WARPS = SCAN_THREADS / 32, SQUARED = 512 };

/* Bits of a digit; of the 31 of a magnitude the first digit has one more. */
enum { DIGITS = 3, DIGIT_BITS = 10, BINS = 1 << (DIGIT_BITS + 1), BINS_EACH = BINS / SCAN_THREADS };

/* Groups of tiles that a block of threads counts bits of. */
enum { COUNTED_GROUPS = 4 };

/* The scratch: what is known of the threshold, the counts of each digit, and the tiles. */
enum { THRESHOLD, WANTED, COUNTS_AT };
static_assert(COUNTS_AT + DIGITS * BINS == CODEC_GLOBAL_HEAD, "what is zeroed");

struct sparse_tile {
    uint32_t count;  // values above the threshold; then that are sent; then that are sent ahead
    uint32_t equals; // values equal to it; then how many of them are sent
    uint32_t first;  // the first place that is sent; then the one behind the last one ahead
    uint32_t end;    // behind the last place that is sent
    uint32_t bytes;  // of all gaps but the first; then of all gaps ahead
};
static_assert(sizeof(struct sparse_tile) == CODEC_GLOBAL_TILE * sizeof(uint32_t), "scratch");

static __device__ __forceinline__ struct sparse_tile *tiles_of(uint32_t *scratch) {
    return (struct sparse_tile *)(scratch + CODEC_GLOBAL_HEAD);
}

/* ---- a block of threads */

static __device__ __forceinline__ uint32_t combine(uint32_t a, uint32_t b, bool most) {
    return most ? max(a, b) : a + b;
}

/* The sum, or the largest, of what the threads before this one bring. All SCAN_THREADS call. */
static __device__ uint32_t block_ahead(uint32_t value, bool most) {
    __shared__ uint32_t warps[SCAN_WARPS];
    const int lane = (int)(threadIdx.x % 32), warp = (int)(threadIdx.x / 32);
    for (int distance = 1; distance < 32; distance *= 2) {
        const uint32_t other = __shfl_up_sync(WARP, value, distance);
        if (lane >= distance) value = combine(value, other, most);
    }
    __syncthreads(); // others may still read what the last call left
    if (lane == 31) warps[warp] = value;
    __syncthreads();
    uint32_t ahead = __shfl_up_sync(WARP, value, 1);
    if (lane == 0) ahead = 0;
    for (int i = 0; i < warp; i++)
        ahead = combine(ahead, warps[i], most);
    return ahead;
}

/* Of `count` things in a row, those of a thread. */
struct span {
    int64_t from, end;
};

static __device__ __forceinline__ struct span span_here(int64_t count) {
    const int64_t each = (count + SCAN_THREADS - 1) / SCAN_THREADS;
    const int64_t from = min(threadIdx.x * each, count);
    return {from, min(from + each, count)};
}

/* ---- the threshold */

/* The tile as it is to be encoded. Returns the sum of the gradient's squares. */
template <bool FEEDBACK>
static __device__ __forceinline__ double
bring_tile(const struct codec_launch &launch, const struct tile &tile, const float *values,
           const uint8_t *residual, uint32_t *rows, float (&a)[EACH], uint32_t *masked) {
    int active;
    *masked = masked_values(tile, found_mask(launch, rows), &active);
    const double gradient = load_tile<FEEDBACK>(launch, tile, values, residual, rows, a);
    if (FEEDBACK) drop_values(a, *masked);
    return gradient;
}

static __device__ __forceinline__ int digit_shift(int digit) {
    return (DIGITS - 1 - digit) * DIGIT_BITS;
}

/* The block's. Not in the kernel, since shared arrays of templates are no good on the CPU. */
static __device__ __forceinline__ uint32_t *block_bins() {
    __shared__ uint32_t bins[BINS];
    return bins;
}

/* Of the values whose higher bits are the threshold's, how many have which bits next. Zeros, and
 * so what is past the end, are not counted: they are whatever the others are not. */
template <bool FEEDBACK>
static __global__ void __launch_bounds__(THREADS, FEEDBACK ? 1 : 4)
    count_bits_kernel(struct codec_launch launch, const float *values, const uint8_t *residual,
                      uint32_t *rows, uint32_t *scratch, int digit) {
    uint32_t *const bins = block_bins(), *const counts = scratch + COUNTS_AT + digit * BINS;
    const uint32_t known = scratch[THRESHOLD], low = digit == 0 ? BINS - 1 : BINS / 2 - 1;
    const int shift = digit_shift(digit), known_shift = digit == 0 ? 31 : shift + DIGIT_BITS;
    for (int i = (int)threadIdx.x; i < BINS; i += THREADS)
        bins[i] = 0;
    __syncthreads();
    const int64_t first = (int64_t)blockIdx.x * COUNTED_GROUPS;
    const int64_t groups = (launch.count + TILE * BLOCK_TILES - 1) / (TILE * BLOCK_TILES);
    for (int64_t group = first; group < min(first + COUNTED_GROUPS, groups); group++) {
        const struct tile tile = tile_at(launch.count, group);
        float a[EACH];
        uint32_t masked;
        bring_tile<FEEDBACK>(launch, tile, values, residual, rows, a, &masked);
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const uint32_t bits = magnitude(a[j]);
            if (bits != 0 && (bits ^ known) >> known_shift == 0)
                atomicAdd(&bins[bits >> shift & low], 1U);
        }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < BINS; i += THREADS) {
        if (bins[i] != 0) atomicAdd(&counts[i], bins[i]);
    }
}

/* The threshold's next bits: the highest that so many of the values or more reach. */
static __global__ void __launch_bounds__(SCAN_THREADS)
    pick_bits_kernel(uint32_t k, uint32_t *scratch, int digit) {
    const uint32_t wanted = digit == 0 ? k : scratch[WANTED];
    const int high = BINS - 1 - (int)threadIdx.x * BINS_EACH;
    uint32_t counts[BINS_EACH], sum = 0;
    for (int i = 0; i < BINS_EACH; i++) {
        counts[i] = scratch[COUNTS_AT + digit * BINS + high - i];
        sum += counts[i];
    }
    uint32_t ahead = block_ahead(sum, false);
    for (int i = 0; i < BINS_EACH; i++) {
        const bool last = high == i; // nobody is below
        if (ahead < wanted && (last || ahead + counts[i] >= wanted)) {
            scratch[THRESHOLD] |= (uint32_t)(high - i) << digit_shift(digit);
            scratch[WANTED] = wanted - ahead;
            break;
        }
        ahead += counts[i];
    }
}

/* ---- who is sent */

template <bool FEEDBACK>
static __global__ void __launch_bounds__(THREADS, FEEDBACK ? 1 : 4)
    count_values_kernel(struct codec_launch launch, const float *values, const uint8_t *residual,
                        uint32_t *rows, uint32_t *scratch) {
    const struct tile tile = tile_here(launch.count);
    const uint32_t threshold = scratch[THRESHOLD];
    float a[EACH];
    uint32_t masked;
    int above = 0, equals = 0;
    bring_tile<FEEDBACK>(launch, tile, values, residual, rows, a, &masked);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        above += magnitude(a[j]) > threshold;
        equals += magnitude(a[j]) == threshold; // what is past the end comes behind all that are
    }
    above = lanes_total(above);
    equals = lanes_total(equals);
    if (tile.lane != 0 || tile.n == 0) return;
    tiles_of(scratch)[tile.index].count = (uint32_t)above;
    tiles_of(scratch)[tile.index].equals = (uint32_t)equals;
}

static __global__ void __launch_bounds__(SCAN_THREADS)
    share_equals_kernel(int64_t tile_count, uint32_t *scratch) {
    struct sparse_tile *const tiles = tiles_of(scratch);
    const struct span span = span_here(tile_count);
    const uint32_t wanted = scratch[WANTED];
    uint32_t sum = 0;
    for (int64_t i = span.from; i < span.end; i++)
        sum += tiles[i].equals;
    uint32_t ahead = block_ahead(sum, false);
    for (int64_t i = span.from; i < span.end; i++) {
        const uint32_t equals = tiles[i].equals;
        tiles[i].equals = ahead < wanted ? min(equals, wanted - ahead) : 0;
        ahead += equals;
    }
}

/* Who of 16 neighbours of a tile is sent: bit l is lane l's. *equals: how many more may be sent. */
static __device__ __forceinline__ uint32_t taken_lanes(const struct tile &tile, float value,
                                                       uint32_t threshold, uint32_t *equals) {
    const bool equal = magnitude(value) == threshold;
    const uint32_t same = lanes_vote(equal), before = same & ((1U << tile.lane) - 1);
    const bool takes =
        magnitude(value) > threshold || (equal && (uint32_t)__popc(before) < *equals);
    *equals -= min((uint32_t)__popc(same), *equals);
    return lanes_vote(takes);
}

static __device__ __forceinline__ uint32_t first_lane(uint32_t lanes) {
    return (uint32_t)__ffs((int)lanes) - 1;
}

static __device__ __forceinline__ uint32_t lanes_end(uint32_t lanes) {
    return 32 - (uint32_t)__clz((int)lanes);
}

static __device__ __forceinline__ uint32_t gap_bytes(uint32_t gap) {
    return 1 + (gap >> 7 != 0) + (gap >> 14 != 0) + (gap >> 21 != 0) + (gap >> 28 != 0);
}

/* Between neighbours a gap takes a byte. */
template <bool FEEDBACK>
static __global__ void __launch_bounds__(THREADS, FEEDBACK ? 1 : 4)
    measure_kernel(struct codec_launch launch, const float *values, const uint8_t *residual,
                   uint32_t *rows, uint32_t *scratch) {
    const struct tile tile = tile_here(launch.count);
    const uint32_t threshold = scratch[THRESHOLD];
    struct sparse_tile *const told = tiles_of(scratch) + tile.index;
    struct sparse_tile sparse = {0, 0, 0, 0, 0};
    uint32_t equals = tile.n > 0 ? told->equals : 0, masked;
    float a[EACH];
    bring_tile<FEEDBACK>(launch, tile, values, residual, rows, a, &masked);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const uint32_t taken = taken_lanes(tile, a[j], threshold, &equals);
        const uint32_t here = (uint32_t)(tile.offset + j * TILE_LANES);
        const uint32_t first = here + first_lane(taken);
        if (taken != 0) {
            if (sparse.count == 0)
                sparse.first = first;
            else
                sparse.bytes += gap_bytes(first - sparse.end);
            sparse.bytes += (uint32_t)__popc(taken) - 1;
            sparse.count += (uint32_t)__popc(taken);
            sparse.end = here + lanes_end(taken);
        }
    }
    if (tile.lane != 0 || tile.n == 0) return;
    told->count = sparse.count; // all but equals, which other lanes may still read
    told->first = sparse.first;
    told->end = sparse.end;
    told->bytes = sparse.bytes;
}

/* Bytes of a tile's gaps, the first of them from the place `origin`. */
static __device__ __forceinline__ uint32_t tile_gaps(const struct sparse_tile &tile,
                                                     uint32_t origin) {
    return tile.count == 0 ? 0 : tile.bytes + gap_bytes(tile.first - origin);
}

/* What is ahead of each tile; and the bytes of all gaps. */
static __global__ void __launch_bounds__(SCAN_THREADS)
    place_tiles_kernel(int64_t tile_count, uint32_t *rows, uint32_t *scratch) {
    struct sparse_tile *const tiles = tiles_of(scratch);
    const struct span span = span_here(tile_count);
    uint32_t count = 0, end = 0, bytes = 0;
    for (int64_t i = span.from; i < span.end; i++) {
        count += tiles[i].count;
        end = max(end, tiles[i].end);
    }
    uint32_t slot = block_ahead(count, false);
    const uint32_t begin = block_ahead(end, true);
    uint32_t origin = begin;
    for (int64_t i = span.from; i < span.end; i++) {
        bytes += tile_gaps(tiles[i], origin);
        origin = max(origin, tiles[i].end);
    }
    uint32_t at = block_ahead(bytes, false);
    origin = begin;
    for (int64_t i = span.from; i < span.end; i++) {
        const struct sparse_tile tile = tiles[i];
        tiles[i] = {slot, tile.equals, origin, tile.end, at};
        slot += tile.count;
        at += tile_gaps(tile, origin);
        origin = max(origin, tile.end);
    }
    if (threadIdx.x == SCAN_THREADS - 1) rows[CODEC_ROWS_GAPS] = at;
}

/* ---- the payload */

static __device__ __forceinline__ void put_gap(uint8_t *at, uint32_t gap) {
    for (; gap >= 0x80; gap >>= 7)
        *at++ = (uint8_t)(gap | 0x80);
    *at = (uint8_t)gap;
}

/* Gaps and values of a tile; sent: what it decodes to. tile: what is ahead of it. */
static __device__ __forceinline__ void put_tile(const struct tile &tile, struct sparse_tile ahead,
                                                uint32_t threshold, const float (&a)[EACH],
                                                uint8_t *gaps, uint8_t *halves,
                                                float (&sent)[EACH]) {
    const uint32_t lane = (uint32_t)tile.lane;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const uint32_t taken = taken_lanes(tile, a[j], threshold, &ahead.equals);
        const uint32_t here = (uint32_t)(tile.offset + j * TILE_LANES);
        const uint32_t before = taken & ((1U << lane) - 1), place = (uint32_t)__popc(before);
        const uint32_t gap = here + first_lane(taken) - ahead.first, bytes = gap_bytes(gap);
        const uint32_t short_bits = bf16_round(a[j]);
        const bool takes = (taken >> lane & 1) != 0;
        sent[j] = takes ? bf16_widen(short_bits) : 0.0F;
        if (takes) put_half(halves + 2 * (int64_t)(ahead.count + place), short_bits);
        if (takes && place == 0) put_gap(gaps + ahead.bytes, gap);
        if (takes && place > 0)
            gaps[ahead.bytes + bytes + place - 1] = (uint8_t)(lane - lanes_end(before));
        if (taken != 0) {
            ahead.count += (uint32_t)__popc(taken);
            ahead.bytes += bytes + (uint32_t)__popc(taken) - 1;
            ahead.first = here + lanes_end(taken);
        }
    }
}

template <bool FEEDBACK>
static __global__ void __launch_bounds__(THREADS, FEEDBACK ? 1 : 4)
    write_kernel(struct codec_launch launch, const float *values, uint8_t *residual, uint8_t *wire,
                 uint32_t *rows, double *sums, uint32_t *scratch) {
    const struct tile tile = tile_here(launch.count);
    struct sparse_tile ahead = {0, 0, 0, 0, 0};
    if (tile.n > 0) ahead = tiles_of(scratch)[tile.index];
    float a[EACH], sent[EACH];
    uint32_t masked;
    const double gradient = bring_tile<FEEDBACK>(launch, tile, values, residual, rows, a, &masked);
    uint8_t *const gaps = wire + TOPK_HEAD;
    put_tile(tile, ahead, scratch[THRESHOLD], a, gaps, gaps + rows[CODEC_ROWS_GAPS], sent);
    double kept = 0.0;
    if (FEEDBACK)
        kept = settle_tile(launch, tile, found_mask(launch, rows), masked, a, sent, residual);
    put_sums(launch, tile, sums, gradient, kept);
}

/* A thread adds up the squares of a part of what is sent, value after value. */
static __global__ void __launch_bounds__(THREADS)
    sent_squares_kernel(struct codec_launch launch, const uint8_t *wire, const uint32_t *rows,
                        double *sums) {
    const int64_t part = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (part >= launch.square_parts) return;
    const uint8_t *halves = wire + TOPK_HEAD + rows[CODEC_ROWS_GAPS];
    const int64_t first = part * SQUARED, end = min(first + SQUARED, (int64_t)launch.number[0]);
    double sum = 0.0;
    for (int64_t i = first; i < end; i++) {
        const double value = (double)bf16_widen(get_half(halves + 2 * i));
        sum = __dadd_rn(sum, __dmul_rn(value, value));
    }
    sums[part] = sum;
}

/* The gap whose last byte is at `at`. */
static __device__ __forceinline__ uint32_t gap_ending(const uint8_t *gaps, int64_t at) {
    uint32_t gap = gaps[at];
    while (at > 0 && gaps[at - 1] >= 0x80)
        gap = gap << 7 | (gaps[--at] & 0x7f);
    return gap;
}

/* out is zeros, or added to. Each thread has a part of the gaps, by where they end. */
static __global__ void __launch_bounds__(SCAN_THREADS)
    topk_global_decode_kernel(int64_t bytes, const uint8_t *wire, float *out, bool add) {
    const uint32_t k = get_word(wire);
    const int64_t left = bytes - TOPK_HEAD - 2 * (int64_t)k;
    const uint8_t *gaps = wire + TOPK_HEAD, *halves = gaps + left;
    const struct span span = span_here(left);
    uint32_t count = 0, moves = 0;
    for (int64_t i = span.from; i < span.end; i++) {
        if (gaps[i] >= 0x80) continue;
        count++;
        moves += gap_ending(gaps, i) + 1;
    }
    uint32_t slot = block_ahead(count, false), next = block_ahead(moves, false);
    for (int64_t i = span.from; i < span.end; i++) {
        if (gaps[i] >= 0x80) continue;
        next += gap_ending(gaps, i) + 1;
        float *const to = out + (next - 1);
        const float value = bf16_widen(get_half(halves + 2 * (int64_t)slot++));
        *to = add ? __fadd_rn(*to, value) : value;
    }
}

/* ---- the launches */

template <bool FEEDBACK>
static int find_threshold(const struct codec_launch *launch, const struct codec_arrays *arrays,
                          cudaStream_t stream) {
    const int64_t counted = (int64_t)TILE * BLOCK_TILES * COUNTED_GROUPS;
    const dim3 blocks((unsigned)((launch->count + counted - 1) / counted));
    int error = cudaMemsetAsync(arrays->scratch, 0, CODEC_GLOBAL_HEAD * sizeof(uint32_t), stream);
    for (int digit = 0; digit < DIGITS && error == cudaSuccess; digit++) {
        error =
            kernel_launch(count_bits_kernel<FEEDBACK>, blocks, dim3(THREADS), 0, stream, *launch,
                          arrays->values, arrays->residual, arrays->rows, arrays->scratch, digit);
        if (error == cudaSuccess)
            error = kernel_launch(pick_bits_kernel, dim3(1), dim3(SCAN_THREADS), 0, stream,
                                  launch->number[0], arrays->scratch, digit);
    }
    return error;
}

template <bool FEEDBACK>
static int place_values(const struct codec_launch *launch, const struct codec_arrays *arrays,
                        cudaStream_t stream) {
    const dim3 blocks = tile_blocks(launch->count), one(1);
    const int64_t tiles = (launch->count + TILE - 1) / TILE;
    int error =
        kernel_launch(count_values_kernel<FEEDBACK>, blocks, dim3(THREADS), 0, stream, *launch,
                      arrays->values, arrays->residual, arrays->rows, arrays->scratch);
    if (error != cudaSuccess) return error;
    error = kernel_launch(share_equals_kernel, one, dim3(SCAN_THREADS), 0, stream, tiles,
                          arrays->scratch);
    if (error != cudaSuccess) return error;
    error = kernel_launch(measure_kernel<FEEDBACK>, blocks, dim3(THREADS), 0, stream, *launch,
                          arrays->values, arrays->residual, arrays->rows, arrays->scratch);
    if (error != cudaSuccess) return error;
    return kernel_launch(place_tiles_kernel, one, dim3(SCAN_THREADS), 0, stream, tiles,
                         arrays->rows, arrays->scratch);
}

template <bool FEEDBACK>
static int encode_block(const struct codec_launch *launch, const struct codec_arrays *arrays,
                        cudaStream_t stream) {
    int error = find_threshold<FEEDBACK>(launch, arrays, stream);
    if (error == cudaSuccess) error = place_values<FEEDBACK>(launch, arrays, stream);
    if (error != cudaSuccess) return error;
    error = kernel_launch(write_kernel<FEEDBACK>, tile_blocks(launch->count), dim3(THREADS), 0,
                          stream, *launch, arrays->values, arrays->residual, arrays->wire,
                          arrays->rows, arrays->sums, arrays->scratch);
    if (error != cudaSuccess) return error;
    const int64_t parts = launch->square_parts;
    return kernel_launch(sent_squares_kernel, dim3((unsigned)((parts + THREADS - 1) / THREADS)),
                         dim3(THREADS), 0, stream, *launch, arrays->wire, arrays->rows,
                         arrays->sums);
}

int codec_launch_topk_global(const struct codec_launch *launch, const struct codec_arrays *arrays,
                             struct CUstream_st *stream) {
    if ((launch->flags & CODEC_LAUNCH_FEEDBACK) != 0)
        return encode_block<true>(launch, arrays, stream);
    return encode_block<false>(launch, arrays, stream);
}

int codec_launch_topk_global_decode(const struct codec_launch *launch, const uint8_t *wire,
                                    float *out, bool add, struct CUstream_st *stream) {
    int error = cudaSuccess;
    if (!add) error = cudaMemsetAsync(out, 0, (size_t)launch->count * sizeof *out, stream);
    if (error != cudaSuccess) return error;
    return kernel_launch(topk_global_decode_kernel, dim3(1), dim3(SCAN_THREADS), 0, stream,
                         launch->body, wire, out, add);
}
