/* norm_ref.c - the oracle: a row at a time, in double. */
#include "kernels/norm.h"

#include <math.h>

/* Nine parameters, but each is plain. NOLINTNEXTLINE(readability-function-size) */
void norm_forward_ref(const float *x, const float *gain, const float *bias, float *y, float *mean,
                      float *rstd, int64_t R, int64_t C, float eps) {
    for (int64_t r = 0; r < R; r++) {
        const float *row = x + r * C;
        double sum = 0.0, squares = 0.0;
        for (int64_t c = 0; c < C; c++)
            sum += (double)row[c];
        double m = sum / (double)C;
        for (int64_t c = 0; c < C; c++)
            squares += ((double)row[c] - m) * ((double)row[c] - m);
        double s = 1.0 / sqrt(squares / (double)C + (double)eps);
        for (int64_t c = 0; c < C; c++)
            y[r * C + c] = (float)(((double)row[c] - m) * s * (double)gain[c] + (double)bias[c]);
        mean[r] = (float)m;
        rstd[r] = (float)s;
    }
}

void norm_residual_forward_ref(const struct residual *residual, const float *gain,
                               const float *bias, const struct norm_result *result, int64_t R,
                               int64_t C, float eps) {
    for (int64_t i = 0; i < R * C; i++)
        residual->sum[i] = residual->x[i] + residual->branch[i];
    norm_forward_ref(residual->sum, gain, bias, result->y, result->mean, result->rstd, R, C, eps);
}

/* With n = (x - mean) * rstd and d = dy * gain: dx = rstd * (d - mean(d) - n * mean(d * n)). */
static void input_gradient(const struct norm_saved *saved, const float *dy, float *dx, int64_t r,
                           int64_t C) {
    double m = (double)saved->mean[r], s = (double)saved->rstd[r];
    double sum = 0.0, dot = 0.0;
    for (int64_t c = 0; c < C; c++) {
        double n = ((double)saved->x[r * C + c] - m) * s;
        double d = (double)dy[r * C + c] * (double)saved->gain[c];
        sum += d;
        dot += d * n;
    }
    for (int64_t c = 0; c < C; c++) {
        double n = ((double)saved->x[r * C + c] - m) * s;
        double d = (double)dy[r * C + c] * (double)saved->gain[c];
        double add = s * (d - sum / (double)C - n * (dot / (double)C));
        dx[r * C + c] = (float)((double)dx[r * C + c] + add);
    }
}

void norm_backward_add_ref(const struct norm_saved *saved, const float *dy, float *dx, float *dgain,
                           float *dbias, int64_t R, int64_t C) {
    for (int64_t r = 0; r < R; r++)
        input_gradient(saved, dy, dx, r, C);
    for (int64_t c = 0; c < C; c++) {
        double gain_sum = 0.0, bias_sum = 0.0;
        for (int64_t r = 0; r < R; r++) {
            double n =
                ((double)saved->x[r * C + c] - (double)saved->mean[r]) * (double)saved->rstd[r];
            gain_sum += (double)dy[r * C + c] * n;
            bias_sum += (double)dy[r * C + c];
        }
        dgain[c] = (float)((double)dgain[c] + gain_sum);
        dbias[c] = (float)((double)dbias[c] + bias_sum);
    }
}
