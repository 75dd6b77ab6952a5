#include "kernels/group.h"

#include "base/assert.h"

enum status group_open(struct group **group, struct device *const *devices, int count,
                       int timeout_ms) {
    ASSERT(count >= 1 && count <= GROUP_MAX && timeout_ms >= 1);
    for (int i = 1; i < count; i++)
        ASSERT(devices[i]->backend == devices[0]->backend);
    return devices[0]->backend->group->open(group, devices, count, timeout_ms);
}

enum status group_close(struct group *group) {
    return group != NULL ? group->ops->close(group) : STATUS_OK;
}

void group_sum_to(struct group *group, int rank, enum device_queue queue,
                  const struct group_piece *sums, uint64_t count) {
    group->ops->sum_to(group, rank, queue, sums, count);
}

void group_spread(struct group *group, int rank, enum device_queue queue,
                  const struct group_piece *pieces, uint64_t count) {
    group->ops->spread(group, rank, queue, pieces, count);
}

void group_gather(struct group *group, int rank, enum device_queue queue, const void *from,
                  void *to, size_t bytes) {
    group->ops->gather(group, rank, queue, from, to, bytes);
}

enum status group_sync(struct group *group, int rank, const struct device_event *event) {
    return group->ops->sync(group, rank, event);
}

enum status group_status(struct group *group) {
    return group->ops->status(group);
}

void group_abort(struct group *group, int rank) {
    group->ops->abort(group, rank);
}
