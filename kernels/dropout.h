/* dropout.h - inverted dropout (Srivastava et al., JMLR 15, 2014) without stored masks.
 *
 * A value is dropped (becomes 0) with probability p, and multiplied by 1 / (1 - p) otherwise. What
 * is dropped is a pure function of (seed, step, layer, site, the value's place): a counter-based
 * generator (base/random.h) is asked again in the backward pass instead of keeping a mask. (seed,
 * step, layer, site) are hashed by one Philox block to a key; a value's place is the counter:
 *   value (r, c) of rows:        word (c / 16) % 4 of the block {r, c / 64 * 16 + c % 16, 0, 0}
 *   query t and key s of head h: word s % 4 of the block {s / 4, t, h low, h high}
 * and the value is dropped if the word is less than p 2^32. With these places, vectors of values
 * are made from whole vectors of blocks.
 * All arrays are f32 on the host and the caller's. The bits do not depend on the thread count. Any
 * thread may call.
 */
#ifndef RUBATO_KERNELS_DROPOUT_H
#define RUBATO_KERNELS_DROPOUT_H

#include <stdint.h>

enum dropout_site {
    DROPOUT_EMBEDDING,
    DROPOUT_ATTENTION, /* its probabilities */
    DROPOUT_PROJECTION,
    DROPOUT_MLP,
    DROPOUT_SITES
};

struct dropout {
    uint32_t key[2];
    uint32_t threshold; /* words below it drop their value */
    float scale;        /* of the others: 1 / (1 - p) */
};

/* p in [0, 1); layer in 0 .. 2^29-1. */
struct dropout dropout_make(float p, uint64_t seed, uint64_t step, int64_t layer,
                            enum dropout_site site);

/* y [R, C] = x [R, C] dropped; y may be x. Its own derivative: dy -> dx likewise. R < 2^32. */
void dropout_rows(const struct dropout *dropout, const float *x, float *y, int64_t R, int64_t C);
void dropout_rows_ref(const struct dropout *dropout, const float *x, float *y, int64_t R,
                      int64_t C);

/* The oracle: what the value is multiplied by, 0 or scale. Of value (row, column), and of the
 * probability with which query `query` of head `head` (b * heads + h) looks at key `key`. */
float dropout_factor(const struct dropout *dropout, int64_t row, int64_t column);
float dropout_factor_score(const struct dropout *dropout, int64_t head, int64_t query, int64_t key);

#endif
