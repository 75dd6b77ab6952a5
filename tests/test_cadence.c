/* Proves what a worker does next, by a table over all that the decision may depend on, and which
 * modes commit: a whole run of steps must compute exactly `steps` times and then finish.
 */
#include "tests/test.h"
#include "worker/cadence.h"

static void test_table(void) {
    static const struct {
        struct cadence_progress progress; /* steps done, steps, answered */
        enum cadence expected;
    } table[] = {
        {{0, 10, false}, CADENCE_WAIT},   {{0, 10, true}, CADENCE_COMPUTE},
        {{9, 10, false}, CADENCE_WAIT},   {{9, 10, true}, CADENCE_COMPUTE},
        {{10, 10, false}, CADENCE_WAIT},  {{10, 10, true}, CADENCE_FINISH},
        {{11, 10, true}, CADENCE_FINISH}, {{0, 0, true}, CADENCE_FINISH},
        {{0, 0, false}, CADENCE_WAIT},    {{INT64_MAX - 1, INT64_MAX, true}, CADENCE_COMPUTE},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        CHECK_INT(cadence_next(&table[i].progress), table[i].expected);
    }
}

static void test_a_run(void) {
    struct cadence_progress progress = {.steps = 7};
    int waits = 0;
    enum cadence next;
    while ((next = cadence_next(&progress)) != CADENCE_FINISH) {
        if (next == CADENCE_COMPUTE) {
            progress.steps_done++;
            progress.answered = false;
        } else {
            waits++;
            progress.answered = true;
        }
        CHECK(progress.steps_done <= 7);
    }
    CHECK_INT(progress.steps_done, 7);
    CHECK_INT(waits, 8); /* for the first weights, and after every step */
}

static void test_commits(void) {
    static const struct {
        const char *mode;
        bool commits;
    } table[] = {{"sync", false}, {"ssp:0", true}, {"ssp:4", true}, {"async", true}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct discipline discipline;
        CHECK_INT(job_discipline(table[i].mode, &discipline), STATUS_OK);
        CHECK_INT(cadence_commits(&discipline), table[i].commits);
    }
}

int main(void) {
    TEST_RUN(test_table);
    TEST_RUN(test_a_run);
    TEST_RUN(test_commits);
    return 0;
}
