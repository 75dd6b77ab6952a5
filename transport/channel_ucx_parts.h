/* channel_ucx_parts.h - what channel_ucx.c and channel_ucx_receive.c share: the channel itself.
 *
 * A send of ours lies in the table until its CHANNEL_SENT is told; UCX has it only while its peer's
 * window has room. A message that comes waits in a queue for a slot, at UCX's expense: its payload
 * is fetched, or kept where UCX has it, when a slot is free.
 */
#ifndef RUBATO_TRANSPORT_CHANNEL_UCX_PARTS_H
#define RUBATO_TRANSPORT_CHANNEL_UCX_PARTS_H

#include "base/memory.h"
#include "transport/channel_ucx.h"
#include "transport/ucx_devices.h"
#include "transport/ucx_memory.h"

#define CHANNEL_UCX_WAITING_MAX 20480
#define CHANNEL_UCX_NO_SEND     UINT32_MAX

struct ucx_peer {
    struct ucx *ucx;
    ucp_ep_h endpoint; /* NULL: never connected, or closed after an error */
    bool connected;    /* a send has ended well */
    bool lost;         /* no send until it is connected again */
    bool lost_queued;  /* its PEER_LOST event waits in the queue */
    bool was_lost;     /* ever */
    size_t under_way;  /* bytes of payloads that UCX has */
    /* A list of sends that are beyond the window; CHANNEL_UCX_NO_SEND: there are none. */
    uint32_t queue_first, queue_last;
};

struct ucx_send {
    struct ucx *ucx;
    uint64_t cookie;
    const uint8_t *payload;
    size_t payload_bytes;
    uint32_t peer;
    uint32_t next;               /* in its peer's list */
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
    bool window_moved;  /* a peer with queued sends has room */
    bool closing;       /* what still comes in is dropped */
    bool abandoned;     /* an endpoint is left to the process's end */
    bool verbs;         /* some transport needs an RDMA device */
    char lanes[128];    /* by which the last peer was connected */
    uint32_t under_way; /* requests of ours whose callback has not come */

    struct ucx_devices devices;
    struct ucx_memory memory; /* the slots are its first piece */

    struct ucx_peer *peers;
    struct ucx_send *sends;
    uint32_t *free_sends; /* a stack of indices; likewise free_slots */
    uint32_t free_send_count;
    struct ucx_slot *slots;
    uint32_t *free_slots;
    uint32_t free_slot_count;

    struct ucx_waiting *waiting; /* a queue in a circle of CHANNEL_UCX_WAITING_MAX */
    uint32_t waiting_head, waiting_count;
    uint32_t waiting_eager; /* those among them that are not rendezvous */

    /* A circle that cannot overflow: at most one event a send, a slot and a peer is in it. */
    struct channel_event *events;
    uint32_t event_capacity, event_head, event_count;
};

struct channel_event *channel_ucx_queue_event(struct ucx *ucx, enum channel_event_kind kind);

/* ---- channel_ucx_receive.c ---- */

/* UCX's callback for a frame; user is the struct ucx. */
ucs_status_t channel_ucx_frame(void *user, const void *header, size_t header_bytes, void *data,
                               size_t payload_bytes, const ucp_am_recv_param_t *param);

/* Moves waiting messages into free slots, in the order they came. */
void channel_ucx_fill_slots(struct ucx *ucx);
void channel_ucx_free_slot(struct ucx_slot *slot);

/* Gives back what UCX keeps for us. NULL is harmless. */
void channel_ucx_drop_data(struct ucx *ucx, void *data);

/* Too much waits for slots: TCP shall hold the senders back. */
bool channel_ucx_is_full(const struct ucx *ucx);

#endif
