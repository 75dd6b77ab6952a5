/* activation.h - GELU with the tanh formula ("gelu_new"; Hendrycks, Gimpel, arXiv 1606.08415), and
 * the element-wise additions around it.
 */
#ifndef RUBATO_KERNELS_ACTIVATION_H
#define RUBATO_KERNELS_ACTIVATION_H

#include <stdint.h>

/* y [N] = gelu(x [N]). */
void gelu_forward(const float *x, float *y, int64_t N);
void gelu_forward_ref(const float *x, float *y, int64_t N);

/* dx [N] = dy [N] * gelu'(x [N]); dx may be dy. */
void gelu_backward(const float *x, const float *dy, float *dx, int64_t N);
void gelu_backward_ref(const float *x, const float *dy, float *dx, int64_t N);

/* y [R, C] += bias [C] to every row. */
void bias_add(float *y, const float *bias, int64_t R, int64_t C);
void bias_add_ref(float *y, const float *bias, int64_t R, int64_t C);

/* dbias [C] += column sums of dy [R, C]. */
void bias_backward_add(const float *dy, float *dbias, int64_t R, int64_t C);
void bias_backward_add_ref(const float *dy, float *dbias, int64_t R, int64_t C);

/* y [N] = a [N] + b [N]. */
void residual_forward(const float *a, const float *b, float *y, int64_t N);
void residual_forward_ref(const float *a, const float *b, float *y, int64_t N);

#endif
