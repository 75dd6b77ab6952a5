/* control_connection.h - one connection of control_tcp: its states, its buffers, its packets.
 *
 * For control_tcp.c alone, which owns the table, the epoll and the clock. A connection goes
 *   dialled   CONNECTING -> [HANDSHAKE] -> PREAMBLE -> OPEN -> CLOSING -> DEAD
 *   incoming                [HANDSHAKE] -> PREAMBLE -> OPEN -> CLOSING -> DEAD
 * with HANDSHAKE only if there is a key, and from any state to DEAD, from the first ones of an
 * incoming connection by REFUSING, in which it has been told why and gets a second to read it.
 * An OPEN connection that has `ended` still delivers the packets that had come in before.
 * Each call does what the socket allows and never waits. connection_step() is called when the
 * socket is ready or `more` is set; what changed is read from the struct afterwards.
 * Invariant: before OPEN an incoming connection has no buffer but greeting [8], and no byte behind
 * the preamble is read; nothing is allocated after OPEN.
 */
#ifndef RUBATO_TRANSPORT_CONTROL_CONNECTION_H
#define RUBATO_TRANSPORT_CONTROL_CONNECTION_H

#include "transport/control.h"
#include "transport/control_tls.h"

#define CONNECTION_OUR_PREAMBLE "RBTCTL1\n"
#define CONNECTION_OUR_REFUSAL  "RBTDENY\n"
#define CONNECTION_GREETING     ((size_t)8) /* bytes of either */

enum connection_phase {
    CONNECTION_FREE,
    CONNECTION_CONNECTING,
    CONNECTION_HANDSHAKE,
    CONNECTION_PREAMBLE,
    CONNECTION_OPEN,
    CONNECTION_REFUSING, /* reads and forgets until the peer closes */
    CONNECTION_CLOSING,  /* we hung up: sends what is queued, then as REFUSING */
    CONNECTION_DEAD
};

struct addrinfo;

struct connection {
    enum connection_phase phase;
    int fd; /* -1 for none */
    bool incoming;
    bool announced; /* the owner knows of it: dialled, or OPENED was reported */
    bool told;      /* OPENED was reported */
    bool clear;     /* there is a key, but the peer speaks in the clear */
    bool ended;     /* nothing more will come or go; status and text say why */
    bool broken;    /* writing failed; what the peer sent before is still to be read */
    bool finished;  /* our end of the stream is sent */
    bool more;      /* step() has something to do that the socket's readiness does not show */
    enum status status;
    char text[200];
    char peer[80]; /* "ip:port" */

    /* The time limit of the phase, 0 for none; control_tcp.c turns it into a deadline, 0 for not
     * yet done. */
    int64_t timeout_ns, deadline_ns;
    uint32_t watched; /* epoll events that the socket is registered for; 0: not registered */
    bool queued;      /* in control_tcp.c's queue */

    struct addrinfo *addresses, *next_address; /* dialled: what is still to be tried */
    struct control_tls_context *context;       /* NULL: plain; the control object's */
    struct control_tls *tls;
    uint8_t greeting[CONNECTION_GREETING];
    size_t greeting_bytes;
    uint8_t *in; /* from here to `out` and from there to the end, one allocation */
    size_t in_head, in_end;
    uint8_t *out;
    size_t out_head, out_end;
};

/* Takes over a connected socket. */
void connection_accept(struct connection *connection, int fd, struct control_tls_context *context);

/* Starts to connect; that it failed at once is in the phase (DEAD), too. */
void connection_dial(struct connection *connection, const char *host, const char *port,
                     struct control_tls_context *context);

/* Reads, writes and moves on as far as it goes. Packets from connection_next() are void then. */
void connection_step(struct connection *connection);

/* The phase's time limit has passed. */
void connection_expire(struct connection *connection);

/* The next whole packet, in place: OK; AGAIN: none is there. A length that is not allowed ends the
 * connection with CORRUPT. */
enum status connection_next(struct connection *connection, const uint8_t **packet, size_t *bytes);

/* Forgets the packet that connection_next() gave. */
void connection_skip(struct connection *connection);

/* As control_ops.send. */
enum status connection_send(struct connection *connection, const uint8_t *packet, size_t bytes);

/* As control_ops.hang_up. */
void connection_hang_up(struct connection *connection);

/* True when the owner has to be told something. */
bool connection_has_news(const struct connection *connection);

/* The epoll events to wait for; 0 when there is no socket. */
uint32_t connection_interest(const struct connection *connection);

/* Closes and frees all; the connection is FREE. */
void connection_release(struct connection *connection);

/* The numeric address of either end of a socket: "1.2.3.4:5" or "[::1]:5", without the port when
 * with_port is false; "" if unknown. */
void connection_address(int fd, bool own, bool with_port, char *text, size_t bytes);

/* The text of an errno, in lower case, as our logs have it. */
const char *connection_error_text(int error, char *text, size_t bytes);

/* What the first bytes of a stream are; MORE while that is open. Pure. */
enum connection_greeting {
    GREETING_MORE,
    GREETING_OURS,
    GREETING_REFUSAL,
    GREETING_TLS,
    GREETING_FOREIGN
};
enum connection_greeting connection_greet(const uint8_t *bytes, size_t count);

/* The packet at the start of bytes [count]: OK: a whole one of *packet_bytes behind 4 bytes of
 * length. AGAIN: not all there. CORRUPT: a length of 0 or above MESSAGE_MAX. Pure. */
enum status connection_frame(const uint8_t *bytes, size_t count, size_t *packet_bytes) WARN_UNUSED;

#endif
