#include "compression/top_select.h"

#include "base/assert.h"

/* Thresholds are sought near the guess before the whole range is halved. */
#define NEAR_TRIES     8
#define GUESS_SLACK    ((uint32_t)1 << 19)
#define MOST_LISTED(k) (2 * (k) + 32)
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

/* The k-th largest, by halving from `low`, which k keys or more reach: without branches that depend
 * on the keys, which would often be foretold wrong. */
static uint32_t listed_key(const uint32_t *keys, size_t n, size_t k, uint32_t low) {
    uint32_t high = 0, least = INT32_MAX;
    for (size_t i = 0; i < n; i++)
        high = keys[i] > high ? keys[i] : high;
    if (k == 1) return high;
    for (high++; high - low > 1;) {
        uint32_t mid = low + (high - low) / 2;
        size_t count = count_over(keys, n, mid - 1);
        if (count < k) {
            high = mid;
            continue;
        }
        low = mid;
        if (count == k) break;
    }
    for (size_t i = 0; i < n; i++)
        least = keys[i] >= low && keys[i] < least ? keys[i] : least;
    return least;
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
    uint32_t last = listed_key(keys, listed, k, threshold);
    *guess = last;

    size_t kept = 0, equals = k - count_over(keys, listed, last);
    for (size_t i = 0; i < listed; i++) {
        bool equal = keys[i] == last && equals > 0;
        indices[kept] = indices[i];
        kept += keys[i] > last || equal;
        equals -= equal;
    }
}
