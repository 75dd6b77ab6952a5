/* attention_cpu.c - a head of a sequence is one task; its matrix products are made in bands of
 * BAND rows, so that of the triangle above the diagonal only a band's own corner is computed.
 *
 * Within a task matmul() runs on one thread, which is also why the bits do not depend on the thread
 * count. The corner is set to zero by the softmax, so products over whole bands are right.
 */
#include "base/assert.h"
#include "kernels/attention.h"
#include "kernels/dispatch.h"
#include "kernels/exp.h"
#include "kernels/matmul.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum {
    BAND = 64, /* a multiple of LANES */
    LANES = 16
};

/* One head of one sequence; D channels. Rows of query, key, value (and gradients of them) are
 * `stride` values apart, those of y `C`, those of the [T, T] matrices `T`. */
struct head {
    int64_t T, D, C, stride;
    float scale; /* of the scores; the softmax applies it */
};

/* Columns of row t that the loops below run over: whole vectors, where T has room for them. */
static int64_t padded(int64_t t, int64_t T) {
    int64_t width = (t + LANES) / LANES * LANES;
    return width < T ? width : T;
}

/* row [T]: products with keys 0..t -> softmax(scale * products), zero beyond. */
KERNEL_CLONES static void softmax_row(float *restrict row, float scale, int64_t t, int64_t T) {
    int64_t width = padded(t, T);
    for (int64_t s = t + 1; s < width; s++)
        row[s] = -INFINITY;
    float most = row[0], sum = 0.0F;
#pragma omp simd reduction(max : most)
    for (int64_t s = 0; s < width; s++)
        most = row[s] > most ? row[s] : most;
#pragma omp simd reduction(+ : sum)
    for (int64_t s = 0; s < width; s++) {
        row[s] = exp_f32((row[s] - most) * scale);
        sum += row[s];
    }
    float factor = 1.0F / sum;
    for (int64_t s = 0; s < width; s++)
        row[s] *= factor;
    memset(row + width, 0, (size_t)(T - width) * sizeof *row);
}

/* d [T]: gradient of the probabilities p -> of the products, columns 0..t; zero up to `end`. Where
 * p is zero, so is the result, once d is finite. */
KERNEL_CLONES static void softmax_backward_row(const float *restrict p, float *restrict d,
                                               float scale, int64_t t, int64_t end) {
    int64_t width = padded(t, end);
    float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
    for (int64_t s = 0; s < width; s++)
        sum += p[s] * d[s];
    for (int64_t s = 0; s < width; s++)
        d[s] = p[s] * (d[s] - sum) * scale;
    memset(d + width, 0, (size_t)(end - width) * sizeof *d);
}

static int64_t band_end(int64_t first, int64_t T) {
    return T - first < BAND ? T : first + BAND;
}

/* Rows of queries (or of y's gradient) times all keys (values) up to the band's end -> [.., T]. */
static struct matmul against_keys(const struct head *head, int64_t first, int64_t stride_a) {
    int64_t end = band_end(first, head->T);
    return (struct matmul){.rows = end - first,
                           .cols = end,
                           .inner = head->D,
                           .transpose_b = true,
                           .stride_a = stride_a,
                           .stride_b = head->stride,
                           .stride_c = head->T};
}

/* Rows of a [T, T] matrix times values (or keys) up to the band's end. */
static struct matmul mix_of_values(const struct head *head, int64_t first, int64_t stride_c) {
    int64_t end = band_end(first, head->T);
    return (struct matmul){.rows = end - first,
                           .cols = head->D,
                           .inner = end,
                           .stride_a = head->T,
                           .stride_b = head->stride,
                           .stride_c = stride_c};
}

/* Columns of a [T, T] matrix, from the band's first row on, times queries (or y's gradient). */
static struct matmul sum_over_queries(const struct head *head, int64_t first, int64_t stride_b) {
    return (struct matmul){.rows = band_end(first, head->T) - first,
                           .cols = head->D,
                           .inner = head->T - first,
                           .transpose_a = true,
                           .stride_a = head->T,
                           .stride_b = stride_b,
                           .stride_c = head->stride};
}

static void forward_head(const struct head *head, const float *qkv, float *rows, float *y) {
    const float *key = qkv + head->C, *value = qkv + 2 * head->C;
    for (int64_t first = 0; first < head->T; first += BAND) {
        float *band = rows + first * head->T;
        struct matmul scores = against_keys(head, first, head->stride);
        matmul(&scores, qkv + first * head->stride, key, band);
        for (int64_t t = first; t < band_end(first, head->T); t++)
            softmax_row(rows + t * head->T, head->scale, t, head->T);
        struct matmul mix = mix_of_values(head, first, head->C);
        matmul(&mix, band, value, y + first * head->C);
    }
}

/* Gradients of the queries, and of the products with the keys -> dscores. */
static void backward_queries(const struct head *head, const float *qkv, const float *rows,
                             const float *dy, float *dqkv, float *dscores) {
    const float *key = qkv + head->C, *value = qkv + 2 * head->C;
    for (int64_t first = 0; first < head->T; first += BAND) {
        int64_t end = band_end(first, head->T);
        float *band = dscores + first * head->T;
        struct matmul probabilities = against_keys(head, first, head->C);
        matmul(&probabilities, dy + first * head->C, value, band);
        for (int64_t t = first; t < end; t++)
            softmax_backward_row(rows + t * head->T, dscores + t * head->T, head->scale, t, end);
        struct matmul queries = mix_of_values(head, first, head->stride);
        matmul(&queries, band, key, dqkv + first * head->stride);
    }
}

/* A band of columns is zero above the band's rows, so the sums start there. */
static void backward_keys_values(const struct head *head, const float *qkv, const float *rows,
                                 const float *dy, float *dqkv, const float *dscores) {
    float *dkey = dqkv + head->C, *dvalue = dqkv + 2 * head->C;
    for (int64_t first = 0; first < head->T; first += BAND) {
        int64_t corner = first * head->T + first, row = first * head->stride;
        struct matmul keys = sum_over_queries(head, first, head->stride);
        matmul(&keys, dscores + corner, qkv + row, dkey + row);
        struct matmul values = sum_over_queries(head, first, head->C);
        matmul(&values, rows + corner, dy + first * head->C, dvalue + row);
    }
}

static struct head head_of(const struct attention_shape *shape) {
    ASSERT_OP(shape->C % shape->H, ==, 0);
    int64_t D = shape->C / shape->H;
    return (struct head){.T = shape->T,
                         .D = D,
                         .C = shape->C,
                         .stride = 3 * shape->C,
                         .scale = 1.0F / sqrtf((float)D)};
}

/* Threads that can be at work at once: one matrix of scratch each. */
static int slots(const struct attention_shape *shape) {
    int64_t heads = shape->B * shape->H;
    return heads < ATTENTION_THREADS_MAX ? (int)heads : ATTENTION_THREADS_MAX;
}

static int thread_count(const struct attention_shape *shape) {
    int most = slots(shape), threads = omp_get_max_threads();
    return threads < most ? threads : most;
}

void attention_forward(const struct attention_shape *shape, const float *qkv, float *probabilities,
                       float *y) {
    const struct head head = head_of(shape);
    int64_t T = shape->T, H = shape->H;
#pragma omp parallel num_threads(thread_count(shape))
    {
        omp_set_num_threads(1); /* of this task alone: for matmul(), also in a team of one */
#pragma omp for
        for (int64_t i = 0; i < shape->B * H; i++) {
            int64_t b = i / H, channel = i % H * head.D;
            forward_head(&head, qkv + b * T * head.stride + channel, probabilities + i * T * T,
                         y + b * T * head.C + channel);
        }
    }
}

int64_t attention_scratch(const struct attention_shape *shape) {
    return slots(shape) * shape->T * shape->T;
}

void attention_backward(const struct attention_shape *shape, const float *qkv,
                        const float *probabilities, const float *dy, float *dqkv, float *scratch) {
    const struct head head = head_of(shape);
    int64_t T = shape->T, H = shape->H;
#pragma omp parallel num_threads(thread_count(shape))
    {
        omp_set_num_threads(1); /* as in forward */
        float *dscores = scratch + omp_get_thread_num() * T * T;
#pragma omp for
        for (int64_t i = 0; i < shape->B * H; i++) {
            int64_t b = i / H, channel = i % H * head.D;
            int64_t in_qkv = b * T * head.stride + channel, in_y = b * T * head.C + channel;
            const float *rows = probabilities + i * T * T;
            backward_queries(&head, qkv + in_qkv, rows, dy + in_y, dqkv + in_qkv, dscores);
            backward_keys_values(&head, qkv + in_qkv, rows, dy + in_y, dqkv + in_qkv, dscores);
        }
    }
}
