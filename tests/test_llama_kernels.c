/* test_llama_kernels.c - proves what only Llama uses: RMS norm, rotary embeddings and SwiGLU.
 *
 * As test_kernels.c and test_gradients.c do: each kernel agrees with its plain twin for odd shapes,
 * with the same bits from one thread and two, and each backward kernel, fast and plain, agrees with
 * the fourth-order central difference
 *   (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h
 * of its plain forward along random directions of +-1. Closed forms: known rotations and their
 * inverse, saturated gates, constant rows.
 */
#include "base/random.h"
#include "kernels/activation.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/threads.h"
#include "tests/test.h"

#include <stdbool.h>

enum { DIRECTIONS = 8 };

static const double step = 0x1p-6;

/* An operation on `inputs` values in one array, with `outputs` values in another. */
struct operation {
    int64_t inputs, outputs;
    int64_t R, C; /* for norm and SwiGLU */
    struct rope_shape rope;
    void (*forward)(const struct operation *op, bool ref, const float *in, float *out);
    /* din [inputs] += the gradient, from dout [outputs]. */
    void (*backward)(const struct operation *op, bool ref, const float *in, const float *dout,
                     float *din);
};

static float *zeroed(int64_t count) {
    float *values = calloc((size_t)count, sizeof *values);
    CHECK(values != NULL);
    return values;
}

/* Roughly normal, multiples of 2^-10 and below 6 in magnitude, so that moved inputs are exact. */
static float *randoms(int64_t count, uint64_t lane) {
    float *values = zeroed(count);
    struct random_stream stream;
    random_open(&stream, 13, RANDOM_SIMULATOR, lane);
    for (int64_t i = 0; i < count; i++) {
        float value = rintf(random_normal(&stream) * 1024.0F);
        values[i] = fminf(fmaxf(value, -6000.0F), 6000.0F) / 1024.0F;
    }
    return values;
}

static bool same_bits(const float *a, const float *b, int64_t count) {
    const void *left = a, *right = b;
    return memcmp(left, right, (size_t)count * sizeof *a) == 0;
}

static void check_near(const float *actual, const float *expected, int64_t count,
                       double tolerance) {
    for (int64_t i = 0; i < count; i++)
        CHECK_NEAR(actual[i], expected[i], tolerance * (1.0 + fabs((double)expected[i])));
}

/* Forward, or backward onto former contents, by the twin and with one thread and two. */
static void check_twin(const struct operation *op, bool forward, double tolerance) {
    float *in = randoms(op->inputs, 1), *dout = randoms(op->outputs, 2);
    int64_t count = forward ? op->outputs : op->inputs;
    float *out[3];
    for (int i = 0; i < 3; i++) {
        out[i] = randoms(count, 3);
        threads_set(i == 2 ? 2 : 1);
        if (forward) op->forward(op, i == 0, in, out[i]);
        if (!forward) op->backward(op, i == 0, in, dout, out[i]);
    }
    CHECK_INT(same_bits(out[1], out[2], count), 1);
    check_near(out[1], out[0], count, tolerance);
    for (int i = 0; i < 3; i++)
        free(out[i]);
    free(in);
    free(dout);
}

/* f at in + distance * direction. */
static double loss_at(const struct operation *op, const float *in, const float *direction,
                      double distance, const float *dout) {
    float *moved = zeroed(op->inputs), *out = zeroed(op->outputs);
    for (int64_t i = 0; i < op->inputs; i++)
        moved[i] = in[i] + (float)distance * direction[i];
    op->forward(op, true, moved, out);
    double loss = 0.0;
    for (int64_t i = 0; i < op->outputs; i++)
        loss += (double)dout[i] * (double)out[i];
    free(moved);
    free(out);
    return loss;
}

static void check_gradient(const struct operation *op, bool ref) {
    float *in = randoms(op->inputs, 1), *dout = randoms(op->outputs, 2);
    float *din = zeroed(op->inputs), *direction = zeroed(op->inputs);
    op->backward(op, ref, in, dout, din);
    struct random_stream stream;
    random_open(&stream, 13, RANDOM_SIMULATOR, 4);
    for (int n = 0; n < DIRECTIONS; n++) {
        double component = 0.0, squares = 0.0;
        for (int64_t i = 0; i < op->inputs; i++) {
            direction[i] = random_below(&stream, 2) == 0 ? -1.0F : 1.0F;
            component += (double)direction[i] * (double)din[i];
            squares += (double)din[i] * (double)din[i];
        }
        double near =
            loss_at(op, in, direction, step, dout) - loss_at(op, in, direction, -step, dout);
        double far = loss_at(op, in, direction, 2.0 * step, dout) -
                     loss_at(op, in, direction, -2.0 * step, dout);
        /* sqrt(squares) is what a component is typically. */
        CHECK_NEAR(component, (8.0 * near - far) / (12.0 * step), 1e-4 * sqrt(squares) + 1e-6);
    }
    free(in);
    free(dout);
    free(din);
    free(direction);
}

static void check_operation(const struct operation *op, double tolerance) {
    check_twin(op, true, tolerance);
    check_twin(op, false, tolerance);
    check_gradient(op, true);
    check_gradient(op, false);
}

/* in: x [R, C], gain [C]; out: y [R, C], and the rstd are not looked at. */
static void rms_norm_f(const struct operation *op, bool ref, const float *in, float *out) {
    int64_t R = op->R, C = op->C;
    float *rstd = zeroed(R);
    (ref ? rms_norm_forward_ref : rms_norm_forward)(in, in + R * C, out, rstd, R, C, 1e-5F);
    for (int64_t r = 0; r < R; r++) {
        double squares = 0.0;
        for (int64_t c = 0; c < C; c++)
            squares += (double)in[r * C + c] * (double)in[r * C + c];
        double expected = 1.0 / sqrt(squares / (double)C + 1e-5);
        CHECK_NEAR(rstd[r], expected, 1e-6 * expected);
    }
    free(rstd);
}

static void rms_norm_b(const struct operation *op, bool ref, const float *in, const float *dout,
                       float *din) {
    int64_t R = op->R, C = op->C;
    float *rstd = zeroed(R), *y = zeroed(R * C);
    rms_norm_forward_ref(in, in + R * C, y, rstd, R, C, 1e-5F);
    struct rms_norm_saved saved = {in, rstd, in + R * C};
    (ref ? rms_norm_backward_add_ref : rms_norm_backward_add)(&saved, dout, din, din + R * C, R, C);
    free(rstd);
    free(y);
}

static void rms_norm(void) {
    static const int64_t sizes[][2] = {{1, 7}, {3, 48}, {20, 67}, {130, 257}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t R = sizes[i][0], C = sizes[i][1];
        const struct operation op = {.inputs = (R + 1) * C,
                                     .outputs = R * C,
                                     .R = R,
                                     .C = C,
                                     .forward = rms_norm_f,
                                     .backward = rms_norm_b};
        check_operation(&op, 2e-5);
    }
}

/* The fused sum gives the bits of the sum and the norm one after the other; its twin likewise. */
static void rms_norm_residual(void) {
    static const int64_t sizes[][2] = {{1, 7}, {3, 48}, {130, 257}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t R = sizes[i][0], C = sizes[i][1], N = R * C;
        float *x = randoms(N, 1), *branch = randoms(N, 2), *gain = randoms(C, 3);
        for (int ref = 0; ref < 2; ref++) {
            float *sum = zeroed(N), *y = zeroed(N + R), *apart = zeroed(N + R);
            struct residual residual = {x, branch, sum};
            (ref ? rms_norm_residual_forward_ref : rms_norm_residual_forward)(&residual, gain, y,
                                                                              y + N, R, C, 1e-5F);
            for (int64_t j = 0; j < N; j++)
                CHECK(sum[j] == x[j] + branch[j]);
            (ref ? rms_norm_forward_ref : rms_norm_forward)(sum, gain, apart, apart + N, R, C,
                                                            1e-5F);
            CHECK_INT(same_bits(y, apart, N + R), 1);
            free(sum);
            free(y);
            free(apart);
        }
        free(x);
        free(branch);
        free(gain);
    }
}

static void rms_norm_constant_rows(void) {
    static const float gain[3] = {1, 2, -3};
    float x[6] = {5, 5, 5, 0, 0, 0}, y[6], rstd[2];
    for (int ref = 0; ref < 2; ref++) {
        (ref ? rms_norm_forward_ref : rms_norm_forward)(x, gain, y, rstd, 2, 3, 1e-6F);
        for (int c = 0; c < 3; c++) {
            CHECK_NEAR(y[c], gain[c], 1e-6);
            CHECK(y[3 + c] == 0.0F);
        }
        CHECK_NEAR(rstd[1], 1e3, 1e-2);
    }
}

/* in: gates and ups [R, 2C]. */
static void swiglu_f(const struct operation *op, bool ref, const float *in, float *out) {
    (ref ? swiglu_forward_ref : swiglu_forward)(in, out, op->R, op->C);
}

static void swiglu_b(const struct operation *op, bool ref, const float *in, const float *dout,
                     float *din) {
    (ref ? swiglu_backward_ref : swiglu_backward)(in, dout, din, op->R, op->C);
    /* In place. */
    float *again = zeroed(op->inputs);
    memcpy(again, in, (size_t)op->inputs * sizeof *again);
    (ref ? swiglu_backward_ref : swiglu_backward)(again, dout, again, op->R, op->C);
    CHECK_INT(same_bits(again, din, op->inputs), 1);
    free(again);
}

static void swiglu(void) {
    static const int64_t sizes[][2] = {{1, 1}, {3, 7}, {65, 48}, {150, 257}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t R = sizes[i][0], F = sizes[i][1];
        const struct operation op = {.inputs = 2 * R * F,
                                     .outputs = R * F,
                                     .R = R,
                                     .C = F,
                                     .forward = swiglu_f,
                                     .backward = swiglu_b};
        check_operation(&op, 4e-6);
    }
}

static void swiglu_saturation(void) {
    static const float x[14] = {-1e30F, -1e4F, -100, 0, 100, 1e4F, 1e30F, 2, 2, 2, 2, 2, 2, 2};
    static const float ones[7] = {1, 1, 1, 1, 1, 1, 1};
    static const double slopes[7] = {0, 0, 0, 1, 2, 2, 2};
    float y[7], dx[14];
    for (int ref = 0; ref < 2; ref++) {
        (ref ? swiglu_forward_ref : swiglu_forward)(x, y, 1, 7);
        (ref ? swiglu_backward_ref : swiglu_backward)(x, ones, dx, 1, 7);
        for (int i = 0; i < 7; i++) {
            double linear = fmax((double)x[i], 0.0);
            CHECK_NEAR(y[i], 2.0 * linear, 1e-30);
            CHECK_NEAR(dx[i], slopes[i], 1e-30);
            CHECK_NEAR(dx[7 + i], linear, 1e-30);
        }
    }
    float bad[2] = {NAN, 1}, one = 1;
    swiglu_forward(bad, y, 1, 1);
    swiglu_backward(bad, &one, dx, 1, 1);
    CHECK(isnan(y[0]) && isnan(dx[0]) && isnan(dx[1]));
}

/* In place, on a copy. */
static void rope_f(const struct operation *op, bool ref, const float *in, float *out) {
    memcpy(out, in, (size_t)op->inputs * sizeof *out);
    (ref ? rope_forward_ref : rope_forward)(&op->rope, out);
}

static void rope_b(const struct operation *op, bool ref, const float *in, const float *dout,
                   float *din) {
    (void)in;
    memcpy(din, dout, (size_t)op->inputs * sizeof *din);
    (ref ? rope_backward_ref : rope_backward)(&op->rope, din);
}

static void rope(void) {
    static const struct rope_shape shapes[] = {
        {1, 1, 1, 1, 2, 0, 10000.0},     {2, 5, 3, 1, 6, 0, 10000.0},
        {2, 70, 4, 2, 16, 1000, 500000}, {1, 3, 2, 2, 34, 131071, 500000},
        {3, 41, 4, 4, 48, 7, 100},       {1, 2, 1, 1, ROPE_HEAD_MAX, 2147483640, 10000}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const struct rope_shape *s = &shapes[i];
        int64_t count = s->B * s->T * (s->heads + 2 * s->kv_heads) * s->head_size;
        const struct operation op = {
            .inputs = count, .outputs = count, .rope = *s, .forward = rope_f, .backward = rope_b};
        check_operation(&op, s->position > 1000000 ? 1e-5 : 2e-6);
    }
}

/* Two heads of four channels at position 3: channel 0 turns with channel 2 by 3, and channel 1 with
 * channel 3 by 3 / sqrt(theta) = 0.03; the values do not turn. */
static void rope_known_angles(void) {
    const struct rope_shape shape = {1, 4, 1, 1, 4, 0, 10000.0};
    for (int ref = 0; ref < 2; ref++) {
        float qkv[48];
        for (int i = 0; i < 48; i++)
            qkv[i] = (float)(i % 4 == 0 || i % 4 == 3);
        (ref ? rope_forward_ref : rope_forward)(&shape, qkv);
        for (int i = 0; i < 4; i++)
            CHECK(qkv[i] == (float)(i == 0 || i == 3)); // position 0
        const double expected[4] = {cos(3.0), -sin(0.03), sin(3.0), cos(0.03)};
        for (int head = 0; head < 2; head++) {
            for (int i = 0; i < 4; i++)
                CHECK_NEAR(qkv[36 + head * 4 + i], expected[i], 1e-6);
        }
        for (int i = 8; i < 12; i++)
            CHECK(qkv[36 + i] == (float)(i == 8 || i == 11));
    }
}

/* A row made alone at its position is the whole sequence's row, bit for bit; backward undoes it. */
static void rope_offset_and_inverse(void) {
    struct rope_shape shape = {1, 9, 2, 1, 10, 4, 10000.0};
    const int64_t row = 40, count = 9 * row;
    float *before = randoms(count, 1), *whole = randoms(count, 1), *alone = randoms(count, 1);
    rope_forward(&shape, whole);
    struct rope_shape one = shape;
    one.T = 1;
    for (int64_t t = 0; t < 9; t++) {
        one.position = shape.position + t;
        rope_forward(&one, alone + t * row);
    }
    CHECK_INT(same_bits(whole, alone, count), 1);
    rope_backward(&shape, whole);
    check_near(whole, before, count, 1e-6);
    free(before);
    free(whole);
    free(alone);
}

int main(void) {
    TEST_RUN(rms_norm);
    TEST_RUN(rms_norm_residual);
    TEST_RUN(rms_norm_constant_rows);
    TEST_RUN(swiglu);
    TEST_RUN(swiglu_saturation);
    TEST_RUN(rope);
    TEST_RUN(rope_known_angles);
    TEST_RUN(rope_offset_and_inverse);
    return 0;
}
