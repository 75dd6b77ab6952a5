#include "tests/model_rig.h"

#include "base/random.h"
#include "tests/test.h"

enum { VOCAB = 19, POSITIONS = 9 };

#define CASE(...)                                                                                  \
    { .B = 3, .T = 7, __VA_ARGS__ }
#define EVERY(n) .recompute = MODEL_RECOMPUTE_EVERY, .recompute_every = (n)

const struct model_rig_case model_rig_cases[] = {
    {"gpt2:2x12x3", true, CASE(.type = COMPUTE_F32)},
    {"gpt2:2x12x3", true, CASE(.type = COMPUTE_BF16)},
    {"gpt2:2x12x3", true, CASE(.dropout = 0.3F)},
    {"gpt2:2x12x3", true, CASE(.dropout = 0.3F, .recompute = MODEL_RECOMPUTE_ATTENTION)},
    {"gpt2:3x12x3", true, CASE(EVERY(2))},
    {"gpt2:1x20x5", true, {.B = 1, .T = 1}},
    {"llama:2x12x3", false, CASE(.type = COMPUTE_F32)},
    {"llama:2x24x6x2", true, CASE(.type = COMPUTE_F32)},
    {"llama:2x12x3", true, CASE(.type = COMPUTE_BF16)},
    {"llama:2x24x6x2", false, CASE(.recompute = MODEL_RECOMPUTE_ATTENTION, .dropout = 0.2F)},
    {"llama:3x12x3", false, CASE(EVERY(1))},
};
const int model_rig_case_count = sizeof model_rig_cases / sizeof model_rig_cases[0];

void model_rig_name(const struct model_rig_case *rig_case, char *text, size_t text_bytes) {
    static const char *const recomputes[] = {"none", "attention", "every"};
    const struct model_options *options = &rig_case->options;
    snprintf(text, text_bytes, "%s%s, %s, dropout %g, recompute %s", rig_case->model,
             rig_case->tied ? " tied" : "", options->type == COMPUTE_BF16 ? "bf16" : "f32",
             (double)options->dropout, recomputes[options->recompute]);
}

/* Weights large enough that every part of the model shapes the loss. */
static void fill(struct model_rig *rig) {
    struct random_stream stream;
    size_t tokens = (size_t)(MODEL_RIG_BATCHES * rig->B * rig->T);
    rig->weights = memory_zeroed((size_t)rig->plan.value_count, sizeof(float));
    rig->grad = memory_zeroed((size_t)rig->plan.value_count, sizeof(float));
    rig->tokens = memory_zeroed(tokens, sizeof(int32_t));
    rig->targets = memory_zeroed(tokens, sizeof(int32_t));
    model_init_weights(&rig->shape, &rig->plan, 7, rig->weights);
    random_open(&stream, 1, RANDOM_SIMULATOR, 0);
    for (uint64_t i = 0; i < rig->plan.value_count; i++)
        rig->weights[i] += 0.2F * random_normal(&stream);
    for (size_t i = 0; i < tokens; i++) {
        rig->tokens[i] = (int32_t)random_below(&stream, VOCAB);
        rig->targets[i] = i % 5 == 3 ? -1 : (int32_t)random_below(&stream, VOCAB);
    }
}

enum status model_rig_open(struct model_rig *rig, const struct model_rig_case *rig_case,
                           struct device *device) {
    char why[200];
    uint64_t count = 0;
    struct model_options options = rig_case->options;
    *rig = (struct model_rig){.B = options.B, .T = options.T};
    CHECK_INT(model_shape_parse(rig_case->model, VOCAB, POSITIONS, &rig->shape, why, sizeof why),
              STATUS_OK);
    rig->shape.tied_head = rig_case->tied;
    struct tensor *tensors = model_tensors(&rig->shape, &count);
    CHECK_INT(plan_build(&rig->plan, tensors, count,
                         &(struct plan_options){.shards = 1, .block_values = 100}),
              STATUS_OK);
    free(tensors);
    options.training = true;
    options.device = device;
    enum status status = model_open(&rig->model, &rig->shape, &rig->plan, &options);
    if (status == STATUS_OK) {
        fill(rig);
    } else {
        plan_free(&rig->plan);
    }
    return status;
}

void model_rig_close(struct model_rig *rig) {
    model_close(rig->model);
    plan_free(&rig->plan);
    free(rig->weights);
    free(rig->grad);
    free(rig->tokens);
    free(rig->targets);
}

struct model_batch model_rig_batch(const struct model_rig *rig, int64_t number) {
    return (struct model_batch){.tokens = rig->tokens + number * rig->B * rig->T,
                                .targets = rig->targets + number * rig->B * rig->T,
                                .B = rig->B,
                                .T = rig->T,
                                .dropout_seed = 3,
                                .dropout_step = (uint64_t)number};
}

float model_rig_step(struct model_rig *rig, model_ready_fn *ready, void *context) {
    float sum = 0;
    model_set_weights(rig->model, rig->weights);
    for (int64_t n = 0; n < MODEL_RIG_BATCHES; n++) {
        bool last = n + 1 == MODEL_RIG_BATCHES;
        struct model_batch batch = model_rig_batch(rig, n);
        struct model_gradient gradient = {
            .values = rig->grad, .scale = 1.0F / MODEL_RIG_BATCHES, .add = n > 0, .more = !last};
        sum += model_forward(rig->model, &batch, &gradient);
        if (model_status(rig->model) != STATUS_OK) return NAN;
        model_backward(rig->model, &batch, &gradient, last ? ready : NULL, context);
    }
    return sum / MODEL_RIG_BATCHES;
}
