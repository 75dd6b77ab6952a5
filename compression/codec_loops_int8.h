/* codec_loops_int8.h - loops of codec_loops.h: int8, and what all blocks of 128 share. Internal to
 * codec_loops_*.c.
 */
#ifndef RUBATO_COMPRESSION_CODEC_LOOPS_INT8_H
#define RUBATO_COMPRESSION_CODEC_LOOPS_INT8_H

#include "compression/codec_loops_sums.h"

LANES_INLINE uint32_t block_max(const float *a) {
    lanes_i max = {0};
    for (size_t i = 0; i < LOOP_BLOCK; i += LANES)
        max = lanes_max(max, lanes_magnitude(lanes_load(a + i)));
    return (uint32_t)lanes_max_of(max);
}

LANES_INLINE void put_half(uint8_t *wire, uint16_t half) {
    memcpy(wire, &half, sizeof half);
}

LANES_INLINE float scale_read(const uint8_t *wire) {
    uint16_t half;
    memcpy(&half, wire, sizeof half);
    return bf16_to_f32(half);
}

static inline void int8_encode_block(const float *a, uint8_t *wire, double *square_sum) {
    uint16_t half = int8_scale(block_max(a));
    float scale = f16_to_f32(half), inverse = 1.0f / scale;
    lanes_i sum = {0};

    if (int8_encode_special(half, LOOP_BLOCK, wire)) {
        *square_sum += half == 0 ? 0.0 : (double)f32_from_bits(F32_INFINITY);
        return;
    }
    for (size_t i = 0; i < LOOP_BLOCK; i += (size_t)2 * LANES) {
        lanes_i low = lanes_round(lanes_load(a + i) * inverse);
        lanes_i high = lanes_round(lanes_load(a + i + LANES) * inverse);
        sum += lanes_squares(low, high);
        lanes_store_bytes(wire + 2 + i, low);
        lanes_store_bytes(wire + 2 + i + LANES, high);
    }
    *square_sum += (double)lanes_total(sum) * ((double)scale * (double)scale);
}

static inline void int8_encode(const float *a, size_t n, uint8_t *wire, double *square_sum) {
    for (; n >= LOOP_BLOCK; n -= LOOP_BLOCK) {
        int8_encode_block(a, wire, square_sum);
        a += LOOP_BLOCK;
        wire += LOOP_BLOCK + 2;
    }
    if (n > 0) {
        float from[LOOP_BLOCK] = {0};
        uint8_t to[LOOP_BLOCK + 2];
        memcpy(from, a, n * sizeof *a);
        int8_encode_block(from, to, square_sum);
        memcpy(wire, to, n + 2);
    }
}

LANES_INLINE void int8_decode_all(const uint8_t *wire, size_t n, float *out, bool add) {
    while (n > 0) {
        float scale = f16_to_f32((uint16_t)(wire[0] | wire[1] << 8));
        size_t block = least(n, LOOP_BLOCK), i = 0;
        for (; i + LANES <= block; i += LANES)
            emit(out + i, lanes_from_int(lanes_load_bytes(wire + 2 + i)) * scale, add);
        for (; i < block; i++) {
            float value = (float)(int8_t)wire[2 + i] * scale;
            out[i] = add ? out[i] + value : value;
        }
        out += block;
        wire += block + 2;
        n -= block;
    }
}

static inline void int8_decode(const uint8_t *wire, size_t n, float *out, bool add) {
    if (add)
        int8_decode_all(wire, n, out, true);
    else
        int8_decode_all(wire, n, out, false);
}

#endif
