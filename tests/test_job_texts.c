/* Proves what may be written after each option, by a table of texts that are accepted, or refused
 * with what is allowed; what options must not be together; and what the plan is told of them. The
 * numbers of modes are test_discipline.c's, the table itself and agreement test_job.c's.
 */
#include "proto/job.h"
#include "tests/test.h"

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

struct text_case {
    const char *name;
    const char *text;
    bool legal;
    const char *allowed; /* part of the message */
};

static const struct text_case text_cases[] = {
    {"mode", "async", true, ""},
    {"mode", "ssp:0", true, ""},
    {"mode", "ssp:1000000", true, ""},
    {"mode", "ssp:1000001", false, "ssp:S"},
    {"mode", "local:1", true, ""},
    {"mode", "local:0", false, "local:H"},
    {"mode", "diloco:500", true, ""},
    {"mode", "diloco", false, "diloco:H"},
    {"staleness", "any", true, ""},
    {"staleness", "0", true, ""},
    {"staleness", "-1", false, "auto, any, or a number of reports"},
    {"quorum", "all", true, ""},
    {"quorum", "3", true, ""},
    {"quorum", "most", false, "auto, all, or a number of workers"},
    {"grace", "auto", true, ""},
    {"grace", "250", true, ""},
    {"grace", "0.5", false, "auto, or milliseconds"},
    {"late", "join", true, ""},
    {"late", "wait", false, "drop"},
    {"staleness-scale", "inverse", true, ""},
    {"staleness-scale", "linear", false, "inverse"},
    {"max-staleness", "-1", true, ""},
    {"max-staleness", "-2", false, "-1"},
    {"delay-comp", "0.5", true, ""},
    {"delay-base", "copies", true, ""},
    {"delay-base", "none", false, "copies"},
    {"outer", "nesterov", true, ""},
    {"outer", "average", true, ""},
    {"outer", "muon", false, "average"},
    {"inner-state", "reset", true, ""},
    {"inner-state", "drop", false, "keep"},
    {"fragments", "0", false, "1"},
    {"mix", "1", false, "0.999"},
    {"dropout", "1", false, "0.95"},
    {"optimizer", "muon", true, ""},
    {"optimizer", "lion", true, ""},
    {"moments", "int8", true, ""},
    {"moments", "f16", false, "f32"},
    {"rates", "*.wte.weight=0,h.*=0.5", true, ""},
    {"rates", "wte", false, "PATTERN=FACTOR"},
    {"decays", "*=-1", false, "PATTERN=FACTOR"},
    {"link", "100mbit", true, ""},
    {"link", "fast", false, "100mbit"},
    {"slow", "0.5", false, "1"},
    {"mode", "bsp", false, "sync, ssp:S, async"},
    {"model", "gpt2:124M", true, ""},
    {"model", "gpt2:1.5B", true, ""},
    {"model", "gpt2:4x128x4", true, ""},
    {"model", "gpt2:4x128", false, "gpt2:LxCxH"},
    {"model", "gpt2:4x128x4x4x4", false, "gpt2:LxCxH"},
    {"model", "gpt2:4x0x4", false, "gpt2:LxCxH"},
    {"model", "gpt2:4x128xq", false, "gpt2:LxCxH"},
    {"model", "gpt2:", false, "gpt2:NAME"},
    {"model", "gpt2", false, "gpt2:NAME"},
    {"model", "llama:8B", true, ""},
    {"model", "llama:4x128x4", true, ""},
    {"model", "llama:4x128x4x1", true, ""},
    {"model", "bert:base", false, "gpt2:NAME"},
    {"model", "config.json", true, ""},
    {"model", "models/tiny", true, ""},
    {"model", ".json", false, "gpt2:NAME"},
    {"model", "gpt2:a b", false, "gpt2:NAME"},
    {"optimizer", "sgd", true, ""},
    {"optimizer", "adam", false, "adamw"},
    {"schedule", "constant", true, ""},
    {"schedule", "linear", true, ""},
    {"schedule", "wsd", true, ""},
    {"schedule", "step", false, "cosine, linear, wsd, constant"},
    {"lr-scale", "sqrt", true, ""},
    {"lr-scale", "linear", true, ""},
    {"lr-scale", "square", false, "none, sqrt, linear"},
    {"cooldown", "1", true, ""},
    {"cooldown", "1.01", false, ""},
    {"accumulate", "0", false, "1"},
    {"pad-token", "-1", true, ""},
    {"pad-token", "-2", false, "-1"},
    {"device", "cuda", true, ""},
    {"device", "cuda:3", true, ""},
    {"device", "cuda:", false, "cpu, cuda, cuda:N"},
    {"device", "cuda:N", false, "cpu, cuda, cuda:N"},
    {"device", "gpu", false, "cpu, cuda, cuda:N"},
    {"compute", "bf16", true, ""},
    {"compute", "tf32", true, ""},
    {"compute", "f16", false, "auto, f32, bf16, tf32"},
    {"peak-tflops", "989.4", true, ""},
    {"peak-tflops", "-1", false, "0"},
    {"profile-steps", "", true, ""},
    {"profile-steps", "7", true, ""},
    {"profile-steps", "3:12", true, ""},
    {"profile-steps", "3:2", false, "1 <= A <= B"},
    {"profile-steps", "0:2", false, "1 <= A <= B"},
    {"profile-steps", "3:", false, "1 <= A <= B"},
    {"profile-steps", ":3", false, "1 <= A <= B"},
    {"profile-steps", "3:4:5", false, "1 <= A <= B"},
    {"profile-steps", "1:1000000000", false, "1 <= A <= B"},
    {"recompute", "every:2", true, ""},
    {"recompute", "every:0", false, "none, attention, every:N"},
    {"recompute", "all", false, "none, attention, every:N"},
    {"push", "int8", true, ""},
    {"push", "none", true, ""},
    {"push", "int5", false, "powersgd"},
    {"push", "int4:sr,had,ef=loco+zstd", true, ""},
    {"push", "topk:0.01,global,ef", true, ""},
    {"push", "wan", true, ""},
    {"push", "wan,ef", false, "fast"},
    {"push", "int4:up", false, "int4's own"},
    {"push", "topk:2", false, "topk's own"},
    {"push", "int8+gzip", false, "+zstd"},
    {"push", "", false, "none"},
    {"push-policy", "all", true, ""},
    {"push-policy", "", false, "auto"},
    {"residual", "int8", true, ""},
    {"residual", "fp8", false, "bf16"},
    {"pull", "none", true, ""},
    {"pull", "int8", false, "bf16, none"},
    {"log-level", "trace", true, ""},
    {"log-level", "loud", false, "error, warn, info, debug, trace"},
    {"progress", "off", true, ""},
    {"progress", "on", false, "auto, line, off"},
    {"listen", "10.0.0.1:0", false, "from 1 to 65535"},
    {"listen", "", true, ""},
    {"listen", "10.0.0.1", false, "host:port"},
    {"bind", "[::]:29600", true, ""},
    {"bind", "::29600", false, "in brackets"},
    {"join", "host:29600", true, ""},
    {"join", "host:0", false, "from 1 to 65535"},
    {"join", "host:00", false, "from 1 to 65535"},
    {"servers", "1024", true, ""},
    {"servers", "1025", false, "1024"},
    {"wire", "auth", true, ""},
    {"wire", "none", false, "auto, plain, auth, encrypt"},
    {"channel", "tls", true, ""},
    {"block-values", "16777216", true, ""},
    {"block-values", "16777217", false, "16777216"},
    {"lease", "0.4", false, "0.5"},
    {"beta1", "1", false, ""},
    {"lr", "nan", false, ""},
};

static void texts(void) {
    for (size_t i = 0; i < sizeof text_cases / sizeof text_cases[0]; i++) {
        const struct text_case *c = &text_cases[i];
        struct options options;
        struct job job;
        char why[512] = "";
        init(&options, &job);
        enum status status = options_set(&options, options_find(&options, c->name), c->text,
                                         ORIGIN_FLAG, why, sizeof why);
        if ((status == STATUS_OK) != c->legal || strstr(why, c->allowed) == NULL) {
            fprintf(stderr, "--%s %s: status %d, %s\n", c->name, c->text, (int)status, why);
            exit(1);
        }
    }
}

/* What options of a job must not be together; the numbers of the modes are test_discipline.c's. */
static void what_does_not_fit(void) {
    static const struct {
        const char *names[2], *values[2];
        const char *reason; /* NULL: it fits */
    } table[] = {
        {{"optimizer", "moments"}, {"muon", "int8"}, "--moments"},
        {{"optimizer", "moments"}, {"lamb", "bf16"}, "--moments"},
        {{"optimizer", "moments"}, {"adafactor", "bf16"}, "--moments"},
        {{"optimizer", "moments"}, {"adamw", "int8"}, NULL},
        {{"optimizer", "moments"}, {"muon", "f32"}, NULL},
        {{"mode", "outer"}, {"sync", "nesterov"}, "--outer"},
        {{"mode", "outer"}, {"diloco:4", "adamw"}, NULL},
        {{"mode", "quorum"}, {"async", "1"}, NULL},
        {{"device", "compute"}, {"cpu", "tf32"}, "--compute tf32"},
        {{"device", "compute"}, {"cpu:2", "bf16"}, NULL},
        {{"device", "compute"}, {"cuda:0,1", "tf32"}, NULL},
        {{"device", "profile-steps"}, {"cpu:2", "3"}, "--profile-steps"},
        {{"device", "profile-steps"}, {"cuda", "3:4"}, NULL},
        {{"accumulate-apart", "accumulate"}, {"yes", "1"}, "--accumulate is 1"},
        {{"accumulate-apart", "accumulate"}, {"yes", "2"}, NULL},
        {{"accumulate-apart", "accumulate"}, {"no", "1"}, NULL},
        {{"accumulate-apart", "device"}, {"yes", "cuda:0,1"}, "--device cuda:0,1"},
        {{"mode", "quorum"}, {"sync", "2"}, "--quorum"}, /* of one worker */
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct options options;
        struct job job;
        char why[256] = "";
        init(&options, &job);
        for (int k = 0; k < 2; k++) {
            give(&options, table[i].names[k], table[i].values[k]);
        }
        enum status status = job_check(&job, why, sizeof why);
        CHECK_INT(status, table[i].reason == NULL ? STATUS_OK : STATUS_INVALID);
        CHECK(table[i].reason == NULL || strstr(why, table[i].reason) != NULL);
    }
}

static void profiled_steps(void) {
    static const struct {
        const char *text;
        int64_t first, last;
    } cases[] = {{"", 0, 0}, {"7", 7, 7}, {"3:12", 3, 12}, {"1:999999999", 1, 999999999}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t first = -1, last = -1;
        CHECK_INT(job_profile_steps(cases[i].text, &first, &last), STATUS_OK);
        CHECK_INT(first, cases[i].first);
        CHECK_INT(last, cases[i].last);
    }
}

/* Muon and LAMB step whole matrices; factors and fragments go through as they are. */
static void plan_options(void) {
    static const char *const whole[] = {"muon", "lamb"}, *const cut[] = {"adamw", "adafactor"};
    struct options options;
    struct job job;
    init(&options, &job);
    give(&options, "rates", "a=0");
    give(&options, "decays", "b=2");
    give(&options, "fragments", "3");
    give(&options, "block-values", "1000");
    for (int i = 0; i < 2; i++) {
        give(&options, "optimizer", whole[i]);
        CHECK(job_plan_options(&job, 7).whole);
        give(&options, "optimizer", cut[i]);
        CHECK(!job_plan_options(&job, 7).whole);
    }
    struct plan_options made = job_plan_options(&job, 7);
    CHECK_TEXT(made.rates, "a=0");
    CHECK_TEXT(made.decays, "b=2");
    CHECK_INT(made.fragments, 3);
    CHECK_INT(made.block_values, 1000);
    CHECK_INT(made.shards, 7);
}

int main(void) {
    TEST_RUN(texts);
    TEST_RUN(what_does_not_fit);
    TEST_RUN(profiled_steps);
    TEST_RUN(plan_options);
    return 0;
}
