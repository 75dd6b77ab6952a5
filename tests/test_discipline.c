/* test_discipline.c - modes as numbers: presets, what each flag changes, what is refused and why.
 *
 * Tables: a job's options on the left, the numbers or a word of the reason on the right. The number
 * of reports is checked against a plain simulation of fragments in turn.
 */
#include "base/clock.h"
#include "base/options.h"
#include "proto/discipline.h"
#include "proto/job.h"
#include "tests/test.h"

#include <stdio.h>
#include <string.h>

/* A job of 4 workers with "name=value name=value". */
static void job_of(const char *text, struct job *job) {
    struct options options;
    char copy[256];
    char why[256];
    char *rest = NULL;
    options_init(&options, job_table, job_table_count, job);
    job->workers = 4;
    (void)snprintf(copy, sizeof copy, "%s", text);
    for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        CHECK(value != NULL);
        *value++ = '\0';
        int index = options_find(&options, word);
        CHECK(index >= 0);
        CHECK_INT(options_set(&options, index, value, ORIGIN_FLAG, why, sizeof why), STATUS_OK);
    }
}

static void presets_and_flags(void) {
    static const struct {
        const char *options;
        struct discipline is;
    } table[] = {
        {"mode=sync", {false, 1, 1, 0, 0, 4, 0, false, 0}},
        {"mode=ssp:0", {false, 1, 1, 0, 0, 4, 0, false, 0}},
        {"mode=ssp:3", {false, 1, 1, 0, 3, 1, 0, false, 100}},
        {"mode=async", {false, 1, 1, 0, STALENESS_ANY, 1, 0, false, 100}},
        {"mode=sync staleness=any", {false, 1, 1, 0, STALENESS_ANY, 1, 0, false, 100}},
        {"mode=async staleness=0", {false, 1, 1, 0, 0, 4, 0, false, 0}},
        {"mode=sync backup-workers=1", {false, 1, 1, 0, 0, 3, 0, false, 0}},
        {"mode=sync quorum=2 grace=50 late=join", {false, 1, 1, 0, 0, 2, 50 * CLOCK_MS, true, 0}},
        {"mode=sync quorum=2 grace=auto", {false, 1, 1, 0, 0, 2, GRACE_AUTO, false, 0}},
        {"mode=sync quorum=all", {false, 1, 1, 0, 0, 4, 0, false, 0}},
        {"mode=local:8", {true, 8, 1, 0, 0, 4, 0, true, 0}},
        {"mode=local:1", {true, 1, 1, 0, 0, 4, 0, true, 0}},
        {"mode=diloco:20 local-steps=30", {true, 30, 1, 0, 0, 4, 0, true, 0}},
        {"mode=diloco:20 fragments=4 overlap=5", {true, 20, 4, 5, 0, 4, 0, true, 0}},
        {"mode=diloco:20 quorum=3 grace=100 late=drop",
         {true, 20, 1, 0, 0, 3, 100 * CLOCK_MS, false, 0}},
        {"mode=async sync-warmup=7", {false, 1, 1, 0, STALENESS_ANY, 1, 0, false, 7}},
        {"mode=async sync-warmup=0", {false, 1, 1, 0, STALENESS_ANY, 1, 0, false, 0}},
        {"mode=diloco:20 staleness=any", {true, 20, 1, 0, STALENESS_ANY, 1, 0, true, 0}},
        /* What has a use in the mode, and defaults that are given although they have none. */
        {"mode=async delay-comp=1 delay-base=copies push-momentum=0.5 push-beta2=0 max-staleness=9",
         {false, 1, 1, 0, STALENESS_ANY, 1, 0, false, 100}},
        {"mode=local:8 outer=sgd outer-momentum=0.5", {true, 8, 1, 0, 0, 4, 0, true, 0}},
        {"mode=diloco:8 outer-momentum=0.5", {true, 8, 1, 0, 0, 4, 0, true, 0}},
        {"mode=diloco:8 staleness=3 max-staleness=2 staleness-scale=exp",
         {true, 8, 1, 0, 3, 1, 0, true, 0}},
        {"mode=sync late=auto grace=0 delay-base=moments push-beta2=0.997 outer-momentum=0.9",
         {false, 1, 1, 0, 0, 4, 0, false, 0}},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct job job;
        struct discipline made = {0};
        const struct discipline *is = &table[i].is;
        char why[256] = "";
        job_of(table[i].options, &job);
        if (job_discipline(&job, &made, why, sizeof why) != STATUS_OK) {
            fprintf(stderr, "%s: %s\n", table[i].options, why);
            exit(1);
        }
        CHECK_INT(made.local, is->local);
        CHECK_INT(made.local_steps, is->local_steps);
        CHECK_INT(made.fragments, is->fragments);
        CHECK_INT(made.overlap, is->overlap);
        CHECK_INT(made.staleness, is->staleness);
        CHECK_INT(made.quorum, is->quorum);
        CHECK_INT(made.grace_ns, is->grace_ns);
        CHECK_INT(made.late_joins, is->late_joins);
        CHECK_INT(made.sync_warmup, is->sync_warmup);
        CHECK_INT(discipline_by_round(&made), is->staleness == 0);
        CHECK_INT(discipline_needs_all(&made, 4), is->staleness == 0 && is->quorum == 4);
        CHECK_INT(job_check(&job, why, sizeof why), STATUS_OK);
    }
}

/* A running job's new mode begins at once, with its own staleness and quorum; what does not fit is
 * refused as at the start. */
static void changes(void) {
    static const struct {
        const char *options, *mode, *reason; /* NULL: it may change */
        int64_t staleness, quorum;
    } table[] = {
        {"mode=sync", "async", NULL, STALENESS_ANY, 1},
        {"mode=async sync-warmup=7", "ssp:2", NULL, 2, 1},
        {"mode=async staleness=4", "async", NULL, STALENESS_ANY, 1},
        {"mode=sync staleness=any", "sync", NULL, 0, 4},
        {"mode=ssp:2 staleness=0 quorum=all", "ssp:2", NULL, 2, 1},
        {"mode=async quorum=1", "sync", NULL, 0, 4},
        {"mode=sync", "asynch", "--mode", 0, 0},
        {"mode=sync backup-workers=1", "ssp:2", "--backup-workers", 0, 0},
        {"mode=async delay-comp=1", "sync", "--delay-comp", 0, 0},
        {"mode=async push-momentum=0.5", "sync", "--push-momentum", 0, 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct job job;
        struct discipline made = {0};
        char why[256] = "";
        job_of(table[i].options, &job);
        enum status status = discipline_change(&job, table[i].mode, &made, why, sizeof why);
        CHECK_INT(status, table[i].reason == NULL ? STATUS_OK : STATUS_INVALID);
        CHECK(table[i].reason == NULL || strstr(why, table[i].reason) != NULL);
        CHECK_INT(made.staleness, table[i].staleness);
        CHECK_INT(made.quorum, table[i].quorum);
        CHECK_INT(made.sync_warmup, 0);
    }
}

static void what_does_not_fit(void) {
    static const struct {
        const char *options, *reason;
    } table[] = {
        {"mode=sync quorum=5", "--quorum"},
        {"mode=sync backup-workers=4", "--quorum"},
        {"mode=sync quorum=0", "--quorum"},
        {"mode=sync quorum=3 backup-workers=1", "give one"},
        {"mode=async quorum=2", "rounds"},
        {"mode=ssp:2 backup-workers=1", "rounds"},
        {"mode=sync grace=10", "--grace"},
        {"mode=async grace=auto", "--grace"},
        {"mode=sync local-steps=2", "--local-steps"},
        {"mode=sync fragments=2", "--fragments"},
        {"mode=async overlap=1", "--overlap"},
        {"mode=sync mix=0.5", "--mix"},
        {"mode=async adapt-steps=yes", "--adapt-steps"},
        {"mode=diloco:20 fragments=3", "--fragments"},
        {"mode=diloco:20 fragments=4 overlap=6", "--overlap"},
        {"mode=diloco:20 fragments=2 quorum=3", "--fragments"},
        {"mode=diloco:20 staleness=any sync-warmup=5", "--sync-warmup"},
        {"mode=sync sync-warmup=5", "--sync-warmup"},
        {"mode=sync max-staleness=3", "--max-staleness"},
        {"mode=sync staleness-scale=exp", "--staleness-scale"},
        {"mode=sync delay-comp=1", "--delay-comp"},
        {"mode=sync late=join", "--late"},
        {"mode=async late=drop", "--late"},
        {"mode=local:4 late=join", "--late"},
        {"mode=diloco:4 staleness=any late=drop", "--late"},
        {"mode=sync delay-base=copies", "--delay-base"},
        {"mode=async delay-base=copies", "--delay-base"},
        {"mode=diloco:4 staleness=any delay-comp=1", "--delay-comp"},
        {"mode=sync push-momentum=0.5", "--push-momentum"},
        {"mode=ssp:0 push-beta2=0", "--push-beta2"},
        {"mode=diloco:4 staleness=any push-beta2=0.9", "--push-beta2"},
        {"mode=local:4 max-staleness=3", "--max-staleness"},
        {"mode=sync outer=sgd", "--outer"},
        {"mode=async outer-momentum=0.5", "--outer-momentum"},
        {"mode=local:4 outer-momentum=0.5", "--outer-momentum"},
        {"mode=diloco:4 outer=adamw outer-momentum=0.5", "--outer-momentum"},
        {"mode=sync optimizer=muon moments=int8", "--moments"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct job job;
        char why[256] = "";
        job_of(table[i].options, &job);
        if (job_check(&job, why, sizeof why) != STATUS_INVALID ||
            strstr(why, table[i].reason) == NULL) {
            fprintf(stderr, "%s: '%s' has no %s\n", table[i].options, why, table[i].reason);
            exit(1);
        }
    }
}

static void no_such_modes(void) {
    static const char *const wrong[] = {
        "",         "Sync",    "sync ",   "ssp",         "ssp:",
        "ssp:-1",   "ssp:+1",  "ssp:1.5", "ssp:1 ",      "async:1",
        "ssp:0x1",  "ssp: 1",  "local",   "local:0",     "diloco:",
        "diloco:0", "local:x", "dilocoo", "ssp:1000001", "ssp:99999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct discipline discipline = {.quorum = 7};
        CHECK_INT(discipline_of_mode(wrong[i], 4, &discipline), STATUS_INVALID);
        CHECK_INT(discipline.quorum, 7);
    }
}

/* Reports go on in turn until each fragment has been reported at or after the last step. */
static int64_t reports_by_hand(int64_t local_steps, int64_t fragments, int64_t steps) {
    int64_t interval = local_steps / fragments;
    int64_t reports = 0;
    int64_t made = 0;
    int64_t after_last = 0; /* reports of distinct fragments since the last step was made */
    while (after_last < fragments) {
        made = made + interval < steps ? made + interval : steps;
        reports++;
        after_last += made == steps ? 1 : 0;
    }
    return reports;
}

static void reports(void) {
    for (int64_t fragments = 1; fragments <= 4; fragments++) {
        for (int64_t interval = 1; interval <= 5; interval++) {
            for (int64_t steps = 1; steps <= 43; steps++) {
                struct discipline discipline = {.local_steps = interval * fragments,
                                                .fragments = fragments};
                CHECK_INT(discipline_interval(&discipline), interval);
                CHECK_INT(discipline_reports(&discipline, steps),
                          reports_by_hand(interval * fragments, fragments, steps));
            }
        }
    }
}

int main(void) {
    TEST_RUN(presets_and_flags);
    TEST_RUN(changes);
    TEST_RUN(what_does_not_fit);
    TEST_RUN(no_such_modes);
    TEST_RUN(reports);
    return 0;
}
