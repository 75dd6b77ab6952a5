#include "transport/channel_ucx.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "transport/ucx_devices.h"
#include "transport/ucx_setup.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* From this size on a payload goes by rendezvous: one round trip more, but no copy through UCX's
 * buffers and no memory at a receiver that has no slot free. */
#define RENDEZVOUS_BYTES ((size_t)16 << 10)

/* The queue of messages that wait for a slot. Beyond the mark of eager ones, whose payloads take
 * memory here, or with no more room than one ucp_worker_progress() can fill (8 sockets, 120 KiB
 * each, some 130 bytes a frame), the channel does not progress. */
#define WAITING_MAX        16384
#define WAITING_BURST      8192
#define WAITING_EAGER_MARK 1024

/* Calls of ucp_worker_progress() a poll, so that one busy peer cannot keep the owner inside. */
#define PROGRESS_CALLS 64

#define CLOSE_DEADLINE_NS CLOCK_S
#define FRAME_HANDLER     0

struct ucx_peer {
    struct ucx *ucx;
    ucp_ep_h endpoint; /* NULL: never connected, or closed after an error */
    bool connected;    /* a send has ended well */
    bool lost;         /* no send until it is connected again */
    bool lost_queued;  /* its PEER_LOST event waits in the queue */
};

struct ucx_send {
    struct ucx *ucx;
    uint64_t cookie;
    size_t payload_bytes;
    uint32_t peer;
    uint8_t header[FRAME_BYTES]; /* UCX refers to it until the send completes */
};

struct ucx_slot {
    struct ucx *ucx;
    uint8_t *memory; /* [slot_bytes] */
    void *held;      /* UCX's memory that stands in for ours, to be given back; else NULL */
    const uint8_t *payload;
    size_t payload_bytes;
    uint8_t header[FRAME_BYTES];
};

/* A message that UCX has announced or brought, waiting for a slot. */
struct ucx_waiting {
    void *data; /* UCX's descriptor (rendezvous) or payload (eager); NULL without payload */
    size_t payload_bytes;
    bool rendezvous;
    uint8_t header[FRAME_BYTES];
};

struct ucx {
    struct channel base;
    struct channel_config config;
    struct channel_stats stats;
    struct arena arena; /* all tables and slots */
    ucp_context_h context;
    ucp_worker_h worker;
    int wait_fd;
    bool sweep;         /* a lost peer's endpoint is to be closed */
    bool closing;       /* what still comes in is dropped */
    bool abandoned;     /* an endpoint is left to the process's end */
    bool verbs;         /* some transport needs an RDMA device */
    char lanes[128];    /* by which the last peer was connected */
    uint32_t under_way; /* requests of ours whose callback has not come */

    struct ucx_devices devices;

    struct ucx_peer *peers;
    struct ucx_send *sends;
    uint32_t *free_sends; /* a stack of indices; likewise free_slots */
    uint32_t free_send_count;
    struct ucx_slot *slots;
    uint32_t *free_slots;
    uint32_t free_slot_count;

    struct ucx_waiting *waiting; /* a queue in a circle of WAITING_MAX */
    uint32_t waiting_head, waiting_count;
    uint32_t waiting_eager; /* those among them that are not rendezvous */

    /* A circle that cannot overflow: at most one event a send, a slot and a peer is in it. */
    struct channel_event *events;
    uint32_t event_capacity, event_head, event_count;
};

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

static struct channel_event *queue_event(struct ucx *ucx, enum channel_event_kind kind) {
    ASSERT_OP(ucx->event_count, <, ucx->event_capacity);
    uint32_t at = (ucx->event_head + ucx->event_count++) % ucx->event_capacity;
    struct channel_event *event = &ucx->events[at];
    memset(event, 0, sizeof *event);
    event->kind = kind;
    return event;
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
    peer->ucx->sweep = true;
    if (peer->lost_queued) return;
    peer->lost_queued = true;
    struct channel_event *event = queue_event(peer->ucx, CHANNEL_PEER_LOST);
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

void channel_ucx_disconnect(struct channel *channel, uint32_t peer) {
    struct ucx *ucx = (struct ucx *)channel;
    ASSERT_OP(peer, <, ucx->config.peers_max);
    close_endpoint(ucx, &ucx->peers[peer]);
    ucx->peers[peer].connected = false;
    ucx->peers[peer].lost = false;
}

static enum status ucx_connect(struct channel *channel, uint32_t number, const uint8_t *address,
                               size_t bytes) {
    struct ucx *ucx = (struct ucx *)channel;
    const ucp_address_t *unwrapped;
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

static void queue_sent(struct ucx_send *send, ucs_status_t code) {
    struct ucx *ucx = send->ucx;
    struct channel_event *event = queue_event(ucx, CHANNEL_SENT);
    event->peer = send->peer;
    event->cookie = send->cookie;
    event->status = code == UCS_OK ? STATUS_OK : STATUS_PEER_LOST;
    event->slot = (uint32_t)(send - ucx->sends); /* the table's entry is free when it is told */
    if (code != UCS_OK) return;
    ucx->peers[send->peer].connected = true;
    ucx->stats.sent_frames++;
    ucx->stats.sent_bytes += FRAME_BYTES + send->payload_bytes;
}

static void sent_callback(void *request, ucs_status_t code, void *user) {
    struct ucx_send *send = user;
    send->ucx->under_way--;
    queue_sent(send, code);
    ucp_request_free(request);
}

static enum status ucx_device_memory(struct channel *channel, int device, const void *memory,
                                     size_t bytes) {
    struct ucx *ucx = (struct ucx *)channel;
    if (device > 0) return STATUS_UNSUPPORTED; // a context is of one
    return ucx_devices_add(&ucx->devices, ucx->context, memory, bytes);
}

static enum status ucx_send(struct channel *channel, uint32_t number, const uint8_t *header,
                            const uint8_t *payload, size_t payload_bytes, uint64_t cookie) {
    struct ucx *ucx = (struct ucx *)channel;
    ASSERT_OP(number, <, ucx->config.peers_max);
    const struct ucx_peer *peer = &ucx->peers[number];
    if (!peer->endpoint || peer->lost) return STATUS_PEER_LOST;
    if (ucx->free_send_count == 0) return STATUS_AGAIN;
    struct ucx_send *send = &ucx->sends[ucx->free_sends[ucx->free_send_count - 1]];
    memcpy(send->header, header, FRAME_BYTES);
    send->cookie = cookie;
    send->peer = number;
    send->payload_bytes = payload_bytes;
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK |
                        UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .memory_type = ucx_devices_type(&ucx->devices, payload),
        .flags = payload_bytes < RENDEZVOUS_BYTES ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV,
        .cb.send = sent_callback,
        .user_data = send,
    };
    ucs_status_ptr_t request = ucp_am_send_nbx(peer->endpoint, FRAME_HANDLER, send->header,
                                               FRAME_BYTES, payload, payload_bytes, &param);
    if (UCS_PTR_IS_ERR(request)) {
        enum status status = ucx_status(UCS_PTR_STATUS(request));
        return status == STATUS_AGAIN ? status : STATUS_PEER_LOST;
    }
    ucx->free_send_count--;
    if (request) {
        ucx->under_way++;
    } else {
        queue_sent(send, UCS_OK); /* done at once: no callback comes */
    }
    return STATUS_OK;
}

/* ---- receiving ---- */

/* Gives back what UCX keeps for us. */
static void drop_data(struct ucx *ucx, void *data) {
    if (data) ucp_am_data_release(ucx->worker, data);
}

static ucs_status_t frame_callback(void *user, const void *header, size_t header_bytes, void *data,
                                   size_t payload_bytes, const ucp_am_recv_param_t *param) {
    struct ucx *ucx = user;
    bool rendezvous = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    bool lasting = param->recv_attr & (UCP_AM_RECV_ATTR_FLAG_RNDV | UCP_AM_RECV_ATTR_FLAG_DATA);
    if (ucx->closing) return UCS_OK;
    if (header_bytes != FRAME_BYTES || payload_bytes > ucx->config.slot_bytes ||
        ucx->waiting_count == WAITING_MAX || (payload_bytes > 0 && !lasting)) {
        ucx->stats.refused++;
        return UCS_OK;
    }
    uint32_t at = (ucx->waiting_head + ucx->waiting_count++) % WAITING_MAX;
    struct ucx_waiting *waiting = &ucx->waiting[at];
    memcpy(waiting->header, header, FRAME_BYTES);
    waiting->data = lasting ? data : NULL;
    waiting->payload_bytes = payload_bytes;
    waiting->rendezvous = rendezvous;
    if (!rendezvous) ucx->waiting_eager++;
    return lasting ? UCS_INPROGRESS : UCS_OK;
}

static void free_slot(struct ucx_slot *slot) {
    struct ucx *ucx = slot->ucx;
    drop_data(ucx, slot->held);
    slot->held = NULL;
    ASSERT_OP(ucx->free_slot_count, <, ucx->config.slots);
    ucx->free_slots[ucx->free_slot_count++] = (uint32_t)(slot - ucx->slots);
}

static void queue_received(struct ucx_slot *slot) {
    struct ucx *ucx = slot->ucx;
    struct channel_event *event = queue_event(ucx, CHANNEL_RECEIVED);
    event->slot = (uint32_t)(slot - ucx->slots);
    event->header = slot->header;
    event->payload = slot->payload;
    event->payload_bytes = slot->payload_bytes;
    ucx->stats.received_frames++;
    ucx->stats.received_bytes += FRAME_BYTES + slot->payload_bytes;
}

/* A rendezvous that fails (its sender died) was never a message: the slot is free again. */
static void received_callback(void *request, ucs_status_t code, size_t bytes, void *user) {
    struct ucx_slot *slot = user;
    slot->ucx->under_way--;
    ucp_request_free(request);
    if (code == UCS_OK && bytes == slot->payload_bytes) {
        queue_received(slot);
    } else {
        free_slot(slot);
    }
}

static void fetch(struct ucx_slot *slot, void *descriptor) {
    struct ucx *ucx = slot->ucx;
    const ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .cb.recv_am = received_callback,
        .user_data = slot,
    };
    slot->payload = slot->memory;
    ucs_status_ptr_t request =
        ucp_am_recv_data_nbx(ucx->worker, descriptor, slot->memory, slot->payload_bytes, &param);
    if (!request) {
        queue_received(slot);
    } else if (UCS_PTR_IS_ERR(request)) {
        free_slot(slot);
    } else {
        ucx->under_way++;
    }
}

/* Moves waiting messages into free slots, in the order they came. */
static void fill_slots(struct ucx *ucx) {
    while (ucx->waiting_count > 0 && ucx->free_slot_count > 0) {
        const struct ucx_waiting *waiting = &ucx->waiting[ucx->waiting_head];
        struct ucx_slot *slot = &ucx->slots[ucx->free_slots[--ucx->free_slot_count]];
        memcpy(slot->header, waiting->header, FRAME_BYTES);
        slot->payload_bytes = waiting->payload_bytes;
        ucx->waiting_head = (ucx->waiting_head + 1) % WAITING_MAX;
        ucx->waiting_count--;
        if (waiting->rendezvous) {
            fetch(slot, waiting->data);
            continue;
        }
        ucx->waiting_eager--;
        slot->held = waiting->data;
        slot->payload = waiting->data ? waiting->data : slot->memory;
        if (waiting->data && (uintptr_t)waiting->data % MEMORY_ALIGN != 0) {
            /* Codecs read values in place, so a payload must be aligned as a slot is. */
            memcpy(slot->memory, waiting->data, waiting->payload_bytes);
            slot->payload = slot->memory;
            slot->held = NULL;
            drop_data(ucx, waiting->data);
        }
        queue_received(slot);
    }
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

/* Too much waits for slots: TCP shall hold the senders back. */
static bool is_full(const struct ucx *ucx) {
    return ucx->waiting_eager >= WAITING_EAGER_MARK ||
           ucx->waiting_count > WAITING_MAX - WAITING_BURST;
}

/* Endpoints that failed, outside the callback that said so. */
static void sweep_endpoints(struct ucx *ucx) {
    if (!ucx->sweep) return;
    ucx->sweep = false;
    for (uint32_t i = 0; i < ucx->config.peers_max; i++) {
        struct ucx_peer *peer = &ucx->peers[i];
        if (peer->lost) close_endpoint(ucx, peer);
    }
}

static size_t ucx_poll(struct channel *channel, struct channel_event *events, size_t capacity) {
    struct ucx *ucx = (struct ucx *)channel;
    for (int call = 0; call < PROGRESS_CALLS; call++) {
        fill_slots(ucx);
        if (is_full(ucx) || ucp_worker_progress(ucx->worker) == 0) break;
    }
    fill_slots(ucx);
    sweep_endpoints(ucx);
    return take_events(ucx, events, capacity);
}

static void ucx_release(struct channel *channel, uint32_t number) {
    struct ucx *ucx = (struct ucx *)channel;
    ASSERT_OP(number, <, ucx->config.slots);
    free_slot(&ucx->slots[number]);
}

static int ucx_wait_fd(struct channel *channel) {
    return ((const struct ucx *)channel)->wait_fd;
}

static enum status ucx_arm(struct channel *channel) {
    struct ucx *ucx = (struct ucx *)channel;
    if (ucx->event_count > 0) return STATUS_AGAIN;
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
    if (ucx->context) ucp_cleanup(ucx->context);
    arena_free(&ucx->arena);
    free(ucx);
}

static void ucx_close(struct channel *channel) {
    struct ucx *ucx = (struct ucx *)channel;
    ucx->closing = true;
    for (; ucx->waiting_count > 0; ucx->waiting_count--) {
        drop_data(ucx, ucx->waiting[ucx->waiting_head].data);
        ucx->waiting_head = (ucx->waiting_head + 1) % WAITING_MAX;
    }
    for (uint32_t i = 0; i < ucx->config.slots; i++) {
        drop_data(ucx, ucx->slots[i].held);
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
        .cb = frame_callback,
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
                   arena_need(WAITING_MAX * sizeof *ucx->waiting) +
                   arena_need(ucx->event_capacity * sizeof *ucx->events);
    TRY(arena_init(&ucx->arena, bytes));
    ucx->peers = arena_take(&ucx->arena, config->peers_max * sizeof *ucx->peers);
    ucx->sends = arena_take(&ucx->arena, config->sends_max * sizeof *ucx->sends);
    ucx->free_sends = arena_take(&ucx->arena, config->sends_max * sizeof *ucx->free_sends);
    ucx->slots = arena_take(&ucx->arena, config->slots * sizeof *ucx->slots);
    ucx->free_slots = arena_take(&ucx->arena, config->slots * sizeof *ucx->free_slots);
    ucx->waiting = arena_take(&ucx->arena, WAITING_MAX * sizeof *ucx->waiting);
    ucx->events = arena_take(&ucx->arena, ucx->event_capacity * sizeof *ucx->events);
    for (uint32_t i = 0; i < config->peers_max; i++)
        ucx->peers[i].ucx = ucx;
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
    if (status == STATUS_OK) status = open_worker(ucx);
    if (status != STATUS_OK) {
        ucx_free(ucx);
        return status;
    }
    *channel = &ucx->base;
    return STATUS_OK;
}
