/* Proves the two decisions of a shard, by tables: which pushes count, and when a request is
 * answered; and that each mode's text gives the numbers that those decisions are made of.
 *
 * The table of pushes has a row for each way in which session and seq can relate to what the shard
 * knows. A second case lets a shard's record live through random histories: each push must have its
 * turn exactly once and in order.
 */
#include "base/random.h"
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
        {"seq 0, which no push has", {7, 0, 0}, 7, 0, ADMISSION_APPLIED},
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
        enum admission admission = admission_push(&table[i].record, table[i].session, table[i].seq);
        if (admission != table[i].expected) {
            fprintf(stderr, "%s: %d, expected %d\n", table[i].what, (int)admission,
                    (int)table[i].expected);
            exit(1);
        }
    }
}

/* Pushes come at random moments, again and ahead of their turn: the turns are 1, 2, ... 10. */
static void test_each_has_its_turn_once(void) {
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct random_stream random;
        struct admission_record record = {.session = 3};
        uint64_t turns = 0;
        random_open(&random, seed, RANDOM_SIMULATOR, 0);
        while (turns < 10) {
            uint64_t seq = 1 + random_below(&random, turns + 3);
            enum admission admission = admission_push(&record, 3, seq);
            CHECK_INT(admission == ADMISSION_NEW, seq == turns + 1 && record.held_seq == 0);
            CHECK_INT(admission == ADMISSION_APPLIED, seq <= turns);
            CHECK_INT(admission == ADMISSION_HELD, seq == turns + 1 && record.held_seq != 0);
            CHECK_INT(admission == ADMISSION_BREACH, seq >= turns + 2);
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

static void test_answers(void) {
    static const struct {
        const char *mode;
        uint64_t clock, slowest;
        bool answered;
    } table[] = {
        {"sync", 0, 0, true},
        {"sync", 5, 5, true},
        {"sync", 6, 5, false},
        {"sync", 5, 6, true},
        {"ssp:0", 0, 0, true},
        {"ssp:0", 3, 3, true},
        {"ssp:0", 4, 3, false},
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
        CHECK_INT(job_discipline(table[i].mode, &discipline), STATUS_OK);
        bool answered = admission_answer(&discipline, table[i].clock, table[i].slowest);
        if (answered != table[i].answered) {
            fprintf(stderr, "%s, clock %llu, slowest %llu: %d\n", table[i].mode,
                    (unsigned long long)table[i].clock, (unsigned long long)table[i].slowest,
                    answered);
            exit(1);
        }
    }
}

static void test_by_round(void) {
    static const struct {
        const char *mode;
        bool by_round;
    } table[] = {{"sync", true}, {"ssp:0", false}, {"ssp:5", false}, {"async", false}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct discipline discipline;
        CHECK_INT(job_discipline(table[i].mode, &discipline), STATUS_OK);
        CHECK_INT(admission_by_round(&discipline), table[i].by_round);
    }
    /* The quorum alone decides. */
    CHECK(admission_by_round(&(struct discipline){.local_steps = 8, .staleness = 3, .quorum = 0}));
    CHECK(!admission_by_round(&(struct discipline){.local_steps = 1, .staleness = 0, .quorum = 2}));
}

int main(void) {
    TEST_RUN(test_pushes);
    TEST_RUN(test_each_has_its_turn_once);
    TEST_RUN(test_answers);
    TEST_RUN(test_by_round);
    return 0;
}
