/* optimizer_rules.h - what all files of kernels/optimizer_state.h share: a step's factors, where a
 * state's arrays lie, and the loops over values whose moments are in f32.
 *
 * Factors are computed in double and rounded once, as those of kernels/optimizer_factors.h, with
 * nothing but the operations that every chip rounds alike. Internal to kernels/optimizer*.c.
 */
#ifndef RUBATO_KERNELS_OPTIMIZER_RULES_H
#define RUBATO_KERNELS_OPTIMIZER_RULES_H

#include "kernels/optimizer_factors.h"
#include "kernels/optimizer_moment.h"
#include "kernels/optimizer_state.h"

struct optimizer_rule {
    enum optimizer_kind kind; /* what this piece gets: muon's other pieces are adamw here */
    int64_t count;            /* rows * cols */
    bool stored;              /* there is a first moment */
    bool frozen;              /* adamw: v stays */
    struct adamw_factors adamw;
    float lr, decay, keep, grad_scale, eps, momentum; /* keep: 1 - lr decay */
    float past, recent; /* adafactor alone: 1 - step^-0.8, step^-0.8 */
    float spread;       /* lamb: 1 - beta1^step */
    int64_t step;
    uint32_t seed;                /* of the stored moments' rounding */
    struct moment first, second;  /* count 0 where the kind has none */
    const float *state;           /* as given */
    struct optimizer_piece piece; /* as given */
};

/* ASSERTs that the piece is not too large. state may be NULL where it is not touched. */
struct optimizer_rule optimizer_rule_make(const struct optimizer *optimizer,
                                          const struct optimizer_update *update,
                                          const struct optimizer_piece *piece, void *state);

/* 1 / step^0.8, the same bits everywhere; step >= 1. */
double optimizer_rule_recent(int64_t step);

/* sqrt(sum of squares) ratio |w| / |r|, 1 where one of the two is 0. */
static inline double optimizer_rule_trust(double weights_squared, double step_squared) {
    if (weights_squared == 0.0 || step_squared == 0.0) return 1.0;
    return sqrt(weights_squared) / sqrt(step_squared);
}

/* Muon: 0.2 sqrt(max(rows, cols)). */
static inline double optimizer_rule_muon_scale(const struct optimizer_piece *piece) {
    int64_t longer = piece->rows > piece->cols ? piece->rows : piece->cols;
    return 0.2 * sqrt((double)longer);
}

/* A piece whose second moment adafactor factors. */
static inline bool optimizer_rule_factored(const struct optimizer_piece *piece) {
    return piece->rows > 1 && piece->cols > 1;
}

/* Adafactor: from R to the C behind it, in values. */
static inline size_t optimizer_rule_columns(const struct optimizer_piece *piece) {
    return optimizer_round64(4 * (size_t)piece->rows) / sizeof(float);
}

/* Adafactor: R[i] / mean(R), 0 for all where no row ever had a gradient. */
static inline float optimizer_rule_row_weight(float row, double mean) {
    return mean == 0.0 ? 0.0F : (float)((double)row / mean);
}

/* For delay compensation: the factors of the step before `update`, which made the state. False
 * where the gradient stays: there was none, or neither a base nor a direction is known. */
bool optimizer_rule_past(struct optimizer_rule *past, const struct optimizer *optimizer,
                         const struct optimizer_update *update, const struct optimizer_piece *piece,
                         const void *state, bool based);

/* What sqrt(v) is multiplied by for sqrt(v_hat): adagrad's v is a sum over the steps. */
static inline float optimizer_rule_root(const struct optimizer_rule *rule) {
    if (rule->kind == OPTIMIZER_ADAGRAD) return (float)(1.0 / sqrt((double)rule->step));
    return rule->adamw.root_scale;
}

/* From a direction to weights - base. */
static inline float optimizer_rule_back(const struct optimizer_rule *rule, uint32_t staleness,
                                        double size) {
    return (float)(-(double)staleness * (double)rule->lr * size);
}

/* Adafactor: mean(R). */
static inline double optimizer_rule_row_mean(const float *R, int64_t rows) {
    double sum = 0.0;
    for (int64_t i = 0; i < rows; i++)
        sum += (double)R[i];
    return sum / (double)rows;
}

/* What one run of values is made of, [count] f32 each; NULL where the kind has none. */
struct optimizer_values {
    float *weights;
    float *m, *v;
    const float *grad; /* as given, not yet scaled */
    float *out;        /* lamb: r; muon: g + momentum m; the weights then stay */
};

/* Every kind but adafactor, whose values depend on each other. */
void optimizer_rule_values(const struct optimizer_rule *rule, const struct optimizer_values *at,
                           int64_t count);

/* optimizer_adamw() with the factors at hand: the same bits. */
void optimizer_adamw_values(const struct adamw_factors *factors, float *weights, float *m, float *v,
                            const float *grad, int64_t N);

/* Where values lie in their piece, and the seed of the step: for random bits. */
struct halves_at {
    uint32_t index, seed;
};

/* One pass instead of loading bf16 moments [N], optimizer_adamw_values() and storing them. */
void optimizer_adamw_halves(const struct adamw_factors *factors, float *weights, uint16_t *m,
                            uint16_t *v, const float *grad, int64_t N, struct halves_at at);

/* w = w * keep - rate * step */
void optimizer_rule_move(float keep, float rate, float *weights, const float *step, int64_t count);

/* The whole piece. State: R [rows], C [cols], f32, each from a multiple of 64 bytes on; or v
 * [count]. scratch as optimizer_step()'s. */
void optimizer_adafactor_step(const struct optimizer_rule *rule, float *weights, void *state,
                              const float *grad, double *scratch);

#endif
