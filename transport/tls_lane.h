/* tls_lane.h - the sending end of one connection of channel_tls.
 *
 * A lane keeps its frames in a queue until the receiver has acknowledged them. When its connection
 * breaks it dials again, and the receiver's welcome says with which frame to go on, so that each
 * frame arrives once and in the lane's order.
 *   DOWN -> CONNECTING -> GREETING -> OPEN, and from any of them back to DOWN
 * Sealed bytes lie in `staging` until the socket takes them; small frames gather there, large
 * payloads pass in chunks (plain ones are sent from where they lie). On the wire a frame is a head
 * (its header and the u64 length of its payload), then the payload in chunks of TLS_LANE_CHUNK
 * (plain: in one), each with the tag of tls_cipher.h. The other direction carries acknowledgements:
 * u64, how many frames of the link have arrived whole, and a tag.
 * After key_records records the connection is replaced, which gives new keys: AES-GCM's bounds for
 * one key are then far away (2^21 records of 64 KiB are 2^33 blocks).
 */
#ifndef RUBATO_TRANSPORT_TLS_LANE_H
#define RUBATO_TRANSPORT_TLS_LANE_H

#include "proto/frame.h"
#include "transport/tls_greet.h"

#define TLS_LANE_CHUNK       ((size_t)64 << 10)
#define TLS_LANE_HEAD        (FRAME_BYTES + sizeof(uint64_t))
#define TLS_LANE_STAGING     (2 * (TLS_LANE_CHUNK + TLS_CIPHER_TAG_BYTES) + ((size_t)8 << 10))
#define TLS_LANE_ACKS        32 /* read at once */
#define TLS_LANE_NONE        UINT32_MAX
#define TLS_LANE_KEY_RECORDS (UINT64_C(1) << 21)

/* One frame that was given to send(), of the channel's table. */
struct tls_send {
    uint64_t cookie;
    const uint8_t *payload;
    size_t payload_bytes;
    uint32_t peer;
    uint32_t next; /* in its lane's queue */
    uint8_t header[FRAME_BYTES];
};

enum tls_lane_state { TLS_LANE_DOWN, TLS_LANE_CONNECTING, TLS_LANE_GREETING, TLS_LANE_OPEN };

struct tls_lane {
    const struct tls_self *self;
    struct tls_send *sends;
    uint8_t *staging; /* [TLS_LANE_STAGING] */
    uint64_t key_records;

    struct tls_address to;
    uint64_t link;
    enum tls_lane_state state;
    int fd; /* -1: none */
    struct tls_greet greet;
    struct tls_cipher out, in;
    int64_t broken_ns;   /* since when it is not open; 0: it is */
    int64_t deadline_ns; /* DOWN: dial; CONNECTING, GREETING: give up; OPEN: look; 0: none */
    bool refused;        /* the other side is there and will never take us */
    char why[128];       /* it broke last */

    uint64_t done;         /* the number of the queue's head; frames are numbered from 0 */
    uint64_t acknowledged; /* frames that have arrived */
    uint64_t written;      /* frames that are staged whole */
    uint32_t head, tail;   /* TLS_LANE_NONE: empty */
    uint32_t current;      /* the first that is not written; TLS_LANE_NONE: all are */
    bool head_staged;      /* current's head is */
    size_t current_at;     /* bytes of its payload that are staged or sent */
    size_t staged_at, staged_end;
    bool blocked;          /* the socket takes no more */
    uint64_t queued_bytes; /* of all frames in the queue */
    uint64_t opened;       /* connections of the link, so far */
    uint64_t resent;       /* frames that were begun anew after a break, in all */
    uint8_t acks[TLS_LANE_ACKS * (sizeof(uint64_t) + TLS_CIPHER_TAG_BYTES)];
    size_t ack_bytes;
};

/* Bytes of the next chunk of a payload of which `left` are left. Pure. */
size_t tls_lane_chunk(enum tls_wire wire, size_t left);

/* A new link to `to`; the queue is empty, the first connection starts with the next step. */
void tls_lane_open(struct tls_lane *lane, const struct tls_address *to, uint64_t link,
                   int64_t now_ns);

/* Puts sends[index] into the queue. */
void tls_lane_push(struct tls_lane *lane, uint32_t index);

/* Dials, greets, reads and writes as far as it goes, or breaks. */
void tls_lane_step(struct tls_lane *lane, int64_t now_ns);

/* Its deadline has passed. */
void tls_lane_expire(struct tls_lane *lane, int64_t now_ns);

/* Could it write at once, if stepped? */
bool tls_lane_is_ready(const struct tls_lane *lane);

/* The oldest frame, out of the queue, or TLS_LANE_NONE: if it was acknowledged; in any case. */
uint32_t tls_lane_take_done(struct tls_lane *lane);
uint32_t tls_lane_take(struct tls_lane *lane);

/* epoll events to wait for; 0: none, or no socket. */
uint32_t tls_lane_interest(const struct tls_lane *lane);

/* Closes the connection; the queue stays. */
void tls_lane_close(struct tls_lane *lane);

#endif
