/* optimizer_state.c - the optimizers by name, their memory, and a step of a whole piece.
 *
 * With moments in f32 the loops run over the piece in place, and AdamW's with bf16, too; else over
 * chunks that are decoded, stepped and encoded again while they are in the first cache.
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

/* The values from `first` on, one by one; first as optimizer_moment_load()'s. */
static void step_chunk(const struct optimizer_rule *rule, const struct optimizer_values *values,
                       int64_t first, int64_t count) {
    float m[MOMENT_CHUNK], v[MOMENT_CHUNK];
    struct optimizer_values chunk = *values;
    chunk.m = m;
    chunk.v = v;
    if (rule->first.count > 0) optimizer_moment_load(&rule->first, first, count, m);
    if (rule->second.count > 0) optimizer_moment_load(&rule->second, first, count, v);
    optimizer_rule_values(rule, &chunk, count);
    if (rule->first.count > 0) optimizer_moment_store(&rule->first, first, count, m, rule->seed);
    if (rule->second.count > 0 && !rule->frozen)
        optimizer_moment_store(&rule->second, first, count, v, rule->seed);
}

/* The same for any number of them, in the way that is fastest for the moments' type. */
static void step_values(const struct optimizer_rule *rule, const struct optimizer_values *values,
                        int64_t first, int64_t count) {
    struct optimizer_values at = *values;
    if (rule->first.type == MOMENT_F32) {
        at.m = rule->first.count > 0 ? (float *)rule->first.data + first : NULL;
        at.v = rule->second.count > 0 ? (float *)rule->second.data + first : NULL;
        optimizer_rule_values(rule, &at, count);
        return;
    }
    if (rule->first.type == MOMENT_BF16 && rule->kind == OPTIMIZER_ADAMW && !rule->frozen) {
        const struct halves_at place = {(uint32_t)first, rule->seed};
        optimizer_adamw_halves(&rule->adamw, at.weights, (uint16_t *)rule->first.data + first,
                               (uint16_t *)rule->second.data + first, at.grad, count, place);
        return;
    }
    for (int64_t done = 0, n; done < count; done += n) {
        n = count - done < MOMENT_CHUNK ? count - done : MOMENT_CHUNK;
        step_chunk(rule, &at, first + done, n);
        at.weights += n;
        at.grad += n;
        if (at.out) at.out += n;
    }
}

static bool is_whole(enum optimizer_kind kind) {
    return kind == OPTIMIZER_LAMB || kind == OPTIMIZER_MUON || kind == OPTIMIZER_ADAFACTOR;
}

/* The kinds of is_whole(). */
static void step_whole(const struct optimizer_rule *rule, float *weights, void *state,
                       const float *grad, void *scratch) {
    if (rule->kind == OPTIMIZER_ADAFACTOR) {
        optimizer_adafactor_step(rule, weights, state, grad, scratch);
        return;
    }
    const struct optimizer_values all = {.weights = weights, .grad = grad, .out = scratch};
    step_values(rule, &all, 0, rule->count);
    if (rule->kind == OPTIMIZER_LAMB) {
        double trust = optimizer_rule_trust(optimizer_sum_of_squares(weights, rule->count),
                                            optimizer_sum_of_squares(scratch, rule->count));
        float rate = (float)((double)rule->lr * trust);
        optimizer_rule_move(1.0F, rate, weights, scratch, rule->count);
    } else {
        const float *step = optimizer_product_orthogonal(&rule->piece, scratch);
        float rate = (float)((double)rule->lr * optimizer_rule_muon_scale(&rule->piece));
        optimizer_rule_move(rule->keep, rate, weights, step, rule->count);
    }
}

void optimizer_step(const struct optimizer *optimizer, const struct optimizer_update *update,
                    const struct optimizer_piece *piece, float *weights, void *state,
                    const float *grad, void *scratch) {
    const struct optimizer_rule rule = optimizer_rule_make(optimizer, update, piece, state);
    const struct optimizer_values all = {.weights = weights, .grad = grad};
    if (rule.count == 0) return;
    if (is_whole(rule.kind))
        step_whole(&rule, weights, state, grad, scratch);
    else
        step_values(&rule, &all, 0, rule.count);
}

void optimizer_step_tiles(const struct optimizer *optimizer, const struct optimizer_update *update,
                          const struct optimizer_piece *piece, float *weights, void *state,
                          const struct optimizer_tiles *tiles, void *scratch) {
    const struct optimizer_rule rule = optimizer_rule_make(optimizer, update, piece, state);
    const bool whole = is_whole(rule.kind);
    ASSERT(tiles->size > 0 && tiles->size % MOMENT_BLOCK == 0);
    for (int64_t first = 0, count; first < rule.count; first += count) {
        int64_t left = rule.count - first;
        count = left < tiles->size || whole ? left : tiles->size;
        const struct optimizer_values tile = {.weights = weights + first,
                                              .grad = tiles->grad(tiles->context, first, count)};
        if (whole)
            step_whole(&rule, weights, state, tile.grad, scratch);
        else
            step_values(&rule, &tile, first, count);
        tiles->done(tiles->context, first, count);
    }
}
