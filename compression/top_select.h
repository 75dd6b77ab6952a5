/* top_select.h - the k values of largest magnitude, exactly: of equals the first ones.
 *
 * A threshold is found by counting passes (codec_loops.h), from a guess that only costs or saves
 * time: what is above it is listed, and an exact selection runs over the short list. As integers,
 * the bits of magnitudes order as the numbers do, with infinity and then NaN above all.
 */
#ifndef RUBATO_COMPRESSION_TOP_SELECT_H
#define RUBATO_COMPRESSION_TOP_SELECT_H

#include "compression/codec_loops.h"

/* a [n] -> indices [k], rising; 1 <= k <= n < 2^32. indices has n + LOOP_LIST_PAD places, keys n.
 * *guess: bits of a magnitude near the k-th largest, 0 for none; comes back as one, for the next
 * call. Any thread. */
void top_select(const struct codec_loops *loops, const float *a, size_t n, size_t k,
                uint32_t *indices, uint32_t *keys, uint32_t *guess);

/* The k-th largest of keys [n], which are left in another order; 1 <= k <= n. */
uint32_t top_select_key(uint32_t *keys, size_t n, size_t k);

#endif
