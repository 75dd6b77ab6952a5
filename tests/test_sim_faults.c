/* test_sim_faults.c - the loss of a process that is needed ends the job in time; that of a data
 * connection between two that live does not end it.
 *
 * Over seeds and modes: at a random virtual moment a worker (in modes that need all of them; else
 * the job goes on: test_sim_churn.c), a server or the coordinator's server dies (its connections
 * close) or is cut off (silence). Everyone else must end within a lease and a bit with exit code 69
 * and a reason that names the lost one; nobody hangs. A job that was over before the fault must be
 * finished.
 * And over seeds: a process's data connections break at random moments, for random times below a
 * lease, with frames lost that had left; no channel repeats anything. The job must end with the
 * bits of one that nobody disturbed, where these do not depend on who is faster, with each push
 * counted once, and with no more time lost than the connections were.
 */
#include "base/clock.h"
#include "base/log.h"
#include "tests/sim_cluster.h"
#include "tests/test.h"

#include <inttypes.h>

enum { SEEDS = 120, TEXT_BYTES = 4096, CUT_SEEDS = 60, CUTS = 5, VALUES_MAX = 4096 };

static uint8_t text[TEXT_BYTES];
static struct data data;

/* [0]: modes that need all workers, [1]: modes for the loss of servers. */
static const char *const modes[2][3] = {{"sync", "local:2", "diloco:2"},
                                        {"local:3", "async", "ssp:1"}};

struct fault {
    bool silent;
    bool server;
    uint32_t process;
    int64_t at_ns;
};

static bool ended(const struct sim *sim, bool server, uint32_t i) {
    return server ? sim->servers[i].service.member.state == MEMBER_ENDED
                  : sim->workers[i].trainer.state == TRAINER_ENDED;
}

/* All but the lost process, and those that lived with it, have ended. */
static bool others_ended(const struct sim *sim, const struct fault *fault) {
    for (uint32_t i = 0; i < sim->config.servers; i++) {
        if (!(fault->server && fault->process == i) && !ended(sim, true, i)) {
            return false;
        }
    }
    for (uint32_t i = 0; i < sim->config.workers; i++) {
        if (!(!fault->server && fault->process == i) && !ended(sim, false, i)) {
            return false;
        }
    }
    return true;
}

static void fail(const struct sim *sim, const struct fault *fault, const char *why) {
    fprintf(stderr, "seed %" PRIu64 ": %s %u %s at %" PRId64 " ms: %s (%s)\n", sim->config.seed,
            fault->server ? "server" : "worker", fault->process,
            fault->silent ? "went silent" : "died", fault->at_ns / CLOCK_MS, why,
            sim->coordinator.reason);
    exit(1);
}

/* What the others must say: 69, and who. The coordinator's loss is known by its address. */
static void check_verdict(const struct sim *sim, const struct fault *fault, const char *name) {
    for (uint32_t i = 0; i < sim->config.servers + sim->config.workers; i++) {
        bool server = i < sim->config.servers;
        uint32_t index = server ? i : i - sim->config.servers;
        const struct member *member =
            server ? &sim->servers[index].service.member : &sim->workers[index].session.member;
        if (server == fault->server && index == fault->process) {
            continue;
        }
        if (member->exit_code != EXIT_CODE_UNREACHABLE) {
            fail(sim, fault, "exit code is not 69");
        }
        if (strstr(member->reason, name) == NULL) {
            fail(sim, fault, member->reason);
        }
    }
}

static bool finished(const struct sim *sim) {
    return sim->coordinator.phase == COORDINATOR_ENDED && sim->coordinator.exit_code == 0;
}

static void run_seed(uint64_t seed) {
    static struct sim sim;
    char options[512];
    char name[32];
    struct random_stream random;
    random_open(&random, seed, RANDOM_SIMULATOR, 2);
    struct fault fault = {.silent = seed % 2 == 1,
                          .server = random_below(&random, 2) == 1,
                          .process = (uint32_t)random_below(&random, 2),
                          .at_ns = (int64_t)random_below(&random, 1500) * CLOCK_MS};
    (void)snprintf(options, sizeof options,
                   "model=gpt2:1x16x2 vocab=32 seq-len=8 batch=2 steps=40 block-values=300 "
                   "lease=2 mode=%s",
                   modes[fault.server][seed % 3]);
    struct sim_config config = {.seed = seed,
                                .servers = 2,
                                .shards = 2,
                                .workers = 2,
                                .options = options,
                                .faults = {.delay_max_ns = 5 * CLOCK_MS, .duplicate = 0.05},
                                .step_max_ns = 20 * CLOCK_MS,
                                .data = &data};
    bool coordinator = fault.server && fault.process == 0;
    sim_open(&sim, &config);
    while (loop_now_ns(sim.loop) < fault.at_ns && sim_step(&sim)) {
    }
    if (!finished(&sim)) {
        const struct member *lost = fault.server ? &sim.servers[fault.process].service.member
                                                 : &sim.workers[fault.process].session.member;
        bool joined = lost->state == MEMBER_ACTIVE;
        (void)snprintf(name, sizeof name, "%s %u", fault.server ? "server" : "worker", lost->index);
        loop_cut(sim.loop,
                 fault.server ? sim_server_node(fault.process)
                              : sim_worker_node(&sim, fault.process),
                 fault.silent);
        int64_t limit_ns = loop_now_ns(sim.loop) + 3 * CLOCK_S; /* a lease and a half */
        while (!others_ended(&sim, &fault) && sim_step(&sim)) {
            if (joined && loop_now_ns(sim.loop) > limit_ns) {
                fail(&sim, &fault, "the others have not ended");
            }
        }
        if (joined && !finished(&sim)) {
            check_verdict(&sim, &fault, coordinator ? "coordinator" : name);
        }
    }
    sim_close(&sim);
}

/* Only the data connections of a process break, and none can be made: the control channel beats on,
 * so no lease ends the job. Someone who is concerned must say so, a lease later. */
static void broken_data_ends_the_job(void) {
    for (uint64_t seed = 0; seed < 12; seed++) {
        static struct sim sim;
        char options[512];
        (void)snprintf(options, sizeof options,
                       "model=gpt2:1x16x2 vocab=32 seq-len=8 batch=2 steps=4000 block-values=300 "
                       "lease=2 mode=%s",
                       modes[seed % 2 == 0][seed % 3]);
        struct sim_config config = {.seed = seed,
                                    .servers = 2,
                                    .shards = 1,
                                    .workers = 2,
                                    .options = options,
                                    .faults = {.delay_max_ns = 5 * CLOCK_MS},
                                    .step_max_ns = 20 * CLOCK_MS,
                                    .data = &data};
        sim_open(&sim, &config);
        while (loop_now_ns(sim.loop) < 500 * CLOCK_MS && sim_step(&sim)) {
        }
        loop_cut_data(sim.loop, seed % 2 == 0 ? sim_server_node(1) : sim_worker_node(&sim, 1),
                      INT64_MAX);
        int64_t limit_ns = loop_now_ns(sim.loop) + 4 * CLOCK_S;
        while (sim_step(&sim)) {
            CHECK(loop_now_ns(sim.loop) < limit_ns);
        }
        CHECK_INT(sim.coordinator.exit_code, EXIT_CODE_UNREACHABLE);
        CHECK(strstr(sim.coordinator.reason, "data channel") != NULL);
        sim_close(&sim);
    }
}

/* What of a job can be compared. */
struct end {
    float weights[VALUES_MAX];
    uint64_t pushes;
    int64_t at_ns;
};

/* Modes, with how many workers; in the first SAME of them the bits follow from the seed alone. */
static const struct {
    const char *options;
    uint32_t workers;
} cut_modes[] = {{"mode=sync", 2},
                 {"mode=sync pull=delta-int8 push=int8", 2},
                 {"mode=sync optimizer=worker:adamw", 2},
                 {"mode=local:3", 2},
                 {"mode=async sync-warmup=0", 1},
                 {"mode=async sync-warmup=0 pull=delta-int4", 1},
                 {"mode=async", 2},
                 {"mode=ssp:1 pull=delta-int8", 2}};
enum { SAME = 6 };

static void run_for(struct sim *sim, int64_t span_ns) {
    int64_t end_ns = loop_now_ns(sim->loop) + span_ns;
    while (loop_now_ns(sim->loop) < end_ns && sim_step(sim)) {
    }
}

/* For less than a second. Before the next cut all connections are back, since the waits between
 * dials are a quarter of a lease at most: else they might be away for a lease. */
static void cut_and_heal(struct sim *sim, struct random_stream *random) {
    uint32_t node = (uint32_t)random_below(random, 2 + sim->config.workers);
    run_for(sim, (int64_t)random_below(random, 250) * CLOCK_MS);
    int64_t span_ns = (int64_t)random_below(random, CLOCK_S);
    loop_cut_data(sim->loop, node, loop_now_ns(sim->loop) + span_ns);
    run_for(sim, span_ns + 520 * CLOCK_MS);
}

/* Without cuts if `random` is NULL. */
static void run_cut(uint64_t seed, struct random_stream *random, struct end *end) {
    static struct sim sim;
    char options[512];
    size_t mode = seed % (sizeof cut_modes / sizeof cut_modes[0]);
    (void)snprintf(options, sizeof options,
                   "model=gpt2:1x16x2 vocab=32 seq-len=8 batch=2 steps=60 block-values=300 "
                   "lease=2 %s",
                   cut_modes[mode].options);
    struct sim_config config = {.seed = seed,
                                .servers = 2,
                                .shards = 2,
                                .workers = cut_modes[mode].workers,
                                .options = options,
                                .faults = {.delay_max_ns = 5 * CLOCK_MS, .reliable = true},
                                .step_max_ns = 20 * CLOCK_MS,
                                .data = &data,
                                .weights = end->weights};
    sim_open(&sim, &config);
    while (sim.coordinator.phase != COORDINATOR_RUNNING && sim_step(&sim)) {
    }
    for (int i = 0; i < CUTS && random != NULL; i++) {
        cut_and_heal(&sim, random);
    }
    sim_run(&sim);
    struct shard_counters counters = sim_counters(&sim);
    CHECK(finished(&sim));
    CHECK_INT(counters.breaches + counters.corrupt + counters.dropped, 0);
    end->pushes = counters.pushes;
    end->at_ns = loop_now_ns(sim.loop);
    sim_close(&sim);
}

static void broken_data_comes_back(void) {
    static struct end ends[2];
    const char *one = getenv("SEED");
    for (uint64_t seed = 0; seed < CUT_SEEDS; seed++) {
        struct random_stream random;
        if (one != NULL && strtoull(one, NULL, 10) != seed) {
            continue;
        }
        random_open(&random, seed, RANDOM_SIMULATOR, 3);
        run_cut(seed, NULL, &ends[0]);
        run_cut(seed, &random, &ends[1]);
        bool bits = seed % (sizeof cut_modes / sizeof cut_modes[0]) >= SAME ||
                    memcmp(ends[0].weights, ends[1].weights, sizeof ends[0].weights) == 0;
        /* Of each cut: a second at most, and the last wait, of half a second. */
        bool soon = ends[1].at_ns < ends[0].at_ns + CUTS * 3 * CLOCK_S / 2 + CLOCK_S;
        if (!bits || !soon || ends[0].pushes != ends[1].pushes) {
            fprintf(stderr,
                    "seed %" PRIu64 ": %s; %" PRIu64 " pushes, of %" PRIu64 "; %" PRId64
                    " ms, of %" PRId64 "\n",
                    seed, bits ? "the same bits" : "other bits", ends[1].pushes, ends[0].pushes,
                    ends[1].at_ns / CLOCK_MS, ends[0].at_ns / CLOCK_MS);
            exit(1);
        }
    }
}

static void everyone_ends(void) {
    const char *one = getenv("SEED");
    for (uint64_t seed = 0; seed < SEEDS && one == NULL; seed++) {
        run_seed(seed);
    }
    if (one != NULL) {
        run_seed(strtoull(one, NULL, 10));
    }
}

int main(void) {
    log_set_level(LOG_ERROR);
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = (uint8_t)((i * i / 7 + i / 3) % 32);
    }
    CHECK(data_parse(&data, text, sizeof text, "text") == STATUS_OK);
    TEST_RUN(broken_data_ends_the_job);
    TEST_RUN(broken_data_comes_back);
    TEST_RUN(everyone_ends);
    return 0;
}
