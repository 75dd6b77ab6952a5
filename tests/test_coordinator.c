/* Proves what the coordinator does with a job that runs: the vote, the Beats, how a job ends well,
 * and how every way in which a peer can go (lost, silent, leaving, breaking the protocol) ends it,
 * with whose name and which exit code.
 *
 * One struct coordinator on the simulated network, with peers made by hand (coordinator_rig.h).
 * Reasons, which are what users read on every machine, are compared whole.
 */
#include "base/log.h"
#include "tests/coordinator_rig.h"
#include "tests/test.h"

#include <math.h>

#define OWN "workers=2 block-values=64 clip=2"

/* ---- the vote ---- */

/* The plan has three blocks: two of the matrix, one of the vector. Both shards report them. */
static void report_round(struct rig *rig, uint64_t round, double sum) {
    const struct plan *plan = &rig->coordinator.plan;
    CHECK_INT(plan->block_count, 3);
    for (uint64_t shard = 0; shard < 2; shard++) {
        uint64_t blocks[3];
        double sums[3];
        struct vote_report report = {.round = round,
                                     .shard = shard,
                                     .contributors = 2,
                                     .weight = 2,
                                     .nonfinite = !isfinite(sum),
                                     .blocks = blocks,
                                     .sums_of_squares = sums};
        for (uint64_t id = 0; id < 3; id++) {
            if (plan->blocks[id].shard == shard) {
                blocks[report.block_count] = id;
                sums[report.block_count++] = id == 1 ? sum : 1;
            }
        }
        side_report(rig, SERVER, &report);
    }
}

static void test_verdicts(void) {
    static struct rig rig;
    rig_open_at(&rig, OWN, COORDINATOR_RUNNING);
    for (uint64_t round = 1; round <= 5; round++) {
        CHECK_INT(rig.sides[SERVER].got[RUBATO__MESSAGE__BODY_VERDICT], round - 1);
        report_round(&rig, round, (double)(round * round * round * 100));
        CHECK_INT(rig.sides[SERVER].got[RUBATO__MESSAGE__BODY_VERDICT], round);
        const struct vote_verdict *verdict = &rig.sides[SERVER].verdict;
        double norm = sqrt(2 + (double)(round * round * round * 100)) / 2;
        CHECK_INT(verdict->round, round);
        CHECK(!verdict->skip);
        CHECK_NEAR(verdict->scale, 2 / (norm + 1e-6), 1e-6);
        report_round(&rig, round, 7); /* again: of a closed round */
        CHECK_INT(rig.sides[SERVER].got[RUBATO__MESSAGE__BODY_VERDICT], round);
    }
    CHECK_INT(rig.sides[WORKER_0].got[RUBATO__MESSAGE__BODY_VERDICT], 0); /* servers only */
    rig_expect_all(&rig, RUBATO__MESSAGE__BODY_END, 0);
    rig_close(&rig);
}

/* Nine bad rounds, a good one, nine bad ones: the job goes on. Ten in a row end it. */
static void test_divergence(void) {
    static struct rig rig;
    rig_open_at(&rig, OWN, COORDINATOR_RUNNING);
    uint64_t round = 1;
    for (int i = 0; i < 19; i++, round++) {
        bool bad = i != 9;
        report_round(&rig, round, bad ? (double)NAN : 4);
        CHECK_INT(rig.sides[SERVER].verdict.skip, bad);
        CHECK_INT(rig.coordinator.phase, COORDINATOR_RUNNING);
    }
    report_round(&rig, round, INFINITY);
    CHECK_INT(rig.sides[SERVER].got[RUBATO__MESSAGE__BODY_VERDICT], 20);
    rig_expect_end(&rig, -1, EXIT_CODE_TRAINING,
                   "diverged: 10 rounds in a row were not finite; try a lower --lr");
    rig_close(&rig);
}

/* A report that does not fit the plan would hang the round or falsify it: the job ends. */
static void test_wrong_reports(void) {
    const uint64_t blocks[3] = {0, 1, 7};
    const double sums[3] = {1, 1, 1};
    const struct vote_report table[] = {
        {.round = 2, .shard = 0, .contributors = 2, .block_count = 1},
        {.round = 1, .shard = 2, .contributors = 2, .block_count = 1},
        {.round = 1, .shard = 0, .contributors = 0, .block_count = 1},
        {.round = 1, .shard = 0, .contributors = 2, .block_count = 3},
        {.round = 1, .shard = 0, .contributors = 2, .block_count = 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        static struct rig rig;
        struct vote_report report = table[i];
        report.blocks = blocks;
        report.sums_of_squares = sums;
        rig_open_at(&rig, OWN, COORDINATOR_RUNNING);
        side_report(&rig, SERVER, &report);
        rig_expect_end(&rig, -1, EXIT_CODE_PROTOCOL, "a shard's report does not fit the plan");
        rig_close(&rig);
    }
    /* Fewer sums than blocks. */
    static struct rig rig;
    Rubato__Report wire = RUBATO__REPORT__INIT;
    rig_open_at(&rig, OWN, COORDINATOR_RUNNING);
    wire.round = 1;
    wire.contributors = 2;
    wire.n_blocks = 1;
    wire.blocks = (uint64_t *)blocks;
    SIDE_SAY(&rig, SERVER, REPORT, report, &wire);
    rig_expect_end(&rig, -1, EXIT_CODE_PROTOCOL, "a shard's report does not fit the plan");
    rig_close(&rig);
}

/* ---- the end as it should be ---- */

static void test_a_good_end(void) {
    static struct rig rig;
    rig_open_at(&rig, OWN, COORDINATOR_RUNNING);
    side_done(&rig, SERVER, 0); /* not a server's to say */
    side_done(&rig, WORKER_1, 0);
    side_done(&rig, WORKER_1, 0);
    side_saved(&rig, WORKER_0); /* not yet */
    CHECK_INT(rig.coordinator.phase, COORDINATOR_RUNNING);
    rig_expect_all(&rig, RUBATO__MESSAGE__BODY_DRAINED, 0);
    side_done(&rig, WORKER_0, 0);
    CHECK_INT(rig.coordinator.phase, COORDINATOR_DRAINED);
    CHECK_INT(rig.sides[WORKER_0].got[RUBATO__MESSAGE__BODY_DRAINED], 1);
    CHECK_INT(rig.sides[WORKER_1].got[RUBATO__MESSAGE__BODY_DRAINED], 1);
    side_saved(&rig, WORKER_1); /* worker 0 saves */
    side_saved(&rig, SERVER);
    rig_expect_all(&rig, RUBATO__MESSAGE__BODY_END, 0);
    side_saved(&rig, WORKER_0);
    rig_expect_end(&rig, -1, EXIT_CODE_OK, "");
    rig_close(&rig);
}

/* Once all steps are done, a worker that has nothing more to do may go. When worker 0 is lost,
 * which saves, worker 1 is told to; only its own failure to save, or the loss of both, ends the job
 * in error, and a server's loss always does. */
static void test_leaving_when_drained(void) {
    static struct rig rig;
    for (int who = WORKER_0; who <= WORKER_1; who++) {
        int other = who == WORKER_0 ? WORKER_1 : WORKER_0;
        rig_open_at(&rig, OWN, COORDINATOR_RUNNING);
        side_done(&rig, WORKER_0, 0);
        side_done(&rig, WORKER_1, 0);
        side_drop(&rig, who);
        CHECK_INT(rig.coordinator.phase, COORDINATOR_DRAINED);
        CHECK_INT(rig.sides[SERVER].got[RUBATO__MESSAGE__BODY_GONE], 1);
        CHECK_INT(rig.sides[other].got[RUBATO__MESSAGE__BODY_DRAINED], who == WORKER_0 ? 2 : 1);
        CHECK_INT(rig.sides[other].saver, other - WORKER_0);
        side_saved(&rig, other);
        rig_expect_end(&rig, who, EXIT_CODE_OK, "");
        rig_close(&rig);
    }
    rig_open_at(&rig, OWN, COORDINATOR_RUNNING);
    side_done(&rig, WORKER_0, 0);
    side_done(&rig, WORKER_1, 0);
    side_drop(&rig, SERVER);
    rig_expect_end(&rig, SERVER, EXIT_CODE_UNREACHABLE,
                   "server 0 (h0:100) was lost: its connection closed");
    rig_close(&rig);
    rig_open_at(&rig, OWN, COORDINATOR_RUNNING);
    side_done(&rig, WORKER_0, 0);
    side_done(&rig, WORKER_1, 0);
    side_leave(&rig, WORKER_0, "it cannot write the run's files");
    rig_expect_end(&rig, WORKER_0, EXIT_CODE_UNREACHABLE,
                   "worker 0 (h1:101) left: it cannot write the run's files");
    rig_close(&rig);
    rig_open_at(&rig, OWN, COORDINATOR_RUNNING);
    side_done(&rig, WORKER_0, 0);
    side_done(&rig, WORKER_1, 0);
    side_drop(&rig, WORKER_0);
    side_drop(&rig, WORKER_1);
    CHECK_INT(rig.coordinator.phase, COORDINATOR_ENDED);
    side_expect_end(&rig, SERVER, EXIT_CODE_UNREACHABLE,
                    "worker 1 (h2:102) was lost: its connection closed");
    rig_close(&rig);
}

/* ---- leases and Beats ---- */

static void test_beats(void) {
    static struct rig rig;
    rig_open_at(&rig, OWN, COORDINATOR_RUNNING);
    for (uint64_t i = 1; i <= 20; i++) {
        uint32_t before = rig.sides[WORKER_1].got[RUBATO__MESSAGE__BODY_BEAT];
        side_beat(&rig, SERVER, 0, 0);
        side_beat(&rig, WORKER_0, i, 100 * i);
        side_beat(&rig, WORKER_1, i, 7 * i);
        rig_run(&rig, CLOCK_S);
        CHECK_INT(rig.sides[SERVER].beat_tokens, 107 * i); /* of all workers */
        CHECK_INT(rig.sides[WORKER_1].beat_tokens, 107 * i);
        /* Every tenth of the lease of 5 s, so that members see the coordinator live. */
        uint32_t heard = rig.sides[WORKER_1].got[RUBATO__MESSAGE__BODY_BEAT] - before;
        CHECK(heard >= 1 && heard <= 3);
    }
    CHECK_INT(rig.coordinator.phase, COORDINATOR_RUNNING);
    rig_close(&rig);
}

/* A peer of which nothing is heard for a lease is named; the others beat. In any phase. */
static void test_silence(void) {
    static const enum coordinator_phase phases[] = {COORDINATOR_ASSIGNED, COORDINATOR_PLANNED,
                                                    COORDINATOR_STARTED, COORDINATOR_RUNNING};
    for (int i = 0; i < 4; i++) {
        static struct rig rig;
        rig_open_at(&rig, OWN " lease=2", phases[i]);
        int64_t start_ns = rig.now_ns;
        while (rig.now_ns < start_ns + 1900 * CLOCK_MS) {
            side_beat(&rig, SERVER, 0, 0);
            side_beat(&rig, WORKER_0, 3, 0);
            rig_run(&rig, 100 * CLOCK_MS);
        }
        CHECK_INT(rig.coordinator.phase, phases[i]);
        side_beat(&rig, SERVER, 0, 0);
        side_beat(&rig, WORKER_0, 3, 0);
        rig_run(&rig, 300 * CLOCK_MS);
        rig_expect_end(&rig, WORKER_1, EXIT_CODE_UNREACHABLE,
                       "worker 1 (h2:102) was silent for 2.0 s (--lease)");
        CHECK(rig.sides[WORKER_1].closed); /* hung up, so that it learns, too, if it lives */
        rig_close(&rig);
    }
}

/* Any message proves life. */
static void test_messages_are_beats(void) {
    static struct rig rig;
    rig_open_at(&rig, OWN " lease=2", COORDINATOR_RUNNING);
    for (uint64_t round = 1; round <= 6; round++) {
        report_round(&rig, round, 1);
        side_done(&rig, WORKER_1, 0);
        side_beat(&rig, WORKER_0, 0, 0);
        rig_run(&rig, CLOCK_S);
    }
    CHECK_INT(rig.coordinator.phase, COORDINATOR_RUNNING);
    rig_close(&rig);
}

/* ---- loss ---- */

static void test_lost_connection(void) {
    static struct rig rig;
    rig_open_at(&rig, OWN, COORDINATOR_RUNNING);
    side_beat(&rig, WORKER_0, 41, 0);
    side_drop(&rig, WORKER_0);
    rig_expect_end(&rig, WORKER_0, EXIT_CODE_UNREACHABLE,
                   "worker 0 (h1:101), at step 41, was lost: its connection closed");
    rig_close(&rig);
    rig_open_at(&rig, OWN, COORDINATOR_PLANNED);
    side_drop(&rig, SERVER);
    rig_expect_end(&rig, SERVER, EXIT_CODE_UNREACHABLE,
                   "server 0 (h0:100) was lost: its connection closed");
    rig_close(&rig);
}

static void test_leave(void) {
    static struct rig rig;
    rig_open_at(&rig, OWN, COORDINATOR_STARTED);
    side_leave(&rig, WORKER_1, "the disk is full");
    rig_expect_end(&rig, WORKER_1, EXIT_CODE_UNREACHABLE,
                   "worker 1 (h2:102) left: the disk is full");
    rig_close(&rig);
    rig_open_at(&rig, OWN, COORDINATOR_RUNNING);
    side_beat(&rig, WORKER_1, 7, 0);
    side_leave(&rig, WORKER_1, "interrupted by SIGINT");
    rig_expect_end(&rig, WORKER_1, EXIT_CODE_UNREACHABLE,
                   "worker 1 (h2:102), at step 7, left: interrupted by SIGINT");
    rig_close(&rig);
    /* However much it has to say. */
    static char words[4096];
    memset(words, 'w', sizeof words - 1);
    rig_open_at(&rig, OWN, COORDINATOR_RUNNING);
    side_leave(&rig, SERVER, words);
    CHECK_INT(rig.coordinator.phase, COORDINATOR_ENDED);
    CHECK(strstr(rig.sides[WORKER_0].reason, "server 0 (h0:100) left: www") ==
          rig.sides[WORKER_0].reason);
    rig_close(&rig);
}

/* While the job gathers, who goes only makes room, however: the next one takes the place and its
 * number, so that the job still gets all of them. */
static void test_leaving_while_gathering(void) {
    for (int who = 0; who < PEERS; who++) {
        for (int how = 0; how < 3; how++) {
            static struct rig rig;
            static const enum job_role roles[] = {JOB_SERVER, JOB_WORKER, JOB_WORKER};
            rig_open(&rig, "servers=2 workers=2");
            for (int side = 0; side < PEERS; side++) {
                side_join(&rig, side, roles[side], side == SERVER ? 2 : 0, "");
            }
            if (how == 0) {
                side_leave(&rig, who, "no time");
            } else if (how == 1) {
                side_send_raw(&rig, who, "\x01", 1);
                CHECK(rig.sides[who].closed);
            }
            side_drop(&rig, who);
            CHECK_INT(rig.coordinator.phase, COORDINATOR_GATHERING);
            side_join(&rig, who, roles[who], who == SERVER ? 2 : 0, "");
            side_join(&rig, LATE, JOB_SERVER, 1, "");
            CHECK_INT(rig.coordinator.phase, COORDINATOR_ASSIGNED);
            CHECK_INT(rig.sides[WORKER_0].index + rig.sides[WORKER_1].index, 1);
            CHECK_INT(rig.sides[SERVER].index + rig.sides[LATE].index, 1);
            CHECK_INT(rig.sides[SERVER].shard_count, 3);
            rig_expect_all(&rig, RUBATO__MESSAGE__BODY_END, 0);
            rig_close(&rig);
        }
    }
}

/* ---- who does not speak our protocol ---- */

static void test_strangers(void) {
    /* Malformed, empty messages, a body of another build, and messages before any Join. */
    static const char *const packets[] = {"\x0a\x7f", "\xff\xff\xff\xff", "\x08\x01",
                                          "\xc2\x3e\x01x"};
    static struct rig rig;
    rig_open_at(&rig, OWN, COORDINATOR_RUNNING);
    for (int i = 0; i < 4; i++) {
        side_dial(&rig, LATE);
        side_send_raw(&rig, LATE, packets[i], strlen(packets[i]));
        CHECK(rig.sides[LATE].closed); /* hung up at once */
        side_drop(&rig, LATE);
    }
    side_dial(&rig, LATE);
    side_leave(&rig, LATE, "never was");
    side_done(&rig, LATE, 0);
    side_saved(&rig, LATE);
    side_beat(&rig, LATE, 1, 1000000);
    report_round(&rig, 1, 4);
    rig_run(&rig, CLOCK_S);
    CHECK_INT(rig.sides[SERVER].beat_tokens, 0);
    CHECK_INT(rig.sides[SERVER].verdict.round, 1);
    CHECK_INT(rig.coordinator.phase, COORDINATOR_RUNNING); /* the job does not care */
    rig_expect_all(&rig, RUBATO__MESSAGE__BODY_END, 0);
    rig_close(&rig);
}

static void test_member_breaks_the_protocol(void) {
    static struct rig rig;
    rig_open_at(&rig, OWN, COORDINATOR_RUNNING);
    side_send_raw(&rig, WORKER_1, "\x0a\x7f", 2);
    rig_expect_end(&rig, WORKER_1, EXIT_CODE_UNREACHABLE, "worker 1 (h2:102) broke the protocol");
    CHECK(rig.sides[WORKER_1].closed);
    rig_close(&rig);
}

/* After the end nothing is said any more, whatever comes. */
static void test_after_the_end(void) {
    static struct rig rig;
    rig_open_at(&rig, OWN, COORDINATOR_RUNNING);
    coordinator_end(&rig.coordinator, "enough", EXIT_CODE_INTERNAL);
    coordinator_end(&rig.coordinator, "not this", EXIT_CODE_OK);
    side_leave(&rig, WORKER_1, "too late");
    side_drop(&rig, WORKER_1);
    side_join(&rig, LATE, JOB_WORKER, 0, "");
    rig_run(&rig, 20 * CLOCK_S);
    rig_expect_end(&rig, WORKER_1, EXIT_CODE_INTERNAL, "enough");
    CHECK_INT(rig.sides[LATE].got[RUBATO__MESSAGE__BODY_ASSIGN], 0);
    rig_close(&rig);
}

int main(void) {
    log_set_level(LOG_ERROR);
    TEST_RUN(test_verdicts);
    TEST_RUN(test_divergence);
    TEST_RUN(test_wrong_reports);
    TEST_RUN(test_a_good_end);
    TEST_RUN(test_leaving_when_drained);
    TEST_RUN(test_beats);
    TEST_RUN(test_silence);
    TEST_RUN(test_messages_are_beats);
    TEST_RUN(test_lost_connection);
    TEST_RUN(test_leave);
    TEST_RUN(test_leaving_while_gathering);
    TEST_RUN(test_strangers);
    TEST_RUN(test_member_breaks_the_protocol);
    TEST_RUN(test_after_the_end);
    return 0;
}
