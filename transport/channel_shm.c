#include "transport/channel_shm.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/memory.h"
#include "transport/shm_address.h"
#include "transport/shm_bounce.h"
#include "transport/shm_link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

/* Frames taken of one sender before the next one's turn. */
enum { FRAMES_A_TURN = 16 };

/* A channel that never sleeps looks at its sockets every so many polls; one that slept, at once. */
enum { POLLS_A_LOOK = 32, SOCKETS_A_LOOK = 64, ACCEPTS_A_LOOK = 64 };

/* Payloads that are copied share this much, or two of the longest. */
#define BOUNCE_BYTES ((size_t)1 << 20)

struct shm_peer {
    struct shm_out out;
    bool lost;        /* no send until it is connected again */
    bool lost_queued; /* its PEER_LOST event waits in the queue */
};

struct shm_send {
    uint64_t cookie;
    size_t payload_bytes;
    uint32_t peer;
    uint32_t piece; /* of the bounce ring, or SHM_BOUNCE_NONE */
    bool flying;
};

struct shm_slot {
    _Alignas(MEMORY_ALIGN) struct shm_frame frame;
    uint32_t in;
};

enum socket_kind { SOCKET_LISTENING, SOCKET_OUT, SOCKET_IN };

struct shm {
    struct channel base;
    struct channel_config config;
    struct channel_stats stats;
    struct arena arena; /* all tables */
    struct shm_address address;
    int listening, epoll;
    uint32_t sleep; /* number of the last sleep */
    bool asleep;
    bool warned;       /* of another user's process */
    uint32_t polls;    /* since the sockets were looked at */
    bool frames_first; /* of two polls, one tells of frames before it tells of sends */

    struct shm_peer *peers; /* [peers_max] */
    struct shm_in *ins;     /* [ins_max] senders to us */
    uint32_t ins_max, turn;
    uint32_t items; /* frames that may be on their way to a peer */
    struct shm_send *sends;
    uint32_t *free_sends; /* a stack of indices; likewise free_slots */
    uint32_t free_send_count;
    struct shm_slot *slots;
    uint32_t *free_slots;
    uint32_t free_slot_count;
    struct shm_memory regions[SHM_REGIONS_MAX]; /* the first: the bounce ring */
    uint32_t region_count;
    struct shm_bounce bounce;

    /* A circle that cannot overflow: at most one event a send and a peer is in it. */
    struct channel_event *events;
    uint32_t event_capacity, event_head, event_count;
};

static struct channel_event *queue_event(struct shm *shm, enum channel_event_kind kind) {
    ASSERT_OP(shm->event_count, <, shm->event_capacity);
    uint32_t at = (shm->event_head + shm->event_count++) % shm->event_capacity;
    struct channel_event *event = &shm->events[at];
    memset(event, 0, sizeof *event);
    event->kind = kind;
    return event;
}

static enum status watch(const struct shm *shm, int fd, enum socket_kind kind, uint32_t index) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)kind << 32 | index};
    if (epoll_ctl(shm->epoll, EPOLL_CTL_ADD, fd, &event) == 0) return STATUS_OK;
    log_error("cannot watch a Unix socket: %s", strerror(errno));
    return STATUS_IO;
}

/* ---- sending ---- */

static void queue_sent(struct shm *shm, struct shm_send *send, enum status status) {
    struct channel_event *event = queue_event(shm, CHANNEL_SENT);
    event->peer = send->peer;
    event->cookie = send->cookie;
    event->status = status;
    event->slot = (uint32_t)(send - shm->sends); /* the table's entry is free when it is told */
    if (send->piece != SHM_BOUNCE_NONE) shm_bounce_give(&shm->bounce, send->piece);
    send->flying = false;
    if (status != STATUS_OK) return;
    shm->stats.sent_frames++;
    shm->stats.sent_bytes += FRAME_BYTES + send->payload_bytes;
}

/* Ends the link to the peer, if there is one, and the sends in flight on it. */
static void close_peer(struct shm *shm, uint32_t number) {
    struct shm_peer *peer = &shm->peers[number];
    if (peer->out.fd < 0) return;
    shm_out_close(&peer->out);
    for (uint32_t i = 0; i < shm->config.sends_max; i++) {
        struct shm_send *send = &shm->sends[i];
        if (send->flying && send->peer == number) queue_sent(shm, send, STATUS_PEER_LOST);
    }
}

static void lose_peer(struct shm *shm, uint32_t number) {
    struct shm_peer *peer = &shm->peers[number];
    if (peer->out.fd < 0) return;
    close_peer(shm, number);
    peer->lost = true;
    if (peer->lost_queued) return;
    peer->lost_queued = true;
    struct channel_event *event = queue_event(shm, CHANNEL_PEER_LOST);
    event->peer = number;
    event->status = STATUS_PEER_LOST;
}

static enum status shm_address(struct channel *channel, uint8_t *address, size_t *bytes) {
    const struct shm *shm = (const struct shm *)channel;
    memcpy(address, &shm->address, sizeof shm->address);
    *bytes = sizeof shm->address;
    return STATUS_OK;
}

static enum status shm_connect(struct channel *channel, uint32_t number, const uint8_t *address,
                               size_t bytes) {
    struct shm *shm = (struct shm *)channel;
    ASSERT_OP(number, <, shm->config.peers_max);
    struct shm_peer *peer = &shm->peers[number];
    struct shm_address other;
    enum status status = shm_address_read(&other, address, bytes, &shm->address);
    if (status == STATUS_INVALID) {
        log_debug("shm: the address of peer %u is damaged", number);
        return status;
    }
    close_peer(shm, number);
    peer->lost = false;
    if (status != STATUS_OK) {
        log_debug("shm: peer %u is on another host", number);
        return STATUS_PEER_LOST;
    }
    status = shm_out_open(&peer->out, other.name, shm->address.name, shm->items);
    if (status != STATUS_OK) {
        log_debug("shm: peer %u is on this host, but %s", number,
                  status == STATUS_DENIED ? "of another user" : "its socket cannot be reached");
        return status == STATUS_MEMORY ? status : STATUS_PEER_LOST;
    }
    for (uint32_t i = 0; i < shm->region_count && status == STATUS_OK; i++) {
        status = shm_out_tell_region(&peer->out, &shm->regions[i]);
    }
    if (status == STATUS_OK) status = watch(shm, peer->out.fd, SOCKET_OUT, number);
    if (status != STATUS_OK) {
        shm_out_close(&peer->out);
        return STATUS_PEER_LOST;
    }
    return STATUS_OK;
}

/* Is the payload where peers can read it? */
static bool find_region(const struct shm *shm, const uint8_t *payload, struct shm_frame *frame) {
    uintptr_t at = (uintptr_t)payload;
    for (uint32_t i = 1; i < shm->region_count; i++) {
        const struct shm_memory *region = &shm->regions[i];
        uintptr_t base = (uintptr_t)region->base;
        if (at >= base && at - base <= region->bytes &&
            frame->bytes <= region->bytes - (at - base) && (at - base) % MEMORY_ALIGN == 0) {
            frame->region = i;
            frame->offset = at - base;
            return true;
        }
    }
    return false;
}

/* Copies the payload to where peers can read it. AGAIN: there is no room now. */
static enum status bounce(struct shm *shm, const uint8_t *payload, struct shm_frame *frame,
                          uint32_t *piece) {
    size_t offset;
    ASSERT_OP(frame->bytes, <=, shm->bounce.bytes);
    *piece = shm_bounce_take(&shm->bounce, (size_t)frame->bytes, &offset);
    if (*piece == SHM_BOUNCE_NONE) return STATUS_AGAIN;
    memcpy(shm->regions[0].base + offset, payload, (size_t)frame->bytes);
    frame->region = 0;
    frame->offset = offset;
    return STATUS_OK;
}

static enum status shm_send(struct channel *channel, uint32_t number, const uint8_t *header,
                            const uint8_t *payload, size_t payload_bytes, uint64_t cookie) {
    struct shm *shm = (struct shm *)channel;
    ASSERT_OP(number, <, shm->config.peers_max);
    struct shm_peer *peer = &shm->peers[number];
    if (peer->out.fd < 0) return STATUS_PEER_LOST;
    if (shm->free_send_count == 0 || peer->out.flying == peer->out.outbox.items) {
        return STATUS_AGAIN;
    }
    uint32_t token = shm->free_sends[shm->free_send_count - 1];
    uint32_t piece = SHM_BOUNCE_NONE;
    struct shm_frame frame = {.token = token, .bytes = payload_bytes};
    memcpy(frame.header, header, FRAME_BYTES);
    if (payload_bytes > 0 && !find_region(shm, payload, &frame)) {
        TRY(bounce(shm, payload, &frame, &piece));
    }
    shm->sends[token] = (struct shm_send){.cookie = cookie,
                                          .payload_bytes = payload_bytes,
                                          .peer = number,
                                          .piece = piece,
                                          .flying = true};
    shm->free_send_count--;
    ASSERT(shm_out_put(&peer->out, &frame) == STATUS_OK);
    return STATUS_OK;
}

/* What the peer has released. */
static void collect_returns(struct shm *shm, uint32_t number) {
    struct shm_out *out = &shm->peers[number].out;
    enum status status = STATUS_OK;
    while (out->fd >= 0 && out->flying > 0 && status == STATUS_OK) {
        uint32_t token;
        status = shm_out_take(out, &token);
        if (status != STATUS_OK) break;
        if (token < shm->config.sends_max && shm->sends[token].flying &&
            shm->sends[token].peer == number) {
            queue_sent(shm, &shm->sends[token], STATUS_OK);
        } else {
            status = STATUS_CORRUPT;
        }
    }
    if (status == STATUS_CORRUPT) {
        log_warn("shm: peer %u returned what it was not sent: its connection is closed", number);
        lose_peer(shm, number);
    }
}

static enum status shm_take_memory(struct channel *channel, size_t bytes, uint8_t **memory) {
    struct shm *shm = (struct shm *)channel;
    ASSERT_OP(shm->region_count, <, SHM_REGIONS_MAX);
    struct shm_memory *region = &shm->regions[shm->region_count];
    TRY(shm_memory_create(region, bytes));
    shm->region_count++;
    for (uint32_t i = 0; i < shm->config.peers_max; i++) {
        struct shm_out *out = &shm->peers[i].out;
        if (out->fd >= 0 && shm_out_tell_region(out, region) != STATUS_OK) lose_peer(shm, i);
    }
    *memory = region->base;
    return STATUS_OK;
}

/* ---- receiving ---- */

/* The sender has closed, or sent nonsense: then the way to it is closed, too. */
static void end_in(struct shm *shm, struct shm_in *in, enum status status) {
    if (in->fd >= 0) close(in->fd);
    in->fd = -1;
    if (status == STATUS_PEER_LOST) return;
    in->broken = true;
    log_warn("shm: cannot take what a peer shares (%s): its connection is closed",
             status_text(status));
    for (uint32_t i = 0; i < shm->config.peers_max; i++) {
        const struct shm_out *out = &shm->peers[i].out;
        if (out->fd >= 0 && memcmp(out->name, in->name, SHM_NAME_BYTES) == 0) lose_peer(shm, i);
    }
}

static bool has_frames(const struct shm_in *in) {
    return in->used && !in->broken && in->outbox_memory.base && shm_box_has(&in->outbox);
}

/* Gives the entry back when nothing more can come of it. */
static void sweep_in(struct shm_in *in) {
    if (in->used && in->fd < 0 && in->held == 0 && !has_frames(in)) shm_in_close(in);
}

static void take_sender(struct shm *shm, int fd) {
    uint32_t i = 0;
    while (i < shm->ins_max && shm->ins[i].used) {
        i++;
    }
    if (i < shm->ins_max && watch(shm, fd, SOCKET_IN, i) == STATUS_OK) {
        shm_in_init(&shm->ins[i], fd);
    } else {
        log_warn("shm: more peers than expected: one is refused");
        close(fd);
    }
}

static void take_connections(struct shm *shm) {
    for (int i = 0; i < ACCEPTS_A_LOOK; i++) {
        int fd = -1;
        enum status status = shm_socket_accept(shm->listening, &fd);
        if (status == STATUS_AGAIN) return;
        if (status == STATUS_OK) {
            take_sender(shm, fd);
        } else if (!shm->warned) {
            shm->warned = true;
            log_warn("shm: a process of another user wanted to connect: refused");
        }
    }
}

static void read_socket(struct shm *shm, enum socket_kind kind, uint32_t index) {
    if (kind == SOCKET_LISTENING) {
        take_connections(shm);
    } else if (kind == SOCKET_OUT && shm->peers[index].out.fd >= 0) {
        if (shm_out_read(&shm->peers[index].out) != STATUS_OK) {
            collect_returns(shm, index); /* what it released before it went has arrived */
            lose_peer(shm, index);
        }
    } else if (kind == SOCKET_IN && shm->ins[index].fd >= 0) {
        enum status status = shm_in_read(&shm->ins[index]);
        if (status != STATUS_OK) end_in(shm, &shm->ins[index], status);
    }
}

static void look_at_sockets(struct shm *shm) {
    struct epoll_event events[SOCKETS_A_LOOK];
    shm->polls = 0;
    int count = epoll_wait(shm->epoll, events, SOCKETS_A_LOOK, 0);
    for (int i = 0; i < count; i++) {
        uint64_t which = events[i].data.u64;
        read_socket(shm, (enum socket_kind)(which >> 32), (uint32_t)which);
    }
}

static void return_frame(struct shm_in *in, uint32_t token) {
    shm_in_return(in, token);
    sweep_in(in);
}

/* One frame of this sender's -> *event. AGAIN: there is none, or it was refused. */
static enum status take_frame(struct shm *shm, uint32_t index, struct channel_event *event) {
    struct shm_in *in = &shm->ins[index];
    uint32_t number = shm->free_slots[shm->free_slot_count - 1];
    struct shm_slot *slot = &shm->slots[number];
    const uint8_t *payload;
    enum status status = shm_in_take(in, &slot->frame, &payload);
    if (status != STATUS_OK) {
        if (status != STATUS_AGAIN) end_in(shm, in, status);
        return STATUS_AGAIN;
    }
    in->held++;
    if (slot->frame.bytes > shm->config.slot_bytes) {
        shm->stats.refused++;
        return_frame(in, slot->frame.token);
        return STATUS_AGAIN;
    }
    slot->in = index;
    shm->free_slot_count--;
    *event = (struct channel_event){.kind = CHANNEL_RECEIVED,
                                    .slot = number,
                                    .header = (const uint8_t *)slot->frame.header,
                                    .payload = payload,
                                    .payload_bytes = (size_t)slot->frame.bytes};
    shm->stats.received_frames++;
    shm->stats.received_bytes += FRAME_BYTES + event->payload_bytes;
    return STATUS_OK;
}

static size_t take_frames(struct shm *shm, struct channel_event *events, size_t capacity) {
    size_t count = 0;
    uint32_t first = shm->turn;
    for (uint32_t i = 0; i < shm->ins_max; i++) {
        uint32_t index = (first + i) % shm->ins_max;
        struct shm_in *in = &shm->ins[index];
        for (int k = 0; k < FRAMES_A_TURN && count < capacity && shm->free_slot_count > 0; k++) {
            if (!has_frames(in)) break;
            if (take_frame(shm, index, &events[count]) == STATUS_OK) count++;
            shm->turn = (index + 1) % shm->ins_max;
        }
        sweep_in(in);
    }
    return count;
}

/* ---- the owner's loop ---- */

static size_t take_events(struct shm *shm, struct channel_event *events, size_t capacity) {
    size_t count = 0;
    while (count < capacity && shm->event_count > 0) {
        struct channel_event *event = &shm->events[shm->event_head];
        shm->event_head = (shm->event_head + 1) % shm->event_capacity;
        shm->event_count--;
        if (event->kind == CHANNEL_SENT) {
            shm->free_sends[shm->free_send_count++] = event->slot;
            event->slot = 0;
        } else {
            shm->peers[event->peer].lost_queued = false;
            if (!shm->peers[event->peer].lost) continue; /* connected again meanwhile */
        }
        events[count++] = *event;
    }
    return count;
}

/* Says to all peers whether this side sleeps. */
static void set_sleep(struct shm *shm, uint32_t number) {
    for (uint32_t i = 0; i < shm->config.peers_max; i++) {
        const struct shm_out *out = &shm->peers[i].out;
        if (out->fd >= 0) shm_box_set_sleep(&out->outbox, number);
    }
    for (uint32_t i = 0; i < shm->ins_max; i++) {
        const struct shm_in *in = &shm->ins[i];
        if (in->returns_memory.base) shm_box_set_sleep(&in->returns, number);
    }
}

static size_t shm_poll(struct channel *channel, struct channel_event *events, size_t capacity) {
    struct shm *shm = (struct shm *)channel;
    if (shm->asleep) set_sleep(shm, 0);
    if (shm->asleep || ++shm->polls >= POLLS_A_LOOK) look_at_sockets(shm);
    shm->asleep = false;
    for (uint32_t i = 0; i < shm->config.peers_max; i++) {
        collect_returns(shm, i);
    }
    shm->frames_first = !shm->frames_first;
    size_t count = 0;
    if (shm->frames_first) count = take_frames(shm, events, capacity);
    count += take_events(shm, events + count, capacity - count);
    if (!shm->frames_first) count += take_frames(shm, events + count, capacity - count);
    return count;
}

static void shm_release(struct channel *channel, uint32_t number) {
    struct shm *shm = (struct shm *)channel;
    ASSERT_OP(number, <, shm->config.slots);
    ASSERT_OP(shm->free_slot_count, <, shm->config.slots);
    shm->free_slots[shm->free_slot_count++] = number;
    return_frame(&shm->ins[shm->slots[number].in], shm->slots[number].frame.token);
}

static int shm_wait_fd(struct channel *channel) {
    return ((const struct shm *)channel)->epoll;
}

static enum status shm_arm(struct channel *channel) {
    struct shm *shm = (struct shm *)channel;
    if (shm->event_count > 0) return STATUS_AGAIN;
    shm->sleep += shm->sleep == UINT32_MAX ? 2 : 1; /* 0 is awake */
    shm->asleep = true;
    set_sleep(shm, shm->sleep);
    for (uint32_t i = 0; i < shm->config.peers_max; i++) {
        const struct shm_out *out = &shm->peers[i].out;
        if (out->fd >= 0 && out->returned.base && shm_box_has(&out->returns)) return STATUS_AGAIN;
    }
    for (uint32_t i = 0; i < shm->ins_max && shm->free_slot_count > 0; i++) {
        const struct shm_in *in = &shm->ins[i];
        if (has_frames(in)) return STATUS_AGAIN;
    }
    return STATUS_OK;
}

static void shm_stats(const struct channel *channel, struct channel_stats *stats) {
    const struct shm *shm = (const struct shm *)channel;
    *stats = shm->stats;
    for (uint32_t i = 0; i < shm->config.peers_max; i++) {
        stats->shared_peers += shm->peers[i].out.fd >= 0 ? 1 : 0;
    }
}

/* ---- opening and closing ---- */

static void shm_close(struct channel *channel) {
    struct shm *shm = (struct shm *)channel;
    for (uint32_t i = 0; i < shm->config.peers_max && shm->peers; i++) {
        shm_out_close(&shm->peers[i].out);
    }
    for (uint32_t i = 0; i < shm->ins_max && shm->ins; i++) {
        if (shm->ins[i].used) shm_in_close(&shm->ins[i]);
    }
    for (uint32_t i = 0; i < shm->region_count; i++) {
        shm_memory_free(&shm->regions[i]);
    }
    if (shm->listening >= 0) close(shm->listening);
    if (shm->epoll >= 0) close(shm->epoll);
    arena_free(&shm->arena);
    free(shm);
}

static const struct channel_ops shm_ops = {
    .name = "shm",
    .address = shm_address,
    .connect = shm_connect,
    .memory = shm_take_memory,
    .send = shm_send,
    .poll = shm_poll,
    .release = shm_release,
    .wait_fd = shm_wait_fd,
    .arm = shm_arm,
    .stats = shm_stats,
    .close = shm_close,
};

/* Carves all tables out of one arena. */
static enum status take_tables(struct shm *shm) {
    const struct channel_config *config = &shm->config;
    /* An ended sender keeps its entry while its slots are held, and the next may be there. */
    shm->ins_max = 2 * config->peers_max + 16;
    shm->event_capacity = config->sends_max + config->peers_max;
    uint32_t flying_max = config->peer_sends_max > 0 ? config->peer_sends_max : config->sends_max;
    shm->items = 1;
    while (shm->items < flying_max && shm->items < SHM_ITEMS_MAX) {
        shm->items *= 2;
    }
    size_t sends = config->sends_max;
    size_t slots = config->slots;
    size_t bytes =
        arena_need(config->peers_max * sizeof *shm->peers) +
        arena_need(shm->ins_max * sizeof *shm->ins) + arena_need(sends * sizeof *shm->sends) +
        arena_need(sends * sizeof *shm->free_sends) + arena_need(slots * sizeof *shm->slots) +
        arena_need(slots * sizeof *shm->free_slots) +
        arena_need(sends * sizeof *shm->bounce.pieces) +
        arena_need(shm->event_capacity * sizeof *shm->events);
    TRY(arena_init(&shm->arena, bytes));
    shm->peers = arena_take(&shm->arena, config->peers_max * sizeof *shm->peers);
    shm->ins = arena_take(&shm->arena, shm->ins_max * sizeof *shm->ins);
    shm->sends = arena_take(&shm->arena, sends * sizeof *shm->sends);
    shm->free_sends = arena_take(&shm->arena, sends * sizeof *shm->free_sends);
    shm->slots = arena_take(&shm->arena, slots * sizeof *shm->slots);
    shm->free_slots = arena_take(&shm->arena, slots * sizeof *shm->free_slots);
    shm->bounce.pieces = arena_take(&shm->arena, sends * sizeof *shm->bounce.pieces);
    shm->events = arena_take(&shm->arena, shm->event_capacity * sizeof *shm->events);
    shm->bounce.pieces_max = config->sends_max;
    for (uint32_t i = 0; i < config->peers_max; i++) {
        shm->peers[i].out.fd = -1;
    }
    for (uint32_t i = 0; i < config->sends_max; i++) {
        shm->free_sends[shm->free_send_count++] = i;
    }
    for (uint32_t i = 0; i < config->slots; i++) {
        shm->free_slots[shm->free_slot_count++] = i;
    }
    return STATUS_OK;
}

static enum status set_up(struct shm *shm) {
    size_t bytes = 2 * arena_need(shm->config.slot_bytes);
    uint8_t name[SHM_NAME_BYTES];
    TRY(take_tables(shm));
    TRY(shm_memory_create(&shm->regions[0], bytes > BOUNCE_BYTES ? bytes : BOUNCE_BYTES));
    shm->region_count = 1;
    shm->bounce.bytes = shm->regions[0].bytes;
    TRY(shm_socket_listen(&shm->listening, name));
    TRY(shm_address_make(&shm->address, name));
    shm->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (shm->epoll < 0) {
        log_error("cannot make an epoll descriptor: %s", strerror(errno));
        return STATUS_IO;
    }
    return watch(shm, shm->listening, SOCKET_LISTENING, 0);
}

enum status channel_shm_open(struct channel **channel, const struct channel_config *config) {
    ASSERT(config->peers_max > 0 && config->slots > 0 && config->sends_max > 0);
    struct shm *shm = memory_zeroed(1, sizeof *shm);
    shm->base.ops = &shm_ops;
    shm->config = *config;
    shm->listening = shm->epoll = -1;
    enum status status = set_up(shm);
    if (status != STATUS_OK) {
        shm_close(&shm->base);
        return status;
    }
    *channel = &shm->base;
    return STATUS_OK;
}
