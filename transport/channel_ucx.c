#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "transport/channel_ucx_parts.h"
#include "transport/limits.h"
#include "transport/ucx_setup.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* From this size on a payload goes by rendezvous: one round trip more, but no copy through UCX's
 * buffers and no memory at a receiver that has no slot free. */
#define RENDEZVOUS_BYTES ((size_t)16 << 10)

/* Calls of ucp_worker_progress() a poll, so that one busy peer cannot keep the owner inside. */
#define PROGRESS_CALLS 64

/* Payloads that UCX has of us for one peer; others are queued here. More would only be turned out
 * of the caches before they leave: 32 MiB take up to 1.3 times the processor time a byte. */
#define WINDOW_BYTES ((size_t)16 << 20)

#define CLOSE_DEADLINE_NS CLOCK_S
#define FRAME_HANDLER     0

/* UCX's code -> ours. */
static enum status ucx_status(ucs_status_t code) {
    switch (code) {
    case UCS_OK:
        return STATUS_OK;
    case UCS_ERR_NO_MEMORY:
        return STATUS_MEMORY;
    case UCS_ERR_NO_RESOURCE:
    case UCS_ERR_BUSY:
        return STATUS_AGAIN;
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
        return STATUS_INVALID;
    case UCS_ERR_NO_DEVICE:
    case UCS_ERR_IO_ERROR:
    case UCS_ERR_SHMEM_SEGMENT:
        return STATUS_DEVICE;
    default: /* all that is left speaks of the link or the peer */
        return STATUS_PEER_LOST;
    }
}

struct channel_event *channel_ucx_queue_event(struct ucx *ucx, enum channel_event_kind kind) {
    ASSERT_OP(ucx->event_count, <, ucx->event_capacity);
    uint32_t at = (ucx->event_head + ucx->event_count++) % ucx->event_capacity;
    struct channel_event *event = &ucx->events[at];
    memset(event, 0, sizeof *event);
    event->kind = kind;
    return event;
}

static void queue_sent(struct ucx_send *send, ucs_status_t code) {
    struct ucx *ucx = send->ucx;
    struct channel_event *event = channel_ucx_queue_event(ucx, CHANNEL_SENT);
    event->peer = send->peer;
    event->cookie = send->cookie;
    event->status = code == UCS_OK ? STATUS_OK : STATUS_PEER_LOST;
    event->slot = (uint32_t)(send - ucx->sends); /* the table's entry is free when it is told */
    if (code != UCS_OK) return;
    ucx->peers[send->peer].connected = true;
    ucx->stats.sent_frames++;
    ucx->stats.sent_bytes += FRAME_BYTES + send->payload_bytes;
}

/* ---- endpoints ---- */

static void closed_callback(void *request, ucs_status_t code, void *user) {
    (void)code;
    struct ucx *ucx = user;
    ucx->under_way--;
    ucp_request_free(request);
}

/* Forced: what is in flight completes with an error, nothing is waited for. Over verbs, UCX 1.13
 * aborts when that happens to an endpoint that is still being connected: it is left alone. */
static void close_endpoint(struct ucx *ucx, struct ucx_peer *peer) {
    ucp_ep_h endpoint = peer->endpoint;
    if (!endpoint) return;
    peer->endpoint = NULL;
    if (ucx->verbs && !peer->connected) {
        ucx->abandoned = true;
        return;
    }
    const ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
        .cb.send = closed_callback,
        .user_data = ucx,
    };
    if (UCS_PTR_IS_PTR(ucp_ep_close_nbx(endpoint, &param))) ucx->under_way++;
}

static void error_callback(void *user, ucp_ep_h endpoint, ucs_status_t code) {
    struct ucx_peer *peer = user;
    if (peer->endpoint != endpoint || peer->lost) return;
    log_debug("ucx: peer %u lost: %s", (unsigned)(peer - peer->ucx->peers),
              ucs_status_string(code));
    peer->lost = true;
    peer->was_lost = true;
    peer->ucx->sweep = true;
    if (peer->lost_queued) return;
    peer->lost_queued = true;
    struct channel_event *event = channel_ucx_queue_event(peer->ucx, CHANNEL_PEER_LOST);
    event->peer = (uint32_t)(peer - peer->ucx->peers);
    event->status = STATUS_PEER_LOST;
}

/* By what a peer's frames go is worth knowing where there is a choice. */
static void tell_lanes(struct ucx *ucx, uint32_t number, ucp_ep_h endpoint) {
    char lanes[sizeof ucx->lanes];
    if (!ucx->verbs) return;
    ucx_setup_lanes(endpoint, lanes, sizeof lanes);
    if (strcmp(lanes, ucx->lanes) == 0) return;
    memcpy(ucx->lanes, lanes, sizeof lanes);
    log_info("ucx: peer %u and those after it by %s", number, lanes);
}

static enum status ucx_address(struct channel *channel, uint8_t *address, size_t *bytes) {
    return ucx_setup_wrap(((const struct ucx *)channel)->worker, address, bytes);
}

/* Sends that UCX has not been given end with an error. */
static void drop_queued(struct ucx *ucx, struct ucx_peer *peer) {
    while (peer->queue_first != CHANNEL_UCX_NO_SEND) {
        struct ucx_send *send = &ucx->sends[peer->queue_first];
        peer->queue_first = send->next;
        queue_sent(send, UCS_ERR_CONNECTION_RESET);
    }
}

void channel_ucx_disconnect(struct channel *channel, uint32_t peer) {
    struct ucx *ucx = (struct ucx *)channel;
    ASSERT_OP(peer, <, ucx->config.peers_max);
    close_endpoint(ucx, &ucx->peers[peer]);
    drop_queued(ucx, &ucx->peers[peer]);
    ucx->peers[peer].connected = false;
    ucx->peers[peer].lost = false;
}

/* Over verbs, UCX 1.13 aborts after 30 s of trying to connect, and an endpoint that tries cannot be
 * closed: so nobody is dialled who may be dead. */
bool channel_ucx_connects_again(const struct channel *channel, uint32_t peer) {
    if (!((const struct ucx *)channel)->verbs) return true;
    log_warn("ucx: the connection to peer %u was by RDMA, and cannot be made again", peer);
    return false;
}

static enum status ucx_connect(struct channel *channel, uint32_t number, const uint8_t *address,
                               size_t bytes) {
    struct ucx *ucx = (struct ucx *)channel;
    const ucp_address_t *unwrapped;
    ASSERT_OP(number, <, ucx->config.peers_max);
    if (ucx->peers[number].was_lost && !channel_ucx_connects_again(channel, number))
        return STATUS_UNSUPPORTED;
    TRY(ucx_setup_unwrap(number, address, bytes, &unwrapped));
    channel_ucx_disconnect(channel, number);
    struct ucx_peer *peer = &ucx->peers[number];
    const ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = unwrapped,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = error_callback, .arg = peer},
    };
    ucp_ep_h endpoint = NULL;
    ucs_status_t code = ucp_ep_create(ucx->worker, &params, &endpoint);
    if (code != UCS_OK) {
        log_error("ucx: cannot connect to peer %u: %s", number, ucs_status_string(code));
        return ucx_status(code) == STATUS_INVALID ? STATUS_INVALID : STATUS_PEER_LOST;
    }
    peer->endpoint = endpoint;
    tell_lanes(ucx, number, endpoint);
    return STATUS_OK;
}

/* ---- sending ---- */

/* A payload has left UCX, one way or the other. */
static void leave_window(const struct ucx_send *send) {
    struct ucx_peer *peer = &send->ucx->peers[send->peer];
    ASSERT_OP(peer->under_way, >=, send->payload_bytes);
    peer->under_way -= send->payload_bytes;
    if (peer->queue_first != CHANNEL_UCX_NO_SEND) send->ucx->window_moved = true;
}

static void sent_callback(void *request, ucs_status_t code, void *user) {
    struct ucx_send *send = user;
    send->ucx->under_way--;
    leave_window(send);
    queue_sent(send, code);
    ucp_request_free(request);
}

/* Of the host's memory, beside what is registered by now. */
static enum status may_register(const struct ucx *ucx, size_t bytes) {
    if (!ucx->verbs) return STATUS_OK;
    return limits_locked(ucx->memory.bytes + bytes + CHANNEL_UCX_LOCKED_BYTES, LOG_ERROR);
}

static enum status ucx_payload_memory(struct channel *channel, size_t bytes, uint8_t **memory) {
    struct ucx *ucx = (struct ucx *)channel;
    TRY(may_register(ucx, bytes));
    return ucx_memory_take(&ucx->memory, ucx->context, bytes, memory);
}

static enum status ucx_device_memory(struct channel *channel, int device, const void *memory,
                                     size_t bytes) {
    struct ucx *ucx = (struct ucx *)channel;
    if (device == CHANNEL_HOST) {
        TRY(may_register(ucx, bytes));
        return ucx_memory_map(&ucx->memory, ucx->context, memory, bytes);
    }
    if (device > 0) return STATUS_UNSUPPORTED; // a context is of one
    return ucx_devices_add(&ucx->devices, ucx->context, memory, bytes);
}

/* Hands a send of the table to UCX. AGAIN, PEER_LOST: UCX does not have it. */
static enum status start_send(struct ucx_send *send) {
    struct ucx *ucx = send->ucx;
    struct ucx_peer *peer = &ucx->peers[send->peer];
    const size_t bytes = send->payload_bytes;
    ucp_mem_h handle = ucx_memory_handle(&ucx->memory, send->payload);
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK |
                        UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE |
                        (handle ? (uint32_t)UCP_OP_ATTR_FIELD_MEMH : 0),
        .memh = handle,
        .memory_type = ucx_devices_type(&ucx->devices, send->payload),
        .flags = bytes < RENDEZVOUS_BYTES ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV,
        .cb.send = sent_callback,
        .user_data = send,
    };
    ucs_status_ptr_t request = ucp_am_send_nbx(peer->endpoint, FRAME_HANDLER, send->header,
                                               FRAME_BYTES, send->payload, bytes, &param);
    if (UCS_PTR_IS_ERR(request)) {
        enum status status = ucx_status(UCS_PTR_STATUS(request));
        return status == STATUS_AGAIN ? status : STATUS_PEER_LOST;
    }
    if (request) {
        ucx->under_way++;
        peer->under_way += bytes;
    } else {
        queue_sent(send, UCS_OK); /* done at once: no callback comes */
    }
    return STATUS_OK;
}

static bool has_room(const struct ucx_peer *peer, size_t bytes) {
    return peer->under_way == 0 || peer->under_way + bytes <= WINDOW_BYTES;
}

static enum status ucx_send(struct channel *channel, uint32_t number, const uint8_t *header,
                            const uint8_t *payload, size_t payload_bytes, uint64_t cookie) {
    struct ucx *ucx = (struct ucx *)channel;
    ASSERT_OP(number, <, ucx->config.peers_max);
    struct ucx_peer *peer = &ucx->peers[number];
    if (!peer->endpoint || peer->lost) return STATUS_PEER_LOST;
    if (ucx->free_send_count == 0) return STATUS_AGAIN;
    uint32_t index = ucx->free_sends[ucx->free_send_count - 1];
    struct ucx_send *send = &ucx->sends[index];
    memcpy(send->header, header, FRAME_BYTES);
    send->cookie = cookie;
    send->peer = number;
    send->payload = payload;
    send->payload_bytes = payload_bytes;
    send->next = CHANNEL_UCX_NO_SEND;
    if (peer->queue_first != CHANNEL_UCX_NO_SEND) {
        ucx->sends[peer->queue_last].next = index;
    } else if (has_room(peer, payload_bytes)) {
        TRY(start_send(send));
        ucx->free_send_count--;
        return STATUS_OK;
    } else {
        peer->queue_first = index;
    }
    peer->queue_last = index;
    ucx->free_send_count--;
    return STATUS_OK;
}

/* Gives UCX what is queued for the peer, as far as its window goes. */
static void start_queued(struct ucx *ucx, struct ucx_peer *peer) {
    while (peer->queue_first != CHANNEL_UCX_NO_SEND && !peer->lost) {
        struct ucx_send *send = &ucx->sends[peer->queue_first];
        if (!has_room(peer, send->payload_bytes)) return;
        enum status status = start_send(send);
        if (status == STATUS_AGAIN) {
            ucx->window_moved = true;
            return;
        }
        peer->queue_first = send->next;
        if (status != STATUS_OK) queue_sent(send, UCS_ERR_CONNECTION_RESET);
    }
}

static void start_all_queued(struct ucx *ucx) {
    if (!ucx->window_moved) return;
    ucx->window_moved = false;
    for (uint32_t i = 0; i < ucx->config.peers_max; i++)
        start_queued(ucx, &ucx->peers[i]);
}

/* ---- the owner's loop ---- */

static size_t take_events(struct ucx *ucx, struct channel_event *events, size_t capacity) {
    size_t count = 0;
    while (count < capacity && ucx->event_count > 0) {
        struct channel_event *event = &ucx->events[ucx->event_head];
        ucx->event_head = (ucx->event_head + 1) % ucx->event_capacity;
        ucx->event_count--;
        if (event->kind == CHANNEL_SENT) {
            ucx->free_sends[ucx->free_send_count++] = event->slot;
            event->slot = 0;
        } else if (event->kind == CHANNEL_PEER_LOST) {
            ucx->peers[event->peer].lost_queued = false;
            if (!ucx->peers[event->peer].lost) continue; /* connected again meanwhile */
        }
        events[count++] = *event;
    }
    return count;
}

/* Endpoints that failed, outside the callback that said so. */
static void sweep_endpoints(struct ucx *ucx) {
    if (!ucx->sweep) return;
    ucx->sweep = false;
    for (uint32_t i = 0; i < ucx->config.peers_max; i++) {
        struct ucx_peer *peer = &ucx->peers[i];
        if (!peer->lost) continue;
        close_endpoint(ucx, peer);
        drop_queued(ucx, peer);
    }
}

static size_t ucx_poll(struct channel *channel, struct channel_event *events, size_t capacity) {
    struct ucx *ucx = (struct ucx *)channel;
    for (int call = 0; call < PROGRESS_CALLS; call++) {
        channel_ucx_fill_slots(ucx);
        if (channel_ucx_is_full(ucx) || ucp_worker_progress(ucx->worker) == 0) break;
    }
    channel_ucx_fill_slots(ucx);
    sweep_endpoints(ucx);
    start_all_queued(ucx);
    return take_events(ucx, events, capacity);
}

static void ucx_release(struct channel *channel, uint32_t number) {
    struct ucx *ucx = (struct ucx *)channel;
    ASSERT_OP(number, <, ucx->config.slots);
    channel_ucx_free_slot(&ucx->slots[number]);
}

static int ucx_wait_fd(struct channel *channel) {
    return ((const struct ucx *)channel)->wait_fd;
}

static enum status ucx_arm(struct channel *channel) {
    struct ucx *ucx = (struct ucx *)channel;
    if (ucx->event_count > 0 || ucx->window_moved) return STATUS_AGAIN;
    if (ucx->waiting_count > 0 && ucx->free_slot_count > 0) return STATUS_AGAIN;
    /* An error of arming is answered like "busy": polling is always right, sleeping is not. */
    return ucp_worker_arm(ucx->worker) == UCS_OK ? STATUS_OK : STATUS_AGAIN;
}

static void ucx_stats(const struct channel *channel, struct channel_stats *stats) {
    *stats = ((const struct ucx *)channel)->stats;
}

/* ---- opening and closing ---- */

/* UCX aborts when a worker is destroyed with requests under way. They all end when their endpoints
 * are closed; should one not, or should an endpoint be left open, the memory that they refer to is
 * left to the process's end. */
static void ucx_free(struct ucx *ucx) {
    if (ucx->abandoned) return;
    if (ucx->under_way > 0) {
        log_warn("ucx: %u requests did not end; their channel is not freed", ucx->under_way);
        return;
    }
    if (ucx->worker) ucp_worker_destroy(ucx->worker);
    ucx_memory_free(&ucx->memory, ucx->context);
    if (ucx->context) ucp_cleanup(ucx->context);
    arena_free(&ucx->arena);
    free(ucx);
}

static void ucx_close(struct channel *channel) {
    struct ucx *ucx = (struct ucx *)channel;
    ucx->closing = true;
    for (; ucx->waiting_count > 0; ucx->waiting_count--) {
        channel_ucx_drop_data(ucx, ucx->waiting[ucx->waiting_head].data);
        ucx->waiting_head = (ucx->waiting_head + 1) % CHANNEL_UCX_WAITING_MAX;
    }
    for (uint32_t i = 0; i < ucx->config.slots; i++) {
        channel_ucx_drop_data(ucx, ucx->slots[i].held);
        ucx->slots[i].held = NULL;
    }
    for (uint32_t i = 0; i < ucx->config.peers_max; i++) {
        close_endpoint(ucx, &ucx->peers[i]);
    }
    int64_t deadline_ns = clock_now_ns() + CLOSE_DEADLINE_NS;
    while (ucx->under_way > 0 && clock_now_ns() < deadline_ns) {
        ucp_worker_progress(ucx->worker);
    }
    ucx_free(ucx);
}

static const struct channel_ops ucx_ops = {
    .name = "ucx",
    .address = ucx_address,
    .connect = ucx_connect,
    .memory = ucx_payload_memory,
    .device_memory = ucx_device_memory,
    .send = ucx_send,
    .poll = ucx_poll,
    .release = ucx_release,
    .wait_fd = ucx_wait_fd,
    .arm = ucx_arm,
    .stats = ucx_stats,
    .close = ucx_close,
};

static enum status open_worker(struct ucx *ucx) {
    const ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_AM_ALIGNMENT,
        .thread_mode = UCS_THREAD_MODE_SINGLE,
        .am_alignment = MEMORY_ALIGN,
    };
    ucs_status_t code = ucp_worker_create(ucx->context, &params, &ucx->worker);
    if (code != UCS_OK) {
        ucx->worker = NULL;
        log_error("ucx: cannot create a worker: %s", ucs_status_string(code));
        return code == UCS_ERR_NO_MEMORY ? STATUS_MEMORY : STATUS_DEVICE;
    }
    const ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS,
        .id = FRAME_HANDLER,
        .cb = channel_ucx_frame,
        .arg = ucx,
        .flags = UCP_AM_FLAG_WHOLE_MSG | UCP_AM_FLAG_PERSISTENT_DATA,
    };
    code = ucp_worker_set_am_recv_handler(ucx->worker, &handler);
    if (code == UCS_OK) code = ucp_worker_get_efd(ucx->worker, &ucx->wait_fd);
    if (code != UCS_OK) {
        log_error("ucx: cannot set up the worker: %s", ucs_status_string(code));
        return STATUS_DEVICE;
    }
    return STATUS_OK;
}

/* Carves all tables and the slots out of one arena. */
static enum status take_memory(struct ucx *ucx) {
    const struct channel_config *config = &ucx->config;
    size_t slot_bytes = config->slot_bytes > 0 ? config->slot_bytes : 1;
    uint64_t slots_bytes;
    if (!memory_multiply(config->slots, arena_need(slot_bytes), &slots_bytes)) return STATUS_MEMORY;
    ucx->event_capacity = config->sends_max + config->slots + config->peers_max;
    size_t bytes = slots_bytes + arena_need(config->peers_max * sizeof *ucx->peers) +
                   arena_need(config->sends_max * sizeof *ucx->sends) +
                   arena_need(config->sends_max * sizeof *ucx->free_sends) +
                   arena_need(config->slots * sizeof *ucx->slots) +
                   arena_need(config->slots * sizeof *ucx->free_slots) +
                   arena_need(CHANNEL_UCX_WAITING_MAX * sizeof *ucx->waiting) +
                   arena_need(ucx->event_capacity * sizeof *ucx->events);
    TRY(arena_init(&ucx->arena, bytes));
    ucx->peers = arena_take(&ucx->arena, config->peers_max * sizeof *ucx->peers);
    ucx->sends = arena_take(&ucx->arena, config->sends_max * sizeof *ucx->sends);
    ucx->free_sends = arena_take(&ucx->arena, config->sends_max * sizeof *ucx->free_sends);
    ucx->slots = arena_take(&ucx->arena, config->slots * sizeof *ucx->slots);
    ucx->free_slots = arena_take(&ucx->arena, config->slots * sizeof *ucx->free_slots);
    ucx->waiting = arena_take(&ucx->arena, CHANNEL_UCX_WAITING_MAX * sizeof *ucx->waiting);
    ucx->events = arena_take(&ucx->arena, ucx->event_capacity * sizeof *ucx->events);
    for (uint32_t i = 0; i < config->peers_max; i++) {
        ucx->peers[i].ucx = ucx;
        ucx->peers[i].queue_first = CHANNEL_UCX_NO_SEND;
    }
    for (uint32_t i = 0; i < config->sends_max; i++) {
        ucx->sends[i].ucx = ucx;
        ucx->free_sends[ucx->free_send_count++] = i;
    }
    for (uint32_t i = 0; i < config->slots; i++) {
        ucx->slots[i].ucx = ucx;
        ucx->slots[i].memory = arena_take(&ucx->arena, slot_bytes);
        ucx->free_slots[ucx->free_slot_count++] = i;
    }
    return STATUS_OK;
}

/* They lie one after the other at the arena's end. */
static enum status map_slots(struct ucx *ucx) {
    uint8_t *first = ucx->slots[0].memory, *end = ucx->arena.base + ucx->arena.used;
    return ucx_memory_map(&ucx->memory, ucx->context, first, (size_t)(end - first));
}

enum status channel_ucx_open(struct channel **channel, const struct channel_config *config,
                             const char *net_devices, const char *tls) {
    ASSERT(config->peers_max > 0 && config->slots > 0 && config->sends_max > 0);
    struct ucx *ucx = calloc(1, sizeof *ucx);
    if (!ucx) {
        log_error("ucx: no memory for a channel");
        return STATUS_MEMORY;
    }
    ucx->base.ops = &ucx_ops;
    ucx->config = *config;
    char transports[OPTION_TEXT_MAX];
    tls = channel_ucx_tls(net_devices, tls);
    ucx->verbs = channel_ucx_is_verbs(tls);
    ucx_devices_init(&ucx->devices, config->device_count == 1, tls, transports);
    enum status status = take_memory(ucx);
    if (status != STATUS_OK) log_error("ucx: no memory for %u slots", config->slots);
    if (status == STATUS_OK) status = ucx_setup_context(net_devices, transports, &ucx->context);
    if (status == STATUS_OK) status = map_slots(ucx);
    if (status == STATUS_OK) status = open_worker(ucx);
    if (status != STATUS_OK) {
        ucx_free(ucx);
        return status;
    }
    *channel = &ucx->base;
    return STATUS_OK;
}
