/* dropout_cpu.c - rows in parallel, 64 columns at a time. */
#include "base/assert.h"
#include "base/random.h"
#include "kernels/dispatch.h"
#include "kernels/dropout_lanes.h"

#include <string.h>

enum {
    GROUP = DROPOUT_LANES * DROPOUT_WORDS, /* columns of one call of the generator */
    PARALLEL_MIN = 1 << 13 /* values below which waking threads costs more than it saves */
};

struct dropout dropout_make(float p, uint64_t seed, uint64_t step, int64_t layer,
                            enum dropout_site site) {
    ASSERT(p >= 0.0F && p < 1.0F);
    ASSERT(layer >= 0 && layer <= (INT64_C(1) << 29) - 1);
    const uint32_t key[2] = {(uint32_t)seed, RANDOM_DROPOUT};
    const uint32_t counter[4] = {(uint32_t)step, (uint32_t)(seed >> 32), (uint32_t)(step >> 32),
                                 (uint32_t)layer * DROPOUT_SITES + (uint32_t)site};
    uint32_t hash[4];
    random_philox(key, counter, hash);
    struct dropout dropout = {.scale = 1.0F / (1.0F - p)};
    memcpy(dropout.key, hash, sizeof dropout.key);
    dropout.threshold = (uint32_t)((double)p * 0x1p32); /* p has 24 bits: exact, or rounded down */
    return dropout;
}

/* x may be y: a group is read before it is written. */
KERNEL_CLONES static void drop_row(const struct dropout *dropout, const float *x, float *y,
                                   uint32_t row, int64_t C) {
    float factors[DROPOUT_WORDS][DROPOUT_LANES];
    for (int64_t c = 0; c < C; c += GROUP) {
        const uint32_t counter[4] = {row, (uint32_t)(c / DROPOUT_WORDS), 0, 0};
        const float *factor = &factors[0][0];
        int64_t width = C - c < GROUP ? C - c : GROUP;
        dropout_lanes(dropout, counter, factors);
        for (int64_t i = 0; i < width; i++)
            y[c + i] = x[c + i] * factor[i];
    }
}

void dropout_rows(const struct dropout *dropout, const float *x, float *y, int64_t R, int64_t C) {
    ASSERT_OP(R, <=, UINT32_MAX);
#pragma omp parallel for if (R * C >= PARALLEL_MIN)
    for (int64_t r = 0; r < R; r++)
        drop_row(dropout, x + r * C, y + r * C, (uint32_t)r, C);
}
