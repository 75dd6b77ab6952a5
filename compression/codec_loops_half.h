/* codec_loops_half.h - loops of codec_loops.h: bf16 and fp16. Internal to codec_loops_*.c. */
#ifndef RUBATO_COMPRESSION_CODEC_LOOPS_HALF_H
#define RUBATO_COMPRESSION_CODEC_LOOPS_HALF_H

#include "compression/codec_loops_sums.h"

LANES_INLINE lanes_i bf16_round(lanes_f value) {
    lanes_u bits = (lanes_u)value;
    lanes_i nan = lanes_magnitude(value) > (int32_t)F32_INFINITY;
    lanes_i rounded = (lanes_i)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    return lanes_select(nan, (lanes_i)(bits >> 16 | 0x40), rounded);
}

/* Round to nearest, ties to even. A normal result: the exponent is moved by 112 and 13 bits are
 * rounded off; a smaller one is counted in steps of 2^-24 in the low bits of a sum with 0.5. */
LANES_INLINE lanes_i fp16_round(lanes_f value) {
    lanes_i magnitude = lanes_magnitude(value);
    lanes_u bits = (lanes_u)magnitude;
    lanes_i sign = (lanes_i)((lanes_u)value >> 16 & 0x8000);
    lanes_i normal = (lanes_i)((bits - (112U << 23) + 0xfff + (bits >> 13 & 1)) >> 13);
    lanes_i small = (lanes_i)((lanes_u)((lanes_f)magnitude + 0.5f) - 0x3f000000U);
    lanes_i half = lanes_select(magnitude < 0x38800000, small, normal);
    half = lanes_select(magnitude >= 0x477ff000, lanes_splat_i(0x7c00), half);
    half = lanes_select(magnitude > (int32_t)F32_INFINITY, lanes_splat_i(0x7e00), half);
    return half | sign;
}

LANES_INLINE lanes_f fp16_widen(lanes_i half) {
    lanes_i sign = (lanes_i)((lanes_u)(half & 0x8000) << 16), rest = half & 0x7fff;
    lanes_i normal = (rest << 13) + (112 << 23);
    lanes_i special = (rest << 13) | (int32_t)F32_INFINITY;
    lanes_i small = (lanes_i)(lanes_from_int(rest) * 0x1p-24f);
    normal = lanes_select(rest >= 0x7c00, special, normal);
    return (lanes_f)(lanes_select(rest < 0x400, small, normal) | sign);
}

LANES_INLINE void halves_encode(const float *a, size_t n, uint8_t *wire, bool fp16) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes_f value = lanes_load(a + i);
        lanes_store_halves(wire + 2 * i, fp16 ? fp16_round(value) : bf16_round(value));
    }
    if (i < n) {
        float from[LANES] = {0};
        uint8_t to[2 * LANES];
        memcpy(from, a + i, (n - i) * sizeof *from);
        lanes_store_halves(to, fp16 ? fp16_round(lanes_load(from)) : bf16_round(lanes_load(from)));
        memcpy(wire + 2 * i, to, 2 * (n - i));
    }
}

LANES_INLINE lanes_f half_widen(const uint8_t *wire, bool fp16) {
    lanes_i half = lanes_load_halves(wire);
    return fp16 ? fp16_widen(half) : (lanes_f)((lanes_u)half << 16);
}

LANES_INLINE void halves_decode(const uint8_t *wire, size_t n, float *out, bool add, bool fp16) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        emit(out + i, half_widen(wire + 2 * i, fp16), add);
    if (i < n) {
        uint8_t from[2 * LANES] = {0};
        float to[LANES];
        memcpy(from, wire + 2 * i, 2 * (n - i));
        lanes_store(to, half_widen(from, fp16));
        put(out + i, to, n - i, add);
    }
}

static inline void bf16_encode(const float *a, size_t n, uint8_t *wire) {
    halves_encode(a, n, wire, false);
}

LANES_INLINE void scaled_lanes(const float *values, float scale, float factor, uint8_t *wire,
                               lanes_i *max) {
    lanes_f value = lanes_load(values) * scale;
    *max = lanes_max(*max, lanes_magnitude(value));
    lanes_store_halves(wire, bf16_round(value * factor));
}

static inline void bf16_scaled(const float *values, size_t n, float scale, float factor,
                               uint8_t *wire, uint32_t *max_bits) {
    lanes_i max = lanes_splat_i((int32_t)*max_bits);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        scaled_lanes(values + i, scale, factor, wire + 2 * i, &max);
    if (i < n) {
        float from[LANES] = {0};
        uint8_t to[2 * LANES];
        memcpy(from, values + i, (n - i) * sizeof *from);
        scaled_lanes(from, scale, factor, to, &max);
        memcpy(wire + 2 * i, to, 2 * (n - i));
    }
    *max_bits = (uint32_t)lanes_max_of(max);
}

static inline void fp16_encode(const float *a, size_t n, uint8_t *wire) {
    halves_encode(a, n, wire, true);
}

static inline void bf16_decode(const uint8_t *wire, size_t n, float *out, bool add) {
    if (add)
        halves_decode(wire, n, out, true, false);
    else
        halves_decode(wire, n, out, false, false);
}

static inline void fp16_decode(const uint8_t *wire, size_t n, float *out, bool add) {
    if (add)
        halves_decode(wire, n, out, true, true);
    else
        halves_decode(wire, n, out, false, true);
}

#endif
