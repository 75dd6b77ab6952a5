/* test_sim_change.c - the mode of a running job changes at a step boundary, and nothing is lost.
 *
 * Over 160 seeds: a job of 2 to 4 workers at different paces in sync, ssp or async is asked for
 * another of these at a random moment, over networks with delay, reordering, duplication and loss;
 * in a third of the seeds a worker leaves meanwhile. The job must end with 0 (nothing hangs), every
 * push have had its turn exactly once, and each process that is left hold the new mode if the tool
 * was told that it changed. What cannot be asked for is refused, and the job goes on as it was. A
 * --staleness that was given does not overrule the new mode's.
 */
#include "base/clock.h"
#include "base/log.h"
#include "tests/sim_cluster.h"
#include "tests/test.h"

#include <inttypes.h>

enum { SEEDS = 160, STEPS = 12, TEXT_BYTES = 4096, BLOCKS = 16 };

static uint8_t text[TEXT_BYTES];
static struct data data;

static const char *const modes[] = {"sync", "async", "ssp:1", "ssp:3"};
enum { MODES = sizeof modes / sizeof modes[0] };

static void fail(const struct sim *sim, const char *why) {
    struct shard_counters counters = sim_counters(sim);
    fprintf(stderr,
            "seed %" PRIu64 ": %u workers, %s to %s: %s; tool %d %u %s; %" PRIu64
            " pushes, %" PRIu64 " dropped, %" PRIu64 " breaches, exit %d %s\n",
            sim->config.seed, sim->config.workers, sim->config.options, sim->tool.mode, why,
            (int)sim->tool.done, sim->tool.exit_code, sim->tool.reason, counters.pushes,
            counters.dropped, counters.breaches, sim->coordinator.exit_code,
            sim->coordinator.reason);
    exit(1);
}

static struct sim_config config_of(uint64_t seed, uint32_t workers, const char *options) {
    return (struct sim_config){.seed = seed,
                               .servers = 2,
                               .shards = 1 + (uint32_t)(seed % 2),
                               .workers = workers,
                               .options = options,
                               .faults = {.delay_max_ns = 5 * CLOCK_MS,
                                          .duplicate = 0.1,
                                          .drop = seed % 4 == 3 ? 0.03 : 0},
                               .step_max_ns = 10 * CLOCK_MS,
                               .step_ns = {0, 40 * CLOCK_MS, 15 * CLOCK_MS, 0},
                               .data = &data};
}

static void options_of(const char *mode, char *options, size_t bytes) {
    (void)snprintf(options, bytes,
                   "model=gpt2:1x16x2 vocab=32 seq-len=8 batch=2 steps=%d warmup=2 lease=2 "
                   "block-values=300 push=int8 pull=none mode=%s",
                   STEPS, mode);
}

static void check_end(const struct sim *sim, const char *before) {
    struct shard_counters counters = sim_counters(sim);
    const char *mode = sim->tool.exit_code == 0 ? sim->tool.mode : before;
    uint64_t pushes = 0;
    if (sim->coordinator.exit_code != 0 || !sim->tool.done) {
        fail(sim, "the job failed, or the tool was not answered");
    }
    for (uint32_t i = 0; i < sim->config.workers; i++) {
        const struct trainer *trainer = &sim->workers[i].trainer;
        bool stayed = trainer->reports_done == STEPS;
        pushes += (uint64_t)trainer->reports_done * BLOCKS;
        if (trainer->exit_code != 0 || (sim->config.worker_options[i] == NULL && !stayed)) {
            fail(sim, "a worker did not finish");
        }
        if (stayed && strcmp(sim->workers[i].job.mode, mode) != 0) {
            fail(sim, "a worker holds another mode");
        }
    }
    if (counters.pushes != pushes || counters.dropped + counters.skipped + counters.breaches > 0) {
        fail(sim, "a push was lost, or counted twice");
    }
}

/* True when the mode changed. */
static bool run_seed(uint64_t seed) {
    static struct sim sim;
    struct random_stream random;
    char options[512];
    const char *from = modes[seed % MODES];
    const char *to = modes[(seed + 1 + seed / MODES % (MODES - 1)) % MODES];
    random_open(&random, seed, RANDOM_SIMULATOR, 4);
    uint32_t workers = 2 + (uint32_t)random_below(&random, 3);
    int64_t after_ns = (int64_t)random_below(&random, 300) * CLOCK_MS;
    options_of(from, options, sizeof options);
    struct sim_config config = config_of(seed, workers, options);
    config.worker_options[0] = seed % 3 == 0 ? "leave-after=5" : NULL;
    sim_open(&sim, &config);
    while (sim.coordinator.phase != COORDINATOR_RUNNING && sim_step(&sim)) {
    }
    int64_t at_ns = loop_now_ns(sim.loop) + after_ns;
    bool asked = false;
    while (sim_step(&sim)) {
        if (!asked && loop_now_ns(sim.loop) >= at_ns &&
            sim.coordinator.phase == COORDINATOR_RUNNING) {
            asked = true;
            sim_set(&sim, to);
        }
    }
    if (asked) {
        check_end(&sim, from);
    }
    bool changed = asked && sim.tool.exit_code == 0;
    sim_close(&sim);
    return changed;
}

static void modes_change(void) {
    const char *one = getenv("SEED");
    int changed = 0;
    for (uint64_t seed = 0; seed < SEEDS && one == NULL; seed++) {
        changed += run_seed(seed) ? 1 : 0;
    }
    if (one != NULL) {
        (void)run_seed(strtoull(one, NULL, 10));
    } else {
        printf("%d of %d jobs changed their mode\n", changed, SEEDS);
        CHECK(changed > SEEDS / 2);
    }
}

static void what_does_not_fit_is_refused(void) {
    static const char *const wrong[][2] = {
        {"sync", "local:3"}, {"sync", "nonsense"}, {"async", "diloco:2"}, {"local:2", "sync"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        static struct sim sim;
        char options[512];
        options_of(wrong[i][0], options, sizeof options);
        struct sim_config config = config_of(i, 2, options);
        sim_open(&sim, &config);
        while (sim.coordinator.phase != COORDINATOR_RUNNING && sim_step(&sim)) {
        }
        sim_set(&sim, wrong[i][1]);
        sim_run(&sim);
        CHECK(sim.tool.done && sim.tool.exit_code != 0 && sim.tool.reason[0] != '\0');
        CHECK_INT(sim.coordinator.exit_code, 0);
        CHECK(strcmp(sim.workers[0].job.mode, wrong[i][0]) == 0);
        sim_close(&sim);
    }
}

/* A mode that is asked for comes with its own staleness, whatever --staleness was given. */
static void a_given_staleness_gives_way(void) {
    static struct sim sim;
    char options[512];
    options_of("sync staleness=any sync-warmup=0", options, sizeof options);
    struct sim_config config = config_of(1, 3, options);
    sim_open(&sim, &config);
    while (sim.coordinator.phase != COORDINATOR_RUNNING && sim_step(&sim)) {
    }
    CHECK_INT(sim.coordinator.discipline.staleness, STALENESS_ANY);
    sim_set(&sim, "sync");
    sim_run(&sim);
    CHECK(sim.tool.done);
    CHECK_INT(sim.tool.exit_code, 0);
    CHECK_INT(sim.coordinator.exit_code, 0);
    CHECK_INT(sim.coordinator.discipline.staleness, 0);
    CHECK(sim.coordinator.vote.round > 1); /* there were rounds */
    for (uint32_t i = 0; i < config.workers; i++) {
        CHECK_INT(sim.workers[i].trainer.discipline.staleness, 0);
        CHECK_TEXT(sim.workers[i].job.staleness, "auto");
    }
    sim_close(&sim);
}

int main(void) {
    log_set_level(getenv("SEED") != NULL ? LOG_INFO : LOG_ERROR);
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = (uint8_t)((i * i / 7 + i / 3) % 32);
    }
    CHECK(data_parse(&data, text, sizeof text, "text") == STATUS_OK);
    TEST_RUN(what_does_not_fit_is_refused);
    TEST_RUN(a_given_staleness_gives_way);
    TEST_RUN(modes_change);
    return 0;
}
