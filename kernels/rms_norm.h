/* rms_norm.h - root mean square normalisation over the last dimension (Zhang, Sennrich, arXiv
 * 1910.07467).
 *
 * y = x * rstd * gain, rstd = 1 / sqrt(mean(x^2) + eps): a layer norm (kernels/norm.h) without mean
 * and bias. Gradients are added to what is there. All arrays f32 on the host and the caller's, none
 * overlapping another; rows R, channels C >= 1. The bits do not depend on the thread count. The
 * _ref twins are the oracles. Any thread may call.
 */
#ifndef RUBATO_KERNELS_RMS_NORM_H
#define RUBATO_KERNELS_RMS_NORM_H

#include "kernels/residual.h"

#include <stdint.h>

/* x [R, C], gain [C] -> y [R, C], rstd [R]. */
void rms_norm_forward(const float *x, const float *gain, float *y, float *rstd, int64_t R,
                      int64_t C, float eps);
void rms_norm_forward_ref(const float *x, const float *gain, float *y, float *rstd, int64_t R,
                          int64_t C, float eps);

/* Likewise of residual.sum, which it makes: one pass over memory less. */
void rms_norm_residual_forward(const struct residual *residual, const float *gain, float *y,
                               float *rstd, int64_t R, int64_t C, float eps);
void rms_norm_residual_forward_ref(const struct residual *residual, const float *gain, float *y,
                                   float *rstd, int64_t R, int64_t C, float eps);

/* What the forward pass had and made: x [R, C], rstd [R], gain [C]. */
struct rms_norm_saved {
    const float *x, *rstd, *gain;
};

/* dy [R, C] -> dx [R, C] +=, dgain [C] +=. */
void rms_norm_backward_add(const struct rms_norm_saved *saved, const float *dy, float *dx,
                           float *dgain, int64_t R, int64_t C);
void rms_norm_backward_add_ref(const struct rms_norm_saved *saved, const float *dy, float *dx,
                               float *dgain, int64_t R, int64_t C);

#endif
