/* The kernels for chips with AVX2; compiled with it switched on. */
#include "compression/codec_kernels.h"

#include <immintrin.h>

static __m256 bf16_load(const uint8_t *wire) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)wire));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

/* 8 values -> 8 bf16, each in the low half of 32 bits. */
static __m256i bf16_round(const float *values) {
    __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(values));
    __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32((int)F32_MAGNITUDE));
    __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32((int)F32_INFINITY));
    __m256i top = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, up), 16);
    return _mm256_blendv_epi8(rounded, _mm256_or_si256(top, _mm256_set1_epi32(0x40)), nan);
}

static void bf16_encode(const float *values, size_t count, uint8_t *wire) {
    size_t i = 0;
    for (; i + 16 <= count; i += 16) {
        // packus works within 128-bit lanes; the permutation puts the four quarters in order.
        __m256i packed = _mm256_packus_epi32(bf16_round(values + i), bf16_round(values + i + 8));
        packed = _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0));
        _mm256_storeu_si256((__m256i *)(wire + 2 * i), packed);
    }
    codec_kernels_plain.bf16_encode(values + i, count - i, wire + 2 * i);
}

static void bf16_decode(const uint8_t *wire, float *values, size_t count) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(values + i, bf16_load(wire + 2 * i));
    codec_kernels_plain.bf16_decode(wire + 2 * i, values + i, count - i);
}

static void bf16_decode_add(const uint8_t *wire, float *sum, size_t count) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256 added = _mm256_add_ps(_mm256_loadu_ps(sum + i), bf16_load(wire + 2 * i));
        _mm256_storeu_ps(sum + i, added);
    }
    codec_kernels_plain.bf16_decode_add(wire + 2 * i, sum + i, count - i);
}

/* The bits of max|a| over a whole block. */
static uint32_t max_magnitude(const float *values) {
    const __m256i magnitude = _mm256_set1_epi32((int)F32_MAGNITUDE);
    __m256i max = _mm256_setzero_si256();
    for (size_t i = 0; i < INT8_BLOCK; i += 8) {
        __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(values + i));
        max = _mm256_max_epi32(max, _mm256_and_si256(bits, magnitude));
    }
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(1, 0, 3, 2)));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(2, 3, 0, 1)));
    return (uint32_t)_mm_cvtsi128_si32(half);
}

static __m256i int8_quantize(const float *values, __m256 scale) {
    return _mm256_cvtps_epi32(_mm256_div_ps(_mm256_loadu_ps(values), scale));
}

static void int8_encode_block(const float *values, uint8_t *wire) {
    uint16_t half = int8_scale(max_magnitude(values));
    if (int8_encode_special(half, INT8_BLOCK, wire)) return;

    const __m256 scale = _mm256_set1_ps(f16_to_f32(half));
    // The packs work within 128-bit lanes: this puts their groups of four codes in order.
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (size_t i = 0; i < INT8_BLOCK; i += 32) {
        const float *from = values + i;
        __m256i low =
            _mm256_packs_epi32(int8_quantize(from, scale), int8_quantize(from + 8, scale));
        __m256i high =
            _mm256_packs_epi32(int8_quantize(from + 16, scale), int8_quantize(from + 24, scale));
        __m256i codes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
        _mm256_storeu_si256((__m256i *)(wire + 2 + i), codes);
    }
}

static void int8_encode(const float *values, size_t count, uint8_t *wire) {
    for (; count >= INT8_BLOCK; count -= INT8_BLOCK) {
        int8_encode_block(values, wire);
        values += INT8_BLOCK;
        wire += INT8_BLOCK_BYTES;
    }
    codec_kernels_plain.int8_encode(values, count, wire);
}

/* 8 codes, times the scale. */
static __m256 int8_load(const uint8_t *codes, __m256 scale) {
    __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)codes));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(wide), scale);
}

static void int8_decode(const uint8_t *wire, float *values, size_t count) {
    for (; count >= INT8_BLOCK; count -= INT8_BLOCK) {
        const __m256 scale = _mm256_set1_ps(int8_read_scale(wire));
        for (size_t i = 0; i < INT8_BLOCK; i += 8)
            _mm256_storeu_ps(values + i, int8_load(wire + 2 + i, scale));
        values += INT8_BLOCK;
        wire += INT8_BLOCK_BYTES;
    }
    codec_kernels_plain.int8_decode(wire, values, count);
}

static void int8_decode_add(const uint8_t *wire, float *sum, size_t count) {
    for (; count >= INT8_BLOCK; count -= INT8_BLOCK) {
        const __m256 scale = _mm256_set1_ps(int8_read_scale(wire));
        for (size_t i = 0; i < INT8_BLOCK; i += 8) {
            __m256 value = int8_load(wire + 2 + i, scale);
            _mm256_storeu_ps(sum + i, _mm256_add_ps(_mm256_loadu_ps(sum + i), value));
        }
        sum += INT8_BLOCK;
        wire += INT8_BLOCK_BYTES;
    }
    codec_kernels_plain.int8_decode_add(wire, sum, count);
}

const struct codec_kernels codec_kernels_avx2 = {
    .name = "avx2",
    .bf16_encode = bf16_encode,
    .bf16_decode = bf16_decode,
    .bf16_decode_add = bf16_decode_add,
    .int8_encode = int8_encode,
    .int8_decode = int8_decode,
    .int8_decode_add = int8_decode_add,
};
