/* tls_inlet.h - the receiving end of one connection of channel_tls.
 *
 *   GREETING -> OPEN -> AWAY, and from any of them to FREE
 * A connection that came in is a stranger's until its hello is heard; till then it costs 5 s at
 * most, and with a key 16 KiB (control_tls.h). AWAY is a link whose connection broke: it remembers
 * how many frames have arrived, for when its sender dials again.
 * A frame's head is read first; its payload goes straight into a slot of the channel and is opened
 * there. While no slot is free nothing is read, so that TCP holds the sender back. A payload that
 * is too long for a slot is read and forgotten.
 */
#ifndef RUBATO_TRANSPORT_TLS_INLET_H
#define RUBATO_TRANSPORT_TLS_INLET_H

#include "proto/frame.h"
#include "transport/tls_greet.h"
#include "transport/tls_lane.h"

#define TLS_INLET_BUFFER ((size_t)16 << 10)

struct tls_slot {
    uint8_t *memory; /* [slot_bytes] */
    size_t payload_bytes;
    uint8_t header[FRAME_BYTES];
};

/* The channel's slots. */
struct tls_slots {
    struct tls_slot *slots;
    uint32_t *free; /* a stack of indices */
    uint32_t free_count, count;
    size_t slot_bytes;
    uint64_t refused; /* frames that were too long */
};

enum tls_inlet_state { TLS_INLET_FREE, TLS_INLET_GREETING, TLS_INLET_OPEN, TLS_INLET_AWAY };

struct tls_inlet {
    const struct tls_self *self;
    struct tls_slots *slots;
    uint8_t *buffer; /* [TLS_INLET_BUFFER] */

    enum tls_inlet_state state;
    int fd;
    struct tls_greet greet;
    struct tls_cipher out, in;
    int64_t deadline_ns; /* GREETING, AWAY, and of a frame that does not go on; 0: none */
    enum status status;  /* it ended with this, */
    char why[128];       /* because */

    uint8_t from[TLS_ID_BYTES];
    uint64_t link;
    uint64_t received; /* frames of the link */
    uint64_t told;     /* acknowledged to the sender */
    uint8_t ack[sizeof(uint64_t) + TLS_CIPHER_TAG_BYTES];
    size_t ack_at, ack_end;
    bool ack_blocked;

    size_t buffer_at, buffer_end; /* read and not yet used */
    bool under_way;               /* a frame whose head is read */
    uint32_t slot;                /* of it; TLS_LANE_NONE: not yet, or too long */
    bool hungry;                  /* it waits for a slot */
    uint8_t header[FRAME_BYTES];
    size_t payload_bytes, payload_at; /* what is opened of it */
    size_t chunk_at;                  /* bytes of the chunk, then of its tag, that are read */
    uint64_t drain;                   /* sealed bytes of a payload that is too long, left */
    uint8_t tag[TLS_CIPHER_TAG_BYTES];
    size_t wake_bytes; /* as the socket has it (tls_socket_wake_at) */
};

/* A connection that came in, from now on the inlet's. False, and it is closed: no memory. */
bool tls_inlet_accept(struct tls_inlet *inlet, int fd, int64_t now_ns);

/* In GREETING: OK: the hello is heard; AGAIN; otherwise it is to be dropped. */
enum status tls_inlet_hear(struct tls_inlet *inlet, struct tls_hello *hello) WARN_UNUSED;

/* In GREETING, after hear(): answers. From a link's earlier inlet, or NULL, it takes over what was
 * received, and ends it. OK: it is OPEN, or (another answer than COME) done with; AGAIN: call again
 * with the same arguments when the socket is ready. */
enum status tls_inlet_answer(struct tls_inlet *inlet, enum tls_answer answer,
                             const struct tls_hello *hello, struct tls_inlet *earlier) WARN_UNUSED;

/* Reads on. OK: a frame is whole -> slot, which is the caller's; AGAIN: not now (hungry: not before
 * a slot is free). Otherwise the connection is over. */
enum status tls_inlet_next(struct tls_inlet *inlet, uint32_t *slot, int64_t now_ns) WARN_UNUSED;

/* Tells the sender what has arrived. Not OK: the connection is over. */
enum status tls_inlet_tell(struct tls_inlet *inlet) WARN_UNUSED;

uint32_t tls_inlet_interest(const struct tls_inlet *inlet);

/* Closes the connection and gives a half-filled slot back. An OPEN one is AWAY until deadline_ns,
 * others are FREE. */
void tls_inlet_end(struct tls_inlet *inlet, int64_t deadline_ns);

void tls_inlet_free(struct tls_inlet *inlet);

#endif
