/* Proves what a shard does in the modes that apply each push by itself, and how it answers: commits
 * before, between and after the pushes; clip, staleness and the schedule; pushes that are not
 * finite; answers that ssp withholds, and answers that wait for the channel or for a buffer.
 *
 * One struct shard is driven through a channel made by hand (shard_rig.h), which also checks that
 * no answer's bytes change while they are in flight. Weights are compared bit for bit with a plain
 * twin.
 */
#include "base/log.h"
#include "compression/decoder.h"
#include "tests/shard_rig.h"
#include "tests/test.h"

#include <math.h>

static const float ones[RIG_VALUES] = {1, 1, 1, 1};

/* Pushes `grad` as every block of push `seq`. */
static void push_blocks(struct rig *rig, uint32_t rank, uint64_t seq, const float *grad) {
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        rig_push(rig, rank, block, seq, rig_block(rig, block)->version, grad);
    }
}

static void twin_step_all(struct twin *twin, const struct rig *rig, const float *grad,
                          float scale) {
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        twin_step(twin, rig, block, grad, scale);
    }
}

static void expect_all(struct rig *rig, uint32_t rank, uint32_t ticket, uint64_t seq,
                       uint64_t version) {
    for (uint64_t i = 0; i < RIG_BLOCKS; i++) {
        (void)rig_expect(rig, rank, rig_need[i], ticket, seq, version);
    }
    CHECK(rig_next(rig) == NULL);
}

/* ---- commits ---- */

/* The commit at each of the five places among the four pushes: a push counts when both are there.
 * Without it, nothing of the push counts, whatever others do. */
static void test_commit_places(void) {
    for (uint64_t place = 0; place <= RIG_BLOCKS; place++) {
        static struct rig rig;
        struct twin twin;
        rig_prepare(&rig, "async", 2);
        rig_open(&rig, 1, 0);
        rig_start(&rig, &twin);
        rig_push(&rig, 1, 1, 1, 0, ones); /* a worker that dies before its commit */
        for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
            if (block == place) {
                rig_commit(&rig, 0, 1, 15);
            }
            rig_push(&rig, 0, block, 1, 0, ones);
            rig_poll(&rig);
            for (uint64_t done = 0; done < RIG_BLOCKS; done++) {
                uint64_t version = place <= block && done <= block ? 1 : 0;
                CHECK_INT(rig_block(&rig, done)->version, version);
            }
        }
        CHECK_INT(rig.fake.send_count - rig.seen, place < RIG_BLOCKS ? RIG_BLOCKS : 0);
        if (place == RIG_BLOCKS) {
            rig_commit(&rig, 0, 1, 15);
            rig_poll(&rig);
        }
        for (uint64_t i = 0; i < RIG_BLOCKS; i++) {
            /* What comes after the commit is answered one by one. */
            uint64_t block = place + 1 < RIG_BLOCKS ? i : rig_need[i];
            (void)rig_expect(&rig, 0, block, 2, 1, 1);
        }
        CHECK(rig_next(&rig) == NULL);
        twin_step_all(&twin, &rig, ones, 1);
        twin_compare(&twin, &rig);
        CHECK_INT(rig.shard.counters.pushes, RIG_BLOCKS);
        CHECK_INT(fake_channel_taken(&rig.fake), 1);
        rig_close(&rig);
    }
}

/* Repeated, older and other workers' commits apply nothing. */
static void test_commit_repetitions(void) {
    static struct rig rig;
    struct twin twin;
    rig_prepare(&rig, "async", 2);
    rig.job.clip = 1;
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    for (uint64_t seq = 1; seq <= 3; seq++) {
        push_blocks(&rig, 0, seq, ones);
        rig_commit(&rig, 0, seq - 1, 1e6); /* an older one, or of no push at all */
        rig_commit(&rig, 1, seq, 1e6);     /* another worker's */
        rig_poll(&rig);
        twin_compare(&twin, &rig);
        CHECK(rig_next(&rig) == NULL);
        rig_commit(&rig, 0, seq, 15);
        rig_commit(&rig, 0, seq, 15);
        rig_commit(&rig, 0, seq, 1e6);
        rig_poll(&rig);
        twin_step_all(&twin, &rig, ones, (float)(1 / (sqrt(15) + 1e-6)));
        twin_compare(&twin, &rig);
        expect_all(&rig, 0, (uint32_t)seq + 1, seq, seq);
        push_blocks(&rig, 0, seq, ones); /* and the pushes again: only answered */
        rig_poll(&rig);
        twin_compare(&twin, &rig);
        expect_all(&rig, 0, (uint32_t)seq + 1, seq, seq);
        fake_channel_finish_all(&rig.fake);
    }
    CHECK_INT(rig.shard.counters.pushes, 3 * RIG_BLOCKS);
    CHECK_INT(fake_channel_taken(&rig.fake), 0);
    rig_close(&rig);
}

/* The first commit of a push is its commit, also before the push; one of another push is not. */
static void test_commit_of_another(void) {
    static struct rig rig;
    struct twin twin;
    rig_prepare(&rig, "async", 2);
    rig.job.clip = 1;
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    rig_commit(&rig, 0, 1, 15);
    rig_commit(&rig, 0, 1, 1e6);
    rig_poll(&rig);
    CHECK_INT(rig.shard.counters.duplicates, 1);
    push_blocks(&rig, 0, 1, ones);
    rig_poll(&rig);
    twin_step_all(&twin, &rig, ones, (float)(1 / (sqrt(15) + 1e-6)));
    twin_compare(&twin, &rig);
    push_blocks(&rig, 0, 2, ones);
    rig_commit(&rig, 0, 3, 15);
    rig_poll(&rig);
    twin_compare(&twin, &rig);
    rig_close(&rig);
}

/* A commit in sync means nothing. */
static void test_commit_in_sync(void) {
    static struct rig rig;
    struct twin twin;
    rig_prepare(&rig, "sync", 2);
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    push_blocks(&rig, 0, 1, ones);
    rig_commit(&rig, 0, 1, 15);
    rig_poll(&rig);
    CHECK(rig_next(&rig) == NULL);
    twin_compare(&twin, &rig);
    rig_close(&rig);
}

/* The clip factor is that of the whole gradient's norm, of which the shard sees a part. */
static void test_clip(void) {
    static const double sums[] = {0, 0.25, 1, 4, 1e10};
    static struct rig rig;
    struct twin twin;
    rig_prepare(&rig, "ssp:1", 1);
    rig.job.clip = 0.7;
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    for (uint64_t i = 0; i < 5; i++) {
        push_blocks(&rig, 0, i + 1, ones);
        rig_commit(&rig, 0, i + 1, sums[i]);
        rig_poll(&rig);
        double factor = 0.7 / (sqrt(sums[i]) + 1e-6);
        twin_step_all(&twin, &rig, ones, factor < 1 ? (float)factor : 1);
        twin_compare(&twin, &rig);
    }
    rig_close(&rig);
}

/* A push whose norm is not finite is dropped on every block, also on those that look sound and on
 * those that come later; its worker is answered all the same and goes on. */
static void test_not_finite(void) {
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    static struct rig rig;
    struct twin twin;
    const float poison[RIG_VALUES] = {1, NAN, INFINITY, 1};
    rig_prepare(&rig, "async", 2);
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    log_set_level(LOG_ERROR); /* dropped pushes are warned of */
    uint64_t seq = 0;
    for (int i = 0; i < 3; i++) {
        seq++;
        for (uint64_t block = 0; block < 2; block++) {
            rig_push(&rig, 0, block, seq, seq - 1, block == 0 ? poison : ones);
        }
        rig_commit(&rig, 0, seq, bad[i]);
        for (uint64_t block = 2; block < RIG_BLOCKS; block++) {
            rig_push(&rig, 0, block, seq, seq - 1, block == 3 ? poison : ones);
        }
        rig_poll(&rig);
        for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
            twin_skip(&twin, block);
        }
        twin_compare(&twin, &rig);
        expect_all(&rig, 0, (uint32_t)seq + 1, seq, seq);
        CHECK_INT(rig.shard.counters.skipped, (uint64_t)(i + 1) * RIG_BLOCKS);
        seq++;
        push_blocks(&rig, 0, seq, ones);
        rig_commit(&rig, 0, seq, 15);
        rig_poll(&rig);
        twin_step_all(&twin, &rig, ones, 1);
        twin_compare(&twin, &rig);
        expect_all(&rig, 0, (uint32_t)seq + 1, seq, seq);
        fake_channel_finish_all(&rig.fake);
    }
    CHECK_INT(fake_channel_taken(&rig.fake), 0);
    rig_close(&rig);
}

/* ---- staleness and the schedule ---- */

/* Worker 1's gradient is of version 0; worker 0 makes k updates before its turn comes. */
static void test_staleness(void) {
    static struct rig rig;
    struct twin twin;
    rig_prepare(&rig, "async", 2);
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    rig_push(&rig, 1, 0, 1, 0, ones);
    rig_poll(&rig);
    for (uint64_t seq = 1; seq <= 3; seq++) {
        rig_push(&rig, 0, 0, seq, seq - 1, ones);
        rig_commit(&rig, 0, seq, 4);
        rig_poll(&rig);
        CHECK_INT(rig_expect(&rig, 0, 0, (uint32_t)seq + 1, seq, seq)->frame.staleness, 0);
    }
    rig_commit(&rig, 1, 1, 4);
    rig_poll(&rig);
    CHECK_INT(rig_expect(&rig, 1, 0, 2, 1, 4)->frame.staleness, 3);
    rig_push(&rig, 0, 0, 4, 3, ones); /* one update late */
    rig_commit(&rig, 0, 4, 4);
    rig_poll(&rig);
    CHECK_INT(rig_expect(&rig, 0, 0, 5, 4, 5)->frame.staleness, 1);
    rig_push(&rig, 1, 0, 2, 99, ones); /* of a version that there is not: not negative */
    rig_commit(&rig, 1, 2, 4);
    rig_poll(&rig);
    CHECK_INT(rig_expect(&rig, 1, 0, 3, 2, 6)->frame.staleness, 0);
    CHECK_INT(rig.shard.counters.staleness_sum, 4);
    CHECK_INT(rig.shard.counters.staleness_max, 3);
    CHECK_INT(rig.shard.counters.pushes, 6);
    rig_close(&rig);
}

/* Update n uses the rate of step n / workers; the optimizer steps with every push. */
static void test_schedule(void) {
    static struct rig rig;
    struct twin twin;
    struct random_stream random;
    float grad[RIG_VALUES];
    random_open(&random, 4, RANDOM_SIMULATOR, 0);
    rig_prepare(&rig, "async", 3);
    (void)snprintf(rig.job.optimizer, sizeof rig.job.optimizer, "adamw");
    (void)snprintf(rig.job.schedule, sizeof rig.job.schedule, "cosine");
    rig.job.warmup = 2;
    rig.job.steps = 6;
    rig.job.weight_decay = 0.1;
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    for (uint64_t update = 0; update < 18; update++) {
        uint32_t rank = (uint32_t)(update % 3);
        rig_gradient(&random, grad);
        push_blocks(&rig, rank, 1 + update / 3, grad);
        rig_commit(&rig, rank, 1 + update / 3, 1);
        rig_poll(&rig);
        for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
            twin_step(&twin, &rig, block, grad, 1);
        }
        twin_compare(&twin, &rig);
        fake_channel_finish_all(&rig.fake);
        rig_poll(&rig);
    }
    rig_close(&rig);
}

/* ---- ssp ---- */

static void step_worker(struct rig *rig, uint32_t rank, uint64_t seq) {
    rig_push(rig, rank, 0, seq, 0, ones);
    rig_commit(rig, rank, seq, 4);
    rig_poll(rig);
}

/* The fast worker is answered up to S pushes ahead of the slowest, then when that one catches up.
 * Its push counts at once; only the answer waits. */
static void test_ssp(void) {
    static const uint64_t bounds[] = {1, 3};
    for (int b = 0; b < 2; b++) {
        static struct rig rig;
        struct twin twin;
        char mode[32];
        uint64_t bound = bounds[b];
        (void)snprintf(mode, sizeof mode, "ssp:%d", (int)bound);
        rig_prepare(&rig, mode, 3);
        rig_open(&rig, 1, 0);
        rig_start(&rig, &twin);
        for (uint64_t seq = 1; seq <= bound; seq++) {
            step_worker(&rig, 0, seq);
            (void)rig_expect(&rig, 0, 0, (uint32_t)seq + 1, seq, seq);
        }
        uint64_t ahead = bound + 1;
        step_worker(&rig, 0, ahead);
        CHECK_INT(rig_block(&rig, 0)->version, ahead);
        CHECK(rig_next(&rig) == NULL);
        rig_push(&rig, 0, 0, ahead, 0, ones); /* asking again does not help */
        rig_poll(&rig);
        CHECK(rig_next(&rig) == NULL);
        step_worker(&rig, 1, 1); /* not the slowest, and not ahead itself */
        (void)rig_expect(&rig, 1, 0, 2, 1, ahead + 1);
        CHECK(rig_next(&rig) == NULL);
        step_worker(&rig, 2, 1);
        (void)rig_expect(&rig, 0, 0, (uint32_t)ahead + 1, ahead, ahead + 2);
        (void)rig_expect(&rig, 2, 0, 2, 1, ahead + 2);
        CHECK(rig_next(&rig) == NULL);
        rig_close(&rig);
    }
}

/* Who waits for a slow worker is answered when that one goes, or when a change of mode is to come.
 */
static void test_ssp_without_the_slowest(void) {
    for (int how = 0; how < 2; how++) {
        static struct rig rig;
        struct twin twin;
        rig_prepare(&rig, "ssp:1", 3);
        rig_open(&rig, 1, 0);
        rig_start(&rig, &twin);
        step_worker(&rig, 1, 1);
        step_worker(&rig, 0, 1);
        rig.seen = rig.fake.send_count;
        step_worker(&rig, 0, 2);
        CHECK(rig_next(&rig) == NULL);
        if (how == 0) {
            rig_gone(&rig, 2);
        } else {
            rig_order(&rig, &(struct shard_order){.kind = SHARD_RELEASE});
        }
        rig_poll(&rig);
        (void)rig_expect(&rig, 0, 0, 3, 2, 3);
        step_worker(&rig, 0, 3); /* worker 1's clock is 1 */
        CHECK(how == 0 ? rig_next(&rig) == NULL : rig_next(&rig) != NULL);
        rig_close(&rig);
    }
}

/* async never waits. */
static void test_async_runs_ahead(void) {
    static struct rig rig;
    struct twin twin;
    rig_prepare(&rig, "async", 3);
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    for (uint64_t seq = 1; seq <= 200; seq++) {
        step_worker(&rig, 2, seq);
        (void)rig_expect(&rig, 2, 0, (uint32_t)seq + 1, seq, seq);
        fake_channel_finish_all(&rig.fake);
    }
    rig_close(&rig);
}

/* ---- answers that must wait ---- */

static void test_channel_full(void) {
    static struct rig rig;
    struct twin twin;
    bool answered[3][RIG_BLOCKS] = {{false}};
    rig_prepare(&rig, "async", 3);
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    rig.fake.room = 0;
    for (uint32_t rank = 0; rank < 3; rank++) {
        for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
            rig_pull(&rig, rank, block, 2);
        }
    }
    rig_poll(&rig);
    CHECK(rig_next(&rig) == NULL);
    CHECK(!shard_poll(&rig.shard, 0)); /* it can do nothing, and says so */
    for (int i = 0; i < 3 * RIG_BLOCKS; i++) {
        rig.fake.room = 1;
        rig_poll(&rig);
        const struct fake_send *send = rig_next(&rig);
        CHECK(send != NULL && rig_next(&rig) == NULL);
        CHECK_INT(send->frame.ticket, 2);
        CHECK(!answered[send->frame.rank][send->frame.block]);
        answered[send->frame.rank][send->frame.block] = true;
    }
    rig.fake.room = UINT32_MAX;
    rig_poll(&rig);
    CHECK(rig_next(&rig) == NULL);
    rig_close(&rig);
}

/* Each version of block 0 is still on its way when the next is due, until all buffers are: then the
 * answer waits for a buffer, however much room the channel has, and then has the newest weights. */
static void test_buffers_full(void) {
    static struct rig rig;
    struct twin twin;
    rig_prepare(&rig, "async", 2);
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    uint32_t first = rig.fake.send_count;
    uint64_t seq = 0;
    for (;;) {
        seq++;
        rig_push(&rig, 0, 0, seq, seq - 1, ones);
        rig_commit(&rig, 0, seq, 4);
        rig_poll(&rig);
        twin_step(&twin, &rig, 0, ones, 1);
        if (rig_next(&rig) == NULL) {
            break;
        }
        CHECK(seq < 1000);
    }
    /* The other blocks' buffers hold current versions. */
    CHECK_INT(seq - 1, rig.shard.buffer_count - (RIG_BLOCKS - 1));
    CHECK(!shard_poll(&rig.shard, 0));
    rig_pull(&rig, 1, 0, 2); /* of the same new version: waits, too */
    rig_poll(&rig);
    CHECK(rig_next(&rig) == NULL);
    fake_channel_finish(&rig.fake, first + 3, STATUS_OK);
    rig_poll(&rig);
    const struct fake_send *answer = rig_expect(&rig, 0, 0, (uint32_t)seq + 1, seq, seq);
    CHECK(memcmp(answer->copy, twin.weights[0], answer->bytes) == 0);
    (void)rig_expect(&rig, 1, 0, 2, 0, seq);
    CHECK(rig_next(&rig) == NULL);
    fake_channel_finish_all(&rig.fake); /* all others still have the bytes they left with */
    rig_poll(&rig);
    CHECK_INT(rig.shard.free_count, rig.shard.buffer_count - RIG_BLOCKS);
    rig_close(&rig);
}

/* One encoding serves all who wait, and is not used again before the last of them has it. */
static void test_shared_buffer(void) {
    static struct rig rig;
    struct twin twin;
    const struct fake_send *sends[3];
    rig_prepare(&rig, "async", 3);
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    uint32_t first = rig.fake.send_count;
    for (uint32_t rank = 0; rank < 3; rank++) {
        rig_pull(&rig, rank, 1, 2);
    }
    rig_poll(&rig);
    for (uint32_t rank = 0; rank < 3; rank++) {
        sends[rank] = rig_expect(&rig, rank, 1, 2, 0, 0);
        CHECK(sends[rank]->payload == sends[0]->payload);
    }
    uint32_t free_count = rig.shard.free_count;
    rig_push(&rig, 0, 1, 1, 0, ones);
    rig_commit(&rig, 0, 1, 4);
    rig_poll(&rig);
    CHECK(rig_expect(&rig, 0, 1, 2, 1, 1)->payload != sends[0]->payload);
    CHECK_INT(rig.shard.free_count, free_count - 1);
    fake_channel_finish(&rig.fake, first + 1, STATUS_OK);
    fake_channel_finish(&rig.fake, first, STATUS_PEER_LOST); /* over is over */
    rig_poll(&rig);
    CHECK_INT(rig.shard.free_count, free_count - 1);
    fake_channel_finish(&rig.fake, first + 2, STATUS_OK);
    rig_poll(&rig);
    CHECK_INT(rig.shard.free_count, free_count);
    rig_close(&rig);
}

/* A worker's connection breaks and is made again: behind a greeting it gets all last answers again,
 * but for the block that it has pushed since; the others get nothing. When it has gone, or was out
 * of reach for a lease, it is not connected again. */
static void test_lost_and_back(void) {
    static struct rig rig;
    struct twin twin;
    const float grad[RIG_VALUES] = {1, 2, 3, 4};
    rig_prepare(&rig, "async", 3);
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    const int64_t lease_ns = job_lease_ns(&rig.job);
    rig_push(&rig, 1, 2, 1, 0, grad); /* held until the commit */
    rig_poll(&rig);
    fake_channel_lose(&rig.fake, 1);
    rig_poll(&rig);
    CHECK_INT(shard_deadline_ns(&rig.shard), lease_ns / 32);
    rig.now_ns = lease_ns / 32;
    rig_poll(&rig);
    CHECK_INT(rig.fake.connects[1], 1);
    const struct fake_send *greeting = rig_next(&rig);
    CHECK(greeting != NULL && greeting->peer == 1 && greeting->bytes == 0);
    CHECK_INT(greeting->frame.ticket, 0);
    (void)rig_expect(&rig, 1, 3, 1, 0, 0);
    (void)rig_expect(&rig, 1, 0, 1, 0, 0);
    (void)rig_expect(&rig, 1, 1, 1, 0, 0);
    CHECK(rig_next(&rig) == NULL);
    fake_channel_finish_all(&rig.fake);
    rig_poll(&rig);
    CHECK_INT(shard_deadline_ns(&rig.shard), INT64_MAX);
    rig.fake.connect_status = STATUS_PEER_LOST;
    for (uint32_t rank = 0; rank < 2; rank++) {
        fake_channel_lose(&rig.fake, rank);
    }
    rig_order(&rig, &(struct shard_order){.kind = SHARD_GONE, .gone = 0});
    rig_poll(&rig);
    rig.now_ns += lease_ns - 1;
    rig_poll(&rig);
    CHECK_INT(rig.fake.connects[1], 2);
    CHECK_INT(atomic_load(&rig.shard.lost_worker), -1);
    rig.now_ns += 1;
    rig_poll(&rig);
    CHECK_INT(atomic_load(&rig.shard.lost_worker), 1);
    rig_order(&rig, &(struct shard_order){.kind = SHARD_GONE, .gone = 1});
    rig_poll(&rig);
    CHECK_INT(atomic_load(&rig.shard.lost_worker), -1);
    CHECK_INT(rig.fake.connects[0], 0);
    CHECK_INT(rig.fake.connects[1], 2);
    rig_close(&rig);
}

/* A lost worker's answers are dropped; the others get theirs. */
static void test_lost_worker(void) {
    static struct rig rig;
    struct twin twin;
    rig_prepare(&rig, "async", 3);
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    fake_channel_lose(&rig.fake, 1);
    for (uint32_t rank = 0; rank < 3; rank++) {
        rig_pull(&rig, rank, 3, 2);
    }
    rig_poll(&rig);
    (void)rig_expect(&rig, 0, 3, 2, 0, 0);
    (void)rig_expect(&rig, 2, 3, 2, 0, 0);
    CHECK(rig_next(&rig) == NULL);
    CHECK_INT(rig.shard.due, 0);
    CHECK(!shard_poll(&rig.shard, 0));
    rig_close(&rig);
}

/* What the shard asks of its channel has room for each worker's push of each block. */
static void test_channel_config(void) {
    static struct rig rig;
    struct channel_config config;
    rig_prepare(&rig, "async", 5);
    rig_open(&rig, 2, 0); /* owns two of the four blocks */
    shard_channel_config(&rig.job, &rig.plan, 0, &config);
    CHECK_INT(config.peers_max, 5);
    CHECK(config.slots > 2 * 5 && config.sends_max >= 2 * 5);
    /* Any codec's payload fits, and the first weights, which are f32. */
    CHECK_INT(config.slot_bytes, decoder_payload_max(RIG_VALUES));
    CHECK(config.slot_bytes >= RIG_VALUES * sizeof(float));
    rig_close(&rig);
}

int main(void) {
    TEST_RUN(test_commit_places);
    TEST_RUN(test_commit_repetitions);
    TEST_RUN(test_commit_of_another);
    TEST_RUN(test_commit_in_sync);
    TEST_RUN(test_clip);
    TEST_RUN(test_not_finite);
    TEST_RUN(test_staleness);
    TEST_RUN(test_schedule);
    TEST_RUN(test_ssp);
    TEST_RUN(test_ssp_without_the_slowest);
    TEST_RUN(test_async_runs_ahead);
    TEST_RUN(test_channel_full);
    TEST_RUN(test_buffers_full);
    TEST_RUN(test_shared_buffer);
    TEST_RUN(test_lost_and_back);
    TEST_RUN(test_lost_worker);
    TEST_RUN(test_channel_config);
    return 0;
}
