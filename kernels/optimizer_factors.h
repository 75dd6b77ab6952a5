/* optimizer_factors.h - the f32 factors of an AdamW step, the same on every chip.
 *
 * Computed in double and rounded once. Powers are made by repeated squaring rather than libm's
 * pow(), whose last bit may differ between chips and versions. Shared by the fast kernel and its
 * twin.
 */
#ifndef RUBATO_KERNELS_OPTIMIZER_FACTORS_H
#define RUBATO_KERNELS_OPTIMIZER_FACTORS_H

#include "kernels/optimizer.h"

#include <math.h>

struct adamw_factors {
    float grad_scale;
    float keep;         /* 1 - lr * decay */
    float beta1, part1; /* part1 = 1 - beta1 */
    float beta2, part2; /* part2 = 1 - beta2 */
    float step_size;    /* lr / (1 - beta1^step) */
    float root_scale;   /* 1 / sqrt(1 - beta2^step) */
    float eps;
};

/* base^exponent, exponent >= 0. */
static inline double optimizer_power(double base, int64_t exponent) {
    double result = 1.0;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1) result *= base;
        base *= base;
    }
    return result;
}

static inline struct adamw_factors optimizer_adamw_factors(const struct adamw *adamw) {
    double lr = (double)adamw->lr, beta1 = (double)adamw->beta1, beta2 = (double)adamw->beta2;
    struct adamw_factors factors;
    factors.grad_scale = adamw->grad_scale;
    factors.keep = (float)(1.0 - lr * (double)adamw->decay);
    factors.beta1 = adamw->beta1;
    factors.part1 = (float)(1.0 - beta1);
    factors.beta2 = adamw->beta2;
    factors.part2 = (float)(1.0 - beta2);
    factors.step_size = (float)(lr / (1.0 - optimizer_power(beta1, adamw->step)));
    factors.root_scale = (float)(1.0 / sqrt(1.0 - optimizer_power(beta2, adamw->step)));
    factors.eps = adamw->eps;
    return factors;
}

#endif
