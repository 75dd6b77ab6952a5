/* codec_reference_cuda.cu - terngrad and natural (compression/scheme_reference.c). */
#include "compression/cuda/codec_encode.cuh"
#include "compression/cuda/codec_noise.cuh"
#include "proto/codec_id.h"

enum { TERN_BYTES = 2 + TILE / 4, NATURAL_LOWEST = 18 };

/* Bit i of 16 becomes bit 2 i. */
static __device__ __forceinline__ uint32_t spread_bits(uint32_t bits) {
    bits = (bits | bits << 8) & 0x00ff00ff;
    bits = (bits | bits << 4) & 0x0f0f0f0f;
    bits = (bits | bits << 2) & 0x33333333;
    return (bits | bits << 1) & 0x55555555;
}

struct terngrad_kind {
    static constexpr bool sums_squares = true;

    static __device__ __forceinline__ int64_t place(const struct codec_launch &, int64_t index) {
        return index * TERN_BYTES;
    }

    /* max|a|, but 2.5 standard deviations at most: added up one value after the other, as the host
     * does. */
    static __device__ __forceinline__ float limit_of(const struct tile &tile,
                                                     const float (&a)[EACH]) {
        double sum = 0.0, squares = 0.0;
        uint32_t most_bits = 0;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            if (magnitude(a[j]) <= INFINITY_BITS) most_bits = max(most_bits, magnitude(a[j]));
#pragma unroll 1
            for (int lane = 0; lane < TILE_LANES; lane++) {
                const double value = (double)__shfl_sync(WARP, a[j], lane, TILE_LANES);
                sum = __dadd_rn(sum, value);
                squares = __dadd_rn(squares, __dmul_rn(value, value));
            }
        }
        const double largest = (double)__uint_as_float(lanes_max(most_bits));
        const double mean = sum / (double)tile.n;
        const double variance = __dadd_rn(squares / (double)tile.n, -__dmul_rn(mean, mean));
        const double most = __dmul_rn(2.5, __dsqrt_rn(fmax(variance, 0.0)));
        return (float)(most > 0.0 && most < largest ? most : largest);
    }

    /* Lane l writes the codes of 16 values twice: of l's place among the tile's 32 such. */
    static __device__ __forceinline__ void put_codes(const struct tile &tile, const uint32_t *codes,
                                                     uint8_t *at) {
        const int bytes = (tile.n + 3) / 4;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int place = i / 4 * (TILE / 8) + 4 * tile.lane + i % 4;
            if (place < bytes) at[place] = (uint8_t)(codes[i / 4] >> (i % 4 * 8));
        }
    }

    static __device__ __forceinline__ double encode(const struct codec_launch &launch,
                                                    const struct tile &tile, int,
                                                    const float (&a)[EACH], uint8_t *at,
                                                    float (&sent)[EACH]) {
        const float limit = limit_of(tile, a);
        const uint32_t short_bits = scale_up(__float_as_uint(limit), 1.0F);
        const float scale = bf16_widen(short_bits),
                    inverse = short_bits == 0 ? 0.0F : __fdiv_rn(1.0F, scale);
        uint32_t codes[2] = {0, 0};
        int bits[SCALED_EACH];
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            if (j % SCALED_EACH == 0)
                noise(launch, tile, tile.offset + j / SCALED_EACH * SCALED, bits);
            const float chance = __fmul_rn(fminf(fabsf(a[j]), limit), inverse);
            const float drawn =
                __fmul_rn(__fadd_rn((float)bits[j % SCALED_EACH], 0.5F), 1.52587890625e-5F);
            const bool sends = drawn < chance, negative = __float_as_uint(a[j]) >> 31 != 0;
            const uint32_t some = spread_bits(lanes_vote(sends));
            const uint32_t minus = spread_bits(lanes_vote(sends && negative));
            if (j % TILE_LANES == tile.lane) codes[j / TILE_LANES] = some | minus << 1;
            sent[j] = sends ? (negative ? -scale : scale) : 0.0F;
        }
        put_codes(tile, codes, at + 2);
        if (tile.lane == 0 && tile.n > 0) put_half(at, short_bits);
        return -1.0;
    }

    static __device__ __forceinline__ void finish(const struct codec_launch &, const struct tile &,
                                                  float (&)[EACH]) {
    }

    static __device__ __forceinline__ void decode(const struct codec_launch &launch,
                                                  const struct tile &tile, const uint8_t *at,
                                                  float (&values)[EACH]) {
        at += place(launch, tile.index);
        const float scale = tile.n > 0 ? bf16_widen(get_half(at)) : 0.0F;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int place = place_of(tile, j);
            const uint32_t byte = place < tile.n ? at[2 + place / 4] : 0;
            const uint32_t code = byte >> (place % 4 * 2) & 3;
            values[j] = code == 1 ? scale : code == 3 ? -scale : 0.0F;
        }
    }
};

struct natural_kind {
    static constexpr bool sums_squares = true;

    static __device__ __forceinline__ int64_t place(const struct codec_launch &, int64_t index) {
        return index * TILE;
    }

    static __device__ __forceinline__ float widen(uint32_t code) {
        const uint32_t exponent = code & 0x7f, sign = (code & 0x80) << 24;
        return __uint_as_float(sign | (exponent == 0 ? 0 : (exponent + NATURAL_LOWEST) << 23));
    }

    static __device__ __forceinline__ uint32_t code_of(float value, int noise_bits) {
        const uint32_t carried = (magnitude(value) + ((uint32_t)noise_bits << 7)) >> 23;
        const int exponent = min(max((int)carried - NATURAL_LOWEST, 0), 127);
        return exponent == 0 ? 0 : (uint32_t)exponent | (__float_as_uint(value) >> 24 & 0x80);
    }

    static __device__ __forceinline__ double encode(const struct codec_launch &launch,
                                                    const struct tile &tile, int,
                                                    const float (&a)[EACH], uint8_t *at,
                                                    float (&sent)[EACH]) {
        int bits[SCALED_EACH];
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            if (j % SCALED_EACH == 0)
                noise(launch, tile, tile.offset + j / SCALED_EACH * SCALED, bits);
            const int place = place_of(tile, j);
            const uint32_t code = code_of(a[j], bits[j % SCALED_EACH]);
            if (place < tile.n) at[place] = (uint8_t)code;
            sent[j] = widen(code);
        }
        return -1.0;
    }

    static __device__ __forceinline__ void finish(const struct codec_launch &, const struct tile &,
                                                  float (&)[EACH]) {
    }

    static __device__ __forceinline__ void decode(const struct codec_launch &launch,
                                                  const struct tile &tile, const uint8_t *at,
                                                  float (&values)[EACH]) {
        at += place(launch, tile.index);
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int place = place_of(tile, j);
            values[j] = place < tile.n ? widen(at[place]) : 0.0F;
        }
    }
};

int codec_launch_reference(const struct codec_launch *launch, const struct codec_arrays *arrays,
                           struct CUstream_st *stream) {
    if (launch->codec == CODEC_TERNGRAD)
        return encode_launch<terngrad_kind>(launch, arrays, stream);
    return encode_launch<natural_kind>(launch, arrays, stream);
}

int codec_launch_reference_decode(const struct codec_launch *launch, const uint8_t *wire,
                                  float *out, bool add, struct CUstream_st *stream) {
    if (launch->codec == CODEC_TERNGRAD)
        return decode_launch<terngrad_kind>(launch, wire, out, add, stream);
    return decode_launch<natural_kind>(launch, wire, out, add, stream);
}
