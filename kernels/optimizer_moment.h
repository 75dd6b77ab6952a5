/* optimizer_moment.h - how an optimizer's moments are stored: f32, bf16 or 8-bit floats in blocks.
 *
 * Bits of an f32 without its sign, read as an integer, grow with the value, and a shift by 20
 * leaves the exponent and 3 bits of the fraction: 8 numbers to an octave, a number being value >>
 * 20. An int8 block keeps the number of its largest magnitude plus one, `top`, and for each value a
 * code: number - (top - codes), so that code 0 is free for zero. Rounding adds random bits below
 * the shift, which makes the stored value right in the mean, also where it crosses an octave.
 * Why floats: codes in even steps of the largest lose the values whose neighbours in the block are
 * 100 times as large, and their weights stall (found, too, by Dettmers et al., arXiv 2110.02861).
 * Layout of a state of N values, each array from a multiple of 64 bytes on:
 *   f32   N f32
 *   bf16  N u16
 *   int8  N u8 codes (m: sign in bit 7, magnitude in bits 0-6), then i32 top for each 256 values
 * Zeroed memory is a moment of zeros. What is not finite stays so, up to which NaN it is.
 * Internal to kernels/optimizer*.c and its tests. Any thread.
 */
#ifndef RUBATO_KERNELS_OPTIMIZER_MOMENT_H
#define RUBATO_KERNELS_OPTIMIZER_MOMENT_H

#include "kernels/optimizer_state.h"

#include <string.h>

#define MOMENT_BLOCK    256        /* values that share a top */
#define MOMENT_CHUNK    1024       /* values that are worked on at a time, in the first cache */
#define MOMENT_INFINITY 0x7f800000 /* bits of an f32 */
#define MOMENT_SHIFT    20

enum moment_role { MOMENT_SIGNED, MOMENT_SQUARE }; /* m; v, which is never negative */

struct moment {
    enum moment_type type;
    enum moment_role role;
    int64_t count;
    void *data; /* [optimizer_moment_bytes], aligned to 64 */
};

static inline size_t optimizer_round64(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

static inline size_t optimizer_moment_bytes(enum moment_type type, int64_t count) {
    size_t values = (size_t)count;
    size_t blocks = (values + MOMENT_BLOCK - 1) / MOMENT_BLOCK;
    if (type == MOMENT_F32) return optimizer_round64(4 * values);
    if (type == MOMENT_BF16) return optimizer_round64(2 * values);
    return optimizer_round64(values) + optimizer_round64(4 * blocks);
}

static inline int32_t *optimizer_moment_tops(const struct moment *moment) {
    return (int32_t *)(void *)((uint8_t *)moment->data + optimizer_round64((size_t)moment->count));
}

/* The finaliser of MurmurHash3 (Appleby, public domain): a bijection that mixes well. */
static inline uint32_t optimizer_moment_mix(uint32_t x) {
    x ^= x >> 16;
    x *= 0x85ebca6bU;
    x ^= x >> 13;
    x *= 0xc2b2ae35U;
    return x ^ x >> 16;
}

static inline uint32_t optimizer_moment_seed(int64_t step) {
    return optimizer_moment_mix((uint32_t)step ^ optimizer_moment_mix((uint32_t)(step >> 32)));
}

/* 32 random bits for a value; the roles take different ones for what decides first. */
static inline uint32_t optimizer_moment_random(uint32_t index, uint32_t seed,
                                               enum moment_role role) {
    uint32_t bits = optimizer_moment_mix(index * 0x9e3779b9U + seed);
    return role == MOMENT_SIGNED ? bits : bits << 16 | bits >> 16;
}

static inline uint32_t optimizer_moment_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float optimizer_moment_value(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float optimizer_moment_from_bf16(uint16_t half) {
    return optimizer_moment_value((uint32_t)half << 16);
}

/* Of a NaN the low bits may be cut off, but not so that an infinity remains. */
static inline uint16_t optimizer_moment_to_bf16(float value, uint32_t random) {
    uint32_t bits = optimizer_moment_bits(value);
    uint32_t magnitude = bits & 0x7fffffffU;
    uint32_t below = magnitude < MOMENT_INFINITY ? random >> 16 : 0;
    uint32_t quiet = magnitude > MOMENT_INFINITY ? 0x400000U : 0;
    return (uint16_t)((bits + below) >> 16 | quiet >> 16);
}

static inline int32_t optimizer_moment_codes(enum moment_role role) {
    return role == MOMENT_SIGNED ? 127 : 255;
}

/* From the largest magnitude's bits in a block. The limit keeps NaN's numbers below the sign. */
static inline int32_t optimizer_moment_top(int32_t largest) {
    int32_t top = (largest >> MOMENT_SHIFT) + 1;
    return top < 0x7ff ? top : 0x7ff;
}

static inline uint8_t optimizer_moment_to_code(float value, int32_t top, enum moment_role role,
                                               uint32_t random) {
    uint32_t bits = optimizer_moment_bits(value);
    int32_t magnitude = (int32_t)(bits & 0x7fffffffU);
    int32_t codes = optimizer_moment_codes(role);
    int32_t least = role == MOMENT_SQUARE && magnitude > 0 ? 1 : 0;
    int32_t below = magnitude < MOMENT_INFINITY ? (int32_t)(random >> 12) : 0;
    int32_t code = ((magnitude + below) >> MOMENT_SHIFT) - (top - codes);
    code = code > codes ? codes : code;
    code = code < least ? least : code;
    code = magnitude == 0 ? 0 : code;
    uint32_t sign = role == MOMENT_SIGNED ? bits >> 31 << 7 : 0;
    return (uint8_t)((uint32_t)code | sign);
}

static inline float optimizer_moment_from_code(uint8_t byte, int32_t top, enum moment_role role) {
    int32_t codes = optimizer_moment_codes(role);
    int32_t code = byte & codes;
    int32_t number = code + (top - codes);
    number = code == 0 || number < 0 ? 0 : number;
    uint32_t sign = role == MOMENT_SIGNED ? (uint32_t)(byte >> 7) << 31 : 0;
    return optimizer_moment_value((uint32_t)number << MOMENT_SHIFT | sign);
}

/* values [count] of the moment's from `first` on; first is a multiple of MOMENT_BLOCK, and so is
 * count unless it reaches the end. Storing is with the random bits of `seed`. */
void optimizer_moment_load(const struct moment *moment, int64_t first, int64_t count,
                           float *values);
void optimizer_moment_store(const struct moment *moment, int64_t first, int64_t count,
                            const float *values, uint32_t seed);

#endif
