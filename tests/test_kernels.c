/* test_kernels.c - proves that each fast kernel agrees with its plain twin, for odd shapes too, and
 * that its bits do not depend on the thread count.
 *
 * A case runs the twin, then the kernel with one thread and with two, on the same inputs and the
 * same former contents of the outputs (many kernels add to them). The twins themselves are proved
 * by the finite differences in test_gradients.c and by the closed forms here: extremes of the
 * cross-entropy, saturation of GELU, constant rows, causality. e^x is swept against libm.
 */
#include "base/random.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/exp.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/threads.h"
#include "kernels/tile_matmul.h"
#include "tests/test.h"

#include <stdbool.h>

/* `count` normal numbers times `scale`, a function of (lane, count, scale); the caller frees. */
static float *randoms(int64_t count, float scale, uint64_t lane) {
    float *values = malloc((size_t)(count > 0 ? count : 1) * sizeof *values);
    CHECK(values != NULL);
    struct random_stream stream;
    random_open(&stream, 7, RANDOM_SIMULATOR, lane);
    for (int64_t i = 0; i < count; i++)
        values[i] = scale * random_normal(&stream);
    return values;
}

static int32_t *random_ids(int64_t count, int64_t bound, uint64_t lane) {
    int32_t *ids = malloc((size_t)count * sizeof *ids);
    CHECK(ids != NULL);
    struct random_stream stream;
    random_open(&stream, 7, RANDOM_SIMULATOR, lane);
    for (int64_t i = 0; i < count; i++)
        ids[i] = (int32_t)random_below(&stream, (uint64_t)bound);
    return ids;
}

static void check_near(const float *actual, const float *expected, int64_t count,
                       double tolerance) {
    for (int64_t i = 0; i < count; i++)
        CHECK_NEAR(actual[i], expected[i], tolerance * (1.0 + fabs((double)expected[i])));
}

static bool same_bits(const float *a, const float *b, int64_t count) {
    const void *left = a, *right = b;
    return memcmp(left, right, (size_t)count * sizeof *a) == 0;
}

/* Runs the kernel, or its twin, on what the context holds; out has all its outputs in a row. */
typedef void run_fn(const void *context, bool ref, float *out);

static void check_run(run_fn *run, const void *context, int64_t count, double tolerance) {
    float *expected = randoms(count, 1.0F, 99), *one = randoms(count, 1.0F, 99);
    run(context, true, expected);
    threads_set(1);
    run(context, false, one);
    for (int threads = 2; threads <= 5; threads += 3) {
        float *more = randoms(count, 1.0F, 99);
        threads_set(threads);
        run(context, false, more);
        CHECK_INT(same_bits(one, more, count), 1);
        free(more);
    }
    threads_set(2);
    check_near(one, expected, count, tolerance);
    free(expected);
    free(one);
}

static void exp_error(void) {
    /* Steps of a prime through the bit patterns of -104.5 .. -0 and 0 .. 88.72. */
    for (int sign = 0; sign < 2; sign++) {
        for (uint32_t bits = 0; bits < UINT32_C(0x42d10000); bits += 997) {
            float x = exp_from_bits(bits | (uint32_t)sign << 31);
            if (x > 88.72F) break;
            double expected = exp((double)x);
            double unit = ldexp(1.0, expected < 0x1p-126 ? -149 : ilogb(expected) - 23);
            CHECK_NEAR(exp_f32(x), expected, 2.0 * unit);
        }
    }
    CHECK(exp_f32(0.0F) == 1.0F && exp_f32(-0.0F) == 1.0F);
    CHECK(exp_f32(-INFINITY) == 0.0F && exp_f32(-1e30F) == 0.0F && exp_f32(-104.1F) == 0.0F);
    CHECK(isinf(exp_f32(INFINITY)) && isinf(exp_f32(1e30F)) && isinf(exp_f32(88.73F)));
    CHECK(isfinite(exp_f32(88.72F)) && isnan(exp_f32(NAN)));
}

/* Unlike the others, a matrix product's bits may depend on the thread count. */
static void matmul_case(const struct matmul *shape) {
    int64_t rows_a = shape->transpose_a ? shape->inner : shape->rows;
    int64_t rows_b = shape->transpose_b ? shape->cols : shape->inner;
    int64_t count = shape->rows * shape->stride_c;
    float *a = randoms(rows_a * shape->stride_a, 1.0F, 1);
    float *b = randoms(rows_b * shape->stride_b, 1.0F, 2);
    float *expected = randoms(count, 1.0F, 3);
    matmul_ref(shape, a, b, expected);
    for (int threads = 1; threads <= 2; threads++) {
        float *c = randoms(count, 1.0F, 3), *again = randoms(count, 1.0F, 3);
        threads_set(threads);
        matmul(shape, a, b, c);
        matmul(shape, a, b, again);
        CHECK_INT(same_bits(c, again, count), 1);
        check_near(c, expected, count, 2e-6 * sqrt((double)shape->inner + 1.0));
        /* What lies between the rows is not ours. */
        for (int64_t i = 0; i < count; i++)
            CHECK(i % shape->stride_c < shape->cols || c[i] == expected[i]);
        free(c);
        free(again);
    }
    free(a);
    free(b);
    free(expected);
}

static void matmul_shapes(void) {
    static const int64_t sizes[][3] = {{1, 1, 1},   {3, 5, 7},   {7, 1, 48},   {1, 257, 11},
                                       {65, 48, 3}, {33, 65, 0}, {48, 31, 65}, {130, 70, 129},
                                       {0, 5, 3},   {5, 0, 3}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t rows = sizes[i][0], cols = sizes[i][1], inner = sizes[i][2];
        for (int flags = 0; flags < 16; flags++) {
            bool transpose_a = flags & 1, transpose_b = flags & 2;
            int64_t pad = flags & 8 ? 5 : 0;
            struct matmul shape = {.rows = rows,
                                   .cols = cols,
                                   .inner = inner,
                                   .transpose_a = transpose_a,
                                   .transpose_b = transpose_b,
                                   .stride_a = (transpose_a ? rows : inner) + pad,
                                   .stride_b = (transpose_b ? inner : cols) + 2 * pad,
                                   .stride_c = cols + 3 * pad,
                                   .accumulate = flags & 4};
            if (cols + pad > 0) matmul_case(&shape);
        }
    }
}

struct elements {
    int64_t R, C;
    const float *a, *b;
};

static void run_gelu(const void *context, bool ref, float *out) {
    const struct elements *e = context;
    int64_t N = e->R * e->C;
    (ref ? gelu_forward_ref : gelu_forward)(e->a, out, N);
    (ref ? gelu_backward_ref : gelu_backward)(e->a, e->b, out + N, N);
    /* In place. */
    memcpy(out + 2 * N, e->b, (size_t)N * sizeof *out);
    (ref ? gelu_backward_ref : gelu_backward)(e->a, out + 2 * N, out + 2 * N, N);
    memcpy(out + 3 * N, e->a, (size_t)N * sizeof *out);
    (ref ? gelu_forward_ref : gelu_forward)(out + 3 * N, out + 3 * N, N);
}

/* The bias is behind b's first R x C values. */
static void run_gelu_bias(const void *context, bool ref, float *out) {
    const struct elements *e = context;
    int64_t R = e->R, C = e->C, N = R * C;
    const float *bias = e->b + N;
    (ref ? gelu_bias_forward_ref : gelu_bias_forward)(e->a, bias, out, R, C);
    (ref ? gelu_bias_backward_ref : gelu_bias_backward)(e->a, bias, e->b, out + N, R, C);
    memcpy(out + 2 * N, e->b, (size_t)N * sizeof *out);
    (ref ? gelu_bias_backward_ref : gelu_bias_backward)(e->a, bias, out + 2 * N, out + 2 * N, R, C);
}

static void run_additions(const void *context, bool ref, float *out) {
    const struct elements *e = context;
    int64_t N = e->R * e->C;
    (ref ? residual_forward_ref : residual_forward)(e->a, e->b, out, N);
    (ref ? residual_forward_ref : residual_forward)(out + N, e->b, out + N, N);
    (ref ? bias_add_ref : bias_add)(out + 2 * N, e->b, e->R, e->C);
    (ref ? bias_backward_add_ref : bias_backward_add)(e->a, out + 3 * N, e->R, e->C);
}

static void activation_shapes(void) {
    static const int64_t sizes[][2] = {{1, 1}, {3, 7}, {65, 48}, {1, 4097}, {300, 257}, {0, 7}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t R = sizes[i][0], C = sizes[i][1];
        float *a = randoms(R * C, 3.0F, 1), *b = randoms(R * C + C, 1.0F, 2);
        struct elements e = {R, C, a, b};
        check_run(run_gelu, &e, 4 * R * C, 2e-6);
        check_run(run_gelu_bias, &e, 3 * R * C, 2e-6);
        check_run(run_additions, &e, 3 * R * C + C, 4e-5);
        free(a);
        free(b);
    }
}

static void gelu_saturation(void) {
    static const float x[] = {-1e30F, -1e4F, -20.0F, 0.0F, 20.0F, 1e4F, 1e30F};
    static const float ones[] = {1, 1, 1, 1, 1, 1, 1};
    static const float slopes[] = {0, 0, 0, 0.5F, 1, 1, 1};
    float y[7], dx[7];
    for (int ref = 0; ref < 2; ref++) {
        (ref ? gelu_forward_ref : gelu_forward)(x, y, 7);
        (ref ? gelu_backward_ref : gelu_backward)(x, ones, dx, 7);
        for (int i = 0; i < 7; i++) {
            CHECK(y[i] == (x[i] > 0.0F ? x[i] : 0.0F));
            CHECK_NEAR(dx[i], slopes[i], 1e-30);
        }
    }
    float nan = NAN;
    gelu_forward(&nan, y, 1);
    gelu_backward(&nan, ones, dx, 1);
    CHECK(isnan(y[0]) && isnan(dx[0]));
}

struct norm_case {
    int64_t R, C;
    const float *x, *gain, *bias, *dy, *mean, *rstd;
};

static void run_norm(const void *context, bool ref, float *out) {
    const struct norm_case *n = context;
    int64_t N = n->R * n->C;
    (ref ? norm_forward_ref : norm_forward)(n->x, n->gain, n->bias, out, out + N, out + N + n->R,
                                            n->R, n->C, 1e-5F);
}

/* With dy as the branch; the bits are those of the sum and the norm one after the other. */
static void run_norm_residual(const void *context, bool ref, float *out) {
    const struct norm_case *n = context;
    int64_t N = n->R * n->C;
    struct residual residual = {n->x, n->dy, out};
    struct norm_result result = {out + N, out + 2 * N, out + 2 * N + n->R};
    (ref ? norm_residual_forward_ref : norm_residual_forward)(&residual, n->gain, n->bias, &result,
                                                              n->R, n->C, 1e-5F);
    if (ref) return;
    float *sum = randoms(N, 1.0F, 8), *y = randoms(N + 2 * n->R, 1.0F, 9);
    residual_forward(n->x, n->dy, sum, N);
    norm_forward(sum, n->gain, n->bias, y, y + N, y + N + n->R, n->R, n->C, 1e-5F);
    CHECK(same_bits(sum, out, N) && same_bits(y, out + N, N + 2 * n->R));
    free(sum);
    free(y);
}

static void run_norm_backward(const void *context, bool ref, float *out) {
    const struct norm_case *n = context;
    int64_t N = n->R * n->C;
    struct norm_saved saved = {n->x, n->mean, n->rstd, n->gain};
    (ref ? norm_backward_add_ref : norm_backward_add)(&saved, n->dy, out, out + N, out + N + n->C,
                                                      n->R, n->C);
}

static void norm_shapes(void) {
    static const int64_t sizes[][2] = {{1, 1}, {3, 7}, {65, 48}, {5, 257}, {200, 128}, {130, 257}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t R = sizes[i][0], C = sizes[i][1], N = R * C;
        float *x = randoms(N, 2.0F, 1), *gain = randoms(C, 1.0F, 2), *bias = randoms(C, 1.0F, 3);
        float *dy = randoms(N, 1.0F, 4), *saved = randoms(N + 2 * R, 1.0F, 5);
        /* One channel has variance 0 and rstd 316; anything else is well conditioned. */
        norm_forward_ref(x, gain, bias, saved, saved + N, saved + N + R, R, C, 1e-5F);
        struct norm_case n = {R, C, x, gain, bias, dy, saved + N, saved + N + R};
        check_run(run_norm, &n, N + 2 * R, 1e-5);
        check_run(run_norm_residual, &n, 2 * N + 2 * R, 2e-5);
        check_run(run_norm_backward, &n, N + 2 * C, 2e-5);
        free(x);
        free(gain);
        free(bias);
        free(dy);
        free(saved);
    }
}

static void norm_constant_rows(void) {
    float x[14], gain[7], bias[7], y[14], mean[2], rstd[2];
    for (int i = 0; i < 7; i++) {
        x[i] = 3.0F;
        x[7 + i] = 1000.0F + (float)i;
        gain[i] = 2.0F;
        bias[i] = 0.25F * (float)i;
    }
    for (int ref = 0; ref < 2; ref++) {
        (ref ? norm_forward_ref : norm_forward)(x, gain, bias, y, mean, rstd, 2, 7, 1e-5F);
        CHECK(mean[0] == 3.0F);
        CHECK_NEAR(rstd[0], 1.0 / sqrt(1e-5), 1e-4);
        CHECK_INT(same_bits(y, bias, 7), 1);
        /* Far from zero: 0..6 has variance 4. */
        for (int i = 0; i < 7; i++)
            CHECK_NEAR(y[7 + i], (i - 3) * 0.5 * 2.0 + 0.25 * i, 1e-4);
    }
}

/* Each level that the chip has, with what a tile_matmul may not read past B's rows as NaN. */
static void tile_matmul_case(const struct matmul *shape) {
    int64_t rows_a = shape->transpose_a ? shape->inner : shape->rows;
    int64_t count = shape->rows * shape->stride_c;
    float *a = randoms(rows_a * shape->stride_a, 1.0F, 1);
    float *b = randoms(shape->inner * shape->stride_b, 1.0F, 2);
    for (int64_t i = 0; i < shape->inner * shape->stride_b; i++)
        b[i] = i % shape->stride_b < shape->cols ? b[i] : NAN;
    float *expected = randoms(count, 1.0F, 3);
    matmul_ref(shape, a, b, expected);
    CHECK(tile_matmul_level(TILE_PLAIN) != NULL);
    for (int level = -1; level < TILE_LEVEL_COUNT; level++) {
        tile_matmul_fn *multiply =
            level < 0 ? tile_matmul : tile_matmul_level((enum tile_matmul_level)level);
        if (multiply == NULL) continue;
        float *c = randoms(count, 1.0F, 3);
        multiply(shape, a, b, c);
        check_near(c, expected, count, 2e-6 * sqrt((double)shape->inner + 1.0));
        for (int64_t i = 0; i < count; i++)
            CHECK(i % shape->stride_c < shape->cols || c[i] == expected[i]);
        free(c);
    }
    free(a);
    free(b);
    free(expected);
}

static void tile_matmul_shapes(void) {
    static const int64_t sizes[][3] = {{1, 1, 1},   {3, 5, 7},    {64, 64, 32}, {23, 48, 64},
                                       {16, 17, 9}, {13, 100, 3}, {12, 31, 1},  {5, 16, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t rows = sizes[i][0], cols = sizes[i][1], inner = sizes[i][2];
        for (int flags = 0; flags < 8; flags++) {
            bool transpose_a = flags & 1;
            int64_t pad = flags & 4 ? 5 : 0;
            struct matmul shape = {.rows = rows,
                                   .cols = cols,
                                   .inner = inner,
                                   .transpose_a = transpose_a,
                                   .stride_a = (transpose_a ? rows : inner) + pad,
                                   .stride_b =
                                       (cols + TILE_COLUMNS - 1) / TILE_COLUMNS * TILE_COLUMNS,
                                   .stride_c = cols + 3 * pad,
                                   .accumulate = flags & 2};
            tile_matmul_case(&shape);
        }
    }
}

struct attention_case {
    struct attention_shape shape;
    const float *qkv, *saved, *dy;
};

/* Values of a row of qkv. */
static int64_t attention_row(const struct attention_shape *shape) {
    return (shape->heads + 2 * shape->kv_heads) * shape->head_size;
}

static void run_attention(const void *context, bool ref, float *out) {
    const struct attention_case *a = context;
    int64_t rows = a->shape.B * a->shape.heads * a->shape.T;
    float *scratch = randoms(attention_scratch(&a->shape), NAN, 1);
    (ref ? attention_forward_ref : attention_forward)(&a->shape, a->qkv, out, out + rows, scratch);
    free(scratch);
}

static void run_attention_backward(const void *context, bool ref, float *out) {
    const struct attention_case *a = context;
    int64_t rows = a->shape.B * a->shape.heads * a->shape.T;
    struct attention_saved saved = {a->qkv, a->saved + rows, a->saved};
    float *scratch = randoms(attention_scratch(&a->shape), NAN, 1);
    (ref ? attention_backward_ref : attention_backward)(&a->shape, &saved, a->dy, out, scratch);
    free(scratch);
}

static void attention_case(const struct attention_shape *shape, float spread) {
    int64_t rows = shape->B * shape->heads * shape->T, in = attention_row(shape);
    int64_t N = shape->B * shape->T, out = rows * shape->head_size;
    float *qkv = randoms(N * in, spread, 1), *dy = randoms(out, 1.0F, 2);
    float *saved = randoms(rows + out, 1.0F, 3), *scratch = randoms(attention_scratch(shape), 1, 4);
    attention_forward_ref(shape, qkv, saved, saved + rows, scratch);
    struct attention_case a = {*shape, qkv, saved, dy};
    double tolerance = 1e-5 * (double)(1.0F + spread * spread);
    check_run(run_attention, &a, rows + out, tolerance);
    check_run(run_attention_backward, &a, N * in, tolerance);
    free(qkv);
    free(dy);
    free(saved);
    free(scratch);
}

static void attention_shapes(void) {
    static const struct attention_shape shapes[] = {
        {1, 1, 1, 1, 1, NULL, false},
        {2, 3, 2, 2, 3, NULL, false},
        {1, 65, 1, 1, 7, NULL, false},
        {2, 65, 3, 3, 16, NULL, false},
        {1, 130, 4, 2, 12, NULL, false},
        {3, 64, 1, 1, 32, NULL, false},
        {33, 2, 2, 1, 7, NULL, false},
        {2, 17, 6, 2, 48, NULL, false},
        /* Few heads and many tiles, for 2 and for 5 threads: backward by tiles. */
        {1, 193, 4, 1, 20, NULL, false},
        {1, 258, 2, 2, 8, NULL, false}};
    const struct dropout dropout = dropout_make(0.3F, 5, 6, 7, DROPOUT_ATTENTION);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct attention_shape dropped = shapes[i];
        dropped.dropout = &dropout;
        attention_case(&shapes[i], 1.0F);
        attention_case(&shapes[i], 5.0F);
        attention_case(&dropped, 1.0F);
    }
}

/* Equal keys: the values' running mean, and the logarithm of their number plus the score; far more
 * positions than a [T, T] matrix would fit in the scratch for. */
static void attention_long_sequence(void) {
    const struct attention_shape shape = {1, 8192, 2, 1, 4, NULL, false};
    const int64_t T = 8192, row = attention_row(&shape);
    CHECK(attention_scratch(&shape) * (int64_t)sizeof(float) <= INT64_C(4) << 20);
    float *qkv = randoms(T * row, 1.0F, 1), *lse = randoms(2 * T, 1.0F, 2);
    float *y = randoms(T * 8, 1.0F, 3), *scratch = randoms(attention_scratch(&shape), NAN, 4);
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < 4; i++)
            qkv[t * row + 8 + i] = 0.5F;
    attention_forward(&shape, qkv, lse, y, scratch);
    double sums[4] = {0};
    for (int64_t t = 0; t < T; t++) {
        const float *query = qkv + t * row;
        for (int i = 0; i < 8; i++) {
            if (i < 4) sums[i] += (double)query[12 + i];
            CHECK_NEAR(y[t * 8 + i], (i < 4 ? sums[i] : sums[i - 4]) / (double)(t + 1), 1e-5);
        }
        double score =
            0.25 * ((double)query[0] + (double)query[1] + (double)query[2] + (double)query[3]);
        CHECK_NEAR(lse[t], score + log((double)(t + 1)), 1e-5);
    }
    free(qkv);
    free(lse);
    free(y);
    free(scratch);
}

/* What comes after a position does not change its output by a bit. */
static void attention_causality(void) {
    const struct attention_shape shape = {1, 70, 2, 1, 4, NULL, false};
    const int64_t T = 70, C = 8, changed = 66, row = attention_row(&shape), lse = 2 * T;
    float *qkv = randoms(T * row, 1.0F, 1), *before = randoms(lse + T * C, 1.0F, 2);
    float *after = randoms(lse + T * C, 1.0F, 3);
    float *scratch = randoms(attention_scratch(&shape), NAN, 4);
    attention_forward(&shape, qkv, before, before + lse, scratch);
    for (int64_t i = changed * row; i < T * row; i++)
        qkv[i] = 3.0F - qkv[i];
    attention_forward(&shape, qkv, after, after + lse, scratch);
    for (int64_t i = 0; i < T * C; i++)
        CHECK((before[lse + i] == after[lse + i]) == (i < changed * C));
    free(qkv);
    free(before);
    free(after);
    free(scratch);
}

struct embedding_case {
    int64_t B, T, C, V;
    const int32_t *tokens;
    const float *wte, *wpe, *dy;
};

static void run_embedding(const void *context, bool ref, float *out) {
    const struct embedding_case *e = context;
    (ref ? embedding_forward_ref : embedding_forward)(e->tokens, e->wte, e->wpe, out, e->B, e->T,
                                                      e->C);
}

static void run_embedding_backward(const void *context, bool ref, float *out) {
    const struct embedding_case *e = context;
    (ref ? embedding_backward_add_ref : embedding_backward_add)(
        e->tokens, e->dy, out, e->wpe != NULL ? out + e->V * e->C : NULL, e->B, e->T, e->C);
}

static void embedding_shapes(void) {
    static const int64_t sizes[][4] = {
        {1, 1, 1, 11}, {3, 3, 7, 11}, {2, 65, 48, 257}, {5, 65, 130, 11}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t B = sizes[i][0], T = sizes[i][1], C = sizes[i][2], V = sizes[i][3];
        int32_t *tokens = random_ids(B * T, V, 1);
        float *wte = randoms(V * C, 1.0F, 2), *wpe = randoms(T * C, 1.0F, 3);
        float *dy = randoms(B * T * C, 1.0F, 4);
        struct embedding_case e = {B, T, C, V, tokens, wte, wpe, dy};
        check_run(run_embedding, &e, B * T * C, 0.0);
        check_run(run_embedding_backward, &e, (V + T) * C, 1e-5);
        e.wpe = NULL;
        check_run(run_embedding, &e, B * T * C, 0.0);
        check_run(run_embedding_backward, &e, V * C, 1e-5);
        free(tokens);
        free(wte);
        free(wpe);
        free(dy);
    }
}

struct entropy_case {
    int64_t R, V;
    const float *logits;
    const int32_t *targets;
    float scale;
};

static void run_entropy(const void *context, bool ref, float *out) {
    const struct entropy_case *e = context;
    memcpy(out, e->logits, (size_t)(e->R * e->V) * sizeof *out);
    (ref ? cross_entropy_ref : cross_entropy)(out, e->targets, out + e->R * e->V, e->R, e->V,
                                              e->scale);
}

static void cross_entropy_shapes(void) {
    static const int64_t sizes[][2] = {{1, 1}, {3, 11}, {7, 48}, {65, 257}, {2, 5003}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t R = sizes[i][0], V = sizes[i][1];
        float *logits = randoms(R * V, 4.0F, 1);
        int32_t *targets = random_ids(R, V, 2);
        struct entropy_case e = {R, V, logits, targets, 0.0F};
        check_run(run_entropy, &e, R * V + R, 1e-5);
        e.scale = 0.5F;
        check_run(run_entropy, &e, R * V + R, 1e-5);
        for (int64_t r = 0; r < R; r += 2)
            targets[r] = -1;
        check_run(run_entropy, &e, R * V + R, 1e-5);
        free(logits);
        free(targets);
    }
}

static void cross_entropy_extremes(void) {
    /* Sure and right, sure and wrong, all equal, one ruled out. */
    static const float given[4][4] = {{1e4F, -1e4F, 0, 0},
                                      {-1e4F, 1e4F, -1e4F, -1e4F},
                                      {-1e4F, -1e4F, -1e4F, -1e4F},
                                      {2, 2, -INFINITY, -INFINITY}};
    static const int32_t targets[4] = {0, 0, 3, 1};
    static const double losses[4] = {0, 2e4, 1.3862943611198906, 0.69314718055994531};
    static const double grads[4][4] = {
        {0, 0, 0, 0}, {-2, 2, 0, 0}, {0.5, 0.5, 0.5, -1.5}, {1, -1, 0, 0}};
    for (int ref = 0; ref < 2; ref++) {
        float logits[4][4], actual[4];
        memcpy(logits, given, sizeof logits);
        (ref ? cross_entropy_ref : cross_entropy)(logits[0], targets, actual, 4, 4, 0.0F);
        CHECK_INT(same_bits(logits[0], given[0], 16), 1);
        (ref ? cross_entropy_ref : cross_entropy)(logits[0], targets, actual, 4, 4, 2.0F);
        for (int r = 0; r < 4; r++) {
            CHECK_NEAR(actual[r], losses[r], 1e-6);
            for (int v = 0; v < 4; v++)
                CHECK_NEAR(logits[r][v], grads[r][v], 1e-6);
        }
        static const float bad[3] = {NAN, INFINITY, INFINITY};
        for (int i = 0; i < 3; i++) {
            float row[3] = {1, bad[i], 2}, loss = 0.0F;
            int32_t target = i < 2 ? 0 : 1;
            (ref ? cross_entropy_ref : cross_entropy)(row, &target, &loss, 1, 3, 1.0F);
            CHECK(!isfinite(loss));
        }
    }
}

/* A row without a target: loss 0, gradient 0, even where its logits are not numbers. */
static void cross_entropy_masked(void) {
    static const int32_t targets[3] = {1, -1, 0};
    for (int ref = 0; ref < 2; ref++) {
        float logits[3][2] = {{0, 0}, {NAN, 7}, {0, 0}}, losses[3] = {9, 9, 9};
        (ref ? cross_entropy_ref : cross_entropy)(logits[0], targets, losses, 3, 2, 0.0F);
        CHECK(isnan(logits[1][0]));
        CHECK(losses[1] == 0.0F);
        (ref ? cross_entropy_ref : cross_entropy)(logits[0], targets, losses, 3, 2, 1.0F);
        CHECK(losses[1] == 0.0F && logits[1][0] == 0.0F && logits[1][1] == 0.0F);
        CHECK_NEAR(losses[0], 0.69314718, 1e-6);
        CHECK_NEAR(logits[0][0], 0.5, 1e-6);
        CHECK_NEAR(logits[2][0], -0.5, 1e-6);
    }
}

int main(void) {
    TEST_RUN(exp_error);
    TEST_RUN(matmul_shapes);
    TEST_RUN(tile_matmul_shapes);
    TEST_RUN(activation_shapes);
    TEST_RUN(gelu_saturation);
    TEST_RUN(norm_shapes);
    TEST_RUN(norm_constant_rows);
    TEST_RUN(attention_shapes);
    TEST_RUN(attention_long_sequence);
    TEST_RUN(attention_causality);
    TEST_RUN(embedding_shapes);
    TEST_RUN(cross_entropy_shapes);
    TEST_RUN(cross_entropy_extremes);
    TEST_RUN(cross_entropy_masked);
    return 0;
}
