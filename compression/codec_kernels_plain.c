/* The portable kernels, which the vector versions must equal bit for bit, and the choice of a
 * level at run time.
 */
#include "compression/codec_kernels.h"

#include <math.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire is little-endian");

static uint16_t bf16_from_f32(float value) {
    uint32_t bits = f32_bits(value);
    if ((bits & F32_MAGNITUDE) > F32_INFINITY) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void bf16_encode(const float *values, size_t count, uint8_t *wire) {
    for (size_t i = 0; i < count; i++) {
        uint16_t half = bf16_from_f32(values[i]);
        memcpy(wire + 2 * i, &half, sizeof half);
    }
}

static float bf16_load(const uint8_t *wire) {
    uint16_t half;
    memcpy(&half, wire, sizeof half);
    return f32_from_bits((uint32_t)half << 16);
}

static void bf16_decode(const uint8_t *wire, float *values, size_t count) {
    for (size_t i = 0; i < count; i++)
        values[i] = bf16_load(wire + 2 * i);
}

static void bf16_decode_add(const uint8_t *wire, float *sum, size_t count) {
    for (size_t i = 0; i < count; i++)
        sum[i] += bf16_load(wire + 2 * i);
}

static void int8_encode_block(const float *values, size_t count, uint8_t *wire) {
    uint32_t max_bits = 0;
    for (size_t i = 0; i < count; i++) {
        // As integers, magnitudes order as the numbers do, with infinity and then NaN above all.
        uint32_t bits = f32_bits(values[i]) & F32_MAGNITUDE;
        if (bits > max_bits) max_bits = bits;
    }
    uint16_t half = int8_scale(max_bits);
    if (int8_encode_special(half, count, wire)) return;

    // No clamp: s >= max|a| / 127 but for half a unit in the last place, so the quotient rounds to
    // 127 at most. Nor does rounding the quotient to f32 make a tie of what was none: the f32 next
    // to (k + 1/2) s lies further from it, in units of s, than half a unit of the quotient.
    float scale = f16_to_f32(half);
    for (size_t i = 0; i < count; i++)
        wire[2 + i] = (uint8_t)(int8_t)lrintf(values[i] / scale);
}

static void int8_encode(const float *values, size_t count, uint8_t *wire) {
    for (; count > INT8_BLOCK; count -= INT8_BLOCK) {
        int8_encode_block(values, INT8_BLOCK, wire);
        values += INT8_BLOCK;
        wire += INT8_BLOCK_BYTES;
    }
    if (count > 0) int8_encode_block(values, count, wire);
}

static void int8_decode(const uint8_t *wire, float *values, size_t count) {
    while (count > 0) {
        size_t block = count < INT8_BLOCK ? count : INT8_BLOCK;
        float scale = int8_read_scale(wire);
        for (size_t i = 0; i < block; i++)
            values[i] = (float)(int8_t)wire[2 + i] * scale;
        values += block;
        wire += block + 2;
        count -= block;
    }
}

static void int8_decode_add(const uint8_t *wire, float *sum, size_t count) {
    while (count > 0) {
        size_t block = count < INT8_BLOCK ? count : INT8_BLOCK;
        float scale = int8_read_scale(wire);
        for (size_t i = 0; i < block; i++)
            sum[i] += (float)(int8_t)wire[2 + i] * scale;
        sum += block;
        wire += block + 2;
        count -= block;
    }
}

const struct codec_kernels codec_kernels_plain = {
    .name = "plain",
    .bf16_encode = bf16_encode,
    .bf16_decode = bf16_decode,
    .bf16_decode_add = bf16_decode_add,
    .int8_encode = int8_encode,
    .int8_decode = int8_decode,
    .int8_decode_add = int8_decode_add,
};

const struct codec_kernels *codec_kernels_level(enum codec_level level) {
    if (level == CODEC_PLAIN) return &codec_kernels_plain;
#ifdef RUBATO_CODEC_X86
    if (level == CODEC_AVX2 && __builtin_cpu_supports("avx2")) return &codec_kernels_avx2;
    if (level == CODEC_AVX512 && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw"))
        return &codec_kernels_avx512;
#endif
    return NULL;
}

const struct codec_kernels *codec_kernels_best(void) {
    const struct codec_kernels *kernels = codec_kernels_level(CODEC_AVX512);
    if (kernels == NULL) kernels = codec_kernels_level(CODEC_AVX2);
    return kernels != NULL ? kernels : &codec_kernels_plain;
}
