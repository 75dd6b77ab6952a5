/* Proves what a shard does with the payloads of codecs: one whose frame is whole but whose bytes no
 * encoder wrote counts as a push that is not finite, in a round (which is skipped) and by itself
 * (that block alone), the worker is answered, and training goes on; what an encoder packed is added
 * as decoder_add() says; and with --push signsgd a round's step is that of the majority's signs.
 *
 * One struct shard is driven through a channel made by hand (shard_rig.h). Weights are compared bit
 * for bit with a plain twin.
 */
#include "base/log.h"
#include "base/memory.h"
#include "compression/decoder.h"
#include "compression/push_codec.h"
#include "tests/shard_rig.h"
#include "tests/test.h"

#include <math.h>

static const float ones[RIG_VALUES] = {1, 1, 1, 1};

/* Payloads that no encoder makes of a block of 4 values. */
static const struct bad {
    const char *what;
    uint8_t codec;
    size_t bytes;
    uint8_t payload[20];
} bads[] = {
    {"too short", CODEC_F32, 12, {0}},
    {"too long", CODEC_F32, 20, {0}},
    {"none", CODEC_F32, 0, {0}},
    {"another codec's length", CODEC_BF16, 16, {0}},
    {"an unknown codec", 200, 16, {0}},
    {"a place that is not in the block", CODEC_TOPK, 8, {1, 0, 0, 0, 9, 0, 0, 0}},
    {"a packed payload that is none", CODEC_ZSTD, 20, {0, 1, 0, 0, 16}},
};
enum { BADS = sizeof bads / sizeof bads[0] };

static void push_bytes(struct rig *rig, uint32_t rank, uint64_t block, uint64_t seq, uint8_t codec,
                       const void *payload, size_t bytes) {
    struct frame frame = rig_frame(rig, FRAME_PUSH, rank, block);
    frame.seq = seq;
    frame.ticket = (uint32_t)seq + 1;
    frame.block_version = rig_block(rig, block)->version;
    frame.codec = codec;
    frame.scalar = 1;
    fake_channel_receive(&rig->fake, &frame, payload, bytes);
}

static void expect_all(struct rig *rig, uint64_t seq) {
    for (uint64_t i = 0; i < RIG_BLOCKS; i++) {
        (void)rig_expect(rig, 0, rig_need[i], (uint32_t)seq + 1, seq, seq);
    }
    CHECK(rig_next(rig) == NULL);
    fake_channel_finish_all(&rig->fake);
}

/* A worker's push of ones, but for block 2. */
static void push_but_one(struct rig *rig, uint64_t seq) {
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        if (block != 2) {
            rig_push(rig, 0, block, seq, rig_block(rig, block)->version, ones);
        }
    }
}

static void test_malformed_in_a_round(void) {
    static struct rig rig;
    struct twin twin;
    rig_prepare(&rig, "sync", 1);
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    for (uint64_t i = 0; i < BADS; i++) {
        uint64_t seq = 2 * i + 1;
        push_but_one(&rig, seq);
        push_bytes(&rig, 0, 2, seq, bads[i].codec, bads[i].payload, bads[i].bytes);
        rig_poll(&rig);
        CHECK(rig_note(&rig, SHARD_REPORT).report.nonfinite);
        CHECK_INT(rig.shard.counters.corrupt, i + 1);
        rig_verdict(&rig, seq, true, 1);
        rig_poll(&rig);
        for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
            twin_skip(&twin, block);
        }
        twin_compare(&twin, &rig);
        expect_all(&rig, seq);

        push_but_one(&rig, seq + 1);
        rig_push(&rig, 0, 2, seq + 1, seq, ones);
        rig_poll(&rig);
        CHECK(!rig_note(&rig, SHARD_REPORT).report.nonfinite);
        rig_verdict(&rig, seq + 1, false, 1);
        rig_poll(&rig);
        for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
            twin_step(&twin, &rig, block, ones, 1);
        }
        twin_compare(&twin, &rig);
        expect_all(&rig, seq + 1);
    }
    CHECK_INT(fake_channel_taken(&rig.fake), 0);
    rig_close(&rig);
}

static void test_malformed_by_itself(void) {
    static struct rig rig;
    struct twin twin;
    rig_prepare(&rig, "async", 1);
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    for (uint64_t i = 0; i < BADS; i++) {
        push_but_one(&rig, i + 1);
        push_bytes(&rig, 0, 2, i + 1, bads[i].codec, bads[i].payload, bads[i].bytes);
        rig_commit(&rig, 0, i + 1, 15);
        rig_poll(&rig);
        for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
            if (block == 2) {
                twin_skip(&twin, block);
            } else {
                twin_step(&twin, &rig, block, ones, 1);
            }
        }
        twin_compare(&twin, &rig);
        expect_all(&rig, i + 1);
        CHECK_INT(rig.shard.counters.corrupt, i + 1);
        CHECK_INT(rig.shard.counters.skipped, i + 1);
    }
    CHECK_INT(fake_channel_taken(&rig.fake), 0);
    rig_close(&rig);
}

/* Three workers' pushes of each codec, as their encoders make them; the oracle adds what
 * decoder_set() makes of each. */
static void check_codec(const char *text, struct random_stream *random) {
    static struct rig rig;
    struct twin twin;
    struct push_codec *codecs[3];
    float sums[RIG_BLOCKS][RIG_VALUES] = {{0}};
    rig_prepare(&rig, "sync", 3);
    (void)snprintf(rig.job.push, sizeof rig.job.push, "%s", text);
    (void)snprintf(rig.job.push_policy, sizeof rig.job.push_policy, "all");
    rig.job.dense_warmup = 0;
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    for (uint32_t rank = 0; rank < 3; rank++) {
        CHECK_INT(push_codec_open(&rig.job, &rig.plan, rank, PUSH_CODEC_ALL, &codecs[rank]),
                  STATUS_OK);
        for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
            float grad[RIG_VALUES], decoded[RIG_VALUES];
            uint8_t wire[512];
            struct encoder_result result;
            uint32_t count = rig_count(&rig, block);
            void *room = memory_zeroed(decoder_scratch_bytes(count), 1);
            rig_gradient(random, grad);
            CHECK(push_codec_bound(codecs[rank], block) <= sizeof wire);
            push_codec_encode(codecs[rank], block, 1, grad, wire, &result);
            CHECK_INT(decoder_set(result.codec, wire, result.bytes, decoded, count, room),
                      STATUS_OK);
            for (uint32_t i = 0; i < count; i++) {
                sums[block][i] += decoded[i];
            }
            push_bytes(&rig, rank, block, 1, result.codec, wire, result.bytes);
            free(room);
        }
        push_codec_close(codecs[rank]);
    }
    rig_poll(&rig);
    CHECK(!rig_note(&rig, SHARD_REPORT).report.nonfinite);
    rig_verdict(&rig, 1, false, 1);
    rig_poll(&rig);
    bool votes = strncmp(text, "signsgd", 7) == 0;
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        for (int i = 0; i < RIG_VALUES && votes; i++) {
            sums[block][i] = sums[block][i] > 0 ? 3.0F : sums[block][i] < 0 ? -3.0F : 0;
        }
        twin_step(&twin, &rig, block, sums[block], 1.0F / 3.0F);
    }
    twin_compare(&twin, &rig);
    CHECK_INT(rig.shard.counters.corrupt, 0);
    CHECK_INT(fake_channel_taken(&rig.fake), 0);
    rig_close(&rig);
}

static void test_codecs(void) {
    static const char *const texts[] = {"none",      "bf16",        "fp16",         "int8",
                                        "fp8",       "int4:sr,had", "onebit",       "topk:0.5",
                                        "randk:0.5", "powersgd:1",  "qsgd",         "terngrad",
                                        "natural",   "signsgd",     "signsgd+zstd", "int8,ef+zstd"};
    struct random_stream random;
    random_open(&random, 3, RANDOM_SIMULATOR, 0);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        check_codec(texts[i], &random);
    }
}

int main(void) {
    log_set_level(LOG_ERROR); /* what is dropped is warned of */
    TEST_RUN(test_malformed_in_a_round);
    TEST_RUN(test_malformed_by_itself);
    TEST_RUN(test_codecs);
    return 0;
}
