/* attention_ref.c - the oracle: the definition, a query at a time, in double. */
#include "base/memory.h"
#include "kernels/attention.h"

#include <math.h>
#include <stdlib.h>

/* scratch has the fast kernel's type, so that either can be called in the other's place. */
/* NOLINTBEGIN(readability-non-const-parameter) */

/* Where query head h of position t, and the keys and values it sees, start in qkv. */
static int64_t row_offset(const struct attention_shape *shape, int64_t b, int64_t t) {
    return (b * shape->T + t) * (shape->heads + 2 * shape->kv_heads) * shape->head_size;
}

static int64_t query_column(const struct attention_shape *shape, int64_t h) {
    return h * shape->head_size;
}

static int64_t key_column(const struct attention_shape *shape, int64_t h) {
    return (shape->heads + h / (shape->heads / shape->kv_heads)) * shape->head_size;
}

static int64_t value_column(const struct attention_shape *shape, int64_t h) {
    return key_column(shape, h) + shape->kv_heads * shape->head_size;
}

static double dot(const float *a, const float *b, int64_t count) {
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* Of position t with position s, head h. */
static double score(const struct attention_shape *shape, const float *qkv, int64_t h, int64_t t,
                    int64_t s) {
    int64_t row = (shape->heads + 2 * shape->kv_heads) * shape->head_size, D = shape->head_size;
    return dot(qkv + t * row + query_column(shape, h), qkv + s * row + key_column(shape, h), D) /
           sqrt((double)D);
}

/* What a probability is multiplied by. */
static double kept(const struct attention_shape *shape, int64_t b, int64_t h, int64_t t,
                   int64_t s) {
    if (shape->dropout == NULL) return 1.0;
    return (double)dropout_factor_score(shape->dropout, b * shape->heads + h, t, s);
}

/* qkv is the sequence's. Returns the log-sum-exp. */
static double forward_row(const struct attention_shape *shape, const float *qkv, int64_t b,
                          int64_t h, int64_t t, float *y) {
    int64_t row = (shape->heads + 2 * shape->kv_heads) * shape->head_size;
    double most = -INFINITY, sum = 0.0;
    for (int64_t s = 0; s <= t; s++)
        most = fmax(most, score(shape, qkv, h, t, s));
    for (int64_t s = 0; s <= t; s++)
        sum += exp(score(shape, qkv, h, t, s) - most);
    double lse = most + log(sum);
    for (int64_t i = 0; i < shape->head_size; i++) {
        double value = 0.0;
        for (int64_t s = 0; s <= t; s++)
            value += exp(score(shape, qkv, h, t, s) - lse) * kept(shape, b, h, t, s) *
                     (double)qkv[s * row + value_column(shape, h) + i];
        y[i] = (float)value;
    }
    return lse;
}

void attention_forward_ref(const struct attention_shape *shape, const float *qkv, float *lse,
                           float *y, float *scratch) {
    (void)scratch;
    int64_t T = shape->T, H = shape->heads;
    for (int64_t b = 0; b < shape->B; b++) {
        for (int64_t h = 0; h < H; h++) {
            for (int64_t t = 0; t < T; t++) {
                float *out = y + ((b * T + t) * H + h) * shape->head_size;
                lse[(b * H + h) * T + t] =
                    (float)forward_row(shape, qkv + row_offset(shape, b, 0), b, h, t, out);
            }
        }
    }
}

/* One query's share of the sequence's gradients, as qkv but double: with P the probabilities, K
 * what they are multiplied by (1 without dropout), and dP = K * dy V', the gradient of the scores
 * is P * (dP - dy y'). */
static void backward_row(const struct attention_shape *shape, const struct attention_saved *saved,
                         const float *dy, double *sums, const int64_t at[3]) {
    int64_t b = at[0], h = at[1], t = at[2], D = shape->head_size;
    int64_t row = row_offset(shape, 0, 1), out = ((b * shape->T + t) * shape->heads + h) * D;
    const float *qkv = saved->qkv + row_offset(shape, b, 0);
    int64_t query = t * row + query_column(shape, h);
    double lse = (double)saved->lse[(b * shape->heads + h) * shape->T + t];
    double mean = dot(dy + out, saved->y + out, D), scale = 1.0 / sqrt((double)D);
    for (int64_t s = 0; s <= t; s++) {
        int64_t key = s * row + key_column(shape, h), value = s * row + value_column(shape, h);
        double p = exp(score(shape, qkv, h, t, s) - lse);
        double k = kept(shape, b, h, t, s);
        double d = p * (k * dot(dy + out, qkv + value, D) - mean) * scale;
        for (int64_t i = 0; i < D; i++) {
            sums[query + i] += d * (double)qkv[key + i];
            sums[key + i] += d * (double)qkv[query + i];
            sums[value + i] += k * p * (double)dy[out + i];
        }
    }
}

void attention_backward_ref(const struct attention_shape *shape,
                            const struct attention_saved *saved, const float *dy, float *dqkv,
                            float *scratch) {
    (void)scratch;
    int64_t count = row_offset(shape, 1, 0);
    for (int64_t b = 0; b < shape->B; b++) {
        double *sums = memory_zeroed((size_t)count, sizeof *sums);
        for (int64_t h = 0; h < shape->heads; h++) {
            for (int64_t t = 0; t < shape->T; t++) {
                const int64_t at[3] = {b, h, t};
                backward_row(shape, saved, dy, sums, at);
            }
        }
        for (int64_t i = 0; i < count; i++)
            dqkv[b * count + i] = (float)sums[i];
        free(sums);
    }
}
/* NOLINTEND(readability-non-const-parameter) */
