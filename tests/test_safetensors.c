/* Proves the written files by a reader of its own, which knows only the format: the header's length
 * is a multiple of 8, names come in order, offsets follow each other without holes up to the file's
 * end, and each tensor has its shape and its values bit for bit. config.json holds the fields that
 * transformers reads, with the shape's numbers.
 */
#include "base/files.h"
#include "tests/test.h"
#include "worker/safetensors.h"

#include <inttypes.h>
#include <unistd.h>

#define FILE_MAX ((size_t)128 << 20)

static struct model_shape shape_of(int64_t layers, int64_t channels, int64_t heads, int64_t vocab,
                                   int64_t positions) {
    struct model_shape shape = {.family = &model_gpt2,
                                .layers = layers,
                                .channels = channels,
                                .heads = heads,
                                .vocab = vocab,
                                .positions = positions};
    char why[100];
    CHECK(model_shape_check(&shape, why, sizeof(why)) == STATUS_OK);
    return shape;
}

static void make_folder(char folder[64]) {
    snprintf(folder, 64, "/tmp/test_safetensors_XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
}

/* Reads a file of the folder -> new memory, and removes it. */
static char *take_file(const char *folder, const char *name, size_t *bytes) {
    char path[128], *content;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    CHECK(files_read(path, FILE_MAX, &content, bytes) == STATUS_OK);
    CHECK(unlink(path) == 0);
    return content;
}

/* A cursor over JSON text without blanks between its signs. */
static void expect(const char **text, const char *word) {
    size_t bytes = strlen(word);
    if (strncmp(*text, word, bytes) != 0) fprintf(stderr, "at %.60s\n", *text);
    CHECK(strncmp(*text, word, bytes) == 0);
    *text += bytes;
}

static uint64_t read_number(const char **text) {
    CHECK(**text >= '0' && **text <= '9');
    char *end;
    uint64_t value = strtoull(*text, &end, 10);
    *text = end;
    return value;
}

static uint64_t find_tensor(const struct plan *plan, const char *name) {
    for (uint64_t i = 0; i < plan->tensor_count; i++) {
        if (strcmp(plan->tensors[i].name, name) == 0) return i;
    }
    fprintf(stderr, "no tensor %s\n", name);
    exit(1);
}

/* One member of the header and its data; `last_name` and `end` are of the tensor before. */
static void check_tensor(const char **text, const char *data, const struct plan *plan,
                         const float *weights, char *last_name, uint64_t *end) {
    char name[TENSOR_NAME_MAX];
    expect(text, ",\"");
    size_t length = strcspn(*text, "\"");
    CHECK(length < sizeof(name));
    memcpy(name, *text, length);
    name[length] = 0;
    *text += length;
    CHECK(strcmp(last_name, name) < 0);
    memcpy(last_name, name, sizeof(name));
    uint64_t index = find_tensor(plan, name), count = 1;
    const struct tensor *tensor = &plan->tensors[index];
    expect(text, "\":{\"dtype\":\"F32\",\"shape\":[");
    for (uint32_t d = 0; d < tensor->dims; d++) {
        if (d > 0) expect(text, ",");
        CHECK_INT(read_number(text), tensor->shape[d]);
        count *= tensor->shape[d];
    }
    expect(text, "],\"data_offsets\":[");
    CHECK_INT(read_number(text), *end);
    expect(text, ",");
    uint64_t next = read_number(text);
    CHECK_INT(next, *end + count * sizeof(float));
    expect(text, "]}");
    CHECK(memcmp(data + *end, weights + plan->offsets[index], next - *end) == 0);
    *end = next;
}

static void check_model(const struct plan *plan, const float *weights) {
    char folder[64];
    size_t bytes;
    make_folder(folder);
    CHECK(safetensors_write(folder, plan, weights) == STATUS_OK);
    char *content = take_file(folder, "model.safetensors", &bytes);
    CHECK(rmdir(folder) == 0); // nothing else was left there
    uint64_t header_bytes;
    memcpy(&header_bytes, content, sizeof(header_bytes));
    CHECK(header_bytes <= bytes - 8);
    CHECK_INT(header_bytes % 8, 0);
    const char *text = content + 8, *data = content + 8 + header_bytes;
    expect(&text, "{\"__metadata__\":{\"format\":\"pt\"}");
    char last_name[TENSOR_NAME_MAX] = "";
    uint64_t end = 0;
    for (uint64_t i = 0; i < plan->tensor_count; i++)
        check_tensor(&text, data, plan, weights, last_name, &end);
    expect(&text, "}");
    CHECK(data - text < 8);
    while (text < data)
        expect(&text, " ");
    CHECK_INT(8 + header_bytes + end, bytes);
    free(content);
}

/* Layers 0..11, so that the order of names is not the order of layers. */
static void test_model_file(void) {
    for (int64_t layers = 1; layers <= 12; layers++) {
        struct model_shape shape = shape_of(layers, 12, 3, 23, 10);
        uint64_t count;
        struct tensor *tensors = model_tensors(&shape, &count);
        struct plan plan;
        CHECK(plan_build(&plan, tensors, count,
                         &(struct plan_options){.shards = 2, .block_values = 100}) == STATUS_OK);
        float *weights = memory_zeroed(plan.value_count, sizeof(float));
        for (uint64_t i = 0; i < plan.value_count; i++)
            weights[i] = (float)i + 0.25F;
        check_model(&plan, weights);
        free(weights);
        free(tensors);
        plan_free(&plan);
    }
}

/* Three dimensions, a single value, and 70 MB, which is more than one write's size. */
static void test_other_tensors(void) {
    struct tensor tensors[3] = {{.name = "c", .dims = 3, .shape = {3, 5, 7}},
                                {.name = "a", .dims = 1, .shape = {1}},
                                {.name = "b", .dims = 2, .shape = {17500, 1000}}};
    struct plan plan;
    CHECK(plan_build(&plan, tensors, 3,
                     &(struct plan_options){.shards = 1, .block_values = 100000}) == STATUS_OK);
    float *weights = memory_zeroed(plan.value_count, sizeof(float));
    for (uint64_t i = 0; i < plan.value_count; i++)
        weights[i] = -(float)i;
    check_model(&plan, weights);
    free(weights);
    plan_free(&plan);
}

static void check_config(int64_t vocab, const char *end) {
    struct model_shape shape = shape_of(12, 768, 12, vocab, 1024);
    char folder[64];
    size_t bytes;
    make_folder(folder);
    CHECK(safetensors_write_config(folder, &shape) == STATUS_OK);
    char *content = take_file(folder, "config.json", &bytes);
    CHECK(rmdir(folder) == 0);
    char expected[1024];
    snprintf(expected, sizeof(expected),
             "{\"model_type\":\"gpt2\",\"architectures\":[\"GPT2LMHeadModel\"],"
             "\"vocab_size\":%" PRId64 ",\"n_positions\":1024,\"n_embd\":768,\"n_layer\":12,"
             "\"n_head\":12,\"n_inner\":3072,\"activation_function\":\"gelu_new\","
             "\"layer_norm_epsilon\":1e-05,\"resid_pdrop\":0,\"embd_pdrop\":0,"
             "\"attn_pdrop\":0,\"tie_word_embeddings\":true,\"use_cache\":true,"
             "\"torch_dtype\":\"float32\"%s}",
             vocab, end);
    CHECK_TEXT(content, expected);
    free(content);
}

static void test_config(void) {
    check_config(50257, ",\"bos_token_id\":50256,\"eos_token_id\":50256");
    check_config(256, ",\"bos_token_id\":null,\"eos_token_id\":null");
}

static void test_no_folder(void) {
    struct model_shape shape = shape_of(1, 4, 1, 5, 6);
    struct tensor tensor = {.name = "a", .dims = 1, .shape = {1}};
    struct plan plan;
    float weight = 1;
    CHECK(plan_build(&plan, &tensor, 1, &(struct plan_options){.shards = 1, .block_values = 50}) ==
          STATUS_OK);
    CHECK(safetensors_write("/tmp/test_safetensors/no/folder", &plan, &weight) == STATUS_IO);
    CHECK(safetensors_write_config("/tmp/test_safetensors/no/folder", &shape) == STATUS_IO);
    char *path = memory_zeroed(4200, 1);
    memset(path, 'a', 4199);
    CHECK(safetensors_write_config(path, &shape) == STATUS_IO);
    free(path);
    plan_free(&plan);
}

int main(void) {
    TEST_RUN(test_model_file);
    TEST_RUN(test_other_tensors);
    TEST_RUN(test_config);
    TEST_RUN(test_no_folder);
    return 0;
}
