/* optimizer_state_ref.c - the twin: the header's formulas, a value at a time, in plain loops.
 *
 * Built without clones and without contraction. What it shares with the fast files is the factors
 * of a step and the coding of one moment; blocks of 256, because a block of moments shares a top.
 */
#include "base/assert.h"
#include "kernels/optimizer_product.h"
#include "kernels/optimizer_rules.h"

#include <math.h>

static float stored(const struct moment *moment, int64_t i) {
    if (moment->count == 0) return 0.0F;
    if (moment->type == MOMENT_F32) return ((const float *)moment->data)[i];
    if (moment->type == MOMENT_BF16)
        return optimizer_moment_from_bf16(((const uint16_t *)moment->data)[i]);
    return optimizer_moment_from_code(((const uint8_t *)moment->data)[i],
                                      optimizer_moment_tops(moment)[i / MOMENT_BLOCK],
                                      moment->role);
}

/* A block, which starts at value `first`. */
static void store(const struct moment *moment, int64_t first, int64_t count, const float *values,
                  uint32_t seed) {
    int32_t top = 0;
    if (moment->count == 0) return;
    for (int64_t i = 0; i < count; i++) {
        int32_t own =
            optimizer_moment_top((int32_t)(optimizer_moment_bits(values[i]) & 0x7fffffffU));
        top = own > top ? own : top;
    }
    if (moment->type == MOMENT_INT8) optimizer_moment_tops(moment)[first / MOMENT_BLOCK] = top;
    for (int64_t i = 0; i < count; i++) {
        uint32_t random = optimizer_moment_random((uint32_t)(first + i), seed, moment->role);
        if (moment->type == MOMENT_F32)
            ((float *)moment->data)[first + i] = values[i];
        else if (moment->type == MOMENT_BF16)
            ((uint16_t *)moment->data)[first + i] = optimizer_moment_to_bf16(values[i], random);
        else
            ((uint8_t *)moment->data)[first + i] =
                optimizer_moment_to_code(values[i], top, moment->role, random);
    }
}

/* One value of sgd, nesterov, adagrad and lion: the new weight. */
static float descend(const struct optimizer_rule *rule, float weight, float *m, float *v,
                     float grad) {
    const struct adamw_factors f = rule->adamw;
    float g = grad * rule->grad_scale;
    if (rule->kind == OPTIMIZER_LION) {
        float c = f.beta1 * *m + f.part1 * g;
        *m = f.beta2 * *m + f.part2 * g;
        weight = weight * f.keep;
        if (c > 0.0F) return weight - rule->lr;
        return c < 0.0F ? weight + rule->lr : weight - c;
    }
    g = g + rule->decay * weight;
    if (rule->kind == OPTIMIZER_ADAGRAD) {
        *v = *v + g * g;
        return weight - rule->lr * g / (sqrtf(*v) + rule->eps);
    }
    if (!rule->stored) return weight - rule->lr * g;
    bool fresh = rule->kind == OPTIMIZER_SGD && rule->step == 1;
    *m = fresh ? g : rule->momentum * *m + g;
    if (rule->kind == OPTIMIZER_SGD) return weight - rule->lr * *m;
    return weight - rule->lr * (g + rule->momentum * *m);
}

/* One value of adamw, lamb and muon: the new weight, or what goes to `out`. */
static float adapt(const struct optimizer_rule *rule, float weight, float *m, float *v,
                   float grad) {
    const struct adamw_factors f = rule->adamw;
    float g = grad * rule->grad_scale;
    if (rule->kind == OPTIMIZER_MUON) {
        *m = rule->momentum * *m + g;
        return g + rule->momentum * *m;
    }
    *m = f.beta1 * *m + f.part1 * g;
    *v = f.beta2 * *v + f.part2 * g * g;
    float divisor = sqrtf(*v) * f.root_scale + f.eps;
    if (rule->kind == OPTIMIZER_LAMB) return *m / rule->spread / divisor + rule->decay * weight;
    return weight * f.keep - f.step_size * *m / divisor;
}

static void step_values(const struct optimizer_rule *rule, float *weights, const float *grad,
                        float *out) {
    float m[MOMENT_BLOCK], v[MOMENT_BLOCK];
    for (int64_t at = 0; at < rule->count; at += MOMENT_BLOCK) {
        int64_t count = rule->count - at < MOMENT_BLOCK ? rule->count - at : MOMENT_BLOCK;
        for (int64_t i = 0; i < count; i++) {
            m[i] = stored(&rule->first, at + i);
            v[i] = stored(&rule->second, at + i);
            if (out)
                out[at + i] = adapt(rule, weights[at + i], &m[i], &v[i], grad[at + i]);
            else if (rule->kind == OPTIMIZER_ADAMW)
                weights[at + i] = adapt(rule, weights[at + i], &m[i], &v[i], grad[at + i]);
            else
                weights[at + i] = descend(rule, weights[at + i], &m[i], &v[i], grad[at + i]);
        }
        store(&rule->first, at, count, m, rule->seed);
        if (!rule->frozen) store(&rule->second, at, count, v, rule->seed);
    }
}

/* Sum of squares of values * scale, in 16 lanes over the index modulo 16. */
static double squares(float scale, const float *values, int64_t count) {
    double sum = 0.0;
    for (int64_t lane = 0; lane < 16; lane++) {
        double lane_sum = 0.0;
        for (int64_t i = lane; i < count; i += 16) {
            float value = values[i] * scale;
            lane_sum += (double)value * (double)value;
        }
        sum += lane_sum;
    }
    return sum;
}

static float adafactor_update(const struct optimizer_rule *rule, const float *R, const float *C,
                              double mean, int64_t row, int64_t col, float grad) {
    float weight = R ? optimizer_rule_row_weight(R[row], mean) : 1.0F;
    float root = sqrtf(weight * C[col]);
    return grad * rule->grad_scale / (root < rule->eps ? rule->eps : root);
}

static void adafactor_moments(const struct optimizer_rule *rule, float *R, float *C,
                              const float *grad, int64_t rows, int64_t cols) {
    for (int64_t i = 0; R && i < rows; i++) {
        double mean = squares(rule->grad_scale, grad + i * cols, cols) / (double)cols;
        R[i] = rule->past * R[i] + rule->recent * (float)mean;
    }
    for (int64_t j = 0; j < cols; j++) {
        double sum = 0.0;
        for (int64_t i = 0; i < rows; i++) {
            float g = grad[i * cols + j] * rule->grad_scale;
            sum += (double)g * (double)g;
        }
        float g = grad[j] * rule->grad_scale;
        if (R)
            C[j] = rule->past * C[j] + rule->recent * (float)(sum / (double)rows);
        else
            C[j] = rule->past * C[j] + rule->recent * g * g;
    }
}

static void adafactor_step(const struct optimizer_rule *rule, float *weights, float *state,
                           const float *grad) {
    const bool factored = optimizer_rule_factored(&rule->piece);
    const int64_t rows = factored ? rule->piece.rows : 1, cols = rule->count / rows;
    float *R = factored ? state : NULL;
    float *C = factored ? state + optimizer_rule_columns(&rule->piece) : state;
    ASSERT(state);
    adafactor_moments(rule, R, C, grad, rows, cols);
    double mean = R ? optimizer_rule_row_mean(R, rows) : 0.0;
    double sum = 0.0;
    for (int64_t i = 0; i < rows; i++) {
        double row_sum = 0.0;
        for (int64_t lane = 0; lane < 16; lane++) {
            double lane_sum = 0.0;
            for (int64_t j = lane; j < cols; j += 16) {
                double u = (double)adafactor_update(rule, R, C, mean, i, j, grad[i * cols + j]);
                lane_sum += u * u;
            }
            row_sum += lane_sum;
        }
        sum += row_sum;
    }
    double rms = sqrt(sum / (double)rule->count);
    float rate = (float)((double)rule->lr / (rms <= 1.0 ? 1.0 : rms));
    for (int64_t at = 0; at < rule->count; at++) {
        float u = adafactor_update(rule, R, C, mean, at / cols, at % cols, grad[at]);
        weights[at] = weights[at] * rule->keep - rate * u;
    }
}

void optimizer_step_ref(const struct optimizer *optimizer, const struct optimizer_update *update,
                        const struct optimizer_piece *piece, float *weights, void *state,
                        const float *grad, void *scratch) {
    const struct optimizer_rule rule = optimizer_rule_make(optimizer, update, piece, state);
    if (rule.count == 0) return;
    if (rule.kind == OPTIMIZER_ADAFACTOR) {
        adafactor_step(&rule, weights, state, grad);
        return;
    }
    const bool whole = rule.kind == OPTIMIZER_LAMB || rule.kind == OPTIMIZER_MUON;
    step_values(&rule, weights, grad, whole ? scratch : NULL);
    if (!whole) return;
    const float *step = scratch;
    double size = optimizer_rule_muon_scale(piece);
    float keep = rule.keep;
    if (rule.kind == OPTIMIZER_MUON) {
        step = optimizer_product_orthogonal_ref(piece, scratch);
    } else {
        keep = 1.0F;
        size = optimizer_rule_trust(squares(1.0F, weights, rule.count),
                                    squares(1.0F, step, rule.count));
    }
    float rate = (float)((double)rule.lr * size);
    for (int64_t i = 0; i < rule.count; i++)
        weights[i] = weights[i] * keep - rate * step[i];
}

void optimizer_product_ref(const struct optimizer_product *product, const float *a, const float *b,
                           float *c) {
    for (int64_t i = 0; i < product->rows; i++) {
        for (int64_t j = 0; j < product->cols; j++) {
            int64_t at = i * product->cols + j;
            float sum = product->start ? product->keep * product->start[at] : 0.0F;
            for (int64_t k = 0; k < product->inner; k++)
                sum = fmaf(a[i * product->inner + k], b[k * product->cols + j], sum);
            c[at] = sum;
        }
    }
}

float *optimizer_product_orthogonal_ref(const struct optimizer_piece *piece, float *scratch) {
    const int64_t rows = piece->rows, cols = piece->cols, count = rows * cols;
    const bool tall = rows > cols;
    const int64_t n = tall ? cols : rows, m = tall ? rows : cols;
    float *x = scratch, *other = x + optimizer_round64(4 * (size_t)count) / sizeof(float);
    float *a = other + (other - x);
    float *power = a + optimizer_round64(4 * (size_t)(n * n)) / sizeof(float);
    float unit = optimizer_product_unit(squares(1.0F, x, count));
    for (int64_t i = 0; i < count; i++)
        other[tall ? i % cols * rows + i / cols : i] = x[i] * unit;
    memcpy(x, other, (size_t)count * sizeof *x);
    const struct optimizer_product gram = {n, n, m, NULL, 0.0F, false};
    const struct optimizer_product square = {n, n, n, NULL, 0.0F, false};
    const struct optimizer_product next = {n, m, n, x, MUON_A, false};
    for (int step = 0; step < MUON_STEPS; step++) {
        for (int64_t i = 0; i < count; i++)
            other[i % m * n + i / m] = x[i];
        optimizer_product_ref(&gram, x, other, a);
        optimizer_product_ref(&square, a, a, power);
        for (int64_t i = 0; i < n * n; i++)
            power[i] = MUON_B * a[i] + MUON_C * power[i];
        optimizer_product_ref(&next, power, x, other);
        memcpy(x, other, (size_t)count * sizeof *x);
    }
    if (!tall) return x;
    for (int64_t i = 0; i < count; i++)
        other[i % m * n + i / m] = x[i];
    return other;
}

/* Of value i: 1 / c. */
static float divisor_of(const struct optimizer_rule *past, int64_t i) {
    if (past->second.count > 0)
        return sqrtf(1.0F * stored(&past->second, i)) * optimizer_rule_root(past) + past->eps;
    if (past->kind != OPTIMIZER_ADAFACTOR) return 1.0F;
    if (!optimizer_rule_factored(&past->piece)) return sqrtf(past->state[i]) + past->eps;
    const float *R = past->state;
    const float *C = R + optimizer_rule_columns(&past->piece);
    double mean = optimizer_rule_row_mean(R, past->piece.rows);
    float weight = optimizer_rule_row_weight(R[i / past->piece.cols], mean);
    return sqrtf(weight * C[i % past->piece.cols]) + past->eps;
}

/* weights - base, from the state alone; muon and lamb: the direction still to be multiplied. */
static float shift_of(const struct optimizer_rule *past, float rate, int64_t i) {
    float m = stored(&past->first, i);
    if (past->kind == OPTIMIZER_ADAMW || past->kind == OPTIMIZER_LAMB)
        return rate * (m / past->spread / divisor_of(past, i));
    if (past->kind != OPTIMIZER_LION) return rate * m;
    if (m > 0.0F) return rate;
    return m < 0.0F ? -rate : m;
}

/* Ten parameters, but each is plain. NOLINTNEXTLINE(readability-function-size) */
void optimizer_delay_compensate_ref(const struct optimizer *optimizer,
                                    const struct optimizer_update *update,
                                    const struct optimizer_piece *piece, const float *weights,
                                    const void *state, const float *base, float lambda,
                                    uint32_t staleness, float *grad, void *scratch) {
    struct optimizer_rule past;
    if (!optimizer_rule_past(&past, optimizer, update, piece, state, base != NULL)) return;
    float *whole = NULL;
    double size = 1.0;
    if (!base && (past.kind == OPTIMIZER_LAMB || past.kind == OPTIMIZER_MUON)) {
        whole = scratch;
        for (int64_t i = 0; i < past.count; i++)
            whole[i] = shift_of(&past, 1.0F, i);
        if (past.kind == OPTIMIZER_MUON) {
            whole = optimizer_product_orthogonal_ref(piece, scratch);
            size = optimizer_rule_muon_scale(piece);
        } else {
            size = optimizer_rule_trust(squares(1.0F, weights, past.count),
                                        squares(1.0F, whole, past.count));
        }
    }
    const float factor = lambda * update->grad_scale;
    const float rate = optimizer_rule_back(&past, staleness, size);
    for (int64_t i = 0; i < past.count; i++) {
        float shift = whole ? rate * whole[i] : 0.0F;
        if (base) shift = weights[i] - base[i];
        if (!base && !whole) shift = shift_of(&past, rate, i);
        grad[i] = grad[i] + factor * grad[i] * grad[i] * shift / divisor_of(&past, i);
    }
}
