/* The schemes onebit, signs and a mean for each 512 values, and signsgd, signs alone, for a
 * majority vote. Layouts in scheme.h.
 *
 * A sign cannot say zero: rows whose gradient is all zero are named in a mask and decode to zeros.
 * Sources: Seide et al., "1-bit stochastic gradient descent", Interspeech 2014; Karimireddy et al.,
 * "Error feedback fixes signSGD", ICML 2019; Bernstein et al., "signSGD", ICML 2018.
 */
#include "compression/scheme.h"

static size_t signs_bytes(size_t n) {
    return (n + 7) / 8;
}

static size_t tile_bytes(size_t n) {
    return signs_bytes(n) + 2 * ((n + ONEBIT_BLOCK - 1) / ONEBIT_BLOCK);
}

static size_t bound(const struct scheme_run *run) {
    return scheme_mask_bound(run) + tile_bytes(run->count);
}

/* How many of n values from `offset` on lie in rows that are not masked. */
static size_t active_count(const struct scheme_run *run, size_t offset, size_t n) {
    size_t active = n;
    if (run->zero_rows == NULL) return n;
    for (size_t at = offset; at < offset + n;) {
        size_t row = at / run->cols, end = (row + 1) * run->cols;
        if (end > offset + n) end = offset + n;
        if (scheme_row_is_zero(run->zero_rows, row)) active -= end - at;
        at = end;
    }
    return active;
}

static size_t encode(const struct scheme_run *run, size_t offset, const float *a, size_t n,
                     uint8_t *wire, double *squares) {
    uint8_t *at = wire;
    for (size_t i = 0; i < n; i += ONEBIT_BLOCK) {
        size_t block = n - i < ONEBIT_BLOCK ? n - i : ONEBIT_BLOCK;
        size_t active = active_count(run, offset + i, block);
        float sum = run->loops->signs_encode(a + i, block, at + 2);
        uint16_t half = bf16_from_float(active == 0 ? 0.0f : sum / (float)active);
        double mean = (double)bf16_to_f32(half);
        memcpy(at, &half, sizeof half);
        *squares += mean * mean * (double)active;
        at += 2 + signs_bytes(block);
    }
    return (size_t)(at - wire);
}

static size_t measure(const struct scheme_view *view, size_t offset, size_t n, const uint8_t *at,
                      size_t left) {
    (void)view, (void)offset, (void)at, (void)left;
    return tile_bytes(n);
}

static void decode(const struct scheme_view *view, size_t offset, size_t n, const uint8_t *at,
                   float *out, bool add) {
    (void)offset;
    for (size_t i = 0; i < n; i += ONEBIT_BLOCK) {
        size_t block = n - i < ONEBIT_BLOCK ? n - i : ONEBIT_BLOCK;
        float mean = bf16_to_f32(scheme_get_u16(at));
        view->loops->signs_decode(at + 2, block, mean, out + i, add);
        at += 2 + signs_bytes(block);
    }
}

const struct scheme scheme_onebit = {
    .id = CODEC_ONEBIT,
    .warms_up = true,
    .planes = 1,
    .tile = SCHEME_TILE,
    .bound = bound,
    .start = scheme_mask_start,
    .encode = encode,
    .open = scheme_mask_open,
    .measure = measure,
    .decode = decode,
};

static size_t vote_bound(const struct scheme_run *run) {
    return scheme_mask_bound(run) + signs_bytes(run->count);
}

static size_t vote_encode(const struct scheme_run *run, size_t offset, const float *a, size_t n,
                          uint8_t *wire, double *squares) {
    run->loops->signs_encode(a, n, wire);
    *squares += (double)active_count(run, offset, n);
    return signs_bytes(n);
}

static size_t vote_measure(const struct scheme_view *view, size_t offset, size_t n,
                           const uint8_t *at, size_t left) {
    (void)view, (void)offset, (void)at, (void)left;
    return signs_bytes(n);
}

static void vote_decode(const struct scheme_view *view, size_t offset, size_t n, const uint8_t *at,
                        float *out, bool add) {
    (void)offset;
    view->loops->signs_decode(at, n, 1.0f, out, add);
}

const struct scheme scheme_signsgd = {
    .id = CODEC_SIGNSGD,
    .planes = 1,
    .tile = SCHEME_TILE,
    .bound = vote_bound,
    .start = scheme_mask_start,
    .encode = vote_encode,
    .open = scheme_mask_open,
    .measure = vote_measure,
    .decode = vote_decode,
};
