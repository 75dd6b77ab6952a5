/* control.h - the control channel: packets between the coordinator and the members of a job.
 *
 * One object is one side: it may listen, dial, or both, and holds its connections. Packets are
 * whole, ordered and reliable while the connection lives; its end is an event with a reason. Over
 * TCP (control_tcp.h) packets are length-prefixed inside TLS 1.3 with a pre-shared key; in the
 * simulator (loop.h) they are delivered in virtual time.
 * Nothing blocks; connections are numbered, and a number is used again some time after its CLOSED.
 * The owner polls until there is no more event before it sleeps on wait_fd, and at least once a
 * second, since deadlines are looked at in poll() alone.
 * A connection that came in and never got as far as OPENED is dropped without an event.
 * One thread owns the object; only it may call.
 */
#ifndef RUBATO_TRANSPORT_CONTROL_H
#define RUBATO_TRANSPORT_CONTROL_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct control;

enum control_event_kind {
    CONTROL_OPENED, /* a connection is up, authenticated: one we dialled, or one that came in */
    CONTROL_PACKET, /* packet [bytes], valid until the next poll */
    CONTROL_CLOSED  /* status and text say why; the number is free again */
};

struct control_event {
    enum control_event_kind kind;
    uint32_t connection;
    bool incoming;         /* OPENED: the other side dialled */
    const uint8_t *packet; /* PACKET: [packet_bytes] */
    size_t packet_bytes;
    /* CLOSED: PEER_LOST (end of stream, reset, refused, no such host), DENIED (wrong or missing
     * key), CORRUPT (not our protocol), TIMEOUT (connect, handshake), AGAIN (we hung up). */
    enum status status;
    const char *text; /* OPENED: the peer's "ip:port"; CLOSED: the reason. Until the next poll. */
};

struct control_ops {
    const char *name;

    /* Starts listening at host:port. IO, logged with the reason (port in use, no such address). */
    enum status (*listen)(struct control *control, const char *host, const char *port);

    /* Starts a connection; OPENED or CLOSED follows. IO or MEMORY, logged: could not even start. */
    enum status (*dial)(struct control *control, const char *host, const char *port,
                        uint32_t *connection);

    /* Queues one packet of 1..MESSAGE_MAX bytes. AGAIN: the peer does not read and the
     * connection's buffer is full, or it is not open yet; PEER_LOST: it is closed. */
    enum status (*send)(struct control *control, uint32_t connection, const uint8_t *packet,
                        size_t bytes);

    /* Reads, writes and accepts what can be; returns the next event, false when there is none. */
    bool (*poll)(struct control *control, int64_t now_ns, struct control_event *event);

    /* Sends what is queued, then closes (within a second at most); CLOSED with AGAIN follows. What
     * still comes in is dropped. Harmless on a connection that is closed already. */
    void (*hang_up)(struct control *control, uint32_t connection);

    /* Readable when poll() has something to do; -1 in the simulator. */
    int (*wait_fd)(struct control *control);

    /* "ip" of our own end of a connection, for choosing the network interface; "" if unknown. */
    void (*local_ip)(struct control *control, uint32_t connection, char *ip, size_t bytes);

    /* Tries for at most `flush_ns` to send what is queued, closes all, frees. */
    void (*close)(struct control *control, int64_t flush_ns);
};

struct control {
    const struct control_ops *ops;
};

#endif
