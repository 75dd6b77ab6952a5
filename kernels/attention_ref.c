/* attention_ref.c - the oracle: the definition, a row of scores at a time, in double. */
#include "kernels/attention.h"

#include <math.h>

/* Query, key or value (part 0, 1, 2) of position t, head h: offset of its first channel in qkv. */
static int64_t part_offset(const struct attention_shape *shape, int64_t b, int64_t t, int64_t h,
                           int part) {
    return (b * shape->T + t) * 3 * shape->C + part * shape->C + h * (shape->C / shape->H);
}

static double dot(const float *a, const float *b, int64_t count) {
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static void forward_row(const struct attention_shape *shape, const float *qkv, float *row, float *y,
                        const int64_t at[3]) {
    int64_t b = at[0], h = at[1], t = at[2], D = shape->C / shape->H;
    const float *query = qkv + part_offset(shape, b, t, h, 0);
    double scale = 1.0 / sqrt((double)D), most = -INFINITY, sum = 0.0;
    for (int64_t s = 0; s <= t; s++)
        most = fmax(most, scale * dot(query, qkv + part_offset(shape, b, s, h, 1), D));
    for (int64_t s = 0; s <= t; s++)
        sum += exp(scale * dot(query, qkv + part_offset(shape, b, s, h, 1), D) - most);
    for (int64_t s = 0; s < shape->T; s++) {
        double score = scale * dot(query, qkv + part_offset(shape, b, s, h, 1), D);
        row[s] = s <= t ? (float)(exp(score - most) / sum) : 0.0F;
    }
    for (int64_t i = 0; i < D; i++) {
        double value = 0.0;
        for (int64_t s = 0; s <= t; s++)
            value += (double)row[s] * (double)qkv[part_offset(shape, b, s, h, 2) + i];
        y[(b * shape->T + t) * shape->C + h * D + i] = (float)value;
    }
}

void attention_forward_ref(const struct attention_shape *shape, const float *qkv,
                           float *probabilities, float *y) {
    int64_t T = shape->T;
    for (int64_t b = 0; b < shape->B; b++) {
        for (int64_t h = 0; h < shape->H; h++) {
            for (int64_t t = 0; t < T; t++) {
                const int64_t at[3] = {b, h, t};
                forward_row(shape, qkv, probabilities + ((b * shape->H + h) * T + t) * T, y, at);
            }
        }
    }
}

/* dscores [T, T] of one head: P * (dP - sum(P * dP)) * scale, dP = dy V^T; zero beyond column t. */
static void score_gradient(const struct attention_shape *shape, const float *qkv, const float *rows,
                           const float *dy, float *dscores, const int64_t at[2]) {
    int64_t b = at[0], h = at[1], T = shape->T, D = shape->C / shape->H;
    double scale = 1.0 / sqrt((double)D);
    for (int64_t t = 0; t < T; t++) {
        const float *d = dy + (b * T + t) * shape->C + h * D;
        double sum = 0.0;
        for (int64_t s = 0; s <= t; s++)
            sum += (double)rows[t * T + s] * dot(d, qkv + part_offset(shape, b, s, h, 2), D);
        for (int64_t s = 0; s < T; s++) {
            double dp = dot(d, qkv + part_offset(shape, b, s, h, 2), D);
            double ds = (double)rows[t * T + s] * (dp - sum) * scale;
            dscores[t * T + s] = s <= t ? (float)ds : 0.0F;
        }
    }
}

static void backward_head(const struct attention_shape *shape, const float *qkv, const float *rows,
                          const float *dy, float *dqkv, float *dscores, const int64_t at[2]) {
    int64_t b = at[0], h = at[1], T = shape->T, D = shape->C / shape->H;
    score_gradient(shape, qkv, rows, dy, dscores, at);
    for (int64_t t = 0; t < T; t++) {
        for (int64_t i = 0; i < D; i++) {
            double dquery = 0.0, dkey = 0.0, dvalue = 0.0;
            for (int64_t s = 0; s < T; s++) {
                dquery +=
                    (double)dscores[t * T + s] * (double)qkv[part_offset(shape, b, s, h, 1) + i];
                dkey +=
                    (double)dscores[s * T + t] * (double)qkv[part_offset(shape, b, s, h, 0) + i];
                dvalue += (double)rows[s * T + t] * (double)dy[(b * T + s) * shape->C + h * D + i];
            }
            dqkv[part_offset(shape, b, t, h, 0) + i] = (float)dquery;
            dqkv[part_offset(shape, b, t, h, 1) + i] = (float)dkey;
            dqkv[part_offset(shape, b, t, h, 2) + i] = (float)dvalue;
        }
    }
}

void attention_backward_ref(const struct attention_shape *shape, const float *qkv,
                            const float *probabilities, const float *dy, float *dqkv,
                            float *scratch) {
    int64_t T = shape->T;
    for (int64_t b = 0; b < shape->B; b++) {
        for (int64_t h = 0; h < shape->H; h++) {
            const int64_t at[2] = {b, h};
            const float *rows = probabilities + (b * shape->H + h) * T * T;
            backward_head(shape, qkv, rows, dy, dqkv, scratch, at);
        }
    }
}
