/* test_sim_golden.c - servers and workers together follow PyTorch's loss curve.
 *
 * The golden job of golden_gpt2.h (AdamW, global-norm clip, both learning-rate curves, 50 steps,
 * f32 both ways) through the real servers and workers: one worker with the whole batch must stay
 * within 1e-3 of PyTorch's losses at every step; so must two workers that share the batch by rows,
 * and workers that compute their rows in several smaller batches (--accumulate).
 */
#include "base/log.h"
#include "tests/golden_gpt2.h"
#include "tests/sim_cluster.h"
#include "tests/test.h"

static struct data data;

struct losses {
    float values[GOLDEN_STEPS];
    int64_t count;
};

static void note_loss(void *context, int64_t step, float loss) {
    struct losses *losses = context;
    CHECK_INT(step, losses->count + 1);
    losses->values[losses->count++] = loss;
}

static void set_weights(const struct trainer *trainer, float *weights) {
    golden_weights(trainer->plan, weights);
}

/* Sequence numbers run through the golden batches row by row. */
static void read_rows(void *context, uint64_t sequence, int64_t B, int32_t *tokens,
                      int32_t *targets) {
    int32_t all_tokens[GOLDEN_B * GOLDEN_T];
    int32_t all_targets[GOLDEN_B * GOLDEN_T];
    size_t row = (size_t)(sequence % GOLDEN_B) * GOLDEN_T;
    size_t bytes = (size_t)B * GOLDEN_T * sizeof(int32_t);
    (void)context;
    golden_batch((int64_t)(sequence / GOLDEN_B), all_tokens, all_targets);
    memcpy(tokens, all_tokens + row, bytes);
    memcpy(targets, all_targets + row, bytes);
}

static void run(uint32_t workers, int accumulate, const struct golden_curve *curve,
                struct losses losses[2]) {
    static struct sim sim;
    char options[512];
    (void)snprintf(
        options, sizeof options,
        "model=gpt2:%dx%dx%d vocab=%d seq-len=%d batch=%d accumulate=%d steps=%d lr=%.9g warmup=%d "
        "lr-min-ratio=%.9g beta1=0.9 beta2=0.95 eps=1e-8 weight-decay=0.1 clip=1 "
        "push=none pull=none block-values=1000",
        GOLDEN_LAYERS, GOLDEN_CHANNELS, GOLDEN_HEADS, GOLDEN_VOCAB, GOLDEN_T,
        GOLDEN_B / (int)workers / accumulate, accumulate, GOLDEN_STEPS, curve->lr,
        (int)curve->warmup, curve->lr_min_ratio);
    struct sim_config config = {.seed = 1,
                                .servers = 2,
                                .shards = 1,
                                .workers = workers,
                                .options = options,
                                .data = &data,
                                .first_weights = set_weights,
                                .read_batch = read_rows,
                                .loss = note_loss,
                                .loss_contexts = {&losses[0], &losses[1]}};
    sim_open(&sim, &config);
    sim_run(&sim);
    CHECK_INT(sim.coordinator.exit_code, 0);
    sim_close(&sim);
    for (uint32_t i = 0; i < workers; i++) {
        CHECK_INT(losses[i].count, GOLDEN_STEPS);
    }
}

/* The mean of the workers' losses is the batch's. */
static void follow_pytorch(uint32_t workers, int accumulate) {
    const struct golden_curve curves[] = {golden_constant(), golden_cosine()};
    for (int c = 0; c < 2; c++) {
        struct losses losses[2] = {0};
        run(workers, accumulate, &curves[c], losses);
        for (int64_t i = 0; i < GOLDEN_STEPS; i++) {
            float mean = (losses[0].values[i] + losses[1].values[i]) / (float)workers;
            CHECK_NEAR(mean, curves[c].losses[i], 1e-3);
        }
        CHECK(curves[c].losses[GOLDEN_STEPS - 1] < curves[c].losses[0] - 0.3F);
    }
}

static void one_worker_follows_pytorch(void) {
    follow_pytorch(1, 1);
}

static void two_workers_follow_pytorch(void) {
    follow_pytorch(2, 1);
}

static void smaller_batches_follow_pytorch(void) {
    follow_pytorch(1, 2);
    follow_pytorch(1, 4);
    follow_pytorch(2, 2);
}

int main(void) {
    uint8_t text[1024];
    log_set_level(LOG_ERROR);
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] = (uint8_t)(i % GOLDEN_VOCAB);
    }
    CHECK(data_parse(&data, text, sizeof text, "text") == STATUS_OK);
    TEST_RUN(one_worker_follows_pytorch);
    TEST_RUN(two_workers_follow_pytorch);
    TEST_RUN(smaller_batches_follow_pytorch);
    return 0;
}
