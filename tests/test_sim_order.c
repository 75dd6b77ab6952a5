/* test_sim_order.c - a sync step is of the same sequences however they are spread out.
 *
 * Four sequences a step, as W workers x N batches of B sequences for every W N B = 4, through the
 * real servers and workers on one text: what all workers read at each step must be the same set of
 * sequence numbers, and the mean losses and final weights must agree but for the order of sums
 * (plain SGD, whose steps are linear in the gradient, so that rounding stays rounding). A worker
 * whose targets are all --pad-token must learn nothing. What --compute, --recompute and
 * --accumulate-apart say must reach the model.
 */
#include "base/log.h"
#include "tests/sim_cluster.h"
#include "tests/test.h"

enum { STEPS = 6, GLOBAL = 4, SEQ_LEN = 16, VOCAB = 32, TEXT_BYTES = 4096, VALUES_MAX = 16384 };

static uint8_t text[TEXT_BYTES];
static struct data data;
static struct data_stream stream;
static uint64_t times_read[STEPS * GLOBAL]; /* of each sequence number */

struct run {
    double losses[STEPS]; /* sums over workers */
    float weights[VALUES_MAX];
};

static void note_loss(void *context, int64_t step, float loss) {
    struct run *run = context;
    run->losses[step - 1] += (double)loss;
}

static void read_counted(void *context, uint64_t sequence, int64_t B, int32_t *tokens,
                         int32_t *targets) {
    (void)context;
    for (uint64_t i = sequence; i < sequence + (uint64_t)B; i++) {
        CHECK(i < STEPS * GLOBAL);
        times_read[i]++;
    }
    data_stream_read(&stream, sequence, B, tokens, targets);
}

static void run_job(uint32_t workers, int accumulate, const char *more, struct run *run) {
    static struct sim sim;
    char options[512];
    (void)snprintf(options, sizeof options,
                   "model=gpt2:1x16x2 vocab=%d seq-len=%d batch=%d accumulate=%d steps=%d "
                   "optimizer=sgd lr=0.3 momentum=0.9 weight-decay=0 warmup=2 clip=1 push=none "
                   "pull=none block-values=300 %s",
                   VOCAB, SEQ_LEN, GLOBAL / (int)workers / accumulate, accumulate, STEPS, more);
    struct sim_config config = {.seed = workers,
                                .servers = 1,
                                .shards = 2,
                                .workers = workers,
                                .options = options,
                                .data = &data,
                                .read_batch = read_counted,
                                .loss = note_loss,
                                .loss_contexts = {run, run, run, run},
                                .weights = run->weights};
    *run = (struct run){0};
    memset(times_read, 0, sizeof times_read);
    sim_open(&sim, &config);
    sim_run(&sim);
    CHECK_INT(sim.coordinator.exit_code, 0);
    CHECK(sim.workers[0].trainer.plan->value_count <= VALUES_MAX);
    sim_close(&sim);
    for (int i = 0; i < STEPS * GLOBAL; i++) {
        CHECK_INT(times_read[i], 1);
    }
}

static void the_split_does_not_matter(void) {
    static const struct {
        uint32_t workers;
        int accumulate;
    } splits[] = {{2, 1}, {4, 1}, {1, 2}, {1, 4}, {2, 2}};
    static struct run whole;
    static struct run split;
    run_job(1, 1, "", &whole);
    CHECK(whole.losses[STEPS - 1] < whole.losses[0] - 0.1);
    for (size_t s = 0; s < sizeof splits / sizeof splits[0]; s++) {
        uint32_t workers = splits[s].workers;
        printf("%u workers, %d batches each\n", workers, splits[s].accumulate);
        fflush(stdout);
        run_job(workers, splits[s].accumulate, "", &split);
        for (int i = 0; i < STEPS; i++) {
            CHECK_NEAR(split.losses[i] / workers, whole.losses[i], 2e-6);
        }
        for (size_t i = 0; i < VALUES_MAX; i++) {
            CHECK_NEAR(split.weights[i], whole.weights[i], 2e-6);
        }
    }
}

/* Another text, every target of which is token 0. */
static void padding_is_not_learnt(void) {
    static struct run padded;
    static struct run other;
    static uint8_t zeros[TEXT_BYTES];
    struct data kept = data;
    CHECK(data_parse(&data, zeros, sizeof zeros, "zeros") == STATUS_OK);
    run_job(2, 2, "pad-token=0", &padded);
    for (int i = 0; i < STEPS; i++) {
        CHECK(padded.losses[i] == 0);
    }
    run_job(1, 1, "pad-token=0 lr=0", &other);
    CHECK(memcmp(padded.weights, other.weights, sizeof other.weights) == 0);
    run_job(1, 1, "pad-token=1", &other);
    CHECK(other.losses[STEPS - 1] < other.losses[0] - 0.1);
    data = kept;
}

static void padding_is_masked(void) {
    struct job job = {.batch = 2, .seq_len = 3, .pad_token = 7};
    int32_t targets[7] = {7, 1, 7, 0, 6, 7, 7};
    static const int32_t masked[7] = {-1, 1, -1, 0, 6, -1, 7}; /* the last is beyond the batch */
    struct trainer trainer = {.job = &job, .targets = targets};
    trainer_mask_padding(&trainer);
    CHECK(memcmp(targets, masked, sizeof masked) == 0);
    job.pad_token = -1;
    trainer_mask_padding(&trainer);
    CHECK(memcmp(targets, masked, sizeof masked) == 0);
}

/* --compute, --recompute and --accumulate-apart, as a worker opens its model with them. */
static void local_options_reach_the_model(void) {
    static const struct {
        const char *compute, *recompute;
        enum compute_type type;
        enum model_recompute how;
        int64_t every;
    } cases[] = {{"f32", "none", COMPUTE_F32, MODEL_RECOMPUTE_NONE, 0},
                 {"bf16", "attention", COMPUTE_BF16, MODEL_RECOMPUTE_ATTENTION, 0},
                 {"tf32", "none", COMPUTE_TF32, MODEL_RECOMPUTE_NONE, 0},
                 {"f32", "every:3", COMPUTE_F32, MODEL_RECOMPUTE_EVERY, 3}};
    struct job job = {.batch = 5, .seq_len = 9};
    struct model_options options;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)snprintf(job.compute, sizeof job.compute, "%s", cases[i].compute);
        (void)snprintf(job.recompute, sizeof job.recompute, "%s", cases[i].recompute);
        trainer_model_options(&job, &options);
        CHECK_INT(options.type, cases[i].type);
        CHECK_INT(options.recompute, cases[i].how);
        CHECK_INT(options.recompute_every, cases[i].every);
        CHECK(options.B == 5 && options.T == 9 && options.training);
    }
    (void)snprintf(job.compute, sizeof job.compute, "auto");
    trainer_model_options(&job, &options);
    CHECK_INT(options.type, linear_bf16_is_fast() ? COMPUTE_BF16 : COMPUTE_F32);
    CHECK(!options.apart);
    (void)snprintf(job.device, sizeof job.device, "cuda:1");
    job.accumulate_apart = true;
    trainer_model_options(&job, &options);
    CHECK(options.apart);
    CHECK_INT(options.type, COMPUTE_BF16);
}

int main(void) {
    log_set_level(LOG_ERROR);
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = (uint8_t)(i % 3 == 0 ? i / 3 * 7 % VOCAB : 5);
    }
    CHECK(data_parse(&data, text, sizeof text, "text") == STATUS_OK);
    CHECK(data_stream_open(&stream, &data, 0, data.count, SEQ_LEN, 1) == STATUS_OK);
    TEST_RUN(the_split_does_not_matter);
    TEST_RUN(padding_is_masked);
    TEST_RUN(padding_is_not_learnt);
    TEST_RUN(local_options_reach_the_model);
    return 0;
}
