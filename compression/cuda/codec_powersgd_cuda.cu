/* codec_powersgd_cuda.cu - powersgd: a block [rows, cols] as the product of factors x [rank, rows]
 * and y [rank, cols], by a step of subspace iteration (compression/scheme_powersgd.c); and its form
 * in which one of them is shared, and the other alone is sent (scheme_powersgd_shared.c).
 *
 * Each of these is a launch: what is encoded, a, is written down, since products read it twice, by
 * rows and by columns; a vector of y that is zeros becomes noise; x = a y'; x is made orthonormal,
 * by one block of threads; y = x' a; tiles are decoded and settled; and sums of squares that f32
 * does not hold are made again. Of the shared form, one of the products, and its rounding.
 * A dot product runs in the 16 lanes in which the host's does, half a warp, and a column's sum in
 * one thread. What runs side by side are rows, columns and vectors.
 */
#include "compression/cuda/codec_encode.cuh"

enum { TOGETHER = 4 }; /* vectors that a value is multiplied with when it is there */
enum { VECTORS = THREADS / TILE_LANES, COLUMNS = 64, VECTOR_THREADS = 1024 };
static_assert(VECTOR_THREADS / TILE_LANES == CODEC_RANK_MAX, "16 lanes have one vector");

static __device__ __forceinline__ int64_t rank_of(const struct codec_launch &launch) {
    return launch.number[1];
}

static __device__ __forceinline__ int lane_here() {
    return (int)(threadIdx.x % TILE_LANES);
}

static __device__ __forceinline__ uint32_t lanes_here() {
    return 0xffffU << (threadIdx.x % 32 / TILE_LANES * TILE_LANES);
}

/* The vector or row that the thread's 16 lanes work on; may be past the end. */
static __device__ __forceinline__ int64_t vector_here() {
    return (int64_t)blockIdx.x * VECTORS + threadIdx.x / TILE_LANES;
}

/* A NaN that comes of numbers is the host's. */
static __device__ __forceinline__ uint32_t factor_round(float value) {
    return magnitude(value) > INFINITY_BITS ? 0xffc0 : bf16_round(value);
}

/* totals[k] = a [n] times the vector at with[k]; in all lanes. What does not fill the lanes is
 * added behind their sum, one product after the other. */
template <int COUNT>
static __device__ __forceinline__ void dots(const float *a, const float *const (&with)[COUNT],
                                            int64_t n, float (&totals)[COUNT]) {
    const int64_t rest = n % TILE_LANES, whole = n - rest, last = whole + lane_here();
    float sums[COUNT] = {};
#pragma unroll 4
    for (int64_t i = lane_here(); i < whole; i += TILE_LANES) {
        const float value = a[i];
#pragma unroll
        for (int k = 0; k < COUNT; k++)
            sums[k] = __fadd_rn(sums[k], __fmul_rn(value, with[k][i]));
    }
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        const float product = last < n ? __fmul_rn(a[last], with[k][last]) : 0.0F;
        totals[k] = lanes_sum(sums[k], lanes_here());
        for (int i = 0; i < rest; i++)
            totals[k] = __fadd_rn(totals[k], __shfl_sync(lanes_here(), product, i, TILE_LANES));
    }
}

static __device__ __forceinline__ float dot(const float *x, const float *y, int64_t n) {
    const float *const with[1] = {y};
    float total[1];
    dots<1>(x, with, n, total);
    return total[0];
}

/* ---- what is encoded */

/* a: NULL where it is the values as they are. */
template <bool FEEDBACK>
static __global__ void __launch_bounds__(THREADS, FEEDBACK ? 1 : 4)
    load_kernel(struct codec_launch launch, const float *values, const uint8_t *residual, float *a,
                uint32_t *rows, double *sums) {
    const struct tile tile = tile_here(launch.count);
    float loaded[EACH];
    int active;
    const uint32_t masked = masked_values(tile, found_mask(launch, rows), &active);
    const double gradient = load_tile<FEEDBACK>(launch, tile, values, residual, rows, loaded);
    if (FEEDBACK) drop_values(loaded, masked);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int place = place_of(tile, j);
        if (a != nullptr && place < tile.n) a[tile.offset + place] = loaded[j];
    }
    put_sums(launch, tile, sums, gradient, 0.0);
}

/* ---- factors */

static __global__ void __launch_bounds__(THREADS)
    revive_kernel(struct codec_launch launch, const float *noise, float *y) {
    const int64_t vector = vector_here(), n = vector < rank_of(launch) ? launch.cols : 0;
    const int64_t first = vector * launch.cols;
    const bool lives = dot(y + first, y + first, n) > 0.0F;
    for (int64_t i = lane_here(); i < n && !lives; i += TILE_LANES)
        y[first + i] = noise[first + i];
}

static __global__ void __launch_bounds__(THREADS)
    times_rows_kernel(struct codec_launch launch, const float *a, const float *y, float *x) {
    const int64_t row = vector_here(), n = row < launch.rows ? launch.cols : 0;
    const int64_t rank = rank_of(launch), first = (int64_t)blockIdx.y * TOGETHER;
    const float *with[TOGETHER];
    float totals[TOGETHER];
#pragma unroll
    for (int k = 0; k < TOGETHER; k++)
        with[k] = y + min(first + k, rank - 1) * launch.cols;
    dots<TOGETHER>(a + row * launch.cols, with, n, totals);
#pragma unroll
    for (int k = 0; k < TOGETHER; k++) {
        if (n > 0 && first + k < rank && lane_here() == 0)
            x[(first + k) * launch.rows + row] = totals[k];
    }
}

/* What a vector's values are multiplied with; 0 where nothing but rounding noise is left of it. */
static __device__ __forceinline__ float unit_scale(float before, float after) {
    const bool spans = after > __fmul_rn(1e-10F, before) && after > 0.0F;
    return spans ? __fdiv_rn(1.0F, __fsqrt_rn(after)) : 0.0F;
}

/* Each 16 lanes have a vector, and each lane the same values of it throughout. All that are left
 * are made orthogonal to each one that is done at once, which is the host's order for each. */
static __global__ void __launch_bounds__(VECTOR_THREADS)
    orthonormalize_kernel(struct codec_launch launch, float *x, uint8_t *wire) {
    const int64_t rank = rank_of(launch), here = threadIdx.x / TILE_LANES;
    const int64_t n = here < rank ? launch.rows : 0, first = here * launch.rows;
    float *const mine = x + first;
    uint16_t *const halves = (uint16_t *)(wire + launch.head) + first;
    const float before = dot(mine, mine, n);
    for (int64_t done = 0; done < rank; done++) {
        const float *const unit = x + done * launch.rows;
        if (here == done) {
            const float scale = unit_scale(before, dot(mine, mine, n));
            for (int64_t i = lane_here(); i < n; i += TILE_LANES)
                mine[i] = __fmul_rn(mine[i], scale);
        }
        __syncthreads();
        if (here > done) {
            const float along = -dot(mine, unit, n);
            for (int64_t i = lane_here(); i < n; i += TILE_LANES)
                mine[i] = __fadd_rn(mine[i], __fmul_rn(along, unit[i]));
        }
    }
    for (int64_t i = lane_here(); i < n; i += TILE_LANES) {
        const uint32_t short_bits = factor_round(mine[i]);
        halves[i] = (uint16_t)short_bits;
        mine[i] = bf16_widen(short_bits);
    }
}

static __global__ void __launch_bounds__(COLUMNS)
    times_cols_kernel(struct codec_launch launch, const float *a, const float *x, float *y,
                      uint16_t *halves) {
    const int64_t col = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    const int64_t rank = rank_of(launch), first = (int64_t)blockIdx.y * TOGETHER;
    const float *with[TOGETHER];
    float sums[TOGETHER] = {};
    if (col >= launch.cols) return;
#pragma unroll
    for (int k = 0; k < TOGETHER; k++)
        with[k] = x + min(first + k, rank - 1) * launch.rows;
#pragma unroll 8
    for (int64_t row = 0; row < launch.rows; row++) {
        const float value = a[row * launch.cols + col];
#pragma unroll
        for (int k = 0; k < TOGETHER; k++)
            sums[k] = __fadd_rn(sums[k], __fmul_rn(with[k][row], value));
    }
#pragma unroll
    for (int k = 0; k < TOGETHER; k++) {
        const int64_t at = (first + k) * launch.cols + col;
        if (first + k >= rank) continue;
        y[at] = sums[k];
        if (halves != nullptr) halves[at] = (uint16_t)factor_round(sums[k]);
    }
}

/* A factor's tiles -> the payload; what they decode to takes their place. */
static __global__ void __launch_bounds__(THREADS)
    round_kernel(struct codec_launch launch, float *factor, uint8_t *wire, double *sums) {
    const struct tile tile = tile_here(launch.number[0]);
    uint16_t *const halves = (uint16_t *)(wire + launch.head) + tile.offset;
    float sent[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int place = place_of(tile, j);
        sent[j] = 0.0F;
        if (place >= tile.n) continue;
        const uint32_t short_bits = factor_round(factor[tile.offset + place]);
        halves[place] = (uint16_t)short_bits;
        factor[tile.offset + place] = sent[j] = bf16_widen(short_bits);
    }
    const double squares = (double)lanes_sum(lane_squares(sent, ~0U));
    if (tile.lane == 0 && tile.n > 0) sums[tile.index] = squares;
}

/* ---- what it decodes to */

/* T: uint16_t for bf16, as in payloads, or float. */
template <class T> struct factors {
    int64_t rows, cols, rank;
    const T *x, *y;
};

static __device__ __forceinline__ float factor_value(uint16_t short_bits) {
    return bf16_widen(short_bits);
}

static __device__ __forceinline__ float factor_value(float value) {
    return value;
}

/* values: the tile of their product, vector after vector; 0 past the block's end. */
template <class T>
static __device__ __forceinline__ void multiply(const struct tile &tile, struct factors<T> factors,
                                                float (&values)[EACH]) {
    const int64_t cols = factors.cols, first = tile.offset + tile.lane, first_row = first / cols;
#pragma unroll
    for (int j = 0; j < EACH; j++)
        values[j] = 0.0F;
    for (int64_t i = 0; i < factors.rank; i++, factors.x += factors.rows, factors.y += cols) {
        int64_t row = first_row, col = first - first_row * cols;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            if (place_of(tile, j) < tile.n)
                values[j] = __fadd_rn(values[j], __fmul_rn(factor_value(factors.x[row]),
                                                           factor_value(factors.y[col])));
            for (col += TILE_LANES; col >= cols; col -= cols)
                row++;
        }
    }
}

/* What the tile holds back of a. `sent` becomes it. Returns the sum of its squares. */
static __device__ __forceinline__ double keep_rest(const struct codec_launch &launch,
                                                   const struct tile &tile, const float *a,
                                                   uint8_t *residual, const uint32_t *rows,
                                                   float (&sent)[EACH]) {
    const struct row_mask mask = found_mask(launch, rows);
    float whole[EACH];
    int active;
    const uint32_t masked = masked_values(tile, mask, &active);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int place = place_of(tile, j);
        whole[j] = place < tile.n ? a[tile.offset + place] : 0.0F;
    }
    return settle_tile(launch, tile, mask, masked, whole, sent, residual);
}

template <class T, bool FEEDBACK>
static __global__ void __launch_bounds__(THREADS, FEEDBACK ? 1 : 4)
    settle_kernel(struct codec_launch launch, const T *x, const T *y, const float *a,
                  uint8_t *residual, const uint32_t *rows, double *sums) {
    const struct tile tile = tile_here(launch.count);
    const int64_t tiles = (launch.count + TILE - 1) / TILE;
    float sent[EACH];
    multiply<T>(tile, {launch.rows, launch.cols, rank_of(launch), x, y}, sent);
    const double squares = (double)lanes_sum(lane_squares(sent, ~0U));
    double kept = 0.0;
    if (FEEDBACK) kept = keep_rest(launch, tile, a, residual, rows, sent);
    if (tile.lane != 0 || tile.n == 0) return;
    if (launch.codec == CODEC_POWERSGD)
        sums[tile.index] = squares; // else of the factor that is sent
    sums[launch.square_parts + tiles + tile.index] = kept;
}

/* The factor that is sent, or what both make. */
static __device__ __forceinline__ void decode_tile(const struct codec_launch &launch,
                                                   const struct tile &tile, const uint16_t *halves,
                                                   float (&sent)[EACH]) {
    const int64_t rank = rank_of(launch);
    if (launch.codec == CODEC_POWERSGD) {
        multiply<uint16_t>(
            tile, {launch.rows, launch.cols, rank, halves, halves + rank * launch.rows}, sent);
        return;
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int place = place_of(tile, j);
        sent[j] = place < tile.n ? bf16_widen(halves[tile.offset + place]) : 0.0F;
    }
}

/* A tile's sum that is not finite makes the host add up all of them, value after value in double.
 * So does one warp here, each half the same: such gradients are rare. */
static __global__ void __launch_bounds__(32, 1)
    exact_squares_kernel(struct codec_launch launch, const uint8_t *wire, double *sums) {
    const int64_t tiles = launch.square_parts;
    const int64_t count = launch.codec == CODEC_POWERSGD ? launch.count : launch.number[0];
    bool finite = true;
    for (int64_t i = threadIdx.x; i < tiles; i += 32)
        finite = finite && isfinite(sums[i]);
    if (__all_sync(WARP, finite)) return;
    double sum = 0.0;
    for (int64_t i = 0; i < tiles && !isnan(sum); i++) {
        float sent[EACH];
        decode_tile(launch, tile_of(count, i), (const uint16_t *)(wire + launch.head), sent);
        sum = exact_squares(sent, sum);
    }
    for (int64_t i = threadIdx.x; i < tiles; i += 32)
        sums[i] = i == 0 ? sum : 0.0;
}

struct powersgd_kind {
    /* at: the payload. */
    static __device__ __forceinline__ void decode(const struct codec_launch &launch,
                                                  const struct tile &tile, const uint8_t *at,
                                                  float (&values)[EACH]) {
        const int64_t rows = get_word(at), rank = get_word(at + 4);
        const uint16_t *x = (const uint16_t *)(at + 8);
        multiply<uint16_t>(tile, {rows, launch.count / rows, rank, x, x + rank * rows}, values);
    }
};

/* The factor that was sent takes the place of the first values. */
static __global__ void __launch_bounds__(THREADS)
    shared_decode_kernel(int64_t count, const uint8_t *wire, float *out, bool add) {
    const int64_t sent = get_word(wire), i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const uint16_t *halves = (const uint16_t *)(wire + 4);
    if (i >= count || (add && i >= sent)) return;
    const float value = i < sent ? bf16_widen(halves[i]) : 0.0F;
    out[i] = add ? __fadd_rn(out[i], value) : value;
}

/* ---- the launches */

static dim3 vector_blocks(int64_t count, int64_t groups) {
    return dim3((unsigned)((count + VECTORS - 1) / VECTORS), (unsigned)groups);
}

static int64_t vector_groups(const struct codec_launch *launch) {
    return ((int64_t)launch->number[1] + TOGETHER - 1) / TOGETHER;
}

/* x [rank, rows] = a y', and y [rank, cols] = x' a. */
static int times_rows(const struct codec_launch *launch, const float *a, const float *y, float *x,
                      cudaStream_t stream) {
    return kernel_launch(times_rows_kernel, vector_blocks(launch->rows, vector_groups(launch)),
                         dim3(THREADS), 0, stream, *launch, a, y, x);
}

static int times_cols(const struct codec_launch *launch, const float *a, const float *x, float *y,
                      uint16_t *halves, cudaStream_t stream) {
    const dim3 blocks((unsigned)((launch->cols + COLUMNS - 1) / COLUMNS),
                      (unsigned)vector_groups(launch));
    return kernel_launch(times_cols_kernel, blocks, dim3(COLUMNS), 0, stream, *launch, a, x, y,
                         halves);
}

/* What is encoded lies in *a then. */
template <bool FEEDBACK>
static int load(const struct codec_launch *launch, const struct codec_arrays *arrays,
                const float **a, cudaStream_t stream) {
    const bool as_is = !FEEDBACK && launch->scale == 1.0F;
    *a = as_is ? arrays->values : arrays->a;
    return kernel_launch(load_kernel<FEEDBACK>, tile_blocks(launch->count), dim3(THREADS), 0,
                         stream, *launch, arrays->values, arrays->residual,
                         as_is ? nullptr : arrays->a, arrays->rows, arrays->sums);
}

template <class T, bool FEEDBACK>
static int settle(const struct codec_launch *launch, const struct codec_arrays *arrays, const T *x,
                  const T *y, const float *a, cudaStream_t stream) {
    return kernel_launch(settle_kernel<T, FEEDBACK>, tile_blocks(launch->count), dim3(THREADS), 0,
                         stream, *launch, x, y, a, arrays->residual, arrays->rows, arrays->sums);
}

static int exact_sums(const struct codec_launch *launch, const struct codec_arrays *arrays,
                      cudaStream_t stream) {
    return kernel_launch(exact_squares_kernel, dim3(1), dim3(32), 0, stream, *launch, arrays->wire,
                         arrays->sums);
}

template <bool FEEDBACK>
static int encode_factors(const struct codec_launch *launch, const struct codec_arrays *arrays,
                          cudaStream_t stream) {
    const int64_t rank = launch->number[1];
    uint16_t *const x = (uint16_t *)(arrays->wire + launch->head);
    uint16_t *const y = x + rank * launch->rows;
    const float *a;
    int error = load<FEEDBACK>(launch, arrays, &a, stream);
    if (error != cudaSuccess) return error;
    error = kernel_launch(revive_kernel, vector_blocks(rank, 1), dim3(THREADS), 0, stream, *launch,
                          arrays->noise, arrays->y);
    if (error == cudaSuccess) error = times_rows(launch, a, arrays->y, arrays->x, stream);
    if (error != cudaSuccess) return error;
    error = kernel_launch(orthonormalize_kernel, dim3(1),
                          kernel_threads(rank * TILE_LANES, VECTOR_THREADS), 0, stream, *launch,
                          arrays->x, arrays->wire);
    if (error == cudaSuccess) error = times_cols(launch, a, arrays->x, arrays->y, y, stream);
    if (error == cudaSuccess) error = settle<uint16_t, FEEDBACK>(launch, arrays, x, y, a, stream);
    return error != cudaSuccess ? error : exact_sums(launch, arrays, stream);
}

int codec_launch_powersgd(const struct codec_launch *launch, const struct codec_arrays *arrays,
                          struct CUstream_st *stream) {
    if ((launch->flags & CODEC_LAUNCH_FEEDBACK) != 0)
        return encode_factors<true>(launch, arrays, stream);
    return encode_factors<false>(launch, arrays, stream);
}

int codec_launch_powersgd_decode(const struct codec_launch *launch, const uint8_t *wire, float *out,
                                 bool add, struct CUstream_st *stream) {
    return decode_launch<powersgd_kind>(launch, wire, out, add, stream);
}

/* One of arrays->x and y is shared, the other is sent. */
template <bool FEEDBACK>
static int encode_shared(const struct codec_launch *launch, const struct codec_arrays *arrays,
                         cudaStream_t stream) {
    const bool on_rows = (launch->flags & CODEC_LAUNCH_ON_ROWS) != 0;
    const float *a;
    int error = load<FEEDBACK>(launch, arrays, &a, stream);
    if (error != cudaSuccess) return error;
    error = on_rows ? times_cols(launch, a, arrays->x, arrays->y, nullptr, stream)
                    : times_rows(launch, a, arrays->y, arrays->x, stream);
    if (error != cudaSuccess) return error;
    error = kernel_launch(round_kernel, tile_blocks(launch->number[0]), dim3(THREADS), 0, stream,
                          *launch, on_rows ? arrays->y : arrays->x, arrays->wire, arrays->sums);
    if (error == cudaSuccess && FEEDBACK)
        error = settle<float, true>(launch, arrays, arrays->x, arrays->y, a, stream);
    return error != cudaSuccess ? error : exact_sums(launch, arrays, stream);
}

int codec_launch_shared(const struct codec_launch *launch, const struct codec_arrays *arrays,
                        struct CUstream_st *stream) {
    if ((launch->flags & CODEC_LAUNCH_FEEDBACK) != 0)
        return encode_shared<true>(launch, arrays, stream);
    return encode_shared<false>(launch, arrays, stream);
}

int codec_launch_shared_decode(const struct codec_launch *launch, const uint8_t *wire, float *out,
                               bool add, struct CUstream_st *stream) {
    const dim3 blocks((unsigned)((launch->count + THREADS - 1) / THREADS));
    return kernel_launch(shared_decode_kernel, blocks, dim3(THREADS), 0, stream, launch->count,
                         wire, out, add);
}
