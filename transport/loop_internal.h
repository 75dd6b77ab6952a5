/* loop_internal.h - what loop.c (the network, the clock, data channels) and loop_control.c share.
 *
 * Everything that is under way is a `struct delivery` in one heap, ordered by (time, sequence
 * number), so that equal times keep the order in which they were scheduled. Channels and controls
 * are known to deliveries by id only, never reused, so that one may be closed while others refer
 * to it.
 */
#ifndef RUBATO_TRANSPORT_LOOP_INTERNAL_H
#define RUBATO_TRANSPORT_LOOP_INTERNAL_H

#include "base/random.h"
#include "transport/loop.h"

#define LOOP_NODES 1024

enum loop_node_state { LOOP_UP = 0, LOOP_DEAD, LOOP_PARTITIONED };

enum delivery_kind {
    DELIVER_FRAME,  /* data: `message` to channel `to` */
    DELIVER_SENT,   /* data: channel `to` is told that its send is over */
    DELIVER_LOST,   /* data: channel `to` is told that channel `from` is gone */
    DELIVER_DIAL,   /* control: a dialled connection reaches its listener */
    DELIVER_PACKET, /* control; likewise the next two: to connection `connection` of control `to` */
    DELIVER_OPENED,
    DELIVER_CLOSED
};

/* A data frame's bytes, shared by its copies. */
struct loop_message {
    uint32_t references;
    uint32_t peer;    /* the sender's number of the receiver */
    uint64_t link;    /* which connect() of the sender it went by */
    uint64_t order;   /* on that link */
    size_t bytes;     /* of the payload */
    uint8_t *payload; /* in the same allocation, aligned */
    uint8_t header[FRAME_BYTES];
};

struct delivery {
    int64_t at_ns;
    uint64_t sequence;
    enum delivery_kind kind;
    bool again;    /* FRAME: the second copy */
    bool reported; /* CLOSED: said by the dialler's own side, so that no cut hides it */
    uint64_t from, to;
    uint32_t from_node;
    struct loop_message *message; /* FRAME: one reference */
    uint64_t cookie;              /* SENT */
    uint64_t link;                /* SENT */
    uint32_t peer;                /* SENT */
    uint32_t connection;          /* PACKET, OPENED, CLOSED; DIAL: the dialler's */
    uint64_t serial;              /* of that connection: numbers are reused, serials not */
    enum status status;           /* SENT, CLOSED */
    const char *text;             /* CLOSED: a literal */
    uint8_t *packet;              /* PACKET: owned */
    size_t packet_bytes;          /* PACKET; SENT: of the payload */
};

struct loop_channel;
struct loop_control;

struct loop {
    struct random_stream random;
    struct loop_faults faults;
    struct loop_counts counts;
    int64_t now_ns;
    uint64_t sequence; /* of deliveries */
    uint64_t serial;   /* of links and connections */
    struct delivery *heap;
    size_t heap_count, heap_capacity;
    struct loop_channel **channels; /* [id]; NULL once closed */
    size_t channel_count;
    struct loop_control **controls;
    size_t control_count;
    uint8_t nodes[LOOP_NODES];   /* enum loop_node_state */
    int64_t data_ns[LOOP_NODES]; /* before then it has no data connections */
};

/* A uniform delay of the faults. */
int64_t loop_delay_ns(struct loop *loop);

/* Adds to what is under way. */
void loop_schedule(struct loop *loop, const struct delivery *delivery);

/* array [count] of `bytes` each -> one item more, zeroed, at its end; the array may move. */
void *loop_grow(void *array, size_t count, size_t bytes);

/* A control delivery is due; owns its packet. */
void loop_control_deliver(struct loop *loop, struct delivery *delivery);

/* The connections of a node that died: their peers learn of it. */
void loop_control_cut(struct loop *loop, uint32_t node);

#endif
