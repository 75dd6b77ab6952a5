/* lanes.h - vectors of as many f32 as the file's instruction set holds, for loops that are written
 * once and compiled once a level (codec_loops_*.h).
 *
 * The compiler's own vector types give + - * / & | ^ << >> and comparisons at any width; only what
 * they lack is spelled here for each level. No operation may round differently at another width.
 */
#ifndef RUBATO_COMPRESSION_LANES_H
#define RUBATO_COMPRESSION_LANES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512BW__)
#include <immintrin.h>
#define LANES 16
#elif defined(__AVX2__)
#include <immintrin.h>
#define LANES 8
#else
#define LANES 4
#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#endif

#define LANES_INLINE static inline __attribute__((always_inline, unused))

typedef float lanes_f __attribute__((vector_size(4 * LANES)));
typedef int32_t lanes_i __attribute__((vector_size(4 * LANES)));
typedef uint32_t lanes_u __attribute__((vector_size(4 * LANES)));
typedef uint64_t lanes_wide __attribute__((vector_size(4 * LANES)));

LANES_INLINE lanes_f lanes_load(const float *from) {
    lanes_f value;
    memcpy(&value, from, sizeof value);
    return value;
}

LANES_INLINE void lanes_store(float *to, lanes_f value) {
    memcpy(to, &value, sizeof value);
}

LANES_INLINE lanes_u lanes_load_u(const uint32_t *from) {
    lanes_u value;
    memcpy(&value, from, sizeof value);
    return value;
}

LANES_INLINE lanes_f lanes_splat(float value) {
    return value - (lanes_f){0};
}

LANES_INLINE lanes_i lanes_splat_i(int32_t value) {
    return value - (lanes_i){0};
}

LANES_INLINE lanes_i lanes_magnitude(lanes_f value) {
    return (lanes_i)value & 0x7fffffff;
}

/* Of each lane `yes` where the mask is all ones, `no` where it is 0. */
LANES_INLINE lanes_i lanes_select(lanes_i mask, lanes_i yes, lanes_i no) {
    return (mask & yes) | (~mask & no);
}

LANES_INLINE lanes_i lanes_max(lanes_i a, lanes_i b) {
#if LANES == 16
    return (lanes_i)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif LANES == 8
    return (lanes_i)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
    return lanes_select(a > b, a, b);
#endif
}

LANES_INLINE lanes_f lanes_from_int(lanes_i value) {
    return __builtin_convertvector(value, lanes_f);
}

/* To the nearest integer, ties to even, for |value| < 2^22: adding 1.5 * 2^23 leaves the integer in
 * the low bits. Anything else gives some integer. */
LANES_INLINE lanes_i lanes_round(lanes_f value) {
    return (lanes_i)((lanes_u)(value + 0x1.8p23f) - 0x4b400000U);
}

/* The low byte of each lane. */
LANES_INLINE void lanes_store_bytes(uint8_t *to, lanes_i value) {
#if LANES == 16
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8((__m512i)value));
#elif LANES == 8
    const __m256i pick =
        _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12,
                         -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    __m256i picked = _mm256_shuffle_epi8((__m256i)value, pick);
    _mm_storel_epi64((__m128i *)to, _mm_unpacklo_epi32(_mm256_castsi256_si128(picked),
                                                       _mm256_extracti128_si256(picked, 1)));
#else
    for (int i = 0; i < LANES; i++)
        to[i] = (uint8_t)value[i];
#endif
}

LANES_INLINE lanes_i lanes_load_bytes(const uint8_t *from) {
#if LANES == 16
    return (lanes_i)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from));
#elif LANES == 8
    return (lanes_i)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from));
#else
    lanes_i value;
    for (int i = 0; i < LANES; i++)
        value[i] = (int32_t)(from[i] ^ 0x80) - 128;
    return value;
#endif
}

/* The low half of each lane. */
LANES_INLINE void lanes_store_halves(uint8_t *to, lanes_i value) {
#if LANES == 16
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16((__m512i)value));
#elif LANES == 8
    __m256i packed = _mm256_packus_epi32(
        _mm256_and_si256((__m256i)value, _mm256_set1_epi32(0xffff)), _mm256_setzero_si256());
    packed = _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0));
    _mm_storeu_si128((__m128i *)to, _mm256_castsi256_si128(packed));
#else
    uint16_t halves[LANES];
    for (int i = 0; i < LANES; i++)
        halves[i] = (uint16_t)value[i];
    memcpy(to, halves, sizeof halves);
#endif
}

LANES_INLINE lanes_i lanes_load_halves(const uint8_t *from) {
#if LANES == 16
    return (lanes_i)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
#elif LANES == 8
    return (lanes_i)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
#else
    uint16_t halves[LANES];
    lanes_i value;
    memcpy(halves, from, sizeof halves);
    for (int i = 0; i < LANES; i++)
        value[i] = halves[i];
    return value;
#endif
}

/* Bit i: the sign of lane i. */
LANES_INLINE uint32_t lanes_signs(lanes_i value) {
#if LANES == 16
    return (uint32_t)_mm512_movepi32_mask((__m512i)value);
#elif LANES == 8
    return (uint32_t)_mm256_movemask_ps((__m256)value);
#elif defined(__SSE2__)
    return (uint32_t)_mm_movemask_ps((__m128)value);
#else
    uint32_t bits = 0;
    for (int i = 0; i < LANES; i++)
        bits |= ((uint32_t)value[i] >> 31) << i;
    return bits;
#endif
}

/* Bit i: lane i of a is above that of b. */
LANES_INLINE uint32_t lanes_above(lanes_i a, lanes_i b) {
#if LANES == 16
    return (uint32_t)_mm512_cmpgt_epi32_mask((__m512i)a, (__m512i)b);
#else
    return lanes_signs(a > b);
#endif
}

/* Appends base + i to a list for each bit i that is set; returns how many. Up to LANES places of
 * the list are overwritten. */
LANES_INLINE size_t lanes_list(uint32_t *list, uint32_t bits, uint32_t base) {
#if LANES == 16
    const __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i found = _mm512_add_epi32(places, _mm512_set1_epi32((int32_t)base));
    _mm512_storeu_si512(list, _mm512_maskz_compress_epi32((__mmask16)bits, found));
    return (size_t)__builtin_popcount(bits);
#else
    size_t count = 0;
    for (; bits != 0; bits &= bits - 1)
        list[count++] = base + (uint32_t)__builtin_ctz(bits);
    return count;
#endif
}

/* Lanes with bit i set get `value`'s sign flipped. */
LANES_INLINE lanes_f lanes_flip(lanes_f value, uint32_t bits) {
#if LANES == 16
    return (lanes_f)_mm512_mask_xor_epi32((__m512i)value, (__mmask16)bits, (__m512i)value,
                                          _mm512_set1_epi32(INT32_MIN));
#else
    lanes_i place, words = lanes_splat_i((int32_t)bits);
    for (int i = 0; i < LANES; i++)
        place[i] = 1 << i;
    return (lanes_f)((lanes_i)value ^ (((words & place) == place) & INT32_MIN));
#endif
}

/* other + lanes_flip(value, bits), but for the signs of NaN. */
LANES_INLINE lanes_f lanes_add_flipped(lanes_f other, lanes_f value, uint32_t bits) {
#if LANES == 16
    lanes_f sign;
    for (int i = 0; i < LANES; i++)
        sign[i] = (bits >> i & 1) != 0 ? -1.0f : 1.0f;
    // A product with 1 or -1 is exact, so that this rounds once, as an addition does.
    return (lanes_f)_mm512_fmadd_ps((__m512)value, (__m512)sign, (__m512)other);
#else
    return other + lanes_flip(value, bits);
#endif
}

/* low^2 + high^2, of integers that fit in 16 bits. */
LANES_INLINE lanes_i lanes_squares(lanes_i low, lanes_i high) {
#if LANES == 16
    __m512i both =
        _mm512_mask_blend_epi16(0xaaaaaaaa, (__m512i)low, _mm512_slli_epi32((__m512i)high, 16));
    return (lanes_i)_mm512_madd_epi16(both, both);
#elif LANES == 8
    __m256i both = _mm256_blend_epi16((__m256i)low, _mm256_slli_epi32((__m256i)high, 16), 0xaa);
    return (lanes_i)_mm256_madd_epi16(both, both);
#else
    return low * low + high * high;
#endif
}

/* The full products of the low 32 bits of each 64. */
LANES_INLINE lanes_wide lanes_multiply_low(lanes_wide a, uint32_t b) {
#if LANES == 16
    return (lanes_wide)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64((int64_t)b));
#elif LANES == 8
    return (lanes_wide)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x((int64_t)b));
#elif defined(__SSE2__)
    return (lanes_wide)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x((int64_t)b));
#else
    return (a & 0xffffffffU) * (uint64_t)b;
#endif
}

#endif
