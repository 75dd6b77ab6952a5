/* activation.h - GELU with the tanh formula, SwiGLU, and the element-wise additions around them.
 *
 * gelu(x) = x / 2 * (1 + tanh(u)), u = sqrt(2 / pi) * (x + 0.044715 x^3): "gelu_new" of Hugging
 * Face (Hendrycks, Gimpel, arXiv 1606.08415). It is computed as x * sigmoid(2 u), the same
 * function, which loses no digits where tanh is near -1.
 * swiglu(gate, up) = gate * sigmoid(gate) * up (Shazeer, arXiv 2002.05202).
 * All arrays are f32 on the host and the caller's. The bits do not depend on the thread count. The
 * _ref twins are the oracles. Any thread may call.
 */
#ifndef RUBATO_KERNELS_ACTIVATION_H
#define RUBATO_KERNELS_ACTIVATION_H

#include <stdint.h>

/* y [N] = gelu(x [N]); y may be x. */
void gelu_forward(const float *x, float *y, int64_t N);
void gelu_forward_ref(const float *x, float *y, int64_t N);

/* dx [N] = dy [N] * gelu'(x [N]); dx may be dy. */
void gelu_backward(const float *x, const float *dy, float *dx, int64_t N);
void gelu_backward_ref(const float *x, const float *dy, float *dx, int64_t N);

/* A product's bias and its activation in one pass: y [R, F] = gelu(x [R, F] + bias [F]). x stays as
 * it is, since backward adds the bias again: a pass over memory less each way. */
void gelu_bias_forward(const float *x, const float *bias, float *y, int64_t R, int64_t F);
void gelu_bias_forward_ref(const float *x, const float *bias, float *y, int64_t R, int64_t F);

/* dx [R, F] = dy [R, F] * gelu'(x [R, F] + bias [F]); dx may be dy. Its column sums are the bias's
 * gradient: made in the same pass, down columns, they would cost more than a pass of their own. */
void gelu_bias_backward(const float *x, const float *bias, const float *dy, float *dx, int64_t R,
                        int64_t F);
void gelu_bias_backward_ref(const float *x, const float *bias, const float *dy, float *dx,
                            int64_t R, int64_t F);

/* x [R, 2F], a row's F gates and then its F ups -> y [R, F]. */
void swiglu_forward(const float *x, float *y, int64_t R, int64_t F);
void swiglu_forward_ref(const float *x, float *y, int64_t R, int64_t F);

/* dy [R, F] -> dx [R, 2F], gates and ups as in x; dx may be x. */
void swiglu_backward(const float *x, const float *dy, float *dx, int64_t R, int64_t F);
void swiglu_backward_ref(const float *x, const float *dy, float *dx, int64_t R, int64_t F);

/* y [R, C] += bias [C] to every row. */
void bias_add(float *y, const float *bias, int64_t R, int64_t C);
void bias_add_ref(float *y, const float *bias, int64_t R, int64_t C);

/* dbias [C] += column sums of dy [R, C]. */
void bias_backward_add(const float *dy, float *dbias, int64_t R, int64_t C);
void bias_backward_add_ref(const float *dy, float *dbias, int64_t R, int64_t C);

/* y [N] = a [N] + b [N]; y may be a or b. */
void residual_forward(const float *a, const float *b, float *y, int64_t N);
void residual_forward_ref(const float *a, const float *b, float *y, int64_t N);

#endif
