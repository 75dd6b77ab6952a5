/* Proves which optimizer step a shard makes of a push or a round: weights, staleness, delay
 * compensation, every optimizer and moment type, the outer optimizers of local modes; and how the
 * discipline changes, after a sync warm-up or by order.
 *
 * The oracle is a plain loop here over the optimizers' reference versions (_ref), with a state of
 * its own for each block: the shard's weights and state must have the same bits after every step.
 */
#include "base/log.h"
#include "tests/shard_rig.h"
#include "tests/test.h"

#include <math.h>

enum { STATE_BYTES = 1024 };

/* The shard's blocks as they must be. */
struct model {
    struct optimizer optimizer;
    float weights[RIG_BLOCKS][RIG_VALUES];
    uint64_t updates[RIG_BLOCKS];
    _Alignas(64) uint8_t state[RIG_BLOCKS][STATE_BYTES];
};

static void model_open(struct model *model, const struct rig *rig, const struct twin *twin) {
    memset(model, 0, sizeof *model);
    memcpy(model->weights, twin->weights, sizeof model->weights);
    model->optimizer = (struct optimizer){.beta1 = (float)rig->job.beta1,
                                          .beta2 = (float)rig->job.beta2,
                                          .eps = (float)rig->job.eps,
                                          .momentum = (float)rig->job.momentum};
    CHECK(optimizer_find(rig->job.optimizer, &model->optimizer.kind));
    CHECK(moment_find(rig->job.moments, &model->optimizer.moments));
}

struct step {
    double lr;
    float scale;
    const float *grad, *base; /* base: of delay compensation by copies */
    uint32_t staleness;
};

static void model_step(struct model *model, const struct rig *rig, uint64_t id,
                       const struct step *step) {
    _Alignas(64) static uint8_t scratch[65536];
    const struct plan_block *block = &rig->plan.blocks[id];
    struct optimizer_piece piece = update_piece(block);
    struct optimizer_update update = {.lr = (float)(step->lr * block->rate),
                                      .decay = (float)(rig->job.weight_decay * block->decay),
                                      .grad_scale = step->scale,
                                      .step = (int64_t)++model->updates[id]};
    float grad[RIG_VALUES];
    memcpy(grad, step->grad, sizeof grad);
    CHECK(optimizer_state_bytes(&model->optimizer, &piece) <= STATE_BYTES);
    CHECK(optimizer_scratch_bytes(&model->optimizer, &piece) <= sizeof scratch);
    if (rig->job.delay_comp > 0) {
        optimizer_delay_compensate_ref(&model->optimizer, &update, &piece, model->weights[id],
                                       model->state[id], step->base, (float)rig->job.delay_comp,
                                       step->staleness, grad, scratch);
    }
    optimizer_step_ref(&model->optimizer, &update, &piece, model->weights[id], model->state[id],
                       grad, scratch);
}

static void model_compare(const struct model *model, const struct rig *rig) {
    for (uint64_t id = 0; id < RIG_BLOCKS; id++) {
        const struct shard_block *block = rig_block(rig, id);
        struct optimizer_piece piece = update_piece(block->plan);
        size_t state = optimizer_state_bytes(&model->optimizer, &piece);
        CHECK(memcmp(block->weights, model->weights[id], block->plan->count * sizeof(float)) == 0);
        CHECK(state == 0 || memcmp(block->state, model->state[id], state) == 0);
        CHECK_INT(block->updates, model->updates[id]);
    }
}

/* One worker's whole push in a per-push mode. */
static void push_all(struct rig *rig, uint32_t rank, uint64_t seq, uint64_t version,
                     const float *grad, double sum) {
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        rig_push(rig, rank, block, seq, version, grad);
    }
    rig_commit(rig, rank, seq, sum);
    rig_poll(rig);
    fake_channel_finish_all(&rig->fake);
    rig_poll(rig);
}

static void step_all(struct model *model, const struct rig *rig, const struct step *step) {
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        model_step(model, rig, block, step);
    }
}

static void start(struct rig *rig, struct model *model) {
    struct twin twin;
    rig_open(rig, 1, 0);
    rig_start(rig, &twin);
    model_open(model, rig, &twin);
}

/* ---- optimizers ---- */

static void test_optimizers_and_moments(void) {
    static const char *const kinds[] = {"sgd",  "nesterov", "adagrad",   "adamw",
                                        "lion", "lamb",     "adafactor", "muon"};
    static const char *const types[] = {"f32", "bf16", "int8"};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        for (int t = 0; t < 3; t++) {
            static struct rig rig;
            static struct model model;
            struct random_stream random;
            float grad[RIG_VALUES];
            random_open(&random, 5, RANDOM_SIMULATOR, k);
            rig_prepare(&rig, "sync", 1);
            (void)snprintf(rig.job.optimizer, sizeof rig.job.optimizer, "%s", kinds[k]);
            (void)snprintf(rig.job.moments, sizeof rig.job.moments, "%s", types[t]);
            (void)snprintf(rig.job.rates, sizeof rig.job.rates, "b=0.25");
            (void)snprintf(rig.job.decays, sizeof rig.job.decays, "w=3");
            rig.job.momentum = 0.9;
            rig.job.weight_decay = 0.01;
            rig.job.lr = 0.01;
            if (strcmp(kinds[k], "muon") == 0 || strcmp(kinds[k], "lamb") == 0) {
                continue; /* whole matrices: below */
            }
            start(&rig, &model);
            for (uint64_t round = 1; round <= 6; round++) {
                rig_gradient(&random, grad);
                for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
                    rig_push(&rig, 0, block, round, round - 1, grad);
                }
                rig_poll(&rig);
                (void)rig_note(&rig, SHARD_REPORT);
                rig_verdict(&rig, round, false, 0.5F);
                rig_poll(&rig);
                step_all(&model, &rig, &(struct step){.lr = 0.01, .scale = 0.5F, .grad = grad});
                model_compare(&model, &rig);
                fake_channel_finish_all(&rig.fake);
            }
            rig_close(&rig);
        }
    }
}

/* Muon needs the whole of a hidden matrix: the plan makes it one block, and the shard's scratch is
 * enough (the sanitizer build sees where not). */
static void test_whole_matrices(void) {
    static const char *const kinds[] = {"muon", "lamb"};
    for (int k = 0; k < 2; k++) {
        static const struct tensor tensor = {.name = "w", .dims = 2, .shape = {24, 16}};
        struct rig *rig = memory_zeroed(1, sizeof *rig);
        uint64_t sessions[1] = {1000};
        float weights[384], grad[384];
        struct random_stream random;
        random_open(&random, 6, RANDOM_SIMULATOR, 0);
        rig_prepare(rig, "sync", 1);
        (void)snprintf(rig->job.optimizer, sizeof rig->job.optimizer, "%s", kinds[k]);
        rig->job.momentum = 0.9;
        struct plan_options options = job_plan_options(&rig->job, 1);
        options.block_values = 64;
        CHECK_INT(plan_build(&rig->plan, &tensor, 1, &options), STATUS_OK);
        CHECK_INT(rig->plan.block_count, 1);
        fake_channel_open(&rig->fake);
        CHECK_INT(shard_init(&rig->shard, &(struct shard_config){.job = &rig->job,
                                                                 .plan = &rig->plan,
                                                                 .job_id = RIG_JOB,
                                                                 .epoch = RIG_EPOCH,
                                                                 .channel = &rig->fake.channel,
                                                                 .sessions = sessions}),
                  STATUS_OK);
        struct shard_block *block = &rig->shard.blocks[0];
        struct optimizer_piece piece = update_piece(block->plan);
        uint8_t *state = memory_zeroed(optimizer_state_bytes(&rig->shard.optimizer, &piece), 1);
        uint8_t *scratch =
            memory_zeroed(optimizer_scratch_bytes(&rig->shard.optimizer, &piece) + 64, 1);
        for (int i = 0; i < 384; i++) {
            weights[i] = block->weights[i] = random_normal(&random);
        }
        for (int64_t step = 1; step <= 3; step++) {
            for (int i = 0; i < 384; i++) {
                grad[i] = block->sum[i] = random_normal(&random);
            }
            update_block(&rig->shard, block, &(struct update){.grad_scale = 0.5F, .rate = 1});
            struct optimizer_update update = {.lr = 0.5F, .grad_scale = 0.5F, .step = step};
            optimizer_step_ref(&rig->shard.optimizer, &update, &piece, weights, state, grad,
                               scratch);
            CHECK(memcmp(block->weights, weights, sizeof weights) == 0);
        }
        rig_close(rig);
        free(state);
        free(scratch);
        free(rig);
    }
}

/* The servers' step after local steps: kind, rate and momentum as asked, no decay, no schedule. */
static void test_outer_optimizers(void) {
    static const struct {
        const char *mode, *outer;
        double outer_lr;
        const char *kind;
        double lr, momentum;
    } table[] = {
        {"local:4", "auto", 0, "sgd", 1, 0},
        {"diloco:4", "auto", 0, "nesterov", 0.7, 0.9},
        {"diloco:4", "average", 0, "sgd", 1, 0},
        {"diloco:4", "sgd", 0, "sgd", 1, 0.9},
        {"local:4", "nesterov", 0.4, "nesterov", 0.4, 0.9},
        {"local:4", "adamw", 0, "adamw", 0.001, 0},
        {"local:4", "lion", 0.01, "lion", 0.01, 0},
        {"diloco:4", "adagrad", 0, "adagrad", 0.001, 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        static struct rig rig;
        static struct model model;
        struct twin twin;
        rig_prepare(&rig, table[i].mode, 2);
        (void)snprintf(rig.job.outer, sizeof rig.job.outer, "%s", table[i].outer);
        (void)snprintf(rig.job.schedule, sizeof rig.job.schedule, "cosine");
        rig.job.warmup = 20;
        rig.job.outer_lr = table[i].outer_lr;
        rig.job.weight_decay = 0.5;
        rig.job.momentum = 0.123; /* the workers' */
        rig_open(&rig, 1, 0);
        rig_start(&rig, &twin);
        model_open(&model, &rig, &twin);
        CHECK(optimizer_find(table[i].kind, &model.optimizer.kind));
        model.optimizer.momentum = (float)table[i].momentum;
        rig.job.weight_decay = 0; /* for the model: the shard must not use it */
        for (uint64_t round = 1; round <= 3; round++) {
            float sum[RIG_VALUES];
            rig_push_report(&rig, 0, round);
            rig_push_report(&rig, 1, round);
            (void)rig_note(&rig, SHARD_REPORT);
            rig_verdict(&rig, round, false, 1);
            rig_poll(&rig);
            for (int v = 0; v < RIG_VALUES; v++) {
                sum[v] = rig_grads[0][v] + rig_grads[1][v];
            }
            step_all(&model, &rig, &(struct step){.lr = table[i].lr, .scale = 0.5F, .grad = sum});
            model_compare(&model, &rig);
            rig_see_all(&rig);
        }
        rig_close(&rig);
    }
}

/* ---- pushes by themselves ---- */

/* The payload is the gradient times the weight; its norm is the payload's over the weight. */
static void test_weighted_pushes(void) {
    static const double weights[] = {1, 0.5, 2, 0, 0.125};
    static struct rig rig;
    static struct model model;
    rig_prepare(&rig, "async", 2);
    rig.job.clip = 3;
    rig.job.lr = 0.25;
    start(&rig, &model);
    for (uint64_t seq = 1; seq <= 5; seq++) {
        double weight = weights[seq - 1];
        double norm = 8; /* of the payload */
        rig.weight = weight;
        push_all(&rig, 0, seq, seq - 1, rig_grads[0], norm * norm);
        const struct frame *answer = &rig.fake.sends[rig.fake.send_count - 1].frame;
        CHECK_INT(answer->block_version, seq);
        CHECK_NEAR(answer->scalar, weight, 0);
        if (weight > 0) {
            double factor = 3 / (norm / weight + 1e-6);
            float clip = factor < 1 ? (float)factor : 1;
            step_all(&model, &rig,
                     &(struct step){.lr = 0.25 * weight / 2,
                                    .scale = (float)((double)clip / weight),
                                    .grad = rig_grads[0]});
        }
        model_compare(&model, &rig);
    }
    CHECK_INT(rig.shard.counters.skipped, RIG_BLOCKS); /* weight 0: answered, and that is all */
    rig_close(&rig);
}

/* Two workers: one update of staleness is usual. After one of them has gone, none is. */
static void test_staleness_scale(void) {
    static const char *const scales[] = {"none", "inverse", "exp"};
    for (int k = 0; k < 3; k++) {
        static struct rig rig;
        static struct model model;
        rig_prepare(&rig, "async", 2);
        (void)snprintf(rig.job.staleness_scale, sizeof rig.job.staleness_scale, "%s", scales[k]);
        start(&rig, &model);
        for (uint64_t seq = 1; seq <= 8; seq++) {
            uint64_t staleness = seq / 2;
            uint32_t living = seq > 4 ? 1 : 2;
            if (seq == 5) {
                rig_gone(&rig, 1);
                rig_poll(&rig);
            }
            push_all(&rig, 0, seq, seq - 1 - staleness, rig_grads[1], 1);
            double excess = (double)staleness - (double)(living - 1);
            excess = excess > 0 ? excess : 0;
            double factor = k == 1   ? living / (living + excess)
                            : k == 2 ? exp(-excess / living)
                                     : 1;
            step_all(&model, &rig,
                     &(struct step){.lr = 0.5 * factor / 2, .scale = 1, .grad = rig_grads[1]});
            model_compare(&model, &rig);
        }
        rig_close(&rig);
    }
}

/* Staler pushes than allowed are dropped: answered with weight 0, and the version stays. */
static void test_max_staleness(void) {
    static struct rig rig;
    static struct model model;
    rig_prepare(&rig, "async", 2);
    rig.job.max_staleness = 2;
    start(&rig, &model);
    for (uint64_t seq = 1; seq <= 4; seq++) {
        push_all(&rig, 0, seq, seq - 1, rig_grads[0], 1);
        step_all(&model, &rig, &(struct step){.lr = 0.25, .scale = 1, .grad = rig_grads[0]});
    }
    rig_see_all(&rig);
    push_all(&rig, 1, 1, 1, rig_grads[1], 1); /* 3 behind */
    model_compare(&model, &rig);
    rig_expect_answers(&rig, 1, 1, 4, 0);
    rig_see_all(&rig);
    push_all(&rig, 1, 2, 2, rig_grads[1], 1); /* 2 behind */
    step_all(&model, &rig, &(struct step){.lr = 0.25, .scale = 1, .grad = rig_grads[1]});
    model_compare(&model, &rig);
    rig_expect_answers(&rig, 1, 2, 5, 1);
    CHECK_INT(rig.shard.counters.dropped, RIG_BLOCKS);
    CHECK_INT(rig.shard.ranks[1].dropped, 1);
    CHECK_INT(rig.shard.ranks[1].counted, 1);
    CHECK_INT(rig.shard.ranks[1].staleness_sum, 5);
    CHECK_INT(fake_channel_taken(&rig.fake), 0);
    rig_close(&rig);
}

/* By copies: the base is what was sent to the worker; by moments: it is estimated. */
static void test_delay_compensation(void) {
    static const char *const bases[] = {"copies", "moments"};
    static const char *const kinds[] = {"sgd", "adamw"};
    for (int k = 0; k < 4; k++) {
        static struct rig rig;
        static struct model model;
        float sent[RIG_BLOCKS][RIG_VALUES];
        bool copies = k % 2 == 0;
        double lr = 0.01 / (k / 2 == 0 ? 2 : sqrt(2)); /* of one of two pushes */
        rig_prepare(&rig, "async", 2);
        (void)snprintf(rig.job.optimizer, sizeof rig.job.optimizer, "%s", kinds[k / 2]);
        (void)snprintf(rig.job.delay_base, sizeof rig.job.delay_base, "%s", bases[k % 2]);
        rig.job.delay_comp = 0.5;
        rig.job.momentum = 0.5;
        rig.job.lr = 0.01;
        start(&rig, &model);
        CHECK((rig_block(&rig, 0)->lanes[0].copy != NULL) == copies);
        memcpy(sent, model.weights, sizeof sent); /* to worker 1 */
        for (uint64_t seq = 1; seq <= 3; seq++) {
            float base[RIG_BLOCKS][RIG_VALUES];
            memcpy(base, model.weights, sizeof base);
            push_all(&rig, 0, seq, seq - 1, rig_grads[3], 1);
            for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
                model_step(&model, &rig, block,
                           &(struct step){.lr = lr,
                                          .scale = 1,
                                          .grad = rig_grads[3],
                                          .base = copies ? base[block] : NULL});
            }
            model_compare(&model, &rig);
        }
        push_all(&rig, 1, 1, 0, rig_grads[3], 1);
        for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
            model_step(&model, &rig, block,
                       &(struct step){.lr = lr,
                                      .scale = 1,
                                      .grad = rig_grads[3],
                                      .base = copies ? sent[block] : NULL,
                                      .staleness = 3});
        }
        model_compare(&model, &rig);
        /* After a lost answer the copy may be newer than what the worker had: then estimated. */
        push_all(&rig, 1, 2, 2, rig_grads[3], 1);
        for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
            model_step(&model, &rig, block,
                       &(struct step){.lr = lr, .scale = 1, .grad = rig_grads[3], .staleness = 2});
        }
        model_compare(&model, &rig);
        rig_close(&rig);
    }
}

/* What single pushes are stepped with is not what rounds are: its moments, its rate, and decay such
 * that a step's worth of pushes decays as a step; against the optimizer with these numbers. */
static void test_push_recipe(void) {
    static struct rig rig;
    static struct model model;
    rig_prepare(&rig, "async", 3);
    (void)snprintf(rig.job.optimizer, sizeof rig.job.optimizer, "adamw");
    rig.job.weight_decay = 0.1;
    rig.job.lr = 0.01;
    start(&rig, &model);
    rig.job.push_momentum = 0.25;
    rig.job.push_beta2 = 0; /* beta2^(1/3) */
    model.optimizer.beta1 = 0.25F;
    model.optimizer.beta2 = (float)pow(rig.job.beta2, 1.0 / 3.0);
    for (uint64_t seq = 1; seq <= 4; seq++) {
        push_all(&rig, 0, seq, seq - 1, rig_grads[2], 1);
        rig.job.weight_decay = 0.1 / sqrt(3); /* model_step() takes it from there */
        step_all(&model, &rig,
                 &(struct step){.lr = 0.01 / sqrt(3), .scale = 1, .grad = rig_grads[2]});
        rig.job.weight_decay = 0.1;
        for (uint64_t id = 0; id < RIG_BLOCKS; id++) {
            for (uint64_t i = 0; i < rig.plan.blocks[id].count; i++) {
                CHECK_NEAR(rig_block(&rig, id)->weights[i], model.weights[id][i], 1e-6);
            }
        }
    }
    rig_close(&rig);
}

/* ---- other disciplines in the middle ---- */

/* Rounds 1 and 2 need both workers; from report 3 on each push is an update by itself, at the
 * schedule's step 2. */
static void test_sync_warmup(void) {
    static struct rig rig;
    static struct model model;
    rig_prepare(&rig, "async", 2);
    (void)snprintf(rig.job.schedule, sizeof rig.job.schedule, "linear");
    rig.job.sync_warmup = 2;
    rig.job.steps = 10;
    start(&rig, &model);
    for (uint64_t round = 1; round <= 2; round++) {
        float sum[RIG_VALUES];
        rig_push_report(&rig, 1, round);
        rig_expect_silence(&rig);
        rig_push_report(&rig, 0, round);
        (void)rig_note(&rig, SHARD_REPORT);
        rig_verdict(&rig, round, false, 1);
        rig_poll(&rig);
        for (int v = 0; v < RIG_VALUES; v++) {
            sum[v] = rig_grads[0][v] + rig_grads[1][v];
        }
        step_all(&model, &rig,
                 &(struct step){.lr = job_learning_rate(&rig.job, (int64_t)round - 1),
                                .scale = 0.5F,
                                .grad = sum});
        model_compare(&model, &rig);
        rig_see_all(&rig);
    }
    for (uint64_t push = 0; push < 6; push++) {
        push_all(&rig, 0, 3 + push, 2 + push, rig_grads[2], 1);
        step_all(&model, &rig,
                 &(struct step){.lr = job_learning_rate(&rig.job, 2 + (int64_t)push / 2) / 2,
                                .scale = 1,
                                .grad = rig_grads[2]});
        model_compare(&model, &rig);
    }
    rig_expect_silence(&rig);
    rig_close(&rig);
}

static void change(struct rig *rig, const char *mode) {
    struct shard_order order = {.kind = SHARD_CHANGE};
    CHECK_INT(discipline_of_mode(mode, rig->job.workers, &order.discipline), STATUS_OK);
    rig_order(rig, &order);
    rig_poll(rig);
    (void)rig_note(rig, SHARD_CHANGED);
    rig_expect_silence(rig);
}

/* async, of which worker 0 makes more steps than worker 1, then sync, then async again: rounds are
 * numbered from 1 whatever the workers' own numbers, the schedule goes on where it was, and a
 * worker that has made all its reports is not waited for. */
static void test_changes(void) {
    static struct rig rig;
    static struct model model;
    float sum[RIG_VALUES];
    rig_prepare(&rig, "async", 2);
    (void)snprintf(rig.job.schedule, sizeof rig.job.schedule, "linear");
    rig.job.steps = 6;
    start(&rig, &model);
    static const uint32_t pushers[] = {0, 0, 1, 0, 0};
    uint64_t seqs[2] = {0};
    for (uint64_t push = 0; push < 5; push++) {
        uint32_t rank = pushers[push];
        push_all(&rig, rank, ++seqs[rank], push, rig_grads[rank], 1);
        step_all(&model, &rig,
                 &(struct step){.lr = job_learning_rate(&rig.job, (int64_t)push / 2) / 2,
                                .scale = 1,
                                .grad = rig_grads[rank]});
    }
    change(&rig, "sync"); /* at step 5 / 2 */
    for (uint64_t round = 1; round <= 4; round++) {
        bool both = seqs[0] < 6;
        rig_push_report(&rig, 1, ++seqs[1]);
        if (both) {
            rig_expect_silence(&rig);
            rig_push_report(&rig, 0, ++seqs[0]);
        }
        struct vote_report report = rig_note(&rig, SHARD_REPORT).report;
        CHECK_INT(report.round, round);
        CHECK_INT(report.contributors, both ? 2 : 1);
        rig_verdict(&rig, round, false, 1);
        rig_poll(&rig);
        for (int v = 0; v < RIG_VALUES; v++) {
            sum[v] = (both ? rig_grads[0][v] : 0) + rig_grads[1][v];
        }
        step_all(&model, &rig,
                 &(struct step){.lr = job_learning_rate(&rig.job, 2 + (int64_t)round - 1),
                                .scale = both ? 0.5F : 1,
                                .grad = sum});
        model_compare(&model, &rig);
        rig_see_all(&rig);
    }
    change(&rig, "ssp:1"); /* at step 6 */
    push_all(&rig, 1, ++seqs[1], 9, rig_grads[1], 1);
    step_all(
        &model, &rig,
        &(struct step){.lr = job_learning_rate(&rig.job, 6) / 2, .scale = 1, .grad = rig_grads[1]});
    model_compare(&model, &rig);
    CHECK_INT(rig_answers_to(&rig, 1), RIG_BLOCKS);
    CHECK_INT(fake_channel_taken(&rig.fake), 0);
    rig_close(&rig);
}

int main(void) {
    log_set_level(LOG_ERROR);
    TEST_RUN(test_optimizers_and_moments);
    TEST_RUN(test_whole_matrices);
    TEST_RUN(test_outer_optimizers);
    TEST_RUN(test_weighted_pushes);
    TEST_RUN(test_staleness_scale);
    TEST_RUN(test_max_staleness);
    TEST_RUN(test_delay_compensation);
    TEST_RUN(test_push_recipe);
    TEST_RUN(test_sync_warmup);
    TEST_RUN(test_changes);
    return 0;
}
