/* codec_signs_cuda.cu - onebit and signsgd: signs, with a mean for each 512 values or without. */
#include "compression/cuda/codec_encode.cuh"
#include "proto/codec_id.h"

enum { SIGN_BYTES = TILE / 8 };

/* ONEBIT: a mean comes before the signs. */
template <bool ONEBIT> struct signs_kind {
    static constexpr bool sums_squares = true;

    static __device__ __forceinline__ int64_t place(const struct codec_launch &, int64_t index) {
        return index * (SIGN_BYTES + (ONEBIT ? 2 : 0));
    }

    /* Lane l writes the signs of 16 values twice: of l's place among the tile's 32 such. */
    static __device__ __forceinline__ void put_signs(const struct tile &tile,
                                                     const float (&a)[EACH], uint8_t *at) {
        uint32_t low = 0, high = 0;
        const int bytes = (tile.n + 7) / 8;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const uint32_t signs = lanes_vote(__float_as_uint(a[j]) >> 31 != 0);
            if (j % TILE_LANES == tile.lane) (j < TILE_LANES ? low : high) = signs;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int place = 2 * tile.lane + i % 2 + i / 2 * (SIGN_BYTES / 2);
            if (place < bytes) at[place] = (uint8_t)((i < 2 ? low : high) >> (i % 2 * 8));
        }
    }

    static __device__ __forceinline__ double encode(const struct codec_launch &,
                                                    const struct tile &tile, int active,
                                                    const float (&a)[EACH], uint8_t *at,
                                                    float (&sent)[EACH]) {
        float sum = 0.0F;
        uint32_t short_bits = bf16_round(1.0F);
        if (ONEBIT) {
#pragma unroll
            for (int j = 0; j < EACH; j++)
                sum = __fadd_rn(sum, __uint_as_float(magnitude(a[j])));
            sum = lanes_sum(sum);
            short_bits = bf16_round(active == 0 ? 0.0F : __fdiv_rn(sum, (float)active));
            if (tile.lane == 0 && tile.n > 0) put_half(at, short_bits);
            at += 2;
        }
        put_signs(tile, a, at);
        const float mean = bf16_widen(short_bits);
#pragma unroll
        for (int j = 0; j < EACH; j++)
            sent[j] =
                __uint_as_float(__float_as_uint(mean) ^ (__float_as_uint(a[j]) & 0x80000000U));
        return __dmul_rn(__dmul_rn((double)mean, (double)mean), (double)active);
    }

    static __device__ __forceinline__ void finish(const struct codec_launch &, const struct tile &,
                                                  float (&)[EACH]) {
    }

    static __device__ __forceinline__ void decode(const struct codec_launch &launch,
                                                  const struct tile &tile, const uint8_t *at,
                                                  float (&values)[EACH]) {
        float mean = 1.0F;
        at += place(launch, tile.index);
        if (ONEBIT) {
            mean = tile.n > 0 ? bf16_widen(get_half(at)) : 0.0F;
            at += 2;
        }
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int place = place_of(tile, j);
            const uint32_t byte = place < tile.n ? at[place / 8] : 0;
            values[j] = __uint_as_float(__float_as_uint(mean) ^ (byte >> (place % 8) & 1) << 31);
        }
    }
};

int codec_launch_signs(const struct codec_launch *launch, const struct codec_arrays *arrays,
                       struct CUstream_st *stream) {
    if (launch->codec == CODEC_ONEBIT)
        return encode_launch<signs_kind<true>>(launch, arrays, stream);
    return encode_launch<signs_kind<false>>(launch, arrays, stream);
}

int codec_launch_signs_decode(const struct codec_launch *launch, const uint8_t *wire, float *out,
                              bool add, struct CUstream_st *stream) {
    if (launch->codec == CODEC_ONEBIT)
        return decode_launch<signs_kind<true>>(launch, wire, out, add, stream);
    return decode_launch<signs_kind<false>>(launch, wire, out, add, stream);
}
