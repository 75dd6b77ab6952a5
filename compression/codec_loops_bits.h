/* codec_loops_bits.h - loops of codec_loops.h: signs, and the search for large values. Internal to
 * codec_loops_*.c.
 */
#ifndef RUBATO_COMPRESSION_CODEC_LOOPS_BITS_H
#define RUBATO_COMPRESSION_CODEC_LOOPS_BITS_H

#include "compression/codec_loops_sums.h"

/* The signs of 16 values; adds their magnitudes to the sums. */
LANES_INLINE uint32_t signs_group(const float *a, struct sums *sums) {
    uint32_t word = 0;
    for (size_t p = 0; p < SUM_PARTS; p++) {
        lanes_f value = lanes_load(a + p * LANES);
        sums->part[p] += (lanes_f)lanes_magnitude(value);
        word |= lanes_signs((lanes_i)value) << (p * LANES);
    }
    return word;
}

static inline float signs_encode(const float *a, size_t n, uint8_t *bits) {
    struct sums sums = {{{0}}};
    size_t i = 0;
    for (; i + GROUP <= n; i += GROUP) {
        uint16_t word = (uint16_t)signs_group(a + i, &sums);
        memcpy(bits + i / 8, &word, sizeof word);
    }
    if (i < n) {
        float from[GROUP] = {0};
        memcpy(from, a + i, (n - i) * sizeof *from);
        uint32_t word = signs_group(from, &sums);
        bits[i / 8] = (uint8_t)word;
        if (n - i > 8) bits[i / 8 + 1] = (uint8_t)(word >> 8);
    }
    return lanes_sum(&sums);
}

LANES_INLINE lanes_f sign_lanes(float mean, uint32_t word, size_t part) {
    return lanes_flip(lanes_splat(mean), word >> (part * LANES));
}

LANES_INLINE void signs_decode_all(const uint8_t *bits, size_t n, float mean, float *out,
                                   bool add) {
    size_t i = 0;
    for (; i + GROUP <= n; i += GROUP) {
        uint16_t word;
        memcpy(&word, bits + i / 8, sizeof word);
        for (size_t p = 0; p < SUM_PARTS; p++)
            emit(out + i + p * LANES, sign_lanes(mean, word, p), add);
    }
    if (i < n) {
        uint32_t word = bits[i / 8];
        float to[GROUP];
        if (n - i > 8) word |= (uint32_t)bits[i / 8 + 1] << 8;
        for (size_t p = 0; p < SUM_PARTS; p++)
            lanes_store(to + p * LANES, sign_lanes(mean, word, p));
        put(out + i, to, n - i, add);
    }
}

static inline void signs_decode(const uint8_t *bits, size_t n, float mean, float *out, bool add) {
    if (add)
        signs_decode_all(bits, n, mean, out, true);
    else
        signs_decode_all(bits, n, mean, out, false);
}

static inline size_t count_above(const float *a, size_t n, uint32_t threshold) {
    lanes_i count = {0}, below = lanes_splat_i((int32_t)threshold - 1);
    size_t i = 0, total = 0;
    for (; i + LANES <= n; i += LANES)
        count -= lanes_magnitude(lanes_load(a + i)) > below;
    total = (size_t)lanes_total(count);
    for (; i < n; i++)
        total += (f32_bits(a[i]) & F32_MAGNITUDE) >= threshold;
    return total;
}

static inline size_t list_above(const float *a, size_t n, uint32_t threshold, uint32_t *indices) {
    lanes_i below = lanes_splat_i((int32_t)threshold - 1);
    size_t i = 0, total = 0;
    for (; i + LANES <= n; i += LANES) {
        uint32_t bits = lanes_above(lanes_magnitude(lanes_load(a + i)), below);
        fetch_chunk(a + i);
        total += lanes_list(indices + total, bits, (uint32_t)i);
    }
    for (; i < n; i++) {
        if ((f32_bits(a[i]) & F32_MAGNITUDE) >= threshold) indices[total++] = (uint32_t)i;
    }
    return total;
}

#endif
