#include "transport/tls_inlet.h"

#include "base/assert.h"
#include "base/clock.h"
#include "transport/control_connection.h"
#include "transport/tls_socket.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define GREETING_NS (5 * CLOCK_S)

/* Read behind a chunk of a large payload: its tag, and perhaps the next head. What comes after that
 * is to go into a slot without a copy. */
#define BEHIND_CHUNK ((size_t)256)
#define LARGE_CHUNK  ((size_t)8 << 10)

/* Of a payload that is still to come, so much is waited for at once: being woken for every segment
 * costs as much as copying it. */
#define WAKE_MOST  ((size_t)256 << 10)
#define WAKE_LEAST ((size_t)32 << 10)

static enum status say_why(struct tls_inlet *inlet, enum status status, const char *why) {
    inlet->status = status;
    snprintf(inlet->why, sizeof inlet->why, "%s", why);
    return status;
}

bool tls_inlet_accept(struct tls_inlet *inlet, int fd, int64_t now_ns) {
    inlet->fd = fd;
    inlet->state = TLS_INLET_GREETING;
    inlet->deadline_ns = now_ns + GREETING_NS;
    inlet->buffer_at = inlet->buffer_end = inlet->ack_at = inlet->ack_end = 0;
    inlet->under_way = inlet->hungry = inlet->ack_blocked = false;
    inlet->slot = TLS_LANE_NONE;
    inlet->drain = 0;
    inlet->wake_bytes = 1;
    if (tls_greet_begin(&inlet->greet, inlet->self, fd, true) == STATUS_OK) return true;
    tls_inlet_free(inlet);
    return false;
}

enum status tls_inlet_hear(struct tls_inlet *inlet, struct tls_hello *hello) {
    enum status status = STATUS_OK;
    if (inlet->greet.stage != TLS_GREET_SAY) {
        status = tls_greet_step(&inlet->greet, inlet->why, sizeof inlet->why);
    }
    if (status == STATUS_OK && tls_hello_get(inlet->greet.heard, hello) != STATUS_OK) {
        return say_why(inlet, STATUS_CORRUPT, "its first bytes are no hello");
    }
    if (status != STATUS_AGAIN) inlet->status = status;
    return status;
}

enum status tls_inlet_answer(struct tls_inlet *inlet, enum tls_answer answer,
                             const struct tls_hello *hello, struct tls_inlet *earlier) {
    struct tls_welcome welcome = {.answer = answer, .next = hello->first};
    if (earlier) {
        /* Its half of a frame is void before the sender may begin that frame anew. */
        tls_inlet_end(earlier, inlet->deadline_ns + inlet->self->lease_ns);
        welcome.next = earlier->received;
    }
    tls_hello_put_welcome(&welcome, inlet->greet.said);
    enum status status = tls_greet_step(&inlet->greet, inlet->why, sizeof inlet->why);
    if (status != STATUS_OK || answer != TLS_ANSWER_COME) return status;
    if (tls_greet_ciphers(&inlet->greet, &inlet->out, &inlet->in) != STATUS_OK) {
        return say_why(inlet, STATUS_MEMORY, "no memory for the keys");
    }
    tls_greet_end(&inlet->greet);
    tls_socket_keep(inlet->fd, inlet->self->lease_ns);
    memcpy(inlet->from, hello->from, sizeof inlet->from);
    inlet->link = hello->link;
    inlet->received = inlet->told = welcome.next;
    inlet->state = TLS_INLET_OPEN;
    inlet->deadline_ns = 0;
    if (earlier) tls_inlet_free(earlier);
    return STATUS_OK;
}

/* ---- reading ---- */

/* Reads what is there into parts[0], then parts[1]; OK: *count >= 1. */
static enum status read_parts(struct tls_inlet *inlet, struct iovec *parts, int part_count,
                              size_t *count) {
    ssize_t got;
    do {
        got = readv(inlet->fd, parts, part_count);
    } while (got < 0 && errno == EINTR);
    if (got > 0) {
        *count = (size_t)got;
        return STATUS_OK;
    }
    if (got == 0) return say_why(inlet, STATUS_PEER_LOST, "closed by the other side");
    if (errno == EAGAIN || errno == EWOULDBLOCK) return STATUS_AGAIN;
    (void)connection_error_text(errno, inlet->why, sizeof inlet->why);
    inlet->status = STATUS_PEER_LOST;
    return STATUS_PEER_LOST;
}

/* At least `wanted` bytes (at most the buffer's size) in a row in the buffer. */
static enum status fill_buffer(struct tls_inlet *inlet, size_t wanted) {
    if (inlet->buffer_at == inlet->buffer_end) inlet->buffer_at = inlet->buffer_end = 0;
    if (inlet->buffer_at + wanted > TLS_INLET_BUFFER) {
        memmove(inlet->buffer, inlet->buffer + inlet->buffer_at,
                inlet->buffer_end - inlet->buffer_at);
        inlet->buffer_end -= inlet->buffer_at;
        inlet->buffer_at = 0;
    }
    while (inlet->buffer_end - inlet->buffer_at < wanted) {
        size_t count = 0;
        struct iovec part = {.iov_base = inlet->buffer + inlet->buffer_end,
                             .iov_len = TLS_INLET_BUFFER - inlet->buffer_end};
        TRY(read_parts(inlet, &part, 1, &count));
        inlet->buffer_end += count;
    }
    return STATUS_OK;
}

/* Up to `bytes` that were read already -> to; returns how many. */
static size_t take_buffered(struct tls_inlet *inlet, uint8_t *to, size_t bytes) {
    size_t count = inlet->buffer_end - inlet->buffer_at;
    if (count > bytes) count = bytes;
    memcpy(to, inlet->buffer + inlet->buffer_at, count);
    inlet->buffer_at += count;
    return count;
}

/* All of to [*at .. bytes), past the buffer when that is empty. */
static enum status read_into(struct tls_inlet *inlet, uint8_t *to, size_t bytes, size_t *at) {
    *at += take_buffered(inlet, to + *at, bytes - *at);
    while (*at < bytes) {
        size_t left = bytes - *at, count = 0;
        inlet->buffer_at = inlet->buffer_end = 0;
        struct iovec parts[2] = {
            {.iov_base = to + *at, .iov_len = left},
            {.iov_base = inlet->buffer,
             .iov_len = left >= LARGE_CHUNK ? BEHIND_CHUNK : TLS_INLET_BUFFER}};
        TRY(read_parts(inlet, parts, 2, &count));
        *at += count < left ? count : left;
        inlet->buffer_end = count < left ? 0 : count - left;
    }
    return STATUS_OK;
}

static enum status read_head(struct tls_inlet *inlet) {
    size_t tag_bytes = tls_cipher_tag_bytes(inlet->self->wire);
    TRY(fill_buffer(inlet, TLS_LANE_HEAD + tag_bytes));
    uint8_t *head = inlet->buffer + inlet->buffer_at;
    inlet->buffer_at += TLS_LANE_HEAD + tag_bytes;
    if (tls_cipher_open(&inlet->in, head, TLS_LANE_HEAD, head + TLS_LANE_HEAD) != STATUS_OK) {
        return say_why(inlet, STATUS_CORRUPT, "a frame's head was changed on its way");
    }
    uint64_t payload_bytes = tls_hello_get_u64(head + FRAME_BYTES);
    if (payload_bytes > FRAME_PAYLOAD_MAX) {
        return say_why(inlet, STATUS_CORRUPT, "a frame is longer than any may be");
    }
    memcpy(inlet->header, head, FRAME_BYTES);
    inlet->under_way = true;
    inlet->payload_bytes = payload_bytes;
    inlet->payload_at = inlet->chunk_at = 0;
    inlet->drain = 0;
    if (payload_bytes > inlet->slots->slot_bytes) {
        uint64_t chunks = tag_bytes > 0 ? (payload_bytes + TLS_LANE_CHUNK - 1) / TLS_LANE_CHUNK : 0;
        inlet->drain = payload_bytes + chunks * tag_bytes;
        inlet->in.records += chunks;
        inlet->slots->refused++;
    }
    return STATUS_OK;
}

/* The rest of a payload that is too long for a slot. */
static enum status drain(struct tls_inlet *inlet) {
    while (inlet->drain > 0) {
        if (inlet->buffer_at == inlet->buffer_end) TRY(fill_buffer(inlet, 1));
        size_t count = inlet->buffer_end - inlet->buffer_at;
        if (count > inlet->drain) count = (size_t)inlet->drain;
        inlet->buffer_at += count;
        inlet->drain -= count;
    }
    return STATUS_OK;
}

static enum status read_payload(struct tls_inlet *inlet) {
    size_t tag_bytes = tls_cipher_tag_bytes(inlet->self->wire);
    uint8_t *memory = inlet->slots->slots[inlet->slot].memory;
    while (inlet->payload_at < inlet->payload_bytes) {
        uint8_t *chunk = memory + inlet->payload_at;
        size_t left = inlet->payload_bytes - inlet->payload_at;
        size_t bytes = tls_lane_chunk(inlet->self->wire, left);
        if (inlet->chunk_at < bytes) TRY(read_into(inlet, chunk, bytes, &inlet->chunk_at));
        size_t tag_at = inlet->chunk_at - bytes;
        enum status status = read_into(inlet, inlet->tag, tag_bytes, &tag_at);
        inlet->chunk_at = bytes + tag_at;
        TRY(status);
        if (tls_cipher_open(&inlet->in, chunk, bytes, inlet->tag) != STATUS_OK) {
            return say_why(inlet, STATUS_CORRUPT, "a payload was changed on its way");
        }
        inlet->payload_at += bytes;
        inlet->chunk_at = 0;
    }
    return STATUS_OK;
}

/* The rest of the frame under way; OK with *whole false: it was too long. */
static enum status read_rest(struct tls_inlet *inlet, bool *whole) {
    struct tls_slots *slots = inlet->slots;
    *whole = inlet->payload_bytes <= slots->slot_bytes;
    if (!*whole) return drain(inlet);
    if (inlet->slot == TLS_LANE_NONE) {
        inlet->hungry = slots->free_count == 0;
        if (inlet->hungry) return STATUS_AGAIN;
        inlet->slot = slots->free[--slots->free_count];
    }
    return read_payload(inlet);
}

/* Before the owner sleeps: what of the frame under way is worth waking for. */
static void set_wake(struct tls_inlet *inlet) {
    size_t left = 0, here = inlet->payload_at + inlet->chunk_at; /* a tag among it, perhaps */
    if (inlet->slot != TLS_LANE_NONE && here < inlet->payload_bytes) {
        left = inlet->payload_bytes - here;
    }
    size_t wake_bytes = left < WAKE_LEAST ? 1 : left < WAKE_MOST ? left : WAKE_MOST;
    if (wake_bytes == inlet->wake_bytes) return;
    inlet->wake_bytes = wake_bytes;
    tls_socket_wake_at(inlet->fd, wake_bytes);
}

enum status tls_inlet_next(struct tls_inlet *inlet, uint32_t *slot, int64_t now_ns) {
    for (;;) {
        bool whole = false;
        size_t before = inlet->payload_at + inlet->chunk_at;
        enum status status = inlet->under_way ? STATUS_OK : read_head(inlet);
        if (status == STATUS_OK) status = read_rest(inlet, &whole);
        /* A sender that stops within a frame must not keep the slot for ever. */
        bool moved = inlet->payload_at + inlet->chunk_at != before || inlet->deadline_ns == 0;
        if (inlet->slot == TLS_LANE_NONE) {
            inlet->deadline_ns = 0;
        } else if (moved) {
            inlet->deadline_ns = now_ns + inlet->self->lease_ns;
        }
        if (status == STATUS_AGAIN) set_wake(inlet);
        TRY(status);
        inlet->under_way = false;
        inlet->deadline_ns = 0;
        inlet->received++;
        if (!whole) continue;
        struct tls_slot *filled = &inlet->slots->slots[inlet->slot];
        memcpy(filled->header, inlet->header, FRAME_BYTES);
        filled->payload_bytes = inlet->payload_bytes;
        *slot = inlet->slot;
        inlet->slot = TLS_LANE_NONE;
        return STATUS_OK;
    }
}

/* ---- acknowledging ---- */

enum status tls_inlet_tell(struct tls_inlet *inlet) {
    inlet->ack_blocked = false;
    while (inlet->ack_at < inlet->ack_end || inlet->told < inlet->received) {
        if (inlet->ack_at == inlet->ack_end) {
            uint8_t count[sizeof(uint64_t)];
            tls_hello_put_u64(count, inlet->received);
            tls_cipher_seal(&inlet->out, count, sizeof count, inlet->ack);
            inlet->ack_at = 0;
            inlet->ack_end = sizeof count + tls_cipher_tag_bytes(inlet->self->wire);
            inlet->told = inlet->received;
        }
        ssize_t put = send(inlet->fd, inlet->ack + inlet->ack_at, inlet->ack_end - inlet->ack_at,
                           MSG_NOSIGNAL);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            inlet->ack_blocked = true;
            return STATUS_OK;
        }
        if (put < 0) {
            (void)connection_error_text(errno, inlet->why, sizeof inlet->why);
            inlet->status = STATUS_PEER_LOST;
            return STATUS_PEER_LOST;
        }
        inlet->ack_at += (size_t)put;
    }
    return STATUS_OK;
}

uint32_t tls_inlet_interest(const struct tls_inlet *inlet) {
    uint32_t writes = inlet->ack_blocked ? EPOLLOUT : 0;
    switch (inlet->state) {
    case TLS_INLET_GREETING:
        return tls_greet_wants_write(&inlet->greet) ? EPOLLOUT : EPOLLIN;
    case TLS_INLET_OPEN:
        return (inlet->hungry ? 0 : EPOLLIN) | writes;
    case TLS_INLET_AWAY:
    case TLS_INLET_FREE:
    default:
        return 0;
    }
}

/* ---- ending ---- */

void tls_inlet_end(struct tls_inlet *inlet, int64_t deadline_ns) {
    bool was_open = inlet->state == TLS_INLET_OPEN;
    if (inlet->state == TLS_INLET_AWAY) return;
    tls_greet_end(&inlet->greet);
    tls_cipher_free(&inlet->out);
    tls_cipher_free(&inlet->in);
    if (inlet->fd >= 0) close(inlet->fd);
    inlet->fd = -1;
    if (inlet->slot != TLS_LANE_NONE) {
        ASSERT_OP(inlet->slots->free_count, <, inlet->slots->count);
        inlet->slots->free[inlet->slots->free_count++] = inlet->slot;
    }
    inlet->slot = TLS_LANE_NONE;
    inlet->under_way = inlet->hungry = inlet->ack_blocked = false;
    inlet->state = was_open ? TLS_INLET_AWAY : TLS_INLET_FREE;
    inlet->deadline_ns = was_open ? deadline_ns : 0;
}

void tls_inlet_free(struct tls_inlet *inlet) {
    tls_inlet_end(inlet, 0);
    inlet->state = TLS_INLET_FREE;
    inlet->deadline_ns = 0;
}
