/* test_sim_modes.c - what ssp and async promise, over seeds with delay, reordering, duplication,
 * loss.
 *
 * Every push has its turn exactly once (counted at the shards: workers x steps x blocks); in ssp:S
 * no worker is more than S + 1 computed steps ahead of the slowest, and that bound is reached with
 * a slow worker; async lets the fast ones run to the end; async and ssp with one worker equal sync
 * with one worker, bit for bit.
 */
#include "base/clock.h"
#include "base/log.h"
#include "tests/sim_cluster.h"
#include "tests/test.h"

#include <inttypes.h>

enum { SEEDS = 60, STEPS = 8, TEXT_BYTES = 4096, BLOCKS = 16, VALUES_MAX = 8192 };

static uint8_t text[TEXT_BYTES];
static struct data data;

static struct sim_config config_of(uint64_t seed, uint32_t workers, const char *mode, char *options,
                                   size_t bytes) {
    (void)snprintf(options, bytes,
                   "model=gpt2:1x16x2 vocab=32 seq-len=8 batch=2 steps=%d warmup=2 "
                   "block-values=300 push=%s pull=none sync-warmup=0 mode=%s",
                   STEPS, seed % 2 == 0 ? "none" : "int8", mode);
    return (struct sim_config){.seed = seed,
                               .servers = 2,
                               .shards = 1,
                               .workers = workers,
                               .options = options,
                               .faults = {.delay_max_ns = 5 * CLOCK_MS,
                                          .duplicate = 0.1,
                                          .drop = seed % 3 == 0 ? 0.03 : 0},
                               .step_max_ns = 10 * CLOCK_MS,
                               .slow_worker_ns = 100 * CLOCK_MS,
                               .data = &data};
}

/* The widest lead of any worker over the slowest, in computed steps. */
static int64_t lead_of(const struct sim *sim) {
    int64_t least = INT64_MAX;
    int64_t most = 0;
    for (uint32_t i = 0; i < sim->config.workers; i++) {
        int64_t steps = sim->workers[i].trainer.steps_done;
        least = steps < least ? steps : least;
        most = steps > most ? steps : most;
    }
    return most - least;
}

/* Runs a job; checks that each push counted once -> widest lead. */
static int64_t run(const struct sim_config *config) {
    static struct sim sim;
    int64_t widest = 0;
    sim_open(&sim, config);
    while (sim_step(&sim)) {
        int64_t lead = lead_of(&sim);
        widest = lead > widest ? lead : widest;
    }
    struct shard_counters counters = sim_counters(&sim);
    if (counters.pushes != (uint64_t)config->workers * STEPS * BLOCKS || counters.breaches != 0 ||
        counters.skipped != 0 || sim.coordinator.exit_code != 0) {
        fprintf(stderr, "seed %" PRIu64 " (%s): %" PRIu64 " pushes, exit %d %s\n", config->seed,
                config->options, counters.pushes, sim.coordinator.exit_code,
                sim.coordinator.reason);
        exit(1);
    }
    sim_close(&sim);
    return widest;
}

static void ssp_keeps_its_bound(void) {
    char mode[16];
    char options[512];
    for (int64_t bound = 0; bound <= 3; bound++) {
        int64_t widest = 0;
        (void)snprintf(mode, sizeof mode, "ssp:%" PRId64, bound);
        for (uint64_t seed = 0; seed < SEEDS / 4; seed++) {
            struct sim_config config = config_of(seed, 3, mode, options, sizeof options);
            int64_t lead = run(&config);
            widest = lead > widest ? lead : widest;
        }
        /* The step under way is computed on top of the lead that the bound allows. */
        CHECK_INT(widest, bound + 1);
    }
}

static void async_does_not_wait(void) {
    char options[512];
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct sim_config config = config_of(seed, 4, "async", options, sizeof options);
        config.slow_worker_ns = CLOCK_S;
        int64_t lead = run(&config);
        /* A lost frame may hold up a fast worker for half a lease. */
        CHECK(config.faults.drop > 0 || lead == STEPS - 1);
    }
}

/* One worker: no other's push comes between, so per-push modes are sync. Where the norm decides,
 * all but for rounding: a worker adds its squares in another order than a shard does. */
static void one_worker_is_sync(void) {
    static const char *const modes[] = {"sync", "async", "ssp:2"};
    static float weights[3][VALUES_MAX];
    char options[512];
    char clipped[600];
    for (uint64_t seed = 0; seed < 10; seed++) {
        bool exact = seed % 2 == 0;
        for (int m = 0; m < 3; m++) {
            struct sim_config config = config_of(seed, 1, modes[m], options, sizeof options);
            (void)snprintf(clipped, sizeof clipped, "%s clip=%s", options, exact ? "0" : "0.5");
            config.options = clipped;
            config.weights = weights[m];
            (void)run(&config);
        }
        CHECK(weights[0][0] != 0);
        for (int m = 1; m < 3 && exact; m++) {
            CHECK(memcmp(weights[0], weights[m], sizeof weights[0]) == 0);
        }
        for (int i = 0; i < VALUES_MAX && !exact; i++) {
            CHECK_NEAR(weights[1][i], weights[0][i], 1e-3);
            CHECK_NEAR(weights[2][i], weights[0][i], 1e-3);
        }
    }
}

int main(void) {
    log_set_level(LOG_ERROR);
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = (uint8_t)((i * i / 7 + i / 3) % 32);
    }
    CHECK(data_parse(&data, text, sizeof text, "text") == STATUS_OK);
    TEST_RUN(ssp_keeps_its_bound);
    TEST_RUN(async_does_not_wait);
    TEST_RUN(one_worker_is_sync);
    return 0;
}
