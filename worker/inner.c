#include "worker/inner.h"

#include "base/assert.h"
#include "worker/owner.h"

static struct optimizer_piece piece_of(const struct plan_block *block) {
    return (struct optimizer_piece){
        .rows = (int64_t)block->rows, .cols = (int64_t)block->cols, .hidden = block->hidden};
}

static size_t scratch_need(const struct inner *inner) {
    size_t most = 0;
    for (uint64_t id = 0; id < inner->plan->block_count; id++) {
        struct optimizer_piece piece = piece_of(&inner->plan->blocks[id]);
        size_t bytes = optimizer_scratch_bytes(&inner->optimizer, &piece);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static struct optimizer optimizer_of(const struct job *job) {
    struct optimizer optimizer = {.beta1 = (float)job->beta1,
                                  .beta2 = (float)job->beta2,
                                  .eps = (float)job->eps,
                                  .momentum = (float)job->momentum,
                                  .freeze_v_after = job->freeze_v_after};
    ASSERT(optimizer_find(job_optimizer(job), &optimizer.kind));
    ASSERT(moment_find(job->moments, &optimizer.moments));
    return optimizer;
}

bool inner_can(const struct job *job, const struct device *device) {
    const struct optimizer optimizer = optimizer_of(job);
    return optimizer_device_can(device, &optimizer);
}

size_t inner_state_bytes(const struct job *job, const struct plan_block *block) {
    const struct optimizer optimizer = optimizer_of(job);
    struct optimizer_piece piece = piece_of(block);
    return block->fragment == PLAN_FROZEN ? 0 : optimizer_state_bytes(&optimizer, &piece);
}

/* Zeroed memory of the device. */
static enum status take_states(struct inner *inner, size_t bytes) {
    struct device *device = inner->device;
    if (bytes == 0) return STATUS_OK;
    if (device_is_host(device)) return arena_init(&inner->states, bytes);
    inner->states.base = device_take(device, bytes);
    if (inner->states.base == NULL) return STATUS_MEMORY;
    inner->states.bytes = bytes;
    device_zero(device, DEVICE_COMPUTE, inner->states.base, bytes);
    return STATUS_OK;
}

enum status inner_init(struct inner *inner, const struct inner_config *config) {
    const struct plan *plan = config->plan;
    *inner = (struct inner){.job = config->job,
                            .plan = plan,
                            .device = config->device,
                            .optimizer = optimizer_of(config->job)};
    inner->scratch_bytes = scratch_need(inner);
    size_t blocks = (size_t)plan->block_count * sizeof(struct inner_block);
    size_t scratch = (size_t)config->threads * inner->scratch_bytes;
    size_t states = 0;
    TRY(arena_init(&inner->arena, arena_need(blocks) + arena_need(scratch)));
    inner->blocks = arena_take(&inner->arena, blocks);
    inner->scratch = arena_take(&inner->arena, scratch);
    for (uint64_t id = 0; id < plan->block_count; id++) {
        if (owner_is(config->owners, id, config->rank))
            inner->blocks[id].state_bytes = inner_state_bytes(config->job, &plan->blocks[id]);
        states += arena_need(inner->blocks[id].state_bytes);
    }
    enum status status = take_states(inner, states);
    if (status != STATUS_OK) {
        inner_free(inner);
        return status;
    }
    for (uint64_t id = 0; id < plan->block_count; id++) {
        struct inner_block *block = &inner->blocks[id];
        if (block->state_bytes > 0) block->state = arena_take(&inner->states, block->state_bytes);
    }
    return STATUS_OK;
}

void inner_free(struct inner *inner) {
    arena_free(&inner->arena);
    if (inner->states.base != NULL && device_is_host(inner->device)) {
        arena_free(&inner->states);
    } else {
        device_give(inner->device, inner->states.base);
    }
    *inner = (struct inner){0};
}

void inner_step(struct inner *inner, uint64_t id, float *weights, const float *grad,
                float grad_scale, double lr, int thread) {
    const struct plan_block *planned = &inner->plan->blocks[id];
    struct inner_block *block = &inner->blocks[id];
    struct optimizer_piece piece = piece_of(planned);
    if (planned->fragment == PLAN_FROZEN) {
        return;
    }
    block->updates++;
    const struct optimizer_update update = {.lr = (float)(lr * planned->rate),
                                            .decay =
                                                (float)(inner->job->weight_decay * planned->decay),
                                            .grad_scale = grad_scale,
                                            .step = block->updates};
    optimizer_device_step(inner->device, &inner->optimizer, &update, &piece, weights, block->state,
                          grad, inner->scratch + (size_t)thread * inner->scratch_bytes);
}

void inner_forget(struct inner *inner, uint64_t id) {
    struct inner_block *block = &inner->blocks[id];
    if (block->state_bytes > 0) {
        device_zero(inner->device, DEVICE_COMPUTE, block->state, block->state_bytes);
    }
    block->updates = 0;
}

float gradient_clip(const struct job *job, double norm) {
    double factor = job->clip > 0 ? job->clip / (norm + 1e-6) : 1;
    return factor < 1 ? (float)factor : 1.0F;
}
