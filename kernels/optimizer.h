/* optimizer.h - one optimizer step on a contiguous piece of the parameters.
 *
 * The same bits on every chip and from the plain twin (_ref): each value goes through the same
 * correctly rounded f32 operations in the same order (no fused multiply-add, no reciprocal
 * approximations), with factors computed once in double (kernels/optimizer_factors.h). Only which
 * NaN a NaN is may differ. AdamW: Loshchilov, Hutter, arXiv 1711.05101, in the form of PyTorch's
 * AdamW (decay first, bias corrections in the step size and the denominator). One thread: the
 * shards, which own disjoint pieces, are the parallelism. All arrays f32 on the host and the
 * caller's, none overlapping another.
 */
#ifndef RUBATO_KERNELS_OPTIMIZER_H
#define RUBATO_KERNELS_OPTIMIZER_H

#include <stdint.h>

struct adamw {
    float lr, beta1, beta2, eps, decay; /* decay 0: none; betas in [0, 1) */
    int64_t step;                       /* of this update, from 1: for the bias corrections */
    float grad_scale;                   /* the gradient is multiplied by it first (1/W, clip) */
};

/* weights, m, v [N] in place; grad [N] is read only. In this order, each operation rounded:
 *   g = grad * grad_scale
 *   w = w * (1 - lr * decay)
 *   m = beta1 * m + (1 - beta1) * g
 *   v = beta2 * v + ((1 - beta2) * g) * g
 *   w = w - ((lr / (1 - beta1^step)) * m) / (sqrt(v) * (1 / sqrt(1 - beta2^step)) + eps)
 * Each factor that no value is in is one number, rounded once: a value costs one division. */
void optimizer_adamw(const struct adamw *adamw, float *weights, float *m, float *v,
                     const float *grad, int64_t N);
void optimizer_adamw_ref(const struct adamw *adamw, float *weights, float *m, float *v,
                         const float *grad, int64_t N);

struct sgd {
    float lr, momentum, decay;
    float grad_scale;
    int64_t step; /* from 1; at 1 the momentum buffer is set to the gradient, as PyTorch does */
};

/* weights, velocity [N] in place; grad [N] is read only. In this order, each operation rounded:
 *   g = grad * grad_scale
 *   g = g + decay * w
 *   velocity = momentum * velocity + g, at step 1 g
 *   w = w - lr * velocity */
void optimizer_sgd(const struct sgd *sgd, float *weights, float *velocity, const float *grad,
                   int64_t N);
void optimizer_sgd_ref(const struct sgd *sgd, float *weights, float *velocity, const float *grad,
                       int64_t N);

/* Sum of squares of grad [N] in double, in one fixed order on every chip: 16 lanes over the index
 * modulo 16, then lane 0 + lane 1 + ... Not finite if a value is not. */
double optimizer_sum_of_squares(const float *grad, int64_t N);
double optimizer_sum_of_squares_ref(const float *grad, int64_t N);

#endif
