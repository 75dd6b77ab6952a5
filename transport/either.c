#include "transport/either.h"

#include "base/assert.h"
#include "base/checksum.h"
#include "base/log.h"
#include "base/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { SHM, NETWORK, KINDS, NO_KIND = KINDS };

struct address_head {
    uint32_t magic;
    uint32_t bytes[KINDS];
    uint32_t crc32c;
};
_Static_assert(sizeof(struct address_head) == 16, "part of the published address");
#define ADDRESS_MAGIC UINT32_C(0x54494552)

struct either {
    struct channel base;
    struct channel *channels[KINDS]; /* NULL: not used in this process */
    uint32_t peers_max;
    uint8_t *kinds; /* [peers_max] by which each is reached, or NO_KIND */
    struct way {
        uint32_t check; /* of its address */
        uint8_t kind;   /* or NO_KIND */
    } * last;           /* [peers_max] by which each was reached first */
    int first;          /* polled first the next time */
    int epoll;          /* of both; -1 where there is one */
};

static uint32_t check_of(struct address_head head, const uint8_t *parts, size_t bytes) {
    head.crc32c = checksum_crc32c(parts, bytes);
    return checksum_crc32c(&head, sizeof head);
}

static enum status either_address(struct channel *channel, uint8_t *address, size_t *bytes) {
    const struct either *either = (const struct either *)channel;
    struct address_head head = {.magic = ADDRESS_MAGIC};
    uint8_t part[CHANNEL_ADDRESS_MAX];
    size_t used = sizeof head;
    for (int kind = 0; kind < KINDS; kind++) {
        struct channel *inner = either->channels[kind];
        size_t part_bytes = 0;
        if (!inner) continue;
        TRY(inner->ops->address(inner, part, &part_bytes));
        if (part_bytes > CHANNEL_ADDRESS_MAX - used) {
            log_error("the data channel's addresses have %zu bytes, more than %zu: name fewer "
                      "--net-devices",
                      used + part_bytes, CHANNEL_ADDRESS_MAX);
            return STATUS_DEVICE;
        }
        memcpy(address + used, part, part_bytes);
        used += part_bytes;
        head.bytes[kind] = (uint32_t)part_bytes;
    }
    head.crc32c = check_of(head, address + sizeof head, used - sizeof head);
    memcpy(address, &head, sizeof head);
    *bytes = used;
    return STATUS_OK;
}

/* The parts of an address -> parts, NULL for a missing one. */
static enum status split(uint32_t peer, const uint8_t *address, size_t bytes,
                         struct address_head *head, const uint8_t *parts[KINDS]) {
    bool sound = bytes >= sizeof *head && bytes <= CHANNEL_ADDRESS_MAX;
    if (sound) {
        memcpy(head, address, sizeof *head);
        sound = head->magic == ADDRESS_MAGIC &&
                head->crc32c == check_of(*head, address + sizeof *head, bytes - sizeof *head) &&
                (uint64_t)head->bytes[SHM] + head->bytes[NETWORK] == bytes - sizeof *head;
    }
    if (!sound) {
        log_error("the data channel's address of peer %u is damaged, or it uses --channel tls",
                  peer);
        return STATUS_INVALID;
    }
    const uint8_t *part = address + sizeof *head;
    for (int kind = 0; kind < KINDS; kind++) {
        parts[kind] = head->bytes[kind] > 0 ? part : NULL;
        part += head->bytes[kind];
    }
    return STATUS_OK;
}

/* No kind that both have leads to the peer. */
static enum status refuse(const struct either *either, uint32_t peer, const uint8_t *const *parts) {
    if (either->channels[SHM] && parts[SHM]) {
        log_error(
            "data channel: peer %u cannot be reached by shared memory (another host, container "
            "or user, or it has ended), and %s has --channel shm: give --channel auto",
            peer, either->channels[NETWORK] ? "it" : "this process");
    } else {
        log_error("data channel: peer %u and this process have no kind in common, only %s has "
                  "--channel shm: give --channel auto",
                  peer, parts[SHM] ? "it" : "this process");
    }
    return STATUS_INVALID;
}

/* One that was lost is connected again by the kind by which it was: no other reaches it if that
 * does not. */
static enum status either_connect(struct channel *channel, uint32_t peer, const uint8_t *address,
                                  size_t bytes) {
    struct either *either = (struct either *)channel;
    struct address_head head;
    const uint8_t *parts[KINDS];
    ASSERT_OP(peer, <, either->peers_max);
    TRY(split(peer, address, bytes, &head, parts));
    struct way *last = &either->last[peer];
    const bool again = last->kind != NO_KIND && last->check == head.crc32c;
    either->kinds[peer] = NO_KIND;
    for (int kind = 0; kind < KINDS; kind++) {
        struct channel *inner = either->channels[kind];
        if (!inner || !parts[kind] || (again && kind != last->kind)) continue;
        enum status status = inner->ops->connect(inner, peer, parts[kind], head.bytes[kind]);
        if (status == STATUS_OK) {
            either->kinds[peer] = (uint8_t)kind;
            *last = (struct way){.check = head.crc32c, .kind = (uint8_t)kind};
            log_debug("data channel: peer %u by %s", peer, inner->ops->name);
            return STATUS_OK;
        }
        if (status == STATUS_MEMORY || kind == NETWORK) return status;
    }
    return again ? STATUS_PEER_LOST : refuse(either, peer, parts);
}

static enum status either_memory(struct channel *channel, size_t bytes, uint8_t **memory) {
    const struct either *either = (const struct either *)channel;
    struct channel *shm = either->channels[SHM], *network = either->channels[NETWORK];
    if (!shm) {
        if (!network->ops->memory) return STATUS_UNSUPPORTED;
        return network->ops->memory(network, bytes, memory);
    }
    TRY(shm->ops->memory(shm, bytes, memory));
    if (!network || !network->ops->device_memory) return STATUS_OK;
    enum status status = network->ops->device_memory(network, CHANNEL_HOST, *memory, bytes);
    return status == STATUS_UNSUPPORTED ? STATUS_OK : status;
}

/* Whom shared memory reaches reads payloads where the host has them. */
static enum status either_device_memory(struct channel *channel, int device, const void *memory,
                                        size_t bytes) {
    const struct either *either = (const struct either *)channel;
    struct channel *network = either->channels[NETWORK];
    if (either->channels[SHM] || !network->ops->device_memory) return STATUS_UNSUPPORTED;
    return network->ops->device_memory(network, device, memory, bytes);
}

static enum status either_send(struct channel *channel, uint32_t peer, const uint8_t *header,
                               const uint8_t *payload, size_t payload_bytes, uint64_t cookie) {
    struct either *either = (struct either *)channel;
    ASSERT_OP(peer, <, either->peers_max);
    if (either->kinds[peer] == NO_KIND) return STATUS_PEER_LOST;
    struct channel *inner = either->channels[either->kinds[peer]];
    return inner->ops->send(inner, peer, header, payload, payload_bytes, cookie);
}

/* The owner's view of an inner channel's events; returns how many are left. */
static size_t translate(const struct either *either, int kind, struct channel_event *events,
                        size_t count) {
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        struct channel_event event = events[i];
        if (event.kind == CHANNEL_RECEIVED) {
            event.slot = event.slot * KINDS + (uint32_t)kind;
        } else if (event.kind == CHANNEL_PEER_LOST && either->kinds[event.peer] != kind) {
            continue; /* connected again meanwhile, by the other kind */
        }
        events[kept++] = event;
    }
    return kept;
}

static size_t either_poll(struct channel *channel, struct channel_event *events, size_t capacity) {
    struct either *either = (struct either *)channel;
    size_t count = 0;
    int first = either->first;
    either->first = (first + 1) % KINDS;
    for (int i = 0; i < KINDS; i++) {
        int kind = (first + i) % KINDS;
        struct channel *inner = either->channels[kind];
        if (!inner) continue;
        size_t polled = inner->ops->poll(inner, events + count, capacity - count);
        count += translate(either, kind, events + count, polled);
    }
    return count;
}

static void either_release(struct channel *channel, uint32_t slot) {
    struct channel *inner = ((struct either *)channel)->channels[slot % KINDS];
    inner->ops->release(inner, slot / KINDS);
}

static int either_wait_fd(struct channel *channel) {
    struct either *either = (struct either *)channel;
    if (either->epoll >= 0) return either->epoll;
    struct channel *inner = either->channels[either->channels[SHM] ? SHM : NETWORK];
    return inner->ops->wait_fd(inner);
}

static enum status either_arm(struct channel *channel) {
    struct either *either = (struct either *)channel;
    for (int kind = 0; kind < KINDS; kind++) {
        struct channel *inner = either->channels[kind];
        if (inner) TRY(inner->ops->arm(inner));
    }
    return STATUS_OK;
}

static void either_stats(const struct channel *channel, struct channel_stats *stats) {
    const struct either *either = (const struct either *)channel;
    *stats = (struct channel_stats){0};
    for (int kind = 0; kind < KINDS; kind++) {
        const struct channel *inner = either->channels[kind];
        struct channel_stats part;
        if (!inner) continue;
        inner->ops->stats(inner, &part);
        stats->sent_bytes += part.sent_bytes;
        stats->received_bytes += part.received_bytes;
        stats->sent_frames += part.sent_frames;
        stats->received_frames += part.received_frames;
        stats->refused += part.refused;
        stats->shared_peers += part.shared_peers;
    }
}

static void either_close(struct channel *channel) {
    struct either *either = (struct either *)channel;
    /* The network sends from shared memory's memory. */
    for (int kind = KINDS - 1; kind >= 0; kind--) {
        struct channel *inner = either->channels[kind];
        if (inner) inner->ops->close(inner);
    }
    if (either->epoll >= 0) close(either->epoll);
    free(either->kinds);
    free(either->last);
    free(either);
}

static const struct channel_ops either_ops = {
    .name = "either",
    .address = either_address,
    .connect = either_connect,
    .memory = either_memory,
    .device_memory = either_device_memory,
    .send = either_send,
    .poll = either_poll,
    .release = either_release,
    .wait_fd = either_wait_fd,
    .arm = either_arm,
    .stats = either_stats,
    .close = either_close,
};

static enum status watch_both(struct either *either) {
    either->epoll = epoll_create1(EPOLL_CLOEXEC);
    bool sound = either->epoll >= 0;
    for (int kind = 0; kind < KINDS && sound; kind++) {
        struct channel *inner = either->channels[kind];
        struct epoll_event event = {.events = EPOLLIN};
        sound = epoll_ctl(either->epoll, EPOLL_CTL_ADD, inner->ops->wait_fd(inner), &event) == 0;
    }
    if (sound) return STATUS_OK;
    log_error("cannot watch two data channels: %s", strerror(errno));
    return STATUS_IO;
}

enum status either_open(struct channel *shm, struct channel *network,
                        const struct channel_config *config, struct channel **channel) {
    struct either *either = memory_zeroed(1, sizeof *either);
    ASSERT(shm || network);
    either->base.ops = &either_ops;
    either->channels[SHM] = shm;
    either->channels[NETWORK] = network;
    either->epoll = -1;
    either->peers_max = config->peers_max;
    either->kinds = memory_zeroed(config->peers_max, 1);
    memset(either->kinds, NO_KIND, config->peers_max);
    either->last = memory_zeroed(config->peers_max, sizeof *either->last);
    for (uint32_t i = 0; i < config->peers_max; i++)
        either->last[i].kind = NO_KIND;
    if (shm && network) {
        enum status status = watch_both(either);
        if (status != STATUS_OK) {
            either_close(&either->base);
            return status;
        }
    }
    *channel = &either->base;
    return STATUS_OK;
}
