/* optimizer_rules.c - the factors of a step, and the loops over values: see optimizer_rules.h. */
#include "kernels/optimizer_rules.h"

#include "base/assert.h"
#include "kernels/dispatch.h"

#include <math.h>

/* Newton's iteration for the fifth root y of the step, from above, where it falls monotonically;
 * step^-0.8 is then 1 / y^4. libm's pow() may differ in the last bit between versions. */
double optimizer_rule_recent(int64_t step) {
    double wanted = (double)step;
    double root = 1.0;
    while (root * root * root * root * root < wanted)
        root *= 2.0;
    for (int i = 0; i < 16; i++) {
        double fourth = root * root * root * root;
        root = root - (fourth * root - wanted) / (5.0 * fourth);
    }
    return 1.0 / (root * root * root * root);
}

static bool has_first(const struct optimizer *optimizer, enum optimizer_kind kind) {
    if (kind == OPTIMIZER_SGD || kind == OPTIMIZER_NESTEROV) return optimizer->momentum > 0.0F;
    return kind != OPTIMIZER_ADAGRAD && kind != OPTIMIZER_ADAFACTOR;
}

static bool has_second(enum optimizer_kind kind) {
    return kind == OPTIMIZER_ADAGRAD || kind == OPTIMIZER_ADAMW || kind == OPTIMIZER_LAMB;
}

static void place_moments(struct optimizer_rule *rule, const struct optimizer *optimizer,
                          void *state) {
    uint8_t *at = state;
    rule->stored = has_first(optimizer, rule->kind);
    rule->first = (struct moment){optimizer->moments, MOMENT_SIGNED, 0, at};
    if (rule->stored) {
        rule->first.count = rule->count;
        if (at) at += optimizer_moment_bytes(optimizer->moments, rule->count);
    }
    rule->second = (struct moment){optimizer->moments, MOMENT_SQUARE, 0, at};
    if (has_second(rule->kind)) rule->second.count = rule->count;
}

/* v = 1 v + 0 g g, which keeps its bits. */
static void freeze(struct optimizer_rule *rule, const struct optimizer *optimizer) {
    int64_t last = optimizer->freeze_v_after;
    if (last <= 0 || rule->step <= last) return;
    rule->frozen = true;
    rule->adamw.beta2 = 1.0F;
    rule->adamw.part2 = 0.0F;
    rule->adamw.root_scale =
        (float)(1.0 / sqrt(1.0 - optimizer_power((double)optimizer->beta2, last)));
}

struct optimizer_rule optimizer_rule_make(const struct optimizer *optimizer,
                                          const struct optimizer_update *update,
                                          const struct optimizer_piece *piece, void *state) {
    ASSERT_OP(piece->rows, >=, 0);
    ASSERT_OP(piece->cols, >=, 0);
    ASSERT(piece->cols == 0 || piece->rows <= (int64_t)UINT32_MAX / piece->cols);
    ASSERT_OP(update->step, >=, 1);
    const struct adamw adamw = {update->lr,    optimizer->beta1, optimizer->beta2,  optimizer->eps,
                                update->decay, update->step,     update->grad_scale};
    struct optimizer_rule rule = {.kind = optimizer->kind,
                                  .count = piece->rows * piece->cols,
                                  .adamw = optimizer_adamw_factors(&adamw),
                                  .lr = update->lr,
                                  .decay = update->decay,
                                  .grad_scale = update->grad_scale,
                                  .eps = optimizer->eps,
                                  .momentum = optimizer->momentum,
                                  .step = update->step,
                                  .seed = optimizer_moment_seed(update->step),
                                  .state = state,
                                  .piece = *piece};
    if (rule.kind == OPTIMIZER_MUON && !piece->hidden) rule.kind = OPTIMIZER_ADAMW;
    if (rule.kind == OPTIMIZER_ADAMW) freeze(&rule, optimizer);
    rule.keep = rule.adamw.keep;
    if (rule.kind == OPTIMIZER_ADAFACTOR) {
        double recent = optimizer_rule_recent(update->step);
        rule.past = (float)(1.0 - recent);
        rule.recent = (float)recent;
    }
    rule.spread = (float)(1.0 - optimizer_power((double)optimizer->beta1, update->step));
    place_moments(&rule, optimizer, state);
    return rule;
}

bool optimizer_rule_past(struct optimizer_rule *past, const struct optimizer *optimizer,
                         const struct optimizer_update *update, const struct optimizer_piece *piece,
                         const void *state, bool based) {
    struct optimizer_update before = *update;
    before.step--;
    if (before.step < 1) return false;
    /* The rule of a step may write to its state; this one is only read. */
    *past = optimizer_rule_make(optimizer, &before, piece, (void *)state);
    return past->count > 0 && (based || past->stored);
}

KERNEL_CLONES static void nesterov(const struct optimizer_rule *rule, float *restrict weights,
                                   float *restrict m, const float *restrict grad, int64_t count) {
    const float scale = rule->grad_scale, decay = rule->decay;
    const float momentum = rule->momentum, lr = rule->lr;
    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] * scale + decay * weights[i];
        float moved = momentum * m[i] + g;
        m[i] = moved;
        weights[i] -= lr * (g + momentum * moved);
    }
}

/* sgd and nesterov without a momentum. */
KERNEL_CLONES static void descend(const struct optimizer_rule *rule, float *restrict weights,
                                  const float *restrict grad, int64_t count) {
    const float scale = rule->grad_scale, decay = rule->decay, lr = rule->lr;
    for (int64_t i = 0; i < count; i++)
        weights[i] -= lr * (grad[i] * scale + decay * weights[i]);
}

KERNEL_CLONES static void adagrad(const struct optimizer_rule *rule, float *restrict weights,
                                  float *restrict v, const float *restrict grad, int64_t count) {
    const float scale = rule->grad_scale, decay = rule->decay;
    const float eps = rule->eps, lr = rule->lr;
    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] * scale + decay * weights[i];
        float sum = v[i] + g * g;
        v[i] = sum;
        weights[i] -= lr * g / (sqrtf(sum) + eps);
    }
}

KERNEL_CLONES static void lion(const struct optimizer_rule *rule, float *restrict weights,
                               float *restrict m, const float *restrict grad, int64_t count) {
    const struct adamw_factors f = rule->adamw;
    const float lr = rule->lr;
    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] * f.grad_scale;
        float c = f.beta1 * m[i] + f.part1 * g;
        float step = c > 0.0F ? lr : c;
        step = c < 0.0F ? -lr : step;
        m[i] = f.beta2 * m[i] + f.part2 * g;
        weights[i] = weights[i] * f.keep - step;
    }
}

KERNEL_CLONES static void lamb(const struct optimizer_rule *rule, const float *restrict weights,
                               float *restrict m, float *restrict v, const float *restrict grad,
                               float *restrict out, int64_t count) {
    const struct adamw_factors f = rule->adamw;
    const float decay = rule->decay, spread = rule->spread;
    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] * f.grad_scale;
        float first = f.beta1 * m[i] + f.part1 * g;
        float second = f.beta2 * v[i] + f.part2 * g * g;
        m[i] = first;
        v[i] = second;
        float denominator = sqrtf(second) * f.root_scale + f.eps;
        out[i] = first / spread / denominator + decay * weights[i];
    }
}

KERNEL_CLONES static void look_ahead(const struct optimizer_rule *rule, float *restrict m,
                                     const float *restrict grad, float *restrict out,
                                     int64_t count) {
    const float scale = rule->grad_scale, momentum = rule->momentum;
    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] * scale;
        float moved = momentum * m[i] + g;
        m[i] = moved;
        out[i] = g + momentum * moved;
    }
}

KERNEL_CLONES static void move(float keep, float rate, float *restrict weights,
                               const float *restrict step, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        weights[i] = weights[i] * keep - rate * step[i];
}

void optimizer_rule_values(const struct optimizer_rule *rule, const struct optimizer_values *at,
                           int64_t count) {
    const struct sgd sgd = {rule->lr, rule->momentum, rule->decay, rule->grad_scale, rule->step};
    switch (rule->kind) {
    case OPTIMIZER_SGD:
        if (rule->stored)
            optimizer_sgd(&sgd, at->weights, at->m, at->grad, count);
        else
            descend(rule, at->weights, at->grad, count);
        break;
    case OPTIMIZER_NESTEROV:
        if (rule->stored)
            nesterov(rule, at->weights, at->m, at->grad, count);
        else
            descend(rule, at->weights, at->grad, count);
        break;
    case OPTIMIZER_ADAGRAD:
        adagrad(rule, at->weights, at->v, at->grad, count);
        break;
    case OPTIMIZER_ADAMW:
        optimizer_adamw_values(&rule->adamw, at->weights, at->m, at->v, at->grad, count);
        break;
    case OPTIMIZER_LION:
        lion(rule, at->weights, at->m, at->grad, count);
        break;
    case OPTIMIZER_LAMB:
        lamb(rule, at->weights, at->m, at->v, at->grad, at->out, count);
        break;
    case OPTIMIZER_MUON:
        look_ahead(rule, at->m, at->grad, at->out, count);
        break;
    case OPTIMIZER_ADAFACTOR:
        ASSERT(!"adafactor's values depend on each other");
    }
}

void optimizer_rule_move(float keep, float rate, float *weights, const float *step, int64_t count) {
    move(keep, rate, weights, step, count);
}
