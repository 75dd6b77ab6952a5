/* The schemes that keep each value by itself: none, bf16, fp16, int8, fp8; and the fill that stands
 * for a block which is not finite. Layouts in scheme.h.
 */
#include "compression/scheme.h"

static size_t scaled_bytes(size_t n) {
    return n + 2 * ((n + LOOP_BLOCK - 1) / LOOP_BLOCK);
}

/* ---- none ---- */

static size_t none_bound(const struct scheme_run *run) {
    return run->count * sizeof(float);
}

static size_t none_encode(const struct scheme_run *run, size_t offset, const float *a, size_t n,
                          uint8_t *wire, double *squares) {
    (void)run, (void)offset;
    *squares = -1;
    memcpy(wire, a, n * sizeof *a);
    return n * sizeof *a;
}

static size_t none_measure(const struct scheme_view *view, size_t offset, size_t n,
                           const uint8_t *at, size_t left) {
    (void)view, (void)offset, (void)at, (void)left;
    return n * sizeof(float);
}

static void none_decode(const struct scheme_view *view, size_t offset, size_t n, const uint8_t *at,
                        float *out, bool add) {
    float values[SCHEME_TILE];
    (void)offset;
    if (!add) {
        memcpy(out, at, n * sizeof *out);
        return;
    }
    memcpy(values, at, n * sizeof *values);
    view->loops->add(out, values, n);
}

const struct scheme scheme_none = {
    .id = CODEC_F32,
    .carries_specials = true,
    .planes = 4,
    .tile = SCHEME_TILE,
    .bound = none_bound,
    .encode = none_encode,
    .measure = none_measure,
    .decode = none_decode,
};

/* ---- bf16, fp16 ---- */

static size_t half_bound(const struct scheme_run *run) {
    return run->count * 2;
}

static size_t half_measure(const struct scheme_view *view, size_t offset, size_t n,
                           const uint8_t *at, size_t left) {
    (void)view, (void)offset, (void)at, (void)left;
    return n * 2;
}

static size_t bf16_encode(const struct scheme_run *run, size_t offset, const float *a, size_t n,
                          uint8_t *wire, double *squares) {
    (void)offset;
    *squares = -1;
    run->loops->bf16_encode(a, n, wire);
    return n * 2;
}

static void bf16_decode(const struct scheme_view *view, size_t offset, size_t n, const uint8_t *at,
                        float *out, bool add) {
    (void)offset;
    view->loops->bf16_decode(at, n, out, add);
}

const struct scheme scheme_bf16 = {
    .id = CODEC_BF16,
    .carries_specials = true,
    .planes = 2,
    .tile = SCHEME_TILE,
    .bound = half_bound,
    .encode = bf16_encode,
    .measure = half_measure,
    .decode = bf16_decode,
};

static size_t fp16_encode(const struct scheme_run *run, size_t offset, const float *a, size_t n,
                          uint8_t *wire, double *squares) {
    (void)offset;
    *squares = -1;
    run->loops->fp16_encode(a, n, wire);
    return n * 2;
}

static void fp16_decode(const struct scheme_view *view, size_t offset, size_t n, const uint8_t *at,
                        float *out, bool add) {
    (void)offset;
    view->loops->fp16_decode(at, n, out, add);
}

const struct scheme scheme_fp16 = {
    .id = CODEC_FP16,
    .carries_specials = true,
    .planes = 2,
    .tile = SCHEME_TILE,
    .bound = half_bound,
    .encode = fp16_encode,
    .measure = half_measure,
    .decode = fp16_decode,
};

/* ---- int8 ---- */

static size_t int8_bound(const struct scheme_run *run) {
    return scaled_bytes(run->count);
}

static size_t int8_encode(const struct scheme_run *run, size_t offset, const float *a, size_t n,
                          uint8_t *wire, double *squares) {
    (void)offset;
    run->loops->int8_encode(a, n, wire, squares);
    return scaled_bytes(n);
}

static size_t scaled_measure(const struct scheme_view *view, size_t offset, size_t n,
                             const uint8_t *at, size_t left) {
    (void)view, (void)offset, (void)at, (void)left;
    return scaled_bytes(n);
}

static void int8_decode(const struct scheme_view *view, size_t offset, size_t n, const uint8_t *at,
                        float *out, bool add) {
    (void)offset;
    view->loops->int8_decode(at, n, out, add);
}

const struct scheme scheme_int8 = {
    .id = CODEC_INT8,
    .carries_specials = true,
    .planes = 1,
    .tile = SCHEME_TILE,
    .bound = int8_bound,
    .encode = int8_encode,
    .measure = scaled_measure,
    .decode = int8_decode,
};

/* ---- fp8 ---- */

static size_t fp8_bound(const struct scheme_run *run) {
    return 1 + scaled_bytes(run->count);
}

static size_t fp8_start(const struct scheme_run *run, uint8_t *wire) {
    wire[0] = run->spec->e5m2;
    return 1;
}

static size_t fp8_encode(const struct scheme_run *run, size_t offset, const float *a, size_t n,
                         uint8_t *wire, double *squares) {
    (void)offset;
    run->loops->fp8_encode(a, n, wire, run->spec->e5m2, squares);
    return scaled_bytes(n);
}

static bool fp8_open(struct scheme_view *view) {
    if (view->bytes < 1 || view->wire[0] > 1) return false;
    view->number[0] = view->wire[0];
    view->head = 1;
    return true;
}

static void fp8_decode(const struct scheme_view *view, size_t offset, size_t n, const uint8_t *at,
                       float *out, bool add) {
    (void)offset;
    view->loops->fp8_decode(at, n, out, add, view->number[0] == 1);
}

const struct scheme scheme_fp8 = {
    .id = CODEC_FP8,
    .planes = 1,
    .tile = SCHEME_TILE,
    .bound = fp8_bound,
    .start = fp8_start,
    .encode = fp8_encode,
    .open = fp8_open,
    .measure = scaled_measure,
    .decode = fp8_decode,
};

/* ---- fill ---- */

static bool fill_open(struct scheme_view *view) {
    if (view->bytes != sizeof(float)) return false;
    view->number[0] = scheme_get_u32(view->wire);
    view->head = sizeof(float);
    return true;
}

static size_t fill_measure(const struct scheme_view *view, size_t offset, size_t n,
                           const uint8_t *at, size_t left) {
    (void)view, (void)offset, (void)n, (void)at, (void)left;
    return 0;
}

static void fill_decode(const struct scheme_view *view, size_t offset, size_t n, const uint8_t *at,
                        float *out, bool add) {
    float value = f32_from_bits(view->number[0]);
    (void)offset, (void)at;
    for (size_t i = 0; i < n; i++)
        out[i] = add ? out[i] + value : value;
}

const struct scheme scheme_fill = {
    .id = CODEC_FILL,
    .carries_specials = true,
    .planes = 1,
    .tile = SCHEME_TILE,
    .open = fill_open,
    .measure = fill_measure,
    .decode = fill_decode,
};
