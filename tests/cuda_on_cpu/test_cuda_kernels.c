/* test_cuda_kernels.c - the CUDA kernels that take a value at a time against their plain twins on
 * the host: activations within a few f32 roundings, dropout, optimizers, what local steps come to,
 * sums of gradients and f32 made of bfloat16 to the bit, and the sum of squares, which is the same
 * to the bit in every run.
 *
 * Sizes are no multiples of a warp, a block or a pack, and arrays begin where packs can be loaded
 * and where they cannot; values are also infinite, NaN, denormal and about to overflow.
 * The same program runs on the stand-in and on a GPU; where there is no device it skips.
 */
#include "device_array.h"
#include "kernels/activation.h"
#include "kernels/anchor.h"
#include "kernels/cuda/activation_cuda.h"
#include "kernels/cuda/anchor_cuda.h"
#include "kernels/cuda/cast_cuda.h"
#include "kernels/cuda/dropout_cuda.h"
#include "kernels/cuda/optimizer_cuda.h"

#include <float.h>

struct shape {
    int64_t R, C;
};
static const struct shape shapes[] = {{1, 1}, {3, 5}, {2, 257}, {65, 33}, {13, 64}, {3, 1028}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static const float specials[] = {0.0F,   -0.0F,  1e-45F, -1e-40F, FLT_MIN,  1e30F,     -1e30F,
                                 88.9F,  -88.9F, 10.5F,  -10.5F,  104.0F,   -104.0F,   FLT_MAX,
                                 -1e19F, 1e19F,  1.0F,   -1.0F,   INFINITY, -INFINITY, NAN};
enum { SPECIALS = sizeof specials / sizeof specials[0] };

static void gelu_bias_case(int64_t R, int64_t F, struct array x) {
    struct array bias = make(F, 9, 1.0F), y = make_output(R * F);
    struct array dy = make(R * F, 10, 1.0F); /* dx in its place */
    CHECK_CUDA(activation_cuda_gelu_bias_forward(x.device, bias.device, y.device, R, F, stream));
    CHECK_CUDA(activation_cuda_gelu_bias_backward(x.device, bias.device, dy.device, dy.device, R, F,
                                                  stream));
    gelu_bias_forward_ref(x.host, bias.host, y.expected, R, F);
    gelu_bias_backward_ref(x.host, bias.host, dy.host, dy.expected, R, F);
    for (int64_t i = 0; i < R * F; i++) { /* the twin's limit is inf * 0; the kernels' is 0 or 1 */
        if (isinf(x.host[i])) dy.expected[i] = x.host[i] > 0.0F ? dy.host[i] : 0.0F;
    }
    check_near("gelu", y, 2e-6);
    check_near("gelu's gradient", dy, 5e-6);
    drop(&bias);
    drop(&x);
}

static void test_gelu_bias(void) {
    for (int i = 0; i < SHAPES; i++)
        gelu_bias_case(shapes[i].R, shapes[i].C, make(shapes[i].R * shapes[i].C, 8, 6.0F));
    gelu_bias_case(4, SPECIALS, make_of(specials, SPECIALS, 4));
    gelu_bias_case(SPECIALS, 4, make_of(specials, SPECIALS, 4)); /* in packs */
}

static void swiglu_case(int64_t R, int64_t F, struct array x) {
    struct array y = make_output(R * F), dy = make(R * F, 12, 1.0F);
    struct array dx = make_output(2 * R * F);
    CHECK_CUDA(activation_cuda_swiglu_forward(x.device, y.device, R, F, stream));
    CHECK_CUDA(activation_cuda_swiglu_backward(x.device, dy.device, dx.device, R, F, stream));
    swiglu_forward_ref(x.host, y.expected, R, F);
    swiglu_backward_ref(x.host, dy.host, dx.expected, R, F);
    for (int64_t i = 0; i < 2 * R * F; i++) /* the twin's limit is inf * 0; the kernel's is 0 */
        if (i / F % 2 == 0 && x.host[i] == -INFINITY) dx.expected[i] = dx.expected[i + F] = 0.0F;
    check_near("swiglu", y, 2e-6);
    check_near("swiglu's gradient", dx, 5e-6);
    CHECK_CUDA(activation_cuda_swiglu_backward(x.device, dy.device, x.device, R, F, stream));
    swiglu_backward_ref(x.host, dy.host, x.expected, R, F);
    for (int64_t i = 0; i < 2 * R * F; i++)
        if (i / F % 2 == 0 && x.host[i] == -INFINITY) x.expected[i] = x.expected[i + F] = 0.0F;
    check_near("swiglu's gradient in place", x, 5e-6);
    drop(&dy);
}

static void test_swiglu(void) {
    for (int i = 0; i < SHAPES; i++)
        swiglu_case(shapes[i].R, shapes[i].C, make(2 * shapes[i].R * shapes[i].C, 11, 6.0F));
    /* A special gate beside an up of 1, and a special up beside a gate of 1. */
    float pairs[4 * SPECIALS];
    for (int i = 0; i < 2 * SPECIALS; i++) {
        pairs[2 * i] = i < SPECIALS ? specials[i] : 1.0F;
        pairs[2 * i + 1] = i < SPECIALS ? 1.0F : specials[i - SPECIALS];
    }
    swiglu_case(2 * SPECIALS, 1, make_of(pairs, 4 * SPECIALS, 1));
}

static void dropout_case(const struct dropout *dropout, int64_t R, int64_t C, struct array x) {
    struct array y = make_output(R * C);
    CHECK_CUDA(dropout_cuda_rows(dropout, x.device, y.device, R, C, stream));
    dropout_rows_ref(dropout, x.host, y.expected, R, C);
    check_same("dropout", y);
    CHECK_CUDA(dropout_cuda_rows(dropout, x.device, x.device, R, C, stream));
    dropout_rows_ref(dropout, x.host, x.expected, R, C);
    check_same("dropout in place", x);
}

static void test_dropout(void) {
    static const int64_t columns[] = {1, 15, 16, 17, 63, 64, 68, 130, 200, 1100};
    const struct dropout some = {{0x12345678U, 0x9abcdef0U}, 0x20000000U, 1.0F / 0.875F};
    const struct dropout half = {{1, 2}, 0x80000000U, 2.0F}, none = {{1, 2}, 0, 1.0F};
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        dropout_case(&some, 3, columns[i], make(3 * columns[i], 13, 1.0F));
        dropout_case(&half, 1, columns[i], make(columns[i], 14, 1.0F));
        dropout_case(&none, 1, columns[i], make(columns[i], 15, 1.0F));
    }
    dropout_case(&half, 8, SPECIALS, make_of(specials, SPECIALS, 8));
    dropout_case(&half, 2, 4 * SPECIALS, make_of(specials, SPECIALS, 8));
}

/* Rows beyond a grid's 8192. */
static void test_many_rows(void) {
    const struct dropout half = {{3, 4}, 0x80000000U, 2.0F};
    dropout_case(&half, 8192 + 9, 1, make(8192 + 9, 16, 1.0F));
}

static void test_adamw(void) {
    const int64_t sizes[] = {1, 31, 256, 1000, 4099};
    for (int i = 0; i < 5; i++) {
        const int64_t N = sizes[i];
        struct array weights = make(N, 17, 1.0F), grad = make(N, 18, 10.0F);
        struct array m = make(N, 19, 0.0F), v = make(N, 20, 0.0F);
        for (int64_t step = 1; step <= 3; step++) {
            const struct adamw adamw = {3e-4F, 0.9F, 0.95F, 1e-8F, 0.1F, step, 0.25F};
            const struct adamw_factors factors = optimizer_adamw_factors(&adamw);
            CHECK_CUDA(optimizer_cuda_adamw(&factors, weights.device, m.device, v.device,
                                            grad.device, N, stream));
            optimizer_adamw_ref(&adamw, weights.expected, m.expected, v.expected, grad.host, N);
        }
        check_same("weights", weights);
        check_same("m", m);
        check_same("v", v);
        drop(&grad);
    }
}

static void sgd_case(struct array weights, struct array grad) {
    const int64_t N = weights.count;
    struct array velocity = make_output(N); /* NaN: the first step must not read it */
    for (int64_t step = 1; step <= 3; step++) {
        const struct sgd sgd = {0.03F, 0.9F, 0.01F, 0.25F, step};
        CHECK_CUDA(
            optimizer_cuda_sgd(&sgd, weights.device, velocity.device, grad.device, N, stream));
        optimizer_sgd_ref(&sgd, weights.expected, velocity.expected, grad.host, N);
    }
    check_same("weights", weights);
    check_same("velocity", velocity);
    drop(&grad);
}

static void test_sgd(void) {
    const int64_t sizes[] = {1, 31, 256, 1000, 4099};
    for (int i = 0; i < 5; i++)
        sgd_case(make(sizes[i], 21, 1.0F), make(sizes[i], 22, 10.0F));
    sgd_case(make(SPECIALS, 23, 1.0F), make_of(specials, SPECIALS, 1));
    sgd_case(make_of(specials, SPECIALS, 1), make(SPECIALS, 24, 1.0F));
}

/* Without a momentum there is no velocity, as if each step were the first. */
static void sgd_alone_case(struct array weights, struct array grad) {
    const struct sgd first = {0.03F, 0.0F, 0.01F, 0.25F, 1};
    struct sgd sgd = first;
    struct array velocity = make(weights.count, 1, 0.0F);
    for (; sgd.step <= 3; sgd.step++) {
        CHECK_CUDA(
            optimizer_cuda_sgd(&sgd, weights.device, NULL, grad.device, weights.count, stream));
        optimizer_sgd_ref(&first, weights.expected, velocity.expected, grad.host, weights.count);
    }
    check_same("weights", weights);
    drop(&grad);
    drop(&velocity);
}

static void test_sgd_alone(void) {
    sgd_alone_case(make(1000, 29, 1.0F), make(1000, 30, 10.0F));
    sgd_alone_case(make(SPECIALS, 29, 1.0F), make_of(specials, SPECIALS, 1));
}

static void anchor_case(struct array anchor, struct array weights) {
    const float factors[] = {1.0F, 0.37F}, mixes[] = {0.5F, 0.9F};
    const int64_t N = anchor.count;
    for (int i = 0; i < 2; i++) {
        struct array delta = make_output(N);
        CHECK_CUDA(
            anchor_cuda_delta(anchor.device, weights.device, factors[i], delta.device, N, stream));
        anchor_delta(anchor.host, weights.expected, factors[i], delta.expected, N);
        check_same("delta", delta);
        CHECK_CUDA(anchor_cuda_mix(anchor.device, mixes[i], weights.device, N, stream));
        anchor_mix(anchor.host, mixes[i], weights.expected, N);
    }
    check_same("mixed weights", weights);
    drop(&anchor);
}

static void test_anchor(void) {
    const int64_t sizes[] = {1, 31, 256, 1000, 4099};
    for (int i = 0; i < 5; i++)
        anchor_case(make(sizes[i], 26, 1.0F), make(sizes[i], 27, 1.0F));
    anchor_case(make(SPECIALS, 28, 1.0F), make_of(specials, SPECIALS, 1));
    anchor_case(make_of(specials, SPECIALS, 1), make(SPECIALS, 28, 1.0F));
}

static void add_case(struct array values, struct array sum) {
    for (int64_t i = 0; i < sum.count; i++)
        sum.expected[i] += values.host[i];
    CHECK_CUDA(optimizer_cuda_add(values.device, sum.device, sum.count, stream));
    check_same("sum", sum);
    drop(&values);
}

static void test_add(void) {
    const int64_t sizes[] = {1, 31, 256, 1000, 4099};
    for (int i = 0; i < 5; i++)
        add_case(make(sizes[i], 31, 1.0F), make(sizes[i], 32, 10.0F));
    add_case(make(SPECIALS, 31, 1.0F), make_of(specials, SPECIALS, 1));
    add_case(make_of(specials, SPECIALS, 1), make(SPECIALS, 31, 1.0F));
}

/* Bfloat16 numbers first, first + 1, .. -> f32: as their upper halves. */
static void widen_case(uint32_t first, int64_t count) {
    struct array from = make(count, 1, 0.0F), to = make_output(count);
    uint16_t *halves = (uint16_t *)from.host;
    for (int64_t i = 0; i < count; i++) {
        const uint32_t half = (first + (uint32_t)i) % 65536, bits = half << 16;
        halves[i] = (uint16_t)half;
        memcpy(&to.expected[i], &bits, sizeof bits);
    }
    push(&from);
    CHECK_CUDA(cast_cuda_from_bf16((const uint16_t *)from.device, to.device, count, stream));
    check_same("bfloat16 as f32", to);
    drop(&from);
}

static void test_widen(void) {
    const int64_t sizes[] = {1, 31, 256, 1000, 4099};
    for (int i = 0; i < 5; i++)
        widen_case(0x3f80, sizes[i]);
    widen_case(0, 65536);
}

static double sum_of_squares(struct array grad) {
    double *device = NULL, sum = -1.0;
    CHECK_CUDA(cudaMalloc((void **)&device, (OPTIMIZER_CUDA_PARTS + 1) * sizeof(double)));
    CHECK_CUDA(optimizer_cuda_sum_of_squares(grad.device, grad.count, device + 1, device, stream));
    CHECK_CUDA(cudaMemcpyAsync(&sum, device, sizeof sum, cudaMemcpyDeviceToHost, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    CHECK_CUDA(cudaFree(device));
    drop(&grad);
    return sum;
}

/* 5003 values: several blocks. The same array loaded in packs and one by one, of a size that lets
 * it be, gives the same bits. */
static void test_sum_of_squares(void) {
    const int64_t sizes[] = {1, 3, 4, 255, 1024, 1025, 5003, 5004};
    for (int i = 0; i < 8; i++) {
        struct array grad = make(sizes[i], 25, 3.0F);
        const double expected = optimizer_sum_of_squares_ref(grad.host, grad.count);
        const double sum = sum_of_squares(grad);
        CHECK_NEAR(sum, expected, 1e-13 * expected);
        misalignment = 1 - misalignment;
        CHECK(sum_of_squares(make(sizes[i], 25, 3.0F)) == sum);
        misalignment = 1 - misalignment;
    }
    const float large[] = {FLT_MAX, -FLT_MAX, 1e-45F, 0.0F, 2.0F}, bad[] = {1.0F, NAN, 2.0F};
    CHECK_NEAR(sum_of_squares(make_of(large, 5, 1)) / (2.0 * (double)FLT_MAX * (double)FLT_MAX),
               1.0, 1e-15);
    CHECK(isnan(sum_of_squares(make_of(bad, 3, 9))));
    CHECK(sum_of_squares(make(1500, 1, 0.0F)) == 0.0);
}

/* More values than a pass of the grid: the sum is of whole numbers, so it is exact. */
static void test_sum_of_many_squares(void) {
    const int64_t N = 4 * 256 * OPTIMIZER_CUDA_PARTS + 4 * 256 + 3;
    struct array grad = make(N, 1, 0.0F);
    double expected = 0.0;
    for (int64_t i = 0; i < N; i++) {
        grad.host[i] = (float)(i % 7) - 3.0F;
        expected += (double)grad.host[i] * (double)grad.host[i];
    }
    push(&grad);
    CHECK(sum_of_squares(grad) == expected);
}

int main(void) {
    device_tests_begin();
    for (misalignment = 0; misalignment < 2; misalignment++) {
        TEST_RUN(test_gelu_bias);
        TEST_RUN(test_swiglu);
        TEST_RUN(test_dropout);
        TEST_RUN(test_widen);
    }
    misalignment = 0;
    TEST_RUN(test_many_rows);
    TEST_RUN(test_adamw);
    TEST_RUN(test_sgd);
    TEST_RUN(test_sgd_alone);
    TEST_RUN(test_anchor);
    TEST_RUN(test_add);
    TEST_RUN(test_sum_of_squares);
    TEST_RUN(test_sum_of_many_squares);
    device_tests_end();
    return 0;
}
