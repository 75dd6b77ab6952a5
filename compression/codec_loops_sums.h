/* codec_loops_sums.h - loops of codec_loops.h that add floats up: they run in 16 logical lanes
 * (struct sums), whatever LANES is, so that every level adds in the same order. Whole groups of
 * 16 are worked on; what remains at the end is copied to a padded group, so that there is one way
 * to compute a value. Internal to codec_loops_*.c.
 */
#ifndef RUBATO_COMPRESSION_CODEC_LOOPS_SUMS_H
#define RUBATO_COMPRESSION_CODEC_LOOPS_SUMS_H

#include "compression/codec_loops.h"
#include "compression/lanes.h"

#define SUM_LANES 16
#define SUM_PARTS (SUM_LANES / LANES)

/* Lane i gets lane i ^ distance. */
#if LANES == 16
#define LANES_SWAP(value, d)                                                                       \
    __builtin_shufflevector(value, value, 0 ^ (d), 1 ^ (d), 2 ^ (d), 3 ^ (d), 4 ^ (d), 5 ^ (d),    \
                            6 ^ (d), 7 ^ (d), 8 ^ (d), 9 ^ (d), 10 ^ (d), 11 ^ (d), 12 ^ (d),      \
                            13 ^ (d), 14 ^ (d), 15 ^ (d))
#elif LANES == 8
#define LANES_SWAP(value, d)                                                                       \
    __builtin_shufflevector(value, value, 0 ^ (d), 1 ^ (d), 2 ^ (d), 3 ^ (d), 4 ^ (d), 5 ^ (d),    \
                            6 ^ (d), 7 ^ (d))
#else
#define LANES_SWAP(value, d)                                                                       \
    __builtin_shufflevector(value, value, 0 ^ (d), 1 ^ (d), 2 ^ (d), 3 ^ (d))
#endif

/* The largest lane, and the sum of all, of values that are not negative. */
LANES_INLINE int32_t lanes_max_of(lanes_i value) {
#if LANES >= 16
    value = lanes_max(value, LANES_SWAP(value, 8));
#endif
#if LANES >= 8
    value = lanes_max(value, LANES_SWAP(value, 4));
#endif
    value = lanes_max(value, LANES_SWAP(value, 2));
    value = lanes_max(value, LANES_SWAP(value, 1));
    return value[0];
}

LANES_INLINE int32_t lanes_total(lanes_i value) {
#if LANES >= 16
    value += LANES_SWAP(value, 8);
#endif
#if LANES >= 8
    value += LANES_SWAP(value, 4);
#endif
    value += LANES_SWAP(value, 2);
    value += LANES_SWAP(value, 1);
    return value[0];
}

/* 16 running sums: part p, lane i is logical lane p * LANES + i. */
struct sums {
    lanes_f part[SUM_PARTS];
};

/* Folded in halves; the result is the same at every width. */
LANES_INLINE float lanes_sum(const struct sums *sums) {
#if LANES == 16
    lanes_f sum = sums->part[0] + LANES_SWAP(sums->part[0], 8);
#elif LANES == 8
    lanes_f sum = sums->part[0] + sums->part[1];
#else
    lanes_f sum = (sums->part[0] + sums->part[2]) + (sums->part[1] + sums->part[3]);
#endif
#if LANES >= 8
    sum += LANES_SWAP(sum, 4);
#endif
    sum += LANES_SWAP(sum, 2);
    sum += LANES_SWAP(sum, 1);
    return sum[0];
}

#define GROUP ((size_t)SUM_LANES)

/* Floats are added up in f32 over this many values, and then in double. */
#define FOLD ((size_t)512)

/* Bytes that values are fetched ahead, which may be past their end: fetching cannot fail. */
#define PREFETCH       8192
#define PREFETCH_CHUNK 16384

static inline size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

static inline void put(float *out, const float *values, size_t n, bool add) {
    for (size_t i = 0; i < n; i++)
        out[i] = add ? out[i] + values[i] : values[i];
}

LANES_INLINE void emit(float *out, lanes_f value, bool add) {
    lanes_store(out, add ? lanes_load(out) + value : value);
}

/* The next tile is fetched while this one is worked on: the chip sees no stream to follow. */
LANES_INLINE void fetch(const float *values) {
    __builtin_prefetch((const char *)values + PREFETCH);
}

/* As fetch(), for what topk reads by whole chunks: more than the first-level cache takes. */
LANES_INLINE void fetch_chunk(const float *values) {
    __builtin_prefetch((const char *)values + PREFETCH_CHUNK, 0, 2);
}

LANES_INLINE void load_group(float *a, const float *values, const float *residual, lanes_f scale,
                             struct sums *sums, lanes_i *max) {
    for (size_t p = 0; p < SUM_PARTS; p++) {
        lanes_f scaled = lanes_load(values + p * LANES) * scale;
        lanes_f value = residual != NULL ? scaled + lanes_load(residual + p * LANES) : scaled;
        sums->part[p] += scaled * scaled;
        *max = lanes_max(*max, lanes_magnitude(value));
        if (a != NULL) lanes_store(a + p * LANES, value);
    }
}

LANES_INLINE double load_all(float *a, const float *values, const float *residual, size_t n,
                             float scale, uint32_t *max_bits) {
    double total = 0;
    lanes_i max = lanes_splat_i((int32_t)*max_bits);
    for (size_t start = 0; start < n; start += FOLD) {
        size_t i = start, end = least(start + FOLD, n);
        struct sums sums = {{{0}}};
        for (; i + GROUP <= end; i += GROUP) {
            fetch(values + i);
            if (residual != NULL) fetch(residual + i);
            load_group(a != NULL ? a + i : NULL, values + i, residual != NULL ? residual + i : NULL,
                       lanes_splat(scale), &sums, &max);
        }
        if (i < end) {
            float from[GROUP] = {0}, kept[GROUP] = {0}, to[GROUP];
            memcpy(from, values + i, (end - i) * sizeof *from);
            if (residual != NULL) memcpy(kept, residual + i, (end - i) * sizeof *kept);
            load_group(to, from, residual != NULL ? kept : NULL, lanes_splat(scale), &sums, &max);
            if (a != NULL) memcpy(a + i, to, (end - i) * sizeof *to);
        }
        total += (double)lanes_sum(&sums);
    }
    *max_bits = (uint32_t)lanes_max_of(max);
    return total;
}

static inline double load(float *a, const float *values, const float *residual, size_t n,
                          float scale, uint32_t *max_bits) {
    if (a == NULL) return load_all(NULL, values, NULL, n, scale, max_bits);
    if (residual == NULL) return load_all(a, values, NULL, n, scale, max_bits);
    return load_all(a, values, residual, n, scale, max_bits);
}

LANES_INLINE void settle_group(float *residual, const float *a, const float *decoded, float beta,
                               struct sums *sums) {
    for (size_t p = 0; p < SUM_PARTS; p++) {
        lanes_f kept = lanes_load(a + p * LANES) - lanes_load(decoded + p * LANES);
        if (beta != 0.0f) kept = beta * lanes_load(residual + p * LANES) + (1.0f - beta) * kept;
        lanes_i finite = lanes_magnitude(kept) < (int32_t)F32_INFINITY;
        kept = (lanes_f)((lanes_i)kept & finite);
        sums->part[p] += kept * kept;
        lanes_store(residual + p * LANES, kept);
    }
}

static inline double settle(float *residual, const float *a, const float *decoded, size_t n,
                            float beta) {
    double total = 0;
    for (size_t start = 0; start < n; start += FOLD) {
        size_t i = start, end = least(start + FOLD, n);
        struct sums sums = {{{0}}};
        for (; i + GROUP <= end; i += GROUP)
            settle_group(residual + i, a + i, decoded + i, beta, &sums);
        if (i < end) {
            float kept[GROUP] = {0}, from[GROUP] = {0}, sent[GROUP] = {0};
            memcpy(kept, residual + i, (end - i) * sizeof *kept);
            memcpy(from, a + i, (end - i) * sizeof *from);
            memcpy(sent, decoded + i, (end - i) * sizeof *sent);
            settle_group(kept, from, sent, beta, &sums);
            memcpy(residual + i, kept, (end - i) * sizeof *kept);
        }
        total += (double)lanes_sum(&sums);
    }
    return total;
}

static inline double squares(const float *values, size_t n) {
    uint32_t max_bits = 0;
    return load_all(NULL, values, NULL, n, 1.0f, &max_bits);
}

static inline void add_all(float *sum, const float *values, size_t n) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        lanes_store(sum + i, lanes_load(sum + i) + lanes_load(values + i));
    put(sum + i, values + i, n - i, true);
}

static inline float dot(const float *x, const float *y, size_t n) {
    struct sums sums = {{{0}}};
    size_t i = 0;
    for (; i + GROUP <= n; i += GROUP) {
        for (size_t p = 0; p < SUM_PARTS; p++)
            sums.part[p] += lanes_load(x + i + p * LANES) * lanes_load(y + i + p * LANES);
    }
    float total = lanes_sum(&sums);
    for (; i < n; i++)
        total += x[i] * y[i];
    return total;
}

static inline void axpy(float *y, float scale, const float *x, size_t n) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        lanes_store(y + i, lanes_load(y + i) + scale * lanes_load(x + i));
    for (; i < n; i++)
        y[i] += scale * x[i];
}

#endif
