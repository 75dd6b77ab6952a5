/* test_sim_sync.c - sync training is one computation, however it is spread out.
 *
 * For W = 1, 2, 4 workers and S = 1, 2, 3 shards, with delay, reordering, duplication (and in half
 * the seeds loss) of data frames, over 240 seeds: the weights that worker 0 ends with are bit-equal
 * to those of one plain loop that adds the same W batches in rank order (sim_reference.h). The
 * codecs and the optimizer change with the seed, as do padding, accumulation, and factors of
 * learning rates. Every push must have had its turn exactly once.
 * In some seeds all workers or one start their steps when all weights are there; in the others a
 * step starts on the first ones that come, and reads what stood before where a wait is missing.
 */
#include "base/clock.h"
#include "base/log.h"
#include "tests/sim_cluster.h"
#include "tests/sim_reference.h"
#include "tests/test.h"

#include <inttypes.h>

enum { SEEDS = 240, STEPS = 4, TEXT_BYTES = 4096, VOCAB = 32 };

static uint8_t text[TEXT_BYTES];
static struct data data;

static const uint32_t worker_counts[] = {1, 2, 4};
static const char *const variants[] = {
    "push=none pull=none optimizer=adamw clip=1.0",
    "push=bf16 pull=bf16 optimizer=adamw clip=0.1",
    "push=int8 pull=bf16 optimizer=sgd lr=0.05 clip=0",
    "push=none pull=none optimizer=nesterov lr=0.05 clip=0.3 pad-token=3 accumulate=2 "
    "rates=*.wte.weight=0.5,*.ln_1.*=0 decays=*.wpe.weight=0",
};
enum { VARIANTS = 4 };

struct expected {
    float *weights;
    uint64_t count, blocks;
};
static struct expected expected[3][VARIANTS];

static const char whole[] = "forward-overlap=no";
static uint64_t awaits; /* of all seeds: steps waited in their middle */

static void options_of(uint32_t variant, char *options, size_t bytes) {
    (void)snprintf(options, bytes,
                   "model=gpt2:1x16x2 vocab=%d seq-len=8 batch=2 steps=%d warmup=2 "
                   "block-values=300 %s",
                   VOCAB, STEPS, variants[variant]);
}

static struct sim_config config_of(uint64_t seed, uint32_t workers, uint32_t shards,
                                   const char *options) {
    return (struct sim_config){
        .seed = seed,
        .servers = seed / 27 % 2 == 0 ? shards : 1, /* as processes, or as threads of one */
        .shards = seed / 27 % 2 == 0 ? 1 : shards,
        .workers = workers,
        .options = options,
        .faults = {.delay_min_ns = 0,
                   .delay_max_ns = (int64_t)(1 + seed % 5 * 10) * CLOCK_MS,
                   .duplicate = 0.1,
                   .drop = seed % 2 == 1 ? 0.03 : 0},
        .step_max_ns = 20 * CLOCK_MS,
        .worker_options = {seed % 4 == 3 || seed % 8 == 0 ? whole : NULL,
                           seed % 4 == 3 ? whole : NULL, seed % 4 == 3 ? whole : NULL,
                           seed % 4 == 3 ? whole : NULL},
        .data = &data,
    };
}

/* The reference, from the options that the job would hold. */
static void expect(uint32_t w, uint32_t variant) {
    struct expected *e = &expected[w][variant];
    char options[512];
    options_of(variant, options, sizeof options);
    e->weights = sim_reference_of(options, worker_counts[w], &data, &e->count, &e->blocks);
}

static void run_seed(uint64_t seed) {
    static struct sim sim;
    uint32_t w = (uint32_t)(seed % 3);
    uint32_t shards = (uint32_t)(seed / 3 % 3) + 1;
    uint32_t variant = (uint32_t)(seed / 9 % VARIANTS);
    const struct expected *e = &expected[w][variant];
    char options[512];
    options_of(variant, options, sizeof options);
    struct sim_config config = config_of(seed, worker_counts[w], shards, options);
    config.weights = calloc(e->count, sizeof(float));
    CHECK(config.weights != NULL);
    sim_open(&sim, &config);
    sim_run(&sim);
    struct shard_counters counters = sim_counters(&sim);
    bool equal = memcmp(config.weights, e->weights, e->count * sizeof(float)) == 0;
    bool once = counters.pushes == e->blocks * worker_counts[w] * STEPS;
    if (!equal || !once || sim.coordinator.exit_code != 0 || counters.breaches > 0) {
        fprintf(stderr,
                "seed %" PRIu64 ": %u workers, %u shards, %s: bits %s, %" PRIu64
                " pushes, exit %d %s\n",
                seed, worker_counts[w], shards, variants[variant], equal ? "equal" : "differ",
                counters.pushes, sim.coordinator.exit_code, sim.coordinator.reason);
        exit(1);
    }
    CHECK(seed % 4 != 3 || sim.awaits == 0);
    awaits += sim.awaits;
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
    CHECK(awaits > SEEDS);
}

int main(void) {
    log_set_level(LOG_ERROR);
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = (uint8_t)((i * i / 7 + i / 3) % VOCAB);
    }
    CHECK(data_parse(&data, text, sizeof text, "text") == STATUS_OK);
    for (uint32_t w = 0; w < 3; w++) {
        for (uint32_t variant = 0; variant < VARIANTS; variant++) {
            expect(w, variant);
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
