/* test_cuda_rows.c - the CUDA kernels that work on rows (norms, cross entropy, rotary and token
 * embeddings) against their plain twins on the host, within a few f32 roundings; what is no sum,
 * and sums of whole numbers, to the bit.
 *
 * Sizes are no multiples of a warp, a block, a piece of rows or a pack, and arrays begin where
 * packs can be loaded and where they cannot. Rows with values that are not finite must not spoil
 * others. Each sum is made twice: in the random order of threads and blocks its bits must stay. The
 * same program runs on the stand-in and on a GPU; where there is no device it skips.
 */
#include "device_array.h"
#include "kernels/cross_entropy.h"
#include "kernels/cuda/cross_entropy_cuda.h"
#include "kernels/cuda/embedding_cuda.h"
#include "kernels/cuda/norm_cuda.h"
#include "kernels/cuda/rope_cuda.h"
#include "kernels/embedding.h"
#include "kernels/rms_norm.h"

#include <stdbool.h>

static const float eps = 1e-5F;

/* `again` is of the same call once more, with the same input: the same bits. */
static void check_repeated(const char *name, struct array *first, struct array again) {
    fetch(first);
    memcpy(again.expected, first->host, (size_t)first->count * sizeof(float));
    check_same(name, again);
}

/* ---- norms */

struct norm_case {
    int64_t R, C;
    bool centred, branch;
};

static void norm_forward_case(struct norm_case c, struct array x) {
    const int64_t R = c.R, C = c.C;
    const struct norm_cuda norm = {R, C, eps, stream};
    struct array branch = make(R * C, 2, 1.0F), gain = make(C, 3, 1.5F), bias = make(C, 4, 1.0F);
    struct array y = make_output(R * C), mean = make_output(R), rstd = make_output(R);
    struct array sum = make_output(R * C);
    const struct residual residual = {x.device, c.branch ? branch.device : NULL, sum.device};
    const struct residual twin = {x.host, branch.host, sum.expected};
    const struct norm_result result = {y.device, c.centred ? mean.device : NULL, rstd.device};
    const struct norm_result expected = {y.expected, mean.expected, rstd.expected};
    CHECK_CUDA(
        norm_cuda_forward(&norm, &residual, gain.device, c.centred ? bias.device : NULL, &result));
    if (c.centred && c.branch)
        norm_residual_forward_ref(&twin, gain.host, bias.host, &expected, R, C, eps);
    else if (c.centred)
        norm_forward_ref(x.host, gain.host, bias.host, y.expected, mean.expected, rstd.expected, R,
                         C, eps);
    else if (c.branch)
        rms_norm_residual_forward_ref(&twin, gain.host, y.expected, rstd.expected, R, C, eps);
    else
        rms_norm_forward_ref(x.host, gain.host, y.expected, rstd.expected, R, C, eps);
    // One channel: the variance is 0 and rstd 316, so roundings weigh more.
    const double tolerance = C == 1 ? 1e-3 : 2e-5;
    check_near("y", y, tolerance);
    check_near("rstd", rstd, tolerance);
    if (c.branch)
        check_same("sum", sum);
    else
        drop(&sum);
    if (c.centred)
        check_near("mean", mean, tolerance);
    else
        drop(&mean);
    struct array *inputs[] = {&x, &branch, &gain, &bias};
    for (int i = 0; i < 4; i++)
        drop(inputs[i]);
}

static void norm_backward_case(struct norm_case c) {
    const int64_t R = c.R, C = c.C;
    const struct norm_cuda norm = {R, C, eps, stream};
    struct array x = make(R * C, 5, 2.0F), mean = make(R, 6, 0.5F), rstd = make(R, 7, 1.5F);
    struct array gain = make(C, 8, 1.5F), dy = make(R * C, 9, 1.0F);
    struct array dx[2], dgain[2], dbias[2], scratch = make_output(norm_cuda_scratch(R, C));
    const struct norm_saved saved = {x.device, c.centred ? mean.device : NULL, rstd.device,
                                     gain.device};
    for (int i = 0; i < 2; i++) {
        dx[i] = make(R * C, 10, 1.0F);
        dgain[i] = make(C, 11, 1.0F);
        dbias[i] = make(C, 12, 1.0F);
        CHECK_CUDA(norm_cuda_backward_add(&norm, &saved, dy.device, dx[i].device, dgain[i].device,
                                          c.centred ? dbias[i].device : NULL, scratch.device));
    }
    const struct norm_saved host = {x.host, mean.host, rstd.host, gain.host};
    const struct rms_norm_saved rms = {x.host, rstd.host, gain.host};
    if (c.centred)
        norm_backward_add_ref(&host, dy.host, dx[0].expected, dgain[0].expected, dbias[0].expected,
                              R, C);
    else
        rms_norm_backward_add_ref(&rms, dy.host, dx[0].expected, dgain[0].expected, R, C);
    check_repeated("dx, again", &dx[0], dx[1]);
    check_repeated("dgain, again", &dgain[0], dgain[1]);
    check_repeated("dbias, again", &dbias[0], dbias[1]);
    check_near("dx", dx[0], 2e-5);
    check_near("dgain", dgain[0], 2e-5);
    check_near("dbias", dbias[0], 2e-5); /* untouched where there is none */
    struct array *inputs[] = {&x, &mean, &rstd, &gain, &dy, &scratch};
    for (int i = 0; i < 6; i++)
        drop(inputs[i]);
}

/* Several values and packs a thread; rows just too long to be kept (on a GPU a launch that keeps
 * one fails); ten pieces of rows. */
static void test_norms(void) {
    static const int64_t shapes[][2] = {{1, 1},   {3, 5},    {2, 257},  {65, 33},
                                        {11, 64}, {3, 1028}, {1, 12288}};
    for (int i = 0; i < 7 * 4; i++) {
        const int64_t *shape = shapes[i / 4];
        const struct norm_case c = {shape[0], shape[1], i & 1, i & 2};
        norm_forward_case(c, make(c.R * c.C, 1, 3.0F));
        if (!c.branch) norm_backward_case(c);
    }
    norm_backward_case((struct norm_case){577, 3, true, false});
    norm_backward_case((struct norm_case){577, 3, false, false});
}

/* The residual in place: the sum takes x's place. */
static void test_norm_residual_in_place(void) {
    const struct norm_cuda norm = {7, 36, eps, stream};
    struct array x = make(7 * 36, 1, 3.0F), branch = make(7 * 36, 2, 1.0F), gain = make(36, 3, 1);
    struct array y = make_output(7 * 36), rstd = make_output(7);
    const struct residual residual = {x.device, branch.device, x.device};
    const struct residual twin = {x.host, branch.host, x.expected};
    const struct norm_result result = {y.device, NULL, rstd.device};
    CHECK_CUDA(norm_cuda_forward(&norm, &residual, gain.device, NULL, &result));
    rms_norm_residual_forward_ref(&twin, gain.host, y.expected, rstd.expected, 7, 36, eps);
    check_same("sum", x);
    check_near("y", y, 2e-5);
    check_near("rstd", rstd, 2e-5);
    drop(&branch);
    drop(&gain);
}

/* Rows of one value, far from zero with little between them, tiny, huge, of both zeros, and two
 * that are not finite. In the second all sums are exact, so that a variance made of the mean of
 * squares would show. */
static void test_norm_extremes(void) {
    const int64_t R = 7, C = 36;
    for (int centred = 0; centred < 2; centred++) {
        struct array x = make(R * C, 13, 1.0F);
        for (int64_t c = 0; c < C; c++) {
            x.host[0 * C + c] = 3.0F;
            x.host[1 * C + c] = 4096.0F + (c % 2 ? 0.125F : -0.125F) * (float)(c / 2 % 8);
            x.host[2 * C + c] *= 1e-30F;
            x.host[3 * C + c] = (x.host[3 * C + c] + 2.0F) * 1e15F;
            x.host[4 * C + c] = c % 2 ? 0.0F : -0.0F;
        }
        x.host[5 * C + 35] = NAN;
        x.host[6 * C] = INFINITY;
        push(&x);
        norm_forward_case((struct norm_case){R, C, centred, false}, x);
    }
}

/* ---- cross entropy */

static void entropy_case(struct array logits, const struct array *targets, float scale) {
    const int64_t R = targets->count, V = logits.count / R;
    struct array losses = make_output(R), again = make_output(R);
    struct array second = make_of(logits.host, logits.count, 1);
    const int32_t *device = (const int32_t *)targets->device;
    CHECK_CUDA(cross_entropy_cuda(logits.device, device, losses.device, R, V, scale, stream));
    CHECK_CUDA(cross_entropy_cuda(second.device, device, again.device, R, V, scale, stream));
    cross_entropy_ref(logits.expected, (const int32_t *)targets->host, losses.expected, R, V,
                      scale);
    check_repeated("gradient, again", &logits, second);
    check_repeated("losses, again", &losses, again);
    check_near("losses", losses, 2e-6);
    if (scale > 0.0F || scale < 0.0F)
        check_near("gradient", logits, 2e-6);
    else
        check_same("logits", logits);
}

/* Targets are i32 in an array of the same size: values below V, every `skip`-th negative. */
static struct array make_targets(int64_t count, int64_t V, int skip) {
    struct array targets = make(count, 1, 0.0F);
    for (int64_t r = 0; r < count; r++)
        ((int32_t *)targets.host)[r] = skip && r % skip == 0 ? -1 : (int32_t)(r * 7919 % V);
    push(&targets);
    return targets;
}

static void test_cross_entropy(void) {
    static const int64_t shapes[][2] = {{1, 1},   {5, 2},   {3, 11},   {7, 48},
                                        {9, 257}, {4, 511}, {3, 5003}, {2, 4100}};
    for (int i = 0; i < 8; i++) {
        const int64_t R = shapes[i][0], V = shapes[i][1];
        for (int skip = 0; skip < 3; skip += 2) {
            struct array targets = make_targets(R, V, skip);
            entropy_case(make(R * V, 14, 8.0F), &targets, 0.0F);
            entropy_case(make(R * V, 15, 8.0F), &targets, 0.5F);
            entropy_case(make(R * V, 16, 80.0F), &targets, -2.0F);
            drop(&targets);
        }
    }
}

/* Rows of 36: sure and right, sure and wrong, all equal, most ruled out, the target ruled out, far
 * below zero, and rows without a target whose logits are no numbers. */
static void test_cross_entropy_extremes(void) {
    const int64_t R = 8, V = 37;
    struct array targets = make_targets(R, V, 0);
    const int32_t wanted[] = {5, 6, 36, 0, 1, 2, -1, -7};
    memcpy(targets.host, wanted, sizeof wanted);
    push(&targets);
    for (int i = 0; i < 2; i++) {
        struct array logits = make(R * V, 17, 1.0F);
        for (int64_t v = 0; v < V; v++) {
            logits.host[0 * V + v] = v == 5 ? 1e4F : -1e4F;
            logits.host[1 * V + v] = v == 5 ? 1e4F : -1e4F;
            logits.host[2 * V + v] = -1e6F;
            logits.host[3 * V + v] = v < 2 ? 2.0F : -INFINITY;
            logits.host[4 * V + v] = v == 1 ? -INFINITY : 0.5F;
            logits.host[5 * V + v] = v < 36 ? -INFINITY : 1e38F;
            logits.host[6 * V + v] = NAN;
            logits.host[7 * V + v] = INFINITY;
        }
        memcpy(logits.expected, logits.host, (size_t)(R * V) * sizeof(float));
        push(&logits);
        entropy_case(logits, &targets, i ? 2.0F : 0.0F);
    }
    drop(&targets);
}

/* A logit that is not finite makes its row's loss not finite, wherever it stands, also among
 * nothing but -inf; the rows beside it keep theirs. */
static void test_cross_entropy_not_finite(void) {
    const float bad[] = {NAN, INFINITY};
    struct array targets = make_targets(3, 9, 0);
    for (int i = 0; i < 2 * 9 * 2; i++) {
        struct array logits = make(3 * 9, 18, 1.0F), losses = make_output(3);
        for (int v = 0; v < 9 && i < 2 * 9; v++)
            logits.host[9 + v] = -INFINITY;
        logits.host[9 + i / 2 % 9] = bad[i % 2];
        push(&logits);
        CHECK_CUDA(cross_entropy_cuda(logits.device, (const int32_t *)targets.device, losses.device,
                                      3, 9, 1.0F, stream));
        cross_entropy_ref(logits.expected, (const int32_t *)targets.host, losses.expected, 3, 9,
                          1.0F);
        fetch(&losses);
        CHECK(!isfinite(losses.host[1]));
        CHECK_NEAR(losses.host[0], losses.expected[0], 1e-5);
        CHECK_NEAR(losses.host[2], losses.expected[2], 1e-5);
        drop(&losses);
        drop(&logits);
    }
    drop(&targets);
}

/* ---- token and position embeddings */

enum tokens { ANY, FEW, ONE, ALL };

/* rows tokens below V: any, one of three, the last one, each another one. */
static struct array make_tokens(enum tokens kind, int64_t rows, int64_t V) {
    struct array tokens = make(rows, 19, 0.0F);
    uint32_t state = 7;
    for (int64_t i = 0; i < rows; i++) {
        state = state * 1664525U + 1013904223U;
        const int64_t random = state >> 9;
        const int64_t of[] = {random % V, random % 3 * (V / 3), V - 1, rows - 1 - i};
        ((int32_t *)tokens.host)[i] = (int32_t)of[kind];
    }
    push(&tokens);
    return tokens;
}

static void round_values(struct array *array) {
    for (int64_t i = 0; i < array->count; i++)
        array->host[i] = array->expected[i] = rintf(array->host[i]);
    push(array);
}

/* Whole numbers: any order of additions gives the twin's bits, a lost or doubled row does not. */
static void embedding_case(const struct embedding_cuda *shape, enum tokens kind, bool places) {
    const int64_t B = shape->B, T = shape->T, C = shape->C, V = B * T + 4;
    struct array tokens = make_tokens(kind, B * T, V), wte = make(V * C, 20, 1.0F);
    struct array wpe = make((T + 2) * C, 21, 1.0F), y = make_output(B * T * C);
    struct array dy = make(B * T * C, 22, 100.0F), dwte = make(V * C, 23, 100.0F);
    struct array dwpe = make((T + 2) * C, 24, 100.0F);
    struct array scratch = make_output(embedding_cuda_scratch(B * T, C));
    const int32_t *device = (const int32_t *)tokens.device, *host = (const int32_t *)tokens.host;
    round_values(&dy);
    round_values(&dwte);
    round_values(&dwpe);
    CHECK_CUDA(
        embedding_cuda_forward(shape, device, wte.device, places ? wpe.device : NULL, y.device));
    CHECK_CUDA(embedding_cuda_backward_add(shape, device, dy.device, dwte.device,
                                           places ? dwpe.device : NULL, scratch.device));
    embedding_forward_ref(host, wte.host, places ? wpe.host : NULL, y.expected, B, T, C);
    embedding_backward_add_ref(host, dy.host, dwte.expected, places ? dwpe.expected : NULL, B, T,
                               C);
    check_same("y", y);
    check_same("dwte", dwte);
    check_same("dwpe", dwpe); /* untouched where there is none */
    struct array *inputs[] = {&tokens, &wte, &wpe, &dy, &scratch};
    for (int i = 0; i < 5; i++)
        drop(inputs[i]);
}

static void test_embedding(void) {
    const int64_t shapes[][3] = {{1, 1, 1},  {2, 3, 5},   {3, 11, 8},  {1, 32, 4},
                                 {5, 13, 6}, {3, 43, 36}, {2, 100, 3}, {1, 300, 4}};
    for (int i = 0; i < 8 * 4; i++) {
        const int64_t *s = shapes[i / 4];
        const struct embedding_cuda shape = {s[0], s[1], s[2], stream};
        embedding_case(&shape, (enum tokens)(i % 4), i % 3 != 0);
    }
    const struct embedding_cuda wide = {1, 3, 1100, stream};
    embedding_case(&wide, FEW, true);
}

/* Values whose sum depends on the order of additions. */
static void test_embedding_order(void) {
    const struct embedding_cuda shape = {3, 100, 5, stream};
    struct array tokens = make_tokens(FEW, 300, 9), dy = make(300 * 5, 25, 1.0F);
    struct array scratch = make_output(embedding_cuda_scratch(300, 5)), dwte[2], dwpe[2];
    for (int i = 0; i < 2; i++) {
        dwte[i] = make(9 * 5, 26, 1.0F);
        dwpe[i] = make(100 * 5, 27, 1.0F);
        CHECK_CUDA(embedding_cuda_backward_add(&shape, (const int32_t *)tokens.device, dy.device,
                                               dwte[i].device, dwpe[i].device, scratch.device));
    }
    embedding_backward_add_ref((const int32_t *)tokens.host, dy.host, dwte[0].expected,
                               dwpe[0].expected, 3, 100, 5);
    check_repeated("dwte, again", &dwte[0], dwte[1]);
    check_repeated("dwpe, again", &dwpe[0], dwpe[1]);
    check_near("dwte", dwte[0], 1e-5);
    check_near("dwpe", dwpe[0], 1e-6);
    drop(&tokens);
    drop(&dy);
    drop(&scratch);
}

/* ---- rotary embeddings */

static void rope_case(const struct rope_shape *shape) {
    const int64_t turned = (shape->heads + shape->kv_heads) * shape->head_size;
    const int64_t row = turned + shape->kv_heads * shape->head_size, rows = shape->B * shape->T;
    struct array qkv = make(rows * row, 28, 2.0F), dqkv = make(rows * row, 29, 2.0F);
    struct array values = make_output(rows * (row - turned));
    CHECK_CUDA(rope_cuda_forward(shape, qkv.device, stream));
    CHECK_CUDA(rope_cuda_backward(shape, dqkv.device, stream));
    rope_forward_ref(shape, qkv.expected);
    rope_backward_ref(shape, dqkv.expected);
    for (int64_t r = 0; r < rows; r++) { /* values stay, to the bit */
        memcpy(values.expected + r * (row - turned), qkv.host + r * row + turned,
               (size_t)(row - turned) * sizeof(float));
        CHECK_CUDA(cudaMemcpyAsync(
            values.device + r * (row - turned), qkv.device + r * row + turned,
            (size_t)(row - turned) * sizeof(float), cudaMemcpyDeviceToDevice, stream));
    }
    check_same("values", values);
    // Far away an angle's own rounding, in double, is more than f32's.
    const double tolerance = shape->position > 100000000 ? 4e-6 : 1e-6;
    check_near("turned", qkv, tolerance);
    check_near("turned back", dqkv, tolerance);
}

static void test_rope(void) {
    static const struct rope_shape shapes[] = {
        {1, 1, 1, 1, 2, 0, 1e4},    {2, 5, 3, 1, 6, 0, 1e4},
        {3, 7, 4, 2, 8, 3, 5e5},    {1, 9, 2, 2, 64, 1000000, 1e4},
        {2, 3, 5, 5, 100, 17, 1e4}, {1, 2, 1, 1, 1024, 4095, 5e5},
        {5, 1, 2, 1, 16, 0, 1e6},   {1, 2, 1, 1, 8, 2147483000, 1e4},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        rope_case(&shapes[i]);
    const struct rope_shape large = {1, 1, 1, 1, ROPE_HEAD_MAX + 2, 0, 1e4};
    CHECK(rope_cuda_forward(&large, NULL, stream) != cudaSuccess);
}

/* More sequences than blocks for a position: a block takes its stride of them. */
static void test_rope_many_sequences(void) {
    const struct rope_shape shape = {2048 + 5, 1, 1, 1, 4, 11, 1e4};
    rope_case(&shape);
}

int main(void) {
    device_tests_begin();
    for (misalignment = 0; misalignment < 2; misalignment++) {
        TEST_RUN(test_norms);
        TEST_RUN(test_norm_residual_in_place);
        TEST_RUN(test_norm_extremes);
        TEST_RUN(test_cross_entropy);
        TEST_RUN(test_cross_entropy_extremes);
        TEST_RUN(test_cross_entropy_not_finite);
        TEST_RUN(test_embedding);
        TEST_RUN(test_embedding_order);
        TEST_RUN(test_rope);
    }
    misalignment = 0;
    TEST_RUN(test_rope_many_sequences);
    device_tests_end();
    return 0;
}
