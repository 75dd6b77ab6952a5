/* rope_ref.c - the oracle: the definition, with libm, in double. */
#include "kernels/rope.h"

#include <math.h>

static void rotate(const struct rope_shape *shape, float *qkv, double direction) {
    int64_t D = shape->head_size, half = D / 2, T = shape->T;
    int64_t turned = shape->heads + shape->kv_heads, row = (turned + shape->kv_heads) * D;
    for (int64_t n = 0; n < shape->B * T; n++) {
        for (int64_t j = 0; j < turned * half; j++) {
            int64_t i = j % half;
            double frequency = pow(shape->theta, -2.0 * (double)i / (double)D);
            double angle = direction * (double)(shape->position + n % T) * frequency;
            float *x = qkv + n * row + j / half * D + i;
            double a = (double)x[0], b = (double)x[half];
            x[0] = (float)(a * cos(angle) - b * sin(angle));
            x[half] = (float)(b * cos(angle) + a * sin(angle));
        }
    }
}

void rope_forward_ref(const struct rope_shape *shape, float *qkv) {
    rotate(shape, qkv, 1.0);
}

void rope_backward_ref(const struct rope_shape *shape, float *dqkv) {
    rotate(shape, dqkv, -1.0);
}
