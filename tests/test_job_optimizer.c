/* test_job_optimizer.c - --optimizer NAME and worker:NAME: which texts are taken, whose optimizer
 * they name, from which round on moments travel, and what worker:NAME refuses with which reason,
 * when a job starts and when its mode is to change. Tables of a job's options.
 */
#include "base/options.h"
#include "proto/discipline.h"
#include "proto/job.h"
#include "tests/test.h"

/* A job of 4 workers with "name=value name=value". */
static void job_of(const char *text, struct job *job) {
    struct options options;
    char copy[256];
    char why[512];
    char *rest = NULL;
    options_init(&options, job_table, job_table_count, job);
    job->workers = 4;
    (void)snprintf(copy, sizeof copy, "%s", text);
    for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        CHECK(value != NULL);
        *value++ = '\0';
        CHECK_INT(options_set(&options, options_find(&options, word), value, ORIGIN_FLAG, why,
                              sizeof why),
                  STATUS_OK);
    }
}

static void texts(void) {
    static const char *const names[] = {"adamw", "sgd",  "nesterov",  "adagrad",
                                        "lion",  "lamb", "adafactor", "muon"};
    static const char *const wrong[] = {
        "adam",   "worker:adam",         "worker:",      "1bit-adam",
        "worker", "worker:worker:adamw", "server:adamw", "Worker:adamw"};
    struct options options;
    struct job job;
    char why[512] = "";
    char text[64];
    options_init(&options, job_table, job_table_count, &job);
    int index = options_find(&options, "optimizer");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        for (int own = 0; own < 2; own++) {
            (void)snprintf(text, sizeof text, "%s%s", own ? "worker:" : "", names[i]);
            CHECK_INT(options_set(&options, index, text, ORIGIN_FLAG, why, sizeof why), STATUS_OK);
            CHECK_TEXT(job_optimizer(&job), names[i]);
            CHECK_INT(job_workers_step(&job), own);
            CHECK_INT(job_momentum_after(&job), 0);
        }
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK_INT(options_set(&options, index, wrong[i], ORIGIN_FLAG, why, sizeof why),
                  STATUS_INVALID);
        CHECK(strstr(why, "worker:1bit-adam") != NULL);
    }
}

/* Rounds of gradients: --dense-warmup, or a quarter of the steps, and at least one. */
static void warm_up(void) {
    static const struct {
        const char *options;
        int64_t after;
    } table[] = {{"optimizer=worker:1bit-adam steps=400", 100},
                 {"optimizer=worker:1bit-adam steps=400 dense-warmup=7", 7},
                 {"optimizer=worker:1bit-adam steps=3", 1},
                 {"optimizer=worker:adamw steps=400 dense-warmup=7", 0},
                 {"optimizer=adamw steps=400 dense-warmup=7", 0}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct job job;
        job_of(table[i].options, &job);
        CHECK_INT(job_momentum_after(&job), table[i].after);
    }
    struct job job;
    job_of("optimizer=worker:1bit-adam", &job);
    CHECK_TEXT(job_optimizer(&job), "adamw");
    CHECK(job_workers_step(&job));
}

static const struct {
    const char *options;
    const char *reason; /* NULL: it fits */
} fits[] = {
    {"optimizer=worker:adamw", NULL},
    {"optimizer=worker:muon push=onebit,ef", NULL},
    {"optimizer=worker:adamw moments=int8 push-policy=all freeze-v-after=10", NULL},
    {"optimizer=worker:1bit-adam push=onebit,ef dense-warmup=10", NULL},
    {"optimizer=worker:adamw mode=ssp:0", NULL},
    {"optimizer=worker:adamw mode=async", "--mode sync"},
    {"optimizer=worker:adamw mode=ssp:3", "--mode sync"},
    {"optimizer=worker:adamw mode=local:4", "--mode sync"},
    {"optimizer=worker:adamw mode=diloco:4", "--mode sync"},
    {"optimizer=worker:adamw quorum=3", "without --quorum"},
    {"optimizer=worker:adamw backup-workers=1", "--backup-workers"},
    {"optimizer=worker:adamw pull=none", "leave --pull out"},
    {"optimizer=worker:adamw pull=delta-int8", "leave --pull out"},
    {"optimizer=worker:adamw push-policy=policy.txt", "--push-policy"},
    {"optimizer=worker:muon moments=bf16", "--moments"},
    {"optimizer=worker:1bit-adam moments=bf16", "--moments"},
    {"optimizer=worker:1bit-adam freeze-v-after=10", "--freeze-v-after"},
    {"optimizer=worker:1bit-adam dense-warmup=0", "--dense-warmup"},
    {"optimizer=worker:1bit-adam beta1=0", "--beta1"},
    {"optimizer=adamw pull=none quorum=3 dense-warmup=0", NULL},
};

static void what_does_not_fit(void) {
    for (size_t i = 0; i < sizeof fits / sizeof fits[0]; i++) {
        struct job job;
        char why[256] = "";
        job_of(fits[i].options, &job);
        enum status status = job_check(&job, why, sizeof why);
        if (status != (fits[i].reason == NULL ? STATUS_OK : STATUS_INVALID) ||
            (fits[i].reason != NULL &&
             (strstr(why, fits[i].reason) == NULL || strstr(why, job.optimizer) == NULL))) {
            fprintf(stderr, "%s: status %d, %s\n", fits[i].options, (int)status, why);
            exit(1);
        }
    }
}

/* `rubato set`: the reason names the option. */
static void changes(void) {
    static const char *const modes[] = {"async", "ssp:2"};
    struct discipline made;
    struct job job;
    char why[256] = "";
    job_of("optimizer=worker:adamw", &job);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(discipline_change(&job, modes[i], &made, why, sizeof why), STATUS_INVALID);
        CHECK(strstr(why, "--optimizer worker:adamw needs the same mean") != NULL);
    }
    CHECK_INT(discipline_change(&job, "sync", &made, why, sizeof why), STATUS_OK);
    job_of("optimizer=adamw", &job);
    CHECK_INT(discipline_change(&job, "async", &made, why, sizeof why), STATUS_OK);
}

int main(void) {
    TEST_RUN(texts);
    TEST_RUN(warm_up);
    TEST_RUN(what_does_not_fit);
    TEST_RUN(changes);
    return 0;
}
