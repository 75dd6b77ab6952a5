/* rope_cpu.c - positions in parallel; a position's sines and cosines are made once for all its
 * sequences and heads.
 *
 * angle = n * pi / 2 + r with n whole and |r| <= pi / 4, in double; sine and cosine of r are f32
 * polynomials, minimax on that range (Cephes, sinf.c), and n says which is which with which sign.
 */
#include "base/assert.h"
#include "kernels/dispatch.h"
#include "kernels/rope.h"

#include <math.h>

enum {
    HALF_MAX = ROPE_HEAD_MAX / 2,
    PARALLEL_MIN = 1 << 14 /* values below which waking threads costs more than it saves */
};

/* Of position * frequencies [half]. */
KERNEL_CLONES static void angles(const double *restrict frequencies, double position, int64_t half,
                                 float *restrict cosines, float *restrict sines) {
    const double shift = 6755399441055744.0; /* 1.5 * 2^52: adding it rounds to a whole number */
    for (int64_t i = 0; i < half; i++) {
        double angle = position * frequencies[i];
        double n = (angle * 0.63661977236758134308 + shift) - shift;
        float r = (float)(angle - n * 1.57079632679489661923);
        float z = r * r;
        float sine =
            r + r * z * (-1.6666654611e-1F + z * (8.3321608736e-3F - z * 1.9515295891e-4F));
        float cosine =
            4.166664568298827e-2F + z * (z * 2.443315711809948e-5F - 1.388731625493765e-3F);
        cosine = 1.0F - 0.5F * z + z * z * cosine;
        int32_t quarter = (int32_t)n & 3; // n is below 2^31, as positions are
        float first = quarter & 1 ? cosine : sine, second = quarter & 1 ? sine : cosine;
        sines[i] = quarter & 2 ? -first : first;
        cosines[i] = (quarter + 1) & 2 ? -second : second;
    }
}

/* `heads` heads in a row. */
KERNEL_CLONES static void rotate_row(float *x, int64_t heads, int64_t half,
                                     const float *restrict cosines, const float *restrict sines) {
    for (int64_t h = 0; h < heads; h++) {
        float *restrict first = x + 2 * h * half;
        float *restrict second = first + half;
        for (int64_t i = 0; i < half; i++) {
            float a = first[i], b = second[i];
            first[i] = a * cosines[i] - b * sines[i];
            second[i] = b * cosines[i] + a * sines[i];
        }
    }
}

static void rotate(const struct rope_shape *shape, float *qkv, double direction) {
    ASSERT_OP(shape->head_size % 2, ==, 0);
    ASSERT_OP(shape->head_size, <=, ROPE_HEAD_MAX);
    int64_t D = shape->head_size, half = D / 2, T = shape->T;
    int64_t turned = shape->heads + shape->kv_heads, row = (turned + shape->kv_heads) * D;
    double frequencies[HALF_MAX];
    for (int64_t i = 0; i < half; i++)
        frequencies[i] = direction * pow(shape->theta, -2.0 * (double)i / (double)D);
#pragma omp parallel for if (shape->B * T * row >= PARALLEL_MIN)
    for (int64_t t = 0; t < T; t++) {
        float cosines[HALF_MAX], sines[HALF_MAX];
        angles(frequencies, (double)(shape->position + t), half, cosines, sines);
        for (int64_t b = 0; b < shape->B; b++)
            rotate_row(qkv + (b * T + t) * row, turned, half, cosines, sines);
    }
}

void rope_forward(const struct rope_shape *shape, float *qkv) {
    rotate(shape, qkv, 1.0);
}

void rope_backward(const struct rope_shape *shape, float *dqkv) {
    rotate(shape, dqkv, -1.0);
}
