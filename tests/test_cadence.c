/* Proves what a worker does next, for every kind of mode: by tables over all that the decision may
 * depend on, and by whole runs, in which an obedient worker must make the steps, reports and
 * installs that the mode's definition counts, in the order that it says.
 */
#include "tests/test.h"
#include "worker/cadence.h"

enum { WORKERS = 4 };

/* The usual middle of a run: nothing is under way. */
static struct cadence_progress progress_at(int64_t reached, int64_t step) {
    return (struct cadence_progress){.workers = WORKERS,
                                     .reports = 10,
                                     .reached = reached,
                                     .step = step,
                                     .limit = INT64_MAX,
                                     .interval = 1,
                                     .answered = true,
                                     .installed = true};
}

static struct discipline discipline_of(const char *mode) {
    struct discipline discipline;
    CHECK_INT(discipline_of_mode(mode, WORKERS, &discipline), STATUS_OK);
    return discipline;
}

static void test_gradients(void) {
    static const char *const modes[] = {"sync", "ssp:2", "async"};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        struct discipline discipline = discipline_of(modes[i]);
        struct cadence_progress p = progress_at(3, 3);
        CHECK_INT(cadence_next(&discipline, &p), CADENCE_COMPUTE);
        p.installed = false;
        CHECK_INT(cadence_next(&discipline, &p), CADENCE_INSTALL);
        p.answered = false;
        CHECK_INT(cadence_next(&discipline, &p), CADENCE_WAIT);
        p.leaving = true; /* not before the answer is there */
        CHECK_INT(cadence_next(&discipline, &p), CADENCE_WAIT);
        p = progress_at(3, 3);
        p.leaving = true;
        CHECK_INT(cadence_next(&discipline, &p), CADENCE_LEAVE);
        p = progress_at(3, 3);
        p.limit = 4;
        CHECK_INT(cadence_next(&discipline, &p), CADENCE_COMPUTE);
        p.limit = 3;
        CHECK_INT(cadence_next(&discipline, &p), CADENCE_HOLD);
        p.leaving = true; /* who leaves need not hold */
        CHECK_INT(cadence_next(&discipline, &p), CADENCE_LEAVE);
        p = progress_at(10, 10);
        p.limit = 10;
        p.leaving = true; /* who is done stays to the end */
        CHECK_INT(cadence_next(&discipline, &p), CADENCE_FINISH);
        p.answered = false;
        CHECK_INT(cadence_next(&discipline, &p), CADENCE_WAIT);
        p = progress_at(3, 3);
        p.installed = false;
        p.behind = true; /* versions differ in async, and in sync they cannot */
        CHECK_INT(cadence_next(&discipline, &p), CADENCE_INSTALL);
    }
}

/* The next step may start on the first blocks of an answer only where it will be of one version,
 * and nobody waits for this worker to stand still. */
static void test_open(void) {
    static const struct {
        const char *mode;
        int64_t quorum, reached, limit;
        bool leaving;
        enum cadence next;
    } table[] = {{"sync", WORKERS, 3, INT64_MAX, false, CADENCE_COMPUTE},
                 {"sync", WORKERS, 9, INT64_MAX, false, CADENCE_COMPUTE},
                 {"sync", WORKERS, 10, INT64_MAX, false, CADENCE_WAIT},
                 {"sync", WORKERS, 3, 4, false, CADENCE_WAIT},
                 {"sync", WORKERS, 3, INT64_MAX, true, CADENCE_WAIT},
                 {"sync", WORKERS - 1, 3, INT64_MAX, false, CADENCE_WAIT},
                 {"ssp:2", 1, 3, INT64_MAX, false, CADENCE_WAIT},
                 {"async", 1, 3, INT64_MAX, false, CADENCE_WAIT},
                 {"local:1", WORKERS, 3, INT64_MAX, false, CADENCE_WAIT}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct discipline discipline = discipline_of(table[i].mode);
        struct cadence_progress p = progress_at(table[i].reached, table[i].reached);
        discipline.quorum = table[i].quorum;
        p.limit = table[i].limit;
        p.leaving = table[i].leaving;
        p.answered = p.installed = false;
        CHECK_INT(cadence_next(&discipline, &p), CADENCE_WAIT);
        p.open = true;
        CHECK_INT(cadence_next(&discipline, &p), table[i].next);
        p.answered = true; /* then the step may as well start on all */
        CHECK_INT(cadence_next(&discipline, &p), CADENCE_INSTALL);
    }
}

/* Under a quorum, weights of several versions are evened out first, unless late reports count. */
static void test_quorum(void) {
    struct discipline discipline = discipline_of("sync");
    struct cadence_progress p = progress_at(3, 3);
    discipline.quorum = WORKERS - 1;
    p.installed = false;
    p.behind = true;
    CHECK_INT(cadence_next(&discipline, &p), CADENCE_PULL);
    p.answered = false;
    CHECK_INT(cadence_next(&discipline, &p), CADENCE_WAIT);
    p.answered = true;
    p.behind = false;
    CHECK_INT(cadence_next(&discipline, &p), CADENCE_INSTALL);
    discipline.late_joins = true;
    p.behind = true;
    CHECK_INT(cadence_next(&discipline, &p), CADENCE_INSTALL);
    CHECK(cadence_by_version(&discipline, WORKERS));
    CHECK(!cadence_by_version(&discipline, WORKERS - 1));
    discipline = discipline_of("async");
    CHECK(!cadence_by_version(&discipline, WORKERS));
}

static void test_local(void) {
    struct discipline discipline = discipline_of("diloco:8");
    struct cadence_progress p = progress_at(3, 24);
    p.interval = 8;
    CHECK_INT(cadence_next(&discipline, &p), CADENCE_COMPUTE);
    p.since = 7;
    CHECK_INT(cadence_next(&discipline, &p), CADENCE_COMPUTE);
    p.since = 8;
    CHECK_INT(cadence_next(&discipline, &p), CADENCE_REPORT);
    p.limit = 24;
    CHECK_INT(cadence_next(&discipline, &p), CADENCE_HOLD);
    /* An answer is under way: steps go on until it is due, and no further. */
    discipline.overlap = 3;
    for (int64_t interval = 0; interval <= 5; interval++) {
        for (int64_t since = 0; since <= interval; since++) {
            for (int answered = 0; answered < 2; answered++) {
                bool due = since >= (interval < 3 ? interval : 3);
                p = progress_at(3, 24);
                p.interval = interval;
                p.since = since;
                p.installed = false;
                p.answered = answered == 1;
                enum cadence expected = answered == 1 ? CADENCE_INSTALL : CADENCE_WAIT;
                CHECK_INT(cadence_next(&discipline, &p), due ? expected : CADENCE_COMPUTE);
                p.leaving = true; /* no more steps */
                CHECK_INT(cadence_next(&discipline, &p), expected);
            }
        }
    }
}

/* ---- whole runs ---- */

struct tally {
    int64_t steps, reports, installs, waits;
    int64_t longest; /* steps between two reports */
};

/* A worker that does what it is told; answers come as late as it can wait. */
static struct tally run(const struct discipline *discipline, int64_t steps) {
    struct tally tally = {0};
    struct cadence_progress p = {
        .workers = WORKERS, .reports = discipline_reports(discipline, steps), .limit = INT64_MAX};
    enum cadence next;
    while ((next = cadence_next(discipline, &p)) != CADENCE_FINISH) {
        CHECK(tally.waits < 10000);
        switch (next) {
        case CADENCE_WAIT:
            tally.waits++;
            p.answered = true;
            break;
        case CADENCE_INSTALL:
            CHECK(p.answered);
            tally.installs++;
            p.installed = true;
            p.interval = cadence_place(discipline, steps, p.reached + 1) -
                         cadence_place(discipline, steps, p.reached);
            break;
        case CADENCE_COMPUTE:
            tally.steps++;
            p.step++;
            p.since++;
            break;
        case CADENCE_REPORT:
            CHECK(p.answered && p.installed); /* one is under way at a time */
            tally.longest = p.since > tally.longest ? p.since : tally.longest;
            break;
        default:
            CHECK(false);
        }
        if (next == CADENCE_REPORT || (next == CADENCE_COMPUTE && !discipline->local)) {
            tally.reports++;
            p.reached++;
            p.since = 0;
            p.answered = p.installed = false;
            p.interval = cadence_place(discipline, steps, p.reached + 1) -
                         cadence_place(discipline, steps, p.reached);
        }
    }
    return tally;
}

static void test_runs(void) {
    static const struct {
        const char *mode;
        int64_t fragments, overlap, steps;
        int64_t reports, longest;
    } table[] = {{"sync", 1, 0, 7, 7, 0},       {"async", 1, 0, 7, 7, 0},
                 {"local:3", 1, 0, 9, 3, 3},    {"local:3", 1, 0, 10, 4, 3},
                 {"local:100", 1, 0, 7, 1, 7},  {"diloco:8", 4, 0, 16, 8 + 3, 2},
                 {"diloco:8", 4, 2, 15, 11, 2}, {"diloco:8", 8, 1, 1, 8, 1},
                 {"diloco:6", 2, 2, 13, 6, 3}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct discipline discipline = discipline_of(table[i].mode);
        discipline.fragments = table[i].fragments;
        discipline.overlap = table[i].overlap;
        struct tally tally = run(&discipline, table[i].steps);
        CHECK_INT(tally.steps, table[i].steps);
        CHECK_INT(tally.reports, table[i].reports);
        CHECK_INT(tally.installs, table[i].reports + 1); /* the first weights, too */
        CHECK_INT(tally.longest, table[i].longest);
    }
}

/* ---- the rest ---- */

static void test_commits(void) {
    static const struct {
        const char *mode;
        int64_t warmup, seq;
        bool commits;
    } table[] = {{"sync", 0, 1, false},    {"ssp:0", 0, 9, false},     {"ssp:4", 0, 1, true},
                 {"async", 0, 1, true},    {"async", 3, 3, false},     {"async", 3, 4, true},
                 {"local:4", 0, 1, false}, {"diloco:4", 0, 99, false}, {"ssp:1", 1, 1, false}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct discipline discipline = discipline_of(table[i].mode);
        discipline.sync_warmup = table[i].warmup;
        CHECK_INT(cadence_commits(&discipline, table[i].seq), table[i].commits);
    }
}

static void test_adapted(void) {
    static const struct {
        int64_t usual;
        double speed, sum;
        int64_t workers, steps;
    } table[] = {{8, 2, 8, 4, 8}, {8, 1, 10, 4, 3},  {8, 4, 8, 4, 16},   {8, 0, 8, 4, 8},
                 {8, 2, 0, 4, 8}, {8, 2, 8, 0, 8},   {8, 1e-9, 8, 4, 1}, {8, 8, 8, 1000, 64},
                 {0, 2, 8, 4, 0}, {1, 1, 100, 4, 1}, {10, 3, 8, 2, 8}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        CHECK_INT(cadence_adapted(table[i].usual, table[i].speed, table[i].sum, table[i].workers),
                  table[i].steps);
    }
}

int main(void) {
    TEST_RUN(test_gradients);
    TEST_RUN(test_open);
    TEST_RUN(test_quorum);
    TEST_RUN(test_local);
    TEST_RUN(test_runs);
    TEST_RUN(test_commits);
    TEST_RUN(test_adapted);
    return 0;
}
