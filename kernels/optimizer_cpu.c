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

/* AdamW waits for memory, and dividing keeps the chip from looking far enough ahead by itself. So
 * each line is asked for AHEAD bytes before its turn. AMD's Zen 5 follows the streams of f32
 * moments by itself: there asking made a step 3 % slower, and a push in one pass 6 %. With bf16
 * moments it does not, and AHEAD was a tenth slower than AHEAD_AMD. AMD's older chips were not
 * tried. */
enum { AHEAD = 2048, AHEAD_AMD = 3072, LINE = 64 };
enum { LINE_VALUES = LINE / sizeof(float), HALVES = 2 * LINE_VALUES };

static inline float adamw_value(const struct adamw_factors *f, float weight, float first,
                                float second) {
    float denominator = sqrtf(second) * f->root_scale + f->eps;
    return weight * f->keep - f->step_size * first / denominator;
}

static inline void adamw_run(const struct adamw_factors *f, float *restrict weights,
                             float *restrict m, float *restrict v, const float *restrict grad,
                             int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] * f->grad_scale;
        float first = f->beta1 * m[i] + f->part1 * g;
        float second = f->beta2 * v[i] + f->part2 * g * g;
        m[i] = first;
        v[i] = second;
        weights[i] = adamw_value(f, weights[i], first, second);
    }
}

KERNEL_CLONES static void adamw_values(const struct adamw_factors *factors, float *restrict weights,
                                       float *restrict m, float *restrict v,
                                       const float *restrict grad, int64_t N) {
    const struct adamw_factors f = *factors;
    const bool asks = !kernel_chip_is_amd();
    int64_t i = 0;
    for (; i + LINE_VALUES <= N; i += LINE_VALUES) {
        if (asks) {
            kernel_prefetch(weights + i, AHEAD);
            kernel_prefetch(m + i, AHEAD);
            kernel_prefetch(v + i, AHEAD);
            kernel_prefetch(grad + i, AHEAD);
        }
        adamw_run(&f, weights + i, m + i, v + i, grad + i, LINE_VALUES);
    }
    adamw_run(&f, weights + i, m + i, v + i, grad + i, N - i);
}

/* optimizer_moment_to_bf16() of what arithmetic made: a NaN of its keeps its quiet bit. `below` is
 * the upper half of that function's random bits. */
static inline uint16_t to_half(float value, uint32_t below) {
    uint32_t bits = optimizer_moment_bits(value);
    bool finite = (bits & 0x7fffffffU) < MOMENT_INFINITY;
    return (uint16_t)((bits + (finite ? below : 0)) >> 16);
}

static inline void halves_run(const struct adamw_factors *f, float *restrict weights,
                              uint16_t *restrict m, uint16_t *restrict v,
                              const float *restrict grad, int64_t count, struct halves_at at) {
    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] * f->grad_scale;
        float first = f->beta1 * optimizer_moment_from_bf16(m[i]) + f->part1 * g;
        float second = f->beta2 * optimizer_moment_from_bf16(v[i]) + f->part2 * g * g;
        /* One number for both moments: the roles take its two halves. */
        uint32_t random = optimizer_moment_random(at.index + (uint32_t)i, at.seed, MOMENT_SIGNED);
        m[i] = to_half(first, random >> 16);
        v[i] = to_half(second, random & 0xffff);
        weights[i] = adamw_value(f, weights[i], first, second);
    }
}

KERNEL_CLONES static void halves_values(const struct adamw_factors *factors,
                                        float *restrict weights, uint16_t *restrict m,
                                        uint16_t *restrict v, const float *restrict grad, int64_t N,
                                        struct halves_at at) {
    const struct adamw_factors f = *factors;
    const size_t ahead = kernel_chip_is_amd() ? AHEAD_AMD : AHEAD;
    int64_t i = 0;
    for (; i + HALVES <= N; i += HALVES, at.index += HALVES) {
        kernel_prefetch(weights + i, ahead);
        kernel_prefetch(weights + i, ahead + LINE);
        kernel_prefetch(m + i, ahead);
        kernel_prefetch(v + i, ahead);
        kernel_prefetch(grad + i, ahead);
        kernel_prefetch(grad + i, ahead + LINE);
        halves_run(&f, weights + i, m + i, v + i, grad + i, HALVES, at);
    }
    halves_run(&f, weights + i, m + i, v + i, grad + i, N - i, at);
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

void optimizer_adamw_halves(const struct adamw_factors *factors, float *weights, uint16_t *m,
                            uint16_t *v, const float *grad, int64_t N, struct halves_at at) {
    halves_values(factors, weights, m, v, grad, N, at);
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
