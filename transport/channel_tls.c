#include "transport/channel_tls.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "transport/channel_tls_parts.h"
#include "transport/tls_socket.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static struct tls *tls_of(struct channel *channel) {
    return (struct tls *)channel;
}

struct channel_event *tls_queue_event(struct tls *tls, enum channel_event_kind kind) {
    ASSERT_OP(tls->event_count, <, tls->event_capacity);
    uint32_t at = (tls->event_head + tls->event_count++) % tls->event_capacity;
    struct channel_event *event = &tls->events[at];
    memset(event, 0, sizeof *event);
    event->kind = kind;
    return event;
}

static enum status tls_address(struct channel *channel, uint8_t *address, size_t *bytes) {
    tls_hello_put_address(&tls_of(channel)->address, address);
    *bytes = TLS_ADDRESS_BYTES;
    return STATUS_OK;
}

static enum status tls_connect(struct channel *channel, uint32_t number, const uint8_t *bytes,
                               size_t count) {
    static const char *const wires[] = {"plain", "auth", "encrypt"};
    struct tls *tls = tls_of(channel);
    struct tls_address address;
    ASSERT_OP(number, <, tls->config.peers_max);
    if (tls_hello_get_address(bytes, count, &address) != STATUS_OK) {
        log_error("tls: the address of peer %u is damaged, or it uses another --channel", number);
        return STATUS_INVALID;
    }
    if (address.wire != tls->self.wire) {
        log_error("tls: peer %u has --wire %s, this process --wire %s", number, wires[address.wire],
                  wires[tls->self.wire]);
        return STATUS_INVALID;
    }
    if (tls->peers[number].connected) tls_progress_drop_peer(tls, number);
    tls->peers[number].connected = true;
    tls->peers[number].lost = false;
    int64_t now_ns = clock_now_ns();
    for (uint32_t n = 0; n < TLS_CHANNEL_LANES; n++) {
        uint32_t task = number * TLS_CHANNEL_LANES + n;
        tls_lane_open(&tls->lanes[task], &address, ++tls->links, now_ns);
        tls_progress_queue(tls, task);
    }
    return STATUS_OK;
}

static enum status tls_send(struct channel *channel, uint32_t number, const uint8_t *header,
                            const uint8_t *payload, size_t payload_bytes, uint64_t cookie) {
    struct tls *tls = tls_of(channel);
    ASSERT_OP(number, <, tls->config.peers_max);
    ASSERT_OP(payload_bytes, <=, FRAME_PAYLOAD_MAX);
    if (!tls->peers[number].connected) return STATUS_PEER_LOST;
    if (tls->free_send_count == 0) return STATUS_AGAIN;
    uint32_t index = tls->free_sends[--tls->free_send_count];
    struct tls_send *send = &tls->sends[index];
    memcpy(send->header, header, FRAME_BYTES);
    send->cookie = cookie;
    send->peer = number;
    send->payload = payload;
    send->payload_bytes = payload_bytes;
    uint32_t task = number * TLS_CHANNEL_LANES;
    for (uint32_t n = 1; n < TLS_CHANNEL_LANES; n++) {
        uint32_t other = number * TLS_CHANNEL_LANES + n;
        if (tls->lanes[other].queued_bytes < tls->lanes[task].queued_bytes) task = other;
    }
    tls_lane_push(&tls->lanes[task], index);
    /* Written by the next poll, with whatever else is sent till then. */
    if (tls_lane_is_ready(&tls->lanes[task])) tls_progress_queue(tls, task);
    return STATUS_OK;
}

static size_t take_events(struct tls *tls, struct channel_event *events, size_t capacity) {
    size_t count = 0;
    while (count < capacity && tls->event_count > 0) {
        struct channel_event *event = &tls->events[tls->event_head];
        tls->event_head = (tls->event_head + 1) % tls->event_capacity;
        tls->event_count--;
        if (event->kind == CHANNEL_SENT) {
            tls->free_sends[tls->free_send_count++] = event->slot;
            event->slot = 0;
        } else if (event->kind == CHANNEL_PEER_LOST) {
            tls->peers[event->peer].lost_queued = false;
            if (!tls->peers[event->peer].lost) continue; /* connected again meanwhile */
        }
        events[count++] = *event;
    }
    return count;
}

static size_t tls_poll(struct channel *channel, struct channel_event *events, size_t capacity) {
    struct tls *tls = tls_of(channel);
    tls_progress(tls);
    return take_events(tls, events, capacity);
}

static void tls_release(struct channel *channel, uint32_t number) {
    struct tls_slots *slots = &tls_of(channel)->slots;
    ASSERT_OP(number, <, slots->count);
    ASSERT_OP(slots->free_count, <, slots->count);
    slots->free[slots->free_count++] = number;
}

static int tls_wait_fd(struct channel *channel) {
    return tls_of(channel)->epoll_fd;
}

static enum status tls_arm(struct channel *channel) {
    struct tls *tls = tls_of(channel);
    if (tls->event_count > 0 || tls_progress_is_due(tls)) return STATUS_AGAIN;
    tls_progress_set_timer(tls);
    return STATUS_OK;
}

static void tls_stats(const struct channel *channel, struct channel_stats *stats) {
    const struct tls *tls = (const struct tls *)channel;
    *stats = tls->stats;
    stats->refused = tls->slots.refused;
}

static void tls_close(struct channel *channel) {
    struct tls *tls = tls_of(channel);
    for (uint32_t i = 0; tls->lanes && i < tls->lane_count; i++) {
        tls_lane_close(&tls->lanes[i]);
    }
    for (uint32_t i = 0; tls->inlets && i < tls->inlet_count; i++) {
        tls_inlet_free(&tls->inlets[i]);
    }
    if (tls->listener >= 0) close(tls->listener);
    if (tls->timer_fd >= 0) close(tls->timer_fd);
    if (tls->epoll_fd >= 0) close(tls->epoll_fd);
    control_tls_free(tls->self.context);
    arena_free(&tls->arena);
    free(tls);
}

static const struct channel_ops tls_ops = {
    .name = "tls",
    .address = tls_address,
    .connect = tls_connect,
    .send = tls_send,
    .poll = tls_poll,
    .release = tls_release,
    .wait_fd = tls_wait_fd,
    .arm = tls_arm,
    .stats = tls_stats,
    .close = tls_close,
};

/* ---- opening ---- */

enum status channel_tls_wire(const char *text, enum tls_wire *wire) {
    static const char *const names[] = {
        [TLS_WIRE_PLAIN] = "plain", [TLS_WIRE_AUTH] = "auth", [TLS_WIRE_ENCRYPT] = "encrypt"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(text, names[i]) != 0) continue;
        *wire = (enum tls_wire)i;
        return STATUS_OK;
    }
    return STATUS_INVALID;
}

static void set_up_sends(struct tls *tls) {
    for (uint32_t i = 0; i < tls->config.sends_max; i++) {
        tls->free_sends[tls->free_send_count++] = i;
    }
}

static void set_up_slots(struct tls *tls, size_t slot_bytes) {
    struct tls_slots *slots = &tls->slots;
    slots->count = tls->config.slots;
    slots->slot_bytes = tls->config.slot_bytes;
    for (uint32_t i = 0; i < slots->count; i++) {
        slots->slots[i].memory = arena_take(&tls->arena, slot_bytes);
        slots->free[slots->free_count++] = i;
    }
}

static void set_up_connections(struct tls *tls, uint64_t key_records) {
    for (uint32_t i = 0; i < tls->lane_count; i++) {
        struct tls_lane *lane = &tls->lanes[i];
        lane->self = &tls->self;
        lane->sends = tls->sends;
        lane->staging = arena_take(&tls->arena, TLS_LANE_STAGING);
        lane->key_records = key_records > 0 ? key_records : TLS_LANE_KEY_RECORDS;
        lane->head = lane->tail = lane->current = TLS_LANE_NONE;
        lane->fd = -1;
    }
    for (uint32_t i = 0; i < tls->inlet_count; i++) {
        struct tls_inlet *inlet = &tls->inlets[i];
        inlet->self = &tls->self;
        inlet->slots = &tls->slots;
        inlet->buffer = arena_take(&tls->arena, TLS_INLET_BUFFER);
        inlet->slot = TLS_LANE_NONE;
        inlet->fd = -1;
    }
}

/* Carves all tables, slots and buffers out of one arena. */
static enum status take_memory(struct tls *tls, uint64_t key_records) {
    const struct channel_config *config = &tls->config;
    size_t slot_bytes = config->slot_bytes > 0 ? config->slot_bytes : 1;
    uint64_t slots_bytes;
    if (!memory_multiply(config->slots, arena_need(slot_bytes), &slots_bytes)) return STATUS_MEMORY;
    tls->lane_count = config->peers_max * TLS_CHANNEL_LANES;
    /* Twice as many inlets as links: a link may come back before its old connection is seen to have
     * ended. */
    tls->inlet_count = 2 * tls->lane_count + TLS_CHANNEL_PENDING;
    tls->event_capacity = config->sends_max + config->slots + config->peers_max;
    size_t task_count = (size_t)tls->lane_count + tls->inlet_count;
    size_t bytes = slots_bytes + arena_need(config->peers_max * sizeof *tls->peers) +
                   arena_need(tls->lane_count * sizeof *tls->lanes) +
                   tls->lane_count * arena_need(TLS_LANE_STAGING) +
                   arena_need(tls->inlet_count * sizeof *tls->inlets) +
                   tls->inlet_count * arena_need(TLS_INLET_BUFFER) +
                   arena_need(config->slots * sizeof *tls->slots.slots) +
                   arena_need(config->slots * sizeof *tls->slots.free) +
                   arena_need(config->sends_max * sizeof *tls->sends) +
                   arena_need(config->sends_max * sizeof *tls->free_sends) +
                   arena_need(task_count * sizeof *tls->tasks) +
                   arena_need(task_count * sizeof *tls->queue) +
                   arena_need(tls->event_capacity * sizeof *tls->events);
    TRY(arena_init(&tls->arena, bytes));
    struct arena *arena = &tls->arena;
    tls->peers = arena_take(arena, config->peers_max * sizeof *tls->peers);
    tls->lanes = arena_take(arena, tls->lane_count * sizeof *tls->lanes);
    tls->inlets = arena_take(arena, tls->inlet_count * sizeof *tls->inlets);
    tls->slots.slots = arena_take(arena, config->slots * sizeof *tls->slots.slots);
    tls->slots.free = arena_take(arena, config->slots * sizeof *tls->slots.free);
    tls->sends = arena_take(arena, config->sends_max * sizeof *tls->sends);
    tls->free_sends = arena_take(arena, config->sends_max * sizeof *tls->free_sends);
    tls->tasks = arena_take(arena, task_count * sizeof *tls->tasks);
    tls->queue = arena_take(arena, task_count * sizeof *tls->queue);
    tls->events = arena_take(arena, tls->event_capacity * sizeof *tls->events);
    set_up_sends(tls);
    set_up_slots(tls, slot_bytes);
    set_up_connections(tls, key_records);
    return STATUS_OK;
}

static enum status choose_id(struct tls *tls) {
    if (getrandom(tls->self.id, TLS_ID_BYTES, 0) != (ssize_t)TLS_ID_BYTES) {
        log_error("tls: cannot get random bytes: %s", strerror(errno));
        return STATUS_IO;
    }
    memcpy(tls->address.id, tls->self.id, TLS_ID_BYTES);
    tls->address.wire = tls->self.wire;
    return STATUS_OK;
}

enum status channel_tls_open(struct channel **channel, const struct channel_config *config,
                             const struct channel_tls_config *own) {
    ASSERT(config->peers_max > 0 && config->slots > 0 && config->sends_max > 0);
    ASSERT(own->wire == TLS_WIRE_PLAIN || own->key);
    struct tls *tls = calloc(1, sizeof *tls);
    if (!tls) {
        log_error("tls: no memory for a channel");
        return STATUS_MEMORY;
    }
    tls->base.ops = &tls_ops;
    tls->config = *config;
    tls->self.wire = own->wire;
    tls->self.lease_ns = own->lease_ns;
    tls->epoll_fd = tls->timer_fd = tls->listener = -1;
    enum status status = take_memory(tls, own->key_records);
    if (status != STATUS_OK) log_error("tls: no memory for %u slots", config->slots);
    if (status == STATUS_OK) status = choose_id(tls);
    if (status == STATUS_OK && own->key) status = tls_greet_context(own->key, &tls->self.context);
    if (status == STATUS_OK) {
        status = tls_socket_listen(own->ip, &tls->listener, tls->address.ip, &tls->address.port);
    }
    if (status == STATUS_OK) status = tls_progress_start(tls);
    if (status != STATUS_OK) {
        tls_close(&tls->base);
        return status;
    }
    *channel = &tls->base;
    return STATUS_OK;
}
