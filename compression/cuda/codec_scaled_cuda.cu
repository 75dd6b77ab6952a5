/* codec_scaled_cuda.cu - int8 and fp8: 128 values share a scale. */
#include "compression/cuda/codec_encode.cuh"
#include "proto/codec_id.h"

struct int8_kind {
    static constexpr bool sums_squares = true;

    static __device__ __forceinline__ int64_t place(const struct codec_launch &, int64_t index) {
        return index * (TILE / SCALED * INT8_BYTES);
    }

    static __device__ __forceinline__ double encode(const struct codec_launch &,
                                                    const struct tile &tile, int,
                                                    const float (&a)[EACH], uint8_t *at,
                                                    float (&sent)[EACH]) {
        double squares = 0.0;
#pragma unroll
        for (int b = 0; b < TILE / SCALED; b++)
            squares = __dadd_rn(squares, int8_encode(tile, a + b * SCALED_EACH, tile.n - b * SCALED,
                                                     at + b * INT8_BYTES, sent + b * SCALED_EACH));
        return squares;
    }

    static __device__ __forceinline__ void finish(const struct codec_launch &, const struct tile &,
                                                  float (&)[EACH]) {
    }

    static __device__ __forceinline__ void decode(const struct codec_launch &launch,
                                                  const struct tile &tile, const uint8_t *at,
                                                  float (&values)[EACH]) {
        at += place(launch, tile.index);
#pragma unroll
        for (int b = 0; b < TILE / SCALED; b++)
            int8_decode(tile, at + b * INT8_BYTES, tile.n - b * SCALED, values + b * SCALED_EACH);
    }
};

/* As struct fp8_format of compression/codec_loops_fp8.h. */
template <bool E5M2> struct fp8_format {
    static constexpr int drop = E5M2 ? 21 : 20;
    static constexpr uint32_t rebase = E5M2 ? 112 << 2 : 120 << 3;
    static constexpr uint32_t smallest = E5M2 ? 0x38800000 : 0x3c800000;
    static constexpr float steps = E5M2 ? 65536.0F : 512.0F;
    static constexpr float most = E5M2 ? 57344.0F : 448.0F;

    static __device__ __forceinline__ float widen(uint32_t code) {
        const uint32_t rest = code & 0x7f, sign = (code & 0x80) << 24;
        uint32_t bits = (rest + rebase) << drop;
        if (rest < 1U << (23 - drop)) bits = __float_as_uint(__fmul_rn((float)rest, 1.0F / steps));
        return __uint_as_float(bits | sign);
    }

    static __device__ __forceinline__ uint32_t code_of(float value) {
        const uint32_t bits = magnitude(value), sign = __float_as_uint(value) >> 24 & 0x80;
        const uint32_t up = (1U << (drop - 1)) - 1 + (bits >> drop & 1);
        if (bits < smallest)
            return sign | (uint32_t)round_near(__fmul_rn(__uint_as_float(bits), steps));
        return sign | (((bits + up) >> drop) - rebase);
    }
};

template <bool E5M2> struct fp8_kind {
    using format = fp8_format<E5M2>;
    static constexpr bool sums_squares = true;

    static __device__ __forceinline__ int64_t place(const struct codec_launch &, int64_t index) {
        return index * (TILE / SCALED * INT8_BYTES);
    }

    static __device__ __forceinline__ double encode_block(const struct tile &tile, const float *a,
                                                          int left, uint8_t *at, float *sent) {
        uint32_t largest = 0;
        float sum = 0.0F;
#pragma unroll
        for (int j = 0; j < SCALED_EACH; j++)
            largest = max(largest, magnitude(a[j]));
        const uint32_t short_bits = scale_up(lanes_max(largest), format::most);
        const float scale = bf16_widen(short_bits),
                    inverse = short_bits == 0 ? 0.0F : __fdiv_rn(1.0F, scale);
#pragma unroll
        for (int j = 0; j < SCALED_EACH; j++) {
            const uint32_t code = format::code_of(__fmul_rn(a[j], inverse));
            const float value = format::widen(code);
            sum = __fadd_rn(sum, __fmul_rn(value, value));
            sent[j] = __fmul_rn(value, scale);
            if (place_of(tile, j) < left) at[2 + place_of(tile, j)] = (uint8_t)code;
        }
        if (tile.lane == 0 && left > 0) put_half(at, short_bits);
        return __dmul_rn((double)lanes_sum(sum), __dmul_rn((double)scale, (double)scale));
    }

    static __device__ __forceinline__ double encode(const struct codec_launch &,
                                                    const struct tile &tile, int,
                                                    const float (&a)[EACH], uint8_t *at,
                                                    float (&sent)[EACH]) {
        double squares = 0.0;
#pragma unroll
        for (int b = 0; b < TILE / SCALED; b++) {
            const double block = encode_block(tile, a + b * SCALED_EACH, tile.n - b * SCALED,
                                              at + b * INT8_BYTES, sent + b * SCALED_EACH);
            squares = __dadd_rn(squares, block);
        }
        return squares;
    }

    static __device__ __forceinline__ void finish(const struct codec_launch &, const struct tile &,
                                                  float (&)[EACH]) {
    }

    static __device__ __forceinline__ void decode(const struct codec_launch &launch,
                                                  const struct tile &tile, const uint8_t *at,
                                                  float (&values)[EACH]) {
        const bool e5m2 = at[0] == 1;
        at += 1 + place(launch, tile.index);
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const uint8_t *block = at + j / SCALED_EACH * INT8_BYTES;
            const int place = place_of(tile, j);
            values[j] = 0.0F;
            if (place >= tile.n) continue;
            const uint32_t code = block[2 + place % SCALED];
            const float value =
                e5m2 ? fp8_format<true>::widen(code) : fp8_format<false>::widen(code);
            values[j] = __fmul_rn(value, bf16_widen(get_half(block)));
        }
    }
};

int codec_launch_scaled(const struct codec_launch *launch, const struct codec_arrays *arrays,
                        struct CUstream_st *stream) {
    if (launch->codec == CODEC_INT8) return encode_launch<int8_kind>(launch, arrays, stream);
    if ((launch->flags & CODEC_LAUNCH_E5M2) != 0)
        return encode_launch<fp8_kind<true>>(launch, arrays, stream);
    return encode_launch<fp8_kind<false>>(launch, arrays, stream);
}

int codec_launch_scaled_decode(const struct codec_launch *launch, const uint8_t *wire, float *out,
                               bool add, struct CUstream_st *stream) {
    if (launch->codec == CODEC_INT8)
        return decode_launch<int8_kind>(launch, wire, out, add, stream);
    return decode_launch<fp8_kind<false>>(launch, wire, out, add, stream); // the payload says which
}
