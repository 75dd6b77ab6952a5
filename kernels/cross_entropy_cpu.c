/* cross_entropy_cpu.c - rows in parallel. A row stays in L2 over its three passes: largest, e^x and
 * their sum, gradient; the e^x are kept where the logits were.
 */
#include "kernels/cross_entropy.h"
#include "kernels/dispatch.h"
#include "kernels/exp.h"

#include <math.h>
#include <stdbool.h>

enum { PARALLEL_MIN = 1 << 13 }; /* values below which waking threads costs more than it saves */

KERNEL_CLONES static float row_largest(const float *restrict x, int64_t V) {
    float most = x[0];
#pragma omp simd reduction(max : most)
    for (int64_t v = 0; v < V; v++)
        most = x[v] > most ? x[v] : most;
    return most;
}

KERNEL_CLONES static float row_exp_sum(const float *restrict x, float most, int64_t V) {
    float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
    for (int64_t v = 0; v < V; v++)
        sum += exp_f32(x[v] - most);
    return sum;
}

/* As row_exp_sum, and x becomes the terms. */
KERNEL_CLONES static float row_exp_keep(float *restrict x, float most, int64_t V) {
    float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
    for (int64_t v = 0; v < V; v++) {
        x[v] = exp_f32(x[v] - most);
        sum += x[v];
    }
    return sum;
}

KERNEL_CLONES static void row_scale(float *restrict x, float factor, int64_t V) {
    for (int64_t v = 0; v < V; v++)
        x[v] *= factor;
}

void cross_entropy(float *logits, const int32_t *targets, float *losses, int64_t R, int64_t V,
                   float scale) {
    bool want_gradient = scale > 0.0F || scale < 0.0F;
#pragma omp parallel for if (R * V >= PARALLEL_MIN)
    for (int64_t r = 0; r < R; r++) {
        float *row = logits + r * V;
        float target = row[targets[r]];
        float most = row_largest(row, V);
        float sum = want_gradient ? row_exp_keep(row, most, V) : row_exp_sum(row, most, V);
        losses[r] = (float)(log((double)sum) + ((double)most - (double)target));
        if (want_gradient) {
            row_scale(row, scale / sum, V);
            row[targets[r]] -= scale;
        }
    }
}
