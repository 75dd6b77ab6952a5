/* optimizer_ref.c - the twin: the header's formulas, a value at a time. Built without clones and
 * without contraction, so it is the plain IEEE answer.
 */
#include "kernels/optimizer.h"
#include "kernels/optimizer_factors.h"

#include <math.h>

void optimizer_adamw_ref(const struct adamw *adamw, float *weights, float *m, float *v,
                         const float *grad, int64_t N) {
    const struct adamw_factors f = optimizer_adamw_factors(adamw);
    for (int64_t i = 0; i < N; i++) {
        float g = grad[i] * f.grad_scale;
        float w = weights[i] * f.keep;
        m[i] = f.beta1 * m[i] + f.part1 * g;
        v[i] = f.beta2 * v[i] + f.part2 * g * g;
        float denominator = sqrtf(v[i]) * f.root_scale + f.eps;
        weights[i] = w - f.step_size * m[i] / denominator;
    }
}

void optimizer_sgd_ref(const struct sgd *sgd, float *weights, float *velocity, const float *grad,
                       int64_t N) {
    for (int64_t i = 0; i < N; i++) {
        float g = grad[i] * sgd->grad_scale;
        g = g + sgd->decay * weights[i];
        velocity[i] = sgd->step == 1 ? g : sgd->momentum * velocity[i] + g;
        weights[i] = weights[i] - sgd->lr * velocity[i];
    }
}

double optimizer_sum_of_squares_ref(const float *grad, int64_t N) {
    double sum = 0.0;
    for (int64_t lane = 0; lane < 16; lane++) {
        double lane_sum = 0.0;
        for (int64_t i = lane; i < N; i += 16)
            lane_sum += (double)grad[i] * (double)grad[i];
        sum += lane_sum;
    }
    return sum;
}
