/* codec_randk_cuda.cu - randk: values at random places (compression/scheme_randk.c). */
#include "compression/cuda/codec_encode.cuh"
#include "compression/randk_places.h"

enum { RANDK_TILE = 2048 };

/* The place among what is sent of the value at `index` of the block; negative: it is not sent. Of
 * each group before its own a whole run is. */
static __device__ __forceinline__ int64_t randk_place(const uint32_t *number, int64_t index) {
    const int64_t run = index >> number[RANDK_RUN_LOG2], group = run / number[RANDK_PERIOD];
    if ((int64_t)randk_run(number, group) != run) return -1;
    return (group << number[RANDK_RUN_LOG2]) + (index - (run << number[RANDK_RUN_LOG2]));
}

/* With feedback. */
struct randk_kind {
    static constexpr bool sums_squares = false;

    static __device__ __forceinline__ int64_t place(const struct codec_launch &, int64_t) {
        return 0;
    }

    static __device__ __forceinline__ double encode(const struct codec_launch &launch,
                                                    const struct tile &tile, int,
                                                    const float (&a)[EACH], uint8_t *at,
                                                    float (&sent)[EACH]) {
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int64_t index = tile.offset + place_of(tile, j);
            sent[j] = 0.0F;
            if (index >= launch.count) continue;
            const int64_t place = randk_place(launch.number, index);
            if (place < 0) continue;
            const uint32_t short_bits = bf16_round(a[j]);
            ((uint16_t *)at)[place] = (uint16_t)short_bits;
            sent[j] = bf16_widen(short_bits);
        }
        return 0.0;
    }

    static __device__ __forceinline__ void finish(const struct codec_launch &, const struct tile &,
                                                  float (&)[EACH]) {
    }
};

/* Without: a thread for each value that is sent. No other is read. */
static __global__ void __launch_bounds__(THREADS)
    randk_pick_kernel(struct codec_launch launch, const float *values, uint16_t *halves,
                      uint32_t *rows) {
    const int64_t place = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t group = place >> launch.number[RANDK_RUN_LOG2];
    const int64_t run = (int64_t)randk_run(launch.number, group);
    if (2 * place >= launch.body) return;
    const int64_t index = ((run - group) << launch.number[RANDK_RUN_LOG2]) + place;
    const float scaled = __fmul_rn(values[index], launch.scale);
    if (magnitude(scaled) >= INFINITY_BITS) atomicOr(&rows[CODEC_ROWS_SPECIAL], 1U);
    halves[place] = (uint16_t)bf16_round(__fmul_rn(scaled, (float)launch.number[RANDK_PERIOD]));
}

/* The places of the host's tiles in the payload: a thread adds up one tile, value after value. */
static __global__ void __launch_bounds__(THREADS)
    randk_squares_kernel(struct codec_launch launch, const uint8_t *wire, double *sums) {
    const int64_t tile = (int64_t)blockIdx.x * THREADS + threadIdx.x, first = tile * RANDK_TILE;
    if (first >= launch.count) return;
    const int64_t end = min(first + RANDK_TILE, launch.count);
    const int64_t size = (int64_t)1 << launch.number[RANDK_RUN_LOG2];
    const uint16_t *halves = (const uint16_t *)(wire + RANDK_HEAD);
    double sum = 0.0;
    for (int64_t group = (first >> launch.number[RANDK_RUN_LOG2]) / launch.number[RANDK_PERIOD];
         (group * launch.number[RANDK_PERIOD]) << launch.number[RANDK_RUN_LOG2] < end; group++) {
        const int64_t from = (int64_t)randk_run(launch.number, group)
                             << launch.number[RANDK_RUN_LOG2];
        if (from < first || from >= end) continue;
        const int64_t count = min(size, launch.count - from);
        for (int64_t i = 0; i < count; i++) {
            const double value =
                (double)bf16_widen(halves[(group << launch.number[RANDK_RUN_LOG2]) + i]);
            sum = __dadd_rn(sum, __dmul_rn(value, value));
        }
    }
    sums[tile] = sum;
}

/* What is not sent is 0, or stays as it is. */
static __global__ void __launch_bounds__(THREADS)
    randk_decode_kernel(struct codec_launch launch, const uint8_t *wire, float *out, bool add) {
    const struct tile tile = tile_here(launch.count);
    uint32_t number[RANDK_NUMBERS];
    for (int i = 0; i < RANDK_NUMBERS; i++)
        number[i] = get_word(wire + 4 * i);
    const uint16_t *halves = (const uint16_t *)(wire + RANDK_HEAD);
    for (int j = 0; j < EACH; j++) {
        const int64_t index = tile.offset + place_of(tile, j);
        if (index >= launch.count) continue;
        const int64_t place = randk_place(number, index);
        const float value = place < 0 ? 0.0F : bf16_widen(halves[place]);
        if (!add)
            out[index] = value;
        else if (place >= 0)
            out[index] = __fadd_rn(out[index], value);
    }
}

int codec_launch_randk(const struct codec_launch *launch, const struct codec_arrays *arrays,
                       struct CUstream_st *stream) {
    const int64_t tiles = (launch->count + RANDK_TILE - 1) / RANDK_TILE;
    const int64_t sent = launch->body / 2;
    int error = cudaSuccess;
    if ((launch->flags & CODEC_LAUNCH_FEEDBACK) != 0)
        error = encode_launch<randk_kind>(launch, arrays, stream);
    else if (sent > 0)
        error = kernel_launch(randk_pick_kernel, dim3((unsigned)((sent + THREADS - 1) / THREADS)),
                              dim3(THREADS), 0, stream, *launch, arrays->values,
                              (uint16_t *)(arrays->wire + RANDK_HEAD), arrays->rows);
    if (error != cudaSuccess) return error;
    return kernel_launch(randk_squares_kernel, kernel_blocks(tiles, THREADS), dim3(THREADS), 0,
                         stream, *launch, arrays->wire, arrays->sums);
}

int codec_launch_randk_decode(const struct codec_launch *launch, const uint8_t *wire, float *out,
                              bool add, struct CUstream_st *stream) {
    return kernel_launch(randk_decode_kernel, tile_blocks(launch->count), dim3(THREADS), 0, stream,
                         *launch, wire, out, add);
}
