/* The scheme powersgd: a block of rows x cols as the product of two factors of a low rank, both in
 * the payload. Layout in scheme.h.
 *
 * One step of subspace iteration, warm: X = a Y' is made orthonormal (Gram-Schmidt), Y = X' a; the
 * block decodes to X Y, and Y is where the next step starts. Factors are kept as rows of `rank`
 * vectors, so that all loops run over contiguous values.
 * Source: Vogels, Karimireddy, Jaggi, "PowerSGD", NeurIPS 2019.
 */
#include "compression/scheme_powersgd.h"

#include "base/random.h"

#include <math.h>

#define HEAD   ((size_t)8)
#define STRIPE ((size_t)128) /* columns that are decoded at a time */

size_t powersgd_rank(const struct scheme_run *run) {
    size_t rank = run->spec->rank;
    if (rank > run->rows) rank = run->rows;
    return rank < run->cols ? rank : run->cols;
}

static size_t bound(const struct scheme_run *run) {
    return HEAD + 2 * powersgd_rank(run) * (run->rows + run->cols);
}

static size_t state_values(const struct scheme_run *run) {
    return powersgd_rank(run) * run->cols;
}

static size_t scratch_bytes(const struct scheme_run *run) {
    return powersgd_rank(run) * run->rows * sizeof(float);
}

static size_t start(const struct scheme_run *run, uint8_t *wire) {
    scheme_put_u32(wire, (uint32_t)run->rows);
    scheme_put_u32(wire + 4, (uint32_t)powersgd_rank(run));
    return HEAD;
}

void powersgd_noise(uint64_t seed, uint64_t block, size_t index, float *vector, size_t n) {
    struct random_stream random;
    random_open(&random, seed, RANDOM_CODEC, block * POWERSGD_RANK_MAX + index);
    for (size_t i = 0; i < n; i++)
        vector[i] = random_normal(&random);
}

void powersgd_revive(const struct scheme_run *run, float *vector, size_t n, size_t index) {
    if (run->loops->dot(vector, vector, n) > 0.0f) return;
    powersgd_noise(run->seed, run->block, index, vector, n);
}

/* Of a NaN the sign stays. */
static float negative(float value) {
    return isnan(value) ? value : -value;
}

void powersgd_orthonormalize(const struct codec_loops *loops, float *vectors, size_t rank,
                             size_t n) {
    for (size_t i = 0; i < rank; i++) {
        float *x = vectors + i * n;
        float before = loops->dot(x, x, n);
        for (size_t j = 0; j < i; j++)
            loops->axpy(x, negative(loops->dot(x, vectors + j * n, n)), vectors + j * n, n);
        float after = loops->dot(x, x, n);
        // What is left of a vector that lay in the others' span is rounding noise.
        float scale = after > 1e-10f * before && after > 0.0f ? 1.0f / sqrtf(after) : 0.0f;
        if (!isfinite(scale)) scale = 0.0f;
        for (size_t k = 0; k < n; k++)
            x[k] *= scale;
    }
}

void powersgd_times_rows(const struct scheme_run *run, const float *a, const float *x, float *y) {
    for (size_t i = 0; i < powersgd_rank(run); i++) {
        for (size_t row = 0; row < run->rows; row++)
            y[i * run->rows + row] =
                run->loops->dot(a + row * run->cols, x + i * run->cols, run->cols);
    }
}

void powersgd_times_cols(const struct scheme_run *run, const float *a, const float *x, float *y) {
    for (size_t i = 0; i < powersgd_rank(run); i++) {
        float *to = y + i * run->cols;
        memset(to, 0, run->cols * sizeof *to);
        for (size_t row = 0; row < run->rows; row++)
            run->loops->axpy(to, x[i * run->rows + row], a + row * run->cols, run->cols);
    }
}

static size_t encode(const struct scheme_run *run, size_t offset, const float *a, size_t n,
                     uint8_t *wire, double *squares) {
    const struct codec_loops *loops = run->loops;
    size_t rank = powersgd_rank(run), rows = run->rows, cols = run->cols;
    float *x = run->scratch, *y = run->state;
    (void)offset, (void)n;
    *squares = -1;
    for (size_t i = 0; i < rank; i++)
        powersgd_revive(run, y + i * cols, cols, i);
    powersgd_times_rows(run, a, y, x);
    powersgd_orthonormalize(loops, x, rank, rows);
    loops->bf16_encode(x, rank * rows, wire);
    loops->bf16_decode(wire, rank * rows, x, false);
    powersgd_times_cols(run, a, x, y);
    loops->bf16_encode(y, rank * cols, wire + 2 * rank * rows);
    return 2 * rank * (rows + cols);
}

static bool open(struct scheme_view *view) {
    if (view->bytes < HEAD) return false;
    view->number[0] = scheme_get_u32(view->wire);
    view->number[1] = scheme_get_u32(view->wire + 4);
    view->head = HEAD;
    size_t rows = view->number[0];
    if (rows == 0 || view->count % rows != 0) return false;
    view->number[2] = (uint32_t)(view->count / rows);
    return view->number[1] >= 1 && view->number[1] <= POWERSGD_RANK_MAX;
}

static size_t measure(const struct scheme_view *view, size_t offset, size_t n, const uint8_t *at,
                      size_t left) {
    (void)offset, (void)n, (void)at, (void)left;
    return 2 * (size_t)view->number[1] * ((size_t)view->number[0] + view->number[2]);
}

static void decode(const struct scheme_view *view, size_t offset, size_t n, const uint8_t *at,
                   float *out, bool add) {
    size_t rows = view->number[0], rank = view->number[1], cols = view->number[2];
    float y[POWERSGD_RANK_MAX][STRIPE], product[STRIPE];
    (void)offset, (void)n;
    for (size_t from = 0; from < cols; from += STRIPE) {
        size_t width = cols - from < STRIPE ? cols - from : STRIPE;
        for (size_t i = 0; i < rank; i++)
            view->loops->bf16_decode(at + 2 * (rank * rows + i * cols + from), width, y[i], false);
        for (size_t row = 0; row < rows; row++) {
            float *to = out + row * cols + from;
            memset(product, 0, width * sizeof *product);
            for (size_t i = 0; i < rank; i++) {
                float x = bf16_to_f32(scheme_get_u16(at + 2 * (i * rows + row)));
                view->loops->axpy(product, x, y[i], width);
            }
            if (add)
                view->loops->add(to, product, width);
            else
                memcpy(to, product, width * sizeof *to);
        }
    }
}

static size_t prefix(const uint8_t *wire, size_t bytes) {
    (void)wire, (void)bytes;
    return HEAD;
}

const struct scheme scheme_powersgd = {
    .id = CODEC_POWERSGD,
    .warms_up = true,
    .planes = 2,
    .bound = bound,
    .state_values = state_values,
    .scratch_bytes = scratch_bytes,
    .start = start,
    .encode = encode,
    .open = open,
    .measure = measure,
    .decode = decode,
    .prefix = prefix,
};
