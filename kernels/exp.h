/* exp.h - e^x in f32, without branches or tables, so that a loop over it is vectorised.
 *
 * x = n ln 2 + r with n whole and |r| <= ln(2) / 2; e^r = 1 + r + r^2 q(r), where q has degree 4
 * and interpolates at Chebyshev nodes (relative error 1.1e-8); the result is scaled by 2^n in two
 * factors, so that subnormal results and those next to FLT_MAX come out right.
 * Error: at most 2 units in the last place where the result is normal, 2 smallest subnormals below
 * (tests/test_kernels.c sweeps the range). -inf gives 0, inf and x > 88.73 give inf, NaN gives NaN.
 */
#ifndef RUBATO_KERNELS_EXP_H
#define RUBATO_KERNELS_EXP_H

#include <stdint.h>
#include <string.h>

static inline float exp_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float exp_f32(float x) {
    /* Adding 1.5 * 2^23 rounds to a whole number and leaves it in the low bits. The comparisons are
     * written so that a NaN passes through. */
    const float shift = 12582912.0F;
    x = x < -104.0F ? -104.0F : x;
    x = x > 89.0F ? 89.0F : x;
    float shifted = x * 1.44269504F + shift;
    float n = shifted - shift;
    /* ln 2 in two parts: n times the first is exact. */
    float r = x - n * 0.693359375F;
    r = r + n * 2.12194440e-4F;
    float q = 0.00139262131F;
    q = q * r + 0.00836320315F;
    q = q * r + 0.0416665561F;
    q = q * r + 0.166665763F;
    q = q * r + 0.5F;
    float power = (q * (r * r) + r) + 1.0F;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    int32_t whole = (int32_t)(bits - UINT32_C(0x4b400000));
    int32_t half = whole >> 1;
    int32_t rest = whole - half;
    float low = exp_from_bits((uint32_t)(half + 127) << 23);
    float high = exp_from_bits((uint32_t)(rest + 127) << 23);
    return power * low * high;
}

#endif
