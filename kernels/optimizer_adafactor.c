/* optimizer_adafactor.c - Adafactor's step: see kernels/optimizer_state.h.
 *
 * Sums of squares are in double. A row's has optimizer_sum_of_squares()'s order, a column's the
 * order of the rows. The update is computed twice, once for its size and once to apply it, which
 * is cheaper than memory for it.
 */
#include "kernels/dispatch.h"
#include "kernels/optimizer_rules.h"

#include <math.h>

enum { LANES = 16 };

/* sums [count] += (grad * scale)^2 */
KERNEL_CLONES static void add_squares(float scale, const float *restrict grad,
                                      double *restrict sums, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] * scale;
        sums[i] += (double)g * (double)g;
    }
}

/* In optimizer_sum_of_squares()'s order, of grad * scale. */
KERNEL_CLONES static double row_squares(float scale, const float *restrict grad, int64_t count) {
    double lanes[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (int lane = 0; lane < LANES; lane++) {
            float g = grad[i + lane] * scale;
            lanes[lane] += (double)g * (double)g;
        }
    }
    for (int lane = 0; i + lane < count; lane++) {
        float g = grad[i + lane] * scale;
        lanes[lane] += (double)g * (double)g;
    }
    double sum = 0.0;
    for (int lane = 0; lane < LANES; lane++)
        sum += lanes[lane];
    return sum;
}

KERNEL_CLONES static void vector_moment(const struct optimizer_rule *rule, float *restrict v,
                                        const float *restrict grad, int64_t count) {
    const float scale = rule->grad_scale, past = rule->past, recent = rule->recent;
    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] * scale;
        v[i] = past * v[i] + recent * g * g;
    }
}

/* A row's u = g / max(sqrt(weight * moment), eps); a vector is a row of weight 1. */
static inline float update_of(const struct optimizer_rule *rule, float grad, float weight,
                              float moment) {
    float root = sqrtf(weight * moment);
    float divisor = root < rule->eps ? rule->eps : root;
    return grad * rule->grad_scale / divisor;
}

KERNEL_CLONES static double update_squares(const struct optimizer_rule *rule, float weight,
                                           const float *restrict moment, const float *restrict grad,
                                           int64_t count) {
    const struct optimizer_rule f = *rule;
    double lanes[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (int lane = 0; lane < LANES; lane++) {
            double u = (double)update_of(&f, grad[i + lane], weight, moment[i + lane]);
            lanes[lane] += u * u;
        }
    }
    for (int lane = 0; i + lane < count; lane++) {
        double u = (double)update_of(&f, grad[i + lane], weight, moment[i + lane]);
        lanes[lane] += u * u;
    }
    double sum = 0.0;
    for (int lane = 0; lane < LANES; lane++)
        sum += lanes[lane];
    return sum;
}

KERNEL_CLONES static void apply(const struct optimizer_rule *rule, float rate, float weight,
                                float *restrict weights, const float *restrict moment,
                                const float *restrict grad, int64_t count) {
    const struct optimizer_rule f = *rule;
    for (int64_t i = 0; i < count; i++)
        weights[i] = weights[i] * f.keep - rate * update_of(&f, grad[i], weight, moment[i]);
}

/* lr / max(1, rms(u)); what is not finite must show, so the comparison is this way round. */
static float clipped_rate(const struct optimizer_rule *rule, double squares) {
    double rms = sqrt(squares / (double)rule->count);
    return (float)((double)rule->lr / (rms <= 1.0 ? 1.0 : rms));
}

/* R and C of this step; returns mean(R). */
static double factor(const struct optimizer_rule *rule, float *R, float *C, const float *grad,
                     double *scratch) {
    const int64_t rows = rule->piece.rows, cols = rule->piece.cols;
    for (int64_t j = 0; j < cols; j++)
        scratch[j] = 0.0;
    for (int64_t i = 0; i < rows; i++) {
        double mean = row_squares(rule->grad_scale, grad + i * cols, cols) / (double)cols;
        R[i] = rule->past * R[i] + rule->recent * (float)mean;
        add_squares(rule->grad_scale, grad + i * cols, scratch, cols);
    }
    for (int64_t j = 0; j < cols; j++)
        C[j] = rule->past * C[j] + rule->recent * (float)(scratch[j] / (double)rows);
    return optimizer_rule_row_mean(R, rows);
}

void optimizer_adafactor_step(const struct optimizer_rule *rule, float *weights, void *state,
                              const float *grad, double *scratch) {
    if (!optimizer_rule_factored(&rule->piece)) {
        vector_moment(rule, state, grad, rule->count);
        float rate = clipped_rate(rule, update_squares(rule, 1.0F, state, grad, rule->count));
        apply(rule, rate, 1.0F, weights, state, grad, rule->count);
        return;
    }
    const int64_t rows = rule->piece.rows, cols = rule->piece.cols;
    float *R = state;
    float *C = R + optimizer_rule_columns(&rule->piece);
    double mean = factor(rule, R, C, grad, scratch);
    double squares = 0.0;
    for (int64_t i = 0; i < rows; i++)
        squares +=
            update_squares(rule, optimizer_rule_row_weight(R[i], mean), C, grad + i * cols, cols);
    float rate = clipped_rate(rule, squares);
    for (int64_t i = 0; i < rows; i++)
        apply(rule, rate, optimizer_rule_row_weight(R[i], mean), weights + i * cols, C,
              grad + i * cols, cols);
}
