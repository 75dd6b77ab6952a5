#include "tests/golden_setup.h"

#include "base/files.h"
#include "base/memory.h"
#include "kernels/optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void golden_open(struct golden_setup *setup, const struct model_shape *shape,
                 const struct model_options *options) {
    uint64_t count;
    struct tensor *tensors = model_tensors(shape, &count);
    CHECK(plan_build(&setup->plan, tensors, count,
                     &(struct plan_options){.shards = 1, .block_values = GOLDEN_BLOCK_VALUES}) ==
          STATUS_OK);
    free(tensors);
    CHECK(model_open(&setup->model, shape, &setup->plan, options) == STATUS_OK);
    setup->weights = memory_zeroed(setup->plan.value_count, sizeof(float));
    setup->grad = memory_zeroed(setup->plan.value_count, sizeof(float));
    golden_weights(&setup->plan, setup->weights);
    golden_batch(0, setup->tokens, setup->targets);
    model_set_weights(setup->model, setup->weights);
}

void golden_close(struct golden_setup *setup) {
    model_close(setup->model);
    plan_free(&setup->plan);
    free(setup->weights);
    free(setup->grad);
}

float golden_compute(struct golden_setup *setup) {
    struct model_batch batch = {
        .tokens = setup->tokens, .targets = setup->targets, .B = GOLDEN_B, .T = GOLDEN_T};
    struct model_gradient gradient = {.values = setup->grad, .scale = 1};
    model_set_weights(setup->model, setup->weights);
    float loss = model_forward(setup->model, &batch, &gradient);
    model_backward(setup->model, &batch, &gradient, NULL, NULL);
    return loss;
}

void golden_check_gradients(const struct golden_setup *setup, const char *path, double tolerance) {
    char *content;
    size_t bytes;
    CHECK(files_read(path, 1 << 20, &content, &bytes) == STATUS_OK);
    CHECK_INT(bytes, setup->plan.value_count * sizeof(float));
    float *expected = memory_zeroed(setup->plan.value_count, sizeof(float));
    memcpy(expected, content, bytes);
    const float *next = expected;
    for (uint64_t t = 0; t < setup->plan.tensor_count; t++) {
        const struct tensor *tensor = &setup->plan.tensors[t];
        const float *grad = setup->grad + setup->plan.offsets[t];
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
}

void golden_update(struct golden_setup *setup, float *m, float *v, double lr, int64_t step) {
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

void golden_check_curve(const struct model_shape *shape, struct golden_curve curve,
                        enum compute_type type, int64_t steps, double tolerance) {
    const struct model_options options = {
        .B = GOLDEN_B, .T = GOLDEN_T, .training = true, .type = type};
    struct golden_setup setup;
    golden_open(&setup, shape, &options);
    float *m = memory_zeroed(setup.plan.value_count, sizeof(float));
    float *v = memory_zeroed(setup.plan.value_count, sizeof(float));
    for (int64_t step = 0; step < steps; step++) {
        golden_batch(step, setup.tokens, setup.targets);
        CHECK_NEAR(golden_compute(&setup), curve.losses[step], tolerance);
        golden_update(&setup, m, v, golden_learning_rate(&curve, step), step);
    }
    CHECK(curve.losses[GOLDEN_STEPS - 1] < curve.losses[0] - 1);
    free(m);
    free(v);
    golden_close(&setup);
}
