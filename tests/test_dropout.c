/* Proves dropout: in the kernels against the generator itself a value at a time (the same bits, for
 * any thread count), with the kept fraction within its binomial bound and unrelated masks for
 * another seed, step, layer or site; in the models against a plain twin made of the kernels'
 * oracles and the same masks, for GPT-2 and Llama, by finite differences of the loss with the masks
 * fixed, and bit for bit: rate 0 is no dropout, a pass without gradient drops nothing, and
 * gradients are the same whatever is recomputed.
 */
#include "base/memory.h"
#include "base/random.h"
#include "kernels/activation.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/norm.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/threads.h"
#include "tests/test.h"
#include "worker/model_family.h"

enum { BATCH = 2, LENGTH = 9, VOCAB = 19, ROWS = BATCH * LENGTH };

#define SEED UINT64_C(0x123456789abcdef0)
#define STEP UINT64_C(0x1000000007)
#define RATE 0.3F

static bool same_bits(const float *a, const float *b, uint64_t count) {
    const void *left = a, *right = b;
    return memcmp(left, right, count * sizeof *a) == 0;
}

static float *ones(int64_t count) {
    float *values = memory_zeroed((size_t)count, sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = 1.0F;
    return values;
}

static void test_rows_are_the_generators(void) {
    static const int64_t widths[] = {1, 15, 16, 64, 65, 200};
    const struct dropout dropout = dropout_make(RATE, SEED, STEP, 5, DROPOUT_MLP);
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        int64_t R = 131, C = widths[i];
        float *x = ones(R * C), *expected = ones(R * C), *y = ones(R * C);
        dropout_rows_ref(&dropout, x, expected, R, C);
        for (int threads = 1; threads <= 5; threads += 2) {
            threads_set(threads);
            memset(y, 0xff, (size_t)(R * C) * sizeof *y);
            dropout_rows(&dropout, x, y, R, C);
            CHECK(same_bits(y, expected, (uint64_t)(R * C)));
        }
        dropout_rows(&dropout, x, x, R, C);
        CHECK(same_bits(x, expected, (uint64_t)(R * C)));
        free(x);
        free(expected);
        free(y);
    }
    threads_set(2);
}

/* Successes of `count` trials of probability p: within 5 standard deviations. */
static void check_binomial(int64_t successes, int64_t count, double p) {
    CHECK_NEAR((double)successes, (double)count * p, 5 * sqrt((double)count * p * (1 - p)) + 1e-9);
}

static void test_kept_fraction(void) {
    static const float rates[] = {0.0F, 0.1F, 0.5F, 0.9F};
    enum { R = 300, C = 320 };
    float *x = ones(R * C);
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        const struct dropout dropout = dropout_make(rates[i], SEED, STEP, 0, DROPOUT_EMBEDDING);
        float *y = ones(R * C);
        int64_t kept = 0, scores = 0;
        dropout_rows(&dropout, x, y, R, C);
        for (int64_t j = 0; j < (int64_t)R * C; j++) {
            CHECK(y[j] == 0 || y[j] == 1.0F / (1.0F - rates[i]));
            kept += y[j] != 0;
            scores += dropout_factor_score(&dropout, j % 7, j / 7 % C, j / 7 / C) != 0;
        }
        check_binomial(kept, (int64_t)R * C, 1.0 - (double)rates[i]);
        check_binomial(scores, (int64_t)R * C, 1.0 - (double)rates[i]);
        free(y);
    }
    free(x);
}

/* Two masks agree where both keep or both drop: as often as chance has it. */
static void test_masks_are_unrelated(void) {
    enum { R = 64, C = 256, OTHERS = 7 };
    const struct dropout base = dropout_make(RATE, SEED, STEP, 3, DROPOUT_MLP);
    const struct dropout others[OTHERS] = {
        dropout_make(RATE, SEED + 1, STEP, 3, DROPOUT_MLP),
        dropout_make(RATE, SEED + (UINT64_C(1) << 32), STEP, 3, DROPOUT_MLP),
        dropout_make(RATE, SEED, STEP + 1, 3, DROPOUT_MLP),
        dropout_make(RATE, SEED, STEP + (UINT64_C(1) << 32), 3, DROPOUT_MLP),
        dropout_make(RATE, SEED, STEP, 4, DROPOUT_MLP),
        dropout_make(RATE, SEED, STEP, 3, DROPOUT_PROJECTION),
        base, /* its next rows */
    };
    double p = (double)RATE, chance = p * p + (1 - p) * (1 - p);
    for (int i = 0; i < OTHERS; i++) {
        int64_t agree = 0, shift = i + 1 == OTHERS ? 1 : 0;
        for (int64_t r = 0; r < R; r++) {
            for (int64_t c = 0; c < C; c++)
                agree += dropout_factor(&base, r, c) == dropout_factor(&others[i], r + shift, c);
        }
        check_binomial(agree, (int64_t)R * C, chance);
    }
}

struct setup {
    struct model_shape shape;
    struct plan plan;
    struct model *model;
    float *weights, *grad;
    int32_t tokens[ROWS], targets[ROWS];
};

static void open_setup(struct setup *setup, const char *name, const struct model_options *options) {
    char why[256];
    uint64_t count;
    CHECK_INT(model_shape_parse(name, VOCAB, LENGTH, &setup->shape, why, sizeof why), STATUS_OK);
    struct tensor *tensors = model_tensors(&setup->shape, &count);
    const struct plan_options plan = {.shards = 1, .block_values = 100};
    CHECK_INT(plan_build(&setup->plan, tensors, count, &plan), STATUS_OK);
    free(tensors);
    CHECK_INT(model_open(&setup->model, &setup->shape, &setup->plan, options), STATUS_OK);
    setup->weights = memory_zeroed(setup->plan.value_count, sizeof(float));
    setup->grad = memory_zeroed(setup->plan.value_count, sizeof(float));
    model_init_weights(&setup->shape, &setup->plan, 7, setup->weights);
    struct random_stream stream;
    random_open(&stream, 1, RANDOM_SIMULATOR, 0);
    for (uint64_t i = 0; i < setup->plan.value_count; i++)
        setup->weights[i] += 0.2F * random_normal(&stream);
    for (int i = 0; i < ROWS; i++) {
        setup->tokens[i] = (int32_t)random_below(&stream, VOCAB);
        setup->targets[i] = (int32_t)random_below(&stream, VOCAB);
    }
    model_set_weights(setup->model, setup->weights);
}

static struct model_options options_of(float dropout) {
    return (struct model_options){.B = BATCH, .T = LENGTH, .training = true, .dropout = dropout};
}

static void close_setup(struct setup *setup) {
    model_close(setup->model);
    plan_free(&setup->plan);
    free(setup->weights);
    free(setup->grad);
}

static struct model_batch batch_of(const struct setup *setup) {
    return (struct model_batch){.tokens = setup->tokens,
                                .targets = setup->targets,
                                .B = BATCH,
                                .T = LENGTH,
                                .dropout_seed = SEED,
                                .dropout_step = STEP};
}

/* The loss of a training pass; its gradient -> grad. */
static float learn(struct setup *setup) {
    struct model_batch batch = batch_of(setup);
    struct model_gradient gradient = {.values = setup->grad, .scale = 1};
    model_set_weights(setup->model, setup->weights);
    float loss = model_forward(setup->model, &batch, &gradient);
    model_backward(setup->model, &batch, &gradient, NULL, NULL);
    return loss;
}

static const float *tensor_of(const struct setup *setup, uint64_t tensor) {
    return setup->weights + setup->plan.offsets[tensor];
}

/* The twin's: one product, y [ROWS, out] = x W + bias, through the oracle; bias may be NULL. */
static void multiply(const struct setup *setup, int64_t l, int which, const float *bias,
                     const float *x, float *y) {
    struct model_product products[MODEL_PRODUCTS_MAX];
    (void)setup->shape.family->products(&setup->shape, products);
    const struct model_product *product = &products[which];
    const struct linear_shape shape = {.rows = ROWS,
                                       .in = product->in,
                                       .out = product->out,
                                       .stride_x = product->stride_x,
                                       .stride_y = product->stride_y,
                                       .out_in = product->out_in};
    uint64_t tensor = model_layer_tensor(setup->model, l, product->tensor);
    linear_forward_ref(&shape, tensor_of(setup, tensor), x, bias, y, ROWS);
}

/* What the twin's layers share. */
struct twin {
    float *x, *norm, *qkv, *heads, *branch, *fc, *act; /* of ROWS rows each */
    float mean[ROWS], rstd[ROWS], *lse;
};

static void open_twin(const struct setup *setup, struct twin *twin) {
    const struct model_shape *shape = &setup->shape;
    int64_t C = shape->channels, I = shape->intermediate;
    *twin = (struct twin){.x = ones(ROWS * C),
                          .norm = ones(ROWS * C),
                          .qkv = ones(ROWS * 3 * C),
                          .heads = ones(ROWS * C),
                          .branch = ones(ROWS * C),
                          .fc = ones(ROWS * 2 * I),
                          .act = ones(ROWS * I),
                          .lse = ones(ROWS * shape->heads)};
}

static void close_twin(struct twin *twin) {
    float *const all[] = {twin->x,      twin->norm, twin->qkv, twin->heads,
                          twin->branch, twin->fc,   twin->act, twin->lse};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

static void attend(const struct setup *setup, struct twin *twin, int64_t l) {
    const struct dropout dropout = dropout_make(RATE, SEED, STEP, l, DROPOUT_ATTENTION);
    struct attention_shape shape = {.B = BATCH,
                                    .T = LENGTH,
                                    .heads = setup->shape.heads,
                                    .kv_heads = setup->shape.kv_heads,
                                    .head_size = setup->shape.channels / setup->shape.heads,
                                    .dropout = &dropout};
    attention_forward_ref(&shape, twin->qkv, twin->lse, twin->heads, NULL);
}

static void drop(const struct setup *setup, int64_t l, enum dropout_site site, float *x) {
    const struct dropout dropout = dropout_make(RATE, SEED, STEP, l, site);
    dropout_rows_ref(&dropout, x, x, ROWS, setup->shape.channels);
}

static void twin_norm(const struct setup *setup, struct twin *twin, uint64_t gain) {
    int64_t C = setup->shape.channels;
    float eps = (float)setup->shape.norm_eps;
    if (setup->shape.family == &model_llama)
        rms_norm_forward_ref(twin->x, tensor_of(setup, gain), twin->norm, twin->rstd, ROWS, C, eps);
    else
        norm_forward_ref(twin->x, tensor_of(setup, gain), tensor_of(setup, gain + 1), twin->norm,
                         twin->mean, twin->rstd, ROWS, C, eps);
}

/* Tensors and products of a layer in the order of Hugging Face's modules. */
static void twin_gpt2_layer(const struct setup *setup, struct twin *twin, int64_t l) {
    int64_t C = setup->shape.channels, I = setup->shape.intermediate;
    uint64_t first = model_layer_tensor(setup->model, l, 0);
    twin_norm(setup, twin, first);
    multiply(setup, l, 0, tensor_of(setup, first + 3), twin->norm, twin->qkv);
    attend(setup, twin, l);
    multiply(setup, l, 1, tensor_of(setup, first + 5), twin->heads, twin->branch);
    drop(setup, l, DROPOUT_PROJECTION, twin->branch);
    residual_forward_ref(twin->x, twin->branch, twin->x, ROWS * C);
    twin_norm(setup, twin, first + 6);
    multiply(setup, l, 2, tensor_of(setup, first + 9), twin->norm, twin->fc);
    gelu_forward_ref(twin->fc, twin->act, ROWS * I);
    multiply(setup, l, 3, tensor_of(setup, first + 11), twin->act, twin->branch);
    drop(setup, l, DROPOUT_MLP, twin->branch);
    residual_forward_ref(twin->x, twin->branch, twin->x, ROWS * C);
}

static void twin_llama_layer(const struct setup *setup, struct twin *twin, int64_t l) {
    const struct model_shape *shape = &setup->shape;
    int64_t C = shape->channels, I = shape->intermediate, D = C / shape->heads;
    uint64_t first = model_layer_tensor(setup->model, l, 0);
    const struct rope_shape rope = {.B = BATCH,
                                    .T = LENGTH,
                                    .heads = shape->heads,
                                    .kv_heads = shape->kv_heads,
                                    .head_size = D,
                                    .theta = shape->rope_theta};
    twin_norm(setup, twin, first);
    multiply(setup, l, 0, NULL, twin->norm, twin->qkv);
    multiply(setup, l, 1, NULL, twin->norm, twin->qkv + C);
    multiply(setup, l, 2, NULL, twin->norm, twin->qkv + C + shape->kv_heads * D);
    rope_forward_ref(&rope, twin->qkv);
    attend(setup, twin, l);
    multiply(setup, l, 3, NULL, twin->heads, twin->branch);
    residual_forward_ref(twin->x, twin->branch, twin->x, ROWS * C);
    twin_norm(setup, twin, first + 5);
    multiply(setup, l, 4, NULL, twin->norm, twin->fc);
    multiply(setup, l, 5, NULL, twin->norm, twin->fc + I);
    swiglu_forward_ref(twin->fc, twin->act, ROWS, I);
    multiply(setup, l, 6, NULL, twin->act, twin->branch);
    residual_forward_ref(twin->x, twin->branch, twin->x, ROWS * C);
}

/* The logits -> logits [ROWS, VOCAB]. */
static void twin_forward(const struct setup *setup, struct twin *twin, float *logits) {
    const struct model_shape *shape = &setup->shape;
    bool llama = shape->family == &model_llama;
    int64_t C = shape->channels;
    embedding_forward_ref(setup->tokens, tensor_of(setup, 0), llama ? NULL : tensor_of(setup, 1),
                          twin->x, BATCH, LENGTH, C);
    if (!llama) drop(setup, 0, DROPOUT_EMBEDDING, twin->x);
    for (int64_t l = 0; l < shape->layers; l++)
        (llama ? twin_llama_layer : twin_gpt2_layer)(setup, twin, l);
    twin_norm(setup, twin, model_last_tensor(setup->model, 0));
    const struct linear_shape head = {
        .rows = ROWS, .in = C, .out = VOCAB, .stride_x = C, .stride_y = VOCAB, .out_in = true};
    linear_forward_ref(&head, tensor_of(setup, model_head_tensor(setup->model)), twin->norm, NULL,
                       logits, ROWS);
}

static const char *const models[] = {"gpt2:2x24x3", "llama:2x24x4x2"};
enum { MODELS = 2 };

/* The model turns its logits into gradients, but each row's loss and the gradient of the head's
 * weights follow from them: softmax minus the target, times what the head was given. */
static void test_twin(void) {
    for (int m = 0; m < MODELS; m++) {
        struct setup setup;
        struct twin twin;
        float losses[ROWS], logits[ROWS * VOCAB], kept = 0, rows = 0;
        struct model_options options = options_of(RATE);
        open_setup(&setup, models[m], &options);
        open_twin(&setup, &twin);
        float loss = learn(&setup);
        twin_forward(&setup, &twin, logits);
        cross_entropy_ref(logits, setup.targets, losses, ROWS, VOCAB, 1.0F / ROWS);
        for (int n = 0; n < ROWS; n++) {
            CHECK_NEAR(setup.model->losses[n], losses[n], 2e-5 * (1 + (double)losses[n]));
            kept += losses[n];
            for (int v = 0; v < VOCAB; v++, rows++)
                CHECK_NEAR(setup.model->logits[n * VOCAB + v], logits[n * VOCAB + v], 2e-6);
        }
        for (int64_t i = 0; i < ROWS * setup.shape.channels; i++)
            CHECK_NEAR(setup.model->last[i], twin.norm[i], 2e-5);
        CHECK_NEAR(loss, kept / ROWS, 2e-5 * (1 + (double)loss));
        CHECK_INT((int)rows, ROWS * VOCAB);
        close_twin(&twin);
        close_setup(&setup);
    }
}

/* The loss at weights + eps * direction, with the batch's masks; the gradient is left alone.
 * NOLINTNEXTLINE(readability-non-const-parameter) */
static double loss_at(struct setup *setup, const float *direction, float eps, float *scratch) {
    struct model_batch batch = batch_of(setup);
    struct model_gradient gradient = {.values = scratch, .scale = 1};
    float *kept = memory_zeroed(setup->plan.value_count, sizeof *kept);
    memcpy(kept, setup->weights, setup->plan.value_count * sizeof *kept);
    for (uint64_t i = 0; i < setup->plan.value_count; i++)
        setup->weights[i] += eps * direction[i];
    model_set_weights(setup->model, setup->weights);
    double loss = (double)model_forward(setup->model, &batch, &gradient);
    memcpy(setup->weights, kept, setup->plan.value_count * sizeof *kept);
    free(kept);
    return loss;
}

/* Along the gradient and along random signs, a tensor at a time. */
static void check_tensor(struct setup *setup, uint64_t t, struct random_stream *stream,
                         float *direction, float *scratch) {
    const struct tensor *tensor = &setup->plan.tensors[t];
    uint64_t at = setup->plan.offsets[t];
    uint64_t count = tensor->dims == 1 ? tensor->shape[0] : tensor->shape[0] * tensor->shape[1];
    double norm = 0;
    for (uint64_t i = at; i < at + count; i++)
        norm += (double)setup->grad[i] * (double)setup->grad[i];
    norm = sqrt(norm);
    CHECK(norm > 1e-4);
    for (int repeat = 0; repeat < 3; repeat++) {
        double along = 0;
        memset(direction, 0, setup->plan.value_count * sizeof *direction);
        for (uint64_t i = at; i < at + count; i++) {
            float sign = random_u32(stream) & 1 ? 1.0F : -1.0F;
            direction[i] =
                repeat == 0 ? (float)((double)setup->grad[i] / norm) : sign / sqrtf((float)count);
            along += (double)direction[i] * (double)setup->grad[i];
        }
        double more = loss_at(setup, direction, 0.01F, scratch);
        double less = loss_at(setup, direction, -0.01F, scratch);
        CHECK_NEAR((more - less) / 0.02, along, 0.01 * norm + 2e-4);
    }
}

static void test_finite_differences(void) {
    for (int m = 0; m < MODELS; m++) {
        struct setup setup;
        struct model_options options = options_of(RATE);
        open_setup(&setup, models[m], &options);
        (void)learn(&setup);
        float *direction = memory_zeroed(setup.plan.value_count, sizeof *direction);
        float *scratch = memory_zeroed(setup.plan.value_count, sizeof *scratch);
        struct random_stream stream;
        random_open(&stream, 2, RANDOM_SIMULATOR, 0);
        for (uint64_t t = 0; t < setup.plan.tensor_count; t++)
            check_tensor(&setup, t, &stream, direction, scratch);
        free(direction);
        free(scratch);
        close_setup(&setup);
    }
}

static void test_recompute(void) {
    for (int m = 0; m < MODELS; m++) {
        struct setup plain, again;
        struct model_options options = options_of(RATE);
        open_setup(&plain, models[m], &options);
        float loss = learn(&plain);
        for (int r = 0; r < 3; r++) {
            options.recompute = r == 0 ? MODEL_RECOMPUTE_ATTENTION : MODEL_RECOMPUTE_EVERY;
            options.recompute_every = r;
            open_setup(&again, models[m], &options);
            float loss_again = learn(&again);
            CHECK(same_bits(&loss, &loss_again, 1));
            CHECK(same_bits(plain.grad, again.grad, plain.plan.value_count));
            close_setup(&again);
        }
        close_setup(&plain);
    }
}

static void test_rate_zero_and_validation(void) {
    for (int m = 0; m < MODELS; m++) {
        struct setup none, zero, some;
        struct model_options without = {.B = BATCH, .T = LENGTH, .training = true};
        struct model_options rate_zero = options_of(0.0F), rate = options_of(RATE);
        open_setup(&none, models[m], &without);
        open_setup(&zero, models[m], &rate_zero);
        open_setup(&some, models[m], &rate);
        struct model_batch batch = batch_of(&some);
        batch.dropout_seed = 0;
        float loss = learn(&none), loss_zero = learn(&zero), dropped = learn(&some);
        CHECK(same_bits(&loss, &loss_zero, 1));
        CHECK(same_bits(none.grad, zero.grad, none.plan.value_count));
        CHECK(loss != dropped);
        float validation = model_forward(some.model, &batch, NULL);
        CHECK(same_bits(&loss, &validation, 1));
        float repeated = learn(&some);
        CHECK(same_bits(&dropped, &repeated, 1));
        CHECK_INT((int)(model_bytes(&some.shape, &rate) - model_bytes(&some.shape, &without)), 0);
        close_setup(&none);
        close_setup(&zero);
        close_setup(&some);
    }
}

/* With rate 0 every factor is 1: the kernel that draws them gives the bits of the one without. */
static void test_attention_rate_zero(void) {
    struct attention_shape shape = {.B = 1, .T = 70, .heads = 2, .kv_heads = 1, .head_size = 8};
    const struct dropout dropout = dropout_make(0.0F, SEED, STEP, 0, DROPOUT_ATTENTION);
    int64_t in = 70 * 4 * 8, out = 70 * 2 * 8, lse = 2 * 70;
    float *qkv = ones(in), *scratch = ones(attention_scratch(&shape));
    float *made[2], *grads[2];
    for (int64_t i = 0; i < in; i++)
        qkv[i] = (float)((i * 37) % 101) / 50.0F - 1.0F;
    for (int i = 0; i < 2; i++) {
        made[i] = ones(lse + out);
        grads[i] = ones(in);
        shape.dropout = i == 0 ? NULL : &dropout;
        attention_forward(&shape, qkv, made[i], made[i] + lse, scratch);
        const struct attention_saved saved = {qkv, made[i] + lse, made[i]};
        attention_backward(&shape, &saved, qkv, grads[i], scratch);
    }
    CHECK(same_bits(made[0], made[1], (uint64_t)(lse + out)));
    CHECK(same_bits(grads[0], grads[1], (uint64_t)in));
    for (int i = 0; i < 2; i++) {
        free(made[i]);
        free(grads[i]);
    }
    free(qkv);
    free(scratch);
}

int main(void) {
    TEST_RUN(test_rows_are_the_generators);
    TEST_RUN(test_kept_fraction);
    TEST_RUN(test_masks_are_unrelated);
    TEST_RUN(test_attention_rate_zero);
    TEST_RUN(test_rate_zero_and_validation);
    TEST_RUN(test_recompute);
    TEST_RUN(test_twin);
    TEST_RUN(test_finite_differences);
    return 0;
}
