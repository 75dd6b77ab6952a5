/* Proves how a worker's exchange bears the network: commits, a channel that is full, a shard that
 * is lost, and a storm of losses, repetitions and delays.
 *
 * One struct exchange is driven through a channel made by hand (exchange_rig.h). In the storm a
 * small server that follows the protocol answers over a bad network; each push must come with the
 * same bytes however often it comes, and after each step the worker must hold the weights of the
 * version that its own push made. The commit's norm is compared with that of what the wire decodes
 * to.
 */
#include "base/log.h"
#include "base/random.h"
#include "compression/decoder.h"
#include "kernels/optimizer.h"
#include "tests/exchange_rig.h"
#include "tests/test.h"

#include <math.h>

/* ---- commits ---- */

static const struct fake_send *expect_commit(struct rig *rig, uint32_t shard, uint64_t seq) {
    const struct fake_send *send = rig_next(rig);
    CHECK(send != NULL);
    CHECK_INT(send->frame.kind, FRAME_COMMIT);
    CHECK_INT(send->frame.seq, seq);
    CHECK_INT(send->peer, shard);
    CHECK_INT(send->bytes, 0);
    CHECK(send->frame.job == JOB && send->frame.session == SESSION);
    CHECK_INT(send->frame.epoch, EPOCH);
    CHECK_INT(send->frame.rank, RANK);
    return send;
}

/* Each shard is told once, with the sum over all blocks in order of id. */
static void test_commit(void) {
    static struct rig rig;
    struct random_stream random;
    random_open(&random, 1, RANDOM_SIMULATOR, 0);
    rig_open(&rig, RANK, "none");
    rig_start(&rig);
    for (uint64_t seq = 1; seq <= 20; seq++) {
        double sums[BLOCKS];
        for (uint64_t i = 0; i < BLOCKS; i++) {
            uint64_t block = (i + seq) % BLOCKS; /* handed over in any order */
            float grad[4];
            for (int k = 0; k < 4; k++) {
                grad[k] = ldexpf(random_normal(&random), (int)random_below(&random, 20) - 10);
            }
            sums[block] = optimizer_sum_of_squares_ref(grad, rig_count(&rig, block));
            CHECK_INT(rig_push(&rig, block, seq, grad), STATUS_OK);
        }
        double sum = sums[0] + sums[1] + sums[2] + sums[3];
        exchange_commit(&rig.exchange, seq);
        rig_poll(&rig);
        for (uint64_t block = 0; block < BLOCKS; block++) {
            (void)rig_expect(&rig, FRAME_PUSH, block, (uint32_t)seq + 1, seq);
        }
        for (uint32_t shard = 0; shard < SHARDS; shard++) {
            const struct fake_send *commit = expect_commit(&rig, shard, seq);
            CHECK_NEAR(commit->frame.scalar, sum, 2e-6 * sum);
        }
        CHECK(rig_next(&rig) == NULL);
        fake_channel_finish_all(&rig.fake);
        for (uint64_t block = 0; block < BLOCKS; block++) {
            rig_answer(&rig, block, (uint32_t)seq + 1, seq, seq, 0);
        }
        rig_poll(&rig);
        CHECK(exchange_settled(&rig.exchange));
        rig.now_ns += 20 * CLOCK_S;
        rig_poll(&rig);
        CHECK(rig_next(&rig) == NULL); /* what is answered is not committed again */
    }
    CHECK_INT(rig.exchange.counters.pushed_bytes,
              20 * (BLOCKS * FRAME_BYTES + VALUES * sizeof(float) + SHARDS * FRAME_BYTES));
    rig_close(&rig);
}

/* An unanswered push goes again with its commit, since either may have been lost. */
static void test_commit_again(void) {
    static struct rig rig;
    rig_open(&rig, RANK, "none");
    rig_start(&rig);
    rig_push_all(&rig, 1);
    exchange_commit(&rig.exchange, 1);
    rig_poll(&rig);
    double scalar = rig.fake.sends[rig.fake.send_count - 1].frame.scalar;
    fake_channel_finish_all(&rig.fake);
    rig.seen = rig.fake.send_count;
    for (uint64_t block = 0; block < BLOCKS; block++) {
        if (block != 2) {
            rig_answer(&rig, block, 2, 1, 1, 0);
        }
    }
    for (int times = 0; times < 3; times++) {
        rig.now_ns += 5 * CLOCK_S;
        rig_poll(&rig);
        (void)rig_expect(&rig, FRAME_PUSH, 2, 2, 1);
        for (uint32_t shard = 0; shard < SHARDS; shard++) {
            CHECK_NEAR(expect_commit(&rig, shard, 1)->frame.scalar, scalar, 0);
        }
        CHECK(rig_next(&rig) == NULL);
        fake_channel_finish_all(&rig.fake);
        rig_poll(&rig);
    }
    rig_close(&rig);
}

/* A gradient that is finite, but not on the wire: the servers would apply an infinity. What the
 * commit says must be of what they will decode. */
static void test_commit_of_overflow(void) {
    static const struct {
        const char *push;
        float value;
        bool finite;
    } table[] = {{"int8", 1e7F, false},   {"int8", 8e6F, true},  {"bf16", 3.4e38F, false},
                 {"bf16", 3.3e38F, true}, {"none", 3e38F, true}, {"int8", NAN, false},
                 {"bf16", NAN, false},    {"none", NAN, false},  {"none", INFINITY, false}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        static struct rig rig;
        double sum = 0;
        rig_open(&rig, RANK, table[i].push);
        rig_start(&rig);
        for (uint64_t block = 0; block < BLOCKS; block++) {
            float decoded[4];
            const float grad[4] = {0.3F, block == 1 ? table[i].value : 0.7F, -0.9F, 0.1F};
            CHECK_INT(rig_push(&rig, block, 1, grad), STATUS_OK);
            rig_poll(&rig);
            const struct fake_send *push = rig_expect(&rig, FRAME_PUSH, block, 2, 1);
            CHECK_INT(decoder_set(push->frame.codec, push->copy, push->bytes, decoded,
                                  rig_count(&rig, block), NULL),
                      STATUS_OK);
            sum += optimizer_sum_of_squares_ref(decoded, rig_count(&rig, block));
        }
        exchange_commit(&rig.exchange, 1);
        rig_poll(&rig);
        double scalar = expect_commit(&rig, 0, 1)->frame.scalar;
        CHECK_INT(isfinite(scalar), table[i].finite);
        CHECK(!table[i].finite || fabs(scalar - sum) <= 1e-6 * sum);
        rig_close(&rig);
    }
}

/* ---- back-pressure and loss ---- */

/* With room for one send at a time, everything leaves once, in order, the commits last. */
static void test_channel_full(void) {
    static struct rig rig;
    rig_open(&rig, RANK, "none");
    rig.fake.room = 0;
    exchange_pull_all(&rig.exchange, false);
    rig_poll(&rig);
    CHECK(rig_next(&rig) == NULL);
    for (uint64_t block = 0; block < BLOCKS; block++) {
        rig.fake.room = 1;
        rig_poll(&rig);
        (void)rig_expect(&rig, FRAME_PULL, block, 1, 0);
        CHECK(rig_next(&rig) == NULL);
        rig_answer(&rig, block, 1, 0, 0, 0);
        fake_channel_finish_all(&rig.fake);
        rig_poll(&rig);
    }
    CHECK(exchange_settled(&rig.exchange));
    rig_push_all(&rig, 1);
    exchange_commit(&rig.exchange, 1);
    for (uint64_t i = 0; i < BLOCKS + SHARDS; i++) {
        rig.fake.room = 1;
        rig_poll(&rig);
        if (i < BLOCKS) {
            (void)rig_expect(&rig, FRAME_PUSH, i, 2, 1);
        } else {
            (void)expect_commit(&rig, (uint32_t)(i - BLOCKS), 1);
        }
        CHECK(rig_next(&rig) == NULL);
    }
    rig.fake.room = UINT32_MAX;
    rig_poll(&rig);
    CHECK(rig_next(&rig) == NULL);
    CHECK_INT(rig.exchange.counters.pushed_bytes,
              (BLOCKS + SHARDS) * FRAME_BYTES + VALUES * sizeof(float));
    rig_close(&rig);
}

/* Worker 0's first weights, one at a time: no pull before its block's weights have left. */
static void test_channel_full_at_start(void) {
    static struct rig rig;
    bool left[BLOCKS] = {false}, pulled[BLOCKS] = {false};
    rig_open(&rig, 0, "none");
    exchange_pull_all(&rig.exchange, true);
    for (int i = 0; i < 2 * BLOCKS; i++) {
        rig.fake.room = 1;
        rig_poll(&rig);
        const struct fake_send *send = rig_next(&rig);
        CHECK(send != NULL && rig_next(&rig) == NULL);
        uint64_t block = send->frame.block;
        if (send->frame.kind == FRAME_INIT) {
            CHECK(!left[block]);
            left[block] = true;
        } else {
            CHECK(send->frame.kind == FRAME_PULL && left[block] && !pulled[block]);
            pulled[block] = true;
        }
        fake_channel_finish(&rig.fake, rig.seen - 1, STATUS_OK);
    }
    rig_close(&rig);
}

/* A shard's connection breaks with a push that had left, one that is in flight, and a commit, and
 * is made again: all three go again, as they were, behind a greeting; each once, the one in flight
 * when that is over, and nothing to the other shard. */
static void test_lost_and_back(void) {
    static struct rig rig;
    rig_open(&rig, RANK, "none");
    rig_start(&rig);
    rig_push_all(&rig, 1);
    exchange_commit(&rig.exchange, 1);
    rig_poll(&rig);
    uint32_t first = rig.seen;
    double scalar = rig.fake.sends[rig.fake.send_count - 1].frame.scalar;
    rig.seen = rig.fake.send_count;
    for (uint32_t i = first; i < rig.fake.send_count; i++) {
        if (rig.fake.sends[i].frame.block != 2) {
            fake_channel_finish(&rig.fake, i, STATUS_OK);
        }
    }
    fake_channel_lose(&rig.fake, 0);
    rig_poll(&rig);
    rig.now_ns += CLOCK_S / 5;
    rig_poll(&rig);
    CHECK(rig_next(&rig) == NULL);
    rig.now_ns += CLOCK_S / 5; /* a lease is 10 s */
    rig_poll(&rig);
    CHECK_INT(rig.fake.connects[0], 1);
    CHECK_INT(rig.fake.connects[1], 0);
    (void)expect_commit(&rig, 0, 0);
    const struct fake_send *again = rig_expect(&rig, FRAME_PUSH, 0, 2, 1);
    const struct fake_send *before = &rig.fake.sends[first];
    CHECK(memcmp(again->header, before->header, FRAME_BYTES) == 0);
    CHECK(memcmp(again->copy, before->copy, before->bytes) == 0);
    CHECK_NEAR(expect_commit(&rig, 0, 1)->frame.scalar, scalar, 0);
    CHECK(rig_next(&rig) == NULL);
    fake_channel_finish(&rig.fake, first + 2, STATUS_PEER_LOST);
    rig_poll(&rig);
    (void)rig_expect(&rig, FRAME_PUSH, 2, 2, 1);
    CHECK(rig_next(&rig) == NULL);
    fake_channel_finish_all(&rig.fake);
    for (uint64_t block = 0; block < BLOCKS; block++) {
        rig_answer(&rig, block, 2, 1, 1, 0);
    }
    rig_poll(&rig);
    CHECK(exchange_settled(&rig.exchange));
    CHECK_INT(rig.exchange.counters.resent, 2);
    CHECK_INT(exchange_deadline_ns(&rig.exchange), INT64_MAX);
    rig.now_ns += 100 * CLOCK_S;
    rig_poll(&rig);
    CHECK(rig_next(&rig) == NULL);
    CHECK_INT(redial_failed(&rig.exchange.redial), -1);
    rig_close(&rig);
}

/* The same while the first weights leave: they go again ahead of the pull, also when they had
 * left. */
static void test_lost_first(void) {
    static struct rig rig;
    for (int left = 0; left < 2; left++) {
        rig_open(&rig, 0, "none");
        exchange_pull_all(&rig.exchange, true);
        rig_poll(&rig);
        CHECK_INT(rig.fake.send_count, BLOCKS); /* the pulls wait for them */
        rig.seen = rig.fake.send_count;
        fake_channel_lose(&rig.fake, 0);
        for (uint32_t i = 0; i < BLOCKS; i++) {
            CHECK_INT(rig.fake.sends[i].frame.kind, FRAME_INIT);
            bool broke = rig.fake.sends[i].peer == 0 && !left;
            fake_channel_finish(&rig.fake, i, broke ? STATUS_PEER_LOST : STATUS_OK);
        }
        rig_poll(&rig);
        (void)rig_expect(&rig, FRAME_PULL, 1, 1, 0);
        (void)rig_expect(&rig, FRAME_PULL, 3, 1, 0);
        CHECK(rig_next(&rig) == NULL);
        rig.now_ns += 2 * CLOCK_S / 5;
        rig_poll(&rig);
        CHECK_INT(rig_next(&rig)->frame.kind, FRAME_COMMIT);
        for (uint64_t block = 0; block < BLOCKS; block += 2) {
            const struct fake_send *send = rig_next(&rig);
            CHECK(send != NULL && send->frame.kind == FRAME_INIT && send->frame.block == block);
        }
        CHECK(rig_next(&rig) == NULL);
        fake_channel_finish_all(&rig.fake);
        rig_poll(&rig);
        (void)rig_expect(&rig, FRAME_PULL, 0, 1, 0);
        (void)rig_expect(&rig, FRAME_PULL, 2, 1, 0);
        CHECK(rig_next(&rig) == NULL);
        fake_channel_finish_all(&rig.fake);
        rig_poll(&rig);
        rig_close(&rig);
    }
}

/* What a lost shard should get is swallowed, and tried again after half a lease; the other shard
 * gets its own. What the loss means is not decided here. */
static void test_lost_shard(void) {
    static struct rig rig;
    rig_open(&rig, RANK, "none");
    rig_start(&rig);
    rig.fake.connect_status = STATUS_PEER_LOST;
    fake_channel_lose(&rig.fake, 0);
    rig_push_all(&rig, 1);
    exchange_commit(&rig.exchange, 1);
    rig_poll(&rig);
    (void)rig_expect(&rig, FRAME_PUSH, 1, 2, 1);
    (void)rig_expect(&rig, FRAME_PUSH, 3, 2, 1);
    (void)expect_commit(&rig, 1, 1);
    CHECK(rig_next(&rig) == NULL);
    rig_answer(&rig, 1, 2, 1, 1, 0);
    rig_answer(&rig, 3, 2, 1, 1, 0);
    fake_channel_finish_all(&rig.fake);
    rig_poll(&rig);
    CHECK_INT(rig.exchange.open, 2);
    rig.fake.lost[0] = false;
    rig.now_ns += 5 * CLOCK_S;
    rig_poll(&rig);
    (void)rig_expect(&rig, FRAME_PUSH, 0, 2, 1);
    (void)rig_expect(&rig, FRAME_PUSH, 2, 2, 1);
    (void)expect_commit(&rig, 0, 1);
    rig_close(&rig);
}

/* ---- the storm ---- */

enum { STORMS = 100, STEPS = 12, ANSWERS = 64 };

struct reply {
    uint64_t block, seq, version;
    uint32_t ticket;
};

/* A server that follows the protocol, and the network between. */
struct storm {
    struct rig rig;
    struct random_stream random;
    bool has_weights[BLOCKS];
    uint64_t applied[BLOCKS]; /* seq of the last push; each makes two versions */
    uint8_t headers[BLOCKS][FRAME_BYTES], payloads[BLOCKS][FAKE_BYTES]; /* of that push */
    struct reply replies[ANSWERS]; /* the last ones, to be repeated */
    uint32_t reply_count;
};

static void serve(struct storm *storm, const struct fake_send *send) {
    struct rig *rig = &storm->rig;
    const struct frame *frame = &send->frame;
    uint64_t block = frame->block;
    if (frame->kind == FRAME_COMMIT) {
        return;
    }
    if (frame->kind == FRAME_INIT) {
        storm->has_weights[block] = true;
        return;
    }
    if (!storm->has_weights[block]) {
        return;
    }
    if (frame->kind == FRAME_PUSH && frame->seq == storm->applied[block]) {
        CHECK(memcmp(storm->headers[block], send->header, FRAME_BYTES) == 0);
        CHECK(memcmp(storm->payloads[block], send->copy, send->bytes) == 0);
    } else if (frame->kind == FRAME_PUSH) {
        CHECK_INT(frame->seq, storm->applied[block] + 1);
        CHECK_INT(frame->block_version, 2 * storm->applied[block]);
        storm->applied[block] = frame->seq;
        memcpy(storm->headers[block], send->header, FRAME_BYTES);
        memcpy(storm->payloads[block], send->copy, send->bytes);
    }
    struct reply *reply = &storm->replies[storm->reply_count++ % ANSWERS];
    *reply = (struct reply){.block = block,
                            .seq = storm->applied[block],
                            .version = 2 * storm->applied[block],
                            .ticket = frame->ticket};
    if (random_below(&storm->random, 5) > 0) { /* else the answer is lost */
        rig_answer(rig, block, reply->ticket, reply->seq, reply->version, 0);
    }
}

/* One breath of the network: requests arrive or are lost, sends end, old answers come again, time
 * passes. */
static void breathe(struct storm *storm) {
    struct rig *rig = &storm->rig;
    const struct fake_send *send;
    rig->fake.room = (uint32_t)random_below(&storm->random, 4);
    (void)exchange_poll(&rig->exchange, rig->now_ns);
    while ((send = rig_next(rig)) != NULL) {
        if (random_below(&storm->random, 5) > 0) {
            serve(storm, send);
        }
    }
    for (uint32_t i = rig->seen > 64 ? rig->seen - 64 : 0; i < rig->seen; i++) {
        if (!rig->fake.sends[i].over && random_below(&storm->random, 3) == 0) {
            fake_channel_finish(&rig->fake, i, STATUS_OK);
        }
    }
    if (storm->reply_count > 0 && random_below(&storm->random, 2) == 0) {
        uint64_t kept = storm->reply_count < ANSWERS ? storm->reply_count : ANSWERS;
        const struct reply *old = &storm->replies[random_below(&storm->random, kept)];
        rig_answer(rig, old->block, old->ticket, old->seq, old->version, 0);
    }
    rig->now_ns += (int64_t)random_below(&storm->random, 2 * (uint64_t)CLOCK_S);
}

static void settle(struct storm *storm, uint64_t seq) {
    for (int breaths = 0; !exchange_settled(&storm->rig.exchange); breaths++) {
        CHECK(breaths < 5000); /* it hangs */
        breathe(storm);
    }
    for (uint64_t block = 0; block < BLOCKS; block++) {
        CHECK_INT(storm->applied[block], seq);
        rig_check_installed(&storm->rig, block, 2 * seq);
    }
}

static void test_storm(void) {
    for (uint64_t seed = 0; seed < STORMS; seed++) {
        static struct storm storm;
        memset(&storm, 0, sizeof storm);
        random_open(&storm.random, seed, RANDOM_SIMULATOR, 0);
        rig_open(&storm.rig, 0, "bf16");
        exchange_pull_all(&storm.rig.exchange, true);
        settle(&storm, 0);
        for (uint64_t seq = 1; seq <= STEPS; seq++) {
            for (uint64_t block = 0; block < BLOCKS; block++) {
                const float grad[4] = {(float)seq, (float)block, random_unit(&storm.random), 1};
                while (rig_push(&storm.rig, block, seq, grad) == STATUS_AGAIN) {
                    breathe(&storm);
                }
            }
            exchange_commit(&storm.rig.exchange, seq);
            settle(&storm, seq);
        }
        CHECK_INT(storm.rig.exchange.counters.pushes_answered, STEPS * BLOCKS);
        CHECK_INT(storm.rig.exchange.counters.answers, (STEPS + 1) * BLOCKS);
        CHECK(storm.rig.exchange.counters.resent > 0);
        storm.rig.fake.room = UINT32_MAX;
        fake_channel_finish_all(&storm.rig.fake);
        rig_poll(&storm.rig);
        rig_close(&storm.rig);
    }
}

/* A report of some blocks: only their shards are told, and of their sum alone. */
static void test_commit_of_a_fragment(void) {
    static struct rig rig;
    rig_open(&rig, RANK, "none");
    rig_start(&rig);
    rig_push_all(&rig, 1);
    exchange_commit(&rig.exchange, 1);
    rig_poll(&rig);
    for (uint64_t block = 0; block < BLOCKS; block++) {
        rig_answer(&rig, block, 2, 1, 1, 0);
    }
    fake_channel_finish_all(&rig.fake);
    rig_poll(&rig);
    rig.seen = rig.fake.send_count;
    for (uint64_t block = 0; block <= 2; block += 2) {
        const float values[4] = {3, 0, 4, (float)block};
        CHECK_INT(rig_push(&rig, block, 2, values), STATUS_OK);
    }
    exchange_commit(&rig.exchange, 2);
    rig_poll(&rig);
    (void)rig_expect(&rig, FRAME_PUSH, 0, 3, 2);
    (void)rig_expect(&rig, FRAME_PUSH, 2, 3, 2);
    CHECK(expect_commit(&rig, 0, 2)->frame.scalar == 25 + 25 + 4);
    CHECK(rig_next(&rig) == NULL);
    fake_channel_finish_all(&rig.fake);
    rig.now_ns += 6 * CLOCK_S; /* again, to the same shard */
    rig_poll(&rig);
    (void)rig_expect(&rig, FRAME_PUSH, 0, 3, 2);
    (void)rig_expect(&rig, FRAME_PUSH, 2, 3, 2);
    (void)expect_commit(&rig, 0, 2);
    CHECK(rig_next(&rig) == NULL);
    rig_close(&rig);
}

int main(void) {
    log_set_level(LOG_ERROR);
    TEST_RUN(test_commit);
    TEST_RUN(test_commit_of_a_fragment);
    TEST_RUN(test_commit_again);
    TEST_RUN(test_commit_of_overflow);
    TEST_RUN(test_channel_full);
    TEST_RUN(test_channel_full_at_start);
    TEST_RUN(test_lost_and_back);
    TEST_RUN(test_lost_first);
    TEST_RUN(test_lost_shard);
    TEST_RUN(test_storm);
    return 0;
}
