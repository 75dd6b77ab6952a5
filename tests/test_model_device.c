/* Proves what a model does on a device that is not the host, on one made for this test: it computes
 * as the host does, in memory of its own, and its copies are done as late as they may be: when the
 * compute queue or the caller waits for them. So the bits must be the host's, for each case of
 * model_rig.c, and a wait that is missing shows as wrong values. Also: weights may change once
 * forward has returned, and are asked for at the gate before they are copied; those that come in
 * bfloat16 give the bits of f32 made of them; `ready` is called in the host's order, for gradients
 * that are there; a gradient to which more is added stays away, and one that is not wanted on the
 * host stays for good; nothing is allocated in a step. Gradients that are to be added apart have,
 * also on the host, the bits of a sum of each batch's. When the device fails, at any copy, or has
 * no memory left, at any piece, the model says so, is left in order and nothing stays behind.
 */
#include "kernels/compute.h"
#include "proto/codec_id.h"
#include "tests/model_rig.h"
#include "tests/test.h"
#include "worker/raw_weights.h"

enum { COPIES_MAX = 512, TENSORS_MAX = 64, BLOCKS_MAX = 1024, BLOCK_MAX = 1024 };

/* ---- the device ---- */

struct late_copy {
    void *to;
    const void *from;
    size_t bytes;
};

struct late_queue {
    struct late_copy copies[COPIES_MAX];
    uint64_t queued, done;
};

struct late {
    struct device device;
    struct late_queue queues[DEVICE_QUEUES];
    int64_t taken;       /* pieces of memory and events that were not given back */
    int64_t takes_left;  /* then there is no memory; < 0: always */
    int64_t copies_left; /* then the device fails; < 0: never */
    bool failed;
    bool weights_wait; /* copies to the device wait for what is computed */
};

struct device_event {
    enum device_queue queue;
    uint64_t place;
};

static struct late *late_of(struct device *device) {
    return (struct late *)(void *)device;
}

static void run_until(struct late *late, enum device_queue number, uint64_t place) {
    struct late_queue *queue = &late->queues[number];
    for (; queue->done < place; queue->done++) {
        const struct late_copy *copy = &queue->copies[queue->done % COPIES_MAX];
        memcpy(copy->to, copy->from, copy->bytes);
    }
}

static enum status state_of(const struct late *late) {
    return late->failed ? STATUS_DEVICE : STATUS_OK;
}

static void *take(struct device *device, size_t bytes) {
    struct late *late = late_of(device);
    if (late->takes_left == 0) return NULL;
    late->takes_left--;
    late->taken++;
    return memset(memory_zeroed(1, bytes), 0xff, bytes); /* NaNs */
}

static void give(struct device *device, void *memory) {
    late_of(device)->taken--;
    free(memory);
}

static void copy(struct device *device, enum device_queue number, void *to, const void *from,
                 size_t bytes, enum device_direction direction) {
    struct late *late = late_of(device);
    struct late_queue *queue = &late->queues[number];
    if (late->copies_left == 0) late->failed = true;
    late->copies_left--;
    if (late->failed && direction == DEVICE_TO) memset(to, 0, bytes); /* tokens stay tokens */
    if (late->failed) return;
    CHECK(queue->queued - queue->done < COPIES_MAX);
    queue->copies[queue->queued++ % COPIES_MAX] =
        (struct late_copy){.to = to, .from = from, .bytes = bytes};
    if (number == DEVICE_COMPUTE) run_until(late, number, queue->queued);
}

static void zero(struct device *device, enum device_queue queue, void *memory, size_t bytes) {
    (void)device;
    CHECK_INT(queue, DEVICE_COMPUTE);
    memset(memory, 0, bytes);
}

static struct device_event *event_open(struct device *device) {
    late_of(device)->taken++;
    return memory_zeroed(1, sizeof(struct device_event));
}

static void event_close(struct device *device, struct device_event *event) {
    give(device, event);
}

static void event_record(struct device *device, struct device_event *event,
                         enum device_queue queue) {
    event->queue = queue;
    event->place = late_of(device)->queues[queue].queued;
}

/* A queue that computes is never behind; copies wait for it by being late. */
static void event_wait(struct device *device, enum device_queue queue,
                       const struct device_event *event) {
    if (queue == DEVICE_COMPUTE) run_until(late_of(device), event->queue, event->place);
    if (queue == DEVICE_COPY_IN && event->queue == DEVICE_COMPUTE)
        late_of(device)->weights_wait = true;
}

/* Each time it is asked, the device copies one thing. */
static enum status event_done(struct device *device, const struct device_event *event) {
    struct late *late = late_of(device);
    const struct late_queue *queue = &late->queues[event->queue];
    if (late->failed) return STATUS_DEVICE;
    if (queue->done >= event->place) return STATUS_OK;
    run_until(late, event->queue, queue->done + 1);
    return STATUS_AGAIN;
}

static enum status event_sync(struct device *device, const struct device_event *event) {
    run_until(late_of(device), event->queue, event->place);
    return state_of(late_of(device));
}

static enum status wait_queue(struct device *device, enum device_queue queue) {
    run_until(late_of(device), queue, late_of(device)->queues[queue].queued);
    return state_of(late_of(device));
}

/* As the host computes, and what it lacks. */
static struct compute_ops compute;

static void widen(struct device *device, enum device_queue queue, const uint16_t *from, float *to,
                  int64_t N) {
    (void)device;
    CHECK_INT(queue, DEVICE_COMPUTE);
    for (int64_t i = 0; i < N; i++) {
        const uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(&to[i], &bits, sizeof bits);
    }
}

static const struct device_backend backend = {
    .name = "late",
    .kind = DEVICE_CUDA,
    .compute = &compute,
    .take = take,
    .give = give,
    .take_pinned = take,
    .give_pinned = give,
    .copy = copy,
    .zero = zero,
    .event_open = event_open,
    .event_close = event_close,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_done = event_done,
    .event_sync = event_sync,
    .wait = wait_queue,
};

static void late_init(struct late *late) {
    compute = compute_cpu;
    compute.widen = widen;
    *late = (struct late){.device = {.backend = &backend, .compute = &compute, .name = "late"},
                          .takes_left = -1,
                          .copies_left = -1};
}

static void check_idle(const struct late *late) {
    for (int queue = 0; queue < DEVICE_QUEUES; queue++)
        CHECK_INT(late->queues[queue].done, late->queues[queue].queued);
}

/* ---- the cases ---- */

/* What a backward announces, with the gradients as they are then. */
struct record {
    struct model_rig *rig;
    const float *values; /* the gradient */
    float *seen;
    uint64_t order[TENSORS_MAX], calls;
};

static void record_ready(void *context, uint64_t tensor) {
    struct record *record = context;
    uint64_t at = record->rig->plan.offsets[tensor];
    memcpy(record->seen + at, record->values + at,
           plan_values(&record->rig->plan, tensor) * sizeof(float));
    CHECK(record->calls < TENSORS_MAX);
    record->order[record->calls++] = tensor;
}

static void record_open(struct record *record, struct model_rig *rig) {
    *record = (struct record){.rig = rig, .values = rig->grad};
    record->seen = memory_zeroed((size_t)rig->plan.value_count, sizeof(float));
}

static void check_same_bits(const struct model_rig *rig, const float *values,
                            const struct model_rig *host) {
    CHECK(memcmp(values, host->grad, (size_t)rig->plan.value_count * sizeof(float)) == 0);
}

/* Each batch's gradient by itself, added in order -> sum; how many values are others than those
 * that were accumulated in rig->grad, which is lost. */
static uint64_t sum_apart(struct model_rig *rig, float *sum) {
    uint64_t others = 0, bytes = rig->plan.value_count * sizeof(float);
    float *accumulated = memory_zeroed((size_t)rig->plan.value_count, sizeof(float));
    memcpy(accumulated, rig->grad, bytes);
    for (int64_t n = 0; n < MODEL_RIG_BATCHES; n++) {
        struct model_batch batch = model_rig_batch(rig, n);
        struct model_gradient gradient = {.values = rig->grad, .scale = 1.0 / MODEL_RIG_BATCHES};
        (void)model_forward(rig->model, &batch, &gradient);
        model_backward(rig->model, &batch, &gradient, NULL, NULL);
        for (uint64_t i = 0; i < rig->plan.value_count; i++)
            sum[i] = n == 0 ? rig->grad[i] : sum[i] + rig->grad[i];
    }
    for (uint64_t i = 0; i < rig->plan.value_count; i++)
        others += sum[i] != accumulated[i];
    free(accumulated);
    return others;
}

/* Two steps with other weights. What is allocated at a first pass may be. */
static void check_case(const struct model_rig_case *rig_case) {
    struct late late;
    struct model_rig host, rig;
    struct record record, expected;
    late_init(&late);
    CHECK_INT(model_rig_open(&host, rig_case, NULL), STATUS_OK);
    CHECK_INT(model_rig_open(&rig, rig_case, &late.device), STATUS_OK);
    record_open(&record, &rig);
    record_open(&expected, &host);
    for (int step = 0; step < 3; step++) {
        record.calls = expected.calls = 0;
        float loss = model_rig_step(&host, record_ready, &expected);
        memory_forbid(step > 0);
        CHECK(model_rig_step(&rig, record_ready, &record) == loss);
        memory_forbid(false);
        check_same_bits(&rig, rig.grad, &host);
        check_same_bits(&rig, record.seen, &host);
        CHECK_INT(record.calls, rig.plan.tensor_count);
        CHECK(memcmp(record.order, expected.order, sizeof record.order) == 0);
        check_idle(&late);
        for (uint64_t i = 0; i < rig.plan.value_count; i++)
            rig.weights[i] = host.weights[i] -= 0.3F * host.grad[i];
    }
    free(record.seen);
    free(expected.seen);
    model_rig_close(&host);
    model_rig_close(&rig);
    CHECK_INT(late.taken, 0);
}

static void test_same_bits(void) {
    for (int i = 0; i < model_rig_case_count; i++) {
        char name[128];
        model_rig_name(&model_rig_cases[i], name, sizeof name);
        printf("  %s\n", name);
        fflush(stdout);
        check_case(&model_rig_cases[i]);
    }
}

/* Gradients of batches that are computed apart are added, in order, as if by whoever knows each of
 * them: here and on the device, which then has the sum when a tensor is announced. */
static void check_apart(const struct model_rig_case *rig_case) {
    struct late late;
    struct model_rig plain, host, rig;
    struct record record, expected;
    struct model_rig_case apart = *rig_case;
    apart.options.apart = true;
    late_init(&late);
    CHECK_INT(model_rig_open(&plain, rig_case, NULL), STATUS_OK);
    CHECK_INT(model_rig_open(&host, &apart, NULL), STATUS_OK);
    CHECK_INT(model_rig_open(&rig, &apart, &late.device), STATUS_OK);
    record_open(&record, &rig);
    record_open(&expected, &host);
    float *sum = memory_zeroed((size_t)plain.plan.value_count, sizeof(float));
    for (int step = 0; step < 2; step++) {
        record.calls = expected.calls = 0;
        float loss = model_rig_step(&plain, NULL, NULL);
        uint64_t others = sum_apart(&plain, sum);
        CHECK(others > 0 || plain.B * plain.T == 1); /* another order of additions */
        memory_forbid(step > 0);
        CHECK(model_rig_step(&host, record_ready, &expected) == loss);
        CHECK(model_rig_step(&rig, record_ready, &record) == loss);
        memory_forbid(false);
        memcpy(plain.grad, sum, (size_t)plain.plan.value_count * sizeof(float));
        check_same_bits(&host, host.grad, &plain);
        check_same_bits(&host, expected.seen, &plain);
        check_same_bits(&rig, rig.grad, &plain);
        check_same_bits(&rig, record.seen, &plain);
        for (uint64_t i = 0; i < rig.plan.value_count; i++)
            rig.weights[i] = host.weights[i] = plain.weights[i] -= 0.3F * sum[i];
    }
    free(sum);
    free(record.seen);
    free(expected.seen);
    model_rig_close(&plain);
    model_rig_close(&host);
    model_rig_close(&rig);
    CHECK_INT(late.taken, 0);
}

static void test_apart(void) {
    for (int i = 0; i < model_rig_case_count; i++)
        check_apart(&model_rig_cases[i]);
}

static void fill_nan(float *values, uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        values[i] = NAN;
}

/* New weights wait for passes that use the old ones, and are gone when forward has returned; the
 * gradient comes with the last batch alone, and without anyone to be told of it, too. A pass
 * without a gradient needs no more. */
static void test_host_arrays(void) {
    struct late late;
    struct model_rig host, rig;
    late_init(&late);
    CHECK_INT(model_rig_open(&host, &model_rig_cases[0], NULL), STATUS_OK);
    CHECK_INT(model_rig_open(&rig, &model_rig_cases[0], &late.device), STATUS_OK);
    (void)model_rig_step(&host, NULL, NULL);
    late.weights_wait = false;
    model_set_weights(rig.model, rig.weights);
    CHECK(late.weights_wait);
    fill_nan(rig.grad, rig.plan.value_count);
    for (int64_t n = 0; n < MODEL_RIG_BATCHES; n++) {
        bool more = n + 1 < MODEL_RIG_BATCHES;
        struct model_batch batch = model_rig_batch(&rig, n);
        struct model_gradient gradient = {
            .values = rig.grad, .scale = 1.0F / MODEL_RIG_BATCHES, .add = n > 0, .more = more};
        float loss = model_forward(rig.model, &batch, NULL);
        CHECK(model_forward(rig.model, &batch, &gradient) == loss);
        fill_nan(rig.weights, rig.plan.value_count);
        memset(rig.tokens + n * rig.B * rig.T, 0xff, (size_t)(rig.B * rig.T) * sizeof(int32_t));
        memset(rig.targets + n * rig.B * rig.T, 0xff, (size_t)(rig.B * rig.T) * sizeof(int32_t));
        model_backward(rig.model, &batch, &gradient, NULL, NULL);
        for (uint64_t i = 0; more && i < rig.plan.value_count; i++)
            CHECK(isnan(rig.grad[i]));
    }
    check_same_bits(&rig, rig.grad, &host);
    model_rig_close(&host);
    model_rig_close(&rig);
}

/* Of a gradient that stays: final behind an event of the queue that computes. */
static void record_staying(void *context, uint64_t tensor) {
    struct record *record = context;
    const struct device_event *event = model_ready_event(record->rig->model, tensor);
    CHECK_INT(event->queue, DEVICE_COMPUTE);
    record_ready(context, tensor);
}

static void test_stays(void) {
    struct late late;
    struct model_rig host, rig;
    struct record record, expected;
    late_init(&late);
    CHECK_INT(model_rig_open(&host, &model_rig_cases[0], NULL), STATUS_OK);
    CHECK_INT(model_rig_open(&rig, &model_rig_cases[0], &late.device), STATUS_OK);
    CHECK(model_device_gradient(host.model) == NULL);
    record_open(&record, &rig);
    record_open(&expected, &host);
    record.values = model_device_gradient(rig.model);
    free(rig.grad);
    rig.grad = NULL;
    for (int step = 0; step < 2; step++) {
        record.calls = expected.calls = 0;
        float loss = model_rig_step(&host, record_ready, &expected);
        CHECK(model_rig_step(&rig, record_staying, &record) == loss);
        check_same_bits(&rig, record.seen, &host);
        CHECK_INT(record.calls, rig.plan.tensor_count);
        CHECK(memcmp(record.order, expected.order, sizeof record.order) == 0);
        CHECK_INT(late.queues[DEVICE_COPY_OUT].queued, 0);
    }
    free(record.seen);
    free(expected.seen);
    model_rig_close(&host);
    model_rig_close(&rig);
    CHECK_INT(late.taken, 0);
}

/* Weights that come when the gate is asked for them. */
struct gate {
    struct model_rig *rig;
    const float *source;
    uint64_t calls, last; /* number `last` and later: they will not come */
};

static bool wait_at_gate(void *context, uint64_t first, uint64_t count) {
    struct gate *gate = context;
    if (gate->calls++ >= gate->last) return false;
    for (uint64_t tensor = first; tensor < first + count; tensor++) {
        uint64_t at = gate->rig->plan.offsets[tensor];
        memcpy(gate->rig->weights + at, gate->source + at,
               plan_values(&gate->rig->plan, tensor) * sizeof(float));
    }
    return true;
}

static void check_gate(const struct model_rig_case *rig_case) {
    struct late late;
    struct model_rig host, rig;
    late_init(&late);
    CHECK_INT(model_rig_open(&host, rig_case, NULL), STATUS_OK);
    CHECK_INT(model_rig_open(&rig, rig_case, &late.device), STATUS_OK);
    struct gate gate = {.rig = &rig, .source = host.weights};
    const struct model_gate wait = {.wait = wait_at_gate, .context = &gate};
    struct model_batch batch = model_rig_batch(&rig, 0);
    struct model_gradient gradient = {.values = rig.grad, .scale = 1};
    model_set_weights(host.model, host.weights);
    struct model_gradient host_gradient = {.values = host.grad, .scale = 1};
    float loss = model_forward(host.model, &batch, &host_gradient);
    model_backward(host.model, &batch, &host_gradient, NULL, NULL);
    for (gate.last = 0;; gate.last++) {
        gate.calls = 0;
        fill_nan(rig.weights, rig.plan.value_count);
        model_expect_weights(rig.model, rig.weights, &wait);
        float got = model_forward(rig.model, &batch, &gradient);
        CHECK_INT(model_status(rig.model), STATUS_OK);
        check_idle(&late);
        if (isnan(got)) continue;
        CHECK(got == loss);
        break;
    }
    CHECK_INT(gate.last, rig.shape.layers + 2);
    model_backward(rig.model, &batch, &gradient, NULL, NULL);
    check_same_bits(&rig, rig.grad, &host);
    model_rig_close(&host);
    model_rig_close(&rig);
}

static void test_gate(void) {
    for (int i = 0; i < model_rig_case_count; i++)
        check_gate(&model_rig_cases[i]);
}

/* ---- weights in the form in which they came ---- */

/* Of a rig and its twin on the host. */
struct raw_gate {
    struct raw_weights raw; /* the rig's */
    const struct model_rig *host;
};

/* Two blocks of three are bfloat16, to which the host's weights are cut first. What is left of such
 * a block's place is no number. */
static void install_raw(const struct raw_gate *gate, uint64_t id) {
    const struct plan_block *block = &gate->raw.plan->blocks[id];
    float *values = gate->host->weights + block->offset;
    uint16_t halves[BLOCK_MAX];
    bool whole = id % 3 == 2;
    CHECK(block->count <= BLOCK_MAX);
    fill_nan(gate->raw.values + block->offset, block->count);
    for (uint64_t i = 0; i < block->count && !whole; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        halves[i] = (uint16_t)(bits >> 16);
        bits &= 0xffff0000;
        memcpy(&values[i], &bits, sizeof bits);
    }
    CHECK_INT(raw_weights_install(&gate->raw, id, whole ? CODEC_F32 : CODEC_BF16,
                                  whole ? (const uint8_t *)values : (const uint8_t *)halves,
                                  (size_t)block->count * (whole ? 4 : 2)),
              STATUS_OK);
}

static bool wait_for_raw(void *context, uint64_t first, uint64_t count) {
    const struct raw_gate *gate = context;
    const struct plan *plan = gate->raw.plan;
    for (uint64_t tensor = first; tensor < first + count; tensor++) {
        uint64_t at = plan->offsets[tensor], end = at + plan_values(&gate->host->plan, tensor);
        uint64_t last = raw_weights_block(plan, end - 1);
        for (uint64_t id = raw_weights_block(plan, at); id <= last; id++)
            install_raw(gate, id);
    }
    return true;
}

/* The bits are those of weights that the host has decoded: set as a whole, and at the gate. */
static void check_raw(const struct model_rig_case *rig_case) {
    struct late late;
    struct model_rig host, rig;
    static uint8_t codecs[BLOCKS_MAX];
    struct model_rig_case raw_case = *rig_case;
    raw_case.options.codecs = codecs;
    late_init(&late);
    CHECK_INT(model_rig_open(&host, rig_case, NULL), STATUS_OK);
    CHECK_INT(model_rig_open(&rig, &raw_case, &late.device), STATUS_OK);
    CHECK(rig.plan.block_count <= BLOCKS_MAX);
    struct raw_gate gate = {{.plan = &rig.plan, .values = rig.weights, .codecs = codecs}, &host};
    const struct model_gate wait = {.wait = wait_for_raw, .context = &gate};
    for (int step = 0; step < 2; step++) {
        CHECK(wait_for_raw(&gate, 0, rig.plan.tensor_count));
        float loss = model_rig_step(&host, NULL, NULL);
        memory_forbid(step > 0);
        CHECK(model_rig_step(&rig, NULL, NULL) == loss);
        memory_forbid(false);
        check_same_bits(&rig, rig.grad, &host);
        check_idle(&late);
        for (uint64_t i = 0; i < rig.plan.value_count; i++)
            host.weights[i] -= 0.3F * host.grad[i];
    }
    fill_nan(rig.weights, rig.plan.value_count);
    memset(codecs, CODEC_F32, sizeof codecs);
    struct model_batch batch = model_rig_batch(&rig, 0);
    model_expect_weights(rig.model, rig.weights, &wait);
    float loss = model_forward(rig.model, &batch, NULL);
    model_set_weights(host.model, host.weights);
    CHECK(model_forward(host.model, &batch, NULL) == loss);
    raw_weights_decode_all(&gate.raw);
    CHECK(memcmp(rig.weights, host.weights, rig.plan.value_count * sizeof(float)) == 0);
    model_rig_close(&host);
    model_rig_close(&rig);
    CHECK_INT(late.taken, 0);
}

static void test_raw(void) {
    for (int i = 0; i < model_rig_case_count; i++)
        check_raw(&model_rig_cases[i]);
}

/* At each copy of a step. What was announced before that is right. */
static void test_failure(void) {
    struct late late;
    struct model_rig host, rig;
    struct record record;
    int64_t copy_number = 0;
    CHECK_INT(model_rig_open(&host, &model_rig_cases[0], NULL), STATUS_OK);
    (void)model_rig_step(&host, NULL, NULL);
    for (enum status status = STATUS_DEVICE; status != STATUS_OK; copy_number++) {
        late_init(&late);
        CHECK_INT(model_rig_open(&rig, &model_rig_cases[0], &late.device), STATUS_OK);
        record_open(&record, &rig);
        late.copies_left = copy_number;
        float loss = model_rig_step(&rig, record_ready, &record);
        status = model_status(rig.model);
        CHECK(status == STATUS_OK || status == STATUS_DEVICE);
        CHECK((status == STATUS_OK) == !late.failed);
        CHECK((record.calls == rig.plan.tensor_count) == (status == STATUS_OK));
        if (isnan(loss)) CHECK_INT(record.calls, 0);
        for (uint64_t i = 0; i < record.calls; i++) {
            uint64_t at = rig.plan.offsets[record.order[i]];
            CHECK(memcmp(record.seen + at, host.grad + at,
                         plan_values(&rig.plan, record.order[i]) * sizeof(float)) == 0);
        }
        check_idle(&late);
        free(record.seen);
        model_rig_close(&rig);
        CHECK_INT(late.taken, 0);
    }
    /* Weights: matrices first, both of each layer, vectors last. Twice tokens, targets, losses. */
    CHECK_INT(copy_number - 1, 1 + 2 * 2 + 1 + 2 * 3 + (int64_t)host.plan.tensor_count);
    model_rig_close(&host);
}

static void test_no_memory(void) {
    struct model_rig rig;
    struct late late;
    int64_t pieces = 0;
    for (enum status status = STATUS_MEMORY; status != STATUS_OK; pieces++) {
        late_init(&late);
        late.takes_left = pieces;
        status = model_rig_open(&rig, &model_rig_cases[0], &late.device);
        CHECK(status == STATUS_OK || status == STATUS_MEMORY);
        if (status == STATUS_OK) model_rig_close(&rig);
        CHECK_INT(late.taken, 0);
    }
    CHECK(pieces > 4);
}

int main(void) {
    TEST_RUN(test_same_bits);
    TEST_RUN(test_apart);
    TEST_RUN(test_host_arrays);
    TEST_RUN(test_stays);
    TEST_RUN(test_gate);
    TEST_RUN(test_raw);
    TEST_RUN(test_failure);
    TEST_RUN(test_no_memory);
    return 0;
}
