/* Proves what the coordinator does with workers that leave or are lost while the job runs, with the
 * rounds of a quorum, and with a change of mode.
 *
 * One struct coordinator on the simulated network, with peers made by hand (coordinator_rig.h).
 * What servers, workers and the tool are told is compared message by message; reasons whole. When a
 * round of a quorum closes is test_quorum.c's: here it is that the coordinator asks and obeys.
 */
#include "base/log.h"
#include "tests/coordinator_rig.h"
#include "tests/log_capture.h"
#include "tests/test.h"

#define OWN "sync-warmup=0 workers=2 block-values=64 clip=2"

enum { TOOL = LATE };

/* Both shards report their blocks of the round, with sums of 1. */
static void report_round(struct rig *rig, uint64_t round, uint64_t contributors, double weight) {
    const struct plan *plan = &rig->coordinator.plan;
    for (uint64_t shard = 0; shard < 2; shard++) {
        uint64_t blocks[3];
        const double sums[3] = {1, 1, 1};
        struct vote_report report = {.round = round,
                                     .shard = shard,
                                     .contributors = contributors,
                                     .weight = weight,
                                     .blocks = blocks,
                                     .sums_of_squares = sums};
        for (uint64_t id = 0; id < plan->block_count; id++) {
            if (plan->blocks[id].shard == shard) {
                blocks[report.block_count++] = id;
            }
        }
        side_report(rig, SERVER, &report);
    }
}

static uint32_t told(const struct rig *rig, int side, Rubato__Message__BodyCase kind) {
    return rig->sides[side].got[kind];
}

#define TOLD(rig, side, KIND) told(rig, side, RUBATO__MESSAGE__BODY_##KIND)

/* ---- departures ---- */

/* A worker that leaves as planned holds nobody up in any mode; the last one ends the job, since
 * nobody is left to save. */
static void test_planned(void) {
    static const char *const modes[] = {"sync", "ssp:2", "async", "local:3"};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        for (int first = WORKER_0; first <= WORKER_1; first++) {
            static struct rig rig;
            char own[128];
            int other = first == WORKER_0 ? WORKER_1 : WORKER_0;
            (void)snprintf(own, sizeof own, "%s mode=%s", OWN, modes[i]);
            rig_open_at(&rig, own, COORDINATOR_RUNNING);
            side_depart(&rig, first, 0);
            side_drop(&rig, first);
            CHECK_INT(rig.coordinator.phase, COORDINATOR_RUNNING);
            CHECK_INT(TOLD(&rig, SERVER, GONE), 1);
            CHECK_INT(rig.sides[SERVER].gone, first - WORKER_0);
            CHECK_INT(TOLD(&rig, other, GONE), 0);
            CHECK_INT(TOLD(&rig, other, END), 0);
            report_round(&rig, 1, 1, 1);
            CHECK_INT(TOLD(&rig, SERVER, VERDICT), 1);
            side_depart(&rig, other, 0);
            CHECK_INT(rig.coordinator.phase, COORDINATOR_ENDED);
            CHECK_INT(rig.sides[SERVER].exit_code, EXIT_CODE_UNREACHABLE);
            CHECK_TEXT(rig.sides[SERVER].reason,
                       "all workers have left: nobody is there to save the weights");
            rig_close(&rig);
        }
    }
}

/* A worker that is lost: where rounds need all, the job ends with its name; else it goes on as long
 * as the quorum is left. */
static void test_lost(void) {
    static const struct {
        const char *options;
        bool goes_on;
    } table[] = {
        {"mode=sync", false},
        {"mode=ssp:0", false},
        {"mode=local:4", false},
        {"mode=ssp:3", true},
        {"mode=async", true},
        {"mode=diloco:4 staleness=any", true},
        {"mode=sync quorum=1", true},
        {"mode=sync quorum=2", false},
        {"mode=sync backup-workers=1", true},
        {"mode=diloco:4 quorum=1 grace=20", true},
        {"mode=async sync-warmup=5", false}, /* these rounds need all */
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        static struct rig rig;
        char own[128];
        (void)snprintf(own, sizeof own, "%s %s", OWN, table[i].options);
        rig_open_at(&rig, own, COORDINATOR_RUNNING);
        side_beat(&rig, WORKER_1, 7, 1000);
        side_drop(&rig, WORKER_1);
        if (!table[i].goes_on) {
            rig_expect_end(&rig, WORKER_1, EXIT_CODE_UNREACHABLE,
                           "worker 1 (h2:102), at step 7, was lost: its connection closed");
            rig_close(&rig);
            continue;
        }
        CHECK_INT(rig.coordinator.phase, COORDINATOR_RUNNING);
        CHECK_INT(TOLD(&rig, SERVER, GONE), 1);
        CHECK_INT(rig.sides[SERVER].gone, 1);
        side_beat(&rig, SERVER, 0, 0);
        rig_run(&rig, CLOCK_S);
        CHECK_INT(rig.sides[SERVER].beat_tokens, 1000); /* what it read was read */
        side_drop(&rig, WORKER_0);
        CHECK_INT(rig.coordinator.phase, COORDINATOR_ENDED);
        CHECK_TEXT(rig.sides[SERVER].reason, "worker 0 (h1:101) was lost: its connection closed");
        rig_close(&rig);
    }
}

/* Worker 0's first weights are what all wait for: its loss ends the job in any mode until a worker
 * has made a step, which it could not without them. A planned leave of it comes after they have
 * arrived. */
static void test_first_weights(void) {
    static const char *const modes[] = {"mode=async", "mode=ssp:2", "mode=sync quorum=1",
                                        "mode=diloco:4 staleness=any"};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        static struct rig rig;
        char own[128];
        (void)snprintf(own, sizeof own, "%s %s", OWN, modes[i]);
        rig_open_at(&rig, own, COORDINATOR_RUNNING);
        side_beat(&rig, WORKER_0, 0, 0);
        side_beat(&rig, WORKER_1, 0, 0);
        side_drop(&rig, WORKER_0);
        rig_expect_end(&rig, WORKER_0, EXIT_CODE_UNREACHABLE,
                       "worker 0 (h1:101) was lost: its connection closed, before its first "
                       "weights were everywhere");
        rig_close(&rig);
        rig_open_at(&rig, own, COORDINATOR_RUNNING);
        side_beat(&rig, WORKER_1, 1, 10);
        side_drop(&rig, WORKER_0);
        CHECK_INT(rig.coordinator.phase, COORDINATOR_RUNNING);
        CHECK_INT(rig.sides[SERVER].gone, 0);
        rig_close(&rig);
        rig_open_at(&rig, own, COORDINATOR_RUNNING);
        side_depart(&rig, WORKER_0, 0);
        CHECK_INT(rig.coordinator.phase, COORDINATOR_RUNNING);
        rig_close(&rig);
    }
}

/* Silence is a loss like another; a server's is always the end; so is a Leave with an error. */
static void test_other_losses(void) {
    static struct rig rig;
    rig_open_at(&rig, OWN " mode=async lease=2", COORDINATOR_RUNNING);
    for (int i = 0; i < 24; i++) {
        side_beat(&rig, SERVER, 0, 0);
        side_beat(&rig, WORKER_0, 3, 0);
        rig_run(&rig, 100 * CLOCK_MS);
    }
    CHECK_INT(rig.coordinator.phase, COORDINATOR_RUNNING);
    CHECK_INT(TOLD(&rig, SERVER, GONE), 1);
    CHECK(rig.sides[WORKER_1].closed);
    side_drop(&rig, SERVER);
    CHECK_INT(rig.coordinator.phase, COORDINATOR_ENDED);
    CHECK_INT(coordinator_deadline_ns(&rig.coordinator), INT64_MAX);
    CHECK_TEXT(rig.sides[WORKER_0].reason, "server 0 (h0:100) was lost: its connection closed");
    rig_close(&rig);
    rig_open_at(&rig, OWN " mode=sync", COORDINATOR_RUNNING);
    side_leave(&rig, WORKER_1, "the disk is full");
    rig_expect_end(&rig, WORKER_1, EXIT_CODE_UNREACHABLE,
                   "worker 1 (h2:102) left: the disk is full");
    rig_close(&rig);
    rig_open_at(&rig, OWN " mode=sync", COORDINATOR_STARTED);
    side_depart(&rig, WORKER_1, 0); /* not while the job starts */
    rig_expect_end(&rig, WORKER_1, EXIT_CODE_UNREACHABLE,
                   "worker 1 (h2:102) left: it was asked to leave");
    rig_close(&rig);
}

/* The lowest rank that is left saves, and hears what all have read by their last words. The job
 * drains when all that are left are done, also when the one that is not done goes, or one that is
 * done is lost. */
static void test_saver(void) {
    static struct rig rig;
    rig_open_at(&rig, OWN, COORDINATOR_RUNNING);
    side_beat(&rig, WORKER_0, 2, 200);
    side_beat(&rig, WORKER_1, 5, 500);
    side_done(&rig, WORKER_1, 700);
    CHECK_INT(TOLD(&rig, WORKER_1, DRAINED), 0);
    side_depart(&rig, WORKER_0, 300);
    CHECK_INT(TOLD(&rig, WORKER_1, DRAINED), 1);
    CHECK_INT(rig.sides[WORKER_1].saver, 1);
    CHECK_INT(rig.sides[WORKER_1].drained_tokens, 1000);
    side_saved(&rig, SERVER);
    CHECK_INT(rig.coordinator.phase, COORDINATOR_DRAINED);
    side_saved(&rig, WORKER_1);
    side_expect_end(&rig, WORKER_1, EXIT_CODE_OK, "");
    side_expect_end(&rig, SERVER, EXIT_CODE_OK, "");
    rig_close(&rig);
    rig_open_at(&rig, OWN, COORDINATOR_RUNNING);
    side_done(&rig, WORKER_0, 700);
    side_drop(&rig, WORKER_0); /* it owes nothing any more */
    CHECK_INT(rig.coordinator.phase, COORDINATOR_RUNNING);
    side_done(&rig, WORKER_1, 800);
    CHECK_INT(rig.sides[WORKER_1].saver, 1);
    CHECK_INT(rig.sides[WORKER_1].drained_tokens, 1500);
    side_saved(&rig, WORKER_1);
    side_expect_end(&rig, SERVER, EXIT_CODE_OK, "");
    rig_close(&rig);
}

/* ---- rounds of a quorum ---- */

static void arrive(struct rig *rig, uint64_t round, uint32_t rank, uint64_t seq) {
    side_arrived(rig, SERVER, round, 0, rank, seq);
    side_arrived(rig, SERVER, round, 1, rank, seq);
}

static void test_quorum_rounds(void) {
    static struct rig rig;
    rig_open_at(&rig, OWN " quorum=1 grace=100", COORDINATOR_RUNNING);
    side_arrived(&rig, SERVER, 1, 0, 1, 1);
    rig_run(&rig, 200 * CLOCK_MS);
    CHECK_INT(TOLD(&rig, SERVER, CLOSE), 0); /* in one of two shards only */
    side_arrived(&rig, SERVER, 1, 1, 1, 1);
    CHECK(coordinator_deadline_ns(&rig.coordinator) <= rig.now_ns + 100 * CLOCK_MS);
    rig_run(&rig, 80 * CLOCK_MS);
    CHECK_INT(TOLD(&rig, SERVER, CLOSE), 0);
    rig_run(&rig, 30 * CLOCK_MS);
    CHECK_TEXT(rig.sides[SERVER].close, "1: 1");
    report_round(&rig, 1, 1, 0.5);
    CHECK_INT(rig.sides[SERVER].verdict.round, 1);
    CHECK_NEAR(rig.sides[SERVER].verdict.scale, 2 / (sqrt(3.0) / 0.5 + 1e-6), 1e-6);
    arrive(&rig, 2, 1, 2);
    arrive(&rig, 2, 0, 1); /* all are there: no grace */
    CHECK_TEXT(rig.sides[SERVER].close, "2: 0 1");
    report_round(&rig, 2, 2, 2);
    /* A report that one shard holds for round 3 and to which another says that it is late. */
    side_arrived(&rig, SERVER, 2, 0, 0, 2);
    side_arrived(&rig, SERVER, 3, 1, 0, 2);
    CHECK_TEXT(rig.sides[SERVER].drop, "0 2");
    arrive(&rig, 3, 0, 3);
    side_depart(&rig, WORKER_1, 0); /* all that are left are there */
    CHECK_TEXT(rig.sides[SERVER].close, "3: 0");
    CHECK_INT(TOLD(&rig, SERVER, CLOSE), 3);
    CHECK_INT(TOLD(&rig, WORKER_0, CLOSE) + TOLD(&rig, WORKER_0, DROP), 0);
    CHECK_INT(rig.coordinator.phase, COORDINATOR_RUNNING);
    rig_close(&rig);
}

/* What would hang or falsify a round ends the job. */
static void test_wrong_words(void) {
    static const struct {
        const char *options;
        uint64_t round, shard;
        uint32_t rank;
    } table[] = {
        {"quorum=1", 2, 0, 0}, {"quorum=1", 1, 2, 0},   {"quorum=1", 1, 0, 2},
        {"quorum=2", 1, 0, 0}, {"mode=async", 1, 0, 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        static struct rig rig;
        char own[128];
        (void)snprintf(own, sizeof own, "%s %s", OWN, table[i].options);
        rig_open_at(&rig, own, COORDINATOR_RUNNING);
        side_arrived(&rig, SERVER, table[i].round, table[i].shard, table[i].rank, 1);
        rig_expect_end(&rig, -1, EXIT_CODE_PROTOCOL,
                       "a shard's word on a round does not fit the job");
        rig_close(&rig);
    }
    /* Not a worker's to say; a report of others than those of the Close; a report without one. */
    for (int wrong = 0; wrong < 3; wrong++) {
        static struct rig rig;
        rig_open_at(&rig, OWN " quorum=1", COORDINATOR_RUNNING);
        if (wrong == 0) {
            side_arrived(&rig, WORKER_0, 1, 0, 0, 1);
        } else {
            if (wrong == 1) {
                arrive(&rig, 1, 0, 1);
            }
            report_round(&rig, 1, 2, 2);
        }
        CHECK_INT(rig.coordinator.phase, COORDINATOR_ENDED);
        CHECK_INT(rig.coordinator.exit_code, EXIT_CODE_PROTOCOL);
        rig_close(&rig);
    }
}

/* What workers moved by is no gradient: it is not clipped, but a value that is not finite still
 * skips the round; one without weight is skipped, too, and is no sign of divergence. */
static void test_verdicts_of_local_steps(void) {
    static struct rig rig;
    rig_open_at(&rig, OWN " mode=diloco:5 clip=1e-6", COORDINATOR_RUNNING);
    for (uint64_t round = 1; round <= 12; round++) {
        report_round(&rig, round, 2, 0);
        CHECK(rig.sides[SERVER].verdict.skip);
    }
    CHECK_INT(rig.coordinator.phase, COORDINATOR_RUNNING);
    report_round(&rig, 13, 2, 2);
    CHECK(!rig.sides[SERVER].verdict.skip);
    CHECK_NEAR(rig.sides[SERVER].verdict.scale, 1, 0);
    rig_close(&rig);
}

/* ---- another mode ---- */

#define STAGE(name) RUBATO__CHANGE__STAGE__##name

static void test_change(void) {
    static struct rig rig;
    char expected[256];
    rig_open_at(&rig, OWN " mode=sync staleness=any", COORDINATOR_RUNNING);
    side_set(&rig, TOOL, "sync"); /* with sync's own staleness */
    (void)snprintf(expected, sizeof expected, "%d 0  ", STAGE(PROMISE));
    CHECK_TEXT(rig.sides[WORKER_0].change, expected);
    CHECK_TEXT(rig.sides[WORKER_1].change, expected);
    side_change(&rig, WORKER_0, STAGE(HELD), 5); /* out of turn */
    side_change(&rig, WORKER_0, STAGE(PROMISED), 41);
    CHECK_INT(TOLD(&rig, SERVER, CHANGE), 0);
    side_change(&rig, WORKER_1, STAGE(PROMISED), 30);
    (void)snprintf(expected, sizeof expected, "%d 0  ", STAGE(LIMIT));
    CHECK_TEXT(rig.sides[SERVER].change, expected); /* who is held up must settle */
    (void)snprintf(expected, sizeof expected, "%d 41  ", STAGE(LIMIT));
    CHECK_TEXT(rig.sides[WORKER_0].change, expected);
    (void)snprintf(expected, sizeof expected, "%d 30  ", STAGE(LIMIT));
    CHECK_TEXT(rig.sides[WORKER_1].change, expected); /* its own: others' mean nothing to it */
    side_change(&rig, WORKER_1, STAGE(HELD), 30);
    CHECK_INT(TOLD(&rig, SERVER, CHANGE), 1);
    side_change(&rig, WORKER_0, STAGE(HELD), 41);
    const char *by = rig.coordinator.change.by;
    (void)snprintf(expected, sizeof expected, "%d 41 sync %s", STAGE(APPLY), by);
    CHECK_TEXT(rig.sides[SERVER].change, expected);
    CHECK_INT(TOLD(&rig, WORKER_0, CHANGE), 2);
    CHECK_INT(TOLD(&rig, TOOL, END), 0);
    side_change(&rig, SERVER, STAGE(APPLIED), 0);
    (void)snprintf(expected, sizeof expected, "%d 41 sync %s", STAGE(RESUME), by);
    CHECK_TEXT(rig.sides[WORKER_0].change, expected);
    CHECK_TEXT(rig.sides[WORKER_1].change, expected);
    side_expect_end(&rig, TOOL, EXIT_CODE_OK, "");
    CHECK_TEXT(rig.coordinator.job.mode, "sync");
    CHECK_TEXT(rig.coordinator.job.staleness, "auto");
    CHECK_INT(rig.coordinator.discipline.staleness, 0);
    report_round(&rig, 1, 2, 2);
    CHECK_INT(TOLD(&rig, SERVER, VERDICT), 1);
    side_drop(&rig, TOOL);
    /* Back: in rounds all make as many as the farthest has promised, each from where it was. */
    side_set(&rig, TOOL, "ssp:3");
    side_change(&rig, WORKER_0, STAGE(PROMISED), 44); /* 3 rounds */
    side_change(&rig, WORKER_1, STAGE(PROMISED), 34); /* 4 rounds */
    (void)snprintf(expected, sizeof expected, "%d 45  ", STAGE(LIMIT));
    CHECK_TEXT(rig.sides[WORKER_0].change, expected);
    (void)snprintf(expected, sizeof expected, "%d 34  ", STAGE(LIMIT));
    CHECK_TEXT(rig.sides[WORKER_1].change, expected);
    side_change(&rig, WORKER_0, STAGE(HELD), 45);
    side_change(&rig, WORKER_1, STAGE(HELD), 34);
    side_drop(&rig, TOOL); /* the change goes on without who asked for it */
    side_change(&rig, SERVER, STAGE(APPLIED), 0);
    CHECK_TEXT(rig.coordinator.job.mode, "ssp:3");
    CHECK_INT(rig.coordinator.phase, COORDINATOR_RUNNING);
    rig_close(&rig);
}

/* Who is done, or goes, is not waited for in any stage. */
static void test_change_without_some(void) {
    for (int stage = 0; stage < 3; stage++) {
        for (int how = 0; how < 2; how++) {
            static struct rig rig;
            rig_open_at(&rig, OWN " mode=async", COORDINATOR_RUNNING);
            side_set(&rig, TOOL, "ssp:1");
            side_change(&rig, WORKER_0, STAGE(PROMISED), 9);
            if (stage > 0) {
                side_change(&rig, WORKER_1, STAGE(PROMISED), 8);
                side_change(&rig, WORKER_0, STAGE(HELD), 9);
            }
            if (stage > 1) {
                side_change(&rig, WORKER_1, STAGE(HELD), 8);
            }
            if (how == 0) {
                side_done(&rig, WORKER_1, 0);
            } else {
                side_drop(&rig, WORKER_1);
            }
            if (stage == 0) {
                side_change(&rig, WORKER_0, STAGE(HELD), 9);
            }
            side_change(&rig, SERVER, STAGE(APPLIED), 0);
            side_expect_end(&rig, TOOL, EXIT_CODE_OK, "");
            CHECK_INT(TOLD(&rig, WORKER_0, CHANGE), 3);
            rig_close(&rig);
        }
    }
}

static void test_refused_changes(void) {
    static const char between[] = "a running job changes only between sync, ssp:S and async, "
                                  "without a --quorum or --backup-workers";
    static const struct {
        const char *options, *mode, *reason; /* or a part of it */
    } table[] = {
        {"mode=sync", "warp", "no such --mode"},
        {"mode=sync", "local:4", between},
        {"mode=diloco:4", "sync", between},
        {"mode=sync quorum=1", "sync", between},
        {"mode=sync grace=5 quorum=1", "async", "--grace and --late are for rounds"},
        {"mode=sync backup-workers=1", "sync", between},
        {"mode=async sync-warmup=3", "ssp:2", "the job is in the first 3 steps (--sync-warmup)"},
        {"mode=async max-staleness=4", "sync", "--max-staleness"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        static struct rig rig;
        char own[128];
        (void)snprintf(own, sizeof own, "%s %s", OWN, table[i].options);
        rig_open_at(&rig, own, COORDINATOR_RUNNING);
        side_set(&rig, TOOL, table[i].mode);
        CHECK_INT(rig.sides[TOOL].exit_code, EXIT_CODE_USAGE);
        CHECK(rig.sides[TOOL].closed);
        CHECK(strstr(rig.sides[TOOL].reason, table[i].reason) != NULL);
        CHECK_INT(TOLD(&rig, WORKER_0, CHANGE), 0);
        CHECK_INT(rig.coordinator.phase, COORDINATOR_RUNNING);
        rig_close(&rig);
    }
    static struct rig rig;
    rig_open_at(&rig, OWN " mode=async", COORDINATOR_STARTED);
    side_set(&rig, TOOL, "sync");
    side_expect_end(&rig, TOOL, EXIT_CODE_UNREACHABLE, "no job is running there");
    rig_close(&rig);
    rig_open_at(&rig, OWN " mode=async", COORDINATOR_RUNNING);
    side_set(&rig, TOOL, "sync");
    side_set(&rig, TOOL + 1, "ssp:1");
    side_expect_end(&rig, TOOL + 1, EXIT_CODE_USAGE, "another change of mode is under way");
    coordinator_end(&rig.coordinator, "enough", EXIT_CODE_INTERNAL);
    rig_settle(&rig);
    side_expect_end(&rig, TOOL, EXIT_CODE_UNREACHABLE, "the job ended before the mode was changed");
    rig_close(&rig);
}

/* ---- speeds ---- */

static void pace_for(struct rig *rig, int64_t seconds, double first, double second) {
    for (int64_t i = 0; i < seconds; i++) {
        side_beat(rig, SERVER, 0, 0);
        side_pace(rig, WORKER_0, 1, first);
        side_pace(rig, WORKER_1, 1, second);
        rig_run(rig, CLOCK_S);
    }
}

static void test_speeds(void) {
    static const char line[] = "slowest worker 1 (h2:102): 1.0 steps/s of 2.5";
    static struct rig rig;
    rig_open_at(&rig, OWN, COORDINATOR_RUNNING);
    log_set_level(LOG_INFO);
    log_restart();
    pace_for(&rig, 1, 4, (double)NAN);
    CHECK_NEAR(rig.sides[WORKER_1].beat_speed, 4, 0);
    CHECK_INT(rig.sides[WORKER_1].beat_workers, 1); /* whose speed is known */
    pace_for(&rig, 25, 4, 1);
    CHECK_NEAR(rig.sides[WORKER_1].beat_speed, 5, 0);
    CHECK_INT(rig.sides[WORKER_1].beat_workers, 2);
    EXPECT_LOG(line, 2); /* every ten seconds */
    log_restart();
    pace_for(&rig, 25, 4, 3); /* well enough */
    EXPECT_LOG("slowest", 0);
    rig_close(&rig);
    rig_open_at(&rig, OWN " mode=async", COORDINATOR_RUNNING);
    pace_for(&rig, 25, 4, 1); /* nobody waits for it */
    EXPECT_LOG("slowest", 0);
    side_done(&rig, WORKER_0, 0);
    EXPECT_LOG("slowest", 0);
    side_done(&rig, WORKER_1, 0); /* but it is told in the end */
    EXPECT_LOG(line, 1);
    rig_close(&rig);
    log_restart();
    rig_open_at(&rig, OWN " mode=ssp:3", COORDINATOR_RUNNING);
    pace_for(&rig, 25, 4, 1);
    EXPECT_LOG(line, 2); /* others wait for it, too */
    log_set_level(LOG_ERROR);
    rig_close(&rig);
}

int main(void) {
    log_capture();
    log_set_level(LOG_ERROR);
    TEST_RUN(test_planned);
    TEST_RUN(test_lost);
    TEST_RUN(test_first_weights);
    TEST_RUN(test_other_losses);
    TEST_RUN(test_saver);
    TEST_RUN(test_quorum_rounds);
    TEST_RUN(test_wrong_words);
    TEST_RUN(test_verdicts_of_local_steps);
    TEST_RUN(test_change);
    TEST_RUN(test_change_without_some);
    TEST_RUN(test_refused_changes);
    TEST_RUN(test_speeds);
    return 0;
}
