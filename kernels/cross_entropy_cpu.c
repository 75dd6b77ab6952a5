/* cross_entropy_cpu.c - rows in parallel. A row stays in L2 over its three passes: largest, e^x and
 * their sum, gradient; the e^x are kept where the logits were.
 */
#include "kernels/cross_entropy.h"
#include "kernels/dispatch.h"
#include "kernels/exp.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

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

static float row_loss(float *row, int32_t target, int64_t V, float scale) {
    bool want_gradient = scale > 0.0F || scale < 0.0F;
    if (target < 0) {
        if (want_gradient) memset(row, 0, (size_t)V * sizeof(*row));
        return 0.0F;
    }
    float at_target = row[target];
    float most = row_largest(row, V);
    float sum = want_gradient ? row_exp_keep(row, most, V) : row_exp_sum(row, most, V);
    if (want_gradient) {
        row_scale(row, scale / sum, V);
        row[target] -= scale;
    }
    return (float)(log((double)sum) + ((double)most - (double)at_target));
}

void cross_entropy(float *logits, const int32_t *targets, float *losses, int64_t R, int64_t V,
                   float scale) {
#pragma omp parallel for if (R * V >= PARALLEL_MIN)
    for (int64_t r = 0; r < R; r++)
        losses[r] = row_loss(logits + r * V, targets[r], V, scale);
}
