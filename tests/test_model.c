/* Proves the model's own promises on a tiny shape. Gradients: directional finite differences of the
 * loss, for every tensor, along its gradient and along random signs. Forward: the same bits with
 * and without training memory and from run to run; batches smaller than the model was opened for
 * agree with the logits of each prefix. Backward: `ready` exactly once a tensor, in reverse layer
 * order, with values final and weights no longer read; every value is overwritten; nothing is
 * allocated. Shapes, names and first weights: closed forms and moments.
 */
#include "base/random.h"
#include "tests/test.h"
#include "worker/model.h"

#define LAYERS    2
#define CHANNELS  12
#define HEADS     3
#define VOCAB     19
#define POSITIONS 9
#define B         3
#define T         7

static const struct model_shape shape = {LAYERS, CHANNELS, HEADS, VOCAB, POSITIONS};

struct setup {
    struct plan plan;
    struct model *model;
    float *weights, *grad;
    int32_t tokens[B * T], targets[B * T];
};

static uint64_t count_of(const struct tensor *tensor) {
    return tensor->dims == 1 ? tensor->shape[0] : tensor->shape[0] * tensor->shape[1];
}

/* Weights large enough that every part of the model shapes the loss. */
static void open_setup(struct setup *setup, bool training) {
    uint64_t count;
    struct tensor *tensors = model_tensors(&shape, &count);
    CHECK(plan_build(&setup->plan, tensors, count, 1, 100) == STATUS_OK);
    free(tensors);
    CHECK(model_open(&setup->model, &shape, &setup->plan, B, T, training) == STATUS_OK);
    setup->weights = memory_zeroed(setup->plan.value_count, sizeof(float));
    setup->grad = memory_zeroed(setup->plan.value_count, sizeof(float));
    model_init_weights(&shape, &setup->plan, 7, setup->weights);
    struct random_stream stream;
    random_open(&stream, 1, RANDOM_SIMULATOR, 0);
    for (uint64_t i = 0; i < setup->plan.value_count; i++)
        setup->weights[i] += 0.3F * random_normal(&stream);
    for (int i = 0; i < B * T; i++) {
        setup->tokens[i] = (int32_t)random_below(&stream, VOCAB);
        setup->targets[i] = (int32_t)random_below(&stream, VOCAB);
    }
}

static void close_setup(struct setup *setup) {
    model_close(setup->model);
    plan_free(&setup->plan);
    free(setup->weights);
    free(setup->grad);
}

static float forward(struct setup *setup) {
    return model_forward(setup->model, setup->weights, setup->tokens, setup->targets, B, T);
}

static void backward(struct setup *setup, model_ready_fn *ready, void *context) {
    model_backward(setup->model, setup->weights, setup->tokens, setup->targets, setup->grad, ready,
                   context);
}

static void test_shape_parse(void) {
    static const struct {
        const char *text;
        int64_t layers, channels, heads; /* 0: refused */
    } cases[] = {
        {"gpt2:tiny", 4, 128, 4},
        {"gpt2:small", 6, 384, 6},
        {"gpt2:124M", 12, 768, 12},
        {"gpt2:350M", 24, 1024, 16},
        {"gpt2:774M", 36, 1280, 20},
        {"gpt2:1.5B", 48, 1600, 25},
        {"gpt2:2x32x4", 2, 32, 4},
        {"gpt2:2x32x5", 0, 0, 0},
        {"gpt2:0x32x4", 0, 0, 0},
        {"gpt2:2x32", 0, 0, 0},
        {"gpt2:2x32x4x", 0, 0, 0},
        {"gpt2:2x-32x4", 0, 0, 0},
        {"gpt2:", 0, 0, 0},
        {"llama:tiny", 0, 0, 0},
        {"", 0, 0, 0},
        {"gpt2:99999999999999999999x4x4", 0, 0, 0},
        {"gpt2:2x32x0", 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct model_shape parsed = {-1, -1, -1, -1, -1};
        char why[200] = "";
        enum status status = model_shape_parse(cases[i].text, 50, 10, &parsed, why, sizeof(why));
        CHECK_INT(status, cases[i].layers > 0 ? STATUS_OK : STATUS_INVALID);
        CHECK_INT(why[0] == 0, status == STATUS_OK);
        CHECK_INT(parsed.layers, status == STATUS_OK ? cases[i].layers : -1);
        CHECK_INT(parsed.channels, status == STATUS_OK ? cases[i].channels : -1);
        CHECK_INT(parsed.heads, status == STATUS_OK ? cases[i].heads : -1);
        CHECK_INT(parsed.vocab, status == STATUS_OK ? 50 : -1);
    }
    struct model_shape parsed;
    char why[200];
    CHECK(model_shape_parse("gpt2:tiny", 0, 10, &parsed, why, sizeof(why)) == STATUS_INVALID);
    CHECK(model_shape_parse("gpt2:tiny", 50, 0, &parsed, why, sizeof(why)) == STATUS_INVALID);
    CHECK(model_shape_parse("gpt2:tiny", 50, INT64_C(1) << 31, &parsed, why, sizeof(why)) ==
          STATUS_INVALID);
}

/* GPT-2 124M has 124 439 808 parameters (Hugging Face's gpt2, tied head). */
static void test_tensors(void) {
    struct model_shape gpt2;
    char why[200];
    CHECK(model_shape_parse("gpt2:124M", 50257, 1024, &gpt2, why, sizeof(why)) == STATUS_OK);
    uint64_t count, values = 0;
    struct tensor *tensors = model_tensors(&gpt2, &count);
    CHECK_INT(count, 148);
    for (uint64_t i = 0; i < count; i++) {
        values += count_of(&tensors[i]);
        CHECK_INT(tensors[i].decay, tensors[i].dims == 2);
    }
    CHECK_INT(values, 124439808);
    CHECK_TEXT(tensors[0].name, "transformer.wte.weight");
    CHECK_TEXT(tensors[1].name, "transformer.wpe.weight");
    CHECK_TEXT(tensors[2].name, "transformer.h.0.ln_1.weight");
    CHECK_TEXT(tensors[4].name, "transformer.h.0.attn.c_attn.weight");
    CHECK_INT(tensors[4].shape[0], 768);
    CHECK_INT(tensors[4].shape[1], 2304);
    CHECK_TEXT(tensors[145].name, "transformer.h.11.mlp.c_proj.bias");
    CHECK_TEXT(tensors[147].name, "transformer.ln_f.bias");
    free(tensors);
}

/* Mean and deviation of each tensor, each within six deviations of its estimator. */
static void test_init_weights(void) {
    struct model_shape wide = {3, 64, 4, 100, 50};
    uint64_t count;
    struct tensor *tensors = model_tensors(&wide, &count);
    struct plan plan;
    CHECK(plan_build(&plan, tensors, count, 1, 5000) == STATUS_OK);
    float *weights = memory_zeroed(plan.value_count, sizeof(float));
    float *again = memory_zeroed(plan.value_count, sizeof(float));
    model_init_weights(&wide, &plan, 3, weights);
    model_init_weights(&wide, &plan, 3, again);
    CHECK(memcmp(weights, again, plan.value_count * sizeof(float)) == 0);
    model_init_weights(&wide, &plan, 4, again);
    CHECK(memcmp(weights, again, plan.value_count * sizeof(float)) != 0);
    for (uint64_t t = 0; t < count; t++) {
        double n = (double)count_of(&tensors[t]), sum = 0, squares = 0;
        for (uint64_t i = 0; i < count_of(&tensors[t]); i++) {
            double value = weights[plan.offsets[t] + i];
            sum += value;
            squares += value * value;
        }
        bool residual = strstr(tensors[t].name, "c_proj.weight") != NULL;
        double std = residual ? 0.02 / sqrt(6.0) : 0.02;
        if (tensors[t].dims == 1) {
            CHECK_NEAR(sum / n, strstr(tensors[t].name, ".weight") != NULL ? 1 : 0, 0);
        } else {
            CHECK_NEAR(sum / n, 0, 6 * std / sqrt(n));
            CHECK_NEAR(sqrt(squares / n), std, 6 * std / sqrt(2 * n));
        }
    }
    free(tensors);
    free(weights);
    free(again);
    plan_free(&plan);
}

/* (loss(w + eps d) - loss(w - eps d)) / (2 eps) */
static double difference(struct setup *setup, uint64_t at, uint64_t count, const float *direction,
                         float eps) {
    float *weights = setup->weights + at;
    float *kept = memory_zeroed(count, sizeof(float));
    memcpy(kept, weights, count * sizeof(float));
    for (uint64_t i = 0; i < count; i++)
        weights[i] = kept[i] + eps * direction[i];
    double more = forward(setup);
    for (uint64_t i = 0; i < count; i++)
        weights[i] = kept[i] - eps * direction[i];
    double less = forward(setup);
    memcpy(weights, kept, count * sizeof(float));
    free(kept);
    return (more - less) / (2 * (double)eps);
}

static void test_finite_differences(void) {
    struct setup setup;
    open_setup(&setup, true);
    forward(&setup);
    backward(&setup, NULL, NULL);
    struct random_stream stream;
    random_open(&stream, 2, RANDOM_SIMULATOR, 0);
    float *direction = memory_zeroed(setup.plan.value_count, sizeof(float));
    for (uint64_t t = 0; t < setup.plan.tensor_count; t++) {
        uint64_t count = count_of(&setup.plan.tensors[t]), at = setup.plan.offsets[t];
        const float *grad = setup.grad + at;
        double norm = 0;
        for (uint64_t i = 0; i < count; i++)
            norm += (double)grad[i] * (double)grad[i];
        norm = sqrt(norm);
        CHECK(norm > 1e-3);
        for (uint64_t i = 0; i < count; i++)
            direction[i] = (float)((double)grad[i] / norm);
        CHECK_NEAR(difference(&setup, at, count, direction, 0.01F), norm, 0.01 * norm);
        for (int repeat = 0; repeat < 4; repeat++) {
            double along = 0;
            for (uint64_t i = 0; i < count; i++) {
                float sign = random_u32(&stream) & 1 ? 1.0F : -1.0F;
                direction[i] = sign / sqrtf((float)count);
                along += (double)(direction[i] * grad[i]);
            }
            CHECK_NEAR(difference(&setup, at, count, direction, 0.01F), along, 0.01 * norm);
        }
    }
    free(direction);
    close_setup(&setup);
}

struct record {
    struct setup *setup;
    float *seen; /* gradients as they were when announced */
    uint64_t order[64];
    uint64_t calls;
};

/* Keeps what is announced, and spoils the tensor's weights: they must not matter any more. */
static void record_ready(void *context, uint64_t tensor) {
    struct record *record = context;
    const struct plan *plan = &record->setup->plan;
    uint64_t at = plan->offsets[tensor], count = count_of(&plan->tensors[tensor]);
    memcpy(record->seen + at, record->setup->grad + at, count * sizeof(float));
    for (uint64_t i = 0; i < count; i++)
        record->setup->weights[at + i] = NAN;
    CHECK(record->calls < 64);
    record->order[record->calls++] = tensor;
}

/* A layer's place in the order; embeddings come last, the last norm first. */
static int64_t rank_of(uint64_t tensor) {
    if (tensor < 2) return LAYERS + 1;
    return LAYERS - (int64_t)(tensor - 2) / 12;
}

static void test_ready(void) {
    struct setup setup;
    open_setup(&setup, true);
    size_t bytes = setup.plan.value_count * sizeof(float);
    float *expected = memory_zeroed(setup.plan.value_count, sizeof(float));
    forward(&setup);
    backward(&setup, NULL, NULL);
    memcpy(expected, setup.grad, bytes);
    struct record record = {.setup = &setup};
    record.seen = memory_zeroed(setup.plan.value_count, sizeof(float));
    for (uint64_t i = 0; i < setup.plan.value_count; i++)
        setup.grad[i] = NAN;
    forward(&setup);
    backward(&setup, record_ready, &record);
    CHECK_INT(record.calls, setup.plan.tensor_count);
    bool called[64] = {false};
    for (uint64_t i = 0; i < record.calls; i++) {
        CHECK(!called[record.order[i]]);
        called[record.order[i]] = true;
        if (i > 0) CHECK(rank_of(record.order[i]) >= rank_of(record.order[i - 1]));
    }
    CHECK_INT(record.order[record.calls - 1], 0);
    CHECK(memcmp(record.seen, setup.grad, bytes) == 0);
    CHECK(memcmp(expected, setup.grad, bytes) == 0);
    for (int i = T * CHANNELS; i < POSITIONS * CHANNELS; i++)
        CHECK(setup.grad[setup.plan.offsets[1] + (uint64_t)i] == 0);
    free(expected);
    free(record.seen);
    close_setup(&setup);
}

static void test_repeats_bit_for_bit(void) {
    struct setup setup, eval;
    open_setup(&setup, true);
    open_setup(&eval, false);
    float *first = memory_zeroed(setup.plan.value_count, sizeof(float));
    float loss = forward(&setup);
    backward(&setup, NULL, NULL);
    memcpy(first, setup.grad, setup.plan.value_count * sizeof(float));
    memory_forbid(true);
    for (int repeat = 0; repeat < 3; repeat++) {
        CHECK(forward(&setup) == loss);
        backward(&setup, NULL, NULL);
        CHECK(memcmp(first, setup.grad, setup.plan.value_count * sizeof(float)) == 0);
        CHECK(forward(&eval) == loss);
    }
    memory_forbid(false);
    free(first);
    close_setup(&setup);
    close_setup(&eval);
}

/* The loss of rows and lengths of a batch, from the logits that model_logits gives one by one. */
static double loss_from_logits(struct setup *setup, int64_t rows, int64_t length,
                               const int32_t *tokens, const int32_t *targets) {
    double sum = 0;
    for (int64_t i = 0; i < rows * length; i++) {
        float logits[VOCAB];
        model_logits(setup->model, setup->weights, tokens + i / length * length, i % length + 1,
                     logits);
        double total = 0;
        for (int v = 0; v < VOCAB; v++)
            total += exp((double)logits[v]);
        sum += log(total) - (double)logits[targets[i]];
    }
    return sum / (double)(rows * length);
}

/* Every batch size and length up to what the model was opened for; causality comes with it. */
static void test_smaller_batches(void) {
    for (int training = 0; training < 2; training++) {
        struct setup setup;
        open_setup(&setup, training == 1);
        for (int64_t rows = 1; rows <= B; rows++) {
            for (int64_t length = 1; length <= T; length++) {
                double loss = model_forward(setup.model, setup.weights, setup.tokens, setup.targets,
                                            rows, length);
                CHECK_NEAR(loss_from_logits(&setup, rows, length, setup.tokens, setup.targets),
                           loss, 1e-5);
            }
        }
        close_setup(&setup);
    }
}

/* The gradient of a batch is the mean of those of its sequences: what data parallelism rests on. */
static void test_mean_over_sequences(void) {
    struct setup setup;
    open_setup(&setup, true);
    uint64_t count = setup.plan.value_count;
    double *mean = memory_zeroed(count, sizeof(double));
    for (ptrdiff_t b = 0; b < B; b++) {
        const int32_t *tokens = setup.tokens + b * T, *targets = setup.targets + b * T;
        model_forward(setup.model, setup.weights, tokens, targets, 1, T);
        model_backward(setup.model, setup.weights, tokens, targets, setup.grad, NULL, NULL);
        for (uint64_t i = 0; i < count; i++)
            mean[i] += (double)setup.grad[i] / B;
    }
    forward(&setup);
    backward(&setup, NULL, NULL);
    for (uint64_t i = 0; i < count; i++)
        CHECK_NEAR(setup.grad[i], mean[i], 1e-6);
    free(mean);
    close_setup(&setup);
}

static void test_too_large(void) {
    struct setup setup;
    open_setup(&setup, false);
    struct model *model = NULL;
    CHECK(model_open(&model, &shape, &setup.plan, INT32_MAX, T, true) == STATUS_MEMORY);
    CHECK(model == NULL);
    close_setup(&setup);
}

int main(void) {
    TEST_RUN(test_shape_parse);
    TEST_RUN(test_tensors);
    TEST_RUN(test_init_weights);
    TEST_RUN(test_finite_differences);
    TEST_RUN(test_ready);
    TEST_RUN(test_repeats_bit_for_bit);
    TEST_RUN(test_smaller_batches);
    TEST_RUN(test_mean_over_sequences);
    TEST_RUN(test_too_large);
    return 0;
}
