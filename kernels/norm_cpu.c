/* norm_cpu.c - rows in parallel; the parameters' gradients by ranges of columns, so that each sum
 * is one thread's, in the order of the rows.
 */
#include "kernels/dispatch.h"
#include "kernels/norm.h"

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

KERNEL_CLONES static float row_sum(const float *restrict x, int64_t C) {
    float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < C; c++)
        sum += x[c];
    return sum;
}

/* Squares of distances to the mean, not mean of squares: no cancellation. */
KERNEL_CLONES static float row_squares(const float *restrict x, float mean, int64_t C) {
    float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < C; c++)
        sum += (x[c] - mean) * (x[c] - mean);
    return sum;
}

KERNEL_CLONES static void row_apply(const float *restrict x, const float *restrict gain,
                                    const float *restrict bias, float *restrict y, float mean,
                                    float rstd, int64_t C) {
    for (int64_t c = 0; c < C; c++)
        y[c] = (x[c] - mean) * rstd * gain[c] + bias[c];
}

/* dx of one row: rstd * (d - mean(d) - n * mean(d * n)), d = dy * gain, n = (x - mean) * rstd. */
KERNEL_CLONES static void row_backward(const struct norm_saved *saved, const float *restrict dy,
                                       float *restrict dx, int64_t r, int64_t C) {
    const float *restrict x = saved->x + r * C;
    const float *restrict gain = saved->gain;
    float mean = saved->mean[r], rstd = saved->rstd[r];
    float sum = 0.0F, dot = 0.0F;
#pragma omp simd reduction(+ : sum, dot)
    for (int64_t c = 0; c < C; c++) {
        float d = dy[c] * gain[c];
        sum += d;
        dot += d * ((x[c] - mean) * rstd);
    }
    sum /= (float)C;
    dot /= (float)C;
    for (int64_t c = 0; c < C; c++) {
        float n = (x[c] - mean) * rstd;
        dx[c] += rstd * (dy[c] * gain[c] - sum - n * dot);
    }
}

/* dgain and dbias of the columns first .. first + width - 1. */
KERNEL_CLONES static void columns_backward(const struct norm_saved *saved, const float *restrict dy,
                                           float *restrict dgain, float *restrict dbias,
                                           const int64_t shape[2], int64_t first, int64_t width) {
    float gain_sums[COLUMNS] = {0}, bias_sums[COLUMNS] = {0};
    int64_t R = shape[0], C = shape[1];
    for (int64_t r = 0; r < R; r++) {
        const float *x = saved->x + r * C + first;
        const float *d = dy + r * C + first;
        float mean = saved->mean[r], rstd = saved->rstd[r];
        for (int64_t c = 0; c < width; c++) {
            gain_sums[c] += d[c] * ((x[c] - mean) * rstd);
            bias_sums[c] += d[c];
        }
    }
    for (int64_t c = 0; c < width; c++) {
        dgain[first + c] += gain_sums[c];
        dbias[first + c] += bias_sums[c];
    }
}

/* Row r of what norm_forward() takes and makes. */
static void row_forward(const float *x, const float *gain, const float *bias,
                        const struct norm_result *result, int64_t r, int64_t C, float eps) {
    float m = row_sum(x, C) / (float)C;
    float s = 1.0F / sqrtf(row_squares(x, m, C) / (float)C + eps);
    row_apply(x, gain, bias, result->y + r * C, m, s, C);
    result->mean[r] = m;
    result->rstd[r] = s;
}

/* Nine parameters, but each is plain; the outputs are written by way of the struct. */
/* NOLINTBEGIN(readability-function-size,readability-non-const-parameter) */
void norm_forward(const float *x, const float *gain, const float *bias, float *y, float *mean,
                  float *rstd, int64_t R, int64_t C, float eps) {
    const struct norm_result result = {.y = y, .mean = mean, .rstd = rstd};
#pragma omp parallel for if (R * C >= PARALLEL_MIN)
    for (int64_t r = 0; r < R; r++)
        row_forward(x + r * C, gain, bias, &result, r, C, eps);
}
/* NOLINTEND(readability-function-size,readability-non-const-parameter) */

void norm_residual_forward(const struct residual *residual, const float *gain, const float *bias,
                           const struct norm_result *result, int64_t R, int64_t C, float eps) {
#pragma omp parallel for if (R * C >= PARALLEL_MIN)
    for (int64_t r = 0; r < R; r++) {
        float *sum = residual->sum + r * C;
        row_add(residual->x + r * C, residual->branch + r * C, sum, C);
        row_forward(sum, gain, bias, result, r, C, eps);
    }
}

void norm_backward_add(const struct norm_saved *saved, const float *dy, float *dx, float *dgain,
                       float *dbias, int64_t R, int64_t C) {
    const int64_t shape[2] = {R, C};
#pragma omp parallel if (R * C >= PARALLEL_MIN)
    {
#pragma omp for nowait
        for (int64_t r = 0; r < R; r++)
            row_backward(saved, dy + r * C, dx + r * C, r, C);
#pragma omp for
        for (int64_t c = 0; c < C; c += COLUMNS)
            columns_backward(saved, dy, dgain, dbias, shape, c, C - c < COLUMNS ? C - c : COLUMNS);
    }
}
