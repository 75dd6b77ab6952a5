/* optimizer.h - one optimizer step on a contiguous piece of the parameters.
 *
 * The same bits on every chip and from the plain twin (_ref): each value goes through the same
 * correctly rounded operations in the same order. AdamW: Loshchilov, Hutter, arXiv 1711.05101, in the form
 * of PyTorch's AdamW (decay first, bias corrections in the step size and the denominator).
 */
#ifndef RUBATO_KERNELS_OPTIMIZER_H
#define RUBATO_KERNELS_OPTIMIZER_H

#include <stdint.h>

struct adamw {
    float lr, beta1, beta2, eps, decay; /* decay 0: none */
    int64_t step;                       /* of this update, from 1: for the bias corrections */
    float grad_scale;                   /* the gradient is multiplied by it first (1/W, clip) */
};

/* weights, m, v [N] in place; grad [N] is read only. */
void optimizer_adamw(const struct adamw *adamw, float *weights, float *m, float *v,
                     const float *grad, int64_t N);
void optimizer_adamw_ref(const struct adamw *adamw, float *weights, float *m, float *v,
                         const float *grad, int64_t N);

struct sgd {
    float lr, momentum, decay;
    float grad_scale;
    int64_t step; /* from 1; at 1 the momentum buffer is set to the gradient, as PyTorch does */
};

/* weights, velocity [N] in place. g += decay * w; velocity = momentum * velocity + g; w -= lr * velocity. */
void optimizer_sgd(const struct sgd *sgd, float *weights, float *velocity, const float *grad,
                   int64_t N);
void optimizer_sgd_ref(const struct sgd *sgd, float *weights, float *velocity, const float *grad,
                       int64_t N);

/* Sum of squares of grad [N] in double, in one fixed order on every chip: 16 lanes over the index
 * modulo 16, then lane 0 + lane 1 + ... Not finite if a value is not. */
double optimizer_sum_of_squares(const float *grad, int64_t N);
double optimizer_sum_of_squares_ref(const float *grad, int64_t N);

#endif
