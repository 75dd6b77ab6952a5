/* codec_cast_cuda.cu - f32, bf16 and fp16: each value by itself. */
#include "compression/cuda/codec_encode.cuh"
#include "proto/codec_id.h"

template <int CODEC> struct cast_kind {
    static constexpr bool sums_squares = true;
    static constexpr int bytes = CODEC == CODEC_F32 ? 4 : 2;

    static __device__ __forceinline__ int64_t place(const struct codec_launch &, int64_t index) {
        return index * TILE * bytes;
    }

    static __device__ __forceinline__ double encode(const struct codec_launch &,
                                                    const struct tile &tile, int,
                                                    const float (&a)[EACH], uint8_t *at,
                                                    float (&sent)[EACH]) {
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int place = place_of(tile, j);
            uint32_t short_bits = 0;
            sent[j] = a[j];
            if (CODEC == CODEC_BF16) sent[j] = bf16_widen(short_bits = bf16_round(a[j]));
            if (CODEC == CODEC_FP16) sent[j] = f16_widen(short_bits = f16_round(a[j]));
            if (place >= tile.n) continue;
            if (CODEC == CODEC_F32)
                ((uint32_t *)at)[place] = __float_as_uint(a[j]);
            else
                ((uint16_t *)at)[place] = (uint16_t)short_bits;
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
            values[j] = 0.0F;
            if (place >= tile.n) continue;
            if (CODEC == CODEC_F32) values[j] = ((const float *)at)[place];
            if (CODEC == CODEC_BF16) values[j] = bf16_widen(((const uint16_t *)at)[place]);
            if (CODEC == CODEC_FP16) values[j] = f16_widen(((const uint16_t *)at)[place]);
        }
    }
};

int codec_launch_cast(const struct codec_launch *launch, const struct codec_arrays *arrays,
                      struct CUstream_st *stream) {
    if (launch->codec == CODEC_F32)
        return encode_launch<cast_kind<CODEC_F32>>(launch, arrays, stream);
    if (launch->codec == CODEC_BF16)
        return encode_launch<cast_kind<CODEC_BF16>>(launch, arrays, stream);
    return encode_launch<cast_kind<CODEC_FP16>>(launch, arrays, stream);
}

int codec_launch_cast_decode(const struct codec_launch *launch, const uint8_t *wire, float *out,
                             bool add, struct CUstream_st *stream) {
    if (launch->codec == CODEC_F32)
        return decode_launch<cast_kind<CODEC_F32>>(launch, wire, out, add, stream);
    if (launch->codec == CODEC_BF16)
        return decode_launch<cast_kind<CODEC_BF16>>(launch, wire, out, add, stream);
    return decode_launch<cast_kind<CODEC_FP16>>(launch, wire, out, add, stream);
}
