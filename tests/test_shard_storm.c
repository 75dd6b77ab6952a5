/* Proves that what a shard computes does not depend on how the network behaves: over many seeds,
 * frames come in random order and in random batches, and in between everything that was ever sent
 * comes again.
 *
 * A plain twin is stepped by the definition: in sync with the sum in rank order once a round, in
 * async with each push when both it and its commit have come for the first time. The weights must
 * have the same bits all along. Each answer must be one that was due: to ticket t (push t - 1, or
 * the first pull) with seq t - 1, and with the bits of the version that it names; in the end the
 * last request of every worker and block is answered. Sends stay in flight for a random while.
 */
#include "base/log.h"
#include "tests/shard_rig.h"
#include "tests/test.h"

enum { STORMS = 60, ROUNDS = 8, HISTORY = 1024, UPDATES_MAX = 64 };

struct message {
    struct frame frame;
    float payload[RIG_VALUES];
    size_t bytes;
};

struct storm {
    struct rig rig;
    struct twin twin;
    struct random_stream random;
    struct message history[HISTORY]; /* all that was ever sent, once each */
    uint32_t count;
    float versions[RIG_BLOCKS][UPDATES_MAX][RIG_VALUES];
    uint32_t last_answer[RIG_WORKERS][RIG_BLOCKS]; /* the highest ticket answered */
    /* async: what is known to the definition */
    uint64_t committed[RIG_WORKERS], pushed[RIG_WORKERS][RIG_BLOCKS];
    float grads[RIG_WORKERS][RIG_BLOCKS][RIG_VALUES];
};

static void deliver(struct storm *storm, const struct message *message) {
    fake_channel_receive(&storm->rig.fake, &message->frame, message->payload, message->bytes);
}

/* Everything that was sent since the last look was due. */
static void check_answers(struct storm *storm) {
    const struct fake_send *send;
    while ((send = rig_next(&storm->rig)) != NULL) {
        const struct frame *frame = &send->frame;
        CHECK_INT(frame->kind, FRAME_WEIGHTS);
        CHECK_INT(frame->rank, send->peer);
        CHECK_INT(frame->session, 1000 + frame->rank);
        CHECK_INT(frame->ticket, frame->seq + 1);
        CHECK(frame->block_version < UPDATES_MAX);
        CHECK(memcmp(send->copy, storm->versions[frame->block][frame->block_version],
                     send->bytes) == 0);
        uint32_t *last = &storm->last_answer[frame->rank][frame->block];
        CHECK(frame->ticket >= *last);
        *last = frame->ticket;
    }
}

static void record_version(struct storm *storm, uint64_t block) {
    uint64_t version = storm->twin.version[block];
    CHECK(version < UPDATES_MAX);
    memcpy(storm->versions[block][version], storm->twin.weights[block],
           sizeof storm->twin.weights[block]);
}

/* Old frames come again, sends end, and the shard runs: any of it, or none. */
static void disturb(struct storm *storm) {
    struct rig *rig = &storm->rig;
    while (storm->count > 0 && random_below(&storm->random, 2) == 0) {
        /* Late repetitions are mostly of what was sent lately. */
        uint64_t back = random_below(&storm->random, random_below(&storm->random, 2) == 0
                                                         ? storm->count
                                                         : (storm->count < 8 ? storm->count : 8));
        deliver(storm, &storm->history[storm->count - 1 - back]);
    }
    for (uint32_t i = rig->fake.send_count > 40 ? rig->fake.send_count - 40 : 0;
         i < rig->fake.send_count; i++) {
        if (!rig->fake.sends[i].over && random_below(&storm->random, 4) == 0) {
            fake_channel_finish(&rig->fake, i, STATUS_OK);
        }
    }
    if (random_below(&storm->random, 2) == 0) {
        (void)shard_poll(&rig->shard, 0);
    }
}

/* A frame that was not sent before goes out, remembered for repetitions. */
static void send_new(struct storm *storm, const struct frame *frame, const float *payload,
                     size_t bytes) {
    CHECK(storm->count < HISTORY);
    struct message *message = &storm->history[storm->count++];
    *message = (struct message){.frame = *frame, .bytes = bytes};
    if (bytes > 0) {
        memcpy(message->payload, payload, bytes);
    }
    deliver(storm, message);
    disturb(storm);
}

static void send_push(struct storm *storm, uint32_t rank, uint64_t block, uint64_t seq,
                      uint64_t version, const float *grad) {
    struct frame frame = rig_frame(&storm->rig, FRAME_PUSH, rank, block);
    frame.seq = seq;
    frame.ticket = (uint32_t)seq + 1;
    frame.block_version = version;
    frame.scalar = 1;
    send_new(storm, &frame, grad, rig_count(&storm->rig, block) * sizeof(float));
}

/* Sends are over, answers out; the last request of everyone was answered. */
static void settle(struct storm *storm, const uint64_t *seqs) {
    struct rig *rig = &storm->rig;
    rig_poll(rig);
    fake_channel_finish_all(&rig->fake);
    rig_poll(rig);
    check_answers(storm);
    for (uint32_t rank = 0; rank < rig->shard.workers; rank++) {
        for (uint64_t i = 0; i < rig->shard.block_count; i++) {
            CHECK_INT(storm->last_answer[rank][rig->shard.blocks[i].plan->id], seqs[rank] + 1);
        }
    }
    CHECK_INT(rig->shard.due, 0);
}

static void open_storm(struct storm *storm, const char *mode, uint64_t seed) {
    memset(storm, 0, sizeof *storm);
    random_open(&storm->random, seed, RANDOM_SIMULATOR, 0);
    rig_prepare(&storm->rig, mode, 3);
    storm->rig.job.momentum = 0.9;
    storm->rig.job.weight_decay = 0.1;
    rig_open(&storm->rig, 1 + seed % 2, 0);
    twin_open(&storm->twin, &storm->rig);
    for (uint64_t i = 0; i < storm->rig.shard.block_count; i++) {
        uint64_t block = storm->rig.shard.blocks[i].plan->id;
        struct frame init = rig_frame(&storm->rig, FRAME_INIT, 0, block);
        record_version(storm, block);
        for (uint32_t rank = 0; rank < 3; rank++) {
            struct frame pull = rig_frame(&storm->rig, FRAME_PULL, rank, block);
            pull.ticket = 1;
            send_new(storm, &pull, NULL, 0);
        }
        send_new(storm, &init, storm->twin.weights[block],
                 rig_count(&storm->rig, block) * sizeof(float));
    }
    settle(storm, (const uint64_t[3]){0, 0, 0});
}

/* items [count] in a random order. */
static void shuffle(struct random_stream *random, uint32_t *items, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t other = (uint32_t)random_below(random, i + 1);
        items[i] = items[other];
        items[other] = i;
    }
}

static void sync_round(struct storm *storm, uint64_t number) {
    struct rig *rig = &storm->rig;
    float sums[RIG_BLOCKS][RIG_VALUES] = {{0}};
    uint32_t order[3 * RIG_BLOCKS];
    uint32_t count = 3 * (uint32_t)rig->shard.block_count;
    for (uint32_t rank = 0; rank < 3; rank++) {
        for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
            rig_gradient(&storm->random, storm->grads[rank][block]);
            for (uint32_t i = 0; i < rig_count(rig, block); i++) {
                sums[block][i] += storm->grads[rank][block][i];
            }
        }
    }
    shuffle(&storm->random, order, count);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t block = rig->shard.blocks[order[i] / 3].plan->id;
        rig_expect_silence(rig);
        send_push(storm, order[i] % 3, block, number, number - 1,
                  storm->grads[order[i] % 3][block]);
        check_answers(storm);
    }
    rig_poll(rig);
    CHECK_INT(rig_note(rig, SHARD_REPORT).report.round, number);
    disturb(storm);
    rig_verdict(rig, number, false, 0.5F);
    rig_poll(rig);
    for (uint64_t i = 0; i < rig->shard.block_count; i++) {
        uint64_t block = rig->shard.blocks[i].plan->id;
        twin_step(&storm->twin, rig, block, sums[block], 0.5F * (1.0F / 3.0F));
        record_version(storm, block);
    }
    twin_compare(&storm->twin, rig);
    settle(storm, (const uint64_t[3]){number, number, number});
    CHECK_INT(fake_channel_taken(&rig->fake), 0);
}

static void test_sync(void) {
    for (uint64_t seed = 0; seed < STORMS; seed++) {
        static struct storm storm;
        open_storm(&storm, "sync", seed);
        for (uint64_t number = 1; number <= ROUNDS; number++) {
            sync_round(&storm, number);
        }
        CHECK_INT(storm.rig.shard.counters.pushes, ROUNDS * 3 * storm.rig.shard.block_count);
        CHECK(storm.rig.shard.counters.duplicates > 0);
        CHECK_INT(storm.rig.shard.counters.breaches, 0);
        rig_close(&storm.rig);
    }
}

/* ---- async ---- */

/* By the definition: the push has its turn now. */
static void apply(struct storm *storm, uint32_t rank, uint64_t block) {
    twin_step(&storm->twin, &storm->rig, block, storm->grads[rank][block], 1);
    record_version(storm, block);
}

/* Worker `rank` makes its step, message by message; called again and again, in turn with others, so
 * that their messages mix. True when it is complete. */
static bool async_message(struct storm *storm, uint32_t rank, uint64_t seq, const uint32_t *order,
                          uint32_t at) {
    struct rig *rig = &storm->rig;
    uint32_t blocks = (uint32_t)rig->shard.block_count;
    if (order[at] == blocks) {
        struct frame commit = rig_frame(rig, FRAME_COMMIT, rank, 0);
        commit.seq = seq;
        commit.scalar = 1;
        storm->committed[rank] = seq;
        for (uint64_t i = 0; i < blocks; i++) {
            uint64_t block = rig->shard.blocks[i].plan->id;
            if (storm->pushed[rank][block] == seq) {
                apply(storm, rank, block);
            }
        }
        send_new(storm, &commit, NULL, 0);
    } else {
        uint64_t block = rig->shard.blocks[order[at]].plan->id;
        rig_gradient(&storm->random, storm->grads[rank][block]);
        storm->pushed[rank][block] = seq;
        if (storm->committed[rank] == seq) {
            apply(storm, rank, block);
        }
        send_push(storm, rank, block, seq, seq - 1, storm->grads[rank][block]);
    }
    rig_poll(rig);
    twin_compare(&storm->twin, rig);
    check_answers(storm);
    return at == blocks;
}

static void test_async(void) {
    for (uint64_t seed = 0; seed < STORMS; seed++) {
        static struct storm storm;
        uint32_t order[3][RIG_BLOCKS + 1], at[3] = {0};
        uint64_t seqs[3] = {0};
        open_storm(&storm, "async", seed);
        uint32_t blocks = (uint32_t)storm.rig.shard.block_count;
        for (uint64_t steps = 0; steps < 2 * ROUNDS;) {
            uint32_t rank = (uint32_t)random_below(&storm.random, 3);
            if (at[rank] == 0) {
                shuffle(&storm.random, order[rank], blocks + 1);
                seqs[rank]++;
            }
            if (async_message(&storm, rank, seqs[rank], order[rank], at[rank]++)) {
                at[rank] = 0;
                steps++;
            }
        }
        for (uint32_t rank = 0; rank < 3; rank++) { /* the steps that are under way */
            while (at[rank] != 0) {
                bool complete = async_message(&storm, rank, seqs[rank], order[rank], at[rank]);
                at[rank] = complete ? 0 : at[rank] + 1;
            }
        }
        settle(&storm, seqs);
        CHECK_INT(storm.rig.shard.counters.pushes, (seqs[0] + seqs[1] + seqs[2]) * blocks);
        CHECK_INT(fake_channel_taken(&storm.rig.fake), 0);
        rig_close(&storm.rig);
    }
}

int main(void) {
    log_set_level(LOG_ERROR);
    TEST_RUN(test_sync);
    TEST_RUN(test_async);
    return 0;
}
