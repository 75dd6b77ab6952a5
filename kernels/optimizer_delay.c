/* optimizer_delay.c - delay compensation: see kernels/optimizer_state.h. By chunks, whose moments
 * are decoded first: `divisor` is 1 / c, and `shift` is weights - base.
 */
#include "base/assert.h"
#include "kernels/dispatch.h"
#include "kernels/optimizer_product.h"
#include "kernels/optimizer_rules.h"

#include <math.h>

/* divisor [count] = sqrt(weight * v) * root + eps */
KERNEL_CLONES static void divide(float weight, float root, float eps, const float *restrict v,
                                 float *restrict divisor, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        divisor[i] = sqrtf(weight * v[i]) * root + eps;
}

/* shift [count] = rate * direction; the direction is m / spread / divisor, m, or the sign of m. */
KERNEL_CLONES static void shift_adapted(float rate, float spread, const float *restrict m,
                                        const float *restrict divisor, float *restrict shift,
                                        int64_t count) {
    for (int64_t i = 0; i < count; i++)
        shift[i] = rate * (m[i] / spread / divisor[i]);
}

KERNEL_CLONES static void shift_scaled(float rate, const float *restrict m, float *restrict shift,
                                       int64_t count) {
    for (int64_t i = 0; i < count; i++)
        shift[i] = rate * m[i];
}

KERNEL_CLONES static void shift_signs(float rate, const float *restrict m, float *restrict shift,
                                      int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        float step = m[i] > 0.0F ? rate : m[i];
        shift[i] = m[i] < 0.0F ? -rate : step;
    }
}

KERNEL_CLONES static void shift_measured(const float *restrict weights, const float *restrict base,
                                         float *restrict shift, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        shift[i] = weights[i] - base[i];
}

KERNEL_CLONES static void compensate(float factor, const float *restrict divisor,
                                     const float *restrict shift, float *restrict grad,
                                     int64_t count) {
    for (int64_t i = 0; i < count; i++)
        grad[i] = grad[i] + factor * grad[i] * grad[i] * shift[i] / divisor[i];
}

static void divisors(const struct optimizer_rule *past, int64_t at, int64_t count, float *divisor) {
    float v[MOMENT_CHUNK];
    if (past->second.count == 0) {
        for (int64_t i = 0; i < count; i++)
            divisor[i] = 1.0F;
        return;
    }
    optimizer_moment_load(&past->second, at, count, v);
    divide(1.0F, optimizer_rule_root(past), past->eps, v, divisor, count);
}

static void shifts(const struct optimizer_rule *past, float rate, int64_t at, int64_t count,
                   const float *divisor, float *shift) {
    float m[MOMENT_CHUNK];
    optimizer_moment_load(&past->first, at, count, m);
    if (past->kind == OPTIMIZER_ADAMW || past->kind == OPTIMIZER_LAMB)
        shift_adapted(rate, past->spread, m, divisor, shift, count);
    else if (past->kind == OPTIMIZER_LION)
        shift_signs(rate, m, shift, count);
    else
        shift_scaled(rate, m, shift, count);
}

static int64_t chunk_count(int64_t total, int64_t at) {
    return total - at < MOMENT_CHUNK ? total - at : MOMENT_CHUNK;
}

/* The directions that hang on the whole piece, [count] somewhere in scratch; what they are to be
 * multiplied by goes into *factor. */
static const float *whole_direction(const struct optimizer_rule *past, const float *weights,
                                    float *scratch, double *factor) {
    float divisor[MOMENT_CHUNK];
    for (int64_t at = 0; at < past->count; at += MOMENT_CHUNK) {
        int64_t count = chunk_count(past->count, at);
        divisors(past, at, count, divisor);
        shifts(past, 1.0F, at, count, divisor, scratch + at);
    }
    if (past->kind == OPTIMIZER_MUON) {
        *factor = optimizer_rule_muon_scale(&past->piece);
        return optimizer_product_orthogonal(&past->piece, scratch);
    }
    *factor = optimizer_rule_trust(optimizer_sum_of_squares(weights, past->count),
                                   optimizer_sum_of_squares(scratch, past->count));
    return scratch;
}

static void compensate_adafactor(const struct optimizer_rule *past, float factor,
                                 const float *weights, const float *base, float *grad) {
    float divisor[MOMENT_CHUNK], shift[MOMENT_CHUNK];
    ASSERT(base); /* it has no direction */
    const bool factored = optimizer_rule_factored(&past->piece);
    const int64_t rows = factored ? past->piece.rows : 1, cols = past->count / rows;
    const float *R = past->state;
    const float *C = factored ? R + optimizer_rule_columns(&past->piece) : R;
    double mean = factored ? optimizer_rule_row_mean(R, rows) : 0.0;
    for (int64_t row = 0; row < rows; row++) {
        float weight = factored ? optimizer_rule_row_weight(R[row], mean) : 1.0F;
        for (int64_t at = 0; at < cols; at += MOMENT_CHUNK) {
            int64_t count = chunk_count(cols, at), first = row * cols + at;
            divide(weight, 1.0F, past->eps, C + at, divisor, count);
            shift_measured(weights + first, base + first, shift, count);
            compensate(factor, divisor, shift, grad + first, count);
        }
    }
}

/* Ten parameters, but each is plain. NOLINTNEXTLINE(readability-function-size) */
void optimizer_delay_compensate(const struct optimizer *optimizer,
                                const struct optimizer_update *update,
                                const struct optimizer_piece *piece, const float *weights,
                                const void *state, const float *base, float lambda,
                                uint32_t staleness, float *grad, void *scratch) {
    struct optimizer_rule past;
    if (!optimizer_rule_past(&past, optimizer, update, piece, state, base != NULL)) return;
    const float factor = lambda * update->grad_scale;
    if (past.kind == OPTIMIZER_ADAFACTOR) {
        compensate_adafactor(&past, factor, weights, base, grad);
        return;
    }
    float divisor[MOMENT_CHUNK], shift[MOMENT_CHUNK];
    double size = 1.0;
    const float *whole = NULL;
    if (!base && (past.kind == OPTIMIZER_LAMB || past.kind == OPTIMIZER_MUON))
        whole = whole_direction(&past, weights, scratch, &size);
    const float rate = optimizer_rule_back(&past, staleness, size);
    for (int64_t at = 0; at < past.count; at += MOMENT_CHUNK) {
        int64_t count = chunk_count(past.count, at);
        divisors(&past, at, count, divisor);
        if (base)
            shift_measured(weights + at, base + at, shift, count);
        else if (whole)
            shift_scaled(rate, whole + at, shift, count);
        else
            shifts(&past, rate, at, count, divisor, shift);
        compensate(factor, divisor, shift, grad + at, count);
    }
}
