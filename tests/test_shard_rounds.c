/* Proves what a shard does in rounds of all workers beyond plain sync (test_shard.c): weights,
 * fragments, frozen blocks, and workers that go in any phase of a round.
 *
 * One struct shard is driven through a channel made by hand (shard_rig.h). Weights are compared bit
 * for bit with a plain twin; each answer's weight, version and addressee, and each note, is looked
 * at, and so are the channel's slots, which must all come back.
 */
#include "base/log.h"
#include "tests/shard_rig.h"
#include "tests/test.h"

#include <math.h>

/* ---- weights ---- */

static void test_weights(void) {
    static const double weights[3] = {1, 0.5, 0};
    static const uint32_t all[3] = {0, 1, 2};
    static struct rig rig;
    struct twin twin;
    rig_prepare(&rig, "sync", 3);
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    for (uint32_t rank = 3; rank-- > 0;) {
        rig.weight = weights[rank];
        rig_push_report(&rig, rank, 1);
    }
    struct vote_report report = rig_note(&rig, SHARD_REPORT).report;
    CHECK_INT(report.contributors, 3);
    CHECK_NEAR(report.weight, 1.5, 0);
    rig_verdict(&rig, 1, false, 1);
    rig_poll(&rig);
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        twin_round(&twin, &rig, block, 3, all, 1.0F / 1.5F);
    }
    twin_compare(&twin, &rig);
    for (uint32_t rank = 0; rank < 3; rank++) {
        rig_expect_answers(&rig, rank, 1, 1, weights[rank]);
    }
    rig_see_all(&rig);
    /* Nobody has a token: the coordinator will skip the round. */
    rig.weight = 0;
    for (uint32_t rank = 0; rank < 3; rank++) {
        rig_push_report(&rig, rank, 2);
    }
    report = rig_note(&rig, SHARD_REPORT).report;
    CHECK_NEAR(report.weight, 0, 0);
    rig_verdict(&rig, 2, true, 0);
    rig_poll(&rig);
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        twin_skip(&twin, block);
    }
    twin_compare(&twin, &rig);
    rig_close(&rig);
}

static void test_wrong_weights(void) {
    static const double wrong[] = {NAN, INFINITY, -INFINITY, -1e-300, -1};
    static struct rig rig;
    struct twin twin;
    rig_prepare(&rig, "sync", 2);
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        uint64_t state = rig_state(&rig);
        rig.weight = wrong[i];
        rig_push(&rig, 0, 1, 1, 0, rig_grads[0]);
        rig_poll(&rig);
        CHECK(rig_state(&rig) == state);
        CHECK_INT(rig.shard.counters.corrupt, i + 1);
        CHECK_INT(fake_channel_taken(&rig.fake), 0);
    }
    /* A report whose blocks say different weights is reported as no sound one. */
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        for (uint32_t rank = 0; rank < 2; rank++) {
            rig.weight = block == 2 && rank == 1 ? 0.5 : 1;
            rig_push(&rig, rank, block, 1, 0, rig_grads[rank]);
        }
    }
    rig_poll(&rig);
    CHECK_INT(rig_note(&rig, SHARD_REPORT).report.contributors, 0);
    rig_close(&rig);
}

/* ---- fragments and frozen blocks ---- */

static void prepare_fragments(struct rig *rig) {
    rig_prepare(rig, "local:2", 2);
    rig->job.fragments = 2;
    rig->job.lr = 77; /* the workers' */
    rig->job.weight_decay = 0.5;
    rig->job.clip = 1e-3;
}

/* Each round steps the blocks of its fragment and no others, by the average: w - mean. */
static void test_fragments(void) {
    static struct rig rig;
    struct twin twin;
    prepare_fragments(&rig);
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    for (uint64_t round = 1; round <= 4; round++) {
        uint64_t fragment = (round - 1) % 2;
        rig_push_report(&rig, 1, round);
        rig_expect_silence(&rig);
        rig_push_report(&rig, 0, round);
        struct vote_report report = rig_note(&rig, SHARD_REPORT).report;
        CHECK_INT(report.round, round);
        CHECK_INT(report.block_count, 2);
        rig_verdict(&rig, round, false, 1);
        rig_poll(&rig);
        for (uint64_t n = 0; n < RIG_BLOCKS; n++) {
            uint64_t block = rig_need[n];
            if (rig.plan.blocks[block].fragment != fragment) {
                continue;
            }
            CHECK(report.blocks[0] == block || report.blocks[1] == block);
            twin.version[block]++;
            for (uint32_t i = 0; i < rig_count(&rig, block); i++) {
                twin.weights[block][i] -= (rig_grads[0][i] + rig_grads[1][i]) * 0.5F;
            }
            for (uint32_t rank = 0; rank < 2; rank++) {
                (void)rig_expect(&rig, rank, block, (uint32_t)round + 1, round, (round + 1) / 2);
            }
        }
        CHECK(rig_next(&rig) == NULL);
        twin_compare(&twin, &rig);
        fake_channel_finish_all(&rig.fake);
    }
    CHECK_INT(fake_channel_taken(&rig.fake), 0);
    rig_close(&rig);
}

/* A shard has no part in the rounds of fragments that it owns nothing of: it neither waits for
 * their verdicts nor minds them. */
static void test_shard_without_a_part(void) {
    for (uint64_t id = 0; id < RIG_BLOCKS; id++) {
        static struct rig rig;
        struct twin twin;
        prepare_fragments(&rig);
        rig_open(&rig, 4, id); /* one block a shard */
        CHECK_INT(rig.shard.block_count, 1);
        rig_start(&rig, &twin);
        uint64_t fragment = rig.shard.blocks[0].plan->fragment;
        CHECK_INT(rig.shard.round, fragment + 1);
        for (uint64_t round = 1; round <= 6; round++) {
            bool part = (round - 1) % 2 == fragment;
            CHECK_INT(shard_part(&rig.shard, round), part);
            if (part) {
                rig_push_report(&rig, 0, round);
                rig_push_report(&rig, 1, round);
                CHECK_INT(rig_note(&rig, SHARD_REPORT).report.round, round);
            }
            rig_verdict(&rig, round, false, 1);
            rig_poll(&rig);
            rig_expect_silence(&rig);
            CHECK_INT(rig.shard.blocks[0].version, (round + 1 - fragment) / 2);
        }
        rig_close(&rig);
    }
}

static void test_frozen(void) {
    static struct rig rig;
    struct twin twin;
    rig_prepare(&rig, "sync", 1);
    (void)snprintf(rig.job.rates, sizeof rig.job.rates, "b=0,w=0.5");
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin); /* pulls of the frozen block, too, are answered */
    uint64_t state = rig_state(&rig);
    rig_push(&rig, 0, 3, 1, 0, rig_grads[3]);
    rig_poll(&rig);
    CHECK(rig_state(&rig) == state);
    CHECK_INT(rig.shard.counters.corrupt, 1);
    rig_push_report(&rig, 0, 1);
    CHECK_INT(rig_note(&rig, SHARD_REPORT).report.block_count, 3);
    rig_verdict(&rig, 1, false, 1);
    rig_poll(&rig);
    rig.job.lr *= 0.5; /* the factor of w, for the twin */
    for (uint64_t block = 0; block < 3; block++) {
        twin_step(&twin, &rig, block, rig_grads[0], 1);
    }
    twin_compare(&twin, &rig);
    rig_close(&rig);
}

/* ---- workers that go: rounds of all ---- */

/* Worker `who` goes in one of the phases around round 2; the others are not held up, and their sum
 * is the one that they would have had without it. */
enum phase { WHILE_ITS_ANSWER_IS_DUE, BEFORE_THE_OTHERS, AS_THE_LAST_ONE };

static void first_round(struct rig *rig, struct twin *twin, uint32_t who, enum phase phase) {
    static const uint32_t all[3] = {0, 1, 2};
    for (uint32_t rank = 0; rank < 3; rank++) {
        rig_push_report(rig, rank, 1);
    }
    (void)rig_note(rig, SHARD_REPORT);
    if (phase == WHILE_ITS_ANSWER_IS_DUE) {
        rig_gone(rig, who);
        rig_poll(rig);
    }
    rig_verdict(rig, 1, false, 1);
    rig_poll(rig);
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        twin_round(twin, rig, block, 3, all, 1.0F / 3.0F);
    }
    CHECK_INT(rig_answers_to(rig, who), phase == WHILE_ITS_ANSWER_IS_DUE ? 0 : RIG_BLOCKS);
    rig_see_all(rig);
}

static void go(uint32_t who, enum phase phase) {
    static struct rig rig;
    struct twin twin;
    uint32_t others[2] = {who == 0 ? 1 : 0, who == 2 ? 1 : 2};
    rig_prepare(&rig, "sync", 3);
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    first_round(&rig, &twin, who, phase);
    if (phase == BEFORE_THE_OTHERS) {
        rig_gone(&rig, who);
        rig_poll(&rig);
    }
    rig_push_report(&rig, others[1], 2);
    rig_push_report(&rig, others[0], 2);
    if (phase == AS_THE_LAST_ONE) {
        rig_expect_silence(&rig);
        rig_gone(&rig, who);
        rig_poll(&rig);
    }
    CHECK_INT(rig_note(&rig, SHARD_REPORT).report.contributors, 2);
    rig_push_report(&rig, who, 2); /* from beyond */
    rig_pull(&rig, who, 0, 9);
    rig_verdict(&rig, 2, false, 1);
    rig_poll(&rig);
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        twin_round(&twin, &rig, block, 2, others, 0.5F);
    }
    twin_compare(&twin, &rig);
    CHECK_INT(rig.fake.send_count - rig.seen, 2 * RIG_BLOCKS);
    CHECK_INT(rig_answers_to(&rig, who), 0);
    CHECK_INT(fake_channel_taken(&rig.fake), 0);
    rig_close(&rig);
}

static void test_gone_in_rounds_of_all(void) {
    for (uint32_t who = 0; who < 3; who++) {
        go(who, WHILE_ITS_ANSWER_IS_DUE);
        go(who, BEFORE_THE_OTHERS);
        go(who, AS_THE_LAST_ONE);
    }
}

/* What was held of it is given back; when all have gone, nothing is reported. */
static void test_gone_with_held_pushes(void) {
    static struct rig rig;
    struct twin twin;
    rig_prepare(&rig, "sync", 3);
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    rig_push_report(&rig, 2, 1);
    CHECK_INT(fake_channel_taken(&rig.fake), RIG_BLOCKS);
    rig_gone(&rig, 2);
    rig_gone(&rig, 2); /* twice is once */
    rig_gone(&rig, 77);
    rig_poll(&rig);
    CHECK_INT(fake_channel_taken(&rig.fake), 0);
    CHECK_INT(rig.shard.living, 2);
    rig_gone(&rig, 1);
    rig_gone(&rig, 0);
    rig_poll(&rig);
    rig_expect_silence(&rig);
    twin_compare(&twin, &rig);
    rig_close(&rig);
}

int main(void) {
    log_set_level(LOG_ERROR); /* what is wrong on purpose is warned of */
    TEST_RUN(test_weights);
    TEST_RUN(test_wrong_weights);
    TEST_RUN(test_fragments);
    TEST_RUN(test_shard_without_a_part);
    TEST_RUN(test_frozen);
    TEST_RUN(test_gone_in_rounds_of_all);
    TEST_RUN(test_gone_with_held_pushes);
    return 0;
}
