/* test_sim_delta.c - weights that travel as steps of a replica, in whole jobs.
 *
 * Rounds: the final weights are bit-equal to those of one plain loop that keeps the replica itself
 * (sim_reference.h), in sync, local steps and DiLoCo with fragments and overlap, for 1, 2 and 4
 * workers and 1 to 3 shards.
 * Any mode: at every moment, the weights that a worker has installed of a block are, bit for bit,
 * the replica that the block's shard had at that version, over 1,000 async steps of workers at
 * different paces, of which one is so slow that it falls behind the steps that are kept, another's
 * memory is damaged or its idea of its replica is wrong again and again; and in jobs of every mode,
 * with workers that leave or are lost. What the saver ends with are the shards' own weights.
 * In all, frames are delayed, reordered, repeated and lost.
 */
#include "base/clock.h"
#include "base/log.h"
#include "tests/sim_cluster.h"
#include "tests/sim_reference.h"
#include "tests/test.h"

#include <inttypes.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SEEDS = 32, ASYNC_STEPS = 200 };
#else
enum { SEEDS = 96, ASYNC_STEPS = 1000 };
#endif

enum { TEXT_BYTES = 4096, VALUES_MAX = 16384, BLOCKS_MAX = 32, VERSIONS = 8192 };

static uint8_t text[TEXT_BYTES];
static struct data data;
static float weights[VALUES_MAX];

#define MODEL "model=gpt2:1x16x2 vocab=32 seq-len=8 batch=2 warmup=2 block-values=300 lease=2 "

/* ---- rounds ---- */

static const uint32_t worker_counts[] = {1, 2, 4};
static const char *const rounds[] = {
    MODEL "push=none pull=delta-int4 steps=7 lr=0.01",
    MODEL "push=int8 pull=delta-int8 steps=7 lr=0.01 rates=*.wte.weight=0",
    MODEL "push=bf16 pull=delta-int8 mode=local:3 steps=10",
    MODEL "push=none pull=delta-int4 mode=diloco:4 fragments=4 overlap=1 steps=9",
    MODEL "push=int8 pull=delta-int4 mode=diloco:6 fragments=2 overlap=3 mix=0.5 steps=13",
};
enum { ROUNDS = sizeof rounds / sizeof rounds[0] };

static struct loop_faults faults_of(uint64_t seed) {
    return (struct loop_faults){.delay_max_ns = (int64_t)(1 + seed % 5 * 10) * CLOCK_MS,
                                .duplicate = 0.1,
                                .drop = seed % 2 == 1 ? 0.03 : 0};
}

static void fail(const struct sim *sim, const char *why) {
    fprintf(stderr, "seed %" PRIu64 ": %u workers, %s: %s; exit %d %s\n", sim->config.seed,
            sim->config.workers, sim->config.options, why, sim->coordinator.exit_code,
            sim->coordinator.reason);
    exit(1);
}

static void rounds_are_one_loop(void) {
    static struct sim sim;
    for (uint64_t variant = 0; variant < ROUNDS; variant++) {
        for (uint64_t w = 0; w < 3; w++) {
            uint64_t count = 0;
            uint64_t blocks = 0;
            float *expected =
                sim_reference_of(rounds[variant], worker_counts[w], &data, &count, &blocks);
            CHECK(count <= VALUES_MAX);
            for (uint64_t shards = 1; shards <= 3; shards++) {
                uint64_t seed = 9 * variant + 3 * w + shards;
                struct sim_config config = {.seed = seed,
                                            .servers = (uint32_t)shards,
                                            .shards = 1,
                                            .workers = worker_counts[w],
                                            .options = rounds[variant],
                                            .faults = faults_of(seed),
                                            .step_max_ns = 20 * CLOCK_MS,
                                            .data = &data,
                                            .weights = weights};
                sim_open(&sim, &config);
                sim_run(&sim);
                if (sim.coordinator.exit_code != 0) fail(&sim, "the job failed");
                if (memcmp(weights, expected, count * sizeof(float)) != 0) {
                    fail(&sim, "the bits differ");
                }
                sim_close(&sim);
            }
            free(expected);
        }
    }
}

/* ---- replicas at every moment ---- */

/* What was seen of a job. */
struct watch {
    struct random_stream random;
    uint32_t check_of[BLOCKS_MAX][VERSIONS]; /* of the shard's replica at each version */
    struct delta_place last[SIM_PROCESSES_MAX]
                           [BLOCKS_MAX]; /* of each worker, when last looked at */
    bool damaged[SIM_PROCESSES_MAX][BLOCKS_MAX];
    uint64_t compared, unseen, damages;
    uint64_t damage_one_in; /* moments; 0: never */
};
static struct watch watch;

static void note_shards(const struct sim *sim) {
    for (uint32_t i = 0; i < sim->config.servers; i++) {
        const struct service *service = &sim->servers[i].service;
        for (uint32_t s = 0; s < service->running; s++) {
            const struct shard *shard = &service->shards[s];
            for (uint64_t b = 0; b < shard->block_count; b++) {
                const struct shard_block *block = &shard->blocks[b];
                uint64_t version = block->replica.at.version;
                CHECK(block->plan->id < BLOCKS_MAX && version < VERSIONS);
                if (block->replica.at.check != DELTA_NONE) {
                    watch.check_of[block->plan->id][version] = block->replica.at.check;
                }
            }
        }
    }
}

static void look_at_block(const struct sim *sim, uint32_t worker, uint64_t id) {
    const struct exchange *exchange = &sim->workers[worker].session.exchange;
    const struct exchange_block *block = &exchange->blocks[id];
    const struct plan_block *planned = &exchange->config.plan->blocks[id];
    struct delta_place *last = &watch.last[worker][id];
    if (block->open || (last->version == block->version && last->check == block->check)) {
        return;
    }
    *last = (struct delta_place){block->version, block->check};
    if (block->check == DELTA_NONE || planned->fragment == PLAN_FROZEN) {
        return;
    }
    watch.damaged[worker][id] = false;
    if (delta_check(exchange->config.weights + planned->offset, planned->count) != block->check) {
        fail(sim, "a worker's weights are not what it says");
    }
    uint32_t expected = watch.check_of[id][block->version];
    if (expected == DELTA_NONE) {
        watch.unseen++; /* the shard went on within one poll */
    } else if (expected != block->check) {
        fail(sim, "a worker's replica is not the shard's");
    } else {
        watch.compared++;
    }
}

/* Something overwrites a value of a worker's, or it takes its replica for another one. */
static void damage(struct sim *sim, uint32_t worker) {
    struct exchange *exchange = &sim->workers[worker].session.exchange;
    uint64_t id = random_below(&watch.random, exchange->config.plan->block_count);
    const struct plan_block *planned = &exchange->config.plan->blocks[id];
    struct exchange_block *block = &exchange->blocks[id];
    if (block->check == DELTA_NONE || block->open || watch.damaged[worker][id]) {
        return;
    }
    watch.damaged[worker][id] = true;
    watch.damages++;
    if (random_below(&watch.random, 2) == 0) {
        block->check ^= 0x100;
        watch.last[worker][id].check = block->check;
    } else {
        exchange->config.weights[planned->offset] += 0.01F;
    }
}

static void look(struct sim *sim) {
    note_shards(sim);
    for (uint32_t i = 0; i < sim->config.workers; i++) {
        const struct session *session = &sim->workers[i].session;
        if (!session->exchanging) {
            continue;
        }
        for (uint64_t id = 0; id < session->plan.block_count; id++) {
            look_at_block(sim, i, id);
        }
        if (i == 1 && watch.damage_one_in > 0 &&
            random_below(&watch.random, watch.damage_one_in) == 0) {
            damage(sim, i);
        }
    }
}

/* What the saver ended with. */
static void check_saved(const struct sim *sim) {
    for (uint32_t i = 0; i < sim->config.servers; i++) {
        const struct service *service = &sim->servers[i].service;
        for (uint32_t s = 0; s < service->running; s++) {
            for (uint64_t b = 0; b < service->shards[s].block_count; b++) {
                const struct shard_block *block = &service->shards[s].blocks[b];
                if (memcmp(weights + block->plan->offset, block->weights,
                           (size_t)block->plan->count * sizeof(float)) != 0) {
                    fail(sim, "the saved weights are not the shards'");
                }
            }
        }
    }
}

static void open_watch(uint64_t seed, uint64_t damage_one_in) {
    memset(&watch, 0, sizeof watch);
    random_open(&watch.random, seed, RANDOM_SIMULATOR, 5);
    watch.damage_one_in = damage_one_in;
}

static void a_thousand_async_steps(void) {
    static struct sim sim;
    static const char *const pulls[] = {"delta-int4", "delta-int8"};
    for (uint64_t p = 0; p < 2; p++) {
        char options[512];
        (void)snprintf(options, sizeof options,
                       MODEL "push=bf16 pull=%s mode=async sync-warmup=0 steps=%d "
                             "lr=0.003",
                       pulls[p], ASYNC_STEPS);
        struct sim_config config = {
            .seed = p,
            .servers = 2,
            .shards = 1,
            .workers = 3,
            .options = options,
            .faults = {.delay_max_ns = 5 * CLOCK_MS, .duplicate = 0.05, .drop = 0.01},
            .step_max_ns = 10 * CLOCK_MS,
            .slow_worker_ns = 40 * CLOCK_MS,
            .data = &data,
            .weights = weights};
        open_watch(p, 300);
        sim_open(&sim, &config);
        while (sim_step(&sim)) {
            look(&sim);
        }
        if (sim.coordinator.exit_code != 0) fail(&sim, "the job failed");
        check_saved(&sim);
        uint64_t refused = 0;
        for (uint32_t i = 0; i < 3; i++) {
            refused += sim.workers[i].session.exchange.counters.corrupt;
        }
        uint64_t blocks = sim.workers[0].session.plan.block_count;
        CHECK(watch.compared > 2 * ASYNC_STEPS * blocks && watch.unseen < watch.compared / 100);
        CHECK(watch.damages > ASYNC_STEPS / 20 && refused > 0);
        sim_close(&sim);
    }
}

static const char *const modes[] = {
    "mode=sync",
    "mode=sync backup-workers=1",
    "mode=ssp:1",
    "mode=async sync-warmup=3 max-staleness=9",
    "mode=async sync-warmup=0 delay-comp=0.5 delay-base=copies",
    "mode=local:2 backup-workers=1",
    "mode=diloco:2 fragments=2 overlap=1 mix=0.5",
    "mode=diloco:2 staleness=1 fragments=2",
};
enum { MODES = sizeof modes / sizeof modes[0] };

static void every_mode(void) {
    static struct sim sim;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        char options[512];
        (void)snprintf(options, sizeof options, MODEL "push=int8 pull=%s steps=8 %s",
                       seed / MODES % 2 == 0 ? "delta-int4" : "delta-int8", modes[seed % MODES]);
        struct sim_config config = {.seed = seed,
                                    .servers = 1 + (uint32_t)(seed % 2),
                                    .shards = 1 + (uint32_t)(seed / 2 % 2),
                                    .workers = 2 + (uint32_t)(seed / MODES % 3),
                                    .options = options,
                                    .faults = faults_of(seed),
                                    .step_max_ns = 10 * CLOCK_MS,
                                    .slow_worker_ns = (int64_t)(seed % 3) * 30 * CLOCK_MS,
                                    .data = &data,
                                    .weights = weights};
        bool leaves = seed / MODES % 4 == 3;
        config.worker_options[0] = leaves ? "leave-after=4" : NULL;
        open_watch(seed, leaves ? 0 : 40);
        sim_open(&sim, &config);
        while (sim_step(&sim)) {
            look(&sim);
        }
        if (sim.coordinator.exit_code != 0) fail(&sim, "the job failed");
        if (watch.compared == 0) fail(&sim, "no replica was looked at");
        check_saved(&sim);
        sim_close(&sim);
    }
}

int main(void) {
    log_set_level(LOG_ERROR);
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = (uint8_t)((i * i / 7 + i / 3) % 32);
    }
    CHECK(data_parse(&data, text, sizeof text, "text") == STATUS_OK);
    TEST_RUN(rounds_are_one_loop);
    TEST_RUN(a_thousand_async_steps);
    TEST_RUN(every_mode);
    return 0;
}
