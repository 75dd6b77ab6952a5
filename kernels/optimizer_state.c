/* optimizer_state.c - the optimizers by name, their memory, and a step of a whole piece.
 *
 * With moments in f32 the loops run over the piece in place; else over chunks that are decoded,
 * stepped and encoded again while they are in the first cache.
 */
#include "kernels/optimizer_state.h"

#include "base/assert.h"
#include "kernels/optimizer_product.h"
#include "kernels/optimizer_rules.h"

#include <string.h>

static const char *const kinds[] = {"sgd",  "nesterov", "adagrad",   "adamw",
                                    "lion", "lamb",     "adafactor", "muon"};
static const char *const types[] = {"f32", "bf16", "int8"};

bool optimizer_find(const char *name, enum optimizer_kind *kind) {
    for (int i = 0; i <= OPTIMIZER_MUON; i++) {
        if (strcmp(name, kinds[i]) != 0) continue;
        *kind = (enum optimizer_kind)i;
        return true;
    }
    return false;
}

bool moment_find(const char *name, enum moment_type *type) {
    for (int i = 0; i <= MOMENT_INT8; i++) {
        if (strcmp(name, types[i]) != 0) continue;
        *type = (enum moment_type)i;
        return true;
    }
    return false;
}

size_t optimizer_state_bytes(const struct optimizer *optimizer,
                             const struct optimizer_piece *piece) {
    const struct optimizer_update update = {.step = 1};
    const struct optimizer_rule rule = optimizer_rule_make(optimizer, &update, piece, NULL);
    if (rule.kind == OPTIMIZER_ADAFACTOR) {
        if (!optimizer_rule_factored(piece)) return optimizer_round64(4 * (size_t)rule.count);
        return optimizer_round64(4 * (size_t)piece->rows) +
               optimizer_round64(4 * (size_t)piece->cols);
    }
    return optimizer_moment_bytes(optimizer->moments, rule.first.count) +
           optimizer_moment_bytes(optimizer->moments, rule.second.count);
}

float *optimizer_first_moment(const struct optimizer *optimizer, void *state) {
    ASSERT(optimizer->kind == OPTIMIZER_ADAMW && optimizer->moments == MOMENT_F32);
    return state;
}

size_t optimizer_scratch_bytes(const struct optimizer *optimizer,
                               const struct optimizer_piece *piece) {
    size_t values = (size_t)(piece->rows * piece->cols);
    if (optimizer->kind == OPTIMIZER_LAMB) return optimizer_round64(4 * values);
    if (optimizer->kind == OPTIMIZER_ADAFACTOR)
        return optimizer_rule_factored(piece) ? optimizer_round64(8 * (size_t)piece->cols) : 0;
    if (optimizer->kind != OPTIMIZER_MUON || !piece->hidden) return 0;
    size_t shorter = (size_t)(piece->rows < piece->cols ? piece->rows : piece->cols);
    return 2 * optimizer_round64(4 * values) + 2 * optimizer_round64(4 * shorter * shorter);
}

/* The whole piece, value after value. out: what lamb and muon leave in scratch. Both are written by
 * way of a struct. NOLINTNEXTLINE(readability-non-const-parameter) */
static void step_values(const struct optimizer_rule *rule, float *weights, float *out,
                        const float *grad) {
    if (rule->first.type == MOMENT_F32) {
        const struct optimizer_values all = {weights, rule->first.data, rule->second.data, grad,
                                             out};
        optimizer_rule_values(rule, &all, rule->count);
        return;
    }
    float m[MOMENT_CHUNK], v[MOMENT_CHUNK];
    for (int64_t at = 0; at < rule->count; at += MOMENT_CHUNK) {
        int64_t count = rule->count - at < MOMENT_CHUNK ? rule->count - at : MOMENT_CHUNK;
        const struct optimizer_values chunk = {weights + at, m, v, grad + at,
                                               out ? out + at : NULL};
        if (rule->first.count > 0) optimizer_moment_load(&rule->first, at, count, m);
        if (rule->second.count > 0) optimizer_moment_load(&rule->second, at, count, v);
        optimizer_rule_values(rule, &chunk, count);
        if (rule->first.count > 0) optimizer_moment_store(&rule->first, at, count, m, rule->seed);
        if (rule->second.count > 0 && !rule->frozen)
            optimizer_moment_store(&rule->second, at, count, v, rule->seed);
    }
}

void optimizer_step(const struct optimizer *optimizer, const struct optimizer_update *update,
                    const struct optimizer_piece *piece, float *weights, void *state,
                    const float *grad, void *scratch) {
    const struct optimizer_rule rule = optimizer_rule_make(optimizer, update, piece, state);
    if (rule.count == 0) return;
    if (rule.kind == OPTIMIZER_ADAFACTOR) {
        optimizer_adafactor_step(&rule, weights, state, grad, scratch);
        return;
    }
    const bool whole = rule.kind == OPTIMIZER_LAMB || rule.kind == OPTIMIZER_MUON;
    step_values(&rule, weights, whole ? scratch : NULL, grad);
    if (rule.kind == OPTIMIZER_LAMB) {
        double trust = optimizer_rule_trust(optimizer_sum_of_squares(weights, rule.count),
                                            optimizer_sum_of_squares(scratch, rule.count));
        float rate = (float)((double)rule.lr * trust);
        optimizer_rule_move(1.0F, rate, weights, scratch, rule.count);
    }
    if (rule.kind == OPTIMIZER_MUON) {
        const float *step = optimizer_product_orthogonal(piece, scratch);
        float rate = (float)((double)rule.lr * optimizer_rule_muon_scale(piece));
        optimizer_rule_move(rule.keep, rate, weights, step, rule.count);
    }
}
