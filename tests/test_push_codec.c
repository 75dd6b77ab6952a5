/* Proves which codec each block of a plan is pushed with (--push-policy all, auto, a file), that a
 * file that makes no sense is refused with its line, that each block's payload is within its bound
 * and decodes, that schedules and fragments count the pushes of a block, and that memory is
 * what is said.
 */
#include "base/memory.h"
#include "compression/decoder.h"
#include "compression/push_codec.h"
#include "compression/scheme.h"
#include "tests/codec_rig.h"
#include "tests/log_capture.h"
#include "tests/plan_list.h"

struct rig {
    struct job job;
    struct options options;
    struct plan plan;
    struct push_codec *codec;
};

/* A transformer of 2 layers: embeddings of 256 and 128 rows, matrices of 64 x 192 and 64 x 256,
 * vectors, a matrix of 16 x 16; its first embedding does not move. */
static void prepare(struct rig *rig, const char *push, const char *policy) {
    static struct list list;
    list.count = 0;
    list_add_transformer(&list, 2, 64, 256);
    list_add(&list, "small.weight", 16, 16, true);
    options_init(&rig->options, job_table, job_table_count, &rig->job);
    (void)snprintf(rig->job.push, sizeof rig->job.push, "%s", push);
    (void)snprintf(rig->job.push_policy, sizeof rig->job.push_policy, "%s", policy);
    rig->job.dense_warmup = 0;
    rig->job.density_schedule = 0;
    struct plan_options options = job_plan_options(&rig->job, 1);
    options.rates = "wpe.weight=0";
    CHECK_INT(plan_build(&rig->plan, list.tensors, list.count, &options), STATUS_OK);
    rig->codec = NULL;
}

static void close_rig(struct rig *rig) {
    push_codec_close(rig->codec);
    plan_free(&rig->plan);
}

static const char *name_of(const struct rig *rig, uint64_t block) {
    return rig->plan.tensors[rig->plan.pack_order[rig->plan.blocks[block].first_tensor]].name;
}

/* Encodes ones as push `seq` of the block; checks the bound and that it decodes -> codec. */
static uint8_t push(const struct rig *rig, uint64_t block, uint64_t seq) {
    size_t count = (size_t)rig->plan.blocks[block].count;
    size_t bound = push_codec_bound(rig->codec, block);
    float *values = codec_rig_values(block, 1, count);
    uint8_t *wire = memory_zeroed(bound + 1, 1);
    void *scratch = memory_zeroed(decoder_scratch_bytes(count), 1);
    struct encoder_result result;
    push_codec_encode(rig->codec, block, seq, values, wire, &result);
    CHECK(result.bytes <= bound && bound <= decoder_payload_max(count));
    CHECK_INT(decoder_set(result.codec, wire, result.bytes, values, count, scratch), STATUS_OK);
    free(scratch);
    free(wire);
    free(values);
    return result.codec;
}

/* Every block but frozen ones with the codec that `expected` says for its first tensor. */
static void check_policy(const char *text, const char *policy,
                         enum codec_id (*expected)(const char *tensor)) {
    static struct rig rig;
    prepare(&rig, text, policy);
    CHECK_INT(push_codec_open(&rig.job, &rig.plan, 0, PUSH_CODEC_ALL, &rig.codec), STATUS_OK);
    uint64_t frozen = 0;
    for (uint64_t block = 0; block < rig.plan.block_count; block++) {
        if (rig.plan.blocks[block].fragment == PLAN_FROZEN) {
            CHECK_INT(push_codec_bound(rig.codec, block), 0);
            CHECK_INT(push_codec_usual_bytes(rig.codec, block), 0);
            frozen++;
            continue;
        }
        CHECK_INT(push(&rig, block, 1), expected(name_of(&rig, block)));
    }
    CHECK_INT(frozen, 1);
    close_rig(&rig);
}

static enum codec_id all_int4(const char *tensor) {
    (void)tensor;
    return CODEC_INT4;
}

static enum codec_id auto_int4(const char *tensor) {
    bool matrix = strstr(tensor, "ln_") == NULL && strstr(tensor, "bias") == NULL;
    return matrix && strcmp(tensor, "small.weight") != 0 ? CODEC_INT4 : CODEC_BF16;
}

static enum codec_id all_int8(const char *tensor) {
    (void)tensor;
    return CODEC_INT8;
}

static void test_words(void) {
    check_policy("int4:sr", "all", all_int4);
    check_policy("int4:sr", "auto", auto_int4);
    check_policy("int8", "auto", all_int8); /* not coarse: every block */
}

static void write_file(char *path, const char *content) {
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    CHECK(write(fd, content, strlen(content)) == (ssize_t)strlen(content));
    CHECK(close(fd) == 0);
}

static enum codec_id by_file(const char *tensor) {
    if (strcmp(tensor, "h.0.mlp.c_fc.weight") == 0) return CODEC_F32; /* the first that fits */
    if (strstr(tensor, ".mlp.") != NULL) return CODEC_TOPK;
    if (strcmp(tensor, "wte.weight") == 0) return CODEC_FP8;
    return CODEC_ONEBIT;
}

static void test_file(void) {
    char path[] = "/tmp/rubato-policy-XXXXXX";
    write_file(path, "# by name\n\nh.0.mlp.c_fc.weight none\r\n  *.mlp.*\ttopk:0.5 # sparse\n"
                     "wte.* fp8\nwpe.* int8");
    check_policy("onebit", path, by_file);
    CHECK(unlink(path) == 0);
}

static void check_refused(const char *content, const char *says) {
    static struct rig rig;
    char path[] = "/tmp/rubato-policy-XXXXXX";
    write_file(path, content);
    prepare(&rig, "int8", path);
    log_restart();
    CHECK_INT(push_codec_open(&rig.job, &rig.plan, 0, PUSH_CODEC_ALL, &rig.codec), STATUS_INVALID);
    EXPECT_LOG(says, 1);
    EXPECT_LOG("--push-policy", 1);
    CHECK(rig.codec == NULL);
    CHECK(unlink(path) == 0);
    close_rig(&rig);
}

static void test_wrong_files(void) {
    char many[4096] = "";
    size_t used = 0;
    check_refused("* int8\n* int9\n", "line 2");
    check_refused("* int8 bf16\n", "line 1");
    check_refused("\n#\nalone\n", "line 3");
    check_refused("* topk:2\n", "topk");
    for (int i = 1; i < 64; i++)
        used += (size_t)snprintf(many + used, sizeof many - used, "* topk:0.%02d\n", i);
    check_refused(many, "at most 32");
}

/* Dense pushes are counted for each block: those of a fragment come every second report. */
static void test_schedule(void) {
    static struct rig rig;
    prepare(&rig, "topk:0.01", "all");
    plan_free(&rig.plan);
    static struct list list;
    list_add_transformer(&list, 2, 64, 256);
    rig.job.fragments = 2;
    rig.job.dense_warmup = 3;
    (void)snprintf(rig.job.mode, sizeof rig.job.mode, "diloco:4");
    struct plan_options options = job_plan_options(&rig.job, 1);
    CHECK_INT(plan_build(&rig.plan, list.tensors, list.count, &options), STATUS_OK);
    CHECK_INT(push_codec_open(&rig.job, &rig.plan, 0, PUSH_CODEC_ALL, &rig.codec), STATUS_OK);
    for (uint64_t seq = 1; seq <= 10; seq++)
        CHECK_INT(push(&rig, 0, seq), (seq - 1) / 2 < 3 ? CODEC_BF16 : CODEC_TOPK);
    CHECK(push_codec_usual_bytes(rig.codec, 0) < push_codec_bound(rig.codec, 0));
    close_rig(&rig);
}

/* f32 residuals take 4 bytes a value that moves, int8 ones a quarter. */
static void test_memory(void) {
    static struct rig rig;
    size_t bytes[3];
    static const char *const types[] = {"f32", "int8", "f32"};
    uint64_t moving = 0;
    for (int i = 0; i < 3; i++) {
        prepare(&rig, i < 2 ? "int4,ef" : "int4", "all");
        (void)snprintf(rig.job.residual, sizeof rig.job.residual, "%s", types[i]);
        CHECK_INT(push_codec_open(&rig.job, &rig.plan, 0, PUSH_CODEC_ALL, &rig.codec), STATUS_OK);
        bytes[i] = push_codec_memory(rig.codec);
        moving = 0;
        for (uint64_t block = 0; block < rig.plan.block_count; block++)
            moving +=
                rig.plan.blocks[block].fragment == PLAN_FROZEN ? 0 : rig.plan.blocks[block].count;
        close_rig(&rig);
    }
    CHECK_NEAR(bytes[0] - bytes[2], 4.0 * (double)moving, 0.01 * (double)moving + 8192);
    CHECK_NEAR(bytes[1] - bytes[2], 130.0 / 128 * (double)moving, 0.01 * (double)moving + 8192);
}

int main(void) {
    log_capture();
    TEST_RUN(test_words);
    TEST_RUN(test_file);
    TEST_RUN(test_wrong_files);
    TEST_RUN(test_schedule);
    TEST_RUN(test_memory);
    return 0;
}
