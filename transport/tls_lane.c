#include "transport/tls_lane.h"

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

/* A greeting that takes longer than this part of a lease is tried anew: a few times before the peer
 * is lost. */
#define GREETING_PART 4

/* While frames are not acknowledged, it is looked at whether the other side still answers. */
#define CHECK_PART 4

/* The pause after a dial that failed: a part of a lease, but not without end. */
#define RETRY_PART   20
#define RETRY_MAX_NS (250 * CLOCK_MS)

/* Written a step, so that one peer cannot keep the owner inside. */
#define STEP_BYTES ((size_t)1 << 20)

/* Plain payloads from here on are sent from where they lie. */
#define DIRECT_BYTES ((size_t)16 << 10)

size_t tls_lane_chunk(enum tls_wire wire, size_t left) {
    return wire == TLS_WIRE_PLAIN || left < TLS_LANE_CHUNK ? left : TLS_LANE_CHUNK;
}

void tls_lane_close(struct tls_lane *lane) {
    tls_greet_end(&lane->greet);
    tls_cipher_free(&lane->out);
    tls_cipher_free(&lane->in);
    if (lane->fd >= 0) close(lane->fd);
    lane->fd = -1;
    lane->state = TLS_LANE_DOWN;
    lane->deadline_ns = 0;
    lane->current = lane->head;
    lane->head_staged = false;
    lane->current_at = lane->staged_at = lane->staged_end = lane->ack_bytes = 0;
    lane->blocked = false;
}

/* Down, and to be dialled again: at once if it was open, else after a pause. */
static void fail(struct tls_lane *lane, int64_t now_ns) {
    bool was_open = lane->state == TLS_LANE_OPEN;
    int64_t pause_ns = lane->self->lease_ns / RETRY_PART;
    tls_lane_close(lane);
    if (was_open) {
        lane->broken_ns = now_ns;
        lane->deadline_ns = now_ns;
        return;
    }
    lane->deadline_ns = now_ns + (pause_ns < RETRY_MAX_NS ? pause_ns : RETRY_MAX_NS);
}

static void fail_errno(struct tls_lane *lane, int64_t now_ns, int error) {
    (void)connection_error_text(error, lane->why, sizeof lane->why);
    fail(lane, now_ns);
}

void tls_lane_open(struct tls_lane *lane, const struct tls_address *to, uint64_t link,
                   int64_t now_ns) {
    ASSERT_OP(lane->fd, ==, -1);
    lane->to = *to;
    lane->link = link;
    lane->head = lane->tail = TLS_LANE_NONE;
    lane->done = lane->acknowledged = lane->written = lane->queued_bytes = lane->opened = 0;
    lane->refused = false;
    lane->why[0] = 0;
    tls_lane_close(lane);
    lane->broken_ns = lane->deadline_ns = now_ns;
}

/* ---- the queue ---- */

void tls_lane_push(struct tls_lane *lane, uint32_t index) {
    struct tls_send *send = &lane->sends[index];
    send->next = TLS_LANE_NONE;
    if (lane->head == TLS_LANE_NONE) {
        lane->head = index;
    } else {
        lane->sends[lane->tail].next = index;
    }
    lane->tail = index;
    if (lane->current == TLS_LANE_NONE) lane->current = index;
    lane->queued_bytes += FRAME_BYTES + send->payload_bytes;
}

uint32_t tls_lane_take(struct tls_lane *lane) {
    uint32_t index = lane->head;
    if (index == TLS_LANE_NONE) return TLS_LANE_NONE;
    const struct tls_send *send = &lane->sends[index];
    lane->head = send->next;
    if (lane->current == index) lane->current = send->next;
    lane->queued_bytes -= FRAME_BYTES + send->payload_bytes;
    lane->done++;
    return index;
}

uint32_t tls_lane_take_done(struct tls_lane *lane) {
    return lane->done < lane->acknowledged ? tls_lane_take(lane) : TLS_LANE_NONE;
}

/* ---- getting open ---- */

static void dial(struct tls_lane *lane, int64_t now_ns) {
    lane->deadline_ns = now_ns + lane->self->lease_ns / GREETING_PART;
    if (tls_socket_dial(lane->to.ip, lane->to.port, lane->self->lease_ns, &lane->fd) != STATUS_OK) {
        fail_errno(lane, now_ns, errno);
        return;
    }
    lane->state = TLS_LANE_CONNECTING;
}

static void connected(struct tls_lane *lane, int64_t now_ns) {
    int error = tls_socket_error(lane->fd);
    if (error != 0) {
        fail_errno(lane, now_ns, error);
        return;
    }
    struct tls_hello hello = {
        .link = lane->link, .first = lane->acknowledged, .wire = lane->self->wire};
    memcpy(hello.to, lane->to.id, sizeof hello.to);
    memcpy(hello.from, lane->self->id, sizeof hello.from);
    if (tls_greet_begin(&lane->greet, lane->self, lane->fd, false) != STATUS_OK) {
        fail_errno(lane, now_ns, ENOMEM);
        return;
    }
    tls_hello_put(&hello, lane->greet.said);
    lane->state = TLS_LANE_GREETING;
}

/* Goes on with the frame that the receiver wants next. False: it cannot be had. */
static bool resume(struct tls_lane *lane, uint64_t next) {
    if (next < lane->acknowledged || next > lane->written) return false;
    lane->resent += lane->written - next;
    lane->acknowledged = lane->written = next;
    lane->current = lane->head;
    for (uint64_t number = lane->done; number < next; number++) {
        lane->current = lane->sends[lane->current].next;
    }
    return true;
}

/* OK: open. Otherwise `why` is filled. */
static enum status take_welcome(struct tls_lane *lane) {
    struct tls_welcome welcome;
    if (tls_hello_get_welcome(lane->greet.heard, &welcome) != STATUS_OK) {
        snprintf(lane->why, sizeof lane->why, "it answered with something else than a welcome");
        return STATUS_CORRUPT;
    }
    lane->refused = welcome.answer == TLS_ANSWER_STRANGER || welcome.answer == TLS_ANSWER_WIRE;
    if (welcome.answer != TLS_ANSWER_COME) {
        snprintf(lane->why, sizeof lane->why, "%s",
                 welcome.answer == TLS_ANSWER_STRANGER ? "another process listens there now"
                 : welcome.answer == TLS_ANSWER_WIRE   ? "it has another --wire"
                                                       : "it has no room for one more connection");
        return STATUS_PEER_LOST;
    }
    if (!resume(lane, welcome.next)) {
        snprintf(lane->why, sizeof lane->why, "it asks for a frame that it cannot want");
        return STATUS_CORRUPT;
    }
    if (tls_greet_ciphers(&lane->greet, &lane->out, &lane->in) != STATUS_OK) {
        snprintf(lane->why, sizeof lane->why, "no memory for the keys");
        return STATUS_MEMORY;
    }
    return STATUS_OK;
}

static void greet(struct tls_lane *lane, int64_t now_ns) {
    enum status status = tls_greet_step(&lane->greet, lane->why, sizeof lane->why);
    if (status == STATUS_AGAIN) return;
    if (status == STATUS_OK) status = take_welcome(lane);
    if (status != STATUS_OK) {
        fail(lane, now_ns);
        return;
    }
    tls_greet_end(&lane->greet);
    lane->state = TLS_LANE_OPEN;
    lane->opened++;
    lane->broken_ns = lane->deadline_ns = 0;
}

/* ---- writing ---- */

static bool is_direct(const struct tls_lane *lane, const struct tls_send *send) {
    return lane->self->wire == TLS_WIRE_PLAIN && send->payload_bytes >= DIRECT_BYTES;
}

/* Seals bytes into the staging area; false when they do not fit now. */
static bool stage(struct tls_lane *lane, const uint8_t *bytes, size_t count) {
    size_t sealed = count + tls_cipher_tag_bytes(lane->self->wire);
    if (sealed > TLS_LANE_STAGING - lane->staged_end) return false;
    tls_cipher_seal(&lane->out, bytes, count, lane->staging + lane->staged_end);
    lane->staged_end += sealed;
    return true;
}

static bool stage_head(struct tls_lane *lane, const struct tls_send *send) {
    uint8_t head[TLS_LANE_HEAD];
    if (lane->out.records >= lane->key_records) return false;
    memcpy(head, send->header, FRAME_BYTES);
    tls_hello_put_u64(head + FRAME_BYTES, send->payload_bytes);
    lane->head_staged = stage(lane, head, sizeof head);
    return lane->head_staged;
}

static bool stage_payload(struct tls_lane *lane, const struct tls_send *send) {
    while (lane->current_at < send->payload_bytes) {
        size_t count = tls_lane_chunk(lane->self->wire, send->payload_bytes - lane->current_at);
        if (!stage(lane, send->payload + lane->current_at, count)) return false;
        lane->current_at += count;
    }
    return true;
}

static void finish_frame(struct tls_lane *lane) {
    lane->current = lane->sends[lane->current].next;
    lane->head_staged = false;
    lane->current_at = 0;
    lane->written++;
}

/* Stages what fits, up to a payload that is sent from where it lies. */
static void fill(struct tls_lane *lane) {
    if (lane->staged_at == lane->staged_end) lane->staged_at = lane->staged_end = 0;
    while (lane->current != TLS_LANE_NONE) {
        const struct tls_send *send = &lane->sends[lane->current];
        if (!lane->head_staged && !stage_head(lane, send)) return;
        if (is_direct(lane, send) || !stage_payload(lane, send)) return;
        finish_frame(lane);
    }
}

/* The socket took so many bytes, of what is staged and then of current's payload. */
static void advance(struct tls_lane *lane, const struct tls_send *direct, size_t count) {
    size_t staged = lane->staged_end - lane->staged_at;
    if (count <= staged) {
        lane->staged_at += count;
        return;
    }
    ASSERT(direct);
    lane->staged_at = lane->staged_end;
    lane->current_at += count - staged;
    if (lane->current_at == direct->payload_bytes) finish_frame(lane);
}

/* False: the connection broke; why is filled. */
static bool write_frames(struct tls_lane *lane) {
    for (size_t bytes = 0; bytes < STEP_BYTES;) {
        struct iovec parts[2];
        struct msghdr message = {.msg_iov = parts};
        fill(lane);
        if (lane->staged_end > lane->staged_at) {
            parts[message.msg_iovlen].iov_base = lane->staging + lane->staged_at;
            parts[message.msg_iovlen++].iov_len = lane->staged_end - lane->staged_at;
        }
        const struct tls_send *direct = NULL;
        if (lane->current != TLS_LANE_NONE && lane->head_staged) {
            direct = &lane->sends[lane->current];
            if (!is_direct(lane, direct)) direct = NULL;
        }
        if (direct) {
            parts[message.msg_iovlen].iov_base = (uint8_t *)direct->payload + lane->current_at;
            parts[message.msg_iovlen++].iov_len = direct->payload_bytes - lane->current_at;
        }
        if (message.msg_iovlen == 0) return true;
        ssize_t count = sendmsg(lane->fd, &message, MSG_NOSIGNAL);
        if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            lane->blocked = true;
            return true;
        }
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) {
            (void)connection_error_text(errno, lane->why, sizeof lane->why);
            return false;
        }
        advance(lane, direct, (size_t)count);
        bytes += (size_t)count;
    }
    return true;
}

/* ---- acknowledgements ---- */

/* The whole ones in `acks`; false: what they say cannot be. */
static bool take_acks(struct tls_lane *lane) {
    size_t tag_bytes = tls_cipher_tag_bytes(lane->self->wire), at = 0;
    size_t record_bytes = sizeof(uint64_t) + tag_bytes;
    for (; lane->ack_bytes - at >= record_bytes; at += record_bytes) {
        uint8_t *record = lane->acks + at;
        if (tls_cipher_open(&lane->in, record, sizeof(uint64_t), record + sizeof(uint64_t)) !=
            STATUS_OK) {
            snprintf(lane->why, sizeof lane->why, "an acknowledgement was changed on its way");
            return false;
        }
        uint64_t count = tls_hello_get_u64(record);
        if (count < lane->acknowledged || count > lane->written) {
            snprintf(lane->why, sizeof lane->why, "it acknowledges what was not sent");
            return false;
        }
        lane->acknowledged = count;
    }
    memmove(lane->acks, lane->acks + at, lane->ack_bytes - at);
    lane->ack_bytes -= at;
    return true;
}

/* False: the connection broke; why is filled. */
static bool read_acks(struct tls_lane *lane) {
    for (;;) {
        size_t room = sizeof lane->acks - lane->ack_bytes;
        ssize_t count = recv(lane->fd, lane->acks + lane->ack_bytes, room, 0);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
        if (count <= 0) {
            snprintf(lane->why, sizeof lane->why, "closed by the other side");
            if (count < 0) (void)connection_error_text(errno, lane->why, sizeof lane->why);
            return false;
        }
        lane->ack_bytes += (size_t)count;
        if (!take_acks(lane)) return false;
        if ((size_t)count < room) return true;
    }
}

/* ---- the steps ---- */

static bool is_key_used_up(const struct tls_lane *lane) {
    return lane->out.records >= lane->key_records && lane->acknowledged == lane->written &&
           !lane->head_staged;
}

void tls_lane_step(struct tls_lane *lane, int64_t now_ns) {
    if (lane->state == TLS_LANE_DOWN && lane->deadline_ns != 0 && now_ns >= lane->deadline_ns) {
        dial(lane, now_ns);
        return;
    }
    if (lane->state == TLS_LANE_CONNECTING) connected(lane, now_ns);
    if (lane->state == TLS_LANE_GREETING) greet(lane, now_ns);
    if (lane->state != TLS_LANE_OPEN) return;
    lane->blocked = false;
    if (!read_acks(lane) || !write_frames(lane)) {
        fail(lane, now_ns);
    } else if (is_key_used_up(lane)) {
        lane->why[0] = 0;
        fail(lane, now_ns);
    } else if (lane->head != TLS_LANE_NONE && lane->deadline_ns == 0) {
        lane->deadline_ns = now_ns + lane->self->lease_ns / CHECK_PART;
    }
}

void tls_lane_expire(struct tls_lane *lane, int64_t now_ns) {
    bool open = lane->state == TLS_LANE_OPEN;
    if (lane->state == TLS_LANE_DOWN) {
        tls_lane_step(lane, now_ns);
    } else if (!open || tls_socket_is_silent(lane->fd, lane->self->lease_ns)) {
        fail_errno(lane, now_ns, ETIMEDOUT);
    } else {
        bool waits = lane->head != TLS_LANE_NONE;
        lane->deadline_ns = waits ? now_ns + lane->self->lease_ns / CHECK_PART : 0;
    }
}

bool tls_lane_is_ready(const struct tls_lane *lane) {
    bool more = lane->staged_end > lane->staged_at ||
                (lane->current != TLS_LANE_NONE &&
                 (lane->head_staged || lane->out.records < lane->key_records));
    return lane->state == TLS_LANE_OPEN && !lane->blocked && more;
}

uint32_t tls_lane_interest(const struct tls_lane *lane) {
    switch (lane->state) {
    case TLS_LANE_CONNECTING:
        return EPOLLOUT;
    case TLS_LANE_GREETING:
        return tls_greet_wants_write(&lane->greet) ? EPOLLOUT : EPOLLIN;
    case TLS_LANE_OPEN:
        return lane->blocked ? EPOLLIN | EPOLLOUT : EPOLLIN;
    case TLS_LANE_DOWN:
    default:
        return 0;
    }
}
