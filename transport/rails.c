#include "transport/rails.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/memory.h"
#include "kernels/device.h"
#include "transport/channel_ucx.h"

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
    char card[RAIL_NAME_BYTES];
    const void *memory; /* [bytes] of the device, once it is told */
    size_t bytes;
};

struct rails_peer {
    bool lost;                /* or never connected */
    bool untold;              /* its PEER_LOST is to be told */
    bool missed;              /* a send to it has failed */
    int lost_by;              /* this rail, which is yet to be named; FIRST: none */
    bool connected[WAYS_MAX]; /* by these ways */
    size_t address_bytes;
    uint8_t address[CHANNEL_ADDRESS_MAX];
};

struct rails {
    struct channel base;
    struct way ways[WAYS_MAX];
    int count;
    int turn; /* the way that is polled first the next time */
    int epoll;
    uint32_t untold; /* such peers */
    uint32_t peers_max;
    struct rails_peer *peers; /* [peers_max] */
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
    struct rails_peer *to = &rails->peers[peer];
    if (to->lost && to->address_bytes > 0 &&
        !channel_ucx_connects_again(rails->ways[FIRST + 1].channel, peer))
        return STATUS_UNSUPPORTED;
    if (to->untold) rails->untold--;
    to->untold = to->missed = false;
    to->lost = true;
    to->lost_by = FIRST;
    for (int i = FIRST + 1; i < rails->count; i++) {
        if (to->connected[i]) channel_ucx_disconnect(enter(&rails->ways[i]), peer);
        to->connected[i] = false;
    }
    struct channel *first = enter(&rails->ways[FIRST]);
    TRY(first->ops->connect(first, peer, address, bytes));
    memcpy(to->address, address, bytes);
    to->address_bytes = bytes;
    to->connected[FIRST] = true;
    to->lost = false;
    return STATUS_OK;
}

/* Names the rail by which a peer was lost, once, when it is known and matters. */
static void name_rail(const struct rails *rails, uint32_t peer) {
    struct rails_peer *to = &rails->peers[peer];
    const struct way *way = &rails->ways[to->lost_by];
    if (to->lost_by == FIRST || !to->missed) return;
    log_warn("the connection of %s:%d by %s to peer %u %s", way->device->backend->name,
             way->device->index, way->card, peer,
             to->connected[to->lost_by] ? "broke" : "cannot be made");
    to->lost_by = FIRST;
}

static void note_miss(const struct rails *rails, uint32_t peer) {
    rails->peers[peer].missed = true;
    name_rail(rails, peer);
}

static void lose(const struct rails *rails, int number, uint32_t peer) {
    struct rails_peer *to = &rails->peers[peer];
    to->lost = true;
    to->lost_by = number;
    name_rail(rails, peer);
}

/* The first way sends what lies on no device. */
static enum status rails_memory(struct channel *channel, size_t bytes, uint8_t **memory) {
    struct channel *first = ((struct rails *)channel)->ways[FIRST].channel;
    return first->ops->memory(first, bytes, memory);
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
    log_info("%s:%d sends by %s", way->device->backend->name, way->device->index, way->card);
    return STATUS_OK;
}

static int way_of(const struct rails *rails, const uint8_t *payload) {
    for (int i = FIRST + 1; i < rails->count; i++) {
        const struct way *way = &rails->ways[i];
        if ((uintptr_t)payload - (uintptr_t)way->memory < way->bytes) return i;
    }
    return FIRST;
}

static enum status rails_send(struct channel *channel, uint32_t peer, const uint8_t *header,
                              const uint8_t *payload, size_t payload_bytes, uint64_t cookie) {
    struct rails *rails = (struct rails *)channel;
    ASSERT_OP(peer, <, rails->peers_max);
    struct rails_peer *to = &rails->peers[peer];
    if (to->lost) {
        note_miss(rails, peer);
        return STATUS_PEER_LOST;
    }
    int number = way_of(rails, payload);
    struct channel *inner = enter(&rails->ways[number]);
    bool *connected = &to->connected[number];
    if (!*connected)
        *connected = inner->ops->connect(inner, peer, to->address, to->address_bytes) == STATUS_OK;
    enum status status = STATUS_PEER_LOST;
    if (*connected) status = inner->ops->send(inner, peer, header, payload, payload_bytes, cookie);
    if (status == STATUS_PEER_LOST) {
        note_miss(rails, peer);
        lose(rails, number, peer);
        to->untold = true;
        rails->untold++;
    }
    return status;
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
            if (rails->peers[event.peer].lost) continue;
            lose(rails, number, event.peer);
        }
        if (event.kind == CHANNEL_SENT && event.status != STATUS_OK) note_miss(rails, event.peer);
        events[kept++] = event;
    }
    return kept;
}

/* Losses that a send has found. */
static size_t tell_losses(struct rails *rails, struct channel_event *events, size_t capacity) {
    size_t count = 0;
    for (uint32_t i = 0; rails->untold > 0 && count < capacity; i++) {
        ASSERT_OP(i, <, rails->peers_max);
        if (!rails->peers[i].untold) continue;
        rails->peers[i].untold = false;
        rails->untold--;
        events[count++] = (struct channel_event){
            .kind = CHANNEL_PEER_LOST, .peer = i, .status = STATUS_PEER_LOST};
    }
    return count;
}

static size_t rails_poll(struct channel *channel, struct channel_event *events, size_t capacity) {
    struct rails *rails = (struct rails *)channel;
    size_t count = tell_losses(rails, events, capacity);
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
    if (rails->untold > 0) return STATUS_AGAIN;
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
    free(rails->peers);
    free(rails);
}

static const struct channel_ops rails_ops = {
    .name = "rails",
    .address = rails_address,
    .connect = rails_connect,
    .memory = rails_memory,
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
                       const struct channel_config *config, const struct rail_choice *choice,
                       struct channel **channel) {
    ASSERT(config->device_count >= 1 && config->device_count <= GROUP_MAX);
    ASSERT(choice->count == config->device_count);
    struct rails *rails = memory_zeroed(1, sizeof *rails);
    rails->base.ops = &rails_ops;
    rails->ways[FIRST].channel = first;
    for (int i = 0; i < config->device_count; i++) {
        struct way *way = &rails->ways[FIRST + 1 + i];
        *way = (struct way){.channel = rails_of[i], .device = config->devices[i]};
        memcpy(way->card, choice->names[i], sizeof way->card);
    }
    rails->count = 1 + config->device_count;
    rails->peers_max = config->peers_max;
    rails->peers = memory_zeroed(config->peers_max, sizeof *rails->peers);
    for (uint32_t i = 0; i < config->peers_max; i++)
        rails->peers[i].lost = true;
    enum status status = watch_all(rails);
    if (status != STATUS_OK) {
        rails_close(&rails->base);
        return status;
    }
    *channel = &rails->base;
    return STATUS_OK;
}
