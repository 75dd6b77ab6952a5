/* Proves what a model is before it computes: sizes and their refusal, shapes from elsewhere, names
 * and counts of the tensors against GPT-2's known ones, and first weights: their moments, and that
 * pieces made by threads are the stream that is made in one go.
 */
#include "base/random.h"
#include "tests/test.h"
#include "worker/model_flops.h"

static uint64_t count_of(const struct tensor *tensor) {
    return tensor->dims == 1 ? tensor->shape[0] : tensor->shape[0] * tensor->shape[1];
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
        {"mamba:tiny", 0, 0, 0},
        {"gpt2", 0, 0, 0},
        {"gpt", 0, 0, 0},
        {"gpt2x:tiny", 0, 0, 0},
        {"", 0, 0, 0},
        {"gpt2:99999999999999999999x4x4", 0, 0, 0},
        {"gpt2:2x32x0", 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct model_shape parsed = {.layers = -1, .channels = -1, .heads = -1, .vocab = -1};
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

/* A shape from elsewhere: each thing that cannot be is refused, with a reason. */
static void test_shape_check(void) {
    static const struct model_shape good = {.layers = 2,
                                            .channels = 12,
                                            .heads = 3,
                                            .vocab = 5,
                                            .positions = 7,
                                            .kv_heads = 3,
                                            .intermediate = 20,
                                            .norm_eps = 1e-6};
    struct model_shape cases[12];
    for (size_t i = 0; i < 12; i++) {
        cases[i] = good;
        cases[i].family = &model_gpt2;
    }
    cases[1].layers = 0;
    cases[2].channels = -12;
    cases[3].heads = 5;
    cases[4].kv_heads = 1; // GPT-2 knows no shared keys
    cases[5].intermediate = INT64_C(1) << 40;
    cases[6].vocab = 0;
    cases[7].positions = INT64_C(1) << 31;
    cases[8].norm_eps = NAN;
    cases[9].family = NULL;
    cases[10].kv_heads = 4;
    cases[11].heads = INT64_MAX;
    for (size_t i = 0; i < 12; i++) {
        char why[200] = "";
        CHECK_INT(model_shape_check(&cases[i], why, sizeof(why)),
                  i == 0 ? STATUS_OK : STATUS_INVALID);
        CHECK_INT(why[0] == 0, i == 0);
    }
    struct model_shape bare = {
        .family = &model_gpt2, .layers = 1, .channels = 8, .heads = 2, .vocab = 5, .positions = 7};
    char why[200];
    CHECK(model_shape_check(&bare, why, sizeof(why)) == STATUS_OK);
    CHECK_INT(bare.kv_heads, 2);
    CHECK_INT(bare.intermediate, 32);
    CHECK_NEAR(bare.norm_eps, 1e-5, 0);
    CHECK(bare.tied_head);
    CHECK(model_family_find("gpt2") == &model_gpt2);
    CHECK(model_family_find("gpt") == NULL);
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
    struct model_shape wide;
    char why[200];
    uint64_t count;
    CHECK(model_shape_parse("gpt2:3x64x4", 1001, 50, &wide, why, sizeof(why)) == STATUS_OK);
    struct tensor *tensors = model_tensors(&wide, &count);
    struct plan plan;
    CHECK(plan_build(&plan, tensors, count,
                     &(struct plan_options){.shards = 1, .block_values = 5000}) == STATUS_OK);
    float *weights = memory_zeroed(plan.value_count, sizeof(float));
    float *again = memory_zeroed(plan.value_count, sizeof(float));
    model_init_weights(&wide, &plan, 3, weights);
    model_init_weights(&wide, &plan, 3, again);
    CHECK(memcmp(weights, again, plan.value_count * sizeof(float)) == 0);
    model_init_weights(&wide, &plan, 4, again);
    CHECK(memcmp(weights, again, plan.value_count * sizeof(float)) != 0);
    struct random_stream stream; // the embeddings, made in one go
    random_open(&stream, 3, RANDOM_INIT_WEIGHTS, 0);
    for (uint64_t i = 0; i < count_of(&tensors[0]); i++)
        CHECK(weights[plan.offsets[0] + i] == 0.02F * random_normal(&stream));
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

/* By hand, from the sizes of the matrices. Attention's part grows with the sequence, by 12 L C. */
static void test_flops(void) {
    static const struct {
        const char *text;
        double weights; /* in products: the layers', and the head's */
        double layers, channels;
    } cases[] = {
        {"gpt2:124M", 12.0 * 12 * 768 * 768 + 768.0 * 50257, 12, 768},
        {"gpt2:2x12x3", 2.0 * 12 * 12 * 12 + 12.0 * 50257, 2, 12},
        /* queries and their projection, one head of 4 for keys and one for values, three of the
         * MLP of width 32 (llama_complete) */
        {"llama:3x12x3x1", 3.0 * (2 * 12 * 12 + 2 * 12 * 4 + 3 * 12 * 32) + 12.0 * 50257, 3, 12},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model_shape shape;
        char why[256];
        CHECK_INT(model_shape_parse(cases[i].text, 50257, 4096, &shape, why, sizeof why),
                  STATUS_OK);
        if (strncmp(cases[i].text, "llama", 5) == 0) CHECK_INT(shape.intermediate, 32);
        for (int64_t T = 1; T <= 4096; T *= 64) {
            double attention = 12 * cases[i].layers * cases[i].channels * (double)T;
            CHECK_NEAR(model_flops(&shape, T), 6 * cases[i].weights + attention, 0.5);
        }
    }
}

int main(void) {
    TEST_RUN(test_shape_parse);
    TEST_RUN(test_shape_check);
    TEST_RUN(test_tensors);
    TEST_RUN(test_flops);
    TEST_RUN(test_init_weights);
    return 0;
}
