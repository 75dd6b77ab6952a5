/* Proves what a shard does with --optimizer worker:NAME: pulls are answered with the first weights
 * in f32; the answer to a push is a FRAME_MEAN with the clipped mean of the round's pushes in rank
 * order, bit for bit, by --push's codec and with the shard's own error feedback (the bytes of a
 * twin encoder; what was sent plus what the twin holds back is the sum of the means); a repeated
 * push gets the same bytes and counts once; a round that is left out has an answer without a
 * payload; first moments are not clipped again; the mean outlives a worker that has gone and a full
 * channel; and workers whose weights have different check-sums make the report one that the
 * coordinator refuses.
 *
 * One struct shard is driven through a channel made by hand (shard_rig.h).
 */
#include "base/log.h"
#include "base/memory.h"
#include "compression/decoder.h"
#include "compression/push_codec.h"
#include "tests/log_capture.h"
#include "tests/shard_rig.h"
#include "tests/test.h"

#include <math.h>

enum { WORKERS = 3 };

static struct rig rig;
static struct twin twin;

static void start(const char *optimizer, const char *push) {
    rig_prepare(&rig, "sync", WORKERS);
    (void)snprintf(rig.job.optimizer, sizeof rig.job.optimizer, "%s", optimizer);
    (void)snprintf(rig.job.push, sizeof rig.job.push, "%s", push);
    (void)snprintf(rig.job.push_policy, sizeof rig.job.push_policy, "all");
    (void)snprintf(rig.job.pull, sizeof rig.job.pull, "bf16");
    rig.job.dense_warmup = 2;
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
}

static void push(uint32_t rank, uint64_t block, uint64_t seq, const float *grad, uint32_t check) {
    struct frame frame = rig_frame(&rig, FRAME_PUSH, rank, block);
    frame.seq = seq;
    frame.ticket = (uint32_t)seq + 1;
    frame.block_version = seq - 1;
    frame.scalar = rig.weight;
    frame.check = check;
    fake_channel_receive(&rig.fake, &frame, grad, rig_count(&rig, block) * sizeof(float));
}

/* Worker `rank`'s gradient in this round, not the same for any two blocks. */
static void gradient(uint32_t rank, uint64_t block, uint64_t seq, float *grad) {
    struct random_stream random;
    random_open(&random, 1 + rank + 10 * block + 100 * seq, RANDOM_SIMULATOR, 0);
    rig_gradient(&random, grad);
}

/* All pushes of a round, the last rank's first; the report must be sound. */
static void push_round(uint64_t seq) {
    for (uint32_t rank = WORKERS; rank-- > 0;) {
        for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
            float grad[RIG_VALUES];
            gradient(rank, block, seq, grad);
            push(rank, block, seq, grad, 77);
        }
    }
    rig_poll(&rig);
    CHECK_INT(rig_note(&rig, SHARD_REPORT).report.contributors, WORKERS);
}

/* sum * (scale / weight), as the shard must round it. */
static void mean_of(uint64_t block, uint64_t seq, float scale, float *mean) {
    memset(mean, 0, RIG_VALUES * sizeof *mean);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        float grad[RIG_VALUES];
        gradient(rank, block, seq, grad);
        for (int i = 0; i < RIG_VALUES; i++) {
            mean[i] += grad[i];
        }
    }
    for (int i = 0; i < RIG_VALUES; i++) {
        mean[i] *= scale * (1.0F / (float)(rig.weight * WORKERS));
    }
}

/* The next answer to the worker about the block since `from`. */
static const struct fake_send *answer_to(uint32_t rank, uint64_t block, uint32_t from) {
    for (uint32_t i = from; i < rig.fake.send_count; i++) {
        const struct fake_send *send = &rig.fake.sends[i];
        if (send->peer == rank && send->frame.block == block) {
            return send;
        }
    }
    CHECK(!"an answer is there");
    return NULL;
}

static const struct fake_send *expect_mean(uint32_t rank, uint64_t block, uint64_t seq,
                                           uint8_t codec, const void *payload, size_t bytes) {
    const struct fake_send *send = answer_to(rank, block, rig.seen);
    CHECK_INT(send->frame.kind, FRAME_MEAN);
    CHECK_INT(send->frame.codec, codec);
    CHECK_INT(send->frame.seq, seq);
    CHECK_INT(send->frame.ticket, seq + 1);
    CHECK_INT(send->frame.block_version, seq);
    CHECK_INT(send->frame.value_count, rig_count(&rig, block));
    CHECK_INT(send->frame.payload_bytes, bytes);
    CHECK_INT(send->bytes, bytes);
    CHECK_INT(frame_check_payload(&send->frame, send->copy, bytes), STATUS_OK);
    CHECK(bytes == 0 || memcmp(send->copy, payload, bytes) == 0);
    return send;
}

/* Each worker has one answer a block, the mean in f32. */
static void expect_means(uint64_t seq, float scale) {
    rig_poll(&rig);
    CHECK_INT(rig.fake.send_count - rig.seen, WORKERS * RIG_BLOCKS);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
            float mean[RIG_VALUES];
            mean_of(block, seq, scale, mean);
            const struct fake_send *send = expect_mean(rank, block, seq, CODEC_F32, mean,
                                                       rig_count(&rig, block) * sizeof(float));
            CHECK_NEAR(send->frame.scalar, rig.weight, 0);
        }
    }
    rig_see_all(&rig);
}

static void test_pulls_have_the_first_weights(void) {
    start("worker:adamw", "int8");
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        rig_pull(&rig, 1, block, 1);
        rig_poll(&rig);
        const struct fake_send *send = rig_expect(&rig, 1, block, 1, 0, 0);
        CHECK_INT(send->frame.codec, CODEC_F32);
        CHECK_INT(send->bytes, rig_count(&rig, block) * sizeof(float));
        CHECK(memcmp(send->copy, twin.weights[block], send->bytes) == 0);
    }
    rig_close(&rig);
}

static void test_answers_are_means(void) {
    static const float scales[] = {1, 0.3F, 0.01F};
    start("worker:adamw", "none");
    rig.weight = 0.75;
    for (uint64_t seq = 1; seq <= 3; seq++) {
        push_round(seq);
        CHECK_INT(rig.fake.send_count, rig.seen); /* none before the verdict */
        rig_verdict(&rig, seq, false, scales[seq - 1]);
        expect_means(seq, scales[seq - 1]);
    }
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        CHECK(memcmp(rig_block(&rig, block)->weights, twin.weights[block],
                     rig_count(&rig, block) * sizeof(float)) == 0);
    }
    CHECK_INT(fake_channel_taken(&rig.fake), 0);
    rig_close(&rig);
}

static void test_repeated_pushes(void) {
    start("worker:adamw", "none");
    for (uint64_t seq = 1; seq <= 2; seq++) {
        push_round(seq);
        float grad[RIG_VALUES];
        gradient(1, 2, seq, grad);
        push(1, 2, seq, grad, 77); /* while the round is open */
        rig_poll(&rig);
        CHECK_INT(rig.fake.send_count, rig.seen);
        rig_verdict(&rig, seq, false, 1);
        expect_means(seq, 1);
        push(1, 2, seq, grad, 77); /* its answer is lost */
        rig_poll(&rig);
        float mean[RIG_VALUES];
        mean_of(2, seq, 1, mean);
        CHECK_INT(rig.fake.send_count, rig.seen + 1);
        (void)expect_mean(1, 2, seq, CODEC_F32, mean, sizeof mean);
        rig_see_all(&rig);
    }
    CHECK_INT(rig.shard.counters.duplicates, 4);
    CHECK_INT(rig.shard.counters.pushes, 2 * WORKERS * RIG_BLOCKS);
    rig_close(&rig);
}

static void test_rounds_left_out(void) {
    start("worker:adamw", "none");
    push_round(1);
    rig_verdict(&rig, 1, true, 1);
    rig_poll(&rig);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
            (void)expect_mean(rank, block, 1, CODEC_F32, NULL, 0);
        }
    }
    CHECK_INT(rig.shard.counters.skipped, 1);
    rig_see_all(&rig);
    push_round(2);
    rig_verdict(&rig, 2, false, 1);
    expect_means(2, 1);
    rig_close(&rig);
}

/* After --dense-warmup rounds the coordinator's factor is of a norm of moments. */
static void test_moments_are_not_clipped(void) {
    start("worker:1bit-adam", "none");
    for (uint64_t seq = 1; seq <= 4; seq++) {
        push_round(seq);
        rig_verdict(&rig, seq, false, 0.25F);
        expect_means(seq, seq <= 2 ? 0.25F : 1);
    }
    rig_close(&rig);
}

static void test_a_worker_goes(void) {
    start("worker:adamw", "none");
    push_round(1);
    rig.fake.room = 0;
    rig_verdict(&rig, 1, false, 1);
    rig_poll(&rig);
    CHECK_INT(rig.fake.send_count, rig.seen);
    rig_gone(&rig, 0); /* its push counts all the same */
    rig.fake.room = FAKE_SENDS;
    rig_poll(&rig);
    CHECK_INT(rig.fake.send_count - rig.seen, 2 * RIG_BLOCKS);
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        float mean[RIG_VALUES];
        mean_of(block, 1, 1, mean);
        (void)expect_mean(2, block, 1, CODEC_F32, mean, rig_count(&rig, block) * sizeof(float));
    }
    rig_see_all(&rig);
    /* The next round's mean is that of the two who are left. */
    float grads[2][RIG_VALUES];
    float mean[RIG_VALUES];
    for (uint32_t rank = 1; rank < WORKERS; rank++) {
        for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
            gradient(rank, 0, 2, grads[rank - 1]);
            push(rank, block, 2, grads[rank - 1], 77);
        }
    }
    rig_poll(&rig);
    CHECK_INT(rig_note(&rig, SHARD_REPORT).report.contributors, 2);
    rig_verdict(&rig, 2, false, 1);
    rig_poll(&rig);
    for (int i = 0; i < RIG_VALUES; i++) {
        mean[i] = (grads[0][i] + grads[1][i]) * 0.5F;
    }
    (void)expect_mean(1, 0, 2, CODEC_F32, mean, sizeof mean);
    (void)expect_mean(2, 0, 2, CODEC_F32, mean, sizeof mean);
    rig_close(&rig);
}

/* What was sent of one block, and the means that it was made of. */
struct sent {
    double means[RIG_VALUES], decoded[RIG_VALUES];
};

static void check_sent(struct push_codec *encoder, uint64_t block, uint64_t seq,
                       struct sent *sent) {
    float mean[RIG_VALUES];
    float decoded[RIG_VALUES];
    uint8_t wire[512];
    struct encoder_result result;
    uint32_t count = rig_count(&rig, block);
    void *scratch = memory_zeroed(decoder_scratch_bytes(count), 1);
    double held = 0;
    mean_of(block, seq, 1, mean);
    CHECK(push_codec_bound(encoder, block) <= sizeof wire);
    push_codec_encode(encoder, block, seq, mean, wire, &result);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        (void)expect_mean(rank, block, seq, result.codec, wire, result.bytes);
    }
    CHECK_INT(decoder_set(result.codec, wire, result.bytes, decoded, count, scratch), STATUS_OK);
    for (uint32_t i = 0; i < count; i++) {
        sent->means[i] += (double)mean[i];
        sent->decoded[i] += (double)decoded[i];
        held += pow(sent->means[i] - sent->decoded[i], 2);
    }
    free(scratch);
    CHECK_NEAR(held, result.residual_square_sum, 1e-5 * (held + 1));
}

static void check_feedback(const char *codec) {
    static struct sent sent[RIG_BLOCKS];
    struct push_codec *encoder = NULL;
    memset(sent, 0, sizeof sent);
    start("worker:adamw", codec);
    CHECK_INT(push_codec_open(&rig.job, &rig.plan, WORKERS, 0, &encoder), STATUS_OK);
    for (uint64_t seq = 1; seq <= 12; seq++) {
        push_round(seq);
        rig_verdict(&rig, seq, false, 1);
        rig_poll(&rig);
        for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
            check_sent(encoder, block, seq, &sent[block]);
        }
        rig_see_all(&rig);
    }
    push_codec_close(encoder);
    rig_close(&rig);
}

static void test_feedback_is_the_shards_own(void) {
    check_feedback("onebit,ef");
    check_feedback("int8,ef");
    check_feedback("topk:0.5,ef+zstd");
    check_feedback("int4:sr,had,ef");
}

static void push_checks(const uint32_t *checks) {
    static const float ones[RIG_VALUES] = {1, 1, 1, 1};
    start("worker:adamw", "none");
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
            push(rank, block, 1, ones, block == 2 ? checks[rank] : 5);
        }
    }
    rig_poll(&rig);
}

static void test_replicas_that_differ(void) {
    static const uint32_t table[][WORKERS] = {{8, 7, 7}, {7, 8, 7}, {7, 7, 8}};
    static const char *const names[] = {"worker 1 has other weights of block 2 than worker 0",
                                        "worker 1 has other weights of block 2 than worker 0",
                                        "worker 2 has other weights of block 2 than worker 0"};
    push_checks((const uint32_t[]){7, 7, 7});
    CHECK_INT(rig_note(&rig, SHARD_REPORT).report.contributors, WORKERS);
    EXPECT_LOG("other weights", 0);
    rig_close(&rig);
    for (int i = 0; i < 3; i++) {
        push_checks(table[i]);
        EXPECT_LOG(names[i], 1);
        log_restart();
        CHECK_INT(rig_note(&rig, SHARD_REPORT).report.contributors, 0);
        rig_close(&rig);
    }
}

int main(void) {
    log_set_level(LOG_ERROR);
    log_capture();
    TEST_RUN(test_pulls_have_the_first_weights);
    TEST_RUN(test_answers_are_means);
    TEST_RUN(test_repeated_pushes);
    TEST_RUN(test_rounds_left_out);
    TEST_RUN(test_moments_are_not_clipped);
    TEST_RUN(test_a_worker_goes);
    TEST_RUN(test_feedback_is_the_shards_own);
    TEST_RUN(test_replicas_that_differ);
    return 0;
}
