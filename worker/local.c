#include "worker/local.h"

#include "base/assert.h"
#include "kernels/compute.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* The blocks of all fragments, without frozen ones. */
#define LOCAL_MOVING (LOCAL_ALL - 1)

static bool is_of(const struct plan_block *block, uint64_t fragment) {
    return fragment == LOCAL_ALL || block->fragment == fragment ||
           (fragment == LOCAL_MOVING && block->fragment != PLAN_FROZEN);
}

static size_t block_bytes(const struct plan_block *block) {
    return (size_t)block->count * sizeof(float);
}

/* ---- set-up ---- */

static size_t own_bytes(const struct plan *plan, const uint8_t *owners, int rank) {
    size_t bytes = 0;
    for (uint64_t id = 0; id < plan->block_count; id++) {
        bytes += owner_is(owners, id, rank) ? block_bytes(&plan->blocks[id]) : 0;
    }
    return bytes;
}

uint64_t local_device_bytes(const struct plan *plan, const uint8_t *owners, int rank) {
    return 2 * (uint64_t)own_bytes(plan, owners, rank) + squares_device_bytes(plan);
}

/* Which blocks are whose, and where among them. */
static void share_blocks(struct local *local) {
    const struct plan *plan = local->plan;
    uint64_t taken[GROUP_MAX] = {0};
    size_t count = (size_t)plan->block_count;
    local->at = memory_zeroed(count, sizeof(*local->at));
    if (local->count > 1) {
        local->owners = memory_zeroed(count, sizeof(*local->owners));
        local->pieces = memory_zeroed(count * (size_t)local->count, sizeof(*local->pieces));
        owner_assign(plan, local->count, local->owners);
    }
    for (uint64_t id = 0; id < plan->block_count; id++) {
        int owner = local->owners != NULL ? local->owners[id] : 0;
        local->at[id] = taken[owner];
        taken[owner] += plan->blocks[id].count;
    }
}

/* The ones that the exchange knows. */
static enum status take_vectors(struct local *local) {
    struct device *device = local->members[0].place.device;
    size_t vector = (size_t)local->plan->value_count * sizeof(float);
    TRY(arena_init(&local->arena, 2 * arena_need(vector)));
    local->anchor = arena_take(&local->arena, vector);
    local->delta = arena_take(&local->arena, vector);
    local->pinned =
        !device_is_host(device) && device_pin(device, local->arena.base, local->arena.bytes);
    return STATUS_OK;
}

static enum status open_member(struct local *local, int rank) {
    struct local_member *member = &local->members[rank];
    struct device *device = member->place.device;
    const struct inner_config inner = {.job = local->job,
                                       .plan = local->plan,
                                       .device = device,
                                       .threads = local->threads,
                                       .owners = local->owners,
                                       .rank = rank};
    member->ready = device_event_open(device);
    member->done = device_event_open(device);
    if (device_is_host(device)) {
        member->anchor = local->anchor;
        member->delta = local->delta;
    } else {
        size_t bytes = own_bytes(local->plan, local->owners, rank);
        bytes = bytes > 0 ? bytes : 1; /* more devices than blocks */
        member->anchor = device_take(device, bytes);
        if (member->anchor != NULL) member->delta = device_take(device, bytes);
    }
    if (member->delta == NULL) {
        return STATUS_MEMORY;
    }
    TRY(squares_init(&member->squares, local->plan, device, local->owners, rank));
    return inner_init(&member->inner, &inner);
}

enum status local_init(struct local *local, const struct job *job, const struct plan *plan,
                       struct node *node, const struct local_place *places, int count) {
    ASSERT(count >= 1 && count <= GROUP_MAX);
    bool host = device_is_host(places[0].device);
    ASSERT(count == 1 || !host);
    *local = (struct local){.job = job,
                            .plan = plan,
                            .node = count > 1 ? node : NULL,
                            .count = count,
                            .resets = strcmp(job->inner_state, "reset") == 0,
                            .threads = host ? omp_get_max_threads() : 1};
    for (int rank = 0; rank < count; rank++) {
        local->members[rank].place = places[rank];
    }
    share_blocks(local);
    enum status status = take_vectors(local);
    for (int rank = 0; rank < count && status == STATUS_OK; rank++) {
        status = open_member(local, rank);
    }
    if (status != STATUS_OK) {
        local_free(local);
    }
    return status;
}

static void close_member(const struct local *local, struct local_member *member) {
    static const enum device_queue queues[] = {DEVICE_COMPUTE, DEVICE_CODEC};
    struct device *device = member->place.device;
    for (size_t i = 0; i < sizeof(queues) / sizeof(queues[0]); i++) {
        enum status status = device_wait(device, queues[i]);
        (void)status; /* one that failed is idle, too */
    }
    if (member->inner.plan != NULL) inner_free(&member->inner);
    squares_free(&member->squares);
    if (member->anchor != local->anchor) {
        device_give(device, member->anchor);
        device_give(device, member->delta);
    }
    device_event_close(device, member->ready);
    device_event_close(device, member->done);
}

void local_free(struct local *local) {
    if (local->count == 0) {
        return;
    }
    for (int rank = 0; rank < local->count; rank++) {
        close_member(local, &local->members[rank]);
    }
    if (local->pinned) {
        device_unpin(local->members[0].place.device, local->arena.base);
    }
    free(local->owners);
    free(local->at);
    free(local->pieces);
    arena_free(&local->arena);
    *local = (struct local){0};
}

/* ---- what all places do ---- */

/* Each by the thread that drives its device -> the first that is not OK. */
static enum status do_parts(struct local *local, node_part_fn *part) {
    if (local->node == NULL) {
        part(local, 0);
        return local->members[0].status;
    }
    enum status status = node_each(local->node, part, local);
    for (int rank = 0; rank < local->count && status == STATUS_OK; rank++) {
        status = local->members[rank].status;
    }
    return status;
}

/* Has it the block, and does the fragment? */
static bool has(const struct local *local, int rank, uint64_t id, uint64_t fragment) {
    return is_of(&local->plan->blocks[id], fragment) && owner_is(local->owners, id, rank);
}

/* For what the member has queued; nobody is stuck. */
static void await(struct local *local, int rank) {
    struct local_member *member = &local->members[rank];
    device_event_record(member->place.device, member->done, DEVICE_COMPUTE);
    member->status = local->node != NULL ? group_sync(node_group(local->node), rank, member->done)
                                         : device_sync(member->place.device, member->done);
}

/* The fragment's own weights to the others, and theirs here. A member that has failed ends the
 * others' waits. */
static void spread(struct local *local, int rank, uint64_t fragment) {
    const struct plan *plan = local->plan;
    struct local_member *member = &local->members[rank];
    uint64_t count = 0;
    if (local->node == NULL) {
        return;
    }
    if (member->status != STATUS_OK) {
        group_abort(node_group(local->node), rank);
        return;
    }
    struct group_piece *pieces = local->pieces + (uint64_t)rank * plan->block_count;
    for (uint64_t id = 0; id < plan->block_count; id++) {
        const struct plan_block *block = &plan->blocks[id];
        if (is_of(block, fragment)) {
            pieces[count++] = (struct group_piece){.values = member->place.weights + block->offset,
                                                   .count = (int64_t)block->count,
                                                   .root = local->owners[id]};
        }
    }
    group_spread(node_group(local->node), rank, DEVICE_COMPUTE, pieces, count);
    await(local, rank);
}

/* ---- a step ---- */

static void norm_part(void *context, int rank) {
    struct local *local = context;
    struct local_member *member = &local->members[rank];
    squares_queue(&member->squares, member->place.grad, SQUARES_ALL);
    await(local, rank);
}

static double norm_of(const struct local *local) {
    double total = 0;
    for (uint64_t id = 0; id < local->plan->block_count; id++) {
        const struct local_member *member =
            &local->members[local->owners != NULL ? local->owners[id] : 0];
        if (local->plan->blocks[id].fragment != PLAN_FROZEN) total += member->squares.sums[id];
    }
    return sqrt(total);
}

static void step_part(void *context, int rank) {
    struct local *local = context;
    const struct plan *plan = local->plan;
    struct local_member *member = &local->members[rank];
    const struct local_place *place = &member->place;
    int64_t count = (int64_t)plan->block_count;
    member->status = STATUS_OK;
#pragma omp parallel for schedule(dynamic) num_threads(local->threads)
    for (int64_t id = 0; id < count; id++) {
        uint64_t offset = plan->blocks[id].offset;
        if (has(local, rank, (uint64_t)id, LOCAL_MOVING)) {
            inner_step(&member->inner, (uint64_t)id, place->weights + offset, place->grad + offset,
                       local->scale, local->lr, omp_get_thread_num());
        }
    }
    spread(local, rank, LOCAL_MOVING);
}

enum status local_step(struct local *local, double weight, double lr) {
    ASSERT(weight > 0);
    TRY(do_parts(local, norm_part));
    double norm = norm_of(local) / weight;
    if (!isfinite(norm)) {
        return STATUS_CORRUPT;
    }
    local->scale = gradient_clip(local->job, norm) * (float)(1.0 / weight);
    local->lr = lr;
    return do_parts(local, step_part);
}

/* ---- a report ---- */

static void delta_part(void *context, int rank) {
    struct local *local = context;
    const struct plan *plan = local->plan;
    struct local_member *member = &local->members[rank];
    struct device *device = member->place.device;
    for (uint64_t id = 0; id < plan->block_count; id++) {
        const struct plan_block *block = &plan->blocks[id];
        if (!has(local, rank, id, local->fragment)) {
            continue;
        }
        float *delta = member->delta + local->at[id];
        device->compute->anchor_delta(device, member->anchor + local->at[id],
                                      member->place.weights + block->offset, local->weight, delta,
                                      (int64_t)block->count);
        if (!local->stays && local->delta != member->delta) {
            device_copy(device, DEVICE_COMPUTE, local->delta + block->offset, delta,
                        block_bytes(block), DEVICE_FROM);
        }
    }
    device_event_record(device, member->ready, DEVICE_COMPUTE);
    member->status = STATUS_OK;
    if (!local->stays) await(local, rank);
}

enum status local_delta(struct local *local, uint64_t fragment, double weight, bool stays) {
    local->fragment = fragment;
    local->weight = (float)weight;
    local->stays = stays;
    return do_parts(local, delta_part);
}

const float *local_delta_of(const struct local *local, uint64_t block,
                            const struct device_event **ready) {
    const struct local_member *member =
        &local->members[local->owners != NULL ? local->owners[block] : 0];
    *ready = local->stays ? member->ready : NULL;
    return local->stays ? member->delta + local->at[block]
                        : local->delta + local->plan->blocks[block].offset;
}

/* ---- an answer ---- */

/* The device's anchor is the host's. */
static void bring_anchor(const struct local *local, const struct local_member *member,
                         uint64_t id) {
    const struct plan_block *block = &local->plan->blocks[id];
    if (member->anchor != local->anchor) {
        device_copy(member->place.device, DEVICE_COMPUTE, member->anchor + local->at[id],
                    local->anchor + block->offset, block_bytes(block), DEVICE_TO);
    }
}

static void install_block(const struct local *local, struct local_member *member, uint64_t id) {
    const struct plan_block *planned = &local->plan->blocks[id];
    struct device *device = member->place.device;
    const float *anchor = member->anchor + local->at[id];
    float *own = member->place.weights + planned->offset;
    bool sound = planned->fragment == PLAN_FROZEN || isfinite(member->squares.sums[id]);
    if (local->mix == 0 || !sound) {
        device_copy(device, DEVICE_COMPUTE, own, anchor, block_bytes(planned), DEVICE_WITHIN);
    } else {
        device->compute->anchor_mix(device, anchor, local->mix, own, (int64_t)planned->count);
    }
    if (local->resets || !sound) {
        inner_forget(&member->inner, id);
    }
}

static void install_part(void *context, int rank) {
    struct local *local = context;
    struct local_member *member = &local->members[rank];
    for (uint64_t id = 0; id < local->plan->block_count; id++) {
        if (has(local, rank, id, local->fragment)) bring_anchor(local, member, id);
    }
    squares_queue(&member->squares, member->place.weights, local->fragment);
    await(local, rank); /* what the session does with the host's anchor then changes no copy */
    for (uint64_t id = 0; id < local->plan->block_count && member->status == STATUS_OK; id++) {
        if (has(local, rank, id, local->fragment)) install_block(local, member, id);
    }
    spread(local, rank, local->fragment);
}

enum status local_install(struct local *local, uint64_t fragment) {
    local->fragment = fragment;
    local->mix = fragment == LOCAL_ALL ? 0 : (float)local->job->mix;
    return do_parts(local, install_part);
}
