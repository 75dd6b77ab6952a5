/* test_stepper.c - one worker's replica (worker/stepper.h), block by block, without a network.
 *
 * stepper_push() gives the values themselves for gradients, and weight * (beta1 m + (1 - beta1)
 * clip g) where first moments travel, against a twin in double. stepper_apply() steps by the
 * optimizer's plain twin on what the payload decodes to; for 1bit-adam the mean becomes the first
 * moment and the weights follow AdamW's formula with the v of the last gradient. A payload that is
 * cut at any byte, longer, or of an unknown codec is refused and changes nothing that a later step
 * shows; one of 0 bytes leaves the round out.
 */
#include "base/random.h"
#include "compression/decoder.h"
#include "compression/push_codec.h"
#include "kernels/optimizer.h"
#include "proto/codec_id.h"
#include "tests/test.h"
#include "worker/stepper.h"

enum { ROWS = 6, COLS = 8, MATRIX = ROWS * COLS, BIAS = 5, VALUES = MATRIX + BIAS, WIRE = 1024 };

struct bench {
    struct job job;
    struct plan plan;
    struct push_codec *push;
    struct stepper stepper;
    struct random_stream random;
    float weights[VALUES], values[VALUES];
};

static void bench_open(struct bench *bench, const char *optimizer, const char *push) {
    static const struct tensor tensors[2] = {
        {.name = "w", .dims = 2, .shape = {ROWS, COLS}, .decay = true},
        {.name = "b", .dims = 1, .shape = {BIAS}}};
    struct options options;
    options_init(&options, job_table, job_table_count, &bench->job);
    (void)snprintf(bench->job.optimizer, sizeof bench->job.optimizer, "%s", optimizer);
    (void)snprintf(bench->job.push, sizeof bench->job.push, "%s", push);
    (void)snprintf(bench->job.push_policy, sizeof bench->job.push_policy, "all");
    bench->job.steps = 20;
    bench->job.warmup = 3;
    bench->job.lr = 0.01;
    bench->job.dense_warmup = 2;
    struct plan_options planned = job_plan_options(&bench->job, 1);
    CHECK_INT(plan_build(&bench->plan, tensors, 2, &planned), STATUS_OK);
    CHECK_INT(bench->plan.block_count, 2);
    CHECK_INT(push_codec_open(&bench->job, &bench->plan, 1, PUSH_CODEC_ALL, &bench->push),
              STATUS_OK);
    CHECK_INT(stepper_init(&bench->stepper, &bench->job, &bench->plan, bench->push), STATUS_OK);
    random_open(&bench->random, 7, RANDOM_SIMULATOR, 0);
    for (int i = 0; i < VALUES; i++) {
        bench->weights[i] = random_normal(&bench->random);
    }
}

static void bench_close(struct bench *bench) {
    stepper_free(&bench->stepper);
    push_codec_close(bench->push);
    plan_free(&bench->plan);
}

static void draw(struct bench *bench) {
    for (int i = 0; i < VALUES; i++) {
        bench->values[i] = 0.1F * random_normal(&bench->random);
    }
}

static const struct plan_block *block_of(const struct bench *bench, uint64_t id) {
    return &bench->plan.blocks[id];
}

/* The mean of round `seq` in f32. */
static void apply(struct bench *bench, uint64_t id, uint64_t seq, const float *mean) {
    const struct plan_block *block = block_of(bench, id);
    CHECK_INT(stepper_apply(&bench->stepper, id, seq, CODEC_F32, (const uint8_t *)mean,
                            block->count * sizeof(float), bench->weights + block->offset),
              STATUS_OK);
}

static struct optimizer_update update_of(const struct bench *bench, uint64_t id, uint64_t seq,
                                         int64_t step) {
    return (struct optimizer_update){
        .lr = (float)job_learning_rate(&bench->job, (int64_t)seq - 1),
        .decay = (float)(bench->job.weight_decay * block_of(bench, id)->decay),
        .grad_scale = 1,
        .step = step};
}

/* Round 3 is left out: the optimizer's own count of steps does not move, the rate does. */
static void gradients_are_the_optimizers_step(void) {
    static const char *const names[] = {"worker:adamw", "worker:sgd", "worker:lion",
                                        "worker:adagrad"};
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        static struct bench bench;
        static float twin[VALUES];
        static _Alignas(64) uint8_t states[2][4096];
        bench_open(&bench, names[k], "none");
        memset(states, 0, sizeof states);
        memcpy(twin, bench.weights, sizeof twin);
        int64_t step = 0;
        for (uint64_t seq = 1; seq <= 6; seq++) {
            draw(&bench);
            step += seq == 3 ? 0 : 1;
            for (uint64_t id = 0; id < 2; id++) {
                const struct plan_block *block = block_of(&bench, id);
                const float *mean = bench.values + block->offset;
                CHECK(stepper_push(&bench.stepper, id, seq, 1, 1, mean) == mean);
                if (seq == 3) {
                    CHECK_INT(stepper_apply(&bench.stepper, id, seq, CODEC_F32, NULL, 0,
                                            bench.weights + block->offset),
                              STATUS_OK);
                    continue;
                }
                const struct optimizer_piece piece = {.rows = (int64_t)block->rows,
                                                      .cols = (int64_t)block->cols};
                struct optimizer_update update = update_of(&bench, id, seq, step);
                apply(&bench, id, seq, mean);
                optimizer_step_ref(&bench.stepper.inner.optimizer, &update, &piece,
                                   twin + block->offset, states[id], mean, NULL);
            }
            CHECK(memcmp(twin, bench.weights, sizeof twin) == 0);
        }
        bench_close(&bench);
    }
}

/* AdamW in double for 2 rounds, then the mean is the first moment and v stays. */
struct moments {
    double weights[VALUES], m[VALUES], v[VALUES];
    double correction;
    int64_t steps, gradients;
};

static void moments_step(struct moments *twin, const struct bench *bench, uint64_t seq) {
    const struct job *job = &bench->job;
    double lr = job_learning_rate(job, (int64_t)seq - 1);
    bool gradient = seq <= (uint64_t)job->dense_warmup;
    twin->steps++;
    if (gradient) {
        twin->gradients++;
        twin->correction = sqrt(1 - pow(job->beta2, (double)twin->gradients));
    }
    double spread = 1 - pow(job->beta1, (double)twin->steps);
    for (int i = 0; i < VALUES; i++) {
        double mean = (double)bench->values[i];
        double decay = i < MATRIX ? job->weight_decay : 0;
        twin->m[i] = gradient ? job->beta1 * twin->m[i] + (1 - job->beta1) * mean : mean;
        twin->v[i] =
            gradient ? job->beta2 * twin->v[i] + (1 - job->beta2) * mean * mean : twin->v[i];
        twin->weights[i] *= 1 - lr * decay;
        twin->weights[i] -=
            lr * twin->m[i] / spread / (sqrt(twin->v[i]) / twin->correction + job->eps);
    }
}

/* What is pushed in round `seq`, of both blocks. */
static void check_pushed(struct bench *bench, const struct moments *twin, uint64_t seq) {
    const double weight = 0.75;
    const double clip = 0.5;
    double beta1 = bench->job.beta1;
    for (uint64_t id = 0; id < 2; id++) {
        const struct plan_block *block = block_of(bench, id);
        const float *values = bench->values + block->offset;
        const float *pushed = stepper_push(&bench->stepper, id, seq, weight, (float)clip, values);
        CHECK((pushed == values) == (seq <= (uint64_t)bench->job.dense_warmup));
        for (uint64_t i = 0; i < block->count && pushed != values; i++) {
            double moment = weight * beta1 * twin->m[block->offset + i] +
                            (1 - beta1) * clip * (double)values[i];
            CHECK_NEAR(pushed[i], moment, 1e-7);
        }
    }
}

/* `missing`: a round that is left out; 0: none. */
static void check_moments(uint64_t missing) {
    static struct bench bench;
    static struct moments twin;
    memset(&twin, 0, sizeof twin);
    bench_open(&bench, "worker:1bit-adam", "onebit,ef");
    CHECK_INT(bench.stepper.momentum_after, 2);
    for (int i = 0; i < VALUES; i++) {
        twin.weights[i] = (double)bench.weights[i];
    }
    for (uint64_t seq = 1; seq <= 8; seq++) {
        draw(&bench);
        check_pushed(&bench, &twin, seq);
        if (seq == missing) {
            CHECK_INT(stepper_apply(&bench.stepper, 0, seq, CODEC_F32, NULL, 0, bench.weights),
                      STATUS_OK);
            CHECK_INT(
                stepper_apply(&bench.stepper, 1, seq, CODEC_F32, NULL, 0, bench.weights + MATRIX),
                STATUS_OK);
            continue;
        }
        for (uint64_t id = 0; id < 2; id++) {
            apply(&bench, id, seq, bench.values + block_of(&bench, id)->offset);
        }
        moments_step(&twin, &bench, seq);
        for (int i = 0; i < VALUES; i++) {
            CHECK_NEAR(bench.weights[i], twin.weights[i], 2e-6 * (1 + fabs(twin.weights[i])));
        }
    }
    bench_close(&bench);
}

static void means_are_first_moments(void) {
    check_moments(0);
    check_moments(2); /* v is of one gradient */
    check_moments(5);
}

/* Every prefix of every codec's payload, and one byte more. */
static void check_prefixes(struct bench *bench, const struct encoder_result *result,
                           const uint8_t *wire, uint64_t seq) {
    static float before[VALUES];
    memcpy(before, bench->weights, sizeof before);
    for (size_t bytes = 1; bytes <= result->bytes + 1; bytes++) {
        uint8_t *cut = malloc(bytes); /* its end is known to the sanitizer */
        CHECK(cut != NULL);
        memcpy(cut, wire, bytes);
        enum status status =
            stepper_apply(&bench->stepper, 0, seq, result->codec, cut, bytes, bench->weights);
        free(cut);
        if (bytes == result->bytes) {
            CHECK_INT(status, STATUS_OK);
            CHECK(memcmp(before, bench->weights, sizeof before) != 0);
            memcpy(bench->weights, before, sizeof before);
        } else {
            CHECK_INT(status, STATUS_CORRUPT);
            CHECK(memcmp(before, bench->weights, sizeof before) == 0);
        }
    }
    CHECK_INT(stepper_apply(&bench->stepper, 0, seq, 200, wire, result->bytes, bench->weights),
              STATUS_CORRUPT);
    CHECK(memcmp(before, bench->weights, sizeof before) == 0);
}

static void damaged_means_change_nothing(void) {
    static const char *const texts[] = {"none",      "bf16",        "int8",          "int4:sr,had",
                                        "onebit,ef", "topk:0.2,ef", "powersgd:1,ef", "signsgd",
                                        "randk:0.2", "int8+zstd"};
    for (size_t k = 0; k < sizeof texts / sizeof texts[0]; k++) {
        static struct bench bench;
        static struct bench twin; /* is not shown damaged ones */
        struct encoder_result result;
        uint8_t wire[WIRE] = {0};
        bench_open(&bench, "worker:sgd", texts[k]);
        bench_open(&twin, "worker:sgd", texts[k]);
        CHECK(push_codec_bound(bench.push, 0) < WIRE);
        draw(&bench);
        push_codec_encode(bench.push, 0, 9, bench.values, wire, &result); /* past the schedule */
        check_prefixes(&bench, &result, wire, 1);
        CHECK_INT(
            stepper_apply(&twin.stepper, 0, 1, result.codec, wire, result.bytes, twin.weights),
            STATUS_OK);
        memcpy(bench.weights, twin.weights, sizeof twin.weights);
        draw(&bench);
        apply(&bench, 0, 2, bench.values);
        apply(&twin, 0, 2, bench.values);
        CHECK(memcmp(bench.weights, twin.weights, sizeof twin.weights) == 0);
        bench_close(&bench);
        bench_close(&twin);
    }
}

int main(void) {
    TEST_RUN(gradients_are_the_optimizers_step);
    TEST_RUN(means_are_first_moments);
    TEST_RUN(damaged_means_change_nothing);
    return 0;
}
