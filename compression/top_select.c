#include "compression/top_select.h"

#include "base/assert.h"

/* Thresholds are sought near the guess before the whole range is halved. */
#define NEAR_TRIES     8
#define GUESS_SLACK    ((uint32_t)3 << 18)
#define MOST_LISTED(k) (3 * (k) + 64)
#define GUESS_STEP     ((uint32_t)1 << 17)
#define HALF_OCTAVE    ((uint32_t)1 << 22) /* of an f32's bits, roughly */

/* A threshold that at least k reach, and not many more if there is one. */
static uint32_t find_threshold(const struct codec_loops *loops, const float *a, size_t n, size_t k,
                               uint32_t guess) {
    const size_t most = MOST_LISTED(k);
    uint32_t low = 0, high = (uint32_t)INT32_MAX + 1; // all reach low, fewer than k reach high
    for (int tries = 0; high - low > 1; tries++) {
        if (guess <= low || guess >= high || tries >= NEAR_TRIES) guess = low + (high - low) / 2;
        size_t count = loops->count_above(a, n, guess);
        if (count >= k) {
            low = guess;
            if (count <= most) break;
            guess += HALF_OCTAVE;
        } else {
            high = guess;
            guess = guess > HALF_OCTAVE ? guess - HALF_OCTAVE : 0;
        }
    }
    return low;
}

static uint32_t middle(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t low = a < b ? a : b, high = a < b ? b : a;
    if (c < low) return low;
    return c > high ? high : c;
}

uint32_t top_select_key(uint32_t *keys, size_t n, size_t k) {
    size_t from = 0, end = n, rank = k - 1; // of the sought key, in falling order
    ASSERT(k >= 1 && k <= n);
    while (end - from > 1) {
        uint32_t pivot = middle(keys[from], keys[from + (end - from) / 2], keys[end - 1]);
        size_t above = from, equal = from, below = end;
        while (equal < below) {
            uint32_t key = keys[equal];
            if (key > pivot) {
                keys[equal++] = keys[above];
                keys[above++] = key;
            } else if (key < pivot) {
                keys[equal] = keys[--below];
                keys[below] = key;
            } else {
                equal++;
            }
        }
        if (rank >= above && rank < below) return pivot;
        if (rank < above)
            end = above;
        else
            from = below;
    }
    return keys[from];
}

/* How many keys are above `limit`. Both are below 2^31, as lists are. */
static size_t count_over(const uint32_t *keys, size_t n, uint32_t limit) {
    int32_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += (int32_t)keys[i] > (int32_t)limit;
    return (size_t)count;
}

/* A threshold that k keys or more reach, found from `guess`; only equals of the k-th are too many.
 * k or more reach `low`. Without branches that depend on single keys, which would often be foretold
 * wrong. *count: how many reach it. */
static uint32_t close_threshold(const struct codec_loops *loops, const uint32_t *keys, size_t k,
                                uint32_t low, uint32_t guess, size_t *count) {
    const float *values = (const float *)(const void *)keys; // the loops look at bits alone
    uint32_t high = (uint32_t)INT32_MAX + 1, step = GUESS_STEP;
    size_t listed = *count;
    while (*count > k && high - low > 1) {
        if (guess <= low || guess >= high) guess = low + (high - low) / 2;
        size_t reach = loops->count_above(values, listed, guess);
        if (reach < k) {
            high = guess;
            guess = guess > step ? guess - step : 0;
        } else {
            low = guess;
            *count = reach;
            guess += step;
        }
        step *= 2;
    }
    return low;
}

void top_select(const struct codec_loops *loops, const float *a, size_t n, size_t k,
                uint32_t *indices, uint32_t *keys, uint32_t *guess) {
    ASSERT(k >= 1 && k <= n);
    // A little below the guess: one pass does if about as many values are above it as before.
    uint32_t threshold = *guess > GUESS_SLACK ? *guess - GUESS_SLACK : 0;
    size_t listed = threshold > 0 ? loops->list_above(a, n, threshold, indices) : 0;
    if (listed < k || listed > MOST_LISTED(k)) {
        threshold = find_threshold(loops, a, n, k, threshold);
        listed = loops->list_above(a, n, threshold, indices);
    }
    ASSERT(listed >= k);
    for (size_t i = 0; i < listed; i++)
        keys[i] = f32_bits(a[indices[i]]) & F32_MAGNITUDE;
    size_t reach = listed, kept = 0;
    uint32_t last = close_threshold(loops, keys, k, threshold, *guess, &reach);
    *guess = last;

    for (size_t i = 0; reach == k && i < listed; i++) {
        indices[kept] = indices[i];
        kept += (int32_t)keys[i] >= (int32_t)last;
    }
    if (reach == k) return;
    // Several are the k-th: the first of them are taken.
    size_t equals = k - count_over(keys, listed, last);
    for (size_t i = 0; i < listed; i++) {
        bool equal = keys[i] == last && equals > 0;
        indices[kept] = indices[i];
        kept += keys[i] > last || equal;
        equals -= equal;
    }
}
