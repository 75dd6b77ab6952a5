/* number_bits.h - the bits of f32 and f16 numbers, and the scale of an int8 block.
 *
 * Internal to compression/, its tests and its bench. Pure.
 */
#ifndef RUBATO_COMPRESSION_NUMBER_BITS_H
#define RUBATO_COMPRESSION_NUMBER_BITS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define F16_INFINITY  ((uint16_t)0x7c00)
#define F32_INFINITY  ((uint32_t)0x7f800000) /* its bits */
#define F32_MAGNITUDE ((uint32_t)0x7fffffff) /* all but the sign */

static inline uint32_t f32_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Exact; a signaling NaN becomes a quiet one. */
static inline float f16_to_f32(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = (uint32_t)(half >> 10) & 31, fraction = half & 0x3ff;

    if (exponent == 0) return f32_from_bits(f32_bits((float)fraction * 0x1p-24f) | sign);
    if (exponent == 31)
        return f32_from_bits(sign | F32_INFINITY |
                             (fraction != 0 ? 0x400000U | fraction << 13 : 0));
    return f32_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

/* The scale of an int8 block as an f16, from the bits of max|a|: max|a| / 127 rounded up. */
static inline uint16_t int8_scale(uint32_t max_bits) {
    float quotient = f32_from_bits(max_bits) / 127.0f;

    if (max_bits == 0) return 0;
    if (!(quotient <= 65504.0f)) return F16_INFINITY; // also a NaN
    if (quotient < 0x1p-14f) {
        // Steps of 2^-24; the scaling is exact. A quotient that underflowed to 0 counts as 1 step.
        float scaled = quotient * 0x1p24f;
        uint32_t steps = (uint32_t)scaled;
        if ((float)steps < scaled || steps == 0) steps++;
        return (uint16_t)steps;
    }
    // Adding all ones below the f16's last bit rounds up; a carry into the exponent is right too.
    return (uint16_t)((f32_bits(quotient) + 0x1fff - (112U << 23)) >> 13);
}

/* Writes an int8 block that has no codes of its own to compute: zeros, or not finite. True then. */
static inline int int8_encode_special(uint16_t scale, size_t count, uint8_t *wire) {
    wire[0] = (uint8_t)scale;
    wire[1] = (uint8_t)(scale >> 8);
    if (scale != 0 && scale != F16_INFINITY) return 0;
    memset(wire + 2, scale == 0 ? 0 : 1, count);
    return 1;
}

#endif
