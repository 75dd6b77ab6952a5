/* Proves the model's own promises on a tiny shape. Gradients: directional finite differences of the
 * loss, for every tensor, along its gradient and along random signs. Forward: the same bits with
 * and without training memory and from run to run; batches smaller than the model was opened for
 * agree with the logits of each prefix. Backward: `ready` exactly once a tensor, in reverse layer
 * order, with values final and weights no longer read; every value is overwritten; nothing is
 * allocated. Gradients are the same to the bit whatever is recomputed, add up over the parts of a
 * batch, and leave out targets of -1. Logits with kept keys and values agree with the full pass.
 */
#include "base/random.h"
#include "tests/test.h"
#include "worker/model_family.h"

#define LAYERS    3
#define CHANNELS  12
#define HEADS     3
#define VOCAB     19
#define POSITIONS 9
#define TENSORS   (2 + 12 * LAYERS + 2)
#define BATCH     3
#define LENGTH    7

static struct model_shape shape; /* made in main */

struct setup {
    struct plan plan;
    struct model *model;
    float *weights, *grad;
    int32_t tokens[BATCH * LENGTH], targets[BATCH * LENGTH];
};

static uint64_t count_of(const struct tensor *tensor) {
    return tensor->dims == 1 ? tensor->shape[0] : tensor->shape[0] * tensor->shape[1];
}

/* Weights large enough that every part of the model shapes the loss. */
static void open_with(struct setup *setup, const struct model_options *options) {
    uint64_t count;
    struct tensor *tensors = model_tensors(&shape, &count);
    CHECK(plan_build(&setup->plan, tensors, count,
                     &(struct plan_options){.shards = 1, .block_values = 100}) == STATUS_OK);
    free(tensors);
    CHECK(model_open(&setup->model, &shape, &setup->plan, options) == STATUS_OK);
    setup->weights = memory_zeroed(setup->plan.value_count, sizeof(float));
    setup->grad = memory_zeroed(setup->plan.value_count, sizeof(float));
    model_init_weights(&shape, &setup->plan, 7, setup->weights);
    struct random_stream stream;
    random_open(&stream, 1, RANDOM_SIMULATOR, 0);
    for (uint64_t i = 0; i < setup->plan.value_count; i++)
        setup->weights[i] += 0.2F * random_normal(&stream);
    for (int i = 0; i < BATCH * LENGTH; i++) {
        setup->tokens[i] = (int32_t)random_below(&stream, VOCAB);
        setup->targets[i] = (int32_t)random_below(&stream, VOCAB);
    }
}

static void open_setup(struct setup *setup, bool training) {
    struct model_options options = {.B = BATCH, .T = LENGTH, .training = training};
    open_with(setup, &options);
}

static void close_setup(struct setup *setup) {
    model_close(setup->model);
    plan_free(&setup->plan);
    free(setup->weights);
    free(setup->grad);
}

static struct model_batch batch_of(const struct setup *setup) {
    return (struct model_batch){
        .tokens = setup->tokens, .targets = setup->targets, .B = BATCH, .T = LENGTH};
}

static float forward(struct setup *setup) {
    struct model_batch batch = batch_of(setup);
    model_set_weights(setup->model, setup->weights);
    return model_forward(setup->model, &batch, NULL);
}

/* Forward and backward, with a gradient scaled and added as told. */
static float compute(struct setup *setup, const struct model_batch *batch,
                     const struct model_gradient *gradient) {
    model_set_weights(setup->model, setup->weights);
    float loss = model_forward(setup->model, batch, gradient);
    model_backward(setup->model, batch, gradient, NULL, NULL);
    return loss;
}

/* The plain case. */
static float learn(struct setup *setup) {
    struct model_batch batch = batch_of(setup);
    struct model_gradient gradient = {.values = setup->grad, .scale = 1};
    return compute(setup, &batch, &gradient);
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
    learn(&setup);
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
    uint64_t order[TENSORS];
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
    CHECK(record->calls < TENSORS);
    record->order[record->calls++] = tensor;
}

/* A layer's place in the order; embeddings come last, the last norm first. */
static int64_t rank_of(uint64_t tensor) {
    if (tensor < 2) return LAYERS + 1;
    return LAYERS - (int64_t)(tensor - 2) / 12;
}

static void check_ready(const struct model_options *options) {
    struct setup setup;
    open_with(&setup, options);
    size_t bytes = setup.plan.value_count * sizeof(float);
    float *expected = memory_zeroed(setup.plan.value_count, sizeof(float));
    learn(&setup);
    memcpy(expected, setup.grad, bytes);
    struct record record = {.setup = &setup};
    record.seen = memory_zeroed(setup.plan.value_count, sizeof(float));
    for (uint64_t i = 0; i < setup.plan.value_count; i++)
        setup.grad[i] = NAN;
    struct model_batch batch = batch_of(&setup);
    struct model_gradient gradient = {.values = setup.grad, .scale = 1};
    model_set_weights(setup.model, setup.weights);
    model_forward(setup.model, &batch, &gradient);
    model_backward(setup.model, &batch, &gradient, record_ready, &record);
    CHECK_INT(record.calls, setup.plan.tensor_count);
    bool called[TENSORS] = {false};
    for (uint64_t i = 0; i < record.calls; i++) {
        CHECK(!called[record.order[i]]);
        called[record.order[i]] = true;
        if (i > 0) CHECK(rank_of(record.order[i]) >= rank_of(record.order[i - 1]));
    }
    CHECK_INT(record.order[record.calls - 1], 0);
    CHECK(memcmp(record.seen, setup.grad, bytes) == 0);
    CHECK(memcmp(expected, setup.grad, bytes) == 0);
    for (int i = LENGTH * CHANNELS; i < POSITIONS * CHANNELS; i++)
        CHECK(setup.grad[setup.plan.offsets[1] + (uint64_t)i] == 0);
    free(expected);
    free(record.seen);
    close_setup(&setup);
}

static const struct {
    enum model_recompute recompute;
    int64_t every;
} recomputes[] = {
    {MODEL_RECOMPUTE_NONE, 0},  {MODEL_RECOMPUTE_ATTENTION, 0}, {MODEL_RECOMPUTE_EVERY, 1},
    {MODEL_RECOMPUTE_EVERY, 2}, {MODEL_RECOMPUTE_EVERY, 3},     {MODEL_RECOMPUTE_EVERY, 99},
};
enum { RECOMPUTES = sizeof(recomputes) / sizeof(recomputes[0]) };

static struct model_options options_of(int r) {
    return (struct model_options){.B = BATCH,
                                  .T = LENGTH,
                                  .training = true,
                                  .recompute = recomputes[r].recompute,
                                  .recompute_every = recomputes[r].every};
}

static void test_ready(void) {
    for (int r = 0; r < RECOMPUTES; r++) {
        struct model_options options = options_of(r);
        check_ready(&options);
    }
}

/* Whatever is computed again, the same bits come out, in less memory. */
static void check_recompute(enum compute_type type) {
    struct setup plain;
    struct model_options none = options_of(0);
    none.type = type;
    open_with(&plain, &none);
    float loss = learn(&plain);
    for (int r = 1; r < RECOMPUTES; r++) {
        struct setup setup;
        struct model_options options = options_of(r);
        options.type = type;
        open_with(&setup, &options);
        for (int repeat = 0; repeat < 2; repeat++) {
            CHECK(learn(&setup) == loss);
            CHECK(memcmp(setup.grad, plain.grad, plain.plan.value_count * sizeof(float)) == 0);
        }
        bool all_kept = recomputes[r].every >= LAYERS;
        CHECK(all_kept ? model_bytes(&shape, &options) == model_bytes(&shape, &none)
                       : model_bytes(&shape, &options) < model_bytes(&shape, &none));
        close_setup(&setup);
    }
    close_setup(&plain);
}

static void test_recompute(void) {
    check_recompute(COMPUTE_F32);
    check_recompute(COMPUTE_BF16);
}

/* What a model really holds. */
static uint64_t bytes_of(const struct model *model) {
    uint64_t bytes = model->arena.bytes + linear_bytes(model->head);
    for (int64_t l = 0; l < model->shape.layers; l++) {
        for (int i = 0; i < model->product_count; i++)
            bytes += linear_bytes(model->layers[l].products[i]);
    }
    return bytes;
}

/* The estimate against what model_open takes, for each way to compute. */
static void test_bytes_are_taken(void) {
    struct model_shape tiny;
    char why[200];
    uint64_t count;
    CHECK(model_shape_parse("gpt2:tiny", 3000, 64, &tiny, why, sizeof(why)) == STATUS_OK);
    struct tensor *tensors = model_tensors(&tiny, &count);
    struct plan plan;
    CHECK(plan_build(&plan, tensors, count,
                     &(struct plan_options){.shards = 1, .block_values = 5000}) == STATUS_OK);
    for (int i = 0; i < 2 * RECOMPUTES; i++) {
        struct model_options options = options_of(i / 2);
        options.B = 4;
        options.T = 64;
        options.type = i % 2 == 0 ? COMPUTE_F32 : COMPUTE_BF16;
        struct model *model;
        CHECK(model_open(&model, &tiny, &plan, &options) == STATUS_OK);
        double taken = (double)bytes_of(model);
        CHECK_NEAR(model_bytes(&tiny, &options), taken,
                   (options.type == COMPUTE_F32 ? 0.01 : 0.2) * taken);
        model_close(model);
    }
    free(tensors);
    plan_free(&plan);
}

/* Grows with the batch, and does not wrap. */
static void test_bytes(void) {
    struct model_options options = {.B = 1, .T = LENGTH, .training = true};
    uint64_t one = model_bytes(&shape, &options);
    CHECK(one > 0);
    options.training = false;
    CHECK(model_bytes(&shape, &options) < one);
    options.training = true;
    options.B = 1000;
    CHECK(model_bytes(&shape, &options) > 100 * one);
    options.B = INT32_MAX;
    CHECK_INT(model_bytes(&shape, &options), 0);
}

static void test_repeats_bit_for_bit(void) {
    struct setup setup, eval;
    open_setup(&setup, true);
    open_setup(&eval, false);
    float *first = memory_zeroed(setup.plan.value_count, sizeof(float));
    float loss = learn(&setup);
    memcpy(first, setup.grad, setup.plan.value_count * sizeof(float));
    memory_forbid(true);
    for (int repeat = 0; repeat < 3; repeat++) {
        CHECK(learn(&setup) == loss);
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
        model_logits(setup->model, tokens + i / length * length, i % length + 1, logits);
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
        for (int64_t rows = 1; rows <= BATCH; rows++) {
            for (int64_t length = 1; length <= LENGTH; length++) {
                struct model_batch batch = {
                    .tokens = setup.tokens, .targets = setup.targets, .B = rows, .T = length};
                model_set_weights(setup.model, setup.weights);
                double loss = model_forward(setup.model, &batch, NULL);
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
    for (ptrdiff_t b = 0; b < BATCH; b++) {
        struct model_batch one = {.tokens = setup.tokens + b * LENGTH,
                                  .targets = setup.targets + b * LENGTH,
                                  .B = 1,
                                  .T = LENGTH};
        struct model_gradient gradient = {.values = setup.grad, .scale = 1};
        compute(&setup, &one, &gradient);
        for (uint64_t i = 0; i < count; i++)
            mean[i] += (double)setup.grad[i] / BATCH;
    }
    learn(&setup);
    for (uint64_t i = 0; i < count; i++)
        CHECK_NEAR(setup.grad[i], mean[i], 1e-6);
    free(mean);
    close_setup(&setup);
}

/* The sequences one by one, each with its share, add up to the gradient of the batch. */
static void test_accumulation(void) {
    for (int r = 0; r < RECOMPUTES; r++) {
        struct setup setup;
        struct model_options options = options_of(r);
        open_with(&setup, &options);
        float *whole = memory_zeroed(setup.plan.value_count, sizeof(float));
        learn(&setup);
        memcpy(whole, setup.grad, setup.plan.value_count * sizeof(float));
        for (uint64_t i = 0; i < setup.plan.value_count; i++)
            setup.grad[i] = NAN;
        for (ptrdiff_t b = 0; b < BATCH; b++) {
            struct model_batch one = {.tokens = setup.tokens + b * LENGTH,
                                      .targets = setup.targets + b * LENGTH,
                                      .B = 1,
                                      .T = LENGTH};
            struct model_gradient gradient = {
                .values = setup.grad, .scale = 1.0F / BATCH, .add = b > 0};
            compute(&setup, &one, &gradient);
        }
        for (uint64_t i = 0; i < setup.plan.value_count; i++)
            CHECK_NEAR(setup.grad[i], whole[i], 1e-6);
        free(whole);
        close_setup(&setup);
    }
}

/* A vocabulary so large that a batch's logits are made in two pieces: loss and gradient are those
 * of its two halves, which are a piece each. */
static void test_pieces_of_logits(void) {
    enum { V = 300000, WIDTH = 50 };
    struct model_shape wide;
    char why[200];
    uint64_t count;
    int32_t tokens[2 * WIDTH], targets[2 * WIDTH];
    CHECK(model_shape_parse("gpt2:1x2x1", V, WIDTH, &wide, why, sizeof(why)) == STATUS_OK);
    struct tensor *tensors = model_tensors(&wide, &count);
    struct plan plan;
    CHECK(plan_build(&plan, tensors, count,
                     &(struct plan_options){.shards = 1, .block_values = 100000}) == STATUS_OK);
    struct model_options options = {.B = 2, .T = WIDTH, .training = true};
    struct setup setup = {.plan = plan};
    CHECK(model_open(&setup.model, &wide, &plan, &options) == STATUS_OK);
    CHECK(setup.model->chunk > WIDTH && setup.model->chunk < (int64_t)2 * WIDTH);
    setup.weights = memory_zeroed(plan.value_count, sizeof(float));
    setup.grad = memory_zeroed(plan.value_count, sizeof(float));
    float *whole = memory_zeroed(plan.value_count, sizeof(float));
    model_init_weights(&wide, &plan, 5, setup.weights);
    for (int i = 0; i < 2 * WIDTH; i++) {
        tokens[i] = i * 2999 % V;
        targets[i] = i * 1999 % V;
    }
    struct model_batch both = {.tokens = tokens, .targets = targets, .B = 2, .T = WIDTH};
    struct model_gradient gradient = {.values = whole, .scale = 1};
    double loss = compute(&setup, &both, &gradient), halves = 0;
    for (int half = 0; half < 2; half++) {
        struct model_batch one = {.tokens = tokens + (ptrdiff_t)half * WIDTH,
                                  .targets = targets + (ptrdiff_t)half * WIDTH,
                                  .B = 1,
                                  .T = WIDTH};
        gradient = (struct model_gradient){.values = setup.grad, .scale = 0.5F, .add = half > 0};
        halves += compute(&setup, &one, &gradient) / 2;
    }
    CHECK_NEAR(loss, halves, 1e-5);
    for (uint64_t t = 0; t < count; t++) {
        double most = 0, worst = 0;
        for (uint64_t i = plan.offsets[t]; i < plan.offsets[t] + count_of(&tensors[t]); i++) {
            most = fmax(most, fabs((double)whole[i]));
            worst = fmax(worst, fabs((double)whole[i] - (double)setup.grad[i]));
        }
        CHECK_NEAR(worst, 0, 1e-4 * most + 1e-9);
    }
    free(tensors);
    free(whole);
    close_setup(&setup);
}

/* Positions without a target: loss and gradient are those of the mean over the others. With whole
 * sequences left out, that is the shorter batch. Without any target both are 0. */
static void test_masked_targets(void) {
    struct setup setup;
    open_setup(&setup, true);
    struct model_batch batch = batch_of(&setup), two = batch;
    struct model_gradient gradient = {.values = setup.grad, .scale = 1};
    float *expected = memory_zeroed(setup.plan.value_count, sizeof(float));
    two.B = 2;
    float loss = compute(&setup, &two, &gradient);
    memcpy(expected, setup.grad, setup.plan.value_count * sizeof(float));
    for (int i = 2 * LENGTH; i < BATCH * LENGTH; i++)
        setup.targets[i] = -1;
    CHECK_NEAR(compute(&setup, &batch, &gradient), loss, 1e-6);
    for (uint64_t i = 0; i < setup.plan.value_count; i++)
        CHECK_NEAR(setup.grad[i], expected[i], 1e-6);
    for (int i = 0; i < BATCH * LENGTH; i++)
        setup.targets[i] = -1;
    CHECK(compute(&setup, &batch, &gradient) == 0);
    for (uint64_t i = 0; i < setup.plan.value_count; i++)
        CHECK(setup.grad[i] == 0);
    free(expected);
    close_setup(&setup);
}

/* A text computed in one go, or from any position on token by token: the same logits. */
static void test_decode(void) {
    for (int training = 0; training < 2; training++) {
        struct setup setup;
        open_setup(&setup, training == 1);
        model_set_weights(setup.model, setup.weights);
        float *cache = memory_zeroed(model_cache_count(setup.model), sizeof(float));
        CHECK_INT(model_cache_count(setup.model), LAYERS * LENGTH * 2 * CHANNELS);
        CHECK_INT(model_longest(setup.model), LENGTH);
        for (int64_t start = 1; start <= LENGTH; start++) {
            float expected[VOCAB], logits[VOCAB];
            for (int64_t i = 0; i < LAYERS * LENGTH * 2 * CHANNELS; i++)
                cache[i] = NAN; // nothing may be read that was not put there
            model_decode(setup.model, cache, setup.tokens, start, 0, logits);
            for (int64_t length = start; length <= LENGTH; length++) {
                if (length > start)
                    model_decode(setup.model, cache, setup.tokens + length - 1, 1, length - 1,
                                 logits);
                model_logits(setup.model, setup.tokens, length, expected);
                for (int v = 0; v < VOCAB; v++)
                    CHECK_NEAR(logits[v], expected[v], 1e-4);
            }
        }
        free(cache);
        close_setup(&setup);
    }
}

static void test_too_large(void) {
    struct setup setup;
    open_setup(&setup, false);
    struct model *model = NULL;
    struct model_options options = {.B = INT32_MAX, .T = LENGTH, .training = true};
    CHECK(model_open(&model, &shape, &setup.plan, &options) == STATUS_MEMORY);
    CHECK(model == NULL);
    close_setup(&setup);
}

int main(void) {
    char text[40], why[200];
    snprintf(text, sizeof(text), "gpt2:%dx%dx%d", LAYERS, CHANNELS, HEADS);
    CHECK(model_shape_parse(text, VOCAB, POSITIONS, &shape, why, sizeof(why)) == STATUS_OK);
    TEST_RUN(test_finite_differences);
    TEST_RUN(test_ready);
    TEST_RUN(test_repeats_bit_for_bit);
    TEST_RUN(test_smaller_batches);
    TEST_RUN(test_mean_over_sequences);
    TEST_RUN(test_recompute);
    TEST_RUN(test_bytes);
    TEST_RUN(test_bytes_are_taken);
    TEST_RUN(test_accumulation);
    TEST_RUN(test_pieces_of_logits);
    TEST_RUN(test_masked_targets);
    TEST_RUN(test_decode);
    TEST_RUN(test_too_large);
    return 0;
}
