/* rms_norm_ref.c - the oracle: a row at a time, in double. */
#include "kernels/rms_norm.h"

#include <math.h>

void rms_norm_forward_ref(const float *x, const float *gain, float *y, float *rstd, int64_t R,
                          int64_t C, float eps) {
    for (int64_t r = 0; r < R; r++) {
        const float *row = x + r * C;
        double squares = 0.0;
        for (int64_t c = 0; c < C; c++)
            squares += (double)row[c] * (double)row[c];
        double s = 1.0 / sqrt(squares / (double)C + (double)eps);
        for (int64_t c = 0; c < C; c++)
            y[r * C + c] = (float)((double)row[c] * s * (double)gain[c]);
        rstd[r] = (float)s;
    }
}

void rms_norm_residual_forward_ref(const struct residual *residual, const float *gain, float *y,
                                   float *rstd, int64_t R, int64_t C, float eps) {
    for (int64_t i = 0; i < R * C; i++)
        residual->sum[i] = residual->x[i] + residual->branch[i];
    rms_norm_forward_ref(residual->sum, gain, y, rstd, R, C, eps);
}

/* With n = x * rstd and d = dy * gain: dx = rstd * (d - n * mean(d * n)). */
void rms_norm_backward_add_ref(const struct rms_norm_saved *saved, const float *dy, float *dx,
                               float *dgain, int64_t R, int64_t C) {
    for (int64_t r = 0; r < R; r++) {
        const float *x = saved->x + r * C, *d = dy + r * C;
        double s = (double)saved->rstd[r], dot = 0.0;
        for (int64_t c = 0; c < C; c++)
            dot += (double)d[c] * (double)saved->gain[c] * (double)x[c] * s;
        for (int64_t c = 0; c < C; c++) {
            double n = (double)x[c] * s;
            double add = s * ((double)d[c] * (double)saved->gain[c] - n * (dot / (double)C));
            dx[r * C + c] = (float)((double)dx[r * C + c] + add);
        }
    }
    for (int64_t c = 0; c < C; c++) {
        double sum = 0.0;
        for (int64_t r = 0; r < R; r++)
            sum += (double)dy[r * C + c] * (double)saved->x[r * C + c] * (double)saved->rstd[r];
        dgain[c] = (float)((double)dgain[c] + sum);
    }
}
