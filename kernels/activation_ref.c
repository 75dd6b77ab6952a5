/* activation_ref.c - the oracle: the formulas as written, in double. */
#include "kernels/activation.h"

#include <math.h>

static const double root_2_over_pi = 0.79788456080286535588;
static const double cubic = 0.044715;

static double gelu(double v) {
    double u = root_2_over_pi * (v + cubic * v * v * v);
    return v / (1.0 + exp(-2.0 * u));
}

static double gelu_derivative(double v) {
    double u = root_2_over_pi * (v + cubic * v * v * v);
    double slope = root_2_over_pi * (1.0 + 3.0 * cubic * v * v);
    double tanh_u = tanh(u);
    return 0.5 * (1.0 + tanh_u) + 0.5 * v * (1.0 - tanh_u * tanh_u) * slope;
}

void gelu_forward_ref(const float *x, float *y, int64_t N) {
    for (int64_t i = 0; i < N; i++)
        y[i] = (float)gelu((double)x[i]);
}

void gelu_backward_ref(const float *x, const float *dy, float *dx, int64_t N) {
    for (int64_t i = 0; i < N; i++)
        dx[i] = (float)((double)dy[i] * gelu_derivative((double)x[i]));
}

void gelu_bias_forward_ref(const float *x, const float *bias, float *y, int64_t R, int64_t F) {
    for (int64_t i = 0; i < R * F; i++)
        y[i] = (float)gelu((double)x[i] + (double)bias[i % F]);
}

void gelu_bias_backward_ref(const float *x, const float *bias, const float *dy, float *dx,
                            int64_t R, int64_t F) {
    for (int64_t i = 0; i < R * F; i++)
        dx[i] = (float)((double)dy[i] * gelu_derivative((double)x[i] + (double)bias[i % F]));
}

void swiglu_forward_ref(const float *x, float *y, int64_t R, int64_t F) {
    for (int64_t i = 0; i < R * F; i++) {
        const float *gate = x + i / F * 2 * F + i % F;
        double g = (double)gate[0];
        y[i] = (float)(g / (1.0 + exp(-g)) * (double)gate[F]);
    }
}

void swiglu_backward_ref(const float *x, const float *dy, float *dx, int64_t R, int64_t F) {
    for (int64_t i = 0; i < R * F; i++) {
        int64_t at = i / F * 2 * F + i % F;
        double g = (double)x[at], up = (double)x[at + F], d = (double)dy[i];
        double sigmoid = 1.0 / (1.0 + exp(-g));
        dx[at] = (float)(d * up * sigmoid * (1.0 + g * (1.0 - sigmoid)));
        dx[at + F] = (float)(d * g * sigmoid);
    }
}

void bias_add_ref(float *y, const float *bias, int64_t R, int64_t C) {
    for (int64_t r = 0; r < R; r++) {
        for (int64_t c = 0; c < C; c++)
            y[r * C + c] += bias[c];
    }
}

void bias_backward_add_ref(const float *dy, float *dbias, int64_t R, int64_t C) {
    for (int64_t c = 0; c < C; c++) {
        double sum = 0.0;
        for (int64_t r = 0; r < R; r++)
            sum += (double)dy[r * C + c];
        dbias[c] = (float)((double)dbias[c] + sum);
    }
}

void residual_forward_ref(const float *a, const float *b, float *y, int64_t N) {
    for (int64_t i = 0; i < N; i++)
        y[i] = a[i] + b[i];
}
