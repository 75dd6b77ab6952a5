/* group_cpu.c - members meet twice in a collective: when each has shown its memory, and when each
 * has read what it needs of the others', which they may change then.
 */
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "kernels/group.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PIECE = 4096 };

struct group_host {
    struct group group;
    int timeout_ms;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int arrived;
    uint64_t meetings;
    enum status status;

    /* What the members show: read by the others between two meetings. */
    const void *from[GROUP_MAX];
    int64_t sizes[GROUP_MAX];
};

static struct group_host *host_of(struct group *group) {
    return (struct group_host *)(void *)group;
}

static enum status open_group(struct group **group, struct device *const *devices, int count,
                              int timeout_ms) {
    struct group_host *host = memory_zeroed(1, sizeof *host);
    pthread_condattr_t monotonic;
    (void)devices; /* all the host */
    host->group = (struct group){.ops = &group_cpu, .count = count};
    host->timeout_ms = timeout_ms;
    pthread_mutex_init(&host->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&host->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    *group = &host->group;
    return STATUS_OK;
}

static enum status close_group(struct group *group) {
    struct group_host *host = host_of(group);
    pthread_cond_destroy(&host->changed);
    pthread_mutex_destroy(&host->lock);
    free(host);
    return STATUS_OK;
}

/* With the lock. */
static void end_group(struct group_host *host, enum status status) {
    host->status = status;
    pthread_cond_broadcast(&host->changed);
}

static struct timespec deadline_after(int timeout_ms) {
    int64_t ns = clock_now_ns() + timeout_ms * CLOCK_MS;
    return (struct timespec){.tv_sec = (time_t)(ns / CLOCK_S), .tv_nsec = (long)(ns % CLOCK_S)};
}

/* False: the group has ended. */
static bool meet(struct group_host *host, int rank) {
    const struct timespec deadline = deadline_after(host->timeout_ms);
    pthread_mutex_lock(&host->lock);
    const uint64_t before = host->meetings;
    if (host->status == STATUS_OK && ++host->arrived == host->group.count) {
        host->arrived = 0;
        host->meetings++;
        pthread_cond_broadcast(&host->changed);
    }
    while (host->status == STATUS_OK && host->meetings == before) {
        if (pthread_cond_timedwait(&host->changed, &host->lock, &deadline) != ETIMEDOUT) continue;
        if (host->status != STATUS_OK || host->meetings != before) break;
        log_error("member %d of a group of %d on the host waited %d ms for the others in vain",
                  rank, host->group.count, host->timeout_ms);
        end_group(host, STATUS_TIMEOUT);
    }
    bool met = host->meetings != before;
    pthread_mutex_unlock(&host->lock);
    return met;
}

/* Shows this member's memory and waits for the others'. */
static bool show(struct group_host *host, int rank, const void *from, int64_t size) {
    host->from[rank] = from;
    host->sizes[rank] = size;
    if (!meet(host, rank)) return false;
    for (int i = 0; i < host->group.count; i++)
        ASSERT_OP(host->sizes[i], ==, size);
    return true;
}

/* Values offset .. of all members' sum number `index`; by way of memory of its own, since `to` is
 * one of the sources. */
static void sum_piece(const struct group_host *host, uint64_t index, int64_t offset, float *to,
                      int64_t count) {
    float sums[PIECE];
    for (int rank = 0; rank < host->group.count; rank++) {
        const float *from = ((const struct group_piece *)host->from[rank])[index].values + offset;
        if (rank == 0) memcpy(sums, from, (size_t)count * sizeof *sums);
        for (int64_t i = 0; rank > 0 && i < count; i++)
            sums[i] += from[i];
    }
    memcpy(to, sums, (size_t)count * sizeof *sums);
}

static void sum_to(struct group *group, int rank, enum device_queue queue,
                   const struct group_piece *sums, uint64_t count) {
    struct group_host *host = host_of(group);
    (void)queue;
    if (!show(host, rank, sums, (int64_t)count)) return;
    for (uint64_t index = 0; index < count; index++) {
        const struct group_piece *sum = &sums[index];
        for (int64_t i = 0; sum->root == rank && i < sum->count; i += PIECE)
            sum_piece(host, index, i, sum->values + i,
                      sum->count - i < PIECE ? sum->count - i : PIECE);
    }
    (void)meet(host, rank);
}

static void spread(struct group *group, int rank, enum device_queue queue,
                   const struct group_piece *pieces, uint64_t count) {
    struct group_host *host = host_of(group);
    (void)queue;
    if (!show(host, rank, pieces, (int64_t)count)) return;
    for (uint64_t index = 0; index < count; index++) {
        const struct group_piece *piece = &pieces[index];
        const struct group_piece *shown = host->from[piece->root];
        if (piece->root != rank && piece->count > 0)
            memcpy(piece->values, shown[index].values, (size_t)piece->count * sizeof(float));
    }
    (void)meet(host, rank);
}

static void gather(struct group *group, int rank, enum device_queue queue, const void *from,
                   void *to, size_t bytes) {
    struct group_host *host = host_of(group);
    (void)queue;
    if (!show(host, rank, from, (int64_t)bytes)) return;
    for (int i = 0; i < group->count; i++) {
        uint8_t *place = (uint8_t *)to + (size_t)i * bytes;
        if (place != host->from[i]) memcpy(place, host->from[i], bytes);
    }
    (void)meet(host, rank);
}

static enum status group_state(struct group *group) {
    struct group_host *host = host_of(group);
    pthread_mutex_lock(&host->lock);
    enum status status = host->status;
    pthread_mutex_unlock(&host->lock);
    return status;
}

static enum status sync_group(struct group *group, int rank, const struct device_event *event) {
    (void)rank;
    (void)event; /* always done */
    return group_state(group);
}

static void abort_group(struct group *group, int rank) {
    struct group_host *host = host_of(group);
    pthread_mutex_lock(&host->lock);
    if (host->status == STATUS_OK) {
        log_error("member %d of a group of %d on the host gave up", rank, group->count);
        end_group(host, STATUS_PEER_LOST);
    }
    pthread_mutex_unlock(&host->lock);
}

const struct group_ops group_cpu = {.open = open_group,
                                    .close = close_group,
                                    .sum_to = sum_to,
                                    .spread = spread,
                                    .gather = gather,
                                    .sync = sync_group,
                                    .status = group_state,
                                    .abort = abort_group};
