#include "worker/dtype.h"

#include "base/assert.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are read as they lie");

#define F32_INFINITY   0x7f800000u
#define F16_NORMAL_MIN 0x38800000u /* 2^-14 as f32 */

static const struct {
    const char *name;
    uint32_t bits;
} dtypes[] = {
#define DTYPE_ROW(name, bits) [DTYPE_##name] = {#name, bits},
    DTYPE_MAP(DTYPE_ROW)
#undef DTYPE_ROW
};

const char *dtype_name(enum dtype dtype) {
    return dtypes[dtype].name;
}

uint32_t dtype_bits(enum dtype dtype) {
    return dtypes[dtype].bits;
}

bool dtype_find(const char *name, enum dtype *dtype) {
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(dtypes[i].name, name) != 0) continue;
        *dtype = (enum dtype)i;
        return true;
    }
    return false;
}

bool dtype_is_weight(enum dtype dtype) {
    return dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16;
}

static uint32_t f16_to_f32(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00) return sign | F32_INFINITY | (rest & 0x3ff) << 13;
    if (rest >= 0x400) return sign | ((rest << 13) + ((127 - 15) << 23));
    /* Zero or subnormal: rest * 2^-24, which f32 holds exactly. */
    float value = (float)rest * 0x1p-24F;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return sign | bits;
}

static uint16_t f32_to_f16(uint32_t bits) {
    uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff, half;
    if (rest > F32_INFINITY) {
        half = 0x7e00 | (rest >> 13 & 0x3ff);
    } else if (rest >= F16_NORMAL_MIN) {
        /* Half of a unit in the last place, less one where that is even. */
        half = (rest - ((127 - 15) << 23) + 0xfff + (rest >> 13 & 1)) >> 13;
        if (half > 0x7c00) half = 0x7c00;
    } else {
        /* At 1/2 the last place of an f32 is 2^-24, the unit of f16's subnormals. */
        float value;
        memcpy(&value, &rest, sizeof value);
        value += 0.5F;
        memcpy(&half, &value, sizeof half);
        half -= 0x3f000000;
    }
    return (uint16_t)(sign | half);
}

static uint16_t f32_to_bf16(uint32_t bits) {
    if ((bits & 0x7fffffff) > F32_INFINITY) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void dtype_decode(enum dtype dtype, const uint8_t *raw, size_t count, float *values) {
    ASSERT(dtype_is_weight(dtype));
    if (dtype == DTYPE_F32) {
        memcpy(values, raw, count * sizeof *values);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, raw + 2 * i, sizeof half);
        uint32_t bits = dtype == DTYPE_F16 ? f16_to_f32(half) : (uint32_t)half << 16;
        memcpy(values + i, &bits, sizeof bits);
    }
}

size_t dtype_encode(enum dtype dtype, const float *values, size_t count, uint8_t *raw) {
    ASSERT(dtype_is_weight(dtype));
    size_t overflows = 0;
    if (dtype == DTYPE_F32) {
        memcpy(raw, values, count * sizeof *values);
        return 0;
    }
    uint16_t infinity = dtype == DTYPE_F16 ? 0x7c00 : 0x7f80;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        uint16_t half = dtype == DTYPE_F16 ? f32_to_f16(bits) : f32_to_bf16(bits);
        overflows += (half & 0x7fff) == infinity && (bits & 0x7fffffff) != F32_INFINITY;
        memcpy(raw + 2 * i, &half, sizeof half);
    }
    return overflows;
}
