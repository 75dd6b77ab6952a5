/* Reading safetensors.
 *
 * Numbers: all 65,536 values of f16 and bf16 against their closed form, and back to the same bits;
 * rounding from f32 at, just below and just above the middle of each two neighbours. Files: what
 * safetensors_write wrote comes back bit for bit; so does a model in three files with an index, in
 * f32, bf16 and f16; weights reach the plan's places under every form of name. Rules: a file or
 * index made by hand that breaks each one is refused, with its line and status. Damage: 10,000
 * seeded changes of a header neither crash nor give tensors that lie outside the file.
 */
#include "base/memory.h"
#include "base/random.h"
#include "tests/log_capture.h"
#include "worker/hf_weights.h"
#include "worker/safetensors.h"
#include "worker/safetensors_read.h"

#include <math.h>
#include <sys/stat.h>

static char folder[64];

static const char *in_folder(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void open_folder(void) {
    snprintf(folder, sizeof folder, "/tmp/test_safetensors_read_XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
}

static void close_folder(const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++)
        CHECK_INT(unlink(in_folder(names[i])), 0);
    CHECK_INT(rmdir(folder), 0);
}

static void write_raw(const char *name, const void *data, size_t bytes) {
    FILE *file = fopen(in_folder(name), "wb");
    CHECK(file != NULL);
    CHECK_INT(fwrite(data, 1, bytes, file), bytes);
    CHECK_INT(fclose(file), 0);
}

/* A file of a header and `data_bytes` of data. */
static void write_file(const char *name, const char *header, const void *data, size_t data_bytes) {
    uint64_t header_bytes = strlen(header);
    uint8_t *content = memory_zeroed(8 + header_bytes + data_bytes, 1);
    memcpy(content, &header_bytes, 8);
    // NOLINTNEXTLINE(bugprone-not-null-terminated-result): data follows
    memcpy(content + 8, header, header_bytes);
    if (data_bytes > 0 && data != NULL) memcpy(content + 8 + header_bytes, data, data_bytes);
    write_raw(name, content, 8 + header_bytes + data_bytes);
    free(content);
}

static float f32_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float decode_one(enum dtype dtype, uint32_t pattern) {
    uint16_t half = (uint16_t)pattern;
    float value;
    dtype_decode(dtype, (const uint8_t *)&half, 1, &value);
    return value;
}

static uint32_t encode_one(enum dtype dtype, float value, size_t overflows) {
    uint16_t half;
    CHECK_INT(dtype_encode(dtype, &value, 1, (uint8_t *)&half), overflows);
    return half;
}

/* The closed form of a binary format of 16 bits (IEEE 754-2019, 3.4). */
static double closed_form(uint32_t pattern, int fraction_bits, int bias) {
    int fraction = (int)(pattern & ((1u << fraction_bits) - 1));
    int exponent = (int)(pattern >> fraction_bits) & ((1 << (15 - fraction_bits)) - 1);
    double sign = pattern & 0x8000 ? -1 : 1;
    if (exponent == 0) return sign * ldexp(fraction, 1 - bias - fraction_bits);
    return sign * ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

static void check_all_patterns(enum dtype dtype, int fraction_bits, int bias) {
    uint32_t infinity = (0x7fffu >> fraction_bits) << fraction_bits;
    for (uint32_t pattern = 0; pattern < 65536; pattern++) {
        float value = decode_one(dtype, pattern);
        if ((pattern & 0x7fff) > infinity) {
            CHECK(isnan(value));
            CHECK((encode_one(dtype, value, 0) & 0x7fff) > infinity);
            continue;
        }
        if ((pattern & 0x7fff) == infinity) {
            CHECK(isinf(value) && !signbit(value) == (pattern < 0x8000));
        } else {
            CHECK((double)value == closed_form(pattern, fraction_bits, bias));
            CHECK(!signbit(value) == (pattern < 0x8000));
        }
        CHECK_INT(encode_one(dtype, value, 0), pattern);
    }
}

/* Between each finite pattern and the next, infinity being what would come after the largest. */
static void check_rounding(enum dtype dtype, int fraction_bits, int bias) {
    uint32_t infinity = (0x7fffu >> fraction_bits) << fraction_bits;
    for (uint32_t low = 0; low < infinity; low++) {
        double below = closed_form(low, fraction_bits, bias);
        double above = closed_form(low + 1, fraction_bits, bias);
        float middle = (float)((below + above) / 2);
        CHECK((double)middle == (below + above) / 2);
        uint32_t even = low % 2 == 0 ? low : low + 1;
        bool last = low + 1 == infinity;
        CHECK_INT(encode_one(dtype, middle, last && even == infinity), even);
        CHECK_INT(encode_one(dtype, -middle, last && even == infinity), even | 0x8000);
        CHECK_INT(encode_one(dtype, nextafterf(middle, 0), 0), low);
        CHECK_INT(encode_one(dtype, nextafterf(middle, INFINITY), last), low + 1);
    }
}

static void test_numbers(void) {
    check_all_patterns(DTYPE_F16, 10, 15);
    check_all_patterns(DTYPE_BF16, 7, 127);
    check_rounding(DTYPE_F16, 10, 15);
    check_rounding(DTYPE_BF16, 7, 127);
    CHECK(isinf(f32_of(encode_one(DTYPE_BF16, 3.4028235e38F, 1) << 16)));
    CHECK_INT(encode_one(DTYPE_F16, 65519.996F, 0), 0x7bff);
    CHECK_INT(encode_one(DTYPE_F16, 65520, 1), 0x7c00);
    CHECK_INT(encode_one(DTYPE_F16, INFINITY, 0), 0x7c00);
    enum dtype dtype;
    CHECK(dtype_find("F8_E5M2FNUZ", &dtype) && dtype == DTYPE_F8_E5M2FNUZ);
    CHECK(!dtype_find("F128", &dtype));
    CHECK_INT(dtype_bits(DTYPE_F6_E2M3), 6);
}

/* What the writer writes, the reader reads: more than one piece of it, too. */
static void test_round_trip(void) {
    static const char *const names[] = {"model.safetensors"};
    struct tensor tensors[3] = {{.name = "c", .dims = 3, .shape = {3, 5, 7}},
                                {.name = "a", .dims = 1, .shape = {1}},
                                {.name = "b", .dims = 2, .shape = {1750, 100}}};
    struct plan plan;
    struct safetensors model;
    open_folder();
    CHECK(plan_build(&plan, tensors, 3,
                     &(struct plan_options){.shards = 1, .block_values = 100000}) == STATUS_OK);
    float *weights = memory_zeroed((size_t)plan.value_count, sizeof *weights);
    float *values = memory_zeroed((size_t)plan.value_count, sizeof *values);
    for (uint64_t i = 0; i < plan.value_count; i++)
        weights[i] = (float)i * 0.37F;
    CHECK(safetensors_write(folder, &plan, weights) == STATUS_OK);
    for (int as_file = 0; as_file < 2; as_file++) {
        CHECK(safetensors_open(&model, as_file ? in_folder(names[0]) : folder) == STATUS_OK);
        CHECK_INT(model.count, 3);
        for (int i = 0; i < 3; i++) {
            const struct safetensors_tensor *tensor = safetensors_find(&model, tensors[i].name);
            CHECK(tensor != NULL);
            CHECK_INT(tensor->dtype, DTYPE_F32);
            CHECK_INT(tensor->dims, tensors[i].dims);
            CHECK(memcmp(tensor->shape, tensors[i].shape, sizeof tensor->shape) == 0);
            CHECK(safetensors_read(&model, tensor, 0, tensor->count, values) == STATUS_OK);
            CHECK(memcmp(values, weights + plan.offsets[i], tensor->count * 4) == 0);
            CHECK(safetensors_read(&model, tensor, tensor->count - 1, 1, values) == STATUS_OK);
            CHECK(values[0] == weights[plan.offsets[i] + tensor->count - 1]);
        }
        CHECK(safetensors_find(&model, "d") == NULL);
        safetensors_close(&model);
    }
    free(values);
    free(weights);
    plan_free(&plan);
    close_folder(names, 1);
}

static const char *const sharded_names[] = {"model.safetensors.index.json", "m-1.safetensors",
                                            "m-2.safetensors", "m-3.safetensors"};

/* Three files, three number types, tensors without dimension and without values. */
static void write_sharded(const char *index) {
    static const float f32[3] = {1.5F, -2, 0.1F};
    static const uint16_t bf16[2] = {0x3f80, 0xc040};
    static const uint16_t f16[2] = {0x3c00, 0x3555};
    write_file(sharded_names[1],
               "{\"w\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
               "\"e\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[12,12]}}  ",
               f32, sizeof f32);
    write_file(sharded_names[2],
               "{\"__metadata__\":{\"format\":\"pt\"},"
               "\"b\":{\"data_offsets\":[0,4],\"dtype\":\"BF16\",\"shape\":[1,2]}}",
               bf16, sizeof bf16);
    write_file(sharded_names[3],
               "{\"s\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[2,4]},"
               "\"h\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]}}",
               f16, sizeof f16);
    write_raw(sharded_names[0], index, strlen(index));
}

static float read_one(const struct safetensors *model, const char *name, uint64_t index) {
    const struct safetensors_tensor *tensor = safetensors_find(model, name);
    float value;
    CHECK(tensor != NULL);
    CHECK(safetensors_read(model, tensor, index, 1, &value) == STATUS_OK);
    return value;
}

#define MAP_REST "\"b\":\"m-2.safetensors\",\"s\":\"m-3.safetensors\",\"h\":\"m-3.safetensors\"}}"
#define INDEX                                                                                      \
    "{\"metadata\":{\"total_size\":20},\"weight_map\":{\"w\":\"m-1.safetensors\","                 \
    "\"e\":\"m-1.safetensors\"," MAP_REST

static void test_sharded(void) {
    struct safetensors model;
    open_folder();
    write_sharded(INDEX);
    for (int as_file = 0; as_file < 2; as_file++) {
        const char *path = as_file ? in_folder(sharded_names[0]) : folder;
        CHECK(safetensors_open(&model, path) == STATUS_OK);
        CHECK_INT(model.count, 5);
        CHECK_INT(model.file_count, 3);
        CHECK(read_one(&model, "w", 2) == 0.1F);
        CHECK(read_one(&model, "b", 1) == -3);
        CHECK(read_one(&model, "h", 0) == 1);
        CHECK(read_one(&model, "s", 0) == (float)0x1.554p-2);
        CHECK_INT(safetensors_find(&model, "s")->dims, 0);
        CHECK_INT(safetensors_find(&model, "e")->count, 0);
        CHECK(safetensors_read(&model, safetensors_find(&model, "e"), 0, 0, NULL) == STATUS_OK);
        safetensors_close(&model);
    }
    close_folder(sharded_names, 4);
}

static void check_refused(const char *path, enum status expected, const char *line) {
    struct safetensors model;
    log_restart();
    CHECK_INT(safetensors_open(&model, path), expected);
    EXPECT_LOG(line, 1);
    EXPECT_LOG("\n", 1);
}

static void test_index_rules(void) {
    static const struct {
        const char *index;
        enum status status;
        const char *line;
    } cases[] = {
        {"{", STATUS_CORRUPT, "index.json: no key, at byte 1"},
        {"[]", STATUS_CORRUPT, "has no weight_map"},
        {"{\"weight_map\":[]}", STATUS_CORRUPT, "has no weight_map"},
        {"{\"weight_map\":{\"w\":1," MAP_REST, STATUS_CORRUPT,
         "tensor w: its file is not named by"},
        {"{\"weight_map\":{\"w\":\"../x.safetensors\"," MAP_REST, STATUS_CORRUPT, "not named by"},
        {"{\"weight_map\":{\"w\":\"/etc/passwd\"," MAP_REST, STATUS_CORRUPT, "not named by"},
        {"{\"weight_map\":{\"w\":\"..\"," MAP_REST, STATUS_CORRUPT, "not named by"},
        {"{\"weight_map\":{\"w\":\"\"," MAP_REST, STATUS_CORRUPT, "not named by"},
        {"{\"weight_map\":{\"w\":\"m-4.safetensors\"," MAP_REST, STATUS_IO, "m-4.safetensors"},
        {"{\"weight_map\":{\"w\":\"m-2.safetensors\",\"e\":\"m-1.safetensors\"," MAP_REST,
         STATUS_CORRUPT, "tensor w is not in m-2.safetensors"},
        {"{\"weight_map\":{\"w\":\"m-1.safetensors\"," MAP_REST, STATUS_CORRUPT,
         "it lists 4 tensors, its files have 5"},
        {"{\"weight_map\":{\"w\":\"m-1.safetensors\",\"e\":\"m-1.safetensors\","
         "\"x\":\"m-1.safetensors\"," MAP_REST,
         STATUS_CORRUPT, "tensor x is not in m-1.safetensors"},
        {"{\"weight_map\":{\"w\":\"m-1.safetensors\",\"w\":\"m-1.safetensors\"," MAP_REST,
         STATUS_CORRUPT, "the key \"w\" twice"},
    };
    open_folder();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_sharded(cases[i].index);
        check_refused(folder, cases[i].status, cases[i].line);
    }
    write_sharded(INDEX);
    write_file(sharded_names[3],
               "{\"s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]},"
               "\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
               "ab", 2);
    check_refused(folder, STATUS_CORRUPT, "tensor w is in ");
    CHECK_INT(unlink(in_folder(sharded_names[3])), 0);
    CHECK_INT(symlink(sharded_names[2], in_folder(sharded_names[3])), 0);
    check_refused(folder, STATUS_IO, "m-3.safetensors is a symbolic link");
    CHECK_INT(unlink(in_folder(sharded_names[3])), 0);
    CHECK_INT(mkfifo(in_folder(sharded_names[3]), 0600), 0);
    check_refused(folder, STATUS_IO, "m-3.safetensors is not a regular file");
    close_folder(sharded_names, 4);
}

#define A       "{\"a\":{\"dtype\":"
#define A_F32_2 A "\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"

static void test_file_rules(void) {
    static const char *const names[] = {"model.safetensors"};
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *line;
    } cases[] = {
        {" " A_F32_2 "}", 8, "its header does not begin with {"},
        {"", 8, "its header does not begin with {"},
        {A_F32_2 "}\n", 8, "padded with something else than spaces"},
        {A_F32_2 "} x", 8, "its header: something behind the JSON value"},
        {A_F32_2 ",\"\xff\":1}", 8, "its header: not UTF-8"},
        {A_F32_2 ",\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}", 16,
         "the key \"a\" twice"},
        {A "\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
         "the key \"dtype\" twice"},
        {"{\"__metadata__\":{\"n\":1}}", 0, "__metadata__ is no object of texts"},
        {"{\"__metadata__\":\"pt\"}", 0, "__metadata__ is no object of texts"},
        {"{\"a\":1}", 0, "tensor a: is not described by"},
        {A "\"F32\",\"shape\":[2]}}", 8, "tensor a: is not described by"},
        {A "\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8, "is not described by"},
        {A "\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8, "is not described by"},
        {A "\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", 8, "is not described by"},
        {A "7,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "is not described by"},
        {A "\"F33\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "tensor a: its dtype is unknown"},
        {A "\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", 8,
         "more than 8 dimensions"},
        {A "\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, "a dimension is no whole number"},
        {A "\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8, "a dimension is no whole"},
        {A "\"F32\",\"shape\":[4294967296,4294967298],\"data_offsets\":[0,8]}}", 8,
         "product is beyond 64 bits"},
        {A "\"F32\",\"shape\":[576460752303423490],\"data_offsets\":[0,8]}}", 8,
         "its size is beyond 64 bits"},
        {A "\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1, "no whole number of bytes"},
        {A "\"F32\",\"shape\":[2],\"data_offsets\":[0,7]}}", 7, "do not fit its dtype and shape"},
        {A "\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "its data_offsets are not two"},
        {A "\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, "its data_offsets are not two"},
        {A "\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12, "tensor a: a hole before"},
        {A_F32_2 ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12,
         "tensor b: its data overlaps"},
        {A_F32_2 ",\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[12,16]}}", 16,
         "tensor b: a hole before"},
        {A_F32_2 "}", 7, "tensor a: its data is not all in the file"},
        {A_F32_2 "}", 9, "1 bytes behind the last tensor's data"},
        {"{}", 1, "1 bytes behind the last tensor's data"},
        {"{\"\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, "1 to 512 bytes"},
    };
    open_folder();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_file(names[0], cases[i].header, NULL, cases[i].data_bytes);
        check_refused(folder, STATUS_CORRUPT, cases[i].line);
        check_refused(in_folder(names[0]), STATUS_CORRUPT, cases[i].line);
    }
    close_folder(names, 1);
}

/* Header lengths that no header of that file can have, and files that are none. */
static void test_length_rules(void) {
    static const char *const names[] = {"model.safetensors"};
    static const uint64_t lengths[] = {3,          (uint64_t)16 << 20, ((uint64_t)16 << 20) + 1,
                                       UINT64_MAX, UINT64_MAX - 7,     (uint64_t)1 << 63};
    struct safetensors model;
    open_folder();
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        uint8_t content[10] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
        memcpy(content, &lengths[i], 8);
        write_raw(names[0], content, sizeof content);
        check_refused(folder, STATUS_CORRUPT, "is longer than 16 MiB or than the file");
    }
    write_raw(names[0], "1234567", 7);
    check_refused(folder, STATUS_CORRUPT, "7 bytes are no safetensors file");
    write_file(names[0], "{}", NULL, 0);
    CHECK(safetensors_open(&model, folder) == STATUS_OK);
    CHECK_INT(model.count, 0);
    CHECK(safetensors_find(&model, "a") == NULL);
    safetensors_close(&model);
    CHECK_INT(unlink(in_folder(names[0])), 0);
    check_refused(folder, STATUS_IO, "has neither model.safetensors nor");
    check_refused(in_folder(names[0]), STATUS_IO, "cannot open");
    check_refused(in_folder("model.safetensors.index.json"), STATUS_IO, "cannot open");
    close_folder(names, 0);
}

/* Not weights, and a file that is cut while it is open. */
static void test_read_rules(void) {
    static const char *const names[] = {"model.safetensors"};
    struct safetensors model;
    float values[2];
    open_folder();
    write_file(names[0], A "\"I32\",\"shape\":[2],\"data_offsets\":[0,8]}}", NULL, 8);
    CHECK(safetensors_open(&model, folder) == STATUS_OK);
    log_restart();
    CHECK_INT(safetensors_read(&model, &model.tensors[0], 0, 2, values), STATUS_UNSUPPORTED);
    EXPECT_LOG("tensor a: weights are F32, BF16 or F16, not I32", 1);
    safetensors_close(&model);
    write_file(names[0], A_F32_2 "}", NULL, 8);
    CHECK(safetensors_open(&model, folder) == STATUS_OK);
    CHECK_INT(truncate(in_folder(names[0]), 20), 0);
    CHECK_INT(safetensors_read(&model, &model.tensors[0], 0, 2, values), STATUS_IO);
    EXPECT_LOG("has become shorter while it was read", 1);
    safetensors_close(&model);
    close_folder(names, 1);
}

/* A plan of two tensors, and files that name them in each way. */
static enum status load(const char *header, const float *data, size_t data_bytes,
                        float weights[6]) {
    struct tensor tensors[2] = {{.name = "transformer.wte.weight", .dims = 2, .shape = {2, 2}},
                                {.name = "transformer.ln_f.bias", .dims = 1, .shape = {2}}};
    struct plan plan;
    CHECK(plan_build(&plan, tensors, 2, &(struct plan_options){.shards = 1, .block_values = 100}) ==
          STATUS_OK);
    write_file("model.safetensors", header, data, data_bytes);
    log_restart();
    enum status status = hf_weights_load(folder, &plan, weights);
    plan_free(&plan);
    return status;
}

#define WTE(name)  "{\"" name "\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}"
#define BIAS(name) ",\"" name "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[16,24]}"
#define F32        "\"dtype\":\"F32\",\"shape\":"
#define HEAD       ",\"lm_head.weight\":{" F32 "[2,2],\"data_offsets\":[24,40]}"

static void test_names(void) {
    static const char *const names[] = {"model.safetensors"};
    static const float data[10] = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4}, untied[10] = {1, 2, 3, 4, 5, 6};
    static const char *const good[] = {
        WTE("transformer.wte.weight") BIAS("transformer.ln_f.bias") HEAD "}",
        WTE("wte.weight") BIAS("ln_f.bias") HEAD "}",
        WTE("wte.weight")
            BIAS("transformer.ln_f.bias") ",\"h.0.attn.bias\":{\"dtype\":\"U8\",\"shape\":[12],"
                                          "\"data_offsets\":[24,36]},"
                                          "\"h.0.attn.masked_bias\":{\"dtype\":\"F32\",\"shape\":[]"
                                          ",\"data_offsets\":[36,40]}}",
    };
    float weights[6];
    open_folder();
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        memset(weights, 0, sizeof weights);
        CHECK_INT(load(good[i], data, sizeof data, weights), STATUS_OK);
        CHECK(memcmp(weights, data, sizeof weights) == 0);
        EXPECT_LOG("first weights: 6 values from ", 1);
    }
    CHECK_INT(load(good[0], untied, sizeof untied, weights), STATUS_UNSUPPORTED);
    EXPECT_LOG("lm_head.weight is not a copy of transformer.wte.weight", 1);
    CHECK_INT(load(WTE("wte.weight") BIAS("x") HEAD "}", data, sizeof data, weights),
              STATUS_CORRUPT);
    EXPECT_LOG("1 tensors of the model are missing: transformer.ln_f.bias\n", 1);
    EXPECT_LOG("1 tensors are none of the model's: x\n", 1);
    EXPECT_LOG("\n", 2);
    CHECK_INT(load("{\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}" BIAS(
                       "ln_f.bias") "}",
                   data, 24, weights),
              STATUS_CORRUPT);
    EXPECT_LOG("tensor wte.weight: its shape is [4], the model's is [2, 2]", 1);
    close_folder(names, 1);
}

static void change(struct random_stream *stream, char *text, size_t *bytes) {
    static const char signs[] = "{}[],:\"0123456789 aF\\\xff";
    size_t at = (size_t)random_below(stream, *bytes);
    switch (random_below(stream, 4)) {
    case 0:
        text[at] = signs[random_below(stream, sizeof signs - 1)];
        break;
    case 1:
        memmove(text + at + 1, text + at, *bytes - at);
        text[at] = signs[random_below(stream, sizeof signs - 1)];
        *bytes += 1;
        break;
    case 2:
        memmove(text + at, text + at + 1, *bytes - at - 1);
        *bytes -= 1;
        break;
    default:
        text[at] = (char)(text[at] ^ (1 << random_below(stream, 8)));
    }
}

static void test_damage(void) {
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"w\":{\"dtype\":\"BF16\",\"shape\":[3,10],\"data_offsets\":[0,60]},"
        "\"e\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[60,60]},"
        "\"h\":{\"dtype\":\"F4\",\"shape\":[2,2],\"data_offsets\":[60,62]}}    ";
    struct random_stream stream;
    int good = 0;
    random_open(&stream, 11, RANDOM_SIMULATOR, 0);
    for (int round = 0; round < 10000; round++) {
        char text[sizeof header + 8];
        size_t bytes = sizeof header - 1;
        memcpy(text, header, bytes);
        for (uint64_t i = random_below(&stream, 4); i > 0; i--)
            change(&stream, text, &bytes);
        char *exact = malloc(bytes);
        CHECK(exact != NULL);
        memcpy(exact, text, bytes);
        struct safetensors_tensor *tensors = NULL;
        uint64_t count = 0, end = 8 + bytes, file_bytes = end + 62 - random_below(&stream, 50) / 49;
        log_restart();
        enum status status =
            safetensors_parse_header("damaged", exact, bytes, file_bytes, &tensors, &count);
        EXPECT_LOG("\n", status == STATUS_OK ? 0 : 1);
        CHECK(status == STATUS_OK || status == STATUS_CORRUPT);
        for (uint64_t i = 0; status == STATUS_OK && i < count; i++) {
            CHECK_INT(tensors[i].begin, end);
            end = tensors[i].end;
        }
        if (status == STATUS_OK) CHECK_INT(end, file_bytes);
        good += status == STATUS_OK;
        free(tensors);
        free(exact);
    }
    CHECK(good > 2000 && good < 8000);
}

int main(void) {
    log_capture();
    TEST_RUN(test_numbers);
    TEST_RUN(test_round_trip);
    TEST_RUN(test_sharded);
    TEST_RUN(test_index_rules);
    TEST_RUN(test_file_rules);
    TEST_RUN(test_length_rules);
    TEST_RUN(test_read_rules);
    TEST_RUN(test_names);
    TEST_RUN(test_damage);
    return 0;
}
