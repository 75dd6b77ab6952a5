/* codec_int4_cuda.cu - int4, plain, with stochastic rounding, rotated or both; and qsgd. */
#include "compression/cuda/codec_encode.cuh"
#include "compression/cuda/codec_noise.cuh"

enum { INT4_BYTES = 2 + SCALED / 2, HALF_EACH = SCALED_EACH / 2 };

/* The lane's 8 of 128 values: each 32 of them by Hadamard's matrix / sqrt(32). */
static __device__ __forceinline__ void rotate(const struct tile &tile, float *v) {
#pragma unroll
    for (int j = 0; j < SCALED_EACH; j++) {
#pragma unroll
        for (int distance = 1; distance < TILE_LANES; distance *= 2) {
            const float other = __shfl_xor_sync(WARP, v[j], distance);
            v[j] = tile.lane & distance ? __fsub_rn(other, v[j]) : __fadd_rn(other, v[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < SCALED_EACH; j += 2) {
        const float low = v[j], high = v[j + 1];
        v[j] = __fmul_rn(__fadd_rn(low, high), 0.17677669529663687F);
        v[j + 1] = __fmul_rn(__fsub_rn(low, high), 0.17677669529663687F);
    }
}

/* What the scale is made of: the largest magnitude, or the norm, half a unit up. */
static __device__ __forceinline__ uint32_t scale_source(const struct codec_launch &launch,
                                                        const float *v) {
    uint32_t most = 0;
    float sum = 0.0F;
#pragma unroll
    for (int j = 0; j < SCALED_EACH; j++) {
        most = max(most, magnitude(v[j]));
        sum = __fadd_rn(sum, __fmul_rn(v[j], v[j]));
    }
    if (!has(launch, CODEC_LAUNCH_L2)) return lanes_max(most);
    const double norm = __dmul_rn(__dsqrt_rn((double)lanes_sum(sum)), 1.00000011920928955078125);
    return __float_as_uint((float)norm);
}

struct int4_kind {
    static constexpr bool sums_squares = true;

    static __device__ __forceinline__ int64_t place(const struct codec_launch &, int64_t index) {
        return index * (TILE / SCALED * INT4_BYTES);
    }

    static __device__ __forceinline__ void codes_of(const struct codec_launch &launch,
                                                    const struct tile &tile, int64_t first,
                                                    const float *v, float scale,
                                                    int (&codes)[SCALED_EACH]) {
        const bool sr = has(launch, CODEC_LAUNCH_SR);
        const float inverse = scale == 0.0F ? 0.0F : __fdiv_rn(sr ? 65536.0F : 1.0F, scale);
        int bits[SCALED_EACH];
        if (sr) noise(launch, tile, first, bits);
#pragma unroll
        for (int j = 0; j < SCALED_EACH; j++) {
            codes[j] = round_near(__fmul_rn(v[j], inverse));
            if (sr) codes[j] = (codes[j] + bits[j]) >> 16;
            if (scale == 0.0F) codes[j] = 0;
            if (scale == infinity()) codes[j] = 1;
        }
    }

    static __device__ __forceinline__ double encode_block(const struct codec_launch &launch,
                                                          const struct tile &tile, int b,
                                                          const float *a, uint8_t *at,
                                                          float *sent) {
        const int left = tile.n - b * SCALED;
        float v[SCALED_EACH];
        int codes[SCALED_EACH], total = 0;
#pragma unroll
        for (int j = 0; j < SCALED_EACH; j++)
            v[j] = a[j];
        if (has(launch, CODEC_LAUNCH_HAD)) rotate(tile, v);
        const uint32_t short_bits = scale_up(scale_source(launch, v), 7.0F);
        const float scale = bf16_widen(short_bits);
        codes_of(launch, tile, tile.offset + b * SCALED, v, scale, codes);
#pragma unroll
        for (int j = 0; j < SCALED_EACH; j++)
            total += codes[j] * codes[j];
        total = lanes_total(total);
#pragma unroll
        for (int j = 0; j < HALF_EACH; j++) {
            const int place = place_of(tile, j), high = codes[j + HALF_EACH];
            const bool here = place < left; // of a short block's codes, some are left out
            if (here) at[2 + place] = (uint8_t)((codes[j] & 15) | (uint32_t)high << 4);
            sent[j] = here ? __fmul_rn((float)codes[j], scale) : 0.0F;
            sent[j + HALF_EACH] = here ? __fmul_rn((float)high, scale) : 0.0F;
        }
        if (tile.lane == 0 && left > 0) put_half(at, short_bits);
        if (short_bits == 0) return 0.0;
        if (short_bits == BF16_INFINITE) return (double)scale;
        return __dmul_rn((double)total, __dmul_rn((double)scale, (double)scale));
    }

    static __device__ __forceinline__ double encode(const struct codec_launch &launch,
                                                    const struct tile &tile, int,
                                                    const float (&a)[EACH], uint8_t *at,
                                                    float (&sent)[EACH]) {
        double squares = 0.0;
#pragma unroll
        for (int b = 0; b < TILE / SCALED; b++)
            squares = __dadd_rn(squares, encode_block(launch, tile, b, a + b * SCALED_EACH,
                                                      at + b * INT4_BYTES, sent + b * SCALED_EACH));
        return squares;
    }

    static __device__ __forceinline__ void finish(const struct codec_launch &launch,
                                                  const struct tile &tile, float (&sent)[EACH]) {
        if (!has(launch, CODEC_LAUNCH_HAD)) return;
#pragma unroll
        for (int b = 0; b < TILE / SCALED; b++)
            rotate(tile, sent + b * SCALED_EACH);
    }

    static __device__ __forceinline__ void decode(const struct codec_launch &launch,
                                                  const struct tile &tile, const uint8_t *at,
                                                  float (&values)[EACH]) {
        const bool rotated = at[0] != 0;
        at += 1 + place(launch, tile.index);
#pragma unroll
        for (int b = 0; b < TILE / SCALED; b++, at += INT4_BYTES) {
            const int left = tile.n - b * SCALED;
            float *v = values + b * SCALED_EACH;
            const float scale = left > 0 ? bf16_widen(get_half(at)) : 0.0F;
#pragma unroll
            for (int j = 0; j < HALF_EACH; j++) {
                const int place = place_of(tile, j);
                const int byte = place < left ? (int8_t)at[2 + place] : 0;
                v[j] = __fmul_rn((float)((int)((uint32_t)byte << 28) >> 28), scale);
                v[j + HALF_EACH] = __fmul_rn((float)(byte >> 4), scale);
            }
            if (rotated) rotate(tile, v);
        }
    }
};

int codec_launch_int4(const struct codec_launch *launch, const struct codec_arrays *arrays,
                      struct CUstream_st *stream) {
    return encode_launch<int4_kind>(launch, arrays, stream);
}

int codec_launch_int4_decode(const struct codec_launch *launch, const uint8_t *wire, float *out,
                             bool add, struct CUstream_st *stream) {
    return decode_launch<int4_kind>(launch, wire, out, add, stream);
}
