/* Proves what a shard does in rounds of a quorum: who is said to be there, who is summed when the
 * coordinator closes the round, and what becomes of those that come too late, or go.
 *
 * One struct shard is driven through a channel made by hand (shard_rig.h). Weights are compared bit
 * for bit with a plain twin; each answer's weight, version and addressee, and each note, is looked
 * at, and so are the channel's slots, which must all come back.
 */
#include "base/log.h"
#include "tests/shard_rig.h"
#include "tests/test.h"

static void open_quorum(struct rig *rig, struct twin *twin, const char *late) {
    rig_prepare(rig, "sync", 4);
    rig->job.steps = 3;
    (void)snprintf(rig->job.quorum, sizeof rig->job.quorum, "2");
    (void)snprintf(rig->job.late, sizeof rig->job.late, "%s", late);
    rig_open(rig, 1, 0);
    rig_start(rig, twin);
}

static void twin_round_all(struct twin *twin, const struct rig *rig, uint32_t count,
                           const uint32_t *ranks) {
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        twin_round(twin, rig, block, count, ranks, 1.0F / (float)count);
    }
}

/* Said when the last block of a report is there; summed when the coordinator names it, in order of
 * rank; who is held but not named is dropped with the verdict, who comes later at once. */
static void test_quorum(void) {
    static const uint32_t first[2] = {1, 3}, second[2] = {0, 2};
    static struct rig rig;
    struct twin twin;
    open_quorum(&rig, &twin, "drop");
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        rig_push(&rig, 3, block, 1, 0, rig_grads[3]);
        rig_poll(&rig);
        CHECK(block == RIG_BLOCKS - 1 || ring_count(&rig.shard.notes) == 0);
    }
    rig_expect_arrival(&rig, 1, 3, 1);
    rig_push(&rig, 3, 0, 1, 0, rig_grads[3]); /* repeated: held already */
    rig_push_report(&rig, 2, 1);
    rig_expect_arrival(&rig, 1, 2, 1);
    rig_push_report(&rig, 1, 1);
    rig_expect_arrival(&rig, 1, 1, 1);
    rig_close_round(&rig, 2, 2, first); /* of another round */
    rig_poll(&rig);
    rig_expect_silence(&rig);
    CHECK_INT(fake_channel_taken(&rig.fake), 3 * RIG_BLOCKS);
    rig_close_round(&rig, 1, 2, first);
    rig_close_round(&rig, 1, 2, second); /* it is closed */
    rig_poll(&rig);
    struct vote_report report = rig_note(&rig, SHARD_REPORT).report;
    CHECK_INT(report.contributors, 2);
    CHECK_NEAR(report.weight, 2, 0);
    CHECK_INT(fake_channel_taken(&rig.fake), RIG_BLOCKS); /* worker 2's */
    CHECK(rig_next(&rig) == NULL);
    rig_verdict(&rig, 1, false, 1);
    rig_poll(&rig);
    twin_round_all(&twin, &rig, 2, first);
    twin_compare(&twin, &rig);
    rig_expect_answers(&rig, 1, 1, 1, 1);
    rig_expect_answers(&rig, 3, 1, 1, 1);
    rig_expect_answers(&rig, 2, 1, 1, 0);
    rig_expect_silence(&rig); /* that worker 2 was there is known */
    CHECK_INT(fake_channel_taken(&rig.fake), 0);
    CHECK_INT(rig.shard.counters.dropped, RIG_BLOCKS);
    rig_see_all(&rig);
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        rig_push(&rig, 0, block, 1, 0, rig_grads[0]); /* of version 0, in round 2 */
        rig_poll(&rig);
        (void)rig_expect(&rig, 0, block, 2, 1, 1);
        CHECK_INT(fake_channel_taken(&rig.fake), 0);
    }
    rig_expect_arrival(&rig, 1, 0, 1); /* for the statistic of round 1 */
    rig_see_all(&rig);
    rig_push_report(&rig, 0, 2); /* from now on it is as good as any */
    rig_expect_arrival(&rig, 2, 0, 2);
    rig_push_report(&rig, 2, 2);
    rig_expect_arrival(&rig, 2, 2, 2);
    rig_close_round(&rig, 2, 2, second);
    rig_verdict(&rig, 2, false, 1);
    rig_poll(&rig);
    twin_round_all(&twin, &rig, 2, second);
    twin_compare(&twin, &rig);
    CHECK_INT(rig.shard.ranks[0].counted, 1);
    CHECK_INT(rig.shard.ranks[0].dropped, 1);
    rig_close(&rig);
}

/* Half of a report came before the round closed, the rest after it: dropped, and said once. */
static void test_report_across_the_close(void) {
    static const uint32_t first[2] = {0, 1};
    static struct rig rig;
    struct twin twin;
    open_quorum(&rig, &twin, "drop");
    rig_push_report(&rig, 0, 1);
    rig_push_report(&rig, 1, 1);
    rig_expect_arrival(&rig, 1, 0, 1);
    rig_expect_arrival(&rig, 1, 1, 1);
    rig_push(&rig, 2, 0, 1, 0, rig_grads[2]);
    rig_push(&rig, 2, 3, 1, 0, rig_grads[2]);
    rig_close_round(&rig, 1, 2, first);
    rig_poll(&rig);
    (void)rig_note(&rig, SHARD_REPORT);
    rig_push(&rig, 2, 1, 1, 0, rig_grads[2]); /* after the close, before the verdict */
    rig_poll(&rig);
    rig_verdict(&rig, 1, false, 1);
    rig_poll(&rig);
    CHECK_INT(rig_answers_to(&rig, 2), 3);
    rig_expect_silence(&rig);
    rig_push(&rig, 2, 2, 1, 0, rig_grads[2]);
    rig_poll(&rig);
    rig_expect_answers(&rig, 2, 1, 1, 0);
    rig_expect_arrival(&rig, 1, 2, 1);
    rig_expect_silence(&rig);
    CHECK_INT(fake_channel_taken(&rig.fake), 0);
    rig_close(&rig);
}

/* A worker whose blocks are of different versions: late at one block, so all of it is dropped. */
static void test_mixed_versions(void) {
    static const uint32_t first[2] = {0, 1};
    static struct rig rig;
    struct twin twin;
    open_quorum(&rig, &twin, "drop");
    rig_push_report(&rig, 0, 1);
    rig_push_report(&rig, 1, 1);
    rig_close_round(&rig, 1, 2, first);
    rig_verdict(&rig, 1, false, 1);
    rig_poll(&rig);
    while (ring_count(&rig.shard.notes) > 0) {
        struct shard_note note;
        CHECK_INT(ring_pop(&rig.shard.notes, &note), STATUS_OK);
    }
    rig_see_all(&rig);
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        rig_push(&rig, 3, block, 1, block == 1 ? 0 : 1, rig_grads[3]);
    }
    rig_poll(&rig);
    rig_expect_answers(&rig, 3, 1, 1, 0);
    rig_expect_arrival(&rig, 1, 3, 1);
    rig_expect_silence(&rig);
    CHECK_INT(fake_channel_taken(&rig.fake), 0);
    rig_close(&rig);
}

/* In another shard it came too late: the coordinator says so. */
static void test_drop(void) {
    static struct rig rig;
    struct twin twin;
    open_quorum(&rig, &twin, "drop");
    rig_push_report(&rig, 1, 1);
    rig_expect_arrival(&rig, 1, 1, 1);
    for (uint64_t seq = 0; seq < 3; seq++) {
        rig_order(&rig, &(struct shard_order){.kind = SHARD_DROP, .drop = {seq, 2 - seq % 2}});
        rig_poll(&rig);
        CHECK_INT(rig_answers_to(&rig, 1), seq == 1 ? RIG_BLOCKS : 0);
        if (seq == 1) {
            rig_expect_answers(&rig, 1, 1, 0, 0);
            rig_see_all(&rig);
        }
    }
    CHECK_INT(fake_channel_taken(&rig.fake), 0);
    rig_push_report(&rig, 1, 2);
    rig_expect_arrival(&rig, 1, 1, 2);
    rig_close(&rig);
}

/* Late reports join: held over the close, said again, summed in the next round. */
static void test_late_joins(void) {
    static const uint32_t first[2] = {0, 3}, second[2] = {1, 2};
    static struct rig rig;
    struct twin twin;
    open_quorum(&rig, &twin, "join");
    rig_push_report(&rig, 0, 1);
    rig_push_report(&rig, 3, 1);
    rig_push_report(&rig, 2, 1);
    rig_expect_arrival(&rig, 1, 0, 1);
    rig_expect_arrival(&rig, 1, 3, 1);
    rig_expect_arrival(&rig, 1, 2, 1);
    rig_push(&rig, 1, 0, 1, 0, rig_grads[1]);
    rig_close_round(&rig, 1, 2, first);
    rig_verdict(&rig, 1, false, 1);
    rig_poll(&rig);
    (void)rig_note(&rig, SHARD_REPORT);
    twin_round_all(&twin, &rig, 2, first);
    rig_expect_arrival(&rig, 2, 2, 1); /* whole, and there for round 2 */
    CHECK_INT(rig_answers_to(&rig, 2) + rig_answers_to(&rig, 1), 0);
    rig_see_all(&rig);
    for (uint64_t block = 1; block < RIG_BLOCKS; block++) {
        rig_push(&rig, 1, block, 1, 0, rig_grads[1]);
    }
    rig_poll(&rig);
    rig_expect_arrival(&rig, 2, 1, 1);
    rig_close_round(&rig, 2, 2, second);
    rig_verdict(&rig, 2, false, 1);
    rig_poll(&rig);
    (void)rig_note(&rig, SHARD_REPORT);
    twin_round_all(&twin, &rig, 2, second);
    twin_compare(&twin, &rig);
    rig_expect_answers(&rig, 1, 1, 2, 1);
    rig_expect_answers(&rig, 2, 1, 2, 1);
    CHECK_INT(rig.shard.counters.dropped, 0);
    CHECK_INT(rig.shard.counters.staleness_max, 1);
    CHECK_INT(fake_channel_taken(&rig.fake), 0);
    rig_close(&rig);
}

/* After the last round nobody must wait for one that never closes: neither who is held then, nor
 * who comes later, whatever becomes of late reports. */
static void test_after_the_last_round(void) {
    static const char *const lates[] = {"drop", "join"};
    for (int k = 0; k < 2; k++) {
        static const uint32_t both[2] = {0, 1};
        static struct rig rig;
        struct twin twin;
        open_quorum(&rig, &twin, lates[k]);
        for (uint64_t round = 1; round <= 3; round++) {
            rig_push_report(&rig, 0, round);
            rig_push_report(&rig, 1, round);
            if (round == 3) {
                rig_push_report(&rig, 2, 1);
                rig_push(&rig, 3, 0, 1, 2, rig_grads[3]);
            }
            rig_close_round(&rig, round, 2, both);
            rig_verdict(&rig, round, false, 1);
            rig_poll(&rig);
            twin_round_all(&twin, &rig, 2, both);
        }
        CHECK_INT(rig_answers_to(&rig, 2), RIG_BLOCKS);
        CHECK_INT(rig_answers_to(&rig, 3), 1);
        for (uint64_t block = 1; block < RIG_BLOCKS; block++) {
            rig_push(&rig, 3, block, 1, 3, rig_grads[3]);
        }
        rig_push_report(&rig, 0, 4);
        CHECK_INT(rig_answers_to(&rig, 3), RIG_BLOCKS);
        CHECK_INT(rig_answers_to(&rig, 0), 4 * RIG_BLOCKS);
        twin_compare(&twin, &rig);
        CHECK_INT(fake_channel_taken(&rig.fake), 0);
        rig_close(&rig);
    }
}

/* A worker of the quorum goes: what is held of it is given back, what is in the sum stays. */
static void test_gone_in_a_quorum(void) {
    static const uint32_t named[3] = {0, 1, 2}, left[2] = {0, 2};
    for (int closed = 0; closed < 2; closed++) {
        static struct rig rig;
        struct twin twin;
        open_quorum(&rig, &twin, "join");
        for (uint32_t rank = 0; rank < 3; rank++) {
            rig_push_report(&rig, rank, 1);
            rig_expect_arrival(&rig, 1, rank, 1);
        }
        if (closed) {
            rig_close_round(&rig, 1, 3, named);
        }
        rig_gone(&rig, 1);
        rig_poll(&rig);
        CHECK_INT(fake_channel_taken(&rig.fake), closed ? 0 : 2 * RIG_BLOCKS);
        if (!closed) {
            rig_close_round(&rig, 1, 2, left);
            rig_poll(&rig);
        }
        CHECK_INT(rig_note(&rig, SHARD_REPORT).report.contributors, closed ? 3 : 2);
        rig_verdict(&rig, 1, false, 1);
        rig_poll(&rig);
        twin_round_all(&twin, &rig, closed ? 3 : 2, closed ? named : left);
        twin_compare(&twin, &rig);
        CHECK_INT(rig_answers_to(&rig, 1), 0);
        CHECK_INT(rig.fake.send_count - rig.seen, 2 * RIG_BLOCKS);
        rig_close(&rig);
    }
}

/* One that is named but not there would falsify the sum: the report is none that is taken. */
static void test_close_with_someone_missing(void) {
    static const uint32_t named[2] = {0, 1};
    static struct rig rig;
    struct twin twin;
    open_quorum(&rig, &twin, "drop");
    rig_push_report(&rig, 0, 1);
    rig_expect_arrival(&rig, 1, 0, 1);
    rig_push(&rig, 1, 2, 1, 0, rig_grads[1]);
    rig_close_round(&rig, 1, 2, named);
    rig_poll(&rig);
    CHECK_INT(rig_note(&rig, SHARD_REPORT).report.contributors, 0);
    rig_close(&rig);
}

int main(void) {
    log_set_level(LOG_ERROR); /* what is wrong on purpose is warned of */
    TEST_RUN(test_quorum);
    TEST_RUN(test_report_across_the_close);
    TEST_RUN(test_mixed_versions);
    TEST_RUN(test_drop);
    TEST_RUN(test_late_joins);
    TEST_RUN(test_after_the_last_round);
    TEST_RUN(test_gone_in_a_quorum);
    TEST_RUN(test_close_with_someone_missing);
    return 0;
}
