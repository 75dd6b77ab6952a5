/* Proves that the model computes what PyTorch computes: loss, logits and every gradient of one
 * batch against values computed in float64, and two training curves of 50 AdamW steps (constant
 * rate; warm-up and cosine) of a plain one-process loop over the plan's blocks, with clipping. With
 * products in bfloat16 likewise, within what its 8 bits allow. The values are made by
 * tests/golden/make_gpt2.py; the model's set-up is in tests/golden_gpt2.h.
 */
#include "base/files.h"
#include "kernels/optimizer.h"
#include "tests/golden_gpt2.h"
#include "tests/test.h"

#define BLOCK_VALUES 1000 /* small, so that matrices are cut and a pack holds several vectors */
#define BATCH_TOKENS (GOLDEN_B * GOLDEN_T)

struct setup {
    struct plan plan;
    struct model *model;
    float *weights, *grad;
    int32_t tokens[BATCH_TOKENS], targets[BATCH_TOKENS];
};

static void open_setup(struct setup *setup, enum compute_type type) {
    struct model_shape shape = golden_shape();
    struct model_options options = {.B = GOLDEN_B, .T = GOLDEN_T, .training = true, .type = type};
    uint64_t count;
    struct tensor *tensors = model_tensors(&shape, &count);
    CHECK(plan_build(&setup->plan, tensors, count,
                     &(struct plan_options){.shards = 1, .block_values = BLOCK_VALUES}) ==
          STATUS_OK);
    free(tensors);
    CHECK(model_open(&setup->model, &shape, &setup->plan, &options) == STATUS_OK);
    setup->weights = memory_zeroed(setup->plan.value_count, sizeof(float));
    setup->grad = memory_zeroed(setup->plan.value_count, sizeof(float));
    golden_weights(&setup->plan, setup->weights);
    golden_batch(0, setup->tokens, setup->targets);
}

static void close_setup(struct setup *setup) {
    model_close(setup->model);
    plan_free(&setup->plan);
    free(setup->weights);
    free(setup->grad);
}

/* The loss; its gradient goes to setup->grad. */
static float compute(struct setup *setup) {
    struct model_batch batch = {
        .tokens = setup->tokens, .targets = setup->targets, .B = GOLDEN_B, .T = GOLDEN_T};
    struct model_gradient gradient = {.values = setup->grad, .scale = 1};
    model_set_weights(setup->model, setup->weights);
    float loss = model_forward(setup->model, &batch, &gradient);
    model_backward(setup->model, &batch, &gradient, NULL, NULL);
    return loss;
}

static void check_loss_and_logits(enum compute_type type, double tolerance) {
    struct setup setup;
    open_setup(&setup, type);
    CHECK_NEAR(compute(&setup), GOLDEN_LOSS, tolerance * GOLDEN_LOSS);
    float logits[GOLDEN_VOCAB];
    model_logits(setup.model, setup.tokens, GOLDEN_T, logits);
    for (int v = 0; v < GOLDEN_VOCAB; v++)
        CHECK_NEAR(logits[v], golden_logits[v], tolerance);
    close_setup(&setup);
}

/* Each value within `tolerance` of the greatest of its tensor. */
static void check_gradients(enum compute_type type, double tolerance) {
    struct setup setup;
    open_setup(&setup, type);
    char *content;
    size_t bytes;
    CHECK(files_read(GOLDEN_GRADIENTS, 1 << 20, &content, &bytes) == STATUS_OK);
    CHECK_INT(bytes, setup.plan.value_count * sizeof(float));
    float *expected = memory_zeroed(setup.plan.value_count, sizeof(float));
    memcpy(expected, content, bytes);
    compute(&setup);
    const float *next = expected;
    for (uint64_t t = 0; t < setup.plan.tensor_count; t++) {
        const struct tensor *tensor = &setup.plan.tensors[t];
        const float *grad = setup.grad + setup.plan.offsets[t];
        uint64_t count = golden_count(tensor);
        double most = 0, worst = 0;
        for (uint64_t i = 0; i < count; i++) {
            most = fmax(most, fabs((double)next[i]));
            CHECK(isfinite(grad[i]));
            worst = fmax(worst, fabs((double)grad[i] - (double)next[i]));
        }
        CHECK(most > 1e-4);
        if (worst > tolerance * most) fprintf(stderr, "in %s\n", tensor->name);
        CHECK_NEAR(worst, 0, tolerance * most);
        next += count;
    }
    free(expected);
    free(content);
    close_setup(&setup);
}

/* One update of all blocks, as the servers do it: sums in order of id, one clip for all. */
static void update(struct setup *setup, float *m, float *v, double lr, int64_t step) {
    const struct plan *plan = &setup->plan;
    double squares = 0;
    for (uint64_t b = 0; b < plan->block_count; b++)
        squares += optimizer_sum_of_squares(setup->grad + plan->blocks[b].offset,
                                            (int64_t)plan->blocks[b].count);
    double norm = sqrt(squares);
    struct adamw adamw = {.lr = (float)lr,
                          .beta1 = GOLDEN_BETA1,
                          .beta2 = GOLDEN_BETA2,
                          .eps = GOLDEN_EPS,
                          .step = step + 1,
                          .grad_scale = norm > GOLDEN_CLIP ? (float)(GOLDEN_CLIP / norm) : 1.0F};
    for (uint64_t b = 0; b < plan->block_count; b++) {
        const struct plan_block *block = &plan->blocks[b];
        adamw.decay = (float)(GOLDEN_DECAY * block->decay);
        optimizer_adamw(&adamw, setup->weights + block->offset, m + block->offset,
                        v + block->offset, setup->grad + block->offset, (int64_t)block->count);
    }
}

static void check_curve(struct golden_curve curve, enum compute_type type, int64_t steps,
                        double tolerance) {
    struct setup setup;
    open_setup(&setup, type);
    float *m = memory_zeroed(setup.plan.value_count, sizeof(float));
    float *v = memory_zeroed(setup.plan.value_count, sizeof(float));
    for (int64_t step = 0; step < steps; step++) {
        golden_batch(step, setup.tokens, setup.targets);
        CHECK_NEAR(compute(&setup), curve.losses[step], tolerance);
        update(&setup, m, v, golden_learning_rate(&curve, step), step);
    }
    CHECK(curve.losses[GOLDEN_STEPS - 1] < curve.losses[0] - 1);
    free(m);
    free(v);
    close_setup(&setup);
}

static void test_loss_and_logits(void) {
    check_loss_and_logits(COMPUTE_F32, 1e-5);
    check_loss_and_logits(COMPUTE_BF16, 2e-2);
}

static void test_gradients(void) {
    check_gradients(COMPUTE_F32, 1e-4);
    check_gradients(COMPUTE_BF16, 2e-2);
}

static void test_curve_constant_rate(void) {
    check_curve(golden_constant(), COMPUTE_F32, GOLDEN_STEPS, 1e-3);
    check_curve(golden_constant(), COMPUTE_BF16, 10, 2e-2);
}

static void test_curve_cosine(void) {
    check_curve(golden_cosine(), COMPUTE_F32, GOLDEN_STEPS, 1e-3);
    check_curve(golden_cosine(), COMPUTE_BF16, 10, 2e-2);
}

int main(void) {
    TEST_RUN(test_loss_and_logits);
    TEST_RUN(test_gradients);
    TEST_RUN(test_curve_constant_rate);
    TEST_RUN(test_curve_cosine);
    return 0;
}
