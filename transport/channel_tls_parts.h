/* channel_tls_parts.h - what channel_tls.c and channel_tls_progress.c share: the channel itself.
 *
 * A task is a number: of a lane (peer * TLS_CHANNEL_LANES + n) or, behind those, of an inlet. It is
 * what epoll tells about and what stands in the queue when there is something to do that the socket
 * does not show: frames to write, bytes read ahead, a slot to wait for.
 */
#ifndef RUBATO_TRANSPORT_CHANNEL_TLS_PARTS_H
#define RUBATO_TRANSPORT_CHANNEL_TLS_PARTS_H

#include "base/memory.h"
#include "transport/channel_tls.h"
#include "transport/door.h"
#include "transport/tls_inlet.h"
#include "transport/tls_lane.h"

struct tls_peer {
    bool connected;
    bool lost;        /* no send until it is connected again */
    bool lost_queued; /* its PEER_LOST event waits in the queue */
};

struct tls_task {
    uint32_t watched; /* epoll events that its socket is registered for; 0: not registered */
    bool queued;
};

struct tls {
    struct channel base;
    struct channel_config config;
    struct channel_stats stats;
    struct arena arena; /* all tables, slots and buffers */
    struct tls_self self;
    struct tls_address address;
    struct door door;
    int epoll_fd, timer_fd, listener;
    bool listener_watched;
    int64_t now_ns;           /* of the turn under way */
    int64_t next_deadline_ns; /* none passes before */
    int64_t timer_ns;         /* what the timer is set to */
    uint64_t links;           /* opened so far */

    struct tls_peer *peers;
    struct tls_lane *lanes;
    uint32_t lane_count;
    struct tls_inlet *inlets;
    uint32_t inlet_count;
    struct tls_slots slots;
    struct tls_send *sends;
    uint32_t *free_sends; /* a stack of indices */
    uint32_t free_send_count;

    struct tls_task *tasks; /* [lane_count + inlet_count] */
    uint32_t *queue;        /* a circle of task numbers, each at most once */
    uint32_t queue_head, queue_count;

    /* A circle that cannot overflow: at most one event a send, a slot and a peer is in it. */
    struct channel_event *events;
    uint32_t event_capacity, event_head, event_count;
};

/* ---- channel_tls.c ---- */

struct channel_event *tls_queue_event(struct tls *tls, enum channel_event_kind kind);

/* ---- channel_tls_progress.c ---- */

/* Watches the sockets that are always there. IO, logged. */
enum status tls_progress_start(struct tls *tls) WARN_UNUSED;

/* One round of whatever sockets, queue and clock allow. */
void tls_progress(struct tls *tls);

/* Has progress something to do that no socket will show? */
bool tls_progress_is_due(const struct tls *tls);

/* Sets the timer to the next deadline, before the owner sleeps. */
void tls_progress_set_timer(struct tls *tls);

/* Puts a task into the queue. */
void tls_progress_queue(struct tls *tls, uint32_t task);

/* Ends a peer's lanes and all sends in them, without an event for the peer. */
void tls_progress_drop_peer(struct tls *tls, uint32_t number);

#endif
