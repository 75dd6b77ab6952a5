/* The kernels for chips with AVX-512 F and BW; compiled with these switched on. */
#include "compression/codec_kernels.h"

#include <immintrin.h>

static __m512 bf16_load(const uint8_t *wire) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)wire));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

static void bf16_encode(const float *values, size_t count, uint8_t *wire) {
    const __m512i magnitude = _mm512_set1_epi32((int)F32_MAGNITUDE);
    const __m512i infinity = _mm512_set1_epi32((int)F32_INFINITY);
    const __m512i below_half = _mm512_set1_epi32(0x7fff), one = _mm512_set1_epi32(1);
    size_t i = 0;

    for (; i + 16 <= count; i += 16) {
        __m512i bits = _mm512_castps_si512(_mm512_loadu_ps(values + i));
        __mmask16 nan = _mm512_cmpgt_epi32_mask(_mm512_and_si512(bits, magnitude), infinity);
        __m512i top = _mm512_srli_epi32(bits, 16);
        __m512i up = _mm512_add_epi32(below_half, _mm512_and_si512(top, one));
        __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, up), 16);
        rounded = _mm512_mask_or_epi32(rounded, nan, top, _mm512_set1_epi32(0x40));
        _mm256_storeu_si256((__m256i *)(wire + 2 * i), _mm512_cvtepi32_epi16(rounded));
    }
    codec_kernels_plain.bf16_encode(values + i, count - i, wire + 2 * i);
}

static void bf16_decode(const uint8_t *wire, float *values, size_t count) {
    size_t i = 0;
    for (; i + 16 <= count; i += 16)
        _mm512_storeu_ps(values + i, bf16_load(wire + 2 * i));
    codec_kernels_plain.bf16_decode(wire + 2 * i, values + i, count - i);
}

static void bf16_decode_add(const uint8_t *wire, float *sum, size_t count) {
    size_t i = 0;
    for (; i + 16 <= count; i += 16) {
        __m512 added = _mm512_add_ps(_mm512_loadu_ps(sum + i), bf16_load(wire + 2 * i));
        _mm512_storeu_ps(sum + i, added);
    }
    codec_kernels_plain.bf16_decode_add(wire + 2 * i, sum + i, count - i);
}

static void int8_encode_block(const float *values, uint8_t *wire) {
    const __m512i magnitude = _mm512_set1_epi32((int)F32_MAGNITUDE);
    __m512i max = _mm512_setzero_si512();
    for (size_t i = 0; i < INT8_BLOCK; i += 16) {
        __m512i bits = _mm512_castps_si512(_mm512_loadu_ps(values + i));
        max = _mm512_max_epi32(max, _mm512_and_si512(bits, magnitude));
    }
    uint16_t half = int8_scale((uint32_t)_mm512_reduce_max_epi32(max));
    if (int8_encode_special(half, INT8_BLOCK, wire)) return;

    const __m512 scale = _mm512_set1_ps(f16_to_f32(half));
    for (size_t i = 0; i < INT8_BLOCK; i += 16) {
        __m512i codes = _mm512_cvtps_epi32(_mm512_div_ps(_mm512_loadu_ps(values + i), scale));
        _mm_storeu_si128((__m128i *)(wire + 2 + i), _mm512_cvtepi32_epi8(codes));
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

/* 16 codes, times the scale. */
static __m512 int8_load(const uint8_t *codes, __m512 scale) {
    __m512i wide = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)codes));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(wide), scale);
}

static void int8_decode(const uint8_t *wire, float *values, size_t count) {
    for (; count >= INT8_BLOCK; count -= INT8_BLOCK) {
        const __m512 scale = _mm512_set1_ps(int8_read_scale(wire));
        for (size_t i = 0; i < INT8_BLOCK; i += 16)
            _mm512_storeu_ps(values + i, int8_load(wire + 2 + i, scale));
        values += INT8_BLOCK;
        wire += INT8_BLOCK_BYTES;
    }
    codec_kernels_plain.int8_decode(wire, values, count);
}

static void int8_decode_add(const uint8_t *wire, float *sum, size_t count) {
    for (; count >= INT8_BLOCK; count -= INT8_BLOCK) {
        const __m512 scale = _mm512_set1_ps(int8_read_scale(wire));
        for (size_t i = 0; i < INT8_BLOCK; i += 16) {
            __m512 value = int8_load(wire + 2 + i, scale);
            _mm512_storeu_ps(sum + i, _mm512_add_ps(_mm512_loadu_ps(sum + i), value));
        }
        sum += INT8_BLOCK;
        wire += INT8_BLOCK_BYTES;
    }
    codec_kernels_plain.int8_decode_add(wire, sum, count);
}

const struct codec_kernels codec_kernels_avx512 = {
    .name = "avx512",
    .bf16_encode = bf16_encode,
    .bf16_decode = bf16_decode,
    .bf16_decode_add = bf16_decode_add,
    .int8_encode = int8_encode,
    .int8_decode = int8_decode,
    .int8_decode_add = int8_decode_add,
};
