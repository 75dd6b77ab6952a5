#include "transport/control_tcp.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/wake.h"
#include "transport/control_connection.h"
#include "transport/control_tls.h"
#include "transport/door.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define NONE            UINT32_MAX
#define TAG_LISTENER    UINT32_C(0x10000) /* epoll tags beyond the connections' numbers */
#define TAG_BELL        UINT32_C(0x10001)
#define TAG_TIMER       UINT32_C(0x10002)
#define BATCH           64
#define BACKLOG         256
#define ACCEPT_PAUSE_NS (1 * CLOCK_S)
#define DENIED_WARN_NS  (5 * CLOCK_S)
#define CLOSE_WAIT_NS   (50 * CLOCK_MS)
#define GRACE_NS        (100 * CLOCK_MS) /* to show the key, however many others wait */

/* A connection that came in and has not shown the key. */
struct waiting {
    uint32_t index;
    int64_t since_ns;
};

struct control_tcp {
    struct control control; /* first */
    struct control_tls_context *context;
    int epoll_fd;
    int listener; /* -1 for none */
    bool paused;  /* the listener is not watched until resume_ns */
    int64_t resume_ns;
    int timer_fd;     /* wakes the owner then */
    struct wake bell; /* rung when something becomes reportable outside of poll() */
    bool rung;
    bool polling;
    int64_t now_ns;
    int64_t next_deadline_ns;
    int64_t warn_ns; /* no warning of a denied peer before */
    struct door door;
    struct waiting waiting[CONTROL_TCP_PENDING_MAX]; /* the oldest first */
    uint32_t waiting_count;
    uint32_t next_slot;
    uint32_t handed_out;                         /* whose packet the owner has, or NONE */
    uint32_t queue[CONTROL_TCP_CONNECTIONS_MAX]; /* who has news, each at most once */
    uint32_t queue_head, queue_count;
    char text[200];                          /* of the last event */
    bool timed[CONTROL_TCP_CONNECTIONS_MAX]; /* has a time limit: all that expire() must look at */
    struct connection connections[CONTROL_TCP_CONNECTIONS_MAX];
};

static struct control_tcp *tcp_of(struct control *control) {
    return (struct control_tcp *)control;
}

static void queue_push(struct control_tcp *tcp, uint32_t index) {
    if (tcp->connections[index].queued) return;
    tcp->connections[index].queued = true;
    tcp->queue[(tcp->queue_head + tcp->queue_count) % CONTROL_TCP_CONNECTIONS_MAX] = index;
    tcp->queue_count++;
    if (!tcp->polling && !tcp->rung) {
        wake_signal(&tcp->bell);
        tcp->rung = true;
    }
}

static bool queue_pop(struct control_tcp *tcp, uint32_t *index) {
    if (tcp->queue_count == 0) return false;
    *index = tcp->queue[tcp->queue_head];
    tcp->queue_head = (tcp->queue_head + 1) % CONTROL_TCP_CONNECTIONS_MAX;
    tcp->queue_count--;
    tcp->connections[*index].queued = false;
    return true;
}

/* Somebody waits where a peer has another key, so that gets a line of its own. */
static void log_dropped(struct control_tcp *tcp, const struct connection *c) {
    if (c->status == STATUS_DENIED && tcp->now_ns >= tcp->warn_ns) {
        tcp->warn_ns = tcp->now_ns + DENIED_WARN_NS;
        log_warn("refused a connection from %s: %s", c->peer, c->text);
    } else {
        door_refuse(&tcp->door, tcp->now_ns, c->peer, c->text);
    }
}

static void stop_waiting(struct control_tcp *tcp, uint32_t index) {
    uint32_t i = 0;
    while (i < tcp->waiting_count && tcp->waiting[i].index != index) {
        i++;
    }
    ASSERT_OP(i, <, tcp->waiting_count);
    tcp->waiting_count--;
    memmove(tcp->waiting + i, tcp->waiting + i + 1,
            (tcp->waiting_count - i) * sizeof(tcp->waiting[0]));
}

static void release(struct control_tcp *tcp, uint32_t index) {
    struct connection *c = &tcp->connections[index];
    bool queued = c->queued;
    if (!c->announced) stop_waiting(tcp, index);
    tcp->timed[index] = false;
    connection_release(c);
    c->queued = queued; // its place in the queue is passed over when its turn comes
}

/* After anything was done with a connection: news into the queue, epoll and clock told. */
static void settle(struct control_tcp *tcp, uint32_t index) {
    struct connection *c = &tcp->connections[index];
    if (c->phase == CONNECTION_DEAD && !c->announced) {
        log_dropped(tcp, c);
        release(tcp, index);
        return;
    }
    if (connection_has_news(c)) queue_push(tcp, index);
    uint32_t interest = connection_interest(c);
    if (interest != 0 && interest != c->watched) {
        struct epoll_event event = {.events = interest, .data.u32 = index};
        int operation = c->watched == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
        int result = epoll_ctl(tcp->epoll_fd, operation, c->fd, &event);
        if (result != 0) log_error("cannot watch a connection: %s", strerror(errno));
        c->watched = interest;
    } else if (interest == 0 && c->watched != 0) {
        (void)epoll_ctl(tcp->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
        c->watched = 0;
    }
    tcp->timed[index] = c->timeout_ns != 0;
    if (c->timeout_ns != 0 && c->deadline_ns == 0) tcp->next_deadline_ns = INT64_MIN;
}

static uint32_t free_slot(struct control_tcp *tcp) {
    for (uint32_t i = 0; i < CONTROL_TCP_CONNECTIONS_MAX; i++) {
        uint32_t index = (tcp->next_slot + i) % CONTROL_TCP_CONNECTIONS_MAX;
        struct connection *c = &tcp->connections[index];
        if (c->phase == CONNECTION_FREE && !c->queued) {
            tcp->next_slot = index + 1;
            return index;
        }
    }
    return NONE;
}

/* Nobody more may come in: so many have not shown the key, and even the oldest came just now. */
static bool is_crowded(const struct control_tcp *tcp) {
    return tcp->waiting_count == CONTROL_TCP_PENDING_MAX &&
           tcp->now_ns - tcp->waiting[0].since_ns < GRACE_NS;
}

/* Where too many have not shown the key, the oldest makes room, so that nobody who only waits keeps
 * others out. */
static void make_room(struct control_tcp *tcp) {
    if (tcp->waiting_count < CONTROL_TCP_PENDING_MAX) return;
    uint32_t oldest = tcp->waiting[0].index;
    door_refuse(&tcp->door, tcp->now_ns, tcp->connections[oldest].peer,
                "too many have not shown the key");
    release(tcp, oldest);
}

void control_tcp_adopt(struct control *control, int fd) {
    struct control_tcp *tcp = tcp_of(control);
    int one = 1;
    int flags = fcntl(fd, F_GETFL);
    uint32_t index = is_crowded(tcp) ? NONE : free_slot(tcp);
    if (index == NONE || flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
        fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
        log_debug("dropped a connection: too many are waiting");
        close(fd);
        return;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    make_room(tcp);
    tcp->waiting[tcp->waiting_count++] = (struct waiting){.index = index, .since_ns = tcp->now_ns};
    connection_accept(&tcp->connections[index], fd, tcp->context);
    settle(tcp, index);
}

static void watch_listener(struct control_tcp *tcp, bool watched) {
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = TAG_LISTENER};
    tcp->paused = !watched;
    if (epoll_ctl(tcp->epoll_fd, watched ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, tcp->listener, &event) !=
        0) {
        log_error("cannot watch the listening socket: %s", strerror(errno));
    }
}

/* Accepts nothing until then: what waits would keep the listener readable, and us busy. */
static void pause_until(struct control_tcp *tcp, int64_t resume_ns) {
    int64_t left_ns = resume_ns > tcp->now_ns ? resume_ns - tcp->now_ns : 1;
    struct itimerspec time = {
        .it_value = {.tv_sec = (time_t)(left_ns / CLOCK_S), .tv_nsec = (long)(left_ns % CLOCK_S)}};
    watch_listener(tcp, false);
    tcp->resume_ns = resume_ns;
    tcp->next_deadline_ns = INT64_MIN;
    (void)timerfd_settime(tcp->timer_fd, 0, &time, NULL); // else by the owner's next turn
}

static void clear_timer(struct control_tcp *tcp) {
    uint64_t times;
    ssize_t bytes = read(tcp->timer_fd, &times, sizeof(times));
    (void)bytes; // EAGAIN: it was set anew
}

static void accept_all(struct control_tcp *tcp) {
    for (int i = 0; i < BATCH; i++) {
        if (is_crowded(tcp)) {
            pause_until(tcp, tcp->waiting[0].since_ns + GRACE_NS);
            return;
        }
        if (!door_take(&tcp->door, tcp->now_ns)) {
            pause_until(tcp, door_next_ns(&tcp->door, tcp->now_ns));
            return;
        }
        int fd = accept(tcp->listener, NULL, NULL);
        if (fd >= 0) {
            control_tcp_adopt(&tcp->control, fd);
            continue;
        }
        door_give_back(&tcp->door);
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            log_warn("cannot accept a connection: %s (is `ulimit -n` too low?)", strerror(errno));
            pause_until(tcp, tcp->now_ns + ACCEPT_PAUSE_NS);
            return;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            int64_t rest_ns = door_rest_ns(&tcp->door, tcp->now_ns);
            if (rest_ns != tcp->now_ns) pause_until(tcp, rest_ns);
            return;
        }
    }
}

/* Ends what has run out of time, and finds the next deadline. */
static void expire(struct control_tcp *tcp) {
    if (tcp->paused && tcp->now_ns >= tcp->resume_ns) watch_listener(tcp, true);
    tcp->next_deadline_ns = INT64_MAX; // what settle() finds new makes it earlier again
    int64_t next_ns = tcp->paused ? tcp->resume_ns : INT64_MAX;
    for (uint32_t index = 0; index < CONTROL_TCP_CONNECTIONS_MAX; index++) {
        if (!tcp->timed[index]) continue;
        struct connection *c = &tcp->connections[index];
        if (c->deadline_ns == 0) c->deadline_ns = tcp->now_ns + c->timeout_ns;
        if (tcp->now_ns >= c->deadline_ns) {
            connection_expire(c);
            settle(tcp, index);
        } else if (c->deadline_ns < next_ns) {
            next_ns = c->deadline_ns;
        }
    }
    if (next_ns < tcp->next_deadline_ns) tcp->next_deadline_ns = next_ns;
}

/* One round of reading, writing and accepting. */
static void gather(struct control_tcp *tcp) {
    struct epoll_event events[BATCH];
    int count = epoll_wait(tcp->epoll_fd, events, BATCH, 0);
    for (int i = 0; i < count; i++) {
        uint32_t tag = events[i].data.u32;
        if (tag == TAG_LISTENER) {
            accept_all(tcp);
        } else if (tag == TAG_TIMER) {
            clear_timer(tcp);
        } else if (tag < CONTROL_TCP_CONNECTIONS_MAX &&
                   tcp->connections[tag].phase != CONNECTION_FREE) {
            connection_step(&tcp->connections[tag]);
            settle(tcp, tag);
        }
    }
}

static void report_closed(struct control_tcp *tcp, uint32_t index, struct control_event *event) {
    struct connection *c = &tcp->connections[index];
    snprintf(tcp->text, sizeof(tcp->text), "%s", c->text);
    *event = (struct control_event){.kind = CONTROL_CLOSED,
                                    .connection = index,
                                    .incoming = c->incoming,
                                    .status = c->status,
                                    .text = tcp->text};
    release(tcp, index);
}

/* What the owner has to be told of an open connection; false when nothing, for now. */
static bool report_open(struct control_tcp *tcp, uint32_t index, struct control_event *event) {
    struct connection *c = &tcp->connections[index];
    *event = (struct control_event){.connection = index, .incoming = c->incoming};
    if (!c->told) {
        c->told = true;
        if (!c->announced) {
            stop_waiting(tcp, index);
            door_give_back(&tcp->door);
        }
        c->announced = true;
        event->kind = CONTROL_OPENED;
        snprintf(tcp->text, sizeof(tcp->text), "%s", c->peer);
        event->text = tcp->text;
        queue_push(tcp, index);
        return true;
    }
    enum status status = connection_next(c, &event->packet, &event->packet_bytes);
    if (status == STATUS_OK) {
        event->kind = CONTROL_PACKET;
        tcp->handed_out = index;
        return true;
    }
    if (c->ended) {
        report_closed(tcp, index, event);
        return true;
    }
    if (c->more) connection_step(c);
    settle(tcp, index);
    return false;
}

static bool next_event(struct control_tcp *tcp, struct control_event *event) {
    uint32_t index;
    while (queue_pop(tcp, &index)) {
        enum connection_phase phase = tcp->connections[index].phase;
        if (phase == CONNECTION_OPEN && report_open(tcp, index, event)) return true;
        if (phase == CONNECTION_DEAD) {
            report_closed(tcp, index, event);
            return true;
        }
    }
    return false;
}

static bool tcp_poll(struct control *control, int64_t now_ns, struct control_event *event) {
    struct control_tcp *tcp = tcp_of(control);
    tcp->now_ns = now_ns;
    tcp->polling = true;
    if (tcp->handed_out != NONE) {
        uint32_t index = tcp->handed_out;
        tcp->handed_out = NONE;
        if (tcp->connections[index].phase == CONNECTION_OPEN) {
            connection_skip(&tcp->connections[index]);
            settle(tcp, index);
        }
    }
    if (now_ns >= tcp->next_deadline_ns) expire(tcp);
    bool found = next_event(tcp, event);
    if (!found) {
        gather(tcp);
        if (now_ns >= tcp->next_deadline_ns) expire(tcp); // starts the clocks of what is new
        found = next_event(tcp, event);
    }
    if (!found && tcp->rung) {
        wake_clear(&tcp->bell);
        tcp->rung = false;
    }
    tcp->polling = false;
    return found;
}

/* A listening socket on one address, or -1 with errno. */
static int listen_on(const struct addrinfo *address) {
    int one = 1;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) {
        return fd;
    }
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static enum status tcp_listen(struct control *control, const char *host, const char *port) {
    struct control_tcp *tcp = tcp_of(control);
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *addresses = NULL;
    char text[128];
    ASSERT(tcp->listener < 0);
    int result = getaddrinfo(host[0] != 0 ? host : NULL, port, &hints, &addresses);
    if (result != 0) {
        log_error("cannot listen at %s:%s: %s", host, port, gai_strerror(result));
        return STATUS_IO;
    }
    int error = EADDRNOTAVAIL;
    for (const struct addrinfo *a = addresses; a != NULL && tcp->listener < 0; a = a->ai_next) {
        tcp->listener = listen_on(a);
        if (tcp->listener < 0) error = errno;
    }
    freeaddrinfo(addresses);
    if (tcp->listener < 0) {
        log_error("cannot listen at %s:%s: %s", host, port,
                  connection_error_text(error, text, sizeof(text)));
        return STATUS_IO;
    }
    watch_listener(tcp, true);
    return STATUS_OK;
}

static enum status tcp_dial(struct control *control, const char *host, const char *port,
                            uint32_t *connection) {
    struct control_tcp *tcp = tcp_of(control);
    uint32_t index = free_slot(tcp);
    if (index == NONE) {
        log_error("cannot dial %s:%s: all %d connections are in use", host, port,
                  CONTROL_TCP_CONNECTIONS_MAX);
        return STATUS_MEMORY;
    }
    connection_dial(&tcp->connections[index], host, port, tcp->context);
    settle(tcp, index);
    *connection = index;
    return STATUS_OK;
}

static enum status tcp_send(struct control *control, uint32_t connection, const uint8_t *packet,
                            size_t bytes) {
    struct control_tcp *tcp = tcp_of(control);
    ASSERT_OP(connection, <, CONTROL_TCP_CONNECTIONS_MAX);
    enum status status = connection_send(&tcp->connections[connection], packet, bytes);
    if (status == STATUS_OK) settle(tcp, connection);
    return status;
}

static void tcp_hang_up(struct control *control, uint32_t connection) {
    struct control_tcp *tcp = tcp_of(control);
    ASSERT_OP(connection, <, CONTROL_TCP_CONNECTIONS_MAX);
    if (tcp->connections[connection].phase == CONNECTION_FREE) return;
    connection_hang_up(&tcp->connections[connection]);
    settle(tcp, connection);
}

static int tcp_wait_fd(struct control *control) {
    return tcp_of(control)->epoll_fd;
}

static void tcp_local_ip(struct control *control, uint32_t connection, char *ip, size_t bytes) {
    struct control_tcp *tcp = tcp_of(control);
    ASSERT_OP(connection, <, CONTROL_TCP_CONNECTIONS_MAX);
    connection_address(tcp->connections[connection].fd, true, false, ip, bytes);
}

static bool any_open(const struct control_tcp *tcp) {
    for (uint32_t index = 0; index < CONTROL_TCP_CONNECTIONS_MAX; index++) {
        if (tcp->connections[index].phase != CONNECTION_FREE) return true;
    }
    return false;
}

/* Hangs up everywhere and waits until the peers have closed too: only then is what was queued
 * certain to have reached them. */
static void flush_all(struct control_tcp *tcp, int64_t flush_ns) {
    struct control_event event;
    int64_t base_ns = tcp->now_ns, start_ns = clock_now_ns();
    for (uint32_t index = 0; index < CONTROL_TCP_CONNECTIONS_MAX; index++) {
        struct connection *c = &tcp->connections[index];
        if (c->phase == CONNECTION_FREE) continue;
        if (c->announced) {
            tcp_hang_up(&tcp->control, index);
        } else {
            release(tcp, index);
        }
    }
    while (any_open(tcp)) {
        int64_t elapsed_ns = clock_now_ns() - start_ns;
        if (elapsed_ns >= flush_ns) return;
        if (tcp_poll(&tcp->control, base_ns + elapsed_ns, &event)) continue;
        int64_t left_ns = flush_ns - elapsed_ns;
        wake_wait(&tcp->epoll_fd, 1, left_ns < CLOSE_WAIT_NS ? left_ns : CLOSE_WAIT_NS);
    }
}

static void tcp_close(struct control *control, int64_t flush_ns) {
    struct control_tcp *tcp = tcp_of(control);
    if (tcp->listener >= 0) close(tcp->listener);
    tcp->listener = -1;
    tcp->paused = false;
    if (flush_ns > 0) flush_all(tcp, flush_ns);
    for (uint32_t index = 0; index < CONTROL_TCP_CONNECTIONS_MAX; index++) {
        if (tcp->connections[index].phase != CONNECTION_FREE) release(tcp, index);
    }
    wake_free(&tcp->bell);
    close(tcp->timer_fd);
    close(tcp->epoll_fd);
    control_tls_free(tcp->context);
    free(tcp);
}

static const struct control_ops tcp_ops = {.name = "tcp",
                                           .listen = tcp_listen,
                                           .dial = tcp_dial,
                                           .send = tcp_send,
                                           .poll = tcp_poll,
                                           .hang_up = tcp_hang_up,
                                           .wait_fd = tcp_wait_fd,
                                           .local_ip = tcp_local_ip,
                                           .close = tcp_close};

enum status control_tcp_open(struct control **control, const uint8_t *key) {
    struct control_tcp *tcp = calloc(1, sizeof(*tcp));
    struct epoll_event bell = {.events = EPOLLIN, .data.u32 = TAG_BELL};
    struct epoll_event timer = {.events = EPOLLIN, .data.u32 = TAG_TIMER};
    enum status status = STATUS_MEMORY;
    if (tcp == NULL) {
        log_error("no memory for the control channel");
        return STATUS_MEMORY;
    }
    tcp->control.ops = &tcp_ops;
    tcp->listener = -1;
    tcp->handed_out = NONE;
    tcp->next_deadline_ns = INT64_MAX;
    tcp->now_ns = tcp->warn_ns = INT64_MIN / 2;
    door_init(&tcp->door, "control", tcp->now_ns);
    if (key != NULL) {
        status = control_tls_init(&tcp->context, key);
        if (status != STATUS_OK) goto free_object;
    }
    status = wake_init(&tcp->bell);
    if (status != STATUS_OK) goto free_context;
    tcp->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    tcp->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (tcp->epoll_fd < 0 || tcp->timer_fd < 0 ||
        epoll_ctl(tcp->epoll_fd, EPOLL_CTL_ADD, tcp->bell.fd, &bell) != 0 ||
        epoll_ctl(tcp->epoll_fd, EPOLL_CTL_ADD, tcp->timer_fd, &timer) != 0) {
        log_error("cannot create an epoll with a timer: %s", strerror(errno));
        status = STATUS_IO;
        goto free_bell;
    }
    *control = &tcp->control;
    return STATUS_OK;
free_bell:
    if (tcp->timer_fd >= 0) close(tcp->timer_fd);
    if (tcp->epoll_fd >= 0) close(tcp->epoll_fd);
    wake_free(&tcp->bell);
free_context:
    control_tls_free(tcp->context);
free_object:
    free(tcp);
    return status;
}

uint16_t control_tcp_port(const struct control *control) {
    const struct control_tcp *tcp = (const struct control_tcp *)control;
    struct sockaddr_storage address;
    socklen_t length = sizeof(address);
    if (tcp->listener < 0 ||
        getsockname(tcp->listener, (struct sockaddr *)&address, &length) != 0) {
        return 0;
    }
    if (address.ss_family == AF_INET6) {
        return ntohs(((const struct sockaddr_in6 *)&address)->sin6_port);
    }
    return ntohs(((const struct sockaddr_in *)&address)->sin_port);
}
