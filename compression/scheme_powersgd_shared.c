/* scheme_powersgd_shared.c - one factor of a low-rank product travels, the other is known to all.
 *
 * For --optimizer worker:NAME, where all workers hold the same X, the factor that came back last,
 * made orthonormal. A worker sends Y = a X (X of columns) and keeps a - Y X'; the server averages
 * the Ys; the mean gradient of all is mean(Y) X', and mean(Y) the next X, of rows then: the sides
 * alternate, which is one half of a power iteration a step. What a payload decodes to is Y itself,
 * in the place of the block's first values: sums, means and norms of Ys are those of products with
 * the same X.
 * The state is the side on which X is, 0 for columns, and X [rank, cols or rows]; a server's is the
 * side alone. It moves with each mean, so that a round that is left out moves nothing.
 * Source: the one-sided form of Vogels, Karimireddy, Jaggi, "PowerSGD", NeurIPS 2019, which the
 * authors' later code has.
 */
#include "base/assert.h"
#include "compression/scheme_powersgd.h"

#define HEAD ((size_t)4)

static size_t longer(const struct scheme_run *run) {
    return run->rows > run->cols ? run->rows : run->cols;
}

static size_t bound(const struct scheme_run *run) {
    return HEAD + 2 * powersgd_rank(run) * longer(run);
}

static size_t state_values(const struct scheme_run *run) {
    return 1 + powersgd_rank(run) * longer(run);
}

static size_t scratch_bytes(const struct scheme_run *run) {
    return powersgd_rank(run) * longer(run) * sizeof(float);
}

static bool on_rows(const struct scheme_run *run) {
    return run->state[0] > 0;
}

/* Values of Y. */
static size_t sent_values(const struct scheme_run *run) {
    return powersgd_rank(run) * (on_rows(run) ? run->cols : run->rows);
}

static void change_side(const struct scheme_run *run) {
    run->state[0] = on_rows(run) ? 0 : 1;
}

static size_t start(const struct scheme_run *run, uint8_t *wire) {
    scheme_put_u32(wire, (uint32_t)sent_values(run));
    return HEAD;
}

/* Makes X orthonormal; returns its values. */
static size_t prepare(const struct scheme_run *run) {
    size_t rank = powersgd_rank(run), n = on_rows(run) ? run->rows : run->cols;
    float *x = run->state + 1;
    for (size_t i = 0; i < rank; i++)
        powersgd_revive(run, x + i * n, n, i);
    powersgd_orthonormalize(run->loops, x, rank, n);
    return rank * n;
}

static bool share(const struct scheme_run *run, float *factor) {
    size_t values = prepare(run);
    memcpy(factor, run->state + 1, values * sizeof *factor);
    return on_rows(run);
}

static void project(const struct scheme_run *run, const float *a, float *y) {
    const float *x = run->state + 1;
    prepare(run);
    if (on_rows(run))
        powersgd_times_cols(run, a, x, y);
    else
        powersgd_times_rows(run, a, x, y);
}

static size_t encode(const struct scheme_run *run, size_t offset, const float *a, size_t n,
                     uint8_t *wire, double *squares) {
    const struct codec_loops *loops = run->loops;
    size_t sent = sent_values(run);
    float *y = run->scratch;
    (void)offset, (void)n;
    if (run->averages)
        memcpy(y, a, sent * sizeof *y);
    else
        project(run, a, y);
    loops->bf16_encode(y, sent, wire);
    loops->bf16_decode(wire, sent, y, false);
    *squares = loops->squares(y, sent);
    if (run->averages) change_side(run);
    return 2 * sent;
}

/* out [rows, cols] = the product of X and y. */
static void multiply(const struct scheme_run *run, const float *y, float *out) {
    const float *x = run->state + 1;
    const float *of_rows = on_rows(run) ? x : y, *of_cols = on_rows(run) ? y : x;
    size_t rank = powersgd_rank(run);
    for (size_t row = 0; row < run->rows; row++) {
        float *to = out + row * run->cols;
        memset(to, 0, run->cols * sizeof *to);
        for (size_t i = 0; i < rank; i++)
            run->loops->axpy(to, of_rows[i * run->rows + row], of_cols + i * run->cols, run->cols);
    }
}

static void restore(const struct scheme_run *run, const uint8_t *wire, float *out) {
    float *y = run->scratch;
    run->loops->bf16_decode(wire, sent_values(run), y, false);
    multiply(run, y, out);
}

static void expand(const struct scheme_run *run, float *values) {
    size_t sent = sent_values(run);
    float *y = run->scratch;
    memcpy(y, values, sent * sizeof *y);
    multiply(run, y, values);
    memcpy(run->state + 1, y, sent * sizeof *y);
    change_side(run);
}

static bool open(struct scheme_view *view) {
    if (view->bytes < HEAD) return false;
    view->number[0] = scheme_get_u32(view->wire);
    view->head = HEAD;
    return view->number[0] <= view->count;
}

static size_t measure(const struct scheme_view *view, size_t offset, size_t n, const uint8_t *at,
                      size_t left) {
    (void)offset, (void)n, (void)at, (void)left;
    return 2 * (size_t)view->number[0];
}

static void decode(const struct scheme_view *view, size_t offset, size_t n, const uint8_t *at,
                   float *out, bool add) {
    size_t sent = view->number[0];
    (void)offset;
    view->loops->bf16_decode(at, sent, out, add);
    if (!add) memset(out + sent, 0, (n - sent) * sizeof *out);
}

static size_t prefix(const uint8_t *wire, size_t bytes) {
    (void)wire, (void)bytes;
    return HEAD;
}

const struct scheme scheme_powersgd_shared = {
    .id = CODEC_POWERSGD_SHARED,
    .warms_up = true,
    .planes = 2,
    .bound = bound,
    .state_values = state_values,
    .scratch_bytes = scratch_bytes,
    .start = start,
    .encode = encode,
    .restore = restore,
    .expand = expand,
    .share = share,
    .open = open,
    .measure = measure,
    .decode = decode,
    .prefix = prefix,
};
