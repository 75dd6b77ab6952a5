/* test_job_preset.c - what --push's presets set besides the codec, and what they leave alone.
 *
 * A preset fills what nobody gave, nothing once a mode is given, and the same whether origins or
 * the coordinator's record say who gave what; every preset makes a job that job_check() takes.
 */
#include "proto/codec_spec.h"
#include "proto/job.h"
#include "tests/test.h"

struct rig {
    struct job job;
    struct options options;
    char what[256];
};

static void give(struct rig *rig, const char *name, const char *text) {
    char why[256];
    CHECK(options_set(&rig->options, options_find(&rig->options, name), text, ORIGIN_FLAG, why,
                      sizeof why) == STATUS_OK);
}

static bool expand(struct rig *rig, const char *push, const char *name, const char *text) {
    options_init(&rig->options, job_table, job_table_count, &rig->job);
    give(rig, "push", push);
    if (name != NULL) give(rig, name, text);
    return job_expand_preset(&rig->options, NULL, rig->what, sizeof rig->what);
}

static void presets_fit(void) {
    static const char *const names[] = {"fast", "balanced", "thin", "wan"};
    static struct rig rig;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char why[256];
        (void)expand(&rig, names[i], NULL, NULL);
        CHECK_TEXT(rig.job.push, names[i]);
        CHECK(codec_preset(names[i]) != NULL);
        CHECK(job_check(&rig.job, why, sizeof why) == STATUS_OK);
    }
}

static void what_is_given_stays(void) {
    static struct rig rig;
    CHECK(!expand(&rig, "int8", NULL, NULL));
    CHECK(expand(&rig, "wan", NULL, NULL));
    CHECK_TEXT(rig.job.mode, "local:8");
    CHECK(strstr(rig.what, "--mode local:8") != NULL);
    CHECK(expand(&rig, "wan", "pull", "none"));
    CHECK_TEXT(rig.job.pull, "none");
    CHECK(!expand(&rig, "wan", "mode", "sync"));
    CHECK_TEXT(rig.job.mode, "sync");
    CHECK_TEXT(rig.job.pull, "bf16");
}

/* A preset gives way to what does not go with it, and is its codec alone. */
static void gives_way(void) {
    static const char *const others[][2] = {
        {"pull", "delta-int8"}, {"backup-workers", "1"}, {"staleness", "2"}};
    static struct rig rig;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        char why[256];
        CHECK(!expand(&rig, "thin", others[i][0], others[i][1]));
        CHECK_TEXT(rig.job.optimizer, "adamw");
        rig.job.workers = 4;
        CHECK(job_check(&rig.job, why, sizeof why) == STATUS_OK);
    }
    CHECK(expand(&rig, "thin", NULL, NULL));
    CHECK_TEXT(rig.job.optimizer, "worker:adamw");
}

/* At the coordinator all values have come from elsewhere: its record tells who gave them. */
static void the_record_tells(void) {
    static struct rig rig;
    bool given[OPTIONS_MAX] = {false};
    options_init(&rig.options, job_table, job_table_count, &rig.job);
    give(&rig, "push", "wan");
    given[options_find(&rig.options, "push")] = true;
    CHECK(job_expand_preset(&rig.options, given, rig.what, sizeof rig.what));
    CHECK_TEXT(rig.job.mode, "local:8");
    options_init(&rig.options, job_table, job_table_count, &rig.job);
    give(&rig, "push", "wan");
    given[options_find(&rig.options, "mode")] = true;
    CHECK(!job_expand_preset(&rig.options, given, rig.what, sizeof rig.what));
    CHECK_TEXT(rig.job.mode, "sync");
}

int main(void) {
    TEST_RUN(presets_fit);
    TEST_RUN(what_is_given_stays);
    TEST_RUN(gives_way);
    TEST_RUN(the_record_tells);
    return 0;
}
