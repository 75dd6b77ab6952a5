#include "worker/stepper.h"

#include "base/assert.h"
#include "compression/decoder.h"

enum status stepper_init(struct stepper *stepper, const struct job *job, const struct plan *plan,
                         struct push_codec *push) {
    size_t block = (size_t)plan->largest_block;
    size_t counts = (size_t)plan->block_count * sizeof(int64_t);
    size_t scratch = decoder_scratch_bytes(block);
    *stepper = (struct stepper){.push = push, .momentum_after = job_momentum_after(job)};
    const struct inner_config inner = {
        .job = job, .plan = plan, .device = device_host(), .threads = 1};
    TRY(inner_init(&stepper->inner, &inner));
    enum status status =
        arena_init(&stepper->arena, arena_need(counts) + 2 * arena_need(block * sizeof(float)) +
                                        arena_need(scratch));
    if (status != STATUS_OK) {
        inner_free(&stepper->inner);
        return status;
    }
    stepper->gradients = arena_take(&stepper->arena, counts);
    stepper->mean = arena_take(&stepper->arena, block * sizeof(float));
    stepper->moment = arena_take(&stepper->arena, block * sizeof(float));
    stepper->scratch = arena_take(&stepper->arena, scratch);
    return STATUS_OK;
}

void stepper_free(struct stepper *stepper) {
    inner_free(&stepper->inner);
    arena_free(&stepper->arena);
    *stepper = (struct stepper){0};
}

static bool moments_travel(const struct stepper *stepper, uint64_t seq) {
    return stepper->momentum_after > 0 && seq > (uint64_t)stepper->momentum_after;
}

const float *stepper_push(struct stepper *stepper, uint64_t id, uint64_t seq, double weight,
                          float clip, const float *values) {
    const struct inner *inner = &stepper->inner;
    if (!moments_travel(stepper, seq)) {
        return values;
    }
    const float *m = optimizer_first_moment(&inner->optimizer, inner->blocks[id].state);
    float keep = (float)weight * inner->optimizer.beta1;
    float take = (1.0F - inner->optimizer.beta1) * clip;
    for (uint64_t i = 0; i < inner->plan->blocks[id].count; i++) {
        stepper->moment[i] = keep * m[i] + take * values[i];
    }
    return stepper->moment;
}

/* The gradient that makes the mean the first moment. */
static void undo_decay(const struct stepper *stepper, uint64_t id) {
    const struct inner *inner = &stepper->inner;
    const float *m = optimizer_first_moment(&inner->optimizer, inner->blocks[id].state);
    float beta1 = inner->optimizer.beta1;
    float up = 1.0F / (1.0F - beta1);
    for (uint64_t i = 0; i < inner->plan->blocks[id].count; i++) {
        stepper->mean[i] = (stepper->mean[i] - beta1 * m[i]) * up;
    }
}

enum status stepper_apply(struct stepper *stepper, uint64_t id, uint64_t seq, uint8_t codec,
                          const uint8_t *payload, size_t bytes, float *weights) {
    struct inner *inner = &stepper->inner;
    const struct job *job = inner->job;
    ASSERT_OP(seq, >, 0);
    if (bytes == 0) {
        return STATUS_OK;
    }
    TRY(decoder_set(codec, payload, bytes, stepper->mean, (size_t)inner->plan->blocks[id].count,
                    stepper->scratch));
    push_codec_expand(stepper->push, id, decoder_inner_codec(codec, payload), stepper->mean);
    if (moments_travel(stepper, seq)) {
        undo_decay(stepper, id);
        inner->optimizer.freeze_v_after = stepper->gradients[id] > 0 ? stepper->gradients[id] : 1;
    } else {
        stepper->gradients[id]++;
    }
    inner_step(inner, id, weights, stepper->mean, 1.0F, job_learning_rate(job, (int64_t)seq - 1),
               0);
    return STATUS_OK;
}
