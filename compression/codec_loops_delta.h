/* codec_loops_delta.h - loops of codec_loops.h: steps of a replica (delta.h). Internal to
 * codec_loops_*.c.
 */
#ifndef RUBATO_COMPRESSION_CODEC_LOOPS_DELTA_H
#define RUBATO_COMPRESSION_CODEC_LOOPS_DELTA_H

#include "compression/codec_loops_half.h"
#include "compression/codec_loops_int4.h"

/* replica + codes * scale, rounded to bf16: the one way in which a replica moves, on both sides. */
LANES_INLINE void delta_move(float *replica, lanes_i codes, float scale) {
    lanes_f value = lanes_load(replica) + lanes_from_int(codes) * scale;
    lanes_store(replica, (lanes_f)((lanes_u)bf16_round(value) << 16));
}

/* 128 values; false, with the replica unchanged, if a difference is not finite. */
LANES_INLINE bool delta_encode_block(const float *weights, float *replica, uint8_t *wire,
                                     bool int4) {
    float difference[LOOP_BLOCK];
    lanes_i max = {0};
    for (size_t i = 0; i < LOOP_BLOCK; i += LANES) {
        lanes_f value = lanes_load(weights + i) - lanes_load(replica + i);
        max = lanes_max(max, lanes_magnitude(value));
        lanes_store(difference + i, value);
    }
    uint16_t half = codec_scale_up((uint32_t)lanes_max_of(max), int4 ? 7.0f : 127.0f);
    float scale = bf16_to_f32(half), inverse = half == 0 ? 0.0f : 1.0f / scale;
    if (half == BF16_INFINITY) return false;
    put_half(wire, half);
    if (int4) {
        for (size_t i = 0; i < LOOP_BLOCK / 2; i += LANES) {
            lanes_i low = lanes_round(lanes_load(difference + i) * inverse);
            lanes_i high = lanes_round(lanes_load(difference + 64 + i) * inverse);
            lanes_store_bytes(wire + 2 + i, (low & 15) | (lanes_i)((lanes_u)high << 4));
            delta_move(replica + i, low, scale);
            delta_move(replica + 64 + i, high, scale);
        }
        return true;
    }
    for (size_t i = 0; i < LOOP_BLOCK; i += LANES) {
        lanes_i code = lanes_round(lanes_load(difference + i) * inverse);
        lanes_store_bytes(wire + 2 + i, code);
        delta_move(replica + i, code, scale);
    }
    return true;
}

LANES_INLINE void delta_decode_block(const uint8_t *wire, float *replica, bool int4) {
    float scale = scale_read(wire);
    if (int4) {
        for (size_t i = 0; i < LOOP_BLOCK / 2; i += LANES) {
            lanes_i byte = lanes_load_bytes(wire + 2 + i);
            lanes_i low = (lanes_i)((lanes_u)byte << 28) >> 28;
            delta_move(replica + i, low, scale);
            delta_move(replica + 64 + i, byte >> 4, scale);
        }
        return;
    }
    for (size_t i = 0; i < LOOP_BLOCK; i += LANES)
        delta_move(replica + i, lanes_load_bytes(wire + 2 + i), scale);
}

LANES_INLINE size_t delta_code_bytes(size_t n, bool int4) {
    return int4 ? least(n, LOOP_BLOCK / 2) : n;
}

LANES_INLINE bool delta_encode_all(const float *weights, float *replica, size_t n, uint8_t *wire,
                                   bool int4) {
    for (; n >= LOOP_BLOCK; n -= LOOP_BLOCK) {
        if (!delta_encode_block(weights, replica, wire, int4)) return false;
        weights += LOOP_BLOCK;
        replica += LOOP_BLOCK;
        wire += 2 + delta_code_bytes(LOOP_BLOCK, int4);
    }
    if (n > 0) {
        float from[LOOP_BLOCK] = {0}, to[LOOP_BLOCK] = {0};
        uint8_t bytes[2 + LOOP_BLOCK];
        memcpy(from, weights, n * sizeof *from);
        memcpy(to, replica, n * sizeof *to);
        if (!delta_encode_block(from, to, bytes, int4)) return false;
        memcpy(replica, to, n * sizeof *to);
        memcpy(wire, bytes, 2 + delta_code_bytes(n, int4));
    }
    return true;
}

LANES_INLINE void delta_decode_all(const uint8_t *wire, size_t n, float *replica, bool int4) {
    for (; n >= LOOP_BLOCK; n -= LOOP_BLOCK) {
        delta_decode_block(wire, replica, int4);
        replica += LOOP_BLOCK;
        wire += 2 + delta_code_bytes(LOOP_BLOCK, int4);
    }
    if (n > 0) {
        float to[LOOP_BLOCK] = {0};
        uint8_t bytes[2 + LOOP_BLOCK] = {0};
        memcpy(to, replica, n * sizeof *to);
        memcpy(bytes, wire, 2 + delta_code_bytes(n, int4));
        delta_decode_block(bytes, to, int4);
        memcpy(replica, to, n * sizeof *to);
    }
}

static inline bool delta_encode(const float *weights, float *replica, size_t n, uint8_t *wire,
                                bool int4) {
    return int4 ? delta_encode_all(weights, replica, n, wire, true)
                : delta_encode_all(weights, replica, n, wire, false);
}

static inline void delta_decode(const uint8_t *wire, size_t n, float *replica, bool int4) {
    if (int4)
        delta_decode_all(wire, n, replica, true);
    else
        delta_decode_all(wire, n, replica, false);
}

#endif
