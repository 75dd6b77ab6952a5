/* Proves that the model computes what PyTorch computes: loss, logits and every gradient of one
 * batch against values computed in float64, and two training curves of 50 AdamW steps (constant
 * rate; warm-up and cosine) of a plain one-process loop over the plan's blocks, with clipping. The
 * values are made by tests/golden/make_gpt2.py; the model's set-up is in tests/golden_gpt2.h.
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

static void open_setup(struct setup *setup) {
    struct model_shape shape = golden_shape();
    uint64_t count;
    struct tensor *tensors = model_tensors(&shape, &count);
    CHECK(plan_build(&setup->plan, tensors, count, 1, BLOCK_VALUES) == STATUS_OK);
    free(tensors);
    CHECK(model_open(&setup->model, &shape, &setup->plan, GOLDEN_B, GOLDEN_T, true) == STATUS_OK);
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

static void test_loss_and_logits(void) {
    struct setup setup;
    open_setup(&setup);
    float loss =
        model_forward(setup.model, setup.weights, setup.tokens, setup.targets, GOLDEN_B, GOLDEN_T);
    CHECK_NEAR(loss, GOLDEN_LOSS, 1e-5 * GOLDEN_LOSS);
    float logits[GOLDEN_VOCAB];
    model_logits(setup.model, setup.weights, setup.tokens, GOLDEN_T, logits);
    for (int v = 0; v < GOLDEN_VOCAB; v++)
        CHECK_NEAR(logits[v], golden_logits[v], 1e-5);
    close_setup(&setup);
}

/* Each value within 1e-4 of the greatest of its tensor. */
static void test_gradients(void) {
    struct setup setup;
    open_setup(&setup);
    char *content;
    size_t bytes;
    CHECK(files_read(GOLDEN_GRADIENTS, 1 << 20, &content, &bytes) == STATUS_OK);
    CHECK_INT(bytes, setup.plan.value_count * sizeof(float));
    float *expected = memory_zeroed(setup.plan.value_count, sizeof(float));
    memcpy(expected, content, bytes);
    model_forward(setup.model, setup.weights, setup.tokens, setup.targets, GOLDEN_B, GOLDEN_T);
    model_backward(setup.model, setup.weights, setup.tokens, setup.targets, setup.grad, NULL, NULL);
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
        if (worst > 1e-4 * most) fprintf(stderr, "in %s\n", tensor->name);
        CHECK_NEAR(worst, 0, 1e-4 * most);
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
        adamw.decay = block->decay ? GOLDEN_DECAY : 0;
        optimizer_adamw(&adamw, setup->weights + block->offset, m + block->offset,
                        v + block->offset, setup->grad + block->offset, (int64_t)block->count);
    }
}

static void check_curve(struct golden_curve curve) {
    struct setup setup;
    open_setup(&setup);
    float *m = memory_zeroed(setup.plan.value_count, sizeof(float));
    float *v = memory_zeroed(setup.plan.value_count, sizeof(float));
    for (int64_t step = 0; step < GOLDEN_STEPS; step++) {
        golden_batch(step, setup.tokens, setup.targets);
        float loss = model_forward(setup.model, setup.weights, setup.tokens, setup.targets,
                                   GOLDEN_B, GOLDEN_T);
        CHECK_NEAR(loss, curve.losses[step], 1e-3);
        model_backward(setup.model, setup.weights, setup.tokens, setup.targets, setup.grad, NULL,
                       NULL);
        update(&setup, m, v, golden_learning_rate(&curve, step), step);
    }
    CHECK(curve.losses[GOLDEN_STEPS - 1] < curve.losses[0] - 1);
    free(m);
    free(v);
    close_setup(&setup);
}

static void test_curve_constant_rate(void) {
    check_curve(golden_constant());
}

static void test_curve_cosine(void) {
    check_curve(golden_cosine());
}

int main(void) {
    TEST_RUN(test_loss_and_logits);
    TEST_RUN(test_gradients);
    TEST_RUN(test_curve_constant_rate);
    TEST_RUN(test_curve_cosine);
    return 0;
}
