#include "worker/squares.h"

#include "base/assert.h"
#include "kernels/compute.h"

#include <math.h>
#include <omp.h>

uint64_t squares_device_bytes(const struct plan *plan) {
    return (plan->block_count + COMPUTE_SQUARES_SCRATCH) * sizeof(double);
}

enum status squares_init(struct squares *squares, const struct plan *plan, struct device *device,
                         const uint8_t *owners, int rank) {
    bool host = device_is_host(device);
    size_t count = (size_t)plan->block_count;
    *squares = (struct squares){.plan = plan,
                                .device = device,
                                .owners = owners,
                                .rank = rank,
                                .threads = host ? omp_get_max_threads() : 1};
    squares->sums = device_take_pinned(device, count * sizeof(double));
    squares->made = squares->sums;
    if (!host) {
        squares->made = device_take(device, (size_t)squares_device_bytes(plan));
        squares->scratch = squares->made != NULL ? squares->made + count : NULL;
    }
    if (squares->sums != NULL && squares->made != NULL) return STATUS_OK;
    squares_free(squares);
    return STATUS_MEMORY;
}

void squares_free(struct squares *squares) {
    if (squares->made != squares->sums) device_give(squares->device, squares->made);
    device_give_pinned(squares->device, squares->sums);
    *squares = (struct squares){0};
}

static bool is_of(const struct plan_block *block, uint64_t fragment) {
    if (fragment == SQUARES_ALL) return block->fragment != PLAN_FROZEN;
    return block->fragment == fragment;
}

void squares_queue(struct squares *squares, const float *values, uint64_t fragment) {
    const struct plan *plan = squares->plan;
    struct device *device = squares->device;
    int64_t count = (int64_t)plan->block_count;
#pragma omp parallel for schedule(dynamic) num_threads(squares->threads)
    for (int64_t id = 0; id < count; id++) {
        const struct plan_block *block = &plan->blocks[id];
        if (!is_of(block, fragment) || !owner_is(squares->owners, (uint64_t)id, squares->rank))
            continue;
        device->compute->sum_of_squares(device, values + block->offset, squares->scratch,
                                        squares->made + id, (int64_t)block->count);
    }
    if (squares->made != squares->sums) {
        device_copy(device, DEVICE_COMPUTE, squares->sums, squares->made,
                    (size_t)count * sizeof(double), DEVICE_FROM);
    }
}

enum status squares_norm(struct squares *squares, const float *values, double *norm) {
    double total = 0;
    ASSERT(squares->owners == NULL);
    squares_queue(squares, values, SQUARES_ALL);
    TRY(device_wait(squares->device, DEVICE_COMPUTE));
    for (uint64_t id = 0; id < squares->plan->block_count; id++) {
        if (squares->plan->blocks[id].fragment != PLAN_FROZEN) total += squares->sums[id];
    }
    *norm = sqrt(total);
    return STATUS_OK;
}
