#include "transport/control_connection.h"

#include "base/assert.h"
#include "base/clock.h"
#include "proto/message.h"

#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECT_TIMEOUT_NS   (2 * CLOCK_S)
#define HANDSHAKE_TIMEOUT_NS (5 * CLOCK_S)
#define CLOSE_TIMEOUT_NS     (1 * CLOCK_S)

#define LENGTH_BYTES ((size_t)4)
#define IN_BYTES     (LENGTH_BYTES + MESSAGE_MAX)
#define OUT_BYTES    ((size_t)4 << 20)

const char *connection_error_text(int error, char *text, size_t bytes) {
    if (strerror_r(error, text, bytes) != 0) snprintf(text, bytes, "error %d", error);
    text[0] = (char)tolower((unsigned char)text[0]);
    return text;
}

void connection_address(int fd, bool own, bool with_port, char *text, size_t bytes) {
    struct sockaddr_storage address;
    socklen_t length = sizeof(address);
    char host[64], port[8];
    text[0] = 0;
    int result = own ? getsockname(fd, (struct sockaddr *)&address, &length)
                     : getpeername(fd, (struct sockaddr *)&address, &length);
    if (result != 0) return;
    if (getnameinfo((struct sockaddr *)&address, length, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        return;
    }
    if (!with_port) {
        snprintf(text, bytes, "%s", host);
    } else if (address.ss_family == AF_INET6) {
        snprintf(text, bytes, "[%s]:%s", host, port);
    } else {
        snprintf(text, bytes, "%s:%s", host, port);
    }
}

enum connection_greeting connection_greet(const uint8_t *bytes, size_t count) {
    size_t compared = count < CONNECTION_GREETING ? count : CONNECTION_GREETING;
    bool whole = compared == CONNECTION_GREETING;
    if (compared == 0) return GREETING_MORE;
    if (memcmp(bytes, CONNECTION_OUR_PREAMBLE, compared) == 0) {
        return whole ? GREETING_OURS : GREETING_MORE;
    }
    if (memcmp(bytes, CONNECTION_OUR_REFUSAL, compared) == 0) {
        return whole ? GREETING_REFUSAL : GREETING_MORE;
    }
    if (bytes[0] == 0x16 && compared == 1) return GREETING_MORE;
    if (bytes[0] == 0x16 && bytes[1] == 0x03) return GREETING_TLS;
    return GREETING_FOREIGN;
}

enum status connection_frame(const uint8_t *bytes, size_t count, size_t *packet_bytes) {
    if (count < LENGTH_BYTES) return STATUS_AGAIN;
    size_t length =
        (size_t)bytes[0] | (size_t)bytes[1] << 8 | (size_t)bytes[2] << 16 | (size_t)bytes[3] << 24;
    if (length == 0 || length > MESSAGE_MAX) return STATUS_CORRUPT;
    if (count - LENGTH_BYTES < length) return STATUS_AGAIN;
    *packet_bytes = length;
    return STATUS_OK;
}

static void enter(struct connection *c, enum connection_phase phase, int64_t timeout_ns) {
    c->phase = phase;
    c->timeout_ns = timeout_ns;
    c->deadline_ns = 0;
}

/* The connection is over. The first reason counts. */
static void __attribute__((format(printf, 3, 4)))
end(struct connection *c, enum status status, const char *format, ...) {
    va_list arguments;
    if (!c->ended) {
        va_start(arguments, format);
        vsnprintf(c->text, sizeof(c->text), format, arguments);
        va_end(arguments);
        c->status = status;
    }
    c->ended = true;
    c->out_head = c->out_end = 0;
    if (c->phase != CONNECTION_OPEN) enter(c, CONNECTION_DEAD, 0);
}

/* As end(), for the reason that is in the struct already. */
static void end_as_said(struct connection *c) {
    c->ended = true;
    end(c, c->status, "%s", "");
}

/* Ends a connection that came in, leaving the peer time to read what it was told: to close a socket
 * with unread input would reset the connection and take the answer from it. */
static void refuse(struct connection *c, enum status status, const char *text) {
    snprintf(c->text, sizeof(c->text), "%s", text);
    c->status = status;
    c->ended = true;
    shutdown(c->fd, SHUT_WR);
    enter(c, CONNECTION_REFUSING, CLOSE_TIMEOUT_NS);
}

static enum status read_some(struct connection *c, uint8_t *bytes, size_t capacity, size_t *count,
                             char *why, size_t why_bytes) {
    if (c->tls != NULL) return control_tls_read(c->tls, bytes, capacity, count, why, why_bytes);
    ssize_t got;
    do {
        got = recv(c->fd, bytes, capacity, 0);
    } while (got < 0 && errno == EINTR);
    if (got > 0) {
        *count = (size_t)got;
        return STATUS_OK;
    }
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return STATUS_AGAIN;
    if (got == 0) {
        snprintf(why, why_bytes, "closed by the other side");
    } else {
        connection_error_text(errno, why, why_bytes);
    }
    return STATUS_PEER_LOST;
}

static enum status write_some(struct connection *c, const uint8_t *bytes, size_t capacity,
                              size_t *count, char *why, size_t why_bytes) {
    if (c->tls != NULL) return control_tls_write(c->tls, bytes, capacity, count, why, why_bytes);
    ssize_t put;
    do {
        put = send(c->fd, bytes, capacity, MSG_NOSIGNAL);
    } while (put < 0 && errno == EINTR);
    if (put >= 0) {
        *count = (size_t)put;
        return STATUS_OK;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return STATUS_AGAIN;
    connection_error_text(errno, why, why_bytes);
    return STATUS_PEER_LOST;
}

/* Sends what is queued, as far as it goes. A failure does not end the connection at once: the
 * peer may have said why it closed, and that is still to be read. */
static void flush(struct connection *c) {
    char why[sizeof(c->text)];
    while (c->out_head < c->out_end && !c->broken) {
        size_t count = 0;
        enum status status =
            write_some(c, c->out + c->out_head, c->out_end - c->out_head, &count, why, sizeof(why));
        if (status == STATUS_AGAIN) return;
        if (status != STATUS_OK) {
            c->broken = c->more = true;
            c->status = status;
            snprintf(c->text, sizeof(c->text), "%s", why);
            break;
        }
        c->out_head += count;
    }
    c->out_head = c->out_end = 0;
}

static void enqueue(struct connection *c, const void *bytes, size_t count) {
    if (OUT_BYTES - c->out_end < count) {
        memmove(c->out, c->out + c->out_head, c->out_end - c->out_head);
        c->out_end -= c->out_head;
        c->out_head = 0;
    }
    ASSERT(OUT_BYTES - c->out_end >= count);
    memcpy(c->out + c->out_end, bytes, count);
    c->out_end += count;
}

/* Both buffers at their full size: pages that are never touched cost nothing, and a connection
 * that is open needs no allocation. */
static bool take_buffers(struct connection *c) {
    if (c->in != NULL) return true;
    c->in = malloc(IN_BYTES + OUT_BYTES);
    if (c->in == NULL) return false;
    c->out = c->in + IN_BYTES;
    return true;
}

/* Reads until the socket or the buffer has no more. */
static void fill(struct connection *c) {
    char why[sizeof(c->text)];
    if (c->in_head > 0) {
        memmove(c->in, c->in + c->in_head, c->in_end - c->in_head);
        c->in_end -= c->in_head;
        c->in_head = 0;
    }
    enum status status = STATUS_OK;
    while (status == STATUS_OK && c->in_end < IN_BYTES) {
        size_t count = 0;
        status = read_some(c, c->in + c->in_end, IN_BYTES - c->in_end, &count, why, sizeof(why));
        if (status == STATUS_OK) c->in_end += count;
    }
    c->more = status == STATUS_OK; // the buffer is full
    if (status != STATUS_OK && status != STATUS_AGAIN) {
        end(c, status, "%s", why);
    } else if (c->broken && !c->more) {
        end_as_said(c);
    }
}

static void drain(struct connection *c) {
    uint8_t scrap[4096];
    ssize_t got = 1;
    for (int i = 0; i < 16 && got > 0; i++) {
        got = recv(c->fd, scrap, sizeof(scrap), 0);
    }
    if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))) return;
    end_as_said(c);
}

static void step_closing(struct connection *c) {
    flush(c);
    if (c->broken) {
        end(c, STATUS_AGAIN, "we hung up");
        return;
    }
    if (c->out_head < c->out_end) return;
    if (!c->finished) {
        if (c->tls != NULL) control_tls_finish(c->tls);
        shutdown(c->fd, SHUT_WR);
        c->finished = true;
    }
    drain(c);
}

static void open_up(struct connection *c) {
    if (!take_buffers(c)) {
        end(c, STATUS_MEMORY, "no memory for its buffers");
        return;
    }
    if (c->incoming) enqueue(c, CONNECTION_OUR_PREAMBLE, CONNECTION_GREETING);
    enter(c, CONNECTION_OPEN, 0);
    c->more = true; // packets may follow the preamble, inside OpenSSL where epoll does not see them
    flush(c);
}

static void judge_greeting(struct connection *c, enum connection_greeting greeting) {
    bool keyed = c->context != NULL;
    if (greeting == GREETING_OURS && !c->clear) {
        open_up(c);
    } else if (c->incoming && !keyed && greeting == GREETING_TLS) {
        (void)send(c->fd, CONNECTION_OUR_REFUSAL, CONNECTION_GREETING, MSG_NOSIGNAL);
        refuse(c, STATUS_DENIED, "the other side has a key (--key-file), we have none");
    } else if (c->incoming && c->clear && greeting == GREETING_OURS) {
        (void)send(c->fd, CONNECTION_OUR_REFUSAL, CONNECTION_GREETING, MSG_NOSIGNAL);
        refuse(c, STATUS_DENIED, "we have a key (--key-file), the other side has none");
    } else if (!c->incoming && greeting == GREETING_REFUSAL && c->clear) {
        end(c, STATUS_DENIED, "we have a key (--key-file), the other side has none");
    } else if (!c->incoming && greeting == GREETING_REFUSAL && !keyed) {
        end(c, STATUS_DENIED, "the other side has a key (--key-file), we have none");
    } else {
        end(c, STATUS_CORRUPT, "does not speak our protocol");
    }
}

static void step_preamble(struct connection *c) {
    char why[sizeof(c->text)];
    if (c->out != NULL) flush(c);
    while (c->phase == CONNECTION_PREAMBLE) {
        size_t count = 0;
        enum status status =
            read_some(c, c->greeting + c->greeting_bytes, CONNECTION_GREETING - c->greeting_bytes,
                      &count, why, sizeof(why));
        if (status == STATUS_AGAIN) return;
        if (status != STATUS_OK) {
            end(c, status, "%s before it answered", why);
            return;
        }
        c->greeting_bytes += count;
        enum connection_greeting greeting = connection_greet(c->greeting, c->greeting_bytes);
        if (greeting != GREETING_MORE) judge_greeting(c, greeting);
    }
}

/* Keeps the deadline of the handshake: to show a key and a preamble takes 5 s together. */
static void begin_preamble(struct connection *c) {
    c->phase = CONNECTION_PREAMBLE;
    if (!c->incoming && !c->clear) {
        if (!take_buffers(c)) {
            end(c, STATUS_MEMORY, "no memory for its buffers");
            return;
        }
        enqueue(c, CONNECTION_OUR_PREAMBLE, CONNECTION_GREETING);
    }
    step_preamble(c);
}

static void step_handshake(struct connection *c) {
    char why[sizeof(c->text)] = "";
    enum status status = control_tls_handshake(c->tls, why, sizeof(why));
    switch (status) {
    case STATUS_AGAIN:
        return;
    case STATUS_OK:
        begin_preamble(c);
        return;
    case STATUS_UNSUPPORTED:
        control_tls_close(c->tls);
        c->tls = NULL;
        c->clear = true;
        begin_preamble(c);
        return;
    case STATUS_PEER_LOST:
        end(c, status, "%s during the handshake", why);
        return;
    default:
        if (c->incoming) {
            refuse(c, status, why); // OpenSSL has sent its alert
        } else {
            end(c, status, "%s", why);
        }
    }
}

static void begin_handshake(struct connection *c) {
    if (c->context == NULL) {
        enter(c, CONNECTION_PREAMBLE, HANDSHAKE_TIMEOUT_NS);
        begin_preamble(c);
        return;
    }
    enter(c, CONNECTION_HANDSHAKE, HANDSHAKE_TIMEOUT_NS);
    if (control_tls_open(&c->tls, c->context, c->fd, c->incoming) != STATUS_OK) {
        end(c, STATUS_MEMORY, "no memory for TLS");
        return;
    }
    step_handshake(c);
}

void connection_accept(struct connection *c, int fd, struct control_tls_context *context) {
    *c = (struct connection){.fd = fd, .incoming = true, .context = context};
    connection_address(fd, false, true, c->peer, sizeof(c->peer));
    begin_handshake(c);
}

/* A socket on its way to one address, or -1 with errno. */
static int start_connect(const struct addrinfo *address, bool *done) {
    int one = 1;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    *done = connect(fd, address->ai_addr, address->ai_addrlen) == 0;
    if (*done || errno == EINPROGRESS || errno == EINTR) return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static void connected(struct connection *c) {
    char own[sizeof(c->peer)];
    connection_address(c->fd, false, true, c->peer, sizeof(c->peer));
    connection_address(c->fd, true, true, own, sizeof(own));
    if (strcmp(own, c->peer) == 0) {
        // TCP lets a port of the ephemeral range connect to itself when nobody listens there.
        end(c, STATUS_PEER_LOST, "connection refused");
        return;
    }
    begin_handshake(c);
}

/* On to the next address; `status` and `error` are why the one before failed. */
static void connect_next(struct connection *c, enum status status, int error) {
    char text[sizeof(c->text)];
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    c->watched = 0;
    while (c->next_address != NULL) {
        const struct addrinfo *address = c->next_address;
        bool done = false;
        c->next_address = address->ai_next;
        c->fd = start_connect(address, &done);
        if (c->fd >= 0) {
            enter(c, CONNECTION_CONNECTING, CONNECT_TIMEOUT_NS);
            if (done) connected(c);
            return;
        }
        status = STATUS_PEER_LOST;
        error = errno;
    }
    end(c, status, "%s",
        status == STATUS_TIMEOUT ? "no answer within 2 s"
                                 : connection_error_text(error, text, sizeof(text)));
}

void connection_dial(struct connection *c, const char *host, const char *port,
                     struct control_tls_context *context) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    *c = (struct connection){.fd = -1, .announced = true, .context = context};
    c->phase = CONNECTION_CONNECTING;
    int result = getaddrinfo(host, port, &hints, &c->addresses);
    if (result == EAI_NONAME) { // not a number, so a name
        hints.ai_flags = AI_NUMERICSERV;
        result = getaddrinfo(host, port, &hints, &c->addresses);
    }
    if (result != 0) {
        c->addresses = NULL;
        end(c, STATUS_PEER_LOST, "cannot resolve %s: %s", host, gai_strerror(result));
        return;
    }
    c->next_address = c->addresses;
    connect_next(c, STATUS_PEER_LOST, EADDRNOTAVAIL);
}

static void step_connecting(struct connection *c) {
    struct sockaddr_storage address;
    socklen_t address_bytes = sizeof(address);
    int error = 0;
    socklen_t error_bytes = sizeof(error);
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) != 0) error = errno;
    if (error != 0) {
        connect_next(c, STATUS_PEER_LOST, error);
    } else if (getpeername(c->fd, (struct sockaddr *)&address, &address_bytes) == 0) {
        connected(c);
    }
}

void connection_step(struct connection *c) {
    switch (c->phase) {
    case CONNECTION_CONNECTING:
        step_connecting(c);
        break;
    case CONNECTION_HANDSHAKE:
        step_handshake(c);
        break;
    case CONNECTION_PREAMBLE:
        step_preamble(c);
        break;
    case CONNECTION_OPEN:
        if (c->ended) break;
        flush(c);
        fill(c);
        break;
    case CONNECTION_REFUSING:
        drain(c);
        break;
    case CONNECTION_CLOSING:
        step_closing(c);
        break;
    case CONNECTION_FREE:
    case CONNECTION_DEAD:
        break;
    }
}

void connection_expire(struct connection *c) {
    c->timeout_ns = c->deadline_ns = 0;
    if (c->phase == CONNECTION_CONNECTING) {
        connect_next(c, STATUS_TIMEOUT, ETIMEDOUT);
    } else if (c->phase == CONNECTION_HANDSHAKE || c->phase == CONNECTION_PREAMBLE) {
        end(c, STATUS_TIMEOUT, "no handshake within 5 s");
    } else {
        end_as_said(c);
    }
}

enum status connection_next(struct connection *c, const uint8_t **packet, size_t *bytes) {
    size_t available = c->in_end - c->in_head;
    enum status status = connection_frame(c->in + c->in_head, available, bytes);
    if (status == STATUS_OK) *packet = c->in + c->in_head + LENGTH_BYTES;
    if (status == STATUS_CORRUPT) {
        c->in_head = c->in_end = 0;
        c->ended = false; // this reason counts more than an end of the stream behind it
        end(c, STATUS_CORRUPT, "sent a packet with a length that is not allowed");
    }
    return status;
}

void connection_skip(struct connection *c) {
    size_t bytes = 0;
    enum status status = connection_frame(c->in + c->in_head, c->in_end - c->in_head, &bytes);
    ASSERT(status == STATUS_OK);
    c->in_head += LENGTH_BYTES + bytes;
}

enum status connection_send(struct connection *c, const uint8_t *packet, size_t bytes) {
    ASSERT(bytes >= 1 && bytes <= MESSAGE_MAX);
    if (c->phase == CONNECTION_CONNECTING || c->phase == CONNECTION_HANDSHAKE ||
        c->phase == CONNECTION_PREAMBLE) {
        return STATUS_AGAIN;
    }
    if (c->phase != CONNECTION_OPEN || c->ended || c->broken) return STATUS_PEER_LOST;
    if (OUT_BYTES - (c->out_end - c->out_head) < LENGTH_BYTES + bytes) return STATUS_AGAIN;
    const uint8_t length[LENGTH_BYTES] = {(uint8_t)bytes, (uint8_t)(bytes >> 8),
                                          (uint8_t)(bytes >> 16), (uint8_t)(bytes >> 24)};
    enqueue(c, length, LENGTH_BYTES);
    enqueue(c, packet, bytes);
    flush(c);
    return STATUS_OK;
}

void connection_hang_up(struct connection *c) {
    if (c->phase == CONNECTION_FREE || c->phase == CONNECTION_DEAD ||
        c->phase == CONNECTION_REFUSING || c->phase == CONNECTION_CLOSING) {
        return;
    }
    bool open = c->phase == CONNECTION_OPEN && !c->ended && !c->broken;
    c->status = STATUS_AGAIN;
    snprintf(c->text, sizeof(c->text), "we hung up");
    c->more = false;
    if (open) {
        enter(c, CONNECTION_CLOSING, CLOSE_TIMEOUT_NS);
        step_closing(c);
    } else {
        c->ended = true;
        enter(c, CONNECTION_DEAD, 0);
    }
}

bool connection_has_news(const struct connection *c) {
    if (c->phase == CONNECTION_DEAD) return true;
    if (c->phase != CONNECTION_OPEN) return false;
    size_t bytes = 0;
    return !c->told || c->more || c->ended ||
           connection_frame(c->in + c->in_head, c->in_end - c->in_head, &bytes) != STATUS_AGAIN;
}

uint32_t connection_interest(const struct connection *c) {
    if (c->fd < 0 || c->phase == CONNECTION_DEAD || c->phase == CONNECTION_FREE) return 0;
    if (c->phase == CONNECTION_CONNECTING) return EPOLLOUT;
    if (c->phase == CONNECTION_REFUSING || c->finished) return EPOLLIN;
    bool writes = c->out_head < c->out_end || (c->tls != NULL && control_tls_wants_write(c->tls));
    return writes ? EPOLLIN | EPOLLOUT : EPOLLIN;
}

void connection_release(struct connection *c) {
    control_tls_close(c->tls);
    if (c->fd >= 0) close(c->fd);
    if (c->addresses != NULL) freeaddrinfo(c->addresses);
    free(c->in);
    *c = (struct connection){.fd = -1, .phase = CONNECTION_FREE};
}
