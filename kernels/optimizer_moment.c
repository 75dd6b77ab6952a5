/* optimizer_moment.c - blocks of moments to f32 and back, vectorised: see optimizer_moment.h.
 *
 * Each loop is written once with the role as a constant, so that the compiler drops what the other
 * role needs.
 */
#include "kernels/optimizer_moment.h"

#include "base/assert.h"
#include "kernels/dispatch.h"

KERNEL_CLONES static void bf16_load(const uint16_t *restrict halves, float *restrict values,
                                    int64_t count) {
    for (int64_t i = 0; i < count; i++)
        values[i] = optimizer_moment_from_bf16(halves[i]);
}

KERNEL_CLONES static void bf16_store(uint16_t *restrict halves, const float *restrict values,
                                     int64_t count, uint32_t index, uint32_t seed) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t random = optimizer_moment_random(index + (uint32_t)i, seed, MOMENT_SIGNED);
        halves[i] = optimizer_moment_to_bf16(values[i], random);
    }
}

KERNEL_CLONES static void bf16_store_square(uint16_t *restrict halves, const float *restrict values,
                                            int64_t count, uint32_t index, uint32_t seed) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t random = optimizer_moment_random(index + (uint32_t)i, seed, MOMENT_SQUARE);
        halves[i] = optimizer_moment_to_bf16(values[i], random);
    }
}

KERNEL_CLONES static void signed_load(const uint8_t *restrict codes, int32_t top,
                                      float *restrict values, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        values[i] = optimizer_moment_from_code(codes[i], top, MOMENT_SIGNED);
}

KERNEL_CLONES static void square_load(const uint8_t *restrict codes, int32_t top,
                                      float *restrict values, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        values[i] = optimizer_moment_from_code(codes[i], top, MOMENT_SQUARE);
}

/* Returns the block's top. */
KERNEL_CLONES static int32_t signed_store(uint8_t *restrict codes, const float *restrict values,
                                          int64_t count, uint32_t index, uint32_t seed) {
    int32_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t magnitude = (int32_t)(optimizer_moment_bits(values[i]) & 0x7fffffffU);
        largest = magnitude > largest ? magnitude : largest;
    }
    int32_t top = optimizer_moment_top(largest);
    for (int64_t i = 0; i < count; i++) {
        uint32_t random = optimizer_moment_random(index + (uint32_t)i, seed, MOMENT_SIGNED);
        codes[i] = optimizer_moment_to_code(values[i], top, MOMENT_SIGNED, random);
    }
    return top;
}

KERNEL_CLONES static int32_t square_store(uint8_t *restrict codes, const float *restrict values,
                                          int64_t count, uint32_t index, uint32_t seed) {
    int32_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t magnitude = (int32_t)(optimizer_moment_bits(values[i]) & 0x7fffffffU);
        largest = magnitude > largest ? magnitude : largest;
    }
    int32_t top = optimizer_moment_top(largest);
    for (int64_t i = 0; i < count; i++) {
        uint32_t random = optimizer_moment_random(index + (uint32_t)i, seed, MOMENT_SQUARE);
        codes[i] = optimizer_moment_to_code(values[i], top, MOMENT_SQUARE, random);
    }
    return top;
}

static int64_t block_count(int64_t at, int64_t count) {
    return count - at < MOMENT_BLOCK ? count - at : MOMENT_BLOCK;
}

static void int8_load(const struct moment *moment, int64_t first, int64_t count, float *values) {
    const uint8_t *codes = (const uint8_t *)moment->data + first;
    const int32_t *tops = optimizer_moment_tops(moment) + first / MOMENT_BLOCK;
    for (int64_t at = 0; at < count; at += MOMENT_BLOCK) {
        int64_t block = block_count(at, count);
        if (moment->role == MOMENT_SIGNED)
            signed_load(codes + at, tops[at / MOMENT_BLOCK], values + at, block);
        else
            square_load(codes + at, tops[at / MOMENT_BLOCK], values + at, block);
    }
}

static void int8_store(const struct moment *moment, int64_t first, int64_t count,
                       const float *values, uint32_t seed) {
    uint8_t *codes = (uint8_t *)moment->data + first;
    int32_t *tops = optimizer_moment_tops(moment) + first / MOMENT_BLOCK;
    for (int64_t at = 0; at < count; at += MOMENT_BLOCK) {
        int64_t block = block_count(at, count);
        uint32_t index = (uint32_t)(first + at);
        tops[at / MOMENT_BLOCK] = moment->role == MOMENT_SIGNED
                                      ? signed_store(codes + at, values + at, block, index, seed)
                                      : square_store(codes + at, values + at, block, index, seed);
    }
}

void optimizer_moment_load(const struct moment *moment, int64_t first, int64_t count,
                           float *values) {
    ASSERT_OP(first % MOMENT_BLOCK, ==, 0);
    if (moment->type == MOMENT_F32)
        memcpy(values, (const float *)moment->data + first, (size_t)count * sizeof *values);
    else if (moment->type == MOMENT_BF16)
        bf16_load((const uint16_t *)moment->data + first, values, count);
    else
        int8_load(moment, first, count, values);
}

void optimizer_moment_store(const struct moment *moment, int64_t first, int64_t count,
                            const float *values, uint32_t seed) {
    ASSERT_OP(first % MOMENT_BLOCK, ==, 0);
    if (moment->type == MOMENT_F32)
        memcpy((float *)moment->data + first, values, (size_t)count * sizeof *values);
    else if (moment->type == MOMENT_INT8)
        int8_store(moment, first, count, values, seed);
    else if (moment->role == MOMENT_SIGNED)
        bf16_store((uint16_t *)moment->data + first, values, count, (uint32_t)first, seed);
    else
        bf16_store_square((uint16_t *)moment->data + first, values, count, (uint32_t)first, seed);
}
