/* test_sim_local.c - local steps, DiLoCo, fragments and overlap are what one plain loop computes.
 *
 * For 1, 2 and 4 workers at different paces and 1 to 3 shards, with delay, reordering, duplication
 * and (in half the seeds) loss of frames, over 240 seeds: the final weights are bit-equal to those
 * of sim_reference.h, which knows no servers, workers or network. Each variant is a row of the
 * table: inner and outer optimizers, fragments, overlap, mix, state that is reset, padding (reports
 * of different weights), frozen tensors, a last interval that is shorter.
 * Besides: local:1 with SGD and an average equals sync SGD but for rounding; every report counts
 * once; DiLoCo sends at most 1/H of sync's bytes; with H fragments, which report after one step
 * each, and one after the other when there are no more steps, no report has more than twice the
 * mean of their bytes.
 */
#include "base/clock.h"
#include "base/log.h"
#include "tests/sim_cluster.h"
#include "tests/sim_reference.h"
#include "tests/test.h"

#include <inttypes.h>

enum { SEEDS = 240, TEXT_BYTES = 4096, VALUES_MAX = 16384, REPORTS_MAX = 64 };

static uint8_t text[TEXT_BYTES];
static struct data data;

static const uint32_t worker_counts[] = {1, 2, 4};
static const char *const variants[] = {
    "mode=local:3 optimizer=sgd lr=0.1 momentum=0 clip=0 steps=9",
    "mode=local:4 optimizer=adamw clip=1 steps=10 push=bf16 pull=bf16",
    "mode=diloco:4 optimizer=adamw clip=0.5 steps=12 inner-state=reset pull=bf16",
    "mode=diloco:3 optimizer=sgd lr=0.1 steps=8 push=int8 pad-token=3 accumulate=2 batch=1",
    "mode=diloco:4 fragments=4 steps=9 optimizer=adamw overlap=1",
    "mode=diloco:6 fragments=2 steps=13 optimizer=adamw overlap=3 mix=0.5 push=bf16",
    "mode=local:4 fragments=2 overlap=2 mix=0.25 inner-state=reset pad-token=5 steps=11",
    "mode=local:2 optimizer=nesterov lr=0.05 rates=*.wte.weight=0,*.ln_1.*=0.5 steps=7 overlap=1",
};
enum { VARIANTS = 8 };

struct expected {
    float *weights;
    uint64_t count, blocks;
};
static struct expected expected[3][VARIANTS];

static void options_of(uint32_t variant, char *options, size_t bytes) {
    (void)snprintf(options, bytes,
                   "model=gpt2:1x16x2 vocab=32 seq-len=8 batch=2 warmup=2 block-values=300 "
                   "push=none pull=none %s",
                   variants[variant]);
}

static struct sim_config config_of(uint64_t seed, uint32_t workers, uint32_t shards,
                                   const char *options) {
    return (struct sim_config){
        .seed = seed,
        .servers = seed % 2 == 0 ? shards : 1,
        .shards = seed % 2 == 0 ? 1 : shards,
        .workers = workers,
        .options = options,
        .faults = {.delay_max_ns = (int64_t)(1 + seed % 5 * 10) * CLOCK_MS,
                   .duplicate = 0.1,
                   .drop = seed % 2 == 1 ? 0.03 : 0},
        .step_max_ns = 20 * CLOCK_MS,
        .step_ns = {0, 30 * CLOCK_MS},
        .data = &data,
    };
}

static void fail(const struct sim *sim, const char *why) {
    struct shard_counters counters = sim_counters(sim);
    fprintf(stderr,
            "seed %" PRIu64 ": %u workers, %s: %s; %" PRIu64 " pushes, %" PRIu64
            " dropped, %" PRIu64 " skipped, exit %d %s\n",
            sim->config.seed, sim->config.workers, sim->config.options, why, counters.pushes,
            counters.dropped, counters.skipped, sim->coordinator.exit_code,
            sim->coordinator.reason);
    exit(1);
}

/* Pushes of a whole run: each fragment's blocks in each of its reports, from each worker. */
static uint64_t pushes_of(const struct sim *sim) {
    const struct trainer *trainer = &sim->workers[0].trainer;
    uint64_t pushes = 0;
    for (uint64_t id = 0; id < trainer->plan->block_count; id++) {
        uint64_t fragment = trainer->plan->blocks[id].fragment;
        uint64_t reports = (uint64_t)trainer->reports;
        if (fragment != PLAN_FROZEN && fragment < reports) {
            pushes += (reports - fragment - 1) / trainer->plan->fragment_count + 1;
        }
    }
    return pushes * sim->config.workers;
}

static void check_counters(const struct sim *sim) {
    struct shard_counters counters = sim_counters(sim);
    if (sim->coordinator.exit_code != 0) {
        fail(sim, "the job failed");
    }
    if (counters.pushes != pushes_of(sim) || counters.dropped + counters.skipped > 0 ||
        counters.breaches > 0) {
        fail(sim, "a push was lost, or counted twice");
    }
}

static void run_seed(uint64_t seed) {
    static struct sim sim;
    uint32_t w = (uint32_t)(seed % 3);
    uint32_t variant = (uint32_t)(seed / 3 % VARIANTS);
    uint32_t shards = (uint32_t)(seed / 24 % 3) + 1;
    const struct expected *e = &expected[w][variant];
    char options[512];
    options_of(variant, options, sizeof options);
    struct sim_config config = config_of(seed, worker_counts[w], shards, options);
    config.weights = memory_zeroed((size_t)e->count, sizeof(float));
    sim_open(&sim, &config);
    sim_run(&sim);
    check_counters(&sim);
    for (uint64_t i = 0; i < e->count; i++) {
        if (memcmp(&config.weights[i], &e->weights[i], sizeof(float)) != 0) {
            fprintf(stderr, "value %" PRIu64 ": %.9g, not %.9g\n", i, (double)config.weights[i],
                    (double)e->weights[i]);
            fail(&sim, "the bits differ");
        }
    }
    sim_close(&sim);
    free(config.weights);
}

static void weights_are_bit_equal(void) {
    const char *one = getenv("SEED");
    if (one != NULL) {
        run_seed(strtoull(one, NULL, 10));
        return;
    }
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        run_seed(seed);
    }
}

/* ---- what a run sends ---- */

struct sent {
    uint64_t bytes[REPORTS_MAX]; /* of each report of worker process 0 */
    uint64_t total, most;
    int64_t reports;
};

static void run_counted(const char *options, uint32_t workers, float *weights, struct sent *sent) {
    static struct sim sim;
    struct sim_config config = config_of(2, workers, 2, options);
    uint64_t before = 0;
    config.weights = weights;
    *sent = (struct sent){0};
    sim_open(&sim, &config);
    while (sim_step(&sim)) {
        const struct trainer *trainer = &sim.workers[0].trainer;
        uint64_t bytes = sim.workers[0].session.exchange.counters.pushed_bytes;
        CHECK(trainer->reports_done < REPORTS_MAX);
        sent->bytes[trainer->reports_done] += bytes - before;
        before = bytes;
    }
    check_counters(&sim);
    sent->reports = sim.workers[0].trainer.reports_done;
    for (int64_t i = 0; i < REPORTS_MAX; i++) {
        sent->total += sent->bytes[i];
        sent->most = sent->bytes[i] > sent->most ? sent->bytes[i] : sent->most;
    }
    sim_close(&sim);
}

#define SMALL_JOB                                                                                  \
    "model=gpt2:1x16x2 vocab=32 seq-len=8 batch=2 warmup=2 block-values=300 steps=32 pull=none "   \
    "push=none optimizer=sgd momentum=0 clip=0 weight-decay=0 lr=0.05 "

/* Averages of single SGD steps are steps on the average gradient. */
static void local_1_is_sync_sgd(void) {
    static float sync[VALUES_MAX];
    static float local[VALUES_MAX];
    struct sent sent;
    run_counted(SMALL_JOB "mode=sync", 4, sync, &sent);
    run_counted(SMALL_JOB "mode=local:1", 4, local, &sent);
    CHECK(sync[0] != 0);
    for (size_t i = 0; i < VALUES_MAX; i++) {
        CHECK_NEAR(local[i], sync[i], 2e-6);
    }
}

static void fewer_bytes_are_sent(void) {
    struct sent sync;
    struct sent diloco;
    struct sent fragments;
    run_counted(SMALL_JOB "mode=sync", 2, NULL, &sync);
    run_counted(SMALL_JOB "mode=diloco:8", 2, NULL, &diloco);
    run_counted(SMALL_JOB "mode=diloco:8 fragments=8 overlap=1", 2, NULL, &fragments);
    printf("%" PRIu64 " bytes in sync, %" PRIu64 " in diloco:8; with fragments %" PRIu64
           ", at most %" PRIu64 " a report\n",
           sync.total, diloco.total, fragments.total, fragments.most);
    CHECK(diloco.total * 8 <= sync.total);
    CHECK(fragments.most * (uint64_t)fragments.reports <= 2 * fragments.total);
}

int main(void) {
    log_set_level(LOG_ERROR);
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = (uint8_t)((i * i / 7 + i / 3) % 32);
    }
    CHECK(data_parse(&data, text, sizeof text, "text") == STATUS_OK);
    TEST_RUN(local_1_is_sync_sgd);
    TEST_RUN(fewer_bytes_are_sent);
    for (uint32_t w = 0; w < 3; w++) {
        for (uint32_t variant = 0; variant < VARIANTS; variant++) {
            struct expected *e = &expected[w][variant];
            char options[512];
            options_of(variant, options, sizeof options);
            e->weights = sim_reference_of(options, worker_counts[w], &data, &e->count, &e->blocks);
        }
    }
    TEST_RUN(weights_are_bit_equal);
    for (uint32_t w = 0; w < 3; w++) {
        for (uint32_t variant = 0; variant < VARIANTS; variant++) {
            free(expected[w][variant].weights);
        }
    }
    return 0;
}
