/* rms_norm_cpu.c - rows in parallel; the gain's gradient by ranges of columns, so that each sum is
 * one thread's, in the order of the rows.
 */
#include "kernels/dispatch.h"
#include "kernels/rms_norm.h"

#include <math.h>

enum {
    COLUMNS = 64,          /* columns a thread sums at a time */
    PARALLEL_MIN = 1 << 14 /* values below which waking threads costs more than it saves */
};

/* sum may be x: within an iteration the reads come first. */
KERNEL_CLONES static void row_add(const float *x, const float *restrict branch, float *sum,
                                  int64_t C) {
#pragma omp simd
    for (int64_t c = 0; c < C; c++)
        sum[c] = x[c] + branch[c];
}

KERNEL_CLONES static float row_squares(const float *restrict x, int64_t C) {
    float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < C; c++)
        sum += x[c] * x[c];
    return sum;
}

KERNEL_CLONES static void row_apply(const float *restrict x, const float *restrict gain,
                                    float *restrict y, float rstd, int64_t C) {
    for (int64_t c = 0; c < C; c++)
        y[c] = x[c] * rstd * gain[c];
}

/* dx of one row: rstd * (d - n * mean(d * n)), d = dy * gain, n = x * rstd. */
KERNEL_CLONES static void row_backward(const struct rms_norm_saved *saved, const float *restrict dy,
                                       float *restrict dx, int64_t r, int64_t C) {
    const float *restrict x = saved->x + r * C;
    const float *restrict gain = saved->gain;
    float rstd = saved->rstd[r], dot = 0.0F;
#pragma omp simd reduction(+ : dot)
    for (int64_t c = 0; c < C; c++)
        dot += dy[c] * gain[c] * (x[c] * rstd);
    dot /= (float)C;
    for (int64_t c = 0; c < C; c++)
        dx[c] += rstd * (dy[c] * gain[c] - x[c] * rstd * dot);
}

/* dgain of the columns first .. first + width - 1. */
KERNEL_CLONES static void columns_backward(const struct rms_norm_saved *saved,
                                           const float *restrict dy, float *restrict dgain,
                                           const int64_t shape[2], int64_t first, int64_t width) {
    float sums[COLUMNS] = {0};
    int64_t R = shape[0], C = shape[1];
    for (int64_t r = 0; r < R; r++) {
        const float *x = saved->x + r * C + first;
        const float *d = dy + r * C + first;
        float rstd = saved->rstd[r];
        for (int64_t c = 0; c < width; c++)
            sums[c] += d[c] * (x[c] * rstd);
    }
    for (int64_t c = 0; c < width; c++)
        dgain[first + c] += sums[c];
}

static void row_forward(const float *x, const float *gain, float *y, float *rstd, int64_t C,
                        float eps) {
    *rstd = 1.0F / sqrtf(row_squares(x, C) / (float)C + eps);
    row_apply(x, gain, y, *rstd, C);
}

void rms_norm_forward(const float *x, const float *gain, float *y, float *rstd, int64_t R,
                      int64_t C, float eps) {
#pragma omp parallel for if (R * C >= PARALLEL_MIN)
    for (int64_t r = 0; r < R; r++)
        row_forward(x + r * C, gain, y + r * C, rstd + r, C, eps);
}

void rms_norm_residual_forward(const struct residual *residual, const float *gain, float *y,
                               float *rstd, int64_t R, int64_t C, float eps) {
#pragma omp parallel for if (R * C >= PARALLEL_MIN)
    for (int64_t r = 0; r < R; r++) {
        float *sum = residual->sum + r * C;
        row_add(residual->x + r * C, residual->branch + r * C, sum, C);
        row_forward(sum, gain, y + r * C, rstd + r, C, eps);
    }
}

void rms_norm_backward_add(const struct rms_norm_saved *saved, const float *dy, float *dx,
                           float *dgain, int64_t R, int64_t C) {
    const int64_t shape[2] = {R, C};
#pragma omp parallel if (R * C >= PARALLEL_MIN)
    {
#pragma omp for nowait
        for (int64_t r = 0; r < R; r++)
            row_backward(saved, dy + r * C, dx + r * C, r, C);
#pragma omp for
        for (int64_t c = 0; c < C; c += COLUMNS)
            columns_backward(saved, dy, dgain, shape, c, C - c < COLUMNS ? C - c : COLUMNS);
    }
}
