/* test_sim_stepper.c - --optimizer worker:NAME in whole jobs.
 *
 * Without a codec, `worker:X` ends with the bits of `X` with --push none --pull none, for every
 * optimizer and moment type, 1 to 3 workers, 1 and 4 shards. With codecs both ways, over a network
 * that delays, reorders, repeats and loses frames, for any number of shards and over 132 seeds, the
 * weights are those of one plain loop (sim_reference.h), bit for bit, every push has had its turn
 * once, and all workers' replicas are equal at the end. worker:1bit-adam is near the paper's
 * algorithm in double, and has the same bits however the job is spread.
 * A round with a gradient that is not finite, a worker that leaves, and a mode that is set again
 * leave the bits that they leave without `worker:`; another mode is refused with the reason.
 * A failing case is its options and its seed.
 */
#include "base/clock.h"
#include "base/log.h"
#include "tests/sim_cluster.h"
#include "tests/sim_reference.h"
#include "tests/test.h"

#include <inttypes.h>
#include <math.h>

enum { STEPS = 6, TEXT_BYTES = 4096, SEEDS = 132 };

static uint8_t text[TEXT_BYTES];
static struct data data;
static uint64_t value_count; /* of the model */

/* What happens in a job beside training. */
struct event {
    int64_t poison_step;     /* worker process 0 computes this step, from 1, of a NaN; 0: none */
    const char *leave_after; /* worker option of process 0, or NULL */
    const char *mode;        /* set while the job runs, or NULL */
};

struct outcome {
    float *weights; /* [values], the saver's */
    uint64_t values;
    struct shard_counters counters;
    uint32_t rank;    /* of worker process 0 */
    bool set;         /* the tool was told that the mode is as it asked */
    char reason[256]; /* else why not */
};

static void options_of(char *options, size_t bytes, const char *optimizer, const char *rest) {
    (void)snprintf(options, bytes,
                   "model=gpt2:1x16x2 vocab=32 seq-len=8 batch=2 steps=%d warmup=2 "
                   "block-values=300 optimizer=%s %s",
                   STEPS, optimizer, rest);
}

static struct sim_config config_of(uint64_t seed, uint32_t workers, uint32_t servers,
                                   uint32_t shards) {
    return (struct sim_config){.seed = seed,
                               .servers = servers,
                               .shards = shards,
                               .workers = workers,
                               .faults = {.delay_max_ns = (int64_t)(1 + seed % 3 * 15) * CLOCK_MS,
                                          .duplicate = 0.1,
                                          .drop = seed % 2 == 1 ? 0.03 : 0},
                               .step_max_ns = 20 * CLOCK_MS,
                               .data = &data};
}

/* Before the step is computed the worker's first weight becomes a NaN, and afterwards what it
 * was. */
static void poison(struct sim *sim, int64_t step) {
    static float kept;
    static bool poisoned;
    struct trainer *trainer = &sim->workers[0].trainer;
    if (trainer->state == TRAINER_STEPPING && trainer->computed == step - 1 && trainer->answered &&
        !poisoned) {
        kept = trainer->weights[0];
        trainer->weights[0] = NAN;
        poisoned = true;
    } else if (poisoned && trainer->computed == step) {
        trainer->weights[0] = kept;
        poisoned = false;
    }
}

static void drive(struct sim *sim, const struct event *event) {
    bool asked = false;
    while (sim_step(sim)) {
        if (event->poison_step > 0) {
            poison(sim, event->poison_step);
        }
        if (event->mode != NULL && !asked && sim->workers[0].trainer.computed == STEPS / 2) {
            sim_set(sim, event->mode);
            asked = true;
        }
    }
}

static void check_replicas(const struct sim *sim, const struct outcome *outcome,
                           const char *options) {
    for (uint32_t i = 0; i < sim->config.workers; i++) {
        const struct trainer *trainer = &sim->workers[i].trainer;
        if (sim->config.worker_options[i] == NULL &&
            memcmp(trainer->weights, outcome->weights, outcome->values * sizeof(float)) != 0) {
            fprintf(stderr, "seed %" PRIu64 ", %s: worker process %u has other weights\n",
                    sim->config.seed, options, i);
            exit(1);
        }
    }
}

/* Runs the job; it must end well. free() the weights. */
static struct outcome run(const char *options, struct sim_config config,
                          const struct event *event) {
    static struct sim sim;
    struct outcome outcome = {.values = value_count};
    outcome.weights = calloc(outcome.values, sizeof(float));
    CHECK(outcome.weights != NULL);
    config.options = options;
    config.weights = outcome.weights;
    config.worker_options[0] = event->leave_after;
    sim_open(&sim, &config);
    for (uint32_t i = 0; event->poison_step > 0 && i < config.workers; i++) {
        sim.workers[i].job.forward_overlap = false; /* so that poison() sees each step begin */
    }
    drive(&sim, event);
    outcome.counters = sim_counters(&sim);
    outcome.rank = sim.workers[0].trainer.rank;
    outcome.set = sim.tool.done && sim.tool.exit_code == 0;
    (void)snprintf(outcome.reason, sizeof outcome.reason, "%s", sim.tool.reason);
    if (sim.coordinator.exit_code != 0 ||
        outcome.counters.corrupt + outcome.counters.breaches > 0) {
        fprintf(stderr, "seed %" PRIu64 ", %s: exit %d %s\n", config.seed, options,
                sim.coordinator.exit_code, sim.coordinator.reason);
        exit(1);
    }
    if (strstr(options, "optimizer=worker:") != NULL) {
        check_replicas(&sim, &outcome, options);
    }
    sim_close(&sim);
    return outcome;
}

static void expect_bits(const struct outcome *outcome, const float *expected, uint64_t seed,
                        const char *options) {
    if (memcmp(outcome->weights, expected, outcome->values * sizeof(float)) != 0) {
        fprintf(stderr, "seed %" PRIu64 ", %s: not the weights that were expected\n", seed,
                options);
        exit(1);
    }
}

/* ---- without a codec ---- */

static const char *const optimizers[][2] = {
    {"adamw", "clip=0.1"},
    {"adamw", "clip=0 moments=bf16 rates=*.wte.weight=0.5,*.ln_1.*=0 decays=*.wpe.weight=0"},
    {"adamw", "moments=int8 pad-token=3 accumulate=2 freeze-v-after=3"},
    {"sgd", "lr=0.05 clip=0.3"},
    {"nesterov", "lr=0.05 moments=bf16"},
    {"adagrad", "lr=0.01 clip=0"},
    {"lion", "clip=0.1 moments=int8"},
    {"lamb", "clip=0.1"},
    {"muon", "clip=0.1"},
    {"adafactor", "clip=0.1"},
};

static void bits_of_the_servers_optimizer(void) {
    const struct event none = {0};
    for (size_t i = 0; i < sizeof optimizers / sizeof optimizers[0]; i++) {
        for (uint32_t workers = 1; workers <= 3; workers++) {
            char rest[256];
            char name[64];
            char options[512];
            uint64_t seed = 3 * i + workers;
            (void)snprintf(rest, sizeof rest, "push=none pull=none %s", optimizers[i][1]);
            options_of(options, sizeof options, optimizers[i][0], rest);
            struct outcome plain = run(options, config_of(seed, workers, 1, 1), &none);
            (void)snprintf(name, sizeof name, "worker:%s", optimizers[i][0]);
            (void)snprintf(rest, sizeof rest, "push=none %s", optimizers[i][1]);
            options_of(options, sizeof options, name, rest);
            for (uint32_t cut = 1; cut <= 2; cut++) {
                struct outcome own = run(options, config_of(seed, workers, cut, cut), &none);
                expect_bits(&own, plain.weights, seed, options);
                CHECK(own.counters.pushes == plain.counters.pushes);
                free(own.weights);
            }
            free(plain.weights);
        }
    }
}

/* ---- with codecs ---- */

#define SPARSE "push-policy=all dense-warmup=0 density-schedule=0 clip=0.3 "

static const char *const codecs[][2] = {
    {"worker:adamw", "push=int8"},
    {"worker:adamw", SPARSE "push=onebit,ef residual=bf16"},
    {"worker:sgd", SPARSE "lr=0.05 push=topk:0.05,ef"},
    {"worker:adamw", SPARSE "push=int4:sr,had"},
    {"worker:nesterov", SPARSE "lr=0.05 push=powersgd:2,ef"},
    {"worker:lion", SPARSE "push=randk:0.1"},
    {"worker:adamw", SPARSE "push=signsgd"},
    {"worker:adamw", SPARSE "push=topk:0.05,ef+zstd freeze-v-after=2"},
    {"worker:adamw", "push-policy=all dense-warmup=2 density-schedule=2 push=topk:0.02,ef"},
    {"worker:adagrad", SPARSE "push=qsgd rates=*.ln_1.*=0 pad-token=3 accumulate=2"},
    {"worker:adamw", "push=balanced"},
};
enum { CODECS = sizeof codecs / sizeof codecs[0] };

/* Seeds s of one case: workers, shards and faults change, the weights for so many workers do
 * not. */
static void codecs_are_the_reference(void) {
    const struct event none = {0};
    for (uint64_t i = 0; i < CODECS; i++) {
        char options[512];
        options_of(options, sizeof options, codecs[i][0], codecs[i][1]);
        for (uint32_t workers = 1; workers <= 3; workers++) {
            uint64_t values = 0;
            uint64_t blocks = 0;
            float *expected = sim_reference_of(options, workers, &data, &values, &blocks);
            for (uint64_t n = 0; n < SEEDS / CODECS / 3; n++) {
                uint64_t seed = (i * 3 + workers - 1) * (SEEDS / CODECS / 3) + n;
                struct outcome outcome = run(
                    options, config_of(seed, workers, 1 + n % 2, 1 + (uint32_t)(n / 2 % 2)), &none);
                expect_bits(&outcome, expected, seed, options);
                CHECK_INT(outcome.counters.pushes, blocks * workers * STEPS);
                CHECK_INT(outcome.counters.skipped, 0);
                free(outcome.weights);
            }
            free(expected);
        }
    }
}

/* ---- worker:1bit-adam ---- */

/* How far the weights are from the expected ones, as a part of how far those came. */
static double distance(const float *weights, const float *expected, const float *first,
                       uint64_t count) {
    double off = 0;
    double way = 0;
    for (uint64_t i = 0; i < count; i++) {
        off += pow((double)weights[i] - (double)expected[i], 2);
        way += pow((double)expected[i] - (double)first[i], 2);
    }
    return sqrt(off / way);
}

#define CODED "push-policy=all density-schedule=0 rates=*.c_attn.bias=0 "

static void onebit_adam_is_the_papers(void) {
    /* A value that is chosen otherwise in double, at an edge, costs topk more. The gradient of
     * keys' biases is 0 but for rounding: a v that stays makes anything of it, so they are
     * frozen. */
    static const struct {
        const char *rest;
        double tolerance;
    } table[] = {
        {"push=none clip=0.1 dense-warmup=3 beta2=0.95", 1e-5},
        {"push=none clip=0 dense-warmup=1 accumulate=2 pad-token=3 beta1=0.8", 1e-5},
        {"push=none rates=*.wte.weight=0.5,*.ln_1.*=0 weight-decay=0.3", 1e-5},
        {CODED "push=onebit,ef clip=0.1 dense-warmup=3", 1e-3},
        {CODED "push=onebit,ef pad-token=3 beta2=0.99 eps=0.001 dense-warmup=2", 2e-3},
        {CODED "push=topk:0.1,ef dense-warmup=3", 1e-2},
        {CODED "push=powersgd:2,ef dense-warmup=3", 1e-3},
    };
    const struct event none = {0};
    uint64_t values = 0;
    uint64_t blocks = 0;
    char options[512];
    options_of(options, sizeof options, "sgd", "pull=none lr=0.000000000001 weight-decay=0");
    float *first = sim_reference_of(options, 1, &data, &values, &blocks);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        options_of(options, sizeof options, "worker:1bit-adam", table[i].rest);
        float *expected = sim_reference_of(options, 2, &data, &values, &blocks);
        struct outcome one = run(options, config_of(2 * i, 2, 1, 1), &none);
        struct outcome other = run(options, config_of(2 * i + 1, 2, 2, 2), &none);
        double off = distance(one.weights, expected, first, values);
        if (!(off < table[i].tolerance)) {
            fprintf(stderr, "%s: %g of the way off\n", options, off);
            exit(1);
        }
        expect_bits(&other, one.weights, 2 * i + 1, options);
        free(one.weights);
        free(other.weights);
        free(expected);
    }
    free(first);
}

/* ---- what happens beside ---- */

/* The same job with and without `worker:`, in which this happens to the same worker. */
static void check_event(const char *rest, const struct event *event, uint64_t seed,
                        uint64_t skipped) {
    char plainly[256];
    char options[512];
    (void)snprintf(plainly, sizeof plainly, "pull=none %s", rest);
    options_of(options, sizeof options, "adamw", plainly);
    struct outcome plain = run(options, config_of(seed, 3, 1, 2), event);
    options_of(options, sizeof options, "worker:adamw", rest);
    struct outcome own = run(options, config_of(seed, 3, 1, 2), event);
    CHECK_INT(own.rank, plain.rank);
    CHECK_INT(own.counters.skipped, skipped);
    CHECK_INT(plain.counters.skipped, skipped);
    expect_bits(&own, plain.weights, seed, options);
    free(plain.weights);
    free(own.weights);
}

static void what_is_not_finite_is_left_out(void) {
    for (uint64_t seed = 0; seed < 4; seed++) {
        const struct event event = {.poison_step = 1 + (int64_t)seed};
        check_event("push=none clip=0.1", &event, seed, 2); /* by both shards */
    }
    /* With codecs there is no twin; the replicas are compared. */
    for (uint64_t i = 0; i < 2; i++) {
        const struct event event = {.poison_step = 3};
        char options[512];
        options_of(options, sizeof options, i == 0 ? "worker:1bit-adam" : "worker:adamw",
                   i == 0 ? CODED "push=onebit,ef dense-warmup=2" : "push=int8,ef");
        struct outcome outcome = run(options, config_of(i, 3, 2, 1), &event);
        CHECK_INT(outcome.counters.skipped, 2);
        for (uint64_t k = 0; k < outcome.values; k++) {
            CHECK(isfinite(outcome.weights[k]));
        }
        free(outcome.weights);
    }
}

static void a_worker_leaves(void) {
    static const char *const after[] = {"leave-after=1", "leave-after=3", "leave-after=5"};
    for (uint64_t seed = 0; seed < 6; seed++) {
        const struct event event = {.leave_after = after[seed % 3]};
        check_event("push=none clip=0.1", &event, seed, 0);
        char options[512];
        options_of(options, sizeof options, "worker:1bit-adam",
                   CODED "push=onebit,ef dense-warmup=2");
        struct outcome outcome = run(options, config_of(seed, 3, 2, 1), &event);
        CHECK(outcome.counters.pushes > 0);
        free(outcome.weights);
    }
}

static void modes_are_set(void) {
    const struct event again = {.mode = "sync"};
    const struct event other = {.mode = "async"};
    char options[512];
    options_of(options, sizeof options, "worker:adamw", "push=int8");
    struct outcome undisturbed = run(options, config_of(4, 2, 1, 2), &(struct event){0});
    struct outcome same = run(options, config_of(4, 2, 1, 2), &again);
    struct outcome refused = run(options, config_of(4, 2, 1, 2), &other);
    CHECK(same.set);
    CHECK(!refused.set && strstr(refused.reason, "--optimizer worker:adamw") != NULL);
    expect_bits(&same, undisturbed.weights, 4, options);
    expect_bits(&refused, undisturbed.weights, 4, options);
    free(undisturbed.weights);
    free(same.weights);
    free(refused.weights);
}

int main(void) {
    log_set_level(LOG_ERROR);
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = (uint8_t)((i * i / 7 + i / 3) % 32);
    }
    CHECK(data_parse(&data, text, sizeof text, "text") == STATUS_OK);
    uint64_t blocks = 0;
    char options[512];
    options_of(options, sizeof options, "sgd", "");
    free(sim_reference_of(options, 1, &data, &value_count, &blocks));
    TEST_RUN(bits_of_the_servers_optimizer);
    TEST_RUN(codecs_are_the_reference);
    TEST_RUN(onebit_adam_is_the_papers);
    TEST_RUN(what_is_not_finite_is_left_out);
    TEST_RUN(a_worker_leaves);
    TEST_RUN(modes_are_set);
    return 0;
}
