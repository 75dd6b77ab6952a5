/* Proves that Llama computes what PyTorch computes, as test_model_golden.c does for GPT-2: loss,
 * logits and every gradient of one batch against values computed in float64, with a head of its own
 * and tied; 50 AdamW steps of a plain one-process loop with clipping; in f32, and within what its 8
 * bits allow in bfloat16. The values are made by tests/golden/make_llama.py. Beyond that: gradients
 * from activations that are computed again, and accumulated ones, are the same; positions that are
 * decoded one at a time, with keys and values kept, give the logits of the whole text; each tensor
 * is announced once; shapes that cannot be computed are refused.
 */
#include "tests/golden_llama.h"
#include "tests/golden_setup.h"

#include <stdbool.h>

static const struct model_options plain = {.B = GOLDEN_B, .T = GOLDEN_T, .training = true};

static void open_llama(struct golden_setup *setup, bool tied, const struct model_options *options) {
    struct model_shape shape = golden_llama_shape(tied);
    char why[200] = "";
    CHECK(model_shape_check(&shape, why, sizeof(why)) == STATUS_OK);
    golden_open(setup, &shape, options);
}

static void check_batch(bool tied, enum compute_type type, double loss_tolerance,
                        double tolerance) {
    struct model_options options = plain;
    struct golden_setup setup;
    options.type = type;
    open_llama(&setup, tied, &options);
    double expected = tied ? GOLDEN_LLAMA_TIED_LOSS : GOLDEN_LLAMA_LOSS;
    CHECK_NEAR(golden_compute(&setup), expected, loss_tolerance * expected);
    golden_check_gradients(&setup, tied ? GOLDEN_LLAMA_TIED_GRADIENTS : GOLDEN_LLAMA_GRADIENTS,
                           tolerance);
    if (!tied) {
        float logits[GOLDEN_VOCAB];
        model_logits(setup.model, setup.tokens, GOLDEN_T, logits);
        for (int v = 0; v < GOLDEN_VOCAB; v++)
            CHECK_NEAR(logits[v], golden_llama_logits[v], loss_tolerance);
    }
    golden_close(&setup);
}

static void test_own_head(void) {
    check_batch(false, COMPUTE_F32, 1e-5, 1e-4);
    check_batch(false, COMPUTE_BF16, 2e-2, 2e-2);
}

static void test_tied_head(void) {
    check_batch(true, COMPUTE_F32, 1e-5, 1e-4);
    check_batch(true, COMPUTE_BF16, 2e-2, 2e-2);
}

static void test_curve(void) {
    const struct model_shape shape = golden_llama_shape(false);
    golden_check_curve(&shape, golden_llama_curve(), COMPUTE_F32, GOLDEN_STEPS, 1e-3);
    golden_check_curve(&shape, golden_llama_curve(), COMPUTE_BF16, 10, 2e-2);
}

static void check_same_gradient(bool tied, enum model_recompute recompute, int64_t every) {
    struct golden_setup kept, again;
    struct model_options options = plain;
    options.recompute = recompute;
    options.recompute_every = every;
    open_llama(&kept, tied, &plain);
    open_llama(&again, tied, &options);
    CHECK(golden_compute(&kept) == golden_compute(&again));
    for (uint64_t i = 0; i < kept.plan.value_count; i++)
        CHECK(kept.grad[i] == again.grad[i]);
    golden_close(&kept);
    golden_close(&again);
}

static void test_recompute(void) {
    for (int tied = 0; tied < 2; tied++) {
        check_same_gradient(tied, MODEL_RECOMPUTE_ATTENTION, 0);
        check_same_gradient(tied, MODEL_RECOMPUTE_EVERY, 1);
        check_same_gradient(tied, MODEL_RECOMPUTE_EVERY, 2);
    }
}

/* Counts of calls, a tensor each. */
static void count_ready(void *context, uint64_t tensor) {
    int *counts = context;
    counts[tensor]++;
}

/* Half of the batch at a time, onto what was there before: the whole batch's gradient. */
static void check_accumulated(bool tied) {
    struct golden_setup setup;
    open_llama(&setup, tied, &plain);
    golden_compute(&setup);
    float *sum = memory_zeroed(setup.plan.value_count, sizeof(float));
    int *counts = memory_zeroed(setup.plan.tensor_count, sizeof(int));
    for (uint64_t i = 0; i < setup.plan.value_count; i++)
        sum[i] = NAN; // the first half overwrites every value
    for (int half = 0; half < 2; half++) {
        int offset = half * GOLDEN_TOKENS / 2;
        struct model_batch batch = {.tokens = setup.tokens + offset,
                                    .targets = setup.targets + offset,
                                    .B = GOLDEN_B / 2,
                                    .T = GOLDEN_T};
        struct model_gradient gradient = {.values = sum, .scale = 0.5F, .add = half > 0};
        model_forward(setup.model, &batch, &gradient);
        model_backward(setup.model, &batch, &gradient, half > 0 ? count_ready : NULL, counts);
    }
    for (uint64_t i = 0; i < setup.plan.value_count; i++)
        CHECK_NEAR(sum[i], setup.grad[i], 1e-6);
    for (uint64_t t = 0; t < setup.plan.tensor_count; t++)
        CHECK_INT(counts[t], 1);
    free(sum);
    free(counts);
    golden_close(&setup);
}

static void test_accumulate(void) {
    check_accumulated(false);
    check_accumulated(true);
}

static void test_decode(void) {
    struct golden_setup setup;
    open_llama(&setup, false, &plain);
    float *cache = memory_zeroed(model_cache_count(setup.model), sizeof(float));
    float whole[GOLDEN_VOCAB], grown[GOLDEN_VOCAB];
    const int64_t prompt = 5;
    model_decode(setup.model, cache, setup.tokens, prompt, 0, grown);
    for (int64_t count = prompt; count <= GOLDEN_T; count++) {
        if (count > prompt)
            model_decode(setup.model, cache, setup.tokens + count - 1, 1, count - 1, grown);
        model_logits(setup.model, setup.tokens, count, whole);
        for (int v = 0; v < GOLDEN_VOCAB; v++)
            CHECK_NEAR(grown[v], whole[v], 1e-5);
    }
    free(cache);
    golden_close(&setup);
}

static void test_shapes(void) {
    struct model_shape shape;
    char why[200];
    uint64_t count;
    CHECK(model_shape_parse("llama:tiny", 256, 128, &shape, why, sizeof(why)) == STATUS_OK);
    CHECK_INT(shape.kv_heads, 2);
    CHECK_INT(shape.intermediate, 352);
    CHECK(model_shape_parse("llama:2x64x8x4", 50, 16, &shape, why, sizeof(why)) == STATUS_OK);
    CHECK_INT(shape.kv_heads, 4);
    CHECK_INT(shape.intermediate, 192);
    struct tensor *tensors = model_tensors(&shape, &count);
    CHECK_INT(count, 1 + 2 * 9 + 2);
    CHECK_TEXT(tensors[count - 1].name, "lm_head.weight");
    CHECK_TEXT(tensors[12].name, "model.layers.1.self_attn.k_proj.weight");
    CHECK_INT(tensors[12].shape[0], 32);
    CHECK_INT(tensors[12].shape[1], 64);
    free(tensors);
    /* Llama-3.2-1B has 1,235,814,400 parameters. */
    CHECK(model_shape_parse("llama:1B", 128256, 128, &shape, why, sizeof(why)) == STATUS_OK);
    tensors = model_tensors(&shape, &count);
    uint64_t values = 0;
    for (uint64_t t = 0; t < count; t++)
        values += golden_count(&tensors[t]);
    CHECK_INT(values, 1235814400);
    free(tensors);
    CHECK(model_shape_parse("llama:2x64x8x3", 50, 16, &shape, why, sizeof(why)) == STATUS_INVALID);
    CHECK(model_shape_parse("llama:2x24x8", 50, 16, &shape, why, sizeof(why)) == STATUS_INVALID);
    CHECK(strstr(why, "even") != NULL);
    CHECK(model_shape_parse("llama:2x4096x2", 9, 16, &shape, why, sizeof(why)) == STATUS_INVALID);
    CHECK(model_shape_parse("gpt2:2x64x8x4", 9, 16, &shape, why, sizeof(why)) == STATUS_INVALID);
    shape = golden_llama_shape(false);
    shape.rope_theta = NAN;
    CHECK(model_shape_check(&shape, why, sizeof(why)) == STATUS_INVALID);
}

int main(void) {
    TEST_RUN(test_own_head);
    TEST_RUN(test_tied_head);
    TEST_RUN(test_curve);
    TEST_RUN(test_recompute);
    TEST_RUN(test_accumulate);
    TEST_RUN(test_decode);
    TEST_RUN(test_shapes);
    return 0;
}
