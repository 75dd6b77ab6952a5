/* Proves that a forward pass which starts before all weights are there reads none too early.
 *
 * The model alone: weights are NaN until the gate is asked for them; loss and gradient must have
 * the bits of a pass with all weights there, for every kind of recomputation, in f32 and bf16; when
 * the gate gives up, the loss is NaN and the model is as good as before.
 * The trainer's gate with real threads: one thread owns an exchange (worker/exchange.h) and
 * installs a round's answers one by one in random order, while the other computes; the bits are
 * compared with those of a plain pass. The thread sanitizer runs it, too.
 */
#include "base/clock.h"
#include "base/random.h"
#include "kernels/threads.h"
#include "tests/fake_channel.h"
#include "tests/test.h"
#include "worker/gate.h"

#include <pthread.h>
#include <time.h>

enum {
    LAYERS = 3,
    VOCAB = 19,
    POSITIONS = 9,
    BATCH = 3,
    LENGTH = 7,
    TENSORS = 2 + 12 * LAYERS + 2
};

struct setup {
    struct model_shape shape;
    struct plan plan;
    struct model *model;
    float *weights, *grad; /* of the pass under test */
    float *right, *wanted; /* all weights; the gradient on them */
    int32_t tokens[BATCH * LENGTH], targets[BATCH * LENGTH];
};

static void setup_open(struct setup *setup, const struct model_options *options) {
    char why[200];
    uint64_t count = 0;
    struct random_stream random;
    CHECK_INT(model_shape_parse("gpt2:3x12x3", VOCAB, POSITIONS, &setup->shape, why, sizeof why),
              STATUS_OK);
    struct tensor *tensors = model_tensors(&setup->shape, &count);
    CHECK_INT(count, TENSORS);
    CHECK_INT(plan_build(&setup->plan, tensors, count,
                         &(struct plan_options){.shards = 2, .block_values = 100}),
              STATUS_OK);
    free(tensors);
    CHECK_INT(model_open(&setup->model, &setup->shape, &setup->plan, options), STATUS_OK);
    size_t values = (size_t)setup->plan.value_count;
    setup->weights = memory_zeroed(values, sizeof(float));
    setup->grad = memory_zeroed(values, sizeof(float));
    setup->right = memory_zeroed(values, sizeof(float));
    setup->wanted = memory_zeroed(values, sizeof(float));
    model_init_weights(&setup->shape, &setup->plan, 7, setup->right);
    random_open(&random, 1, RANDOM_SIMULATOR, 0);
    for (size_t i = 0; i < values; i++) {
        setup->right[i] += 0.2F * random_normal(&random);
    }
    for (int i = 0; i < BATCH * LENGTH; i++) {
        setup->tokens[i] = (int32_t)random_below(&random, VOCAB);
        setup->targets[i] = (int32_t)random_below(&random, VOCAB);
    }
}

static void setup_close(struct setup *setup) {
    model_close(setup->model);
    plan_free(&setup->plan);
    free(setup->weights);
    free(setup->grad);
    free(setup->right);
    free(setup->wanted);
}

static struct model_batch batch_of(const struct setup *setup) {
    return (struct model_batch){
        .tokens = setup->tokens, .targets = setup->targets, .B = BATCH, .T = LENGTH};
}

static float backward(struct setup *setup, float loss, float *grad) { // NOLINT
    struct model_batch batch = batch_of(setup);
    struct model_gradient gradient = {.values = grad, .scale = 1};
    model_backward(setup->model, &batch, &gradient, NULL, NULL);
    return loss;
}

static float forward(struct setup *setup, float *grad) { // NOLINT
    struct model_batch batch = batch_of(setup);
    struct model_gradient gradient = {.values = grad, .scale = 1};
    return model_forward(setup->model, &batch, &gradient);
}

/* The plain pass. */
static float want(struct setup *setup) {
    model_set_weights(setup->model, setup->right);
    return backward(setup, forward(setup, setup->wanted), setup->wanted);
}

static bool equal(const struct setup *setup, const float *a, const float *b) {
    return memcmp(a, b, (size_t)setup->plan.value_count * sizeof(float)) == 0;
}

/* ---- the model ---- */

struct coming {
    struct setup *setup;
    uint64_t next;        /* the tensor that is to be asked for next */
    uint64_t asks, gives; /* the ask after `gives` ones is refused */
};

static bool come(void *context, uint64_t first, uint64_t count) {
    struct coming *coming = context;
    const struct plan *plan = &coming->setup->plan;
    CHECK_INT(first, coming->next);
    CHECK(coming->asks <= coming->gives);
    if (coming->asks++ == coming->gives) {
        return false;
    }
    for (uint64_t t = first; t < first + count; t++) {
        uint64_t values = plan_values(plan, t);
        memcpy(coming->setup->weights + plan->offsets[t], coming->setup->right + plan->offsets[t],
               (size_t)values * sizeof(float));
    }
    coming->next = first + count;
    return true;
}

/* The forward pass for which the weights come when asked for, `gives` times. */
static float expect(struct setup *setup, uint64_t gives) {
    static struct coming coming; /* lives on, to be found by a pass that may not ask it */
    coming = (struct coming){.setup = setup, .gives = gives};
    const struct model_gate gate = {.wait = come, .context = &coming};
    for (uint64_t i = 0; i < setup->plan.value_count; i++) {
        setup->weights[i] = setup->grad[i] = NAN;
    }
    model_set_weights(setup->model, setup->weights); /* nor are there copies of older ones */
    model_expect_weights(setup->model, setup->weights, &gate);
    float loss = forward(setup, setup->grad);
    CHECK(gives < LAYERS + 2 || (coming.asks == LAYERS + 2 && coming.next == TENSORS));
    return loss;
}

static void check_model(const struct model_options *options) {
    struct setup setup;
    setup_open(&setup, options);
    float loss = want(&setup);
    CHECK(isfinite(loss));
    for (uint64_t gives = 0; gives < LAYERS + 2; gives++) {
        CHECK(isnan(expect(&setup, gives)));
    }
    for (int again = 0; again < 2; again++) {
        CHECK(backward(&setup, expect(&setup, LAYERS + 2), setup.grad) == loss);
        CHECK(equal(&setup, setup.grad, setup.wanted));
    }
    CHECK(forward(&setup, setup.grad) == loss); /* the gate was for one pass */
    CHECK(want(&setup) == loss);
    setup_close(&setup);
}

static void model_waits_for_its_weights(void) {
    static const struct {
        enum model_recompute recompute;
        int64_t every;
    } table[] = {{MODEL_RECOMPUTE_NONE, 0},
                 {MODEL_RECOMPUTE_ATTENTION, 0},
                 {MODEL_RECOMPUTE_EVERY, 1},
                 {MODEL_RECOMPUTE_EVERY, 2}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct model_options options = {.B = BATCH,
                                        .T = LENGTH,
                                        .training = true,
                                        .recompute = table[i].recompute,
                                        .recompute_every = table[i].every};
        options.type = COMPUTE_F32;
        check_model(&options);
        options.type = COMPUTE_BF16;
        check_model(&options);
    }
}

/* ---- the trainer's gate ---- */

enum { ROUNDS = 12 };

/* A session's half, as far as it matters here, and a trainer's. */
struct rig {
    struct setup setup;
    struct job job;
    struct options options;
    struct fake_channel fake;
    struct session session;
    struct wake wake;
    struct trainer trainer;
    float *next; /* the weights that answers carry */
    struct random_stream random;
    atomic_bool stop;
};

static void answer(struct rig *rig, uint64_t id, uint64_t seq) {
    const struct plan_block *block = &rig->setup.plan.blocks[id];
    struct frame frame = {.kind = FRAME_WEIGHTS,
                          .codec = CODEC_F32,
                          .seq = seq,
                          .block_version = seq,
                          .block = id,
                          .value_count = (uint32_t)block->count,
                          .scalar = 1,
                          .ticket = (uint32_t)seq};
    fake_channel_receive(&rig->fake, &frame, rig->next + block->offset,
                         (size_t)block->count * sizeof(float));
    (void)exchange_poll(&rig->session.exchange, 0);
    wake_signal(&rig->wake);
}

static void pause_us(int64_t us) {
    const struct timespec pause = {.tv_nsec = (long)(1000 * us)};
    (void)nanosleep(&pause, NULL);
}

/* One after the other in random order, at random moments. */
static void answer_all(struct rig *rig, uint64_t seq) {
    uint64_t order[512];
    uint64_t count = rig->setup.plan.block_count;
    CHECK(count <= sizeof order / sizeof order[0]);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t other = random_below(&rig->random, i + 1);
        order[i] = order[other];
        order[other] = i;
    }
    for (uint64_t i = 0; i < count; i++) {
        if (random_below(&rig->random, 8) == 0) {
            pause_us((int64_t)random_below(&rig->random, 500));
        }
        answer(rig, order[i], seq);
    }
}

/* The session's thread. */
static void *talk(void *argument) {
    struct rig *rig = argument;
    struct session_command command;
    struct session_event settled = {.kind = SESSION_SETTLED};
    while (!atomic_load(&rig->stop)) {
        if (ring_pop(&rig->session.commands, &command) != STATUS_OK) {
            pause_us(100);
        } else if (command.kind == SESSION_PUSH) {
            CHECK_INT(exchange_push(&rig->session.exchange, &command.report, command.block,
                                    command.values),
                      STATUS_OK);
        } else {
            (void)exchange_poll(&rig->session.exchange, 0);
            fake_channel_finish_all(&rig->fake);
            answer_all(rig, command.report.seq);
            (void)exchange_poll(&rig->session.exchange, 0);
            rig->fake.send_count = 0;
            CHECK(exchange_settled(&rig->session.exchange));
            CHECK_INT(ring_push(&rig->session.events, &settled), STATUS_OK);
            wake_signal(&rig->wake);
        }
    }
    return NULL;
}

static void await(void *context) {
    struct rig *rig = context;
    wake_wait(&rig->wake.fd, 1, CLOCK_S);
    wake_clear(&rig->wake);
}

static void rig_open(struct rig *rig) {
    const struct model_options options = {.B = BATCH, .T = LENGTH, .training = true};
    memset(rig, 0, sizeof *rig);
    setup_open(&rig->setup, &options);
    options_init(&rig->options, job_table, job_table_count, &rig->job);
    (void)snprintf(rig->job.push, sizeof rig->job.push, "none");
    (void)snprintf(rig->job.pull, sizeof rig->job.pull, "none");
    fake_channel_open(&rig->fake);
    const struct exchange_config config = {.job = &rig->job,
                                           .plan = &rig->setup.plan,
                                           .channel = &rig->fake.channel,
                                           .weights = rig->setup.weights};
    CHECK_INT(exchange_init(&rig->session.exchange, &config), STATUS_OK);
    CHECK_INT(ring_init(&rig->session.commands, sizeof(struct session_command), 512), STATUS_OK);
    CHECK_INT(ring_init(&rig->session.events, sizeof(struct session_event), 8), STATUS_OK);
    CHECK_INT(wake_init(&rig->wake), STATUS_OK);
    rig->trainer =
        (struct trainer){.config = {.session = &rig->session, .await = await, .await_context = rig},
                         .state = TRAINER_STEPPING,
                         .job = &rig->job,
                         .shape = rig->setup.shape,
                         .plan = &rig->setup.plan};
    bucket_init(&rig->trainer.bucket, &rig->setup.plan);
    rig->next = memory_zeroed((size_t)rig->setup.plan.value_count, sizeof(float));
    random_open(&rig->random, 5, RANDOM_SIMULATOR, 0);
}

static void rig_close(struct rig *rig) {
    CHECK_INT(fake_channel_taken(&rig->fake), 0);
    exchange_free(&rig->session.exchange);
    rig->fake.channel.ops->close(&rig->fake.channel);
    ring_free(&rig->session.commands);
    ring_free(&rig->session.events);
    wake_free(&rig->wake);
    bucket_free(&rig->trainer.bucket);
    free(rig->next);
    setup_close(&rig->setup);
}

/* All blocks of report `seq` are on their way; the answer will be new weights, which the plain pass
 * has computed with. Returns its loss. */
static float report(struct rig *rig, uint64_t seq) {
    struct session_command command = {.kind = SESSION_PUSH, .report = {.seq = seq, .weight = 1}};
    for (uint64_t i = 0; i < rig->setup.plan.value_count; i++) {
        rig->setup.right[i] *= i % 3 == 0 ? 1.03F : 0.98F;
        rig->next[i] = rig->setup.right[i];
    }
    float loss = want(&rig->setup);
    for (uint64_t id = 0; id < rig->setup.plan.block_count; id++) {
        command.block = id;
        command.values = rig->setup.grad + rig->setup.plan.blocks[id].offset;
        CHECK_INT(ring_push(&rig->session.commands, &command), STATUS_OK);
    }
    rig->trainer.reports_done = (int64_t)seq;
    rig->trainer.answered = false;
    command.kind = SESSION_COMMIT;
    CHECK_INT(ring_push(&rig->session.commands, &command), STATUS_OK);
    return loss;
}

static void steps_start_on_the_first_blocks(void) {
    static struct rig rig;
    pthread_t thread;
    uint64_t early = 0;
    rig_open(&rig);
    struct trainer *trainer = &rig.trainer;
    const struct model_gate gate = {.wait = gate_wait, .context = trainer};
    CHECK(!gate_is_open(trainer)); /* no report was answered, and none was made */
    CHECK_INT(pthread_create(&thread, NULL, talk, &rig), 0);
    for (uint64_t seq = 1; seq <= ROUNDS; seq++) {
        float loss = report(&rig, seq);
        while (!gate_is_open(trainer)) {
            await(&rig);
        }
        trainer->step.forward_wait_ns = 0;
        model_expect_weights(rig.setup.model, rig.setup.weights, &gate);
        CHECK(forward(&rig.setup, rig.setup.grad) == loss);
        CHECK(gate_settle(trainer) && trainer->answered);
        CHECK(equal(&rig.setup, rig.setup.weights, rig.setup.right));
        (void)backward(&rig.setup, loss, rig.setup.grad);
        CHECK(equal(&rig.setup, rig.setup.grad, rig.setup.wanted));
        early += trainer->step.forward_wait_ns > 0 ? 1 : 0;
    }
    CHECK(early > 0); /* or nothing was tested */
    atomic_store(&rig.stop, true);
    CHECK_INT(pthread_join(thread, NULL), 0);
    rig_close(&rig);
}

/* When the gate is closed; and that a wait ends with the job. */
static void gate_closes(void) {
    static struct rig rig;
    rig_open(&rig);
    struct trainer *trainer = &rig.trainer;
    struct session_command command;
    (void)report(&rig, 1);
    while (ring_pop(&rig.session.commands, &command) == STATUS_OK) {
        if (command.kind == SESSION_PUSH) {
            CHECK_INT(exchange_push(&rig.session.exchange, &command.report, command.block,
                                    command.values),
                      STATUS_OK);
        }
    }
    (void)exchange_poll(&rig.session.exchange, 0);
    fake_channel_finish_all(&rig.fake);
    const struct bucket *bucket = &trainer->bucket;
    for (uint64_t id = bucket->first_block[0]; id <= bucket->last_block[1]; id++) {
        CHECK(!gate_is_open(trainer));
        answer(&rig, id, 1);
    }
    CHECK(gate_is_open(trainer)); /* the embeddings are all that is read first */
    CHECK(gate_wait(trainer, 0, 2));
    trainer->reports_done = 0;
    CHECK(!gate_is_open(trainer));
    trainer->reports_done = 1;
    rig.job.forward_overlap = false;
    CHECK(!gate_is_open(trainer));
    rig.job.forward_overlap = true;
    atomic_store(&rig.session.over, true);
    CHECK(!gate_is_open(trainer));
    CHECK(!gate_wait(trainer, 2, 1));
    CHECK(!gate_settle(trainer));
    rig_close(&rig);
}

int main(void) {
    threads_set(1);
    TEST_RUN(model_waits_for_its_weights);
    TEST_RUN(steps_start_on_the_first_blocks);
    TEST_RUN(gate_closes);
    return 0;
}
