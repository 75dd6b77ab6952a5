/* Proves generation against a model whose distribution is known: with all weights zero but the last
 * norm's bias and the token embeddings, the logits are the same whatever came before, and chosen
 * here. At temperature 0 the likeliest token comes, at others the frequencies are those of the
 * softmax (chi-squared); the seed decides; the context is the last T tokens.
 */
#include "tests/test.h"
#include "worker/sample.h"

#define CHANNELS  2
#define VOCAB     5
#define POSITIONS 6
#define DRAWS     20000

static struct model_shape shape; /* made in main */
static const float chosen_logits[VOCAB] = {0.0F, 1.0F, -1.0F, 2.0F, 0.5F};

struct setup {
    struct plan plan;
    struct model *model;
    float *weights;
};

static void open_setup(struct setup *setup) {
    uint64_t count;
    struct tensor *tensors = model_tensors(&shape, &count);
    CHECK(plan_build(&setup->plan, tensors, count,
                     &(struct plan_options){.shards = 1, .block_values = 100}) == STATUS_OK);
    struct model_options options = {.B = 1, .T = POSITIONS};
    CHECK(model_open(&setup->model, &shape, &setup->plan, &options) == STATUS_OK);
    setup->weights = memory_zeroed(setup->plan.value_count, sizeof(float));
    setup->weights[setup->plan.offsets[count - 1]] = 1; // the last norm's bias: x is (1, 0)
    for (int v = 0; v < VOCAB; v++)
        setup->weights[setup->plan.offsets[0] + (uint64_t)(v * CHANNELS)] = chosen_logits[v];
    free(tensors);
}

static void close_setup(struct setup *setup) {
    model_close(setup->model);
    plan_free(&setup->plan);
    free(setup->weights);
}

static enum status generate(const struct setup *setup, const struct sample_request *request,
                            int32_t *tokens) {
    return sample_generate(setup->model, &shape, setup->weights, request, tokens);
}

static void test_likeliest(void) {
    struct setup setup;
    open_setup(&setup);
    static const int32_t prompt[1] = {4};
    struct sample_request request = {prompt, 1, 20, 0, 1, NULL, 0};
    int32_t tokens[20];
    CHECK(generate(&setup, &request, tokens) == STATUS_OK);
    for (int i = 0; i < 20; i++)
        CHECK_INT(tokens[i], 3);
    close_setup(&setup);
}

/* Chi-squared with 4 degrees of freedom exceeds 23.5 once in 10^4; the seed is fixed. */
static void test_frequencies(void) {
    struct setup setup;
    open_setup(&setup);
    static const int32_t prompt[1] = {0};
    static const float temperatures[] = {0.5F, 1.0F, 3.0F};
    int32_t *tokens = memory_zeroed(DRAWS, sizeof(*tokens));
    for (int i = 0; i < 3; i++) {
        struct sample_request request = {prompt, 1, DRAWS, temperatures[i], 11, NULL, 0};
        CHECK(generate(&setup, &request, tokens) == STATUS_OK);
        double counts[VOCAB] = {0}, sum = 0, chi = 0;
        for (int n = 0; n < DRAWS; n++)
            counts[tokens[n]]++;
        for (int v = 0; v < VOCAB; v++)
            sum += exp((double)(chosen_logits[v] / temperatures[i]));
        for (int v = 0; v < VOCAB; v++) {
            double expected = DRAWS * exp((double)(chosen_logits[v] / temperatures[i])) / sum;
            chi += (counts[v] - expected) * (counts[v] - expected) / expected;
        }
        CHECK(chi < 23.5);
    }
    free(tokens);
    close_setup(&setup);
}

/* Only the k likeliest come, in the proportions of their softmax; k as large as the vocabulary, or
 * 0, changes nothing. */
static void test_top_k(void) {
    struct setup setup;
    open_setup(&setup);
    static const int32_t prompt[1] = {0};
    static const int32_t by_rank[VOCAB] = {3, 1, 4, 0, 2};
    int32_t *tokens = memory_zeroed(DRAWS, sizeof(*tokens));
    int32_t *all = memory_zeroed(DRAWS, sizeof(*all));
    struct sample_request request = {prompt, 1, DRAWS, 1.0F, 11, NULL, 0};
    CHECK(generate(&setup, &request, all) == STATUS_OK);
    for (int k = 1; k <= VOCAB + 1; k++) {
        double counts[VOCAB] = {0}, sum = 0;
        request.top_k = k;
        CHECK(generate(&setup, &request, tokens) == STATUS_OK);
        CHECK((memcmp(tokens, all, DRAWS * sizeof(*all)) == 0) == (k >= VOCAB));
        for (int n = 0; n < DRAWS; n++)
            counts[tokens[n]]++;
        for (int r = 0; r < k && r < VOCAB; r++)
            sum += exp((double)chosen_logits[by_rank[r]]);
        for (int r = 0; r < VOCAB; r++) {
            double share = r < k ? exp((double)chosen_logits[by_rank[r]]) / sum : 0;
            /* Five standard deviations. */
            CHECK_NEAR(counts[by_rank[r]], DRAWS * share, 5 * sqrt(DRAWS * share * (1 - share)));
        }
    }
    request.top_k = -1;
    CHECK(generate(&setup, &request, tokens) == STATUS_INVALID);
    free(tokens);
    free(all);
    close_setup(&setup);
}

static void test_seed_decides(void) {
    struct setup setup;
    open_setup(&setup);
    static const int32_t prompt[2] = {0, 1};
    struct sample_request request = {prompt, 2, 100, 1.0F, 11, NULL, 0};
    int32_t first[100], again[100], other[100];
    CHECK(generate(&setup, &request, first) == STATUS_OK);
    CHECK(generate(&setup, &request, again) == STATUS_OK);
    request.seed = 12;
    CHECK(generate(&setup, &request, other) == STATUS_OK);
    CHECK(memcmp(first, again, sizeof(first)) == 0);
    CHECK(memcmp(first, other, sizeof(first)) != 0);
    close_setup(&setup);
}

static int32_t likeliest(const float *logits, int32_t vocab) {
    int32_t best = 0;
    for (int32_t v = 1; v < vocab; v++)
        best = logits[v] > logits[best] ? v : best;
    return best;
}

/* Against a loop over model_logits that keeps all tokens: large random weights, so that each token
 * of the context counts; prompts shorter and longer than T. */
static void check_context(uint64_t seed) {
    struct model_shape wide;
    char why[200];
    CHECK(model_shape_parse("gpt2:2x16x2", 17, POSITIONS, &wide, why, sizeof(why)) == STATUS_OK);
    static const int32_t prompt[9] = {0, 1, 2, 13, 4, 9, 2, 16, 1};
    uint64_t count;
    struct tensor *tensors = model_tensors(&wide, &count);
    struct plan plan;
    struct model *model;
    CHECK(plan_build(&plan, tensors, count,
                     &(struct plan_options){.shards = 1, .block_values = 100}) == STATUS_OK);
    struct model_options options = {.B = 1, .T = POSITIONS};
    CHECK(model_open(&model, &wide, &plan, &options) == STATUS_OK);
    float *weights = memory_zeroed(plan.value_count, sizeof(float));
    model_init_weights(&wide, &plan, seed, weights);
    for (uint64_t i = 0; i < plan.value_count; i++)
        weights[i] *= 50;
    for (int64_t prompt_count = 1; prompt_count <= 9; prompt_count++) {
        struct sample_request request = {prompt, prompt_count, 20, 0, 1, NULL, 0};
        int32_t tokens[20], all[9 + 20];
        CHECK(sample_generate(model, &wide, weights, &request, tokens) == STATUS_OK);
        memcpy(all, prompt, (size_t)prompt_count * sizeof(*all));
        for (int64_t i = 0; i < 20; i++) {
            int64_t end = prompt_count + i, length = end < POSITIONS ? end : POSITIONS;
            float logits[17];
            model_logits(model, all + end - length, length, logits);
            all[end] = likeliest(logits, 17);
            CHECK_INT(tokens[i], all[end]);
        }
    }
    free(weights);
    free(tensors);
    model_close(model);
    plan_free(&plan);
}

static void test_context(void) {
    for (uint64_t seed = 1; seed <= 8; seed++)
        check_context(seed);
}

/* A diverged model gives some token, never one out of range. */
static void test_not_finite(void) {
    struct setup setup;
    open_setup(&setup);
    for (uint64_t i = 0; i < setup.plan.value_count; i++)
        setup.weights[i] = NAN;
    static const int32_t prompt[1] = {0};
    for (int hot = 0; hot < 2; hot++) {
        struct sample_request request = {prompt, 1, 10, (float)hot, 1, NULL, 0};
        int32_t tokens[10];
        CHECK(generate(&setup, &request, tokens) == STATUS_OK);
        for (int i = 0; i < 10; i++)
            CHECK(tokens[i] >= 0 && tokens[i] < VOCAB);
    }
    close_setup(&setup);
}

static void test_refused(void) {
    struct setup setup;
    open_setup(&setup);
    static const int32_t good[1] = {0}, high[2] = {0, VOCAB}, low[1] = {-1};
    const struct sample_request requests[] = {
        {good, 0, 1, 1.0F, 1, NULL, 0}, {high, 2, 1, 1.0F, 1, NULL, 0},
        {low, 1, 1, 1.0F, 1, NULL, 0},  {good, 1, 1, -1.0F, 1, NULL, 0},
        {good, 1, 1, NAN, 1, NULL, 0},  {good, 1, 1, 1.0F, 1, NULL, -1},
    };
    int32_t token = 77;
    for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++)
        CHECK(generate(&setup, &requests[i], &token) == STATUS_INVALID);
    CHECK_INT(token, 77);
    struct sample_request none = {good, 1, 0, 1.0F, 1, NULL, 0};
    CHECK(generate(&setup, &none, &token) == STATUS_OK);
    CHECK_INT(token, 77);
    close_setup(&setup);
}

int main(void) {
    char why[200];
    CHECK(model_shape_parse("gpt2:1x2x1", VOCAB, POSITIONS, &shape, why, sizeof(why)) == STATUS_OK);
    TEST_RUN(test_likeliest);
    TEST_RUN(test_frequencies);
    TEST_RUN(test_top_k);
    TEST_RUN(test_seed_decides);
    TEST_RUN(test_context);
    TEST_RUN(test_not_finite);
    TEST_RUN(test_refused);
    return 0;
}
