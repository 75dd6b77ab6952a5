/* dtype.h - safetensors' number types: their names, their sizes, and f32 from and to some of them.
 *
 * To f32 every finite value of f16 and bf16 is exact, and so are infinities; from f32 rounding is
 * to nearest, ties to even (IEEE 754-2019), through subnormals to zero and beyond the largest value
 * to infinity. A NaN stays one. Source of the names: safetensors/src/tensor.rs, enum Dtype. Pure;
 * any thread.
 */
#ifndef RUBATO_WORKER_DTYPE_H
#define RUBATO_WORKER_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(name, bits of a value) */
#define DTYPE_MAP(X)                                                                               \
    X(F32, 32)                                                                                     \
    X(BF16, 16)                                                                                    \
    X(F16, 16)                                                                                     \
    X(F64, 64)                                                                                     \
    X(BOOL, 8)                                                                                     \
    X(F4, 4)                                                                                       \
    X(F6_E2M3, 6)                                                                                  \
    X(F6_E3M2, 6)                                                                                  \
    X(U8, 8)                                                                                       \
    X(I8, 8)                                                                                       \
    X(F8_E5M2, 8)                                                                                  \
    X(F8_E4M3, 8)                                                                                  \
    X(F8_E8M0, 8)                                                                                  \
    X(F8_E4M3FNUZ, 8)                                                                              \
    X(F8_E5M2FNUZ, 8)                                                                              \
    X(I16, 16)                                                                                     \
    X(U16, 16)                                                                                     \
    X(I32, 32)                                                                                     \
    X(U32, 32)                                                                                     \
    X(I64, 64)                                                                                     \
    X(U64, 64)                                                                                     \
    X(C64, 64)

enum dtype {
#define DTYPE_ENUM(name, bits) DTYPE_##name,
    DTYPE_MAP(DTYPE_ENUM)
#undef DTYPE_ENUM
};

/* "F32", ... */
const char *dtype_name(enum dtype dtype);

/* Bits of one value. */
uint32_t dtype_bits(enum dtype dtype);

/* False for a name that is none of them. */
bool dtype_find(const char *name, enum dtype *dtype);

/* True for F32, BF16 and F16: what the two functions below take. */
bool dtype_is_weight(enum dtype dtype);

/* raw [count] of dtype, little-endian, any alignment -> values [count]. */
void dtype_decode(enum dtype dtype, const uint8_t *raw, size_t count, float *values);

/* values [count] -> raw [count] of dtype. Returns how many finite values have become infinite. */
size_t dtype_encode(enum dtype dtype, const float *values, size_t count, uint8_t *raw);

#endif
