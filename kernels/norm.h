/* norm.h - layer normalisation over the last dimension (Ba, Kiros, Hinton, arXiv 1607.06450).
 *
 * y = (x - mean) * rstd * gain + bias, rstd = 1 / sqrt(var + eps), biased variance.
 * Gradients of parameters are added to what is there, gradients of inputs likewise where the name
 * says _add. All arrays f32 on the host and the caller's, none overlapping another; rows R,
 * channels C >= 1. The bits do not depend on the thread count. The _ref twins are the oracles. Any
 * thread may call.
 */
#ifndef RUBATO_KERNELS_NORM_H
#define RUBATO_KERNELS_NORM_H

#include "kernels/residual.h"

#include <stdint.h>

/* x [R, C], gain [C], bias [C] -> y [R, C], mean [R], rstd [R]. */
void norm_forward(const float *x, const float *gain, const float *bias, float *y, float *mean,
                  float *rstd, int64_t R, int64_t C, float eps);
void norm_forward_ref(const float *x, const float *gain, const float *bias, float *y, float *mean,
                      float *rstd, int64_t R, int64_t C, float eps);

/* Likewise of residual.sum, which it makes: one pass over memory less. */
struct norm_result {
    float *y, *mean, *rstd;
};
void norm_residual_forward(const struct residual *residual, const float *gain, const float *bias,
                           const struct norm_result *result, int64_t R, int64_t C, float eps);
void norm_residual_forward_ref(const struct residual *residual, const float *gain,
                               const float *bias, const struct norm_result *result, int64_t R,
                               int64_t C, float eps);

/* What the forward pass had and made: x [R, C], mean [R], rstd [R], gain [C]. */
struct norm_saved {
    const float *x, *mean, *rstd, *gain;
};

/* dy [R, C] -> dx [R, C] +=, dgain [C] +=, dbias [C] +=. */
void norm_backward_add(const struct norm_saved *saved, const float *dy, float *dx, float *dgain,
                       float *dbias, int64_t R, int64_t C);
void norm_backward_add_ref(const struct norm_saved *saved, const float *dy, float *dx, float *dgain,
                           float *dbias, int64_t R, int64_t C);

#endif
