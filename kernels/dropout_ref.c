/* dropout_ref.c - the oracle: a value at a time, by base/random.h's generator. */
#include "base/random.h"
#include "kernels/dropout.h"

static float factor_of(const struct dropout *dropout, const uint32_t counter[4], int64_t word) {
    uint32_t words[4];
    random_philox(dropout->key, counter, words);
    return words[word] < dropout->threshold ? 0.0F : dropout->scale;
}

float dropout_factor(const struct dropout *dropout, int64_t row, int64_t column) {
    const uint32_t counter[4] = {(uint32_t)row, (uint32_t)(column / 64 * 16 + column % 16), 0, 0};
    return factor_of(dropout, counter, column / 16 % 4);
}

float dropout_factor_score(const struct dropout *dropout, int64_t head, int64_t query,
                           int64_t key) {
    const uint32_t counter[4] = {(uint32_t)(key / 4), (uint32_t)query, (uint32_t)head,
                                 (uint32_t)((uint64_t)head >> 32)};
    return factor_of(dropout, counter, key % 4);
}

void dropout_rows_ref(const struct dropout *dropout, const float *x, float *y, int64_t R,
                      int64_t C) {
    for (int64_t r = 0; r < R; r++) {
        for (int64_t c = 0; c < C; c++)
            y[r * C + c] = x[r * C + c] * dropout_factor(dropout, r, c);
    }
}
