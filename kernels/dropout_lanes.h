/* dropout_lanes.h - sixteen Philox blocks side by side, for loops that are compiled with
 * KERNEL_CLONES. Internal to kernels/; random_philox() is the oracle.
 *
 * The lanes differ in the counter's second word alone, by 1. The rounds are unrolled within the
 * loop over lanes, so that vectors of lanes stay in registers: four times as fast as the other way
 * round.
 */
#ifndef RUBATO_KERNELS_DROPOUT_LANES_H
#define RUBATO_KERNELS_DROPOUT_LANES_H

#include "kernels/dropout.h"

#define DROPOUT_LANES 16
#define DROPOUT_WORDS 4

#define DROPOUT_INLINE static inline __attribute__((always_inline))

/* factors [word][lane]: 0 or scale, of the blocks {counter[0], counter[1] + lane, counter[2],
 * counter[3]}. */
DROPOUT_INLINE void dropout_lanes(const struct dropout *dropout, const uint32_t counter[4],
                                  float factors[DROPOUT_WORDS][DROPOUT_LANES]) {
    const uint32_t key0 = dropout->key[0], key1 = dropout->key[1];
    const uint32_t threshold = dropout->threshold;
    const float scale = dropout->scale;
#pragma GCC ivdep
    for (uint32_t l = 0; l < DROPOUT_LANES; l++) {
        /* 32-bit words in 64 bits: what the multiplication wants and leaves. */
        uint64_t c0 = counter[0], c1 = counter[1] + l, c2 = counter[2], c3 = counter[3];
        uint32_t k0 = key0, k1 = key1;
#pragma GCC unroll 10
        for (int round = 0; round < 10; round++) {
            uint64_t p0 = UINT64_C(0xd2511f53) * (uint32_t)c0;
            uint64_t p1 = UINT64_C(0xcd9e8d57) * (uint32_t)c2;
            c0 = (p1 >> 32) ^ c1 ^ k0;
            c2 = (p0 >> 32) ^ c3 ^ k1;
            c1 = (uint32_t)p1;
            c3 = (uint32_t)p0;
            k0 += UINT32_C(0x9e3779b9);
            k1 += UINT32_C(0xbb67ae85);
        }
        factors[0][l] = (uint32_t)c0 < threshold ? 0.0F : scale;
        factors[1][l] = (uint32_t)c1 < threshold ? 0.0F : scale;
        factors[2][l] = (uint32_t)c2 < threshold ? 0.0F : scale;
        factors[3][l] = (uint32_t)c3 < threshold ? 0.0F : scale;
    }
}

#endif
