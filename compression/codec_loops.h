/* codec_loops.h - the inner loops of all schemes, one table a level of vector instructions.
 *
 * One body (codec_loops_body.h) is compiled once a level; tests hold every level that the chip has
 * to the same bits, and check the bits against scalar oracles of their own. Wire layouts are in
 * compression/scheme.h.
 * Internal to compression/, its tests and its bench. Pointers may be unaligned; any thread. `n` is
 * any number of values, also 0, unless said otherwise; no byte outside the arrays is touched.
 */
#ifndef RUBATO_COMPRESSION_CODEC_LOOPS_H
#define RUBATO_COMPRESSION_CODEC_LOOPS_H

#include "compression/number_bits.h"
#include "proto/codec_id.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LOOP_BLOCK    ((size_t)128) /* values that share a scale in int4, int8 and fp8 */
#define ONEBIT_BLOCK  ((size_t)512)
#define BF16_INFINITY ((uint16_t)0x7f80)
#define HAD_GROUP     ((size_t)32)
#define LOOP_LIST_PAD ((size_t)16)

enum codec_level { CODEC_PLAIN, CODEC_AVX2, CODEC_AVX512, CODEC_LEVEL_COUNT };

/* Where a call's random numbers lie: key and counter of Philox, and the index of the first value in
 * its block, a multiple of 64. */
struct loop_noise {
    uint32_t key[2];
    uint32_t counter[3]; /* words 1 to 3; word 0 counts the calls */
    size_t first;
};

enum int4_flags { INT4_SR = 1, INT4_HAD = 2, INT4_L2 = 4 };

struct codec_loops {
    const char *name;

    /* a = scale * values + residual (NULL: none). Returns the sum of the squares of scale * values,
     * and raises *max_bits to the largest |a| bits seen. a may be NULL: then only the sums. */
    double (*load)(float *a, const float *values, const float *residual, size_t n, float scale,
                   uint32_t *max_bits);
    /* residual = beta * residual + (1 - beta) * (a - decoded), 0 where that is not finite. Returns
     * the sum of its squares. */
    double (*settle)(float *residual, const float *a, const float *decoded, size_t n, float beta);
    double (*squares)(const float *values, size_t n);
    void (*add)(float *sum, const float *values, size_t n);

    void (*bf16_encode)(const float *a, size_t n, uint8_t *wire);
    void (*bf16_decode)(const uint8_t *wire, size_t n, float *out, bool add);
    /* Of factor * (scale * values), each product rounded; raises *max_bits to the largest
     * |scale * value| bits seen. */
    void (*bf16_scaled)(const float *values, size_t n, float scale, float factor, uint8_t *wire,
                        uint32_t *max_bits);
    void (*fp16_encode)(const float *a, size_t n, uint8_t *wire);
    void (*fp16_decode)(const uint8_t *wire, size_t n, float *out, bool add);

    /* Blocks of 128 values with their scales before the codes; *squares += the sum of the squares
     * of what the blocks decode to, taken from the codes; of whole blocks where int4 is rotated. */
    void (*int8_encode)(const float *a, size_t n, uint8_t *wire, double *squares);
    void (*int8_decode)(const uint8_t *wire, size_t n, float *out, bool add);
    /* flags: enum int4_flags. With INT4_L2 the scale is the block's L2 norm / 7 (QSGD). */
    void (*int4_encode)(const float *a, size_t n, uint8_t *wire, int flags,
                        const struct loop_noise *noise, double *squares);
    void (*int4_decode)(const uint8_t *wire, size_t n, float *out, bool add, bool had);
    void (*fp8_encode)(const float *a, size_t n, uint8_t *wire, bool e5m2, double *squares);
    void (*fp8_decode)(const uint8_t *wire, size_t n, float *out, bool add, bool e5m2);

    /* One step of a replica: see delta.h. Encoding returns false, with blocks of 128 before it
     * done, at a difference that is not finite. */
    bool (*delta_encode)(const float *weights, float *replica, size_t n, uint8_t *wire, bool int4);
    void (*delta_decode)(const uint8_t *wire, size_t n, float *replica, bool int4);

    /* One block of at most 512: the signs to bits [ceil(n / 8)]; returns the sum of |a|. */
    float (*signs_encode)(const float *a, size_t n, uint8_t *bits);
    void (*signs_decode)(const uint8_t *bits, size_t n, float mean, float *out, bool add);

    /* How many |a| have bits >= threshold (1 .. 2^31 - 1), and their indices, rising; the list has
     * LOOP_LIST_PAD places more than values. */
    size_t (*count_above)(const float *a, size_t n, uint32_t threshold);
    size_t (*list_above)(const float *a, size_t n, uint32_t threshold, uint32_t *indices);

    /* 32 numbers of Philox calls first .. first + 7: see codec_noise in scheme.h. */
    void (*noise)(const struct loop_noise *noise, uint32_t out[32]);

    float (*dot)(const float *x, const float *y, size_t n);
    void (*axpy)(float *y, float scale, const float *x, size_t n);
};

extern const struct codec_loops codec_loops_plain;
extern const struct codec_loops codec_loops_avx2;
extern const struct codec_loops codec_loops_avx512;

/* NULL when this chip or this build does not have the level. */
const struct codec_loops *codec_loops_level(enum codec_level level);

/* The highest level that this chip has. */
const struct codec_loops *codec_loops_best(void);

/* A scale as the upper half of an f32, from the bits of a magnitude: magnitude / levels rounded up,
 * so that magnitude / scale <= levels; 2^-100 at least unless the magnitude is 0. A magnitude that
 * is not finite gives infinity. */
static inline uint16_t codec_scale_up(uint32_t magnitude_bits, float levels) {
    float quotient = f32_from_bits(magnitude_bits) / levels;
    if (magnitude_bits == 0) return 0;
    if (magnitude_bits >= F32_INFINITY) return BF16_INFINITY;
    if (quotient < 0x1p-100f) return (uint16_t)((127 - 100) << 7);
    return (uint16_t)((f32_bits(quotient) + 0xffff) >> 16);
}

static inline float bf16_to_f32(uint16_t half) {
    return f32_from_bits((uint32_t)half << 16);
}

static inline uint16_t bf16_from_float(float value) {
    uint32_t bits = f32_bits(value);
    if ((bits & F32_MAGNITUDE) > F32_INFINITY) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
