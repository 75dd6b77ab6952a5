/* test_sim_codecs.c - every push codec in whole jobs.
 *
 * Sync: with each codec, 2 workers on 1 and on 3 shards, over a network that delays, reorders,
 * repeats and (with 3 shards) loses frames, end with the weights of one plain loop that encodes,
 * decodes and adds the same gradients in rank order (sim_reference.h), bit for bit; every push has
 * had its turn once. So with each number type of residuals, with schedules that start dense, with a
 * policy, in local modes with fragments, and with a v that freezes.
 * Async: each push has its turn once, and the losses stay finite.
 * A failing case is its options and its seed.
 */
#include "base/clock.h"
#include "base/log.h"
#include "tests/sim_cluster.h"
#include "tests/sim_reference.h"
#include "tests/test.h"

#include <inttypes.h>
#include <math.h>
#include <unistd.h>

enum { STEPS = 6, WORKERS = 2, TEXT_BYTES = 4096 };

static uint8_t text[TEXT_BYTES];
static struct data data;

#define SCHEDULED "dense-warmup=2 density-schedule=2 "
#define SPARSE    "push-policy=all dense-warmup=0 density-schedule=0 "

static const char *const variants[] = {
    SPARSE "push=fp16",
    SPARSE "push=fp8 freeze-v-after=2",
    SPARSE "push=fp8:e5m2,ef",
    SPARSE "push=int4",
    SPARSE "push=int4:sr,had",
    SPARSE "push=int4:sr,had,ef=loco residual=int8",
    SPARSE "push=onebit,ef residual=bf16",
    SPARSE "push=topk:0.05",
    SPARSE "push=topk:0.05,ef+zstd",
    SPARSE "push=topk:0.05,global,ef residual=int8",
    SPARSE "push=randk:0.1",
    SPARSE "push=randk:0.1,ef",
    SPARSE "push=powersgd:2,ef",
    SPARSE "push=qsgd",
    SPARSE "push=terngrad",
    SPARSE "push=natural",
    SPARSE "push=signsgd",
    SPARSE "push=int8,ef+zstd",
    SCHEDULED "push-policy=all push=topk:0.02,ef",
    SCHEDULED "push-policy=all push=powersgd:1,ef",
    SCHEDULED "push-policy=all push=onebit,ef",
    SCHEDULED "push=topk:0.01,ef+zstd",
    "push=thin",
    "push=balanced pull=bf16",
    SPARSE "push=topk:0.1,ef mode=diloco:4 fragments=2",
    SPARSE "push=int4:sr,had,ef mode=local:2",
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

static void options_of(const char *variant, const char *mode, char *options, size_t bytes) {
    (void)snprintf(options, bytes,
                   "model=gpt2:1x16x2 vocab=32 seq-len=8 batch=2 steps=%d warmup=2 "
                   "block-values=300 %s %s",
                   STEPS, variant, mode);
}

struct losses {
    int64_t count;
    bool finite;
};

static void note_loss(void *context, int64_t step, float loss) {
    struct losses *losses = context;
    (void)step;
    losses->count++;
    losses->finite = losses->finite && isfinite(loss);
}

/* Runs the job -> final weights in `weights`, by way of a struct; checks the losses. Returns its
 * counters. */
static struct shard_counters run(const char *options, uint64_t seed, uint32_t shards, double drop,
                                 float *weights) { // NOLINT(readability-non-const-parameter)
    static struct sim sim;
    struct losses losses[WORKERS] = {{0, true}, {0, true}};
    const struct sim_config config = {
        .seed = seed,
        .servers = shards,
        .shards = 1,
        .workers = WORKERS,
        .options = options,
        .faults = {.delay_max_ns = 20 * CLOCK_MS, .duplicate = 0.1, .drop = drop},
        .step_max_ns = 20 * CLOCK_MS,
        .data = &data,
        .loss = note_loss,
        .loss_contexts = {&losses[0], &losses[1]},
        .weights = weights};
    sim_open(&sim, &config);
    sim_run(&sim);
    struct shard_counters counters = sim_counters(&sim);
    for (int i = 0; i < WORKERS; i++) {
        if (losses[i].count != STEPS || !losses[i].finite || sim.coordinator.exit_code != 0 ||
            counters.skipped + counters.corrupt + counters.breaches != 0) {
            fprintf(stderr, "seed %" PRIu64 ", %s: %" PRId64 " losses, exit %d %s\n", seed, options,
                    losses[i].count, sim.coordinator.exit_code, sim.coordinator.reason);
            exit(1);
        }
    }
    sim_close(&sim);
    return counters;
}

static void check_rounds(const char *variant) {
    char options[512];
    uint64_t values = 0;
    uint64_t blocks = 0;
    options_of(variant, "", options, sizeof options);
    float *expected = sim_reference_of(options, WORKERS, &data, &values, &blocks);
    uint64_t pushes = 0;
    for (uint64_t seed = 0; seed < 2; seed++) {
        float *weights = calloc(values, sizeof *weights);
        CHECK(weights != NULL);
        struct shard_counters counters =
            run(options, seed, seed == 0 ? 1 : 3, seed == 0 ? 0 : 0.03, weights);
        bool sync = strstr(options, "mode=") == NULL;
        if (memcmp(weights, expected, values * sizeof *weights) != 0 ||
            (sync && counters.pushes != blocks * WORKERS * STEPS) ||
            (seed > 0 && counters.pushes != pushes)) {
            fprintf(stderr,
                    "seed %" PRIu64 ", %s: not the reference's weights, or %" PRIu64 " pushes\n",
                    seed, options, counters.pushes);
            exit(1);
        }
        pushes = counters.pushes;
        free(weights);
    }
    free(expected);
}

static void rounds_are_the_reference(void) {
    for (int i = 0; i < VARIANTS; i++) {
        check_rounds(variants[i]);
    }
}

/* Codecs by the first tensor of a block. */
static void policy_of_a_file(void) {
    char path[] = "/tmp/rubato-policy-XXXXXX";
    char variant[256];
    int fd = mkstemp(path);
    static const char lines[] =
        "# embeddings\n*.wte.weight  int8\n\n*.mlp.*\ttopk:0.1,ef # sparse\n"
        "*.bias none\n";
    CHECK(fd >= 0 && write(fd, lines, sizeof lines - 1) == (ssize_t)(sizeof lines - 1));
    CHECK(close(fd) == 0);
    (void)snprintf(variant, sizeof variant,
                   "push-policy=%s dense-warmup=0 density-schedule=0 push=int4:sr,had", path);
    check_rounds(variant);
    CHECK(unlink(path) == 0);
}

static void async_counts_each_push_once(void) {
    char options[512];
    uint64_t values = 0;
    uint64_t blocks = 0;
    options_of("push=none", "", options, sizeof options);
    free(sim_reference_of(options, 1, &data, &values, &blocks));
    for (int i = 0; i < VARIANTS; i++) {
        if (strstr(variants[i], "mode=") != NULL) {
            continue;
        }
        options_of(variants[i], "mode=async", options, sizeof options);
        struct shard_counters counters = run(options, (uint64_t)i, 2, 0.03, NULL);
        CHECK_INT(counters.pushes, blocks * WORKERS * STEPS);
    }
}

int main(void) {
    log_set_level(LOG_ERROR);
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = (uint8_t)((i * i / 7 + i / 3) % 32);
    }
    CHECK(data_parse(&data, text, sizeof text, "text") == STATUS_OK);
    TEST_RUN(rounds_are_the_reference);
    TEST_RUN(policy_of_a_file);
    TEST_RUN(async_counts_each_push_once);
    return 0;
}
