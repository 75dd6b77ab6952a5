/* test_gradients.c - proves each backward kernel, fast and plain, against finite differences of the
 * plain forward kernel.
 *
 * The loss is a fixed random weighting of the outputs, summed in double. Its derivative along
 * random directions of +-1 (all inputs move at once) is estimated by the fourth-order central
 * difference
 *   (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h
 * and must equal the gradient's component. Inputs are multiples of 2^-10 and h is 2^-6, so that the
 * moved inputs are exact in f32; what remains is the rounding of the outputs.
 */
#include "base/random.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "tests/test.h"

#include <stdbool.h>

enum { DIRECTIONS = 8 };

static const double step = 0x1p-6;

/* An operation on `inputs` values in one array, with `outputs` values in another. */
struct operation {
    int64_t inputs, outputs;
    int64_t sizes[5]; /* the operation's own */
    const int32_t *ids;
    const struct dropout *dropout;
    void (*forward)(const struct operation *op, const float *in, float *out);
    /* din [inputs], zeroed, += the gradient, from dout [outputs]. */
    void (*backward)(const struct operation *op, bool ref, const float *in, const float *dout,
                     float *din);
};

static float *zeroed(int64_t count) {
    float *values = calloc((size_t)count, sizeof *values);
    CHECK(values != NULL);
    return values;
}

/* Roughly normal, multiples of 2^-10, below 6 in magnitude. */
static float *randoms(int64_t count, uint64_t lane) {
    float *values = zeroed(count);
    struct random_stream stream;
    random_open(&stream, 11, RANDOM_SIMULATOR, lane);
    for (int64_t i = 0; i < count; i++)
        values[i] =
            fminf(fmaxf(rintf(random_normal(&stream) * 1024.0F), -6000.0F), 6000.0F) / 1024.0F;
    return values;
}

/* f at in + distance * direction. */
static double loss_at(const struct operation *op, const float *in, const float *direction,
                      double distance, const float *dout) {
    float *moved = zeroed(op->inputs), *out = zeroed(op->outputs);
    for (int64_t i = 0; i < op->inputs; i++)
        moved[i] = in[i] + (float)distance * direction[i];
    op->forward(op, moved, out);
    double loss = 0.0;
    for (int64_t i = 0; i < op->outputs; i++)
        loss += (double)dout[i] * (double)out[i];
    free(moved);
    free(out);
    return loss;
}

static void check_direction(const struct operation *op, const float *in, const float *dout,
                            const float *din, struct random_stream *stream) {
    float *direction = zeroed(op->inputs);
    double component = 0.0, squares = 0.0;
    for (int64_t i = 0; i < op->inputs; i++) {
        direction[i] = random_below(stream, 2) == 0 ? -1.0F : 1.0F;
        component += (double)direction[i] * (double)din[i];
        squares += (double)din[i] * (double)din[i];
    }
    double near = loss_at(op, in, direction, step, dout) - loss_at(op, in, direction, -step, dout);
    double far = loss_at(op, in, direction, 2.0 * step, dout) -
                 loss_at(op, in, direction, -2.0 * step, dout);
    double estimate = (8.0 * near - far) / (12.0 * step);
    /* sqrt(squares) is what a component is typically; one wrong value in 1e5 would show. */
    CHECK_NEAR(component, estimate, 1e-4 * sqrt(squares) + 1e-6);
    free(direction);
}

static void check_operation(const struct operation *op, const float *dout) {
    float *in = randoms(op->inputs, 1);
    for (int ref = 0; ref < 2; ref++) {
        float *din = zeroed(op->inputs);
        op->backward(op, ref != 0, in, dout, din);
        struct random_stream stream;
        random_open(&stream, 11, RANDOM_SIMULATOR, 3);
        for (int i = 0; i < DIRECTIONS; i++)
            check_direction(op, in, dout, din, &stream);
        free(din);
    }
    free(in);
}

static void check_random(const struct operation *op) {
    float *dout = randoms(op->outputs, 2);
    check_operation(op, dout);
    free(dout);
}

static void gelu_f(const struct operation *op, const float *in, float *out) {
    gelu_forward_ref(in, out, op->inputs);
}

static void gelu_b(const struct operation *op, bool ref, const float *in, const float *dout,
                   float *din) {
    (ref ? gelu_backward_ref : gelu_backward)(in, dout, din, op->inputs);
}

static void gelu(void) {
    const struct operation op = {
        .inputs = 513, .outputs = 513, .forward = gelu_f, .backward = gelu_b};
    check_random(&op);
}

/* in: y [R, C], bias [C]. */
static void bias_f(const struct operation *op, const float *in, float *out) {
    int64_t R = op->sizes[0], C = op->sizes[1];
    memcpy(out, in, (size_t)(R * C) * sizeof *out);
    bias_add_ref(out, in + R * C, R, C);
}

static void bias_b(const struct operation *op, bool ref, const float *in, const float *dout,
                   float *din) {
    (void)in;
    int64_t R = op->sizes[0], C = op->sizes[1];
    memcpy(din, dout, (size_t)(R * C) * sizeof *din);
    (ref ? bias_backward_add_ref : bias_backward_add)(dout, din + R * C, R, C);
}

static void bias(void) {
    const struct operation op = {.inputs = INT64_C(10) * 67,
                                 .outputs = INT64_C(9) * 67,
                                 .sizes = {9, 67},
                                 .forward = bias_f,
                                 .backward = bias_b};
    check_random(&op);
}

/* in: x [R, C], gain [C], bias [C]. */
static void norm_f(const struct operation *op, const float *in, float *out) {
    int64_t R = op->sizes[0], C = op->sizes[1], N = R * C;
    float *saved = zeroed(2 * R);
    norm_forward_ref(in, in + N, in + N + C, out, saved, saved + R, R, C, 1e-5F);
    free(saved);
}

static void norm_b(const struct operation *op, bool ref, const float *in, const float *dout,
                   float *din) {
    int64_t R = op->sizes[0], C = op->sizes[1], N = R * C;
    float *saved = zeroed(2 * R), *y = zeroed(N);
    (ref ? norm_forward_ref : norm_forward)(in, in + N, in + N + C, y, saved, saved + R, R, C,
                                            1e-5F);
    struct norm_saved s = {in, saved, saved + R, in + N};
    (ref ? norm_backward_add_ref : norm_backward_add)(&s, dout, din, din + N, din + N + C, R, C);
    free(saved);
    free(y);
}

static void norm(void) {
    static const int64_t sizes[][2] = {{1, 7}, {3, 48}, {20, 67}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t R = sizes[i][0], C = sizes[i][1];
        const struct operation op = {.inputs = (R + 2) * C,
                                     .outputs = R * C,
                                     .sizes = {R, C},
                                     .forward = norm_f,
                                     .backward = norm_b};
        check_random(&op);
    }
}

static struct attention_shape attention_of(const struct operation *op) {
    const int64_t *s = op->sizes;
    return (struct attention_shape){s[0], s[1], s[2], s[3], s[4], op->dropout, false};
}

static void attention_f(const struct operation *op, const float *in, float *out) {
    struct attention_shape shape = attention_of(op);
    float *lse = zeroed(shape.B * shape.heads * shape.T);
    attention_forward_ref(&shape, in, lse, out, NULL);
    free(lse);
}

static void attention_b(const struct operation *op, bool ref, const float *in, const float *dout,
                        float *din) {
    struct attention_shape shape = attention_of(op);
    float *lse = zeroed(shape.B * shape.heads * shape.T);
    float *y = zeroed(op->outputs), *scratch = zeroed(attention_scratch(&shape));
    (ref ? attention_forward_ref : attention_forward)(&shape, in, lse, y, scratch);
    struct attention_saved saved = {in, y, lse};
    (ref ? attention_backward_ref : attention_backward)(&shape, &saved, dout, din, scratch);
    free(lse);
    free(y);
    free(scratch);
}

static void attention(void) {
    static const int64_t sizes[][5] = {
        {1, 1, 1, 1, 3}, {2, 3, 2, 2, 4}, {1, 65, 1, 1, 6}, {2, 66, 3, 3, 4}, {1, 67, 4, 2, 5}};
    const struct dropout dropout = dropout_make(0.25F, 1, 2, 3, DROPOUT_ATTENTION);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const int64_t *s = sizes[i];
        struct operation op = {.inputs = s[0] * s[1] * (s[2] + 2 * s[3]) * s[4],
                               .outputs = s[0] * s[1] * s[2] * s[4],
                               .sizes = {s[0], s[1], s[2], s[3], s[4]},
                               .forward = attention_f,
                               .backward = attention_b};
        check_random(&op);
        op.dropout = &dropout;
        check_random(&op);
    }
}

/* in: wte [V, C], wpe [T, C]; sizes B, T, C, V. */
static void embedding_f(const struct operation *op, const float *in, float *out) {
    const int64_t *s = op->sizes;
    embedding_forward_ref(op->ids, in, in + s[3] * s[2], out, s[0], s[1], s[2]);
}

static void embedding_b(const struct operation *op, bool ref, const float *in, const float *dout,
                        float *din) {
    (void)in;
    const int64_t *s = op->sizes;
    (ref ? embedding_backward_add_ref
         : embedding_backward_add)(op->ids, dout, din, din + s[3] * s[2], s[0], s[1], s[2]);
}

static void embedding(void) {
    static const int32_t tokens[8] = {3, 0, 3, 3, 1, 0, 3, 2};
    const struct operation op = {.inputs = INT64_C(9) * 67,
                                 .outputs = INT64_C(8) * 67,
                                 .sizes = {2, 4, 67, 5},
                                 .ids = tokens,
                                 .forward = embedding_f,
                                 .backward = embedding_b};
    check_random(&op);
}

/* in: logits [R, V]; out: losses [R]. */
static void entropy_f(const struct operation *op, const float *in, float *out) {
    float *logits = zeroed(op->inputs);
    memcpy(logits, in, (size_t)op->inputs * sizeof *in);
    cross_entropy_ref(logits, op->ids, out, op->sizes[0], op->sizes[1], 0.0F);
    free(logits);
}

static void entropy_b(const struct operation *op, bool ref, const float *in, const float *dout,
                      float *din) {
    float *losses = zeroed(op->outputs);
    memcpy(din, in, (size_t)op->inputs * sizeof *in);
    (ref ? cross_entropy_ref : cross_entropy)(din, op->ids, losses, op->sizes[0], op->sizes[1],
                                              dout[0]);
    free(losses);
}

static void cross_entropy_loss(void) {
    static const int32_t targets[5] = {0, 256, 17, 100, 17};
    static const float dout[5] = {0.25F, 0.25F, 0.25F, 0.25F, 0.25F};
    const struct operation op = {.inputs = INT64_C(5) * 257,
                                 .outputs = 5,
                                 .sizes = {5, 257},
                                 .ids = targets,
                                 .forward = entropy_f,
                                 .backward = entropy_b};
    check_operation(&op, dout);
}

/* in: A [rows, inner], B [inner, cols]; the two products by which a layer goes backwards. */
static void matmul_f(const struct operation *op, const float *in, float *out) {
    int64_t M = op->sizes[0], N = op->sizes[1], K = op->sizes[2];
    struct matmul product = {
        .rows = M, .cols = N, .inner = K, .stride_a = K, .stride_b = N, .stride_c = N};
    matmul_ref(&product, in, in + M * K, out);
}

static void matmul_b(const struct operation *op, bool ref, const float *in, const float *dout,
                     float *din) {
    int64_t M = op->sizes[0], N = op->sizes[1], K = op->sizes[2];
    struct matmul to_a = {.rows = M,
                          .cols = K,
                          .inner = N,
                          .transpose_b = true,
                          .stride_a = N,
                          .stride_b = N,
                          .stride_c = K};
    struct matmul to_b = {.rows = K,
                          .cols = N,
                          .inner = M,
                          .transpose_a = true,
                          .stride_a = K,
                          .stride_b = N,
                          .stride_c = N,
                          .accumulate = true};
    (ref ? matmul_ref : matmul)(&to_a, dout, in + M * K, din);
    (ref ? matmul_ref : matmul)(&to_b, in, dout, din + M * K);
}

static void matmul_backward(void) {
    const struct operation op = {.inputs = INT64_C(7) * 33 + INT64_C(33) * 20,
                                 .outputs = INT64_C(7) * 20,
                                 .sizes = {7, 20, 33},
                                 .forward = matmul_f,
                                 .backward = matmul_b};
    check_random(&op);
}

int main(void) {
    TEST_RUN(gelu);
    TEST_RUN(bias);
    TEST_RUN(norm);
    TEST_RUN(attention);
    TEST_RUN(embedding);
    TEST_RUN(cross_entropy_loss);
    TEST_RUN(matmul_backward);
    return 0;
}
