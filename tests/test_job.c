/* Proves the job's options: the table fits the struct row by row and every default passes; timers
 * and the learning rate are compared with closed forms; agreement merges, names both sides of each
 * conflict, and changes nothing when it refuses.
 */
#include "base/log.h"
#include "proto/job.h"
#include "tests/test.h"

#include <inttypes.h>

static void init(struct options *options, struct job *job) {
    memset(job, 0, sizeof *job);
    options_init(options, job_table, job_table_count, job);
}

static enum status set(struct options *options, const char *name, const char *text,
                       enum option_origin origin) {
    char why[512] = "";
    int index = options_find(options, name);
    CHECK(index >= 0);
    return options_set(options, index, text, origin, why, sizeof why);
}

static void give(struct options *options, const char *name, const char *text) {
    CHECK_INT(set(options, name, text, ORIGIN_FLAG), STATUS_OK);
}

/* Rows lie in the struct's order, one behind the other: nothing is left out or held twice. */
static void table_fits_the_struct(void) {
    static const size_t sizes[] = {[OPTION_FLAG] = sizeof(bool),
                                   [OPTION_INT] = sizeof(int64_t),
                                   [OPTION_REAL] = sizeof(double),
                                   [OPTION_TEXT] = OPTION_TEXT_MAX};
    size_t end = 0;
    for (size_t i = 0; i < job_table_count; i++) {
        const struct option *row = &job_table[i];
        CHECK(row->offset >= end && row->offset - end < sizeof(int64_t));
        CHECK(row->type == OPTION_TEXT || row->offset % sizes[row->type] == 0);
        end = row->offset + sizes[row->type];
        CHECK(strlen(row->help) > 10);
        CHECK(row->roles != 0);
        if (row->agreed) CHECK_INT(row->roles, JOB_SERVER | JOB_WORKER | JOB_LAUNCH);
    }
    CHECK(sizeof(struct job) - end < sizeof(int64_t));
    CHECK_TEXT(job_table[0].name, "servers");
    CHECK_TEXT(job_table[job_table_count - 1].name, "leave-after");
}

static void agreed_rows(void) {
    static const char *const agreed[] = {"servers",
                                         "workers",
                                         "mode",
                                         "model",
                                         "vocab",
                                         "seq-len",
                                         "pad-token",
                                         "batch",
                                         "accumulate",
                                         "steps",
                                         "seed",
                                         "dropout",
                                         "local-steps",
                                         "staleness",
                                         "quorum",
                                         "backup-workers",
                                         "grace",
                                         "late",
                                         "staleness-scale",
                                         "max-staleness",
                                         "delay-comp",
                                         "delay-base",
                                         "sync-warmup",
                                         "push-momentum",
                                         "push-beta2",
                                         "outer",
                                         "outer-lr",
                                         "outer-momentum",
                                         "inner-state",
                                         "fragments",
                                         "overlap",
                                         "mix",
                                         "adapt-steps",
                                         "optimizer",
                                         "moments",
                                         "rates",
                                         "decays",
                                         "schedule",
                                         "lr",
                                         "lr-min-ratio",
                                         "lr-scale",
                                         "warmup",
                                         "cooldown",
                                         "beta1",
                                         "beta2",
                                         "eps",
                                         "momentum",
                                         "weight-decay",
                                         "freeze-v-after",
                                         "clip",
                                         "push",
                                         "push-policy",
                                         "residual",
                                         "dense-warmup",
                                         "density-schedule",
                                         "pull",
                                         "wire",
                                         "block-values",
                                         "lease"};
    size_t count = sizeof agreed / sizeof agreed[0];
    for (size_t i = 0; i < job_table_count; i++) {
        CHECK(job_table[i].agreed == (i < count));
        if (i < count) CHECK_TEXT(job_table[i].name, agreed[i]);
    }
    CHECK(count <= JOB_AGREED_MAX);
}

static void defaults(void) {
    struct options options;
    struct job job;
    init(&options, &job);
    CHECK_INT(job.servers, 1);
    CHECK_TEXT(job.mode, "sync");
    CHECK_TEXT(job.model, "gpt2:tiny");
    CHECK_INT(job.seq_len, 128);
    CHECK_INT(job.block_values, 262144);
    CHECK(job.lr == 0.001 && job.eps == 1e-8 && job.beta2 == 0.95 && job.lease == 5.0);
    CHECK_TEXT(job.push, "bf16");
    CHECK_TEXT(job.progress, "auto");
    CHECK(!job.insecure && !job.stay);
}

static void timers(void) {
    struct job job = {.lease = 2.5};
    CHECK_INT(job_lease_ns(&job), 2500000000);
    CHECK_INT(job_heartbeat_ns(&job), 250000000);
    CHECK_INT(job_join_timeout_ns(&job), 30000000000);
    job.join_timeout = 7.25;
    CHECK_INT(job_join_timeout_ns(&job), 7250000000);
}

static void learning_rate(void) {
    struct job job = {.lr = 0.02, .lr_min_ratio = 0.25, .warmup = 10, .steps = 110};
    snprintf(job.schedule, sizeof job.schedule, "cosine");
    /* Warm-up is linear and ends at the peak. */
    for (int64_t step = 0; step < 10; step++)
        CHECK_NEAR(job_learning_rate(&job, step), 0.002 * (double)(step + 1), 1e-15);
    CHECK_NEAR(job_learning_rate(&job, 10), 0.02, 1e-15);
    /* cos(0), cos(60 deg) = 1/2, cos(90 deg) = 0, cos(180 deg) = -1 over 100 steps of falling. */
    job.steps = 10 + 90;
    CHECK_NEAR(job_learning_rate(&job, 10 + 30), 0.005 + 0.015 * 0.75, 1e-15);
    CHECK_NEAR(job_learning_rate(&job, 10 + 45), 0.0125, 1e-15);
    CHECK_NEAR(job_learning_rate(&job, 10 + 60), 0.005 + 0.015 * 0.25, 1e-15);
    CHECK_NEAR(job_learning_rate(&job, 100), 0.005, 1e-15);
    CHECK_NEAR(job_learning_rate(&job, INT64_MAX), 0.005, 1e-15);
    for (int64_t step = 10; step < 100; step++)
        CHECK(job_learning_rate(&job, step + 1) < job_learning_rate(&job, step));
    /* No warm-up; warm-up as long as the run, or longer. */
    job.warmup = 0;
    CHECK_NEAR(job_learning_rate(&job, 0), 0.02, 1e-15);
    job.warmup = 100;
    CHECK_NEAR(job_learning_rate(&job, 99), 0.02, 1e-15);
    CHECK_NEAR(job_learning_rate(&job, 100), 0.005, 1e-15);
    job.warmup = 200;
    CHECK_NEAR(job_learning_rate(&job, 99), 0.01, 1e-15);
    CHECK_NEAR(job_learning_rate(&job, 200), 0.005, 1e-15);
    snprintf(job.schedule, sizeof job.schedule, "constant");
    job.warmup = 10;
    CHECK_NEAR(job_learning_rate(&job, 4), 0.01, 1e-15);
    CHECK_NEAR(job_learning_rate(&job, 10), 0.02, 1e-15);
    CHECK_NEAR(job_learning_rate(&job, 1000000), 0.02, 1e-15);
}

/* Lines through their end points: warm-up to the peak at step 10, the end at step 110. */
static void falling_lines(void) {
    struct job job = {
        .lr = 0.02, .lr_min_ratio = 0.25, .warmup = 10, .steps = 110, .cooldown = 0.2};
    snprintf(job.schedule, sizeof job.schedule, "linear");
    CHECK_NEAR(job_learning_rate(&job, 4), 0.01, 1e-15);
    for (int64_t step = 10; step <= 110; step++)
        CHECK_NEAR(job_learning_rate(&job, step), 0.02 - 0.015 * (double)(step - 10) / 100.0,
                   1e-15);
    CHECK_NEAR(job_learning_rate(&job, 1000000), 0.005, 1e-15);
    /* The last fifth of 110 steps are 22: from 88 on. */
    snprintf(job.schedule, sizeof job.schedule, "wsd");
    CHECK_NEAR(job_learning_rate(&job, 4), 0.01, 1e-15);
    for (int64_t step = 10; step <= 88; step++)
        CHECK_NEAR(job_learning_rate(&job, step), 0.02, 1e-15);
    for (int64_t step = 88; step <= 110; step++)
        CHECK_NEAR(job_learning_rate(&job, step), 0.02 - 0.015 * (double)(step - 88) / 22.0, 1e-15);
    CHECK_NEAR(job_learning_rate(&job, INT64_MAX), 0.005, 1e-15);
    /* The fall begins after warm-up at the earliest; without one there is none before the end. */
    job.cooldown = 1;
    CHECK_NEAR(job_learning_rate(&job, 9), 0.02, 1e-15);
    CHECK_NEAR(job_learning_rate(&job, 60), 0.0125, 1e-15);
    job.cooldown = 0;
    CHECK_NEAR(job_learning_rate(&job, 109), 0.02, 1e-15);
    CHECK_NEAR(job_learning_rate(&job, 110), 0.005, 1e-15);
}

static void rate_for_workers(void) {
    struct job job = {.lr = 0.02, .lr_min_ratio = 0.5, .warmup = 2, .steps = 10, .workers = 9};
    snprintf(job.schedule, sizeof job.schedule, "linear");
    snprintf(job.lr_scale, sizeof job.lr_scale, "none");
    CHECK_NEAR(job_peak_rate(&job), 0.02, 1e-15);
    CHECK_NEAR(job_learning_rate(&job, 6), 0.015, 1e-15);
    snprintf(job.lr_scale, sizeof job.lr_scale, "sqrt");
    CHECK_NEAR(job_peak_rate(&job), 0.06, 1e-15);
    CHECK_NEAR(job_learning_rate(&job, 0), 0.03, 1e-15);
    CHECK_NEAR(job_learning_rate(&job, 6), 0.045, 1e-15);
    snprintf(job.lr_scale, sizeof job.lr_scale, "linear");
    CHECK_NEAR(job_peak_rate(&job), 0.18, 1e-15);
    CHECK_NEAR(job_learning_rate(&job, 10), 0.09, 1e-15);
}

static void recompute_texts(void) {
    static const struct {
        const char *text;
        int64_t every;
        bool attention;
    } good[] = {{"none", 0, false},
                {"attention", 0, true},
                {"every:1", 1, false},
                {"every:1000", 1000, false}};
    static const char *const wrong[] = {
        "",         "every",   "every:",     "every:0",    "every:-1",
        "every:1 ", "every:x", "every:1001", "attention:1"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        int64_t every = -1;
        bool attention = !good[i].attention;
        CHECK_INT(job_recompute(good[i].text, &every, &attention), STATUS_OK);
        CHECK_INT(every, good[i].every);
        CHECK(attention == good[i].attention);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        int64_t every = 7;
        bool attention = true;
        CHECK_INT(job_recompute(wrong[i], &every, &attention), STATUS_INVALID);
        CHECK(every == 7 && attention);
    }
}

static void addresses(void) {
    static const struct {
        const char *address, *host, *port;
    } good[] = {{"10.0.0.1:29600", "10.0.0.1", "29600"},
                {"localhost:0", "localhost", "0"},
                {"[::1]:65535", "::1", "65535"},
                {"[fe80::1%eth0]:1", "fe80::1%eth0", "1"},
                {"a-b_c.example:80", "a-b_c.example", "80"}};
    static const char *const wrong[] = {"",
                                        ":",
                                        "host",
                                        "host:",
                                        ":80",
                                        "h:65536",
                                        "h:-1",
                                        "h:+1",
                                        "h:8a",
                                        "h:000080",
                                        "::1:80",
                                        "[::1]",
                                        "[::1]80",
                                        "[::1:80",
                                        "[]:80",
                                        "a b:80",
                                        "h/x:80",
                                        "h\n:80",
                                        "[::1]]:80",
                                        "h: 80",
                                        "]:80",
                                        "[:80",
                                        "h:99999999999999999999"};
    char host[OPTION_TEXT_MAX], port[8];
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        CHECK(job_split_address(good[i].address, host, sizeof host, port, sizeof port));
        CHECK_TEXT(host, good[i].host);
        CHECK_TEXT(port, good[i].port);
    }
    snprintf(host, sizeof host, "kept");
    snprintf(port, sizeof port, "kept");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        if (!job_split_address(wrong[i], host, sizeof host, port, sizeof port)) continue;
        fprintf(stderr, "'%s' was taken\n", wrong[i]);
        exit(1);
    }
    CHECK(!job_split_address("host:80", host, 4, port, sizeof port));
    CHECK(!job_split_address("host:80", host, sizeof host, port, 2));
    CHECK_TEXT(host, "kept");
    CHECK_TEXT(port, "kept");
    CHECK(job_split_address("host:80", host, 5, port, 3));
}

/* A member with its options, and the record of what its user gave. */
struct process {
    struct options options;
    struct job job;
    struct job_values values;
};

static void start(struct process *process) {
    init(&process->options, &process->job);
}

static enum status agree(struct process *coordinator, struct job_agreement *agreement,
                         struct process *process, const char *peer, char *diff, size_t bytes) {
    job_given(&process->options, false, &process->values);
    return job_agree(&coordinator->options, agreement, &process->values, peer, diff, bytes);
}

static void records(void) {
    static struct process process;
    start(&process);
    job_given(&process.options, false, &process.values);
    CHECK_INT(process.values.count, 0);
    give(&process.options, "lr", "2e-3");
    give(&process.options, "mode", "ssp:4");
    give(&process.options, "log-level", "debug"); /* LOCAL: not in the record */
    CHECK_INT(set(&process.options, "steps", "7", ORIGIN_JOB), STATUS_OK); /* nobody gave it */
    CHECK_INT(set(&process.options, "batch", "9", ORIGIN_FILE), STATUS_OK);
    job_given(&process.options, false, &process.values);
    CHECK_INT(process.values.count, 3);
    CHECK_TEXT(process.values.names[0], "mode");
    CHECK_TEXT(process.values.values[0], "ssp:4");
    CHECK_TEXT(process.values.names[1], "batch");
    CHECK_TEXT(process.values.names[2], "lr");
    CHECK_TEXT(process.values.values[2], "0.002");
    job_given(&process.options, true, &process.values);
    CHECK_INT(process.values.count, 59);
}

static void agreement_merges(void) {
    static struct process coordinator, worker, other, late;
    static struct job_agreement agreement;
    char diff[512] = "x";
    start(&coordinator);
    start(&worker);
    start(&other);
    start(&late);
    give(&coordinator.options, "workers", "2");
    give(&worker.options, "lr", "0.002");
    give(&worker.options, "model", "gpt2:small");
    give(&worker.options, "workers", "2");
    give(&other.options, "lr", "2e-3"); /* the same number */
    give(&other.options, "push", "int8");
    CHECK_INT(agree(&coordinator, &agreement, &coordinator, "server on a:1", diff, sizeof diff),
              STATUS_OK);
    CHECK_TEXT(diff, "");
    CHECK_INT(agree(&coordinator, &agreement, &worker, "worker on b:2", diff, sizeof diff),
              STATUS_OK);
    CHECK_INT(agree(&coordinator, &agreement, &other, "worker on c:3", diff, sizeof diff),
              STATUS_OK);
    CHECK_INT(agree(&coordinator, &agreement, &late, "worker on d:4", diff, sizeof diff),
              STATUS_OK);
    CHECK(coordinator.job.lr == 0.002);
    CHECK_TEXT(coordinator.job.model, "gpt2:small");
    CHECK_TEXT(coordinator.job.push, "int8");
    CHECK_INT(coordinator.job.workers, 2);
    int lr = options_find(&coordinator.options, "lr");
    CHECK_INT(coordinator.options.origins[lr], ORIGIN_JOB);
    CHECK_TEXT(agreement.by[lr], "worker on b:2"); /* the first who gave it */

    /* All adopt it, and then hold the same values. */
    job_given(&coordinator.options, true, &coordinator.values);
    CHECK_INT(job_adopt(&worker.options, &coordinator.values), STATUS_OK);
    CHECK_INT(job_adopt(&late.options, &coordinator.values), STATUS_OK);
    CHECK_INT(worker.options.origins[lr], ORIGIN_FLAG);
    CHECK_INT(late.options.origins[lr], ORIGIN_JOB);
    CHECK(memcmp(&worker.job, &late.job, sizeof worker.job) == 0);
    CHECK(late.job.lr == 0.002);
    CHECK_TEXT(late.job.push, "int8");
}

static void conflicts(void) {
    static struct process coordinator, worker;
    static struct job_agreement agreement, before;
    static struct job job_before;
    char diff[512];
    start(&coordinator);
    start(&worker);
    give(&coordinator.options, "lr", "0.001"); /* the default, but given */
    give(&coordinator.options, "mode", "async");
    CHECK_INT(agree(&coordinator, &agreement, &coordinator, "server on a:1", diff, sizeof diff),
              STATUS_OK);
    give(&worker.options, "lr", "0.002");
    give(&worker.options, "mode", "sync");
    give(&worker.options, "batch", "32"); /* no conflict, and not merged either */
    before = agreement;
    job_before = coordinator.job;
    CHECK_INT(agree(&coordinator, &agreement, &worker, "worker on b:2", diff, sizeof diff),
              STATUS_MISMATCH);
    CHECK_TEXT(diff, "mode: async (server on a:1) is not sync (worker on b:2)\n"
                     "lr: 0.001 (server on a:1) is not 0.002 (worker on b:2)");
    CHECK(memcmp(&before, &agreement, sizeof before) == 0);
    CHECK(memcmp(&job_before, &coordinator.job, sizeof job_before) == 0);
    CHECK_INT(coordinator.options.origins[options_find(&coordinator.options, "batch")],
              ORIGIN_DEFAULT);

    /* A diff that does not fit is cut, with its end in place. */
    char small[20];
    memset(small, 'x', sizeof small);
    CHECK_INT(agree(&coordinator, &agreement, &worker, "worker on b:2", small, 10),
              STATUS_MISMATCH);
    CHECK_TEXT(small, "mode: asy");
    CHECK_INT(small[10], 'x');

    /* A coordinator that has not put its own record in defends its user's values all the same. */
    memset(&agreement, 0, sizeof agreement);
    CHECK_INT(agree(&coordinator, &agreement, &worker, "worker on b:2", diff, sizeof diff),
              STATUS_MISMATCH);
    CHECK(strstr(diff, "lr: 0.001 (the coordinator) is not 0.002 (worker on b:2)") != NULL);

    /* Two members against each other: the second is refused, whoever it is. */
    static struct process third;
    start(&coordinator);
    start(&third);
    memset(&agreement, 0, sizeof agreement);
    give(&third.options, "batch", "16");
    CHECK_INT(agree(&coordinator, &agreement, &worker, "worker on b:2", diff, sizeof diff),
              STATUS_OK);
    CHECK_INT(agree(&coordinator, &agreement, &third, "worker on c:3", diff, sizeof diff),
              STATUS_MISMATCH);
    CHECK_TEXT(diff, "batch: 32 (worker on b:2) is not 16 (worker on c:3)");
}

static void refuse_record(const char *name, const char *value, const char *expected) {
    static struct process coordinator;
    static struct job_agreement agreement, none;
    static struct job before;
    struct job_values values = {.count = 2, .names = {"batch", name}};
    char diff[512];
    start(&coordinator);
    before = coordinator.job;
    snprintf(values.values[0], OPTION_TEXT_MAX, "16");
    snprintf(values.values[1], OPTION_TEXT_MAX, "%s", value);
    CHECK_INT(
        job_agree(&coordinator.options, &agreement, &values, "worker on b:2", diff, sizeof diff),
        STATUS_INVALID);
    if (strstr(diff, expected) == NULL) {
        fprintf(stderr, "the diff is '%s', expected '%s' in it\n", diff, expected);
        exit(1);
    }
    CHECK_INT(job_adopt(&coordinator.options, &values), STATUS_INVALID);
    CHECK(memcmp(&before, &coordinator.job, sizeof before) == 0);
    CHECK(memcmp(&agreement, &none, sizeof none) == 0);
}

static void unknown_records(void) {
    refuse_record("quantum", "1", "quantum: not an agreed option of this build");
    refuse_record("log-level", "info", "log-level: not an agreed option of this build");
    refuse_record("lr\x1b[2J", "1", "lr?[2J: not an agreed option"); /* a terminal's escape */
    refuse_record("mode", "ssp:x", "mode: 'ssp:x' is not accepted (allowed: sync, ssp:S, async");
    refuse_record("steps", "0", "steps: '0' is out of range");
    refuse_record("batch", "16", "batch: is given twice");

    static struct process process;
    struct job_values values = {.count = 1, .names = {"mode"}};
    start(&process);
    memset(values.values[0], 's', OPTION_TEXT_MAX); /* no end */
    CHECK_INT(job_adopt(&process.options, &values), STATUS_INVALID);
}

static void adoption_defends_what_was_given(void) {
    static struct process process;
    struct job_values values = {.count = 2, .names = {"batch", "lr"}};
    start(&process);
    give(&process.options, "lr", "0.5");
    snprintf(values.values[0], OPTION_TEXT_MAX, "16");
    snprintf(values.values[1], OPTION_TEXT_MAX, "0.25");
    CHECK_INT(job_adopt(&process.options, &values), STATUS_INVALID);
    CHECK_INT(process.job.batch, 8);
    CHECK(process.job.lr == 0.5);
    snprintf(values.values[1], OPTION_TEXT_MAX, "5e-1");
    CHECK_INT(job_adopt(&process.options, &values), STATUS_OK);
    CHECK_INT(process.job.batch, 16);
    /* A later job may say something else of what was only learnt. */
    snprintf(values.values[0], OPTION_TEXT_MAX, "24");
    CHECK_INT(job_adopt(&process.options, &values), STATUS_OK);
    CHECK_INT(process.job.batch, 24);
}

int main(void) {
    TEST_RUN(table_fits_the_struct);
    TEST_RUN(agreed_rows);
    TEST_RUN(defaults);
    TEST_RUN(timers);
    TEST_RUN(learning_rate);
    TEST_RUN(falling_lines);
    TEST_RUN(rate_for_workers);
    TEST_RUN(recompute_texts);
    TEST_RUN(addresses);
    TEST_RUN(records);
    TEST_RUN(agreement_merges);
    TEST_RUN(conflicts);
    TEST_RUN(unknown_records);
    TEST_RUN(adoption_defends_what_was_given);
    return 0;
}
