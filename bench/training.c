#include "bench/training.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "bench/onednn_peak.h"
#include "kernels/optimizer.h"
#include "proto/job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_VALUES = 262144, PEAK_REPEATS = 7 };

static const double clip_norm = 1.0;

enum status training_open(struct training *training, const struct training_config *config) {
    char why[256];
    uint64_t count = 0;
    *training = (struct training){.config = *config};
    if (model_shape_parse(config->model, config->vocab, config->T, &training->shape, why,
                          sizeof why) != STATUS_OK) {
        log_error("--model %s: %s", config->model, why);
        return STATUS_INVALID;
    }
    struct tensor *tensors = model_tensors(&training->shape, &count);
    enum status status =
        plan_build(&training->plan, tensors, count,
                   &(struct plan_options){.shards = 1, .block_values = BLOCK_VALUES});
    free(tensors);
    TRY(status);
    size_t vector = (size_t)training->plan.value_count * sizeof(float);
    size_t batch = (size_t)(config->B * config->T) * sizeof(int32_t);
    TRY(arena_init(&training->arena, 4 * arena_need(vector) + 2 * arena_need(batch)));
    training->pinned = !device_is_host(config->device) &&
                       device_pin(config->device, training->arena.base, training->arena.bytes);
    training->weights = arena_take(&training->arena, vector);
    training->grad = arena_take(&training->arena, vector);
    training->moment1 = arena_take(&training->arena, vector);
    training->moment2 = arena_take(&training->arena, vector);
    training->tokens = arena_take(&training->arena, batch);
    training->targets = arena_take(&training->arena, batch);
    model_init_weights(&training->shape, &training->plan, 1, training->weights);
    int64_t every = 0;
    bool attention = false;
    TRY(job_recompute(config->recompute, &every, &attention));
    training->options = (struct model_options){.B = config->B,
                                               .T = config->T,
                                               .training = true,
                                               .type = config->bf16 ? COMPUTE_BF16 : COMPUTE_F32,
                                               .recompute = every > 0   ? MODEL_RECOMPUTE_EVERY
                                                            : attention ? MODEL_RECOMPUTE_ATTENTION
                                                                        : MODEL_RECOMPUTE_NONE,
                                               .recompute_every = every,
                                               .dropout = config->dropout,
                                               .device = config->device};
    return model_open(&training->model, &training->shape, &training->plan, &training->options);
}

uint64_t training_model_bytes(const struct training *training) {
    return model_bytes(&training->shape, &training->options);
}

void training_close(struct training *training) {
    model_close(training->model);
    plan_free(&training->plan);
    if (training->pinned) device_unpin(training->config.device, training->arena.base);
    arena_free(&training->arena);
    *training = (struct training){0};
}

/* Tokens of its own for each step. */
static void read_batch(struct training *training) {
    struct random_stream stream;
    random_open(&stream, (uint64_t)training->steps_done, RANDOM_SAMPLING, 0);
    for (int64_t i = 0; i < training->config.B * training->config.T; i++) {
        training->tokens[i] = (int32_t)random_below(&stream, (uint64_t)training->config.vocab);
        training->targets[i] = (int32_t)random_below(&stream, (uint64_t)training->config.vocab);
    }
}

/* The factor that brings the gradient to the global norm. */
static float clip(const struct training *training) {
    const struct plan *plan = &training->plan;
    double sum = 0;
#pragma omp parallel for schedule(dynamic) reduction(+ : sum)
    for (uint64_t id = 0; id < plan->block_count; id++) {
        const struct plan_block *block = &plan->blocks[id];
        sum += optimizer_sum_of_squares(training->grad + block->offset, (int64_t)block->count);
    }
    double factor = clip_norm / (sqrt(sum) + 1e-6);
    return factor < 1 ? (float)factor : 1.0F;
}

static void optimize(struct training *training, float scale) {
    const struct plan *plan = &training->plan;
#pragma omp parallel for schedule(dynamic)
    for (uint64_t id = 0; id < plan->block_count; id++) {
        const struct plan_block *block = &plan->blocks[id];
        struct adamw adamw = {.lr = 1e-4F,
                              .beta1 = 0.9F,
                              .beta2 = 0.95F,
                              .eps = 1e-8F,
                              .decay = block->decay ? 0.1F : 0,
                              .step = training->steps_done + 1,
                              .grad_scale = scale};
        optimizer_adamw(&adamw, training->weights + block->offset,
                        training->moment1 + block->offset, training->moment2 + block->offset,
                        training->grad + block->offset, (int64_t)block->count);
    }
}

/* Since *mark, which is now. */
static double lap(int64_t *mark_ns) {
    int64_t now_ns = clock_now_ns();
    double seconds = (double)(now_ns - *mark_ns) / (double)CLOCK_S;
    *mark_ns = now_ns;
    return seconds;
}

float training_step(struct training *training, double *seconds) {
    const struct training_config *config = &training->config;
    read_batch(training);
    struct model_batch batch = {
        .tokens = training->tokens, .targets = training->targets, .B = config->B, .T = config->T};
    batch.dropout_step = (uint64_t)training->steps_done;
    struct model_gradient gradient = {.values = training->grad, .scale = 1};
    int64_t mark_ns = clock_now_ns();
    model_set_weights(training->model, training->weights);
    seconds[TRAINING_LOAD] = lap(&mark_ns);
    float loss = model_forward(training->model, &batch, &gradient);
    seconds[TRAINING_FORWARD] = lap(&mark_ns);
    if (model_status(training->model) != STATUS_OK) return NAN;
    model_backward(training->model, &batch, &gradient, NULL, NULL);
    seconds[TRAINING_BACKWARD] = lap(&mark_ns);
    float scale = clip(training);
    seconds[TRAINING_CLIP] = lap(&mark_ns);
    optimize(training, scale);
    seconds[TRAINING_OPTIMIZER] = lap(&mark_ns);
    training->steps_done++;
    return loss;
}

/* Is a tensor multiplied with? A position's embedding is only looked up; so is a token's where the
 * head has a matrix of its own. */
static bool is_product(const struct plan *plan, const struct tensor *tensor) {
    bool own_head = false;
    for (uint64_t i = 0; i < plan->tensor_count; i++) {
        own_head = own_head || strstr(plan->tensors[i].name, "lm_head") != NULL;
    }
    return tensor->dims == 2 && strstr(tensor->name, "wpe") == NULL &&
           !(own_head && strstr(tensor->name, "embed_tokens") != NULL);
}

double training_flops(const struct training *training) {
    double values = 0;
    for (uint64_t i = 0; i < training->plan.tensor_count; i++) {
        const struct tensor *tensor = &training->plan.tensors[i];
        if (is_product(&training->plan, tensor)) {
            values += (double)tensor->shape[0] * (double)tensor->shape[1];
        }
    }
    return 6 * values * (double)(training->config.B * training->config.T);
}

/* y = x W, dx = dy W', dW = x' dy. Layers are alike: a shape that was measured is not again. */
double training_peak_seconds(const struct training *training) {
    enum { SHAPES_MAX = 64 };
    struct {
        uint64_t rows, cols;
        double seconds;
    } known[SHAPES_MAX];
    size_t count = 0;
    double total = 0;
    int64_t N = training->config.B * training->config.T;
    bool bf16 = training->config.bf16;
    for (uint64_t i = 0; i < training->plan.tensor_count; i++) {
        const struct tensor *tensor = &training->plan.tensors[i];
        if (!is_product(&training->plan, tensor)) continue;
        size_t at = 0;
        while (at < count &&
               (known[at].rows != tensor->shape[0] || known[at].cols != tensor->shape[1])) {
            at++;
        }
        if (at == count && count < SHAPES_MAX) {
            int64_t in = (int64_t)tensor->shape[0];
            int64_t out = (int64_t)tensor->shape[1];
            known[count].rows = tensor->shape[0];
            known[count].cols = tensor->shape[1];
            known[count++].seconds = onednn_peak_seconds(N, in, out, bf16, PEAK_REPEATS) +
                                     onednn_peak_seconds(N, out, in, bf16, PEAK_REPEATS) +
                                     onednn_peak_seconds(in, N, out, bf16, PEAK_REPEATS);
        }
        total += at < SHAPES_MAX ? known[at].seconds : 0;
    }
    return total;
}
