/* codec_numbers.cuh - the numbers of compression/number_bits.h and codec_loops_half.h on a device:
 * the same bits, each operation with its rounding by name.
 */
#ifndef RUBATO_COMPRESSION_CUDA_CODEC_NUMBERS_CUH
#define RUBATO_COMPRESSION_CUDA_CODEC_NUMBERS_CUH

#include <cuda_runtime.h>
#include <stdint.h>

enum : uint32_t {
    INFINITY_BITS = 0x7f800000,
    MAGNITUDE_BITS = 0x7fffffff,
    QUIET_BIT = 0x400000,
    BF16_INFINITE = 0x7f80,
    F16_INFINITE = 0x7c00
};

static __device__ __forceinline__ uint32_t magnitude(float value) {
    return __float_as_uint(value) & MAGNITUDE_BITS;
}

static __device__ __forceinline__ float infinity() {
    return __uint_as_float(INFINITY_BITS);
}

/* An operation's result, and if that is a NaN, the one that a host makes of these operands: bf16
 * and f32 carry its bits. */
static __device__ __forceinline__ float host_nan(float result, float first, float second) {
    if (magnitude(result) <= INFINITY_BITS) return result;
    if (magnitude(first) > INFINITY_BITS)
        return __uint_as_float(__float_as_uint(first) | QUIET_BIT);
    if (magnitude(second) > INFINITY_BITS)
        return __uint_as_float(__float_as_uint(second) | QUIET_BIT);
    return __uint_as_float(0xffc00000U);
}

/* To the nearest integer, ties to even, below 2^22. */
static __device__ __forceinline__ int round_near(float value) {
    return (int)(__float_as_uint(__fadd_rn(value, 12582912.0F)) - 0x4b400000U);
}

static __device__ __forceinline__ uint32_t bf16_round(float value) {
    const uint32_t bits = __float_as_uint(value);
    if (magnitude(value) > INFINITY_BITS) return bits >> 16 | 0x40;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static __device__ __forceinline__ float bf16_widen(uint32_t short_bits) {
    return __uint_as_float(short_bits << 16);
}

static __device__ __forceinline__ uint32_t f16_round(float value) {
    const uint32_t bits = magnitude(value), sign = __float_as_uint(value) >> 16 & 0x8000;
    uint32_t rounded = (bits - (112U << 23) + 0xfff + (bits >> 13 & 1)) >> 13;
    if (bits < 0x38800000)
        rounded = __float_as_uint(__fadd_rn(__uint_as_float(bits), 0.5F)) - 0x3f000000U;
    if (bits >= 0x477ff000) rounded = F16_INFINITE;
    if (bits > INFINITY_BITS) rounded = 0x7e00;
    return sign | rounded;
}

static __device__ __forceinline__ float f16_widen(uint32_t short_bits) {
    const uint32_t sign = (short_bits & 0x8000) << 16, rest = short_bits & 0x7fff;
    uint32_t bits = (rest << 13) + (112U << 23);
    if (rest >= F16_INFINITE) bits = rest << 13 | INFINITY_BITS;
    if (rest < 0x400) bits = __float_as_uint(__fmul_rn((float)rest, 5.9604644775390625e-8F));
    return __uint_as_float(bits | sign);
}

/* max|a| / 127 as an f16, rounded up. */
static __device__ __forceinline__ uint32_t int8_scale(uint32_t max_bits) {
    const float quotient = __fdiv_rn(__uint_as_float(max_bits), 127.0F);
    if (max_bits == 0) return 0;
    if (!(quotient <= 65504.0F)) return F16_INFINITE;
    if (quotient < 6.103515625e-5F) {
        const float scaled = __fmul_rn(quotient, 16777216.0F);
        const uint32_t steps = (uint32_t)scaled;
        return (float)steps < scaled || steps == 0 ? steps + 1 : steps;
    }
    return (__float_as_uint(quotient) + 0x1fff - (112U << 23)) >> 13;
}

/* codec_scale_up(). */
static __device__ __forceinline__ uint32_t scale_up(uint32_t magnitude_bits, float levels) {
    const float quotient = __fdiv_rn(__uint_as_float(magnitude_bits), levels);
    if (magnitude_bits == 0) return 0;
    if (magnitude_bits >= INFINITY_BITS) return BF16_INFINITE;
    if (quotient < 7.888609052210118e-31F) return (127 - 100) << 7;
    return (__float_as_uint(quotient) + 0xffff) >> 16;
}

static __device__ __forceinline__ void put_half(uint8_t *at, uint32_t short_bits) {
    at[0] = (uint8_t)short_bits;
    at[1] = (uint8_t)(short_bits >> 8);
}

static __device__ __forceinline__ uint32_t get_half(const uint8_t *at) {
    return at[0] | (uint32_t)at[1] << 8;
}

static __device__ __forceinline__ uint32_t get_word(const uint8_t *at) {
    return get_half(at) | get_half(at + 2) << 16;
}

static __device__ __forceinline__ void put_word(uint8_t *at, uint32_t word) {
    put_half(at, word);
    put_half(at + 2, word >> 16);
}

#endif
