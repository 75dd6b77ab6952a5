/* Proves of --pull delta-* at the shard, with workers made by hand that hold a replica each: who
 * has none gets a whole one, bit-equal to the shard's; who has an older one gets the steps from
 * there as long as they are kept, and is bit-equal after them; who has another than it says, or
 * one that is too old, gets a whole one; a step is encoded once, however many workers get it; a
 * version that changed nothing, weights that are not finite, repeated requests and exact pulls are
 * no trouble; nothing of it depends on the mode.
 */
#include "compression/decoder.h"
#include "server/shard_parts.h"
#include "tests/fake_channel.h"
#include "tests/test.h"

#define JOB_ID UINT64_C(0xa11ce)

enum { WORKERS = 3, VALUES = 200, STEPS_KEPT = 2, EPOCH = 5 };

static struct fake_channel fake;
static struct job job;
static struct options options;
static struct plan plan;
static struct shard shard;
static uint32_t seen;

/* What a worker holds. */
static struct hand {
    float weights[VALUES];
    struct delta_place place;
    uint32_t ticket;
    uint64_t seq;
} hands[WORKERS];

static const struct shard_block *block(void) {
    return &shard.blocks[0];
}

static void poll_all(void) {
    while (shard_poll(&shard, 0)) {
    }
}

static struct frame frame_of(enum frame_kind kind, uint32_t rank) {
    struct hand *hand = &hands[rank];
    return (struct frame){.kind = kind,
                          .codec = CODEC_F32,
                          .job = JOB_ID,
                          .epoch = EPOCH,
                          .session = 1000 + rank,
                          .seq = hand->seq,
                          .block_version = hand->place.version,
                          .value_count = VALUES,
                          .scalar = 1,
                          .check = hand->place.check,
                          .rank = (uint16_t)rank,
                          .ticket = hand->ticket};
}

static void open_shard(const char *mode, const char *pull) {
    static const struct tensor tensor = {.name = "w", .dims = 2, .shape = {10, 20}};
    const uint64_t sessions[WORKERS] = {1000, 1001, 1002};
    float weights[VALUES];
    options_init(&options, job_table, job_table_count, &job);
    (void)snprintf(job.mode, sizeof job.mode, "%s", mode);
    (void)snprintf(job.pull, sizeof job.pull, "%s", pull);
    (void)snprintf(job.optimizer, sizeof job.optimizer, "sgd");
    (void)snprintf(job.schedule, sizeof job.schedule, "constant");
    job.workers = WORKERS;
    job.lr = 0.1;
    job.warmup = 0;
    job.sync_warmup = 0;
    job.momentum = 0;
    job.clip = 0;
    struct plan_options plan_options = job_plan_options(&job, 1);
    plan_options.block_values = VALUES;
    CHECK_INT(plan_build(&plan, &tensor, 1, &plan_options), STATUS_OK);
    CHECK(plan.block_count == 1 && plan.blocks[0].count == VALUES);
    fake_channel_open(&fake);
    const struct shard_config config = {.job = &job,
                                        .plan = &plan,
                                        .job_id = JOB_ID,
                                        .epoch = EPOCH,
                                        .channel = &fake.channel,
                                        .sessions = sessions};
    CHECK_INT(shard_init(&shard, &config), STATUS_OK);
    memset(hands, 0, sizeof hands);
    seen = 0;
    for (int i = 0; i < VALUES; i++) {
        weights[i] = 0.01F * (float)(i * 7 % 31) - 0.1F;
    }
    struct frame frame = frame_of(FRAME_INIT, 0);
    fake_channel_receive(&fake, &frame, weights, sizeof weights);
    poll_all();
}

static void close_shard(void) {
    fake_channel_finish_all(&fake);
    poll_all();
    CHECK_INT(fake_channel_taken(&fake), 0);
    CHECK_INT(shard.free_count + (block()->buffer != SHARD_NO_BUFFER ? 1U : 0U),
              shard.buffer_count);
    shard_free(&shard);
    plan_free(&plan);
}

/* ---- what workers send ---- */

static void ask(uint32_t rank, bool exact) {
    hands[rank].ticket++;
    struct frame frame = frame_of(FRAME_PULL, rank);
    frame.exact = exact;
    fake_channel_receive(&fake, &frame, NULL, 0);
    poll_all();
}

static void send_push(uint32_t rank, float size) {
    float gradient[VALUES];
    for (int i = 0; i < VALUES; i++) {
        gradient[i] = size * (float)((i * 13 + (int)rank) % 17 - 8);
    }
    struct frame frame = frame_of(FRAME_PUSH, rank);
    fake_channel_receive(&fake, &frame, gradient, sizeof gradient);
}

/* A push and its commit; async modes answer. */
static void push(uint32_t rank, float size, double sum) {
    hands[rank].ticket++;
    hands[rank].seq++;
    send_push(rank, size);
    struct frame commit = frame_of(FRAME_COMMIT, rank);
    commit.scalar = sum;
    fake_channel_receive(&fake, &commit, NULL, 0);
    poll_all();
}

/* ---- what they get ---- */

static const struct fake_send *next(uint32_t rank) {
    CHECK(seen < fake.send_count);
    const struct fake_send *send = &fake.sends[seen++];
    CHECK_INT(send->frame.kind, FRAME_WEIGHTS);
    CHECK_INT(send->frame.rank, rank);
    CHECK_INT(send->frame.ticket, hands[rank].ticket);
    CHECK_INT(send->frame.value_count, VALUES);
    CHECK(send->frame.block_version == block()->version);
    return send;
}

/* The worker has the shard's replica now. */
static void check_equal(uint32_t rank) {
    const struct hand *hand = &hands[rank];
    const struct shard_replica *replica = &block()->replica;
    CHECK(memcmp(hand->weights, replica->values, sizeof hand->weights) == 0);
    CHECK(hand->place.check == replica->at.check && hand->place.version == replica->at.version);
}

static void expect_whole(uint32_t rank) {
    struct hand *hand = &hands[rank];
    const struct fake_send *send = next(rank);
    CHECK_INT(send->frame.codec, CODEC_BF16);
    CHECK_INT(decoder_set(CODEC_BF16, send->copy, send->bytes, hand->weights, VALUES, NULL),
              STATUS_OK);
    hand->place =
        (struct delta_place){send->frame.block_version, delta_check(hand->weights, VALUES)};
    check_equal(rank);
}

/* steps 0: it has the newest already. */
static const struct fake_send *expect_steps(uint32_t rank, size_t steps) {
    struct hand *hand = &hands[rank];
    const struct fake_send *send = next(rank);
    CHECK_INT(send->frame.codec, shard.delta);
    CHECK_INT(send->bytes, DELTA_HEAD + steps * delta_step_bytes(shard.delta, VALUES));
    CHECK_INT(delta_apply(send->frame.codec, send->copy, send->bytes, send->frame.block_version,
                          hand->weights, VALUES, &hand->place),
              STATUS_OK);
    check_equal(rank);
    return send;
}

static void start(const char *mode, const char *pull) {
    open_shard(mode, pull);
    for (uint32_t rank = 0; rank < WORKERS; rank++) {
        ask(rank, false);
        expect_whole(rank);
    }
    fake_channel_finish_all(&fake);
    poll_all();
}

/* How far the replica may be from the weights, in units of its values: bf16 and the last step. */
static void check_near(double tolerance) {
    for (int i = 0; i < VALUES; i++) {
        CHECK_NEAR(block()->replica.values[i], block()->weights[i], tolerance);
    }
}

/* ---- the cases ---- */

static void steps_follow_versions(void) {
    start("async", "delta-int4");
    CHECK_INT(block()->replica.steps_max, STEPS_KEPT);
    push(0, 0.1F, 1);
    (void)expect_steps(0, 1);
    check_near(0.01);
    push(1, 0.1F, 1); // it lacks worker 0's, too
    (void)expect_steps(1, 2);
    push(0, 0.1F, 1);
    (void)expect_steps(0, 2);
    push(0, 0.1F, 1);
    (void)expect_steps(0, 1);
    push(2, 0.1F, 1); // fell out
    expect_whole(2);
    push(2, 0.1F, 1);
    (void)expect_steps(2, 1);
    ask(2, false);
    (void)expect_steps(2, 0);
    close_shard();
}

static void replicas_stay_equal_for_long(void) {
    static const char *const pulls[] = {"delta-int8", "delta-int4"};
    for (size_t p = 0; p < 2; p++) {
        uint32_t random = 1;
        start("async", pulls[p]);
        for (int turn = 0; turn < 1000; turn++) {
            random = random * 1664525U + 1013904223U;
            uint32_t rank = (random >> 24) % WORKERS;
            push(rank, ldexpf(1, -(int)((random >> 16) % 12)), 1);
            if (fake.sends[seen].frame.codec == CODEC_BF16) {
                expect_whole(rank);
            } else {
                const struct fake_send *send = &fake.sends[seen];
                (void)expect_steps(rank, (send->bytes - DELTA_HEAD) /
                                             delta_step_bytes(shard.delta, VALUES));
            }
            fake_channel_finish_all(&fake);
            poll_all();
        }
        close_shard();
    }
}

static void wrong_replicas_get_a_whole_one(void) {
    start("async", "delta-int4");
    hands[1].place.check ^= 1;
    push(1, 0.1F, 1);
    expect_whole(1);
    hands[1].place.version += 7; // of the future
    push(1, 0.1F, 1);
    expect_whole(1);
    hands[1].place.check = DELTA_NONE;
    push(1, 0.1F, 1);
    expect_whole(1);
    push(1, 0.1F, 1);
    (void)expect_steps(1, 1);
    close_shard();
}

/* The answer was of no use: the same push again, but now it says that it has no replica. */
static void refused_steps_are_followed_by_a_whole_one(void) {
    start("async", "delta-int4");
    push(0, 0.1F, 1);
    CHECK_INT(next(0)->frame.codec, CODEC_DELTA_INT4);
    hands[0].place.check = DELTA_NONE;
    send_push(0, 0.1F);
    poll_all();
    CHECK_INT(shard.counters.duplicates, 1);
    expect_whole(0);
    CHECK_INT(block()->updates, 1);
    close_shard();
}

static void versions_without_change(void) {
    start("async", "delta-int8");
    CHECK_INT(block()->replica.steps_max, 1);
    push(0, 0.1F, 1);
    (void)expect_steps(0, 1);
    push(0, 0.1F, NAN); // skipped
    CHECK_INT(block()->version, 2);
    CHECK_INT(block()->updates, 1);
    (void)expect_steps(0, 1);
    close_shard();
}

static void weights_that_are_not_finite(void) {
    start("async", "delta-int4");
    shard.blocks[0].weights[5] = INFINITY;
    push(0, 0.1F, 1);
    expect_whole(0);
    CHECK(!isfinite(hands[0].weights[5]));
    shard.blocks[0].weights[5] = 1;
    push(0, 0.1F, 1);
    expect_whole(0);
    push(0, 0.1F, 1);
    (void)expect_steps(0, 1);
    close_shard();
}

static void exact_pulls(void) {
    start("async", "delta-int4");
    push(0, 0.1F, 1);
    (void)expect_steps(0, 1);
    ask(0, true);
    const struct fake_send *send = next(0);
    CHECK_INT(send->frame.codec, CODEC_F32);
    CHECK_INT(send->bytes, VALUES * sizeof(float));
    CHECK(memcmp(send->copy, block()->weights, send->bytes) == 0);
    ask(0, true); // again, as another saver might
    (void)next(0);
    fake_channel_finish_all(&fake);
    poll_all();
    hands[0].place.check = DELTA_NONE; // what it has is no replica
    push(0, 0.1F, 1);
    expect_whole(0);
    close_shard();
}

/* With any --pull: the shard's own weights. */
static void exact_pulls_of_plain_weights(void) {
    open_shard("async", "bf16");
    CHECK(block()->replica.values == NULL);
    ask(1, true);
    const struct fake_send *send = next(1);
    CHECK_INT(send->frame.codec, CODEC_F32);
    CHECK(memcmp(send->copy, block()->weights, send->bytes) == 0);
    ask(1, false);
    CHECK_INT(next(1)->frame.codec, CODEC_BF16);
    close_shard();
}

static void a_round_is_encoded_once(void) {
    start("sync", "delta-int4");
    for (uint64_t round = 1; round <= 5; round++) {
        struct shard_note note;
        for (uint32_t rank = 0; rank < WORKERS; rank++) {
            hands[rank].ticket++;
            hands[rank].seq++;
            send_push(rank, 0.1F);
        }
        poll_all();
        CHECK_INT(ring_pop(&shard.notes, &note), STATUS_OK);
        const struct shard_order order = {
            .kind = SHARD_VERDICT, .verdict = {.round = round, .skip = round == 3, .scale = 1}};
        CHECK_INT(ring_push(&shard.orders, &order), STATUS_OK);
        poll_all();
        const struct fake_send *first = expect_steps(0, 1);
        for (uint32_t rank = 1; rank < WORKERS; rank++) {
            CHECK(expect_steps(rank, 1)->payload == first->payload);
        }
        fake_channel_finish_all(&fake);
        poll_all();
    }
    close_shard();
}

int main(void) {
    TEST_RUN(steps_follow_versions);
    TEST_RUN(replicas_stay_equal_for_long);
    TEST_RUN(wrong_replicas_get_a_whole_one);
    TEST_RUN(refused_steps_are_followed_by_a_whole_one);
    TEST_RUN(versions_without_change);
    TEST_RUN(weights_that_are_not_finite);
    TEST_RUN(exact_pulls);
    TEST_RUN(exact_pulls_of_plain_weights);
    TEST_RUN(a_round_is_encoded_once);
    return 0;
}
