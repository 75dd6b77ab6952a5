/* codec_loops_fp8.h - loops of codec_loops.h: fp8. Internal to codec_loops_*.c. */
#ifndef RUBATO_COMPRESSION_CODEC_LOOPS_FP8_H
#define RUBATO_COMPRESSION_CODEC_LOOPS_FP8_H

#include "compression/codec_loops_int8.h"

/* The two formats differ in how many fraction bits they drop and in their bias. */
struct fp8_format {
    int drop;         /* 23 - fraction bits */
    int32_t rebase;   /* (127 - bias) << fraction bits */
    int32_t smallest; /* bits of the smallest normal f32 */
    float steps;      /* 1 / the smallest subnormal */
    float most;       /* the largest value */
};

static const struct fp8_format e4m3 = {20, 120 << 3, 0x3c800000, 0x1p9f, 448.0f};
static const struct fp8_format e5m2 = {21, 112 << 2, 0x38800000, 0x1p16f, 57344.0f};

/* *squares += what fp8_widen() would make of the code, squared. */
LANES_INLINE lanes_i fp8_code(lanes_f value, struct fp8_format format, lanes_f *squares) {
    lanes_i magnitude = lanes_magnitude(value);
    lanes_u bits = (lanes_u)magnitude;
    lanes_u up = (1U << (format.drop - 1)) - 1 + (bits >> format.drop & 1);
    lanes_i rounded = (lanes_i)((bits + up) >> format.drop);
    lanes_i small = lanes_round((lanes_f)magnitude * format.steps);
    lanes_i is_small = magnitude < format.smallest;
    lanes_i code = lanes_select(is_small, small, rounded - format.rebase);
    lanes_i small_bits = (lanes_i)(lanes_from_int(small) * (1.0f / format.steps));
    lanes_f decoded = (lanes_f)lanes_select(is_small, small_bits, rounded << format.drop);
    *squares += decoded * decoded;
    return code | (lanes_i)((lanes_u)value >> 24 & 0x80);
}

LANES_INLINE lanes_f fp8_widen(lanes_i code, struct fp8_format format) {
    lanes_i rest = code & 0x7f;
    lanes_i normal = (rest + format.rebase) << format.drop;
    lanes_i small = (lanes_i)(lanes_from_int(rest) * (1.0f / format.steps));
    lanes_i first = lanes_splat_i(1 << (23 - format.drop));
    lanes_i value = lanes_select(rest < first, small, normal);
    return (lanes_f)(value | (lanes_i)((lanes_u)(code & 0x80) << 24));
}

LANES_INLINE void fp8_encode_block(const float *a, uint8_t *wire, struct fp8_format format,
                                   double *square_sum) {
    uint16_t half = codec_scale_up(block_max(a), format.most);
    float scale = bf16_to_f32(half), inverse = half == 0 ? 0.0f : 1.0f / scale;
    struct sums sums = {{{0}}};
    put_half(wire, half);
    for (size_t i = 0; i < LOOP_BLOCK; i += GROUP) {
        for (size_t p = 0; p < SUM_PARTS; p++) {
            size_t place = i + p * LANES;
            lanes_i code = fp8_code(lanes_load(a + place) * inverse, format, &sums.part[p]);
            lanes_store_bytes(wire + 2 + place, code);
        }
    }
    *square_sum += (double)lanes_sum(&sums) * ((double)scale * (double)scale);
}

LANES_INLINE void fp8_encode_all(const float *a, size_t n, uint8_t *wire, struct fp8_format format,
                                 double *square_sum) {
    for (; n >= LOOP_BLOCK; n -= LOOP_BLOCK) {
        fp8_encode_block(a, wire, format, square_sum);
        a += LOOP_BLOCK;
        wire += LOOP_BLOCK + 2;
    }
    if (n > 0) {
        float from[LOOP_BLOCK] = {0};
        uint8_t to[LOOP_BLOCK + 2];
        memcpy(from, a, n * sizeof *a);
        fp8_encode_block(from, to, format, square_sum);
        memcpy(wire, to, n + 2);
    }
}

static inline void fp8_encode(const float *a, size_t n, uint8_t *wire, bool is_e5m2,
                              double *square_sum) {
    if (is_e5m2)
        fp8_encode_all(a, n, wire, e5m2, square_sum);
    else
        fp8_encode_all(a, n, wire, e4m3, square_sum);
}

LANES_INLINE void fp8_decode_all(const uint8_t *wire, size_t n, float *out, bool add,
                                 struct fp8_format format) {
    while (n > 0) {
        float scale = scale_read(wire);
        size_t block = least(n, LOOP_BLOCK), i = 0;
        for (; i + LANES <= block; i += LANES)
            emit(out + i, fp8_widen(lanes_load_bytes(wire + 2 + i), format) * scale, add);
        if (i < block) {
            uint8_t from[LANES] = {0};
            float to[LANES];
            memcpy(from, wire + 2 + i, block - i);
            lanes_store(to, fp8_widen(lanes_load_bytes(from), format) * scale);
            put(out + i, to, block - i, add);
        }
        out += block;
        wire += block + 2;
        n -= block;
    }
}

static inline void fp8_decode(const uint8_t *wire, size_t n, float *out, bool add, bool is_e5m2) {
    if (is_e5m2)
        fp8_decode_all(wire, n, out, add, e5m2);
    else
        fp8_decode_all(wire, n, out, add, e4m3);
}

#endif
