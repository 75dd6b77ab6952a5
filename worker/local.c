#include "worker/local.h"

#include "base/assert.h"
#include "kernels/compute.h"

#include <math.h>
#include <omp.h>
#include <string.h>

static size_t vector_bytes(const struct plan *plan) {
    return (size_t)plan->value_count * sizeof(float);
}

uint64_t local_device_bytes(const struct plan *plan) {
    return 2 * (uint64_t)vector_bytes(plan) + squares_device_bytes(plan);
}

/* On the host anchor and delta are the ones that the exchange knows. */
static enum status take_vectors(struct local *local) {
    struct device *device = local->place.device;
    size_t vector = vector_bytes(local->plan);
    TRY(arena_init(&local->arena, 2 * arena_need(vector)));
    local->anchor = arena_take(&local->arena, vector);
    local->delta = arena_take(&local->arena, vector);
    if (device_is_host(device)) {
        local->own_anchor = local->anchor;
        local->own_delta = local->delta;
        return STATUS_OK;
    }
    local->pinned = device_pin(device, local->arena.base, local->arena.bytes);
    local->own_anchor = device_take(device, vector);
    if (local->own_anchor != NULL) local->own_delta = device_take(device, vector);
    return local->own_delta != NULL ? STATUS_OK : STATUS_MEMORY;
}

enum status local_init(struct local *local, const struct job *job, const struct plan *plan,
                       const struct local_place *place) {
    bool host = device_is_host(place->device);
    *local = (struct local){.job = job,
                            .plan = plan,
                            .place = *place,
                            .resets = strcmp(job->inner_state, "reset") == 0,
                            .threads = host ? omp_get_max_threads() : 1};
    local->ready = device_event_open(place->device);
    enum status status = take_vectors(local);
    if (status == STATUS_OK) {
        status = squares_init(&local->squares, plan, place->device);
    }
    if (status == STATUS_OK) {
        status = inner_init(&local->inner, job, plan, place->device, local->threads);
    }
    if (status != STATUS_OK) {
        local_free(local);
    }
    return status;
}

void local_free(struct local *local) {
    static const enum device_queue queues[] = {DEVICE_COMPUTE, DEVICE_CODEC};
    struct device *device = local->place.device;
    if (device == NULL) {
        return;
    }
    for (size_t i = 0; i < sizeof(queues) / sizeof(queues[0]); i++) {
        enum status status = device_wait(device, queues[i]);
        (void)status; /* one that failed is idle, too */
    }
    inner_free(&local->inner);
    squares_free(&local->squares);
    if (local->own_anchor != local->anchor) {
        device_give(device, local->own_anchor);
        device_give(device, local->own_delta);
    }
    if (local->pinned) {
        device_unpin(device, local->arena.base);
    }
    device_event_close(device, local->ready);
    arena_free(&local->arena);
    *local = (struct local){0};
}

enum status local_step(struct local *local, double weight, double lr) {
    const struct plan *plan = local->plan;
    const struct local_place *place = &local->place;
    int64_t count = (int64_t)plan->block_count;
    double norm = 0;
    ASSERT(weight > 0);
    TRY(squares_norm(&local->squares, place->grad, &norm));
    norm /= weight;
    if (!isfinite(norm)) {
        return STATUS_CORRUPT;
    }
    float scale = gradient_clip(local->job, norm) * (float)(1.0 / weight);
#pragma omp parallel for schedule(dynamic) num_threads(local->threads)
    for (int64_t id = 0; id < count; id++) {
        uint64_t offset = plan->blocks[id].offset;
        inner_step(&local->inner, (uint64_t)id, place->weights + offset, place->grad + offset,
                   scale, lr, omp_get_thread_num());
    }
    return STATUS_OK;
}

static bool is_of(const struct plan_block *block, uint64_t fragment) {
    return fragment == LOCAL_ALL || block->fragment == fragment;
}

enum status local_delta(struct local *local, uint64_t fragment, double weight, bool stays,
                        const float **delta) {
    const struct plan *plan = local->plan;
    struct device *device = local->place.device;
    for (uint64_t id = 0; id < plan->block_count; id++) {
        const struct plan_block *block = &plan->blocks[id];
        uint64_t at = block->offset;
        if (!is_of(block, fragment)) {
            continue;
        }
        device->compute->anchor_delta(device, local->own_anchor + at, local->place.weights + at,
                                      (float)weight, local->own_delta + at, (int64_t)block->count);
        if (!stays && local->delta != local->own_delta) {
            device_copy(device, DEVICE_COMPUTE, local->delta + at, local->own_delta + at,
                        (size_t)block->count * sizeof(float), DEVICE_FROM);
        }
    }
    device_event_record(device, local->ready, DEVICE_COMPUTE);
    *delta = stays ? local->own_delta : local->delta;
    return stays ? STATUS_OK : device_sync(device, local->ready);
}

/* The device's anchor is the host's. */
static void bring_anchor(struct local *local, const struct plan_block *block) {
    if (local->anchor != local->own_anchor) {
        device_copy(local->place.device, DEVICE_COMPUTE, local->own_anchor + block->offset,
                    local->anchor + block->offset, (size_t)block->count * sizeof(float), DEVICE_TO);
    }
}

static void install_block(struct local *local, uint64_t id, float mix) {
    const struct plan_block *planned = &local->plan->blocks[id];
    struct device *device = local->place.device;
    const float *anchor = local->own_anchor + planned->offset;
    float *own = local->place.weights + planned->offset;
    bool sound = planned->fragment == PLAN_FROZEN || isfinite(local->squares.sums[id]);
    if (mix == 0 || !sound) {
        device_copy(device, DEVICE_COMPUTE, own, anchor, (size_t)planned->count * sizeof(float),
                    DEVICE_WITHIN);
    } else {
        device->compute->anchor_mix(device, anchor, mix, own, (int64_t)planned->count);
    }
    if (local->resets || !sound) {
        inner_forget(&local->inner, id);
    }
}

enum status local_install(struct local *local, uint64_t fragment) {
    const struct plan *plan = local->plan;
    float mix = fragment == LOCAL_ALL ? 0 : (float)local->job->mix;
    for (uint64_t id = 0; id < plan->block_count; id++) {
        if (is_of(&plan->blocks[id], fragment)) {
            bring_anchor(local, &plan->blocks[id]);
        }
    }
    /* It waits: what the session does with the host's anchor from now on changes no copy. */
    TRY(squares_make(&local->squares, local->place.weights, fragment));
    for (uint64_t id = 0; id < plan->block_count; id++) {
        if (is_of(&plan->blocks[id], fragment)) {
            install_block(local, id, mix);
        }
    }
    return STATUS_OK;
}
