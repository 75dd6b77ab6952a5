/* config.json to a shape: every number of GPT-2's and Llama's, defaults, both ways in which files
 * give the rotations' base, and that what our models do not compute is refused by key and value.
 * What safetensors_write_config writes is read back to the same shape. A job's --model, --vocab and
 * --seq-len against a config. 10,000 seeded changes of a config give a refusal or a sound shape.
 */
#include "base/memory.h"
#include "base/random.h"
#include "tests/log_capture.h"
#include "worker/hf_config.h"
#include "worker/safetensors.h"

#define GPT2                                                                                       \
    "{\"model_type\":\"gpt2\",\"vocab_size\":300,\"n_positions\":64,\"n_embd\":48,"                \
    "\"n_layer\":3,\"n_head\":4"
#define LLAMA                                                                                      \
    "{\"model_type\":\"llama\",\"vocab_size\":300,\"max_position_embeddings\":64,"                 \
    "\"hidden_size\":48,\"intermediate_size\":112,\"num_hidden_layers\":3,"                        \
    "\"num_attention_heads\":4"

static enum status parse(const char *text, size_t bytes, struct model_shape *shape) {
    char *copy = malloc(bytes > 0 ? bytes : 1);
    CHECK(copy != NULL);
    memcpy(copy, text, bytes);
    log_restart();
    enum status status = hf_config_parse("the-config", copy, bytes, shape);
    EXPECT_LOG("\n", status == STATUS_OK ? 0 : 1);
    free(copy);
    return status;
}

static void check_same(const struct model_shape *a, const struct model_shape *b) {
    CHECK(a->family == b->family);
    CHECK_INT(a->layers, b->layers);
    CHECK_INT(a->channels, b->channels);
    CHECK_INT(a->heads, b->heads);
    CHECK_INT(a->kv_heads, b->kv_heads);
    CHECK_INT(a->intermediate, b->intermediate);
    CHECK_INT(a->vocab, b->vocab);
    CHECK_INT(a->positions, b->positions);
    CHECK(a->norm_eps == b->norm_eps);
    CHECK_INT(a->tied_head, b->tied_head);
}

static void test_gpt2(void) {
    static const char *const good[] = {
        GPT2 "}",
        GPT2 ",\"n_inner\":null,\"activation_function\":\"gelu_pytorch_tanh\",\"attn_pdrop\":0.1,"
             "\"task_specific_params\":{\"a\":[1]},\"layer_norm_epsilon\":1e-05,"
             "\"tie_word_embeddings\":true,\"scale_attn_weights\":true}",
    };
    struct model_shape expected = {.family = model_family_find("gpt2"),
                                   .layers = 3,
                                   .channels = 48,
                                   .heads = 4,
                                   .kv_heads = 4,
                                   .intermediate = 192,
                                   .vocab = 300,
                                   .positions = 64,
                                   .norm_eps = 1e-5,
                                   .tied_head = true};
    struct model_shape shape;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        CHECK_INT(parse(good[i], strlen(good[i]), &shape), STATUS_OK);
        check_same(&shape, &expected);
    }
}

static void test_llama(void) {
    static const struct {
        const char *rest;
        int64_t kv_heads;
        double rope_theta, norm_eps;
        bool tied;
    } cases[] = {
        {"}", 4, 10000, 1e-6, false},
        {",\"num_key_value_heads\":2,\"rope_theta\":500000.0,\"rms_norm_eps\":1e-05,"
         "\"tie_word_embeddings\":true,\"hidden_act\":\"silu\",\"rope_scaling\":null,"
         "\"attention_bias\":false,\"mlp_bias\":false,\"head_dim\":12,\"pretraining_tp\":1}",
         2, 500000, 1e-5, true},
        {",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":12345.5}}", 4, 12345.5,
         1e-6, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model_shape expected = {.family = model_family_find("llama"),
                                       .layers = 3,
                                       .channels = 48,
                                       .heads = 4,
                                       .kv_heads = cases[i].kv_heads,
                                       .intermediate = 112,
                                       .vocab = 300,
                                       .positions = 64,
                                       .norm_eps = cases[i].norm_eps,
                                       .tied_head = cases[i].tied};
        char text[1024];
        struct model_shape shape;
        snprintf(text, sizeof text, LLAMA "%s", cases[i].rest);
        CHECK_INT(parse(text, strlen(text), &shape), STATUS_OK);
        check_same(&shape, &expected);
        CHECK(shape.rope_theta == cases[i].rope_theta);
    }
}

static void test_refused(void) {
    static const struct {
        const char *text;
        enum status status;
        const char *line;
    } cases[] = {
        {"", STATUS_CORRUPT, "the-config: no JSON value"},
        {"[]", STATUS_CORRUPT, "the-config is no JSON object"},
        {"{}", STATUS_UNSUPPORTED, "model_type is not there, allowed: gpt2, llama"},
        {"{\"model_type\":\"bert\"}", STATUS_UNSUPPORTED, "model_type is \"bert\", allowed: gpt2"},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":300}", STATUS_CORRUPT, "n_layer is not there"},
        {GPT2 ",\"n_layer\":4}", STATUS_CORRUPT, "the key \"n_layer\" twice"},
        {GPT2 ",\"n_inner\":0}", STATUS_CORRUPT, "n_inner is 0, allowed: a whole number from 1"},
        {GPT2 ",\"n_inner\":1.5}", STATUS_CORRUPT, "n_inner is 1.5"},
        {GPT2 ",\"n_inner\":\"192\"}", STATUS_CORRUPT, "n_inner is \"192\""},
        {GPT2 ",\"n_inner\":[1]}", STATUS_CORRUPT, "n_inner is a list or an object"},
        {GPT2 ",\"n_inner\":2147483648}", STATUS_CORRUPT, "n_inner is 2147483648"},
        {GPT2 ",\"activation_function\":\"relu\"}", STATUS_UNSUPPORTED,
         "activation_function is \"relu\", allowed: gelu_new, gelu_pytorch_tanh"},
        {GPT2 ",\"activation_function\":\"gelu\"}", STATUS_UNSUPPORTED, "is \"gelu\", allowed"},
        {GPT2 ",\"tie_word_embeddings\":false}", STATUS_UNSUPPORTED,
         "tie_word_embeddings is false, allowed: true"},
        {GPT2 ",\"tie_word_embeddings\":1}", STATUS_CORRUPT, "tie_word_embeddings is 1"},
        {GPT2 ",\"scale_attn_weights\":false}", STATUS_UNSUPPORTED, "scale_attn_weights is false"},
        {GPT2 ",\"scale_attn_by_inverse_layer_idx\":true}", STATUS_UNSUPPORTED, "_idx is true"},
        {GPT2 ",\"add_cross_attention\":true}", STATUS_UNSUPPORTED, "add_cross_attention is true"},
        {GPT2 ",\"layer_norm_epsilon\":0}", STATUS_CORRUPT, "layer_norm_epsilon is 0, allowed: a"},
        {GPT2 ",\"layer_norm_epsilon\":\"x\"}", STATUS_CORRUPT, "layer_norm_epsilon is \"x\""},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":300,\"n_positions\":64,\"n_embd\":48,"
         "\"n_layer\":3,\"n_head\":5}",
         STATUS_UNSUPPORTED, "5 heads do not divide 48 channels"},
        {LLAMA ",\"hidden_act\":\"gelu\"}", STATUS_UNSUPPORTED, "hidden_act is \"gelu\""},
        {LLAMA ",\"attention_bias\":true}", STATUS_UNSUPPORTED, "attention_bias is true"},
        {LLAMA ",\"mlp_bias\":true}", STATUS_UNSUPPORTED, "mlp_bias is true"},
        {LLAMA ",\"head_dim\":16}", STATUS_UNSUPPORTED, "head_dim is 16"},
        {LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\"}}", STATUS_UNSUPPORTED,
         "rope_scaling is a list or an object, allowed: null"},
        {LLAMA ",\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":1.0}}",
         STATUS_UNSUPPORTED, "rope_parameters is"},
        {LLAMA ",\"rope_parameters\":{}}", STATUS_UNSUPPORTED, "rope_parameters is"},
        {LLAMA ",\"rope_theta\":-1}", STATUS_CORRUPT, "rope_theta is -1"},
        {LLAMA ",\"num_key_value_heads\":3}", STATUS_UNSUPPORTED, "do not divide"},
    };
    struct model_shape shape = {.layers = 77};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_INT(parse(cases[i].text, strlen(cases[i].text), &shape), cases[i].status);
        EXPECT_LOG(cases[i].line, 1);
        EXPECT_LOG("the-config", 1);
        CHECK_INT(shape.layers, 77);
    }
}

static void test_round_trip(void) {
    static const char *const models[] = {GPT2 "}", LLAMA "}",
                                         LLAMA ",\"num_key_value_heads\":1,\"rope_theta\":777.125,"
                                               "\"tie_word_embeddings\":true}"};
    char folder[] = "/tmp/test_hf_config_XXXXXX", path[64];
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/config.json", folder);
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        struct model_shape first, again;
        CHECK_INT(parse(models[i], strlen(models[i]), &first), STATUS_OK);
        CHECK_INT(safetensors_write_config(folder, &first), STATUS_OK);
        CHECK_INT(hf_config_read(folder, &again), STATUS_OK);
        check_same(&first, &again);
        CHECK(first.rope_theta == again.rope_theta);
        CHECK_INT(hf_config_read(path, &again), STATUS_OK);
        check_same(&first, &again);
    }
    CHECK_INT(unlink(path), 0);
    CHECK_INT(hf_config_read(folder, NULL), STATUS_IO);
    CHECK_INT(hf_config_read(path, NULL), STATUS_IO);
    CHECK_INT(rmdir(folder), 0);
}

static void test_job(void) {
    char path[] = "/tmp/test_hf_config_XXXXXX";
    int fd = mkstemp(path);
    struct job job = {.seq_len = 64};
    struct model_shape shape = {0};
    CHECK(fd >= 0);
    CHECK(write(fd, GPT2 "}", sizeof GPT2) == (ssize_t)sizeof GPT2);
    close(fd);
    snprintf(job.model, sizeof job.model, "%s", path);
    CHECK_INT(hf_config_of_job(&job, 256, &shape), STATUS_OK);
    CHECK_INT(shape.vocab, 300);
    CHECK_INT(shape.positions, 64);
    job.vocab = 300;
    job.seq_len = 32;
    CHECK_INT(hf_config_of_job(&job, 256, &shape), STATUS_OK);
    CHECK_INT(shape.positions, 64);
    log_restart();
    job.vocab = 256;
    CHECK_INT(hf_config_of_job(&job, 256, &shape), STATUS_INVALID);
    EXPECT_LOG("vocab_size 300; leave it out", 1);
    job.vocab = 0;
    job.seq_len = 65;
    CHECK_INT(hf_config_of_job(&job, 256, &shape), STATUS_INVALID);
    EXPECT_LOG("--seq-len 65 is more than", 1);
    snprintf(job.model, sizeof job.model, "gpt2:2x8x2");
    CHECK_INT(hf_config_of_job(&job, 256, &shape), STATUS_OK);
    CHECK_INT(shape.vocab, 256);
    CHECK_INT(shape.positions, 65);
    snprintf(job.model, sizeof job.model, "gpt2:none");
    CHECK_INT(hf_config_of_job(&job, 256, &shape), STATUS_INVALID);
    EXPECT_LOG("--model gpt2:none: ", 1);
    CHECK_INT(unlink(path), 0);
}

static void test_changes(void) {
    static const char *const models[] = {
        GPT2 ",\"n_inner\":96}",
        LLAMA ",\"rope_parameters\":{\"rope_theta\":5.0},\"head_dim\":12}"};
    static const char signs[] = "{}[],:\"0123456789-.eE \\\xff";
    struct random_stream stream;
    char why[256];
    int good = 0;
    random_open(&stream, 5, RANDOM_SIMULATOR, 0);
    for (int round = 0; round < 10000; round++) {
        char text[1024];
        size_t bytes = strlen(models[round % 2]);
        memcpy(text, models[round % 2], bytes);
        for (uint64_t change = random_below(&stream, 3); change > 0; change--)
            text[random_below(&stream, bytes)] = signs[random_below(&stream, sizeof signs - 1)];
        struct model_shape shape;
        if (parse(text, bytes, &shape) != STATUS_OK) continue;
        CHECK_INT(model_shape_check(&shape, why, sizeof why), STATUS_OK);
        good++;
    }
    CHECK(good > 2000 && good < 9000);
}

int main(void) {
    log_capture();
    TEST_RUN(test_gpt2);
    TEST_RUN(test_llama);
    TEST_RUN(test_refused);
    TEST_RUN(test_round_trip);
    TEST_RUN(test_job);
    TEST_RUN(test_changes);
    return 0;
}
