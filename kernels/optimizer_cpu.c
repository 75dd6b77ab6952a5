/* optimizer_cpu.c - the same operations as the twin, vectorised.
 *
 * Multiply, add, divide and square root are correctly rounded in vectors too, and the compiler may
 * neither reorder nor fuse them: -ffp-contract=off, and no -ffast-math. The square of an f32 is
 * exact in double, so the sum of squares has one rounding a value.
 */
#include "kernels/dispatch.h"
#include "kernels/optimizer.h"
#include "kernels/optimizer_factors.h"
#include "kernels/optimizer_rules.h"

#include <math.h>

enum { LANES = 16 };

KERNEL_CLONES static void adamw_values(const struct adamw_factors *factors, float *restrict weights,
                                       float *restrict m, float *restrict v,
                                       const float *restrict grad, int64_t N) {
    const struct adamw_factors f = *factors;
    for (int64_t i = 0; i < N; i++) {
        float g = grad[i] * f.grad_scale;
        float w = weights[i] * f.keep;
        float first = f.beta1 * m[i] + f.part1 * g;
        float second = f.beta2 * v[i] + f.part2 * g * g;
        float denominator = sqrtf(second) / f.root_correction + f.eps;
        m[i] = first;
        v[i] = second;
        weights[i] = w - f.step_size * first / denominator;
    }
}

/* At the first step there is no velocity yet: what the memory holds, even a NaN, must not count. */
KERNEL_CLONES static void sgd_first(const struct sgd *sgd, float *restrict weights,
                                    float *restrict velocity, const float *restrict grad,
                                    int64_t N) {
    const struct sgd f = *sgd;
    for (int64_t i = 0; i < N; i++) {
        float g = grad[i] * f.grad_scale + f.decay * weights[i];
        velocity[i] = g;
        weights[i] -= f.lr * g;
    }
}

KERNEL_CLONES static void sgd_values(const struct sgd *sgd, float *restrict weights,
                                     float *restrict velocity, const float *restrict grad,
                                     int64_t N) {
    const struct sgd f = *sgd;
    for (int64_t i = 0; i < N; i++) {
        float g = grad[i] * f.grad_scale + f.decay * weights[i];
        float moved = f.momentum * velocity[i] + g;
        velocity[i] = moved;
        weights[i] -= f.lr * moved;
    }
}

KERNEL_CLONES static double sum_of_squares(const float *restrict grad, int64_t N) {
    double lanes[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= N; i += LANES) {
        for (int lane = 0; lane < LANES; lane++)
            lanes[lane] += (double)grad[i + lane] * (double)grad[i + lane];
    }
    for (int lane = 0; i + lane < N; lane++)
        lanes[lane] += (double)grad[i + lane] * (double)grad[i + lane];
    double sum = 0.0;
    for (int lane = 0; lane < LANES; lane++)
        sum += lanes[lane];
    return sum;
}

void optimizer_adamw(const struct adamw *adamw, float *weights, float *m, float *v,
                     const float *grad, int64_t N) {
    const struct adamw_factors factors = optimizer_adamw_factors(adamw);
    adamw_values(&factors, weights, m, v, grad, N);
}

void optimizer_adamw_values(const struct adamw_factors *factors, float *weights, float *m, float *v,
                            const float *grad, int64_t N) {
    adamw_values(factors, weights, m, v, grad, N);
}

void optimizer_sgd(const struct sgd *sgd, float *weights, float *velocity, const float *grad,
                   int64_t N) {
    if (sgd->step == 1)
        sgd_first(sgd, weights, velocity, grad, N);
    else
        sgd_values(sgd, weights, velocity, grad, N);
}

double optimizer_sum_of_squares(const float *grad, int64_t N) {
    return sum_of_squares(grad, N);
}
