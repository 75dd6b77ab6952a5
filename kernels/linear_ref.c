/* linear_ref.c - the oracle: three loops, sums in double. */
#include "kernels/linear.h"

#include <math.h>

/* bfloat16 has 8 significant bits; rint() rounds to nearest even. TF32 has 11, and round() takes
 * the larger one half way, as CUDA's conversion does. For values that the type has as normal
 * numbers. */
static double operand(enum compute_type type, float value) {
    int exponent;
    if (type == COMPUTE_F32) return (double)value;
    double fraction = frexp((double)value, &exponent);
    if (type == COMPUTE_TF32) return ldexp(round(ldexp(fraction, 11)), exponent - 11);
    return ldexp(rint(ldexp(fraction, 8)), exponent - 8);
}

static int64_t weight_at(const struct linear_shape *shape, int64_t i, int64_t o) {
    return shape->out_in ? o * shape->in + i : i * shape->out + o;
}

void linear_forward_ref(const struct linear_shape *shape, const float *weights, const float *x,
                        const float *bias, float *y, int64_t rows) {
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t o = 0; o < shape->out; o++) {
            double sum = bias ? (double)bias[o] : 0.0;
            for (int64_t i = 0; i < shape->in; i++)
                sum += operand(shape->type, x[r * shape->stride_x + i]) *
                       operand(shape->type, weights[weight_at(shape, i, o)]);
            y[r * shape->stride_y + o] = (float)sum;
        }
    }
}

void linear_backward_input_ref(const struct linear_shape *shape, const float *weights,
                               const float *dy, float *dx, bool add, int64_t rows) {
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < shape->in; i++) {
            float *to = &dx[r * shape->stride_x + i];
            double sum = add ? (double)*to : 0.0;
            for (int64_t o = 0; o < shape->out; o++)
                sum += operand(shape->type, dy[r * shape->stride_y + o]) *
                       operand(shape->type, weights[weight_at(shape, i, o)]);
            *to = (float)sum;
        }
    }
}

void linear_backward_weights_ref(const struct linear_shape *shape, const float *x, const float *dy,
                                 float *dweights, float *dbias, bool add, int64_t rows) {
    for (int64_t o = 0; o < shape->out; o++) {
        for (int64_t i = 0; i < shape->in; i++) {
            float *to = &dweights[weight_at(shape, i, o)];
            double sum = add ? (double)*to : 0.0;
            for (int64_t r = 0; r < rows; r++)
                sum += operand(shape->type, x[r * shape->stride_x + i]) *
                       operand(shape->type, dy[r * shape->stride_y + o]);
            *to = (float)sum;
        }
        if (!dbias) continue;
        double sum = add ? (double)dbias[o] : 0.0;
        for (int64_t r = 0; r < rows; r++)
            sum += (double)dy[r * shape->stride_y + o];
        dbias[o] = (float)sum;
    }
}
