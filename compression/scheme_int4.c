/* The scheme int4, plain, with stochastic rounding (sr), rotated by Hadamard's matrix (had) or
 * both; and QSGD, which is the same with the blocks' L2 norms for scales. Layout in scheme.h.
 *
 * Error of a value: at most scale / 2 to nearest, below scale with sr; scale is max|a| / 7 rounded
 * up by at most 2^-7 of itself.
 * Sources: Wang et al., "ZeRO++", 2023; Jia et al., "SDP4Bit", 2024 (sr and had); Alistarh et al.,
 * "QSGD", NIPS 2017.
 */
#include "compression/scheme.h"

#define ROTATED 2

static size_t tile_bytes(size_t n) {
    size_t rest = n % LOOP_BLOCK, whole = n / LOOP_BLOCK * (2 + LOOP_BLOCK / 2);
    if (rest == 0) return whole;
    return whole + 2 + (rest < LOOP_BLOCK / 2 ? rest : LOOP_BLOCK / 2);
}

static size_t bound(const struct scheme_run *run) {
    return scheme_mask_bound(run) + 1 + tile_bytes(run->count);
}

/* Zeros stay zeros, so that masked rows matter only where a rotation mixes rows. */
static bool shows_mask(const struct scheme_run *run) {
    return run->zero_rows != NULL && run->spec->had && run->cols % HAD_GROUP != 0;
}

static size_t start(const struct scheme_run *run, uint8_t *wire) {
    struct scheme_run shown = *run;
    if (!shows_mask(run)) shown.zero_rows = NULL;
    size_t bytes = scheme_mask_start(&shown, wire);
    wire[bytes] = run->spec->had ? ROTATED : 0;
    return bytes + 1;
}

static size_t encode(const struct scheme_run *run, size_t offset, const float *a, size_t n,
                     uint8_t *wire, double *squares) {
    int flags = (run->spec->sr ? INT4_SR : 0) | (run->spec->had ? INT4_HAD : 0);
    struct loop_noise noise = scheme_noise(run, offset);
    run->loops->int4_encode(a, n, wire, flags, &noise, squares);
    // A rotation keeps the norm of whole blocks, but not of what a mask or the end leaves of them.
    if (run->spec->had && (n % LOOP_BLOCK != 0 || shows_mask(run))) *squares = -1;
    return tile_bytes(n);
}

static bool open(struct scheme_view *view) {
    if (!scheme_mask_open(view) || view->bytes <= view->head) return false;
    view->number[0] = view->wire[view->head];
    view->head++;
    return (view->number[0] & ~(uint32_t)ROTATED) == 0;
}

static size_t measure(const struct scheme_view *view, size_t offset, size_t n, const uint8_t *at,
                      size_t left) {
    (void)view, (void)offset, (void)at, (void)left;
    return tile_bytes(n);
}

static void decode(const struct scheme_view *view, size_t offset, size_t n, const uint8_t *at,
                   float *out, bool add) {
    (void)offset;
    view->loops->int4_decode(at, n, out, add, view->number[0] == ROTATED);
}

const struct scheme scheme_int4 = {
    .id = CODEC_INT4,
    .planes = 1,
    .tile = SCHEME_TILE,
    .bound = bound,
    .start = start,
    .encode = encode,
    .open = open,
    .measure = measure,
    .decode = decode,
};

static size_t qsgd_encode(const struct scheme_run *run, size_t offset, const float *a, size_t n,
                          uint8_t *wire, double *squares) {
    struct loop_noise noise = scheme_noise(run, offset);
    run->loops->int4_encode(a, n, wire, INT4_SR | INT4_L2, &noise, squares);
    return tile_bytes(n);
}

const struct scheme scheme_qsgd = {
    .id = CODEC_QSGD,
    .planes = 1,
    .tile = SCHEME_TILE,
    .bound = bound,
    .start = start,
    .encode = qsgd_encode,
    .open = open,
    .measure = measure,
    .decode = decode,
};
