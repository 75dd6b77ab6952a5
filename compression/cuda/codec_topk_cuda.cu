/* codec_topk_cuda.cu - topk: of each 4096 values the k largest magnitudes, exactly, of equals the
 * first (compression/scheme_topk.c). A block of threads has the eight tiles of a chunk in its
 * registers: the k-th largest is found by halving the range of bits, each time counting who reaches
 * the middle.
 */
#include "compression/cuda/codec_encode.cuh"

enum { TOPK_HEAD = 4, CHUNK = TILE * BLOCK_TILES, WARPS = THREADS / 32 };

/* What one chunk sends, in order of place. */
struct taken {
    uint16_t places[CHUNK], halves[CHUNK];
};

static __host__ __device__ __forceinline__ int chunk_share(uint32_t k, int n) {
    return (int)((k * (uint32_t)n + CHUNK - 1) / CHUNK);
}

static __host__ __device__ __forceinline__ int place_bytes(int k) {
    return (12 * k + 7) / 8;
}

static __device__ __forceinline__ int chunk_values(int64_t count) {
    const int64_t left = count - (int64_t)blockIdx.x * CHUNK;
    return (int)min(left, (int64_t)CHUNK);
}

/* Bits that k of the block's values reach or more, and no higher bits do: the k-th largest's, or
 * any that just these k reach. */
static __device__ __forceinline__ uint32_t find_threshold(const float (&a)[EACH], int k) {
    __shared__ int counts[2][WARPS];
    uint32_t low = 0, high = MAGNITUDE_BITS + 1;
    for (int turn = 0; high - low > 1; turn ^= 1) {
        const uint32_t middle = low + (high - low) / 2;
        int reach = 0;
#pragma unroll
        for (int j = 0; j < EACH; j++)
            reach += magnitude(a[j]) >= middle;
        reach = __reduce_add_sync(WARP, reach);
        if (threadIdx.x % 32 == 0) counts[turn][threadIdx.x / 32] = reach;
        __syncthreads();
        reach = 0;
        for (int warp = 0; warp < WARPS; warp++)
            reach += counts[turn][warp];
        if (reach >= k)
            low = middle;
        else
            high = middle;
        if (reach == k) break;
    }
    return low;
}

/* How many values of the tiles before this one are above the threshold and equal to it; and how
 * many of all are above. */
struct ahead {
    int above, equal, all_above;
};

static __device__ __forceinline__ struct ahead
count_ahead(const struct tile &tile, const float (&a)[EACH], uint32_t threshold) {
    __shared__ int above[BLOCK_TILES], equal[BLOCK_TILES];
    const int here = threadIdx.x / TILE_LANES;
    int over = 0, same = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        over += magnitude(a[j]) > threshold;
        same += magnitude(a[j]) == threshold;
    }
    over = lanes_total(over);
    same = lanes_total(same);
    if (tile.lane == 0) {
        above[here] = over;
        equal[here] = same;
    }
    __syncthreads();
    struct ahead ahead = {0, 0, 0};
    for (int i = 0; i < BLOCK_TILES; i++) {
        ahead.above += i < here ? above[i] : 0;
        ahead.equal += i < here ? equal[i] : 0;
        ahead.all_above += above[i];
    }
    return ahead;
}

/* Lists the k values; sent: what they decode to, and 0 for the others. */
static __device__ __forceinline__ void take_values(const struct tile &tile, const float (&a)[EACH],
                                                   int k, struct taken *taken,
                                                   float (&sent)[EACH]) {
    const uint32_t threshold = find_threshold(a, k);
    const struct ahead ahead = count_ahead(tile, a, threshold);
    const int wanted = k - ahead.all_above; // of those that are equal
    int slot = ahead.above + min(ahead.equal, wanted), equals = ahead.equal;
    const uint32_t before = (1U << tile.lane) - 1;
    const int first = (int)(threadIdx.x / TILE_LANES) * TILE;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const bool equal = magnitude(a[j]) == threshold;
        const uint32_t same = lanes_vote(equal);
        const bool takes =
            magnitude(a[j]) > threshold || (equal && equals + __popc(same & before) < wanted);
        const uint32_t all = lanes_vote(takes);
        const uint32_t short_bits = bf16_round(a[j]);
        const int at = slot + __popc(all & before);
        if (takes) {
            taken->places[at] = (uint16_t)(first + place_of(tile, j));
            taken->halves[at] = (uint16_t)short_bits;
        }
        sent[j] = takes ? bf16_widen(short_bits) : 0.0F;
        slot += __popc(all);
        equals += __popc(same);
    }
    __syncthreads();
}

/* Two places of 12 bits in three bytes, then the values. */
static __device__ __forceinline__ void put_taken(const struct taken *taken, int k, uint8_t *at) {
    for (int i = 2 * (int)threadIdx.x; i < k; i += 2 * THREADS) {
        uint8_t *to = at + i / 2 * 3;
        const bool pair = i + 1 < k;
        const uint32_t both = taken->places[i] | (pair ? (uint32_t)taken->places[i + 1] << 12 : 0);
        put_half(to, both);
        if (pair) to[2] = (uint8_t)(both >> 16);
    }
    at += place_bytes(k);
    for (int i = (int)threadIdx.x; i < k; i += THREADS)
        put_half(at + 2 * i, taken->halves[i]);
}

static __device__ __forceinline__ double taken_squares(const struct taken *taken, int k) {
    double sum = 0.0;
    for (int i = 0; i < k; i++) {
        const double value = (double)bf16_widen(taken->halves[i]);
        sum = __dadd_rn(sum, __dmul_rn(value, value));
    }
    return sum;
}

/* The block's. Not in the kernel, since shared arrays of templates are no good on the CPU. */
static __device__ __forceinline__ struct taken *block_taken() {
    __shared__ struct taken taken;
    return &taken;
}

template <bool FEEDBACK>
static __global__ void __launch_bounds__(THREADS)
    topk_kernel(struct codec_launch launch, const float *values, uint8_t *residual, uint8_t *wire,
                uint32_t *rows, double *sums) {
    struct taken *const taken = block_taken();
    const struct tile tile = tile_here(launch.count);
    const struct row_mask mask = found_mask(launch, rows);
    const uint32_t whole = launch.number[0];
    const int k = chunk_share(whole, chunk_values(launch.count));
    float a[EACH], sent[EACH];
    int active;
    const uint32_t masked = masked_values(tile, mask, &active);
    const double gradient = load_tile<FEEDBACK>(launch, tile, values, residual, rows, a);
    if (FEEDBACK) drop_values(a, masked);
    take_values(tile, a, k, taken, sent);
    put_taken(taken, k,
              wire + launch.head +
                  blockIdx.x * (int64_t)(place_bytes((int)whole) + 2 * (int)whole));
    if (threadIdx.x == 0) sums[blockIdx.x] = taken_squares(taken, k);
    double kept = 0.0;
    if (FEEDBACK) kept = settle_tile(launch, tile, mask, masked, a, sent, residual);
    put_sums(launch, tile, sums, gradient, kept);
}

static __global__ void __launch_bounds__(THREADS)
    topk_decode_kernel(struct codec_launch launch, const uint8_t *wire, float *out, bool add) {
    const uint32_t whole = get_word(wire);
    const int n = chunk_values(launch.count), k = chunk_share(whole, n);
    const uint8_t *at =
        wire + TOPK_HEAD + blockIdx.x * (int64_t)(place_bytes((int)whole) + 2 * (int)whole);
    out += (int64_t)blockIdx.x * CHUNK;
    for (int i = (int)threadIdx.x; i < n && !add; i += THREADS)
        out[i] = 0.0F;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < k; i += THREADS) {
        const uint32_t place = get_half(at + 12 * i / 8) >> (i % 2 * 4) & 0xfff;
        const float value = bf16_widen(get_half(at + place_bytes(k) + 2 * i));
        out[place] = add ? __fadd_rn(out[place], value) : value;
    }
}

int codec_launch_topk(const struct codec_launch *launch, const struct codec_arrays *arrays,
                      struct CUstream_st *stream) {
    auto kernel =
        (launch->flags & CODEC_LAUNCH_FEEDBACK) != 0 ? topk_kernel<true> : topk_kernel<false>;
    return kernel_launch(kernel, tile_blocks(launch->count), dim3(THREADS), 0, stream, *launch,
                         arrays->values, arrays->residual, arrays->wire, arrays->rows,
                         arrays->sums);
}

int codec_launch_topk_decode(const struct codec_launch *launch, const uint8_t *wire, float *out,
                             bool add, struct CUstream_st *stream) {
    return kernel_launch(topk_decode_kernel, tile_blocks(launch->count), dim3(THREADS), 0, stream,
                         *launch, wire, out, add);
}
