/* test_sim_churn.c - jobs go on and end well whatever their workers do, in every mode.
 *
 * Over 560 seeds, 3 to 5 workers of quite different speeds, some with batches that are mostly
 * padding, on networks with delay, reordering, duplication and loss: one or two of them leave after
 * some steps or are asked to at some moment (rank 0 among them), or are cut off where the mode goes
 * on without them; or, in any mode, the one that saves the run is cut off when it is to, or rank 0
 * when the job has just begun. Checked in each:
 *   the job ends with 0 (virtual time has a limit: nothing hangs), the leavers with 0, too;
 *   every report of a worker that lives is answered and had its turn exactly once, in every block
 *     (so none is lost, counted twice or starved);
 *   rounds of a quorum are closed by at least so many as are needed, and as many rounds are closed
 *     as the job has; with --late join nothing is dropped but what came after the last;
 *   no worker is further ahead of the slowest that lives than the mode's staleness allows;
 *   the saver tells how many tokens all have read, those that left among them.
 * Only when rank 0 is lost before its first weights are known to be everywhere, or where rounds
 * need all, may the job fail; then it says so. When all have left, it fails and says so. A worker
 * that leaves after its report does not change the bits of the rounds before.
 */
#include "base/clock.h"
#include "base/log.h"
#include "tests/sim_cluster.h"
#include "tests/test.h"

#include <inttypes.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SEEDS 112 /* once each mode and plot; a sanitizer takes ten times as long */
#else
#define SEEDS 560
#endif

enum { TEXT_BYTES = 4096, STEPS = 7, VALUES_MAX = 8192 };

#define SOON_NS (40 * CLOCK_MS) /* after Go; about as long as the first weights take to spread */

static uint8_t text[TEXT_BYTES];
static struct data data;
static float weights[VALUES_MAX];

/* goes_on: also without a worker that is lost. */
static const struct {
    const char *options;
    bool goes_on;
} modes[] = {
    {"mode=sync", false},
    {"mode=sync backup-workers=1", true},
    {"mode=sync backup-workers=1 grace=20 late=join", true},
    {"mode=sync quorum=1 grace=auto", true},
    {"mode=ssp:0", false},
    {"mode=ssp:1 sync-warmup=0", true},
    {"mode=async sync-warmup=0", true},
    {"mode=async sync-warmup=3 staleness-scale=inverse max-staleness=9", false}, // rounds at first
    {"mode=local:2", false},
    {"mode=local:2 backup-workers=1", true},
    {"mode=local:3 quorum=1 grace=15 late=drop", true},
    {"mode=diloco:2 fragments=2 overlap=1 mix=0.5", false},
    {"mode=diloco:4 fragments=2 overlap=2 inner-state=reset", false},
    {"mode=diloco:2 staleness=any", true},
    {"mode=diloco:2 staleness=1 fragments=2", true},
    {"mode=diloco:3 adapt-steps=yes", false},
};
enum { MODES = sizeof modes / sizeof modes[0] };

enum what { NOTHING, LEAVE_AFTER, ASKED, TWO_LEAVE, LOST, SAVER_LOST, FIRST_LOST, WHATS };

struct plot {
    enum what what;
    uint32_t who[2]; /* worker processes */
    int64_t at_ns;
    int64_t began_ns; /* when the job first ran; 0: not yet */
    bool goes_on;     /* the mode's */
    bool silent, done;
};

static bool lost(const struct plot *plot, uint32_t process) {
    return plot->what >= LOST && plot->done && plot->who[0] == process;
}

static void fail(const struct sim *sim, const struct plot *plot, const char *why) {
    struct shard_counters counters = sim_counters(sim);
    fprintf(stderr,
            "seed %" PRIu64 ": %u workers, %s, plot %d (processes %u, %u): %s; %" PRIu64
            " pushes, %" PRIu64 " dropped, %" PRIu64 " breaches, exit %d %s\n",
            sim->config.seed, sim->config.workers, sim->config.options, (int)plot->what,
            plot->who[0], plot->who[1], why, counters.pushes, counters.dropped, counters.breaches,
            sim->coordinator.exit_code, sim->coordinator.reason);
    exit(1);
}

/* ---- what must hold at every moment ---- */

static void check_lead(const struct sim *sim, const struct plot *plot) {
    int64_t least = INT64_MAX;
    int64_t most = 0;
    int64_t bound = sim->workers[0].trainer.discipline.staleness;
    for (uint32_t i = 0; i < sim->config.workers; i++) {
        const struct trainer *trainer = &sim->workers[i].trainer;
        if (trainer->plan == NULL) {
            return;
        }
        if (trainer->state == TRAINER_STEPPING && !lost(plot, i)) {
            least = trainer->reports_done < least ? trainer->reports_done : least;
            most = trainer->reports_done > most ? trainer->reports_done : most;
        }
    }
    bool by_version = sim->coordinator.has_quorum; /* then own counts say nothing */
    if (least != INT64_MAX && bound >= 0 && !by_version && most - least > bound + 1) {
        fail(sim, plot, "a worker is too far ahead");
    }
}

static void check_quorum(const struct sim *sim, const struct plot *plot, uint64_t *round) {
    const struct coordinator *coordinator = &sim->coordinator;
    if (!coordinator->has_quorum || coordinator->vote.round == *round) {
        return;
    }
    int64_t needed = coordinator->discipline.quorum;
    int64_t living = coordinator_living(coordinator);
    *round = coordinator->vote.round;
    if (*round > 1 && coordinator->closed_count < (needed < living ? needed : living)) {
        fail(sim, plot, "a round was closed by too few");
    }
}

/* ---- what must hold in the end ---- */

/* Blocks in the first `reports` reports of a worker. */
static uint64_t pushes_of(const struct plan *plan, uint64_t reports) {
    uint64_t pushes = 0;
    for (uint64_t id = 0; id < plan->block_count; id++) {
        uint64_t fragment = plan->blocks[id].fragment;
        if (fragment < reports) {
            pushes += (reports - fragment - 1) / plan->fragment_count + 1;
        }
    }
    return pushes;
}

static uint32_t process_of(const struct sim *sim, uint32_t rank) {
    uint32_t process = 0;
    while (sim->workers[process].session.member.index != rank) {
        process++;
        CHECK(process < sim->config.workers);
    }
    return process;
}

/* What the saver tells of the run: the tokens of all, also of those that left. Of what a lost
 * worker read, only its Beats have told. */
static void check_tokens(const struct sim *sim, const struct plot *plot) {
    const struct trainer *saver = &sim->workers[process_of(sim, sim->coordinator.saver)].trainer;
    uint64_t least = 0;
    uint64_t most = 0;
    for (uint32_t i = 0; i < sim->config.workers; i++) {
        const struct trainer *trainer = &sim->workers[i].trainer;
        uint64_t own = (uint64_t)(trainer->computed * job_step_tokens(trainer->job));
        least += lost(plot, i) ? 0 : own;
        most += own;
    }
    if (saver->step.job_tokens < least || saver->step.job_tokens > most) {
        fail(sim, plot, "the saver's tokens are not those of all workers");
    }
}

static void check_end(const struct sim *sim, const struct plot *plot) {
    uint64_t pushes = 0;
    uint64_t of_lost = 0;
    for (uint32_t i = 0; i < sim->config.workers; i++) {
        const struct trainer *trainer = &sim->workers[i].trainer;
        uint64_t own = pushes_of(trainer->plan, (uint64_t)trainer->reports_done);
        if (lost(plot, i)) {
            of_lost = own;
            continue;
        }
        pushes += own;
        if (trainer->exit_code != 0) {
            fail(sim, plot, "a worker failed");
        }
        if (sim->workers[i].session.exchange.counters.pushes_answered != own) {
            fail(sim, plot, "a report was not answered");
        }
    }
    struct shard_counters counters = sim_counters(sim);
    if (counters.pushes < pushes || counters.pushes > pushes + of_lost || counters.breaches > 0 ||
        counters.skipped > 0) {
        fail(sim, plot, "a push was lost, or counted twice");
    }
    const struct discipline *discipline = &sim->coordinator.discipline;
    uint64_t rounds = (uint64_t)discipline_reports(discipline, STEPS);
    if (discipline_by_round(discipline) && sim->coordinator.vote.round != rounds + 1) {
        fail(sim, plot, "the number of rounds is wrong");
    }
    if (discipline_needs_all(discipline, sim->config.workers) && counters.dropped > 0) {
        fail(sim, plot, "something was dropped");
    }
    if (weights[0] == 0) {
        fail(sim, plot, "nobody saved the weights");
    }
    check_tokens(sim, plot);
}

/* ---- the seeds ---- */

static void draw_plot(struct random_stream *random, uint64_t seed, uint32_t workers,
                      struct plot *plot) {
    *plot = (struct plot){.what = (enum what)(seed / MODES % WHATS),
                          .who = {(uint32_t)random_below(random, workers)},
                          .at_ns = (int64_t)random_below(random, 400) * CLOCK_MS,
                          .goes_on = modes[seed % MODES].goes_on,
                          .silent = random_below(random, 2) == 1};
    plot->at_ns += (int64_t)random_below(random, 2); /* odd or even: see cut_saver() */
    plot->at_ns = plot->what == FIRST_LOST ? plot->at_ns % SOON_NS : plot->at_ns;
    plot->who[1] = (plot->who[0] + 1) % workers;
    if (plot->what == LOST && !plot->goes_on) {
        plot->what = ASKED;
    }
}

static bool running(const struct sim *sim) {
    return sim->coordinator.phase == COORDINATOR_RUNNING;
}

static void cut(struct sim *sim, struct plot *plot, uint32_t process) {
    plot->done = true;
    plot->who[0] = process;
    loop_cut(sim->loop, sim_worker_node(sim, process), plot->silent);
}

/* As soon as it is named, or once it knows. */
static void cut_saver(struct sim *sim, struct plot *plot) {
    if (sim->coordinator.phase == COORDINATOR_DRAINED) {
        uint32_t saver = process_of(sim, sim->coordinator.saver);
        if (plot->at_ns % 2 == 0 || sim->workers[saver].trainer.state == TRAINER_SAVING) {
            cut(sim, plot, saver);
        }
    }
}

/* Lets happen what is to happen by now. */
static void act(struct sim *sim, struct plot *plot) {
    int64_t now_ns = loop_now_ns(sim->loop);
    if (plot->what == SAVER_LOST && !plot->done) {
        cut_saver(sim, plot);
    }
    if (!running(sim)) {
        return;
    }
    plot->began_ns = plot->began_ns == 0 ? now_ns : plot->began_ns;
    if (plot->done || now_ns < plot->at_ns) {
        return;
    }
    if (plot->what == ASKED) {
        plot->done = session_ask_to_leave(&sim->workers[plot->who[0]].session);
    } else if (plot->what == LOST) {
        cut(sim, plot, plot->who[0]);
    } else if (plot->what == FIRST_LOST && now_ns >= plot->began_ns + plot->at_ns % SOON_NS) {
        cut(sim, plot, process_of(sim, 0));
    }
}

/* Rank 0 was lost so early, or where rounds need all, that the job could not go on: it said so. */
static bool may_fail(const struct sim *sim, const struct plot *plot) {
    const struct coordinator *coordinator = &sim->coordinator;
    bool first = plot->done && sim->workers[plot->who[0]].session.member.index == 0;
    bool early = strstr(coordinator->reason, ", before its first weights were everywhere") != NULL;
    bool early_known = early && !coordinator->weights_spread;
    return plot->what >= LOST && first && strstr(coordinator->reason, "worker 0 (") != NULL &&
           (early_known || (plot->what == FIRST_LOST && !plot->goes_on));
}

static void run_seed(uint64_t seed) {
    static struct sim sim;
    struct random_stream random;
    struct plot plot;
    char options[512];
    char leave[32];
    uint64_t round = 1;
    random_open(&random, seed, RANDOM_SIMULATOR, 3);
    uint32_t workers = 3 + (uint32_t)random_below(&random, 3);
    draw_plot(&random, seed, workers, &plot);
    (void)snprintf(options, sizeof options,
                   "model=gpt2:1x16x2 vocab=32 seq-len=8 batch=2 steps=%d warmup=2 lease=2 "
                   "block-values=300 push=int8 pull=none %s %s",
                   STEPS, seed % 3 == 0 ? "pad-token=3" : "", modes[seed % MODES].options);
    (void)snprintf(leave, sizeof leave, "leave-after=%d", 1 + (int)random_below(&random, STEPS));
    struct sim_config config = {.seed = seed,
                                .servers = 1 + (uint32_t)random_below(&random, 3),
                                .shards = 1 + (uint32_t)random_below(&random, 2),
                                .workers = workers,
                                .options = options,
                                .faults = {.delay_max_ns = 5 * CLOCK_MS,
                                           .duplicate = 0.05,
                                           .drop = seed % 4 == 1 ? 0.02 : 0},
                                .step_max_ns = 10 * CLOCK_MS,
                                .data = &data,
                                .weights = weights};
    for (uint32_t i = 0; i < workers; i++) {
        config.step_ns[i] = (int64_t)random_below(&random, 4) * 20 * CLOCK_MS;
        bool leaves = (plot.what == LEAVE_AFTER && i == plot.who[0]) ||
                      (plot.what == TWO_LEAVE && (i == plot.who[0] || i == plot.who[1]));
        config.worker_options[i] = leaves ? leave : NULL;
    }
    weights[0] = 0;
    sim_open(&sim, &config);
    while (sim_step(&sim)) {
        act(&sim, &plot);
        if (running(&sim)) {
            check_lead(&sim, &plot);
            check_quorum(&sim, &plot, &round);
        }
    }
    if (sim.coordinator.exit_code == 0) {
        check_end(&sim, &plot);
    } else if (!may_fail(&sim, &plot)) {
        fail(&sim, &plot, "the job failed");
    }
    sim_close(&sim);
}

static void jobs_go_on(void) {
    const char *one = getenv("SEED");
    for (uint64_t seed = 0; seed < SEEDS && one == NULL; seed++) {
        run_seed(seed);
    }
    if (one != NULL) {
        run_seed(strtoull(one, NULL, 10));
    }
}

/* ---- all leave ---- */

static void nobody_is_left(void) {
    static const char *const all[] = {"mode=sync", "mode=async", "mode=local:2",
                                      "mode=sync backup-workers=1"};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        static struct sim sim;
        char options[512];
        (void)snprintf(options, sizeof options,
                       "model=gpt2:1x16x2 vocab=32 seq-len=8 batch=2 steps=50 lease=2 "
                       "block-values=300 %s",
                       all[i]);
        struct sim_config config = {
            .seed = i,
            .servers = 2,
            .shards = 1,
            .workers = 3,
            .options = options,
            .faults = {.delay_max_ns = 5 * CLOCK_MS},
            .step_max_ns = 10 * CLOCK_MS,
            .data = &data,
            .worker_options = {"leave-after=3", "leave-after=5", "leave-after=4"}};
        sim_open(&sim, &config);
        sim_run(&sim);
        CHECK(sim.coordinator.exit_code != 0);
        CHECK(strstr(sim.coordinator.reason, "workers have left") != NULL);
        sim_close(&sim);
    }
}

/* ---- the rounds before a departure ---- */

struct losses {
    float values[STEPS + 1];
};

static void note_loss(void *context, int64_t step, float loss) {
    struct losses *losses = context;
    CHECK(step >= 1 && step <= STEPS);
    losses->values[step] = loss;
}

static void departures_leave_the_rounds_before(void) {
    static struct sim sim;
    struct losses losses[2] = {0};
    for (int run = 0; run < 2; run++) {
        struct sim_config config = {
            .seed = 1,
            .servers = 1,
            .shards = 2,
            .workers = 2,
            .options = "model=gpt2:1x16x2 vocab=32 seq-len=8 batch=2 steps=7 lease=2 lr=0.01 "
                       "warmup=0 block-values=300 mode=sync",
            .faults = {.delay_max_ns = 5 * CLOCK_MS},
            .data = &data,
            .loss = note_loss,
            .loss_contexts = {&losses[run], NULL},
            .worker_options = {"index=0", run == 0 ? "index=1" : "index=1 leave-after=4"}};
        struct losses other;
        config.loss_contexts[1] = &other;
        sim_open(&sim, &config);
        sim_run(&sim);
        CHECK_INT(sim.coordinator.exit_code, 0);
        sim_close(&sim);
    }
    for (int step = 1; step <= 5; step++) {
        CHECK(losses[0].values[step] == losses[1].values[step] && losses[0].values[step] != 0);
    }
    CHECK(losses[0].values[7] != losses[1].values[7]); /* it had gone */
}

int main(void) {
    log_set_level(LOG_ERROR);
    if (getenv("SEED") != NULL) {
        log_set_level(LOG_INFO);
    }
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = (uint8_t)((i * i / 7 + i / 3) % 32);
    }
    CHECK(data_parse(&data, text, sizeof text, "text") == STATUS_OK);
    if (getenv("SEED") == NULL) {
        TEST_RUN(departures_leave_the_rounds_before);
        TEST_RUN(nobody_is_left);
    }
    TEST_RUN(jobs_go_on);
    return 0;
}
