#include "transport/rails.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/memory.h"
#include "kernels/device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { FIRST = 0, WAYS_MAX = 1 + GROUP_MAX };

/* The first channel, or a rail. */
struct way {
    struct channel *channel;
    struct device *device; /* NULL: the first channel's */
    const void *memory;    /* [bytes] of the device, once it is told */
    size_t bytes;
};

struct rails {
    struct channel base;
    struct way ways[WAYS_MAX];
    int count;
    int turn; /* the way that is polled first the next time */
    int epoll;
    uint32_t peers_max;
    bool *lost; /* [peers_max] */
};

/* The way's channel, ready to be called. */
static struct channel *enter(const struct way *way) {
    if (way->device != NULL) device_enter(way->device);
    return way->channel;
}

static enum status rails_address(struct channel *channel, uint8_t *address, size_t *bytes) {
    struct channel *first = ((struct rails *)channel)->ways[FIRST].channel;
    return first->ops->address(first, address, bytes);
}

static enum status rails_connect(struct channel *channel, uint32_t peer, const uint8_t *address,
                                 size_t bytes) {
    struct rails *rails = (struct rails *)channel;
    ASSERT_OP(peer, <, rails->peers_max);
    rails->lost[peer] = true;
    for (int i = 0; i < rails->count; i++) {
        struct channel *inner = enter(&rails->ways[i]);
        TRY(inner->ops->connect(inner, peer, address, bytes));
    }
    rails->lost[peer] = false;
    return STATUS_OK;
}

static enum status rails_device_memory(struct channel *channel, int device, const void *memory,
                                       size_t bytes) {
    struct rails *rails = (struct rails *)channel;
    ASSERT(device >= 0 && device < rails->count - 1);
    struct way *way = &rails->ways[FIRST + 1 + device];
    struct channel *inner = enter(way);
    TRY(inner->ops->device_memory(inner, 0, memory, bytes));
    if (bytes == 0) return STATUS_OK;
    way->memory = memory;
    way->bytes = bytes;
    return STATUS_OK;
}

static const struct way *way_of(const struct rails *rails, const uint8_t *payload) {
    for (int i = FIRST + 1; i < rails->count; i++) {
        const struct way *way = &rails->ways[i];
        if ((uintptr_t)payload - (uintptr_t)way->memory < way->bytes) return way;
    }
    return &rails->ways[FIRST];
}

static enum status rails_send(struct channel *channel, uint32_t peer, const uint8_t *header,
                              const uint8_t *payload, size_t payload_bytes, uint64_t cookie) {
    struct rails *rails = (struct rails *)channel;
    ASSERT_OP(peer, <, rails->peers_max);
    if (rails->lost[peer]) return STATUS_PEER_LOST;
    struct channel *inner = enter(way_of(rails, payload));
    return inner->ops->send(inner, peer, header, payload, payload_bytes, cookie);
}

/* The owner's view of a way's events; returns how many are left. */
static size_t translate(struct rails *rails, int number, struct channel_event *events,
                        size_t count) {
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        const struct channel_event event = events[i];
        if (event.kind == CHANNEL_RECEIVED && number != FIRST) {
            /* From somebody who was not told the address. */
            struct channel *inner = rails->ways[number].channel;
            inner->ops->release(inner, event.slot);
            continue;
        }
        if (event.kind == CHANNEL_PEER_LOST) {
            if (rails->lost[event.peer]) continue;
            rails->lost[event.peer] = true;
        }
        events[kept++] = event;
    }
    return kept;
}

static size_t rails_poll(struct channel *channel, struct channel_event *events, size_t capacity) {
    struct rails *rails = (struct rails *)channel;
    size_t count = 0;
    int turn = rails->turn;
    rails->turn = (turn + 1) % rails->count;
    for (int i = 0; i < rails->count; i++) {
        int number = (turn + i) % rails->count;
        struct channel *inner = enter(&rails->ways[number]);
        size_t polled = inner->ops->poll(inner, events + count, capacity - count);
        count += translate(rails, number, events + count, polled);
    }
    return count;
}

static void rails_release(struct channel *channel, uint32_t slot) {
    struct channel *first = ((struct rails *)channel)->ways[FIRST].channel;
    first->ops->release(first, slot);
}

static int rails_wait_fd(struct channel *channel) {
    return ((const struct rails *)channel)->epoll;
}

static enum status rails_arm(struct channel *channel) {
    struct rails *rails = (struct rails *)channel;
    for (int i = 0; i < rails->count; i++) {
        struct channel *inner = enter(&rails->ways[i]);
        TRY(inner->ops->arm(inner));
    }
    return STATUS_OK;
}

static void rails_stats(const struct channel *channel, struct channel_stats *stats) {
    const struct rails *rails = (const struct rails *)channel;
    const struct channel *first = rails->ways[FIRST].channel;
    first->ops->stats(first, stats);
    for (int i = FIRST + 1; i < rails->count; i++) {
        const struct channel *inner = rails->ways[i].channel;
        struct channel_stats part;
        inner->ops->stats(inner, &part);
        stats->sent_bytes += part.sent_bytes;
        stats->sent_frames += part.sent_frames;
    }
}

static void rails_close(struct channel *channel) {
    struct rails *rails = (struct rails *)channel;
    if (rails->epoll >= 0) close(rails->epoll);
    for (int i = rails->count - 1; i >= 0; i--) {
        struct channel *inner = enter(&rails->ways[i]);
        inner->ops->close(inner);
    }
    free(rails->lost);
    free(rails);
}

static const struct channel_ops rails_ops = {
    .name = "rails",
    .address = rails_address,
    .connect = rails_connect,
    .device_memory = rails_device_memory,
    .send = rails_send,
    .poll = rails_poll,
    .release = rails_release,
    .wait_fd = rails_wait_fd,
    .arm = rails_arm,
    .stats = rails_stats,
    .close = rails_close,
};

static enum status watch_all(struct rails *rails) {
    rails->epoll = epoll_create1(EPOLL_CLOEXEC);
    bool sound = rails->epoll >= 0;
    for (int i = 0; i < rails->count && sound; i++) {
        struct channel *inner = rails->ways[i].channel;
        struct epoll_event event = {.events = EPOLLIN};
        sound = epoll_ctl(rails->epoll, EPOLL_CTL_ADD, inner->ops->wait_fd(inner), &event) == 0;
    }
    if (sound) return STATUS_OK;
    log_error("cannot watch %d data channels: %s", rails->count, strerror(errno));
    return STATUS_IO;
}

enum status rails_open(struct channel *first, struct channel *const *rails_of,
                       const struct channel_config *config, struct channel **channel) {
    ASSERT(config->device_count >= 1 && config->device_count <= GROUP_MAX);
    struct rails *rails = memory_zeroed(1, sizeof *rails);
    rails->base.ops = &rails_ops;
    rails->ways[FIRST].channel = first;
    for (int i = 0; i < config->device_count; i++)
        rails->ways[FIRST + 1 + i] =
            (struct way){.channel = rails_of[i], .device = config->devices[i]};
    rails->count = 1 + config->device_count;
    rails->peers_max = config->peers_max;
    rails->lost = memory_zeroed(config->peers_max, sizeof *rails->lost);
    enum status status = watch_all(rails);
    if (status != STATUS_OK) {
        rails_close(&rails->base);
        return status;
    }
    *channel = &rails->base;
    return STATUS_OK;
}
