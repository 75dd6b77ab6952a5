/* Proves the decisions of a shard, by tables: which pushes are next, which come too late for a
 * round, when a request is answered, and what staleness does to the learning rate, in each mode.
 *
 * The table of pushes has a row for each way in which session, seq and fragment can relate to what
 * the shard knows. A second case lets a shard's record live through random histories: each push
 * must have its turn exactly once and in order.
 */
#include "base/random.h"
#include "proto/job.h"
#include "server/admission.h"
#include "tests/test.h"

static void test_pushes(void) {
    static const struct {
        const char *what;
        struct admission_record record; /* session, applied, held */
        uint64_t session, seq;
        enum admission expected;
    } table[] = {
        {"the first push", {7, 0, 0}, 7, 1, ADMISSION_NEW},
        {"the next push", {7, 4, 0}, 7, 5, ADMISSION_NEW},
        {"the next push, late in a long run",
         {7, UINT64_MAX - 2, 0},
         7,
         UINT64_MAX - 1,
         ADMISSION_NEW},
        {"the one that is held", {7, 4, 5}, 7, 5, ADMISSION_HELD},
        {"the first, that is held", {7, 0, 1}, 7, 1, ADMISSION_HELD},
        {"the last that had its turn", {7, 4, 0}, 7, 4, ADMISSION_APPLIED},
        {"the same, while the next is held", {7, 4, 5}, 7, 4, ADMISSION_APPLIED},
        {"a much older one", {7, 4, 0}, 7, 1, ADMISSION_APPLIED},
        {"seq 0, which no push has", {7, 0, 0}, 7, 0, ADMISSION_BREACH},
        {"a gap of one", {7, 4, 0}, 7, 6, ADMISSION_BREACH},
        {"a gap at the start", {7, 0, 0}, 7, 2, ADMISSION_BREACH},
        {"a gap of nearly 2^64", {7, 0, 0}, 7, UINT64_MAX, ADMISSION_BREACH},
        {"the one after the held", {7, 4, 5}, 7, 6, ADMISSION_BREACH},
        {"a gap while one is held", {7, 4, 5}, 7, 9, ADMISSION_BREACH},
        {"the next, of another session", {7, 4, 0}, 8, 5, ADMISSION_STALE},
        {"an old one, of another session", {7, 4, 0}, 6, 4, ADMISSION_STALE},
        {"the held one, of another session", {7, 4, 5}, 0, 5, ADMISSION_STALE},
        {"a gap, of another session", {7, 4, 0}, 8, 9, ADMISSION_STALE},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        enum admission admission =
            admission_push(&table[i].record, table[i].session, table[i].seq, 0, 1);
        if (admission != table[i].expected) {
            fprintf(stderr, "%s: %d, expected %d\n", table[i].what, (int)admission,
                    (int)table[i].expected);
            exit(1);
        }
    }
}

/* With fragments a block is in every F-th report only. */
static void test_fragments(void) {
    static const struct {
        struct admission_record record; /* session, applied, held */
        uint64_t seq, fragment, fragments;
        enum admission expected;
    } table[] = {
        {{7, 0, 0}, 1, 0, 4, ADMISSION_NEW},     {{7, 0, 0}, 4, 3, 4, ADMISSION_NEW},
        {{7, 0, 0}, 3, 3, 4, ADMISSION_BREACH},  {{7, 0, 0}, 8, 3, 4, ADMISSION_BREACH},
        {{7, 4, 0}, 8, 3, 4, ADMISSION_NEW},     {{7, 4, 0}, 4, 3, 4, ADMISSION_APPLIED},
        {{7, 8, 0}, 4, 3, 4, ADMISSION_APPLIED}, {{7, 8, 0}, 5, 3, 4, ADMISSION_BREACH},
        {{7, 4, 8}, 8, 3, 4, ADMISSION_HELD},    {{7, 4, 8}, 12, 3, 4, ADMISSION_BREACH},
        {{7, 4, 0}, 12, 3, 4, ADMISSION_BREACH}, {{7, 4, 0}, 5, 3, 4, ADMISSION_BREACH},
        {{7, 0, 0}, 0, 0, 4, ADMISSION_BREACH},  {{6, 4, 0}, 8, 3, 4, ADMISSION_STALE},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        enum admission admission = admission_push(&table[i].record, 7, table[i].seq,
                                                  table[i].fragment, table[i].fragments);
        if (admission != table[i].expected) {
            fprintf(stderr, "row %zu: %d, expected %d\n", i, (int)admission,
                    (int)table[i].expected);
            exit(1);
        }
    }
}

/* Pushes come at random moments, again and ahead of their turn: the turns are f + 1, f + 1 + F, ...
 */
static void test_each_has_its_turn_once(void) {
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct random_stream random;
        struct admission_record record = {.session = 3};
        uint64_t turns = 0, fragments = 1 + seed % 3, fragment = seed / 3 % fragments;
        random_open(&random, seed, RANDOM_SIMULATOR, 0);
        while (turns < 10) {
            uint64_t seq = 1 + random_below(&random, fragments * (turns + 3));
            uint64_t next = fragment + 1 + turns * fragments;
            bool mine = (seq - 1) % fragments == fragment;
            enum admission admission = admission_push(&record, 3, seq, fragment, fragments);
            CHECK_INT(admission == ADMISSION_NEW, seq == next && record.held_seq == 0);
            CHECK_INT(admission == ADMISSION_APPLIED, mine && seq < next);
            CHECK_INT(admission == ADMISSION_HELD, seq == next && record.held_seq != 0);
            CHECK_INT(admission == ADMISSION_BREACH, !mine || seq > next);
            if (admission == ADMISSION_NEW) {
                record.held_seq = seq;
            }
            if (record.held_seq != 0 && random_below(&random, 3) == 0) {
                record.applied_seq = record.held_seq;
                record.held_seq = 0;
                turns++;
            }
        }
    }
}

/* The discipline of a job of 4 workers with one more option, where `option` is not empty. */
static struct discipline discipline_of(const char *mode, const char *option, const char *value) {
    struct options options;
    struct job job;
    struct discipline discipline;
    char why[256];
    options_init(&options, job_table, job_table_count, &job);
    job.workers = 4;
    (void)snprintf(job.mode, sizeof job.mode, "%s", mode);
    if (*option != 0) {
        CHECK_INT(options_set(&options, options_find(&options, option), value, ORIGIN_FLAG, why,
                              sizeof why),
                  STATUS_OK);
    }
    CHECK_INT(job_discipline(&job, &discipline, why, sizeof why), STATUS_OK);
    return discipline;
}

/* What is dropped as it comes: only what comes too late for the rounds of a quorum. */
static void test_drops(void) {
    static const struct {
        const char *mode, *option, *value;
        uint64_t round, base, version;
        bool drops;
    } table[] = {
        {"sync", "", "", 5, 4, 4, false},
        {"sync", "", "", 5, 3, 4, false}, /* everyone is waited for: nothing is late */
        {"sync", "", "", 11, 3, 4, false},
        {"sync", "quorum", "3", 5, 4, 4, false},
        {"sync", "quorum", "3", 5, 3, 4, true},
        {"sync", "quorum", "3", 5, 5, 4, true}, /* of a version that there is not */
        {"sync", "quorum", "3", 10, 9, 9, false},
        {"sync", "quorum", "3", 11, 10, 10, true}, /* after the last round */
        {"sync", "backup-workers", "1", 5, 3, 4, true},
        {"diloco:1", "quorum", "3", 5, 3, 4, false}, /* late reports join the next round */
        {"diloco:1", "quorum", "3", 11, 9, 10, true},
        {"local:1", "quorum", "3", 5, 1, 4, false},
        {"async", "", "", 5, 0, 4, false},
        {"async", "", "", 11, 0, 4, false},
        {"ssp:2", "", "", 11, 0, 4, false},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct discipline discipline =
            discipline_of(table[i].mode, table[i].option, table[i].value);
        struct admission_round round = {.round = table[i].round,
                                        .rounds = 10,
                                        .needs_all = discipline_needs_all(&discipline, 4)};
        bool drops = admission_drops(&discipline, &round, table[i].base, table[i].version);
        if (drops != table[i].drops) {
            fprintf(stderr, "row %zu: %s %s: %d\n", i, table[i].mode, table[i].option, drops);
            exit(1);
        }
    }
}

/* Closed forms, by hand. */
static void test_rates(void) {
    static const struct {
        enum staleness_scale scale;
        uint64_t staleness;
        uint32_t living;
        double rate;
    } table[] = {
        {STALENESS_SCALE_NONE, 0, 4, 1},
        {STALENESS_SCALE_NONE, 1000, 4, 1},
        {STALENESS_SCALE_INVERSE, 0, 4, 1},
        {STALENESS_SCALE_INVERSE, 3, 4, 1}, /* what four equal workers have */
        {STALENESS_SCALE_INVERSE, 4, 4, 0.8},
        {STALENESS_SCALE_INVERSE, 7, 4, 0.5},
        {STALENESS_SCALE_INVERSE, 15, 4, 0.25},
        {STALENESS_SCALE_INVERSE, 1, 1, 0.5},
        {STALENESS_SCALE_EXP, 3, 4, 1},
        {STALENESS_SCALE_EXP, 7, 4, 0.36787944117144233},
        {STALENESS_SCALE_EXP, 5, 4, 0.60653065971263342},
        {STALENESS_SCALE_EXP, 2, 2, 0.60653065971263342},
        {STALENESS_SCALE_INVERSE, 3, 0, 0.25}, /* as of one worker */
    };
    static const char *const names[] = {"none", "inverse", "exp"};
    enum staleness_scale scale = STALENESS_SCALE_EXP;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        CHECK_NEAR(admission_rate(table[i].scale, table[i].staleness, table[i].living),
                   table[i].rate, 1e-15);
    }
    for (int i = 0; i < 3; i++) {
        CHECK_INT(admission_scale_find(names[i], &scale), STATUS_OK);
        CHECK_INT(scale, i);
    }
    CHECK_INT(admission_scale_find("log", &scale), STATUS_INVALID);
}

static void test_answers(void) {
    static const struct {
        const char *mode;
        uint64_t clock, slowest;
        bool answered;
    } table[] = {
        {"sync", 0, 0, true},
        {"sync", 5, 5, true},
        {"sync", 6, 5, true}, /* due only once the round is closed */
        {"sync", 5, 6, true},
        {"local:8", 6, 5, true},
        {"ssp:0", 0, 0, true},
        {"ssp:0", 4, 3, true},
        {"ssp:1", 1, 0, true},
        {"ssp:1", 2, 0, false},
        {"ssp:3", 3, 0, true},
        {"ssp:3", 4, 0, false},
        {"ssp:3", 10, 7, true},
        {"ssp:3", 11, 7, false},
        {"ssp:3", 2, 9, true},
        {"ssp:3", 7, 7, true},
        {"ssp:1000000", 1000000, 0, true},
        {"ssp:1000000", 1000001, 0, false},
        {"ssp:0", 0, UINT64_MAX, true},
        {"async", 0, 0, true},
        {"async", 1, 0, true},
        {"async", UINT64_MAX, 0, true},
        {"async", 0, UINT64_MAX, true},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct discipline discipline;
        CHECK_INT(discipline_of_mode(table[i].mode, 4, &discipline), STATUS_OK);
        bool answered = admission_answer(&discipline, table[i].clock, table[i].slowest);
        if (answered != table[i].answered) {
            fprintf(stderr, "%s, clock %llu, slowest %llu: %d\n", table[i].mode,
                    (unsigned long long)table[i].clock, (unsigned long long)table[i].slowest,
                    answered);
            exit(1);
        }
    }
}

int main(void) {
    TEST_RUN(test_pushes);
    TEST_RUN(test_fragments);
    TEST_RUN(test_each_has_its_turn_once);
    TEST_RUN(test_drops);
    TEST_RUN(test_rates);
    TEST_RUN(test_answers);
    return 0;
}
