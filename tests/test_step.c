/* Proves when a step hands its blocks to the session, by order of calls and not by a clock.
 *
 * A trainer, and a session made by hand whose ring holds RING commands: a step stops in the middle
 * until the test takes one, and the test looks at the gradient meanwhile, which was NaN before.
 * --push-overlap: no layer's gradient is begun before the blocks of those above are handed over.
 * --no-push-overlap: the whole gradient is there when the first block is. Either way the blocks are
 * the same, in the same order, and the step's phases say which it was.
 */
#include "kernels/threads.h"
#include "tests/test.h"
#include "worker/step.h"

#include <pthread.h>
#include <time.h>

enum { LAYERS = 3, LAYER_TENSORS = 12, FIRST_TENSORS = 2, RING = 2, BLOCKS_MOST = 256 };

struct rig {
    struct job job;
    struct options options;
    uint8_t text[400];
    struct data data;
    struct session session;
    struct wake wake;
    struct plan plan;
    struct trainer trainer;
};

/* What a step handed over, and what its gradient was at the end. */
struct pushes {
    uint64_t count;
    uint64_t order[BLOCKS_MOST];
    float *grad; /* [value_count] */
};

static void set(struct rig *rig, const char *name, const char *value) {
    char why[256];
    int index = options_find(&rig->options, name);
    CHECK(index >= 0);
    CHECK_INT(options_set(&rig->options, index, value, ORIGIN_FLAG, why, sizeof why), STATUS_OK);
}

static void set_job(struct rig *rig, const char *overlap) {
    static const char *const settings[][2] = {{"workers", "1"}, {"model", "gpt2:3x12x3"},
                                              {"seq-len", "6"}, {"batch", "4"},
                                              {"steps", "2"},   {"block-values", "100"}};
    options_init(&rig->options, job_table, job_table_count, &rig->job);
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        set(rig, settings[i][0], settings[i][1]);
    }
    set(rig, "push-overlap", overlap);
}

static void tell(struct rig *rig, enum session_event_kind kind) {
    const struct session_event event = {.kind = kind, .plan = &rig->plan};
    CHECK_INT(ring_push(&rig->session.events, &event), STATUS_OK);
    CHECK(trainer_poll(&rig->trainer));
}

static struct session_command take(struct rig *rig) {
    const struct timespec pause = {.tv_nsec = 50000};
    struct session_command command;
    while (ring_pop(&rig->session.commands, &command) != STATUS_OK) {
        (void)nanosleep(&pause, NULL);
    }
    return command;
}

/* Until the first step can be computed. */
static void rig_open(struct rig *rig, const char *overlap) {
    memset(rig, 0, sizeof *rig);
    set_job(rig, overlap);
    for (size_t i = 0; i < sizeof rig->text; i++) {
        rig->text[i] = (uint8_t)(i * i % 251);
    }
    CHECK_INT(data_parse(&rig->data, rig->text, sizeof rig->text, "text"), STATUS_OK);
    rig->session.job = &rig->job;
    CHECK_INT(ring_init(&rig->session.commands, sizeof(struct session_command), RING), STATUS_OK);
    CHECK_INT(ring_init(&rig->session.events, sizeof(struct session_event), 2), STATUS_OK);
    CHECK_INT(wake_init(&rig->wake), STATUS_OK);
    trainer_init(&rig->trainer, &(struct trainer_config){.options = &rig->options,
                                                         .session = &rig->session,
                                                         .wake = &rig->wake,
                                                         .data = &rig->data,
                                                         .first_weights = trainer_first_weights});
    tell(rig, SESSION_ASSIGNED);
    struct session_command ready = take(rig);
    CHECK_INT(ready.kind, SESSION_READY);
    const struct plan_options options = job_plan_options(&rig->job, 2);
    CHECK_INT(plan_build(&rig->plan, ready.tensors, ready.count, &options), STATUS_OK);
    tell(rig, SESSION_PLANNED);
    CHECK_INT(take(rig).kind, SESSION_MEMORY);
    CHECK_INT(take(rig).kind, SESSION_PULL);
    tell(rig, SESSION_SETTLED);
    while (!rig->trainer.installed) {
        CHECK(trainer_poll(&rig->trainer));
    }
    for (uint64_t i = 0; i < rig->plan.value_count; i++) {
        rig->trainer.grad[i] = NAN;
    }
}

static void rig_close(struct rig *rig) {
    trainer_free(&rig->trainer);
    plan_free(&rig->plan);
    wake_free(&rig->wake);
    ring_free(&rig->session.commands);
    ring_free(&rig->session.events);
    data_close(&rig->data);
}

/* Of the tensors before `end`, those without a value of a gradient. */
static uint64_t untouched(const struct rig *rig, uint64_t end) {
    uint64_t count = 0;
    for (uint64_t tensor = FIRST_TENSORS; tensor < end; tensor++) {
        const float *grad = rig->trainer.grad + rig->plan.offsets[tensor];
        uint64_t values = plan_values(&rig->plan, tensor);
        uint64_t nans = 0;
        for (uint64_t i = 0; i < values; i++) {
            nans += isnan(grad[i]) ? 1 : 0;
        }
        count += nans == values ? 1 : 0;
    }
    return count;
}

/* The first tensor of the lowest layer that the block has a tensor of; 0: of the embeddings. */
static uint64_t layer_start(const struct rig *rig, uint64_t id) {
    const struct plan_block *block = &rig->plan.blocks[id];
    uint64_t lowest = UINT64_MAX;
    for (uint64_t i = 0; i < block->tensor_count; i++) {
        uint64_t tensor = rig->plan.pack_order[block->first_tensor + i];
        lowest = tensor < lowest ? tensor : lowest;
    }
    return lowest < FIRST_TENSORS
               ? 0
               : FIRST_TENSORS + (lowest - FIRST_TENSORS) / LAYER_TENSORS * LAYER_TENSORS;
}

static void *compute(void *context) {
    threads_set(1);
    CHECK(trainer_poll(context)); /* the step */
    return NULL;
}

/* Block number `place` of the step was taken out of the ring. */
typedef void look_fn(const struct rig *rig, const struct pushes *wanted, uint64_t place);

static void run_step(struct rig *rig, struct pushes *pushes, const struct pushes *wanted,
                     look_fn *look) {
    pthread_t thread;
    CHECK_INT(pthread_create(&thread, NULL, compute, &rig->trainer), 0);
    struct session_command command = take(rig);
    for (pushes->count = 0; command.kind == SESSION_PUSH; command = take(rig)) {
        CHECK(pushes->count < BLOCKS_MOST);
        CHECK(command.values == rig->trainer.grad + rig->plan.blocks[command.block].offset);
        pushes->order[pushes->count] = command.block;
        look(rig, wanted, pushes->count++);
    }
    CHECK_INT(command.kind, SESSION_COMMIT);
    CHECK_INT(pthread_join(thread, NULL), 0);
    CHECK_INT(pushes->count, rig->plan.block_count);
    size_t bytes = (size_t)rig->plan.value_count * sizeof(float);
    pushes->grad = memory_zeroed(1, bytes);
    memcpy(pushes->grad, rig->trainer.grad, bytes);
}

static void all_is_there(const struct rig *rig, const struct pushes *wanted, uint64_t place) {
    (void)wanted;
    (void)place;
    for (uint64_t i = 0; i < rig->plan.value_count; i++) {
        CHECK(isfinite(rig->trainer.grad[i]));
    }
}

/* The step has handed over RING blocks more at most, and stops at the next. */
static void layers_below_are_not(const struct rig *rig, const struct pushes *wanted,
                                 uint64_t place) {
    const struct plan_block *block = &rig->plan.blocks[wanted->order[place]];
    CHECK(memcmp(rig->trainer.grad + block->offset, wanted->grad + block->offset,
                 (size_t)block->count * sizeof(float)) == 0);
    if (place + RING + 1 >= wanted->count) {
        return;
    }
    uint64_t end = layer_start(rig, wanted->order[place + RING + 1]);
    CHECK_INT(untouched(rig, end), end < FIRST_TENSORS ? 0 : end - FIRST_TENSORS);
    CHECK(place > 0 || end == FIRST_TENSORS + (LAYERS - 1) * LAYER_TENSORS);
}

static void blocks_leave_during_backward_or_after(void) {
    static struct rig late;
    static struct rig early;
    static struct pushes wanted;
    static struct pushes found;
    rig_open(&late, "no");
    run_step(&late, &wanted, NULL, all_is_there);
    rig_open(&early, "yes");
    run_step(&early, &found, &wanted, layers_below_are_not);
    CHECK(memcmp(found.order, wanted.order, sizeof found.order) == 0);
    CHECK(memcmp(found.grad, wanted.grad, (size_t)late.plan.value_count * sizeof(float)) == 0);
    const struct report_step *step = &late.trainer.step;
    CHECK(step->first_push_ns >= step->forward_ns + step->backward_ns);
    CHECK(step->last_push_ns > step->first_push_ns);
    step = &early.trainer.step;
    CHECK(step->first_push_ns >= step->forward_ns && step->last_push_ns > step->first_push_ns);
    CHECK(step->last_push_ns <= step->forward_ns + step->backward_ns);
    free(wanted.grad);
    free(found.grad);
    rig_close(&late);
    rig_close(&early);
}

int main(void) {
    TEST_RUN(blocks_leave_during_backward_or_after);
    return 0;
}
