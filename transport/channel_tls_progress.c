#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "transport/channel_tls_parts.h"
#include "transport/control_connection.h"
#include "transport/tls_socket.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define TAG_LISTENER UINT32_MAX
#define TAG_TIMER    (UINT32_MAX - 1)
#define BATCH        64

/* Received from one connection a turn, so that one peer cannot keep the owner inside. */
#define TURN_BYTES ((size_t)1 << 20)

/* Accepted a turn. */
#define TURN_ACCEPTS 16

static bool is_lane(const struct tls *tls, uint32_t task) {
    return task < tls->lane_count;
}

static void remind(struct tls *tls, int64_t deadline_ns) {
    if (deadline_ns != 0 && deadline_ns < tls->next_deadline_ns) {
        tls->next_deadline_ns = deadline_ns;
    }
}

void tls_progress_queue(struct tls *tls, uint32_t task) {
    uint32_t capacity = tls->lane_count + tls->inlet_count;
    if (tls->tasks[task].queued) return;
    tls->tasks[task].queued = true;
    tls->queue[(tls->queue_head + tls->queue_count++) % capacity] = task;
}

/* Has epoll wait for what the task's socket is to tell. */
static void watch(struct tls *tls, uint32_t number, int fd, uint32_t interest) {
    struct tls_task *task = &tls->tasks[number];
    struct epoll_event event = {.events = interest, .data.u32 = number};
    if (fd < 0) {
        task->watched = 0; /* closing it took it out */
        return;
    }
    if (interest == task->watched) return;
    int operation = task->watched == 0 ? EPOLL_CTL_ADD
                    : interest == 0    ? EPOLL_CTL_DEL
                                       : EPOLL_CTL_MOD;
    if (epoll_ctl(tls->epoll_fd, operation, fd, &event) != 0) {
        log_error("tls: cannot watch a connection: %s", strerror(errno));
        return;
    }
    task->watched = interest;
}

/* ---- lanes ---- */

static void queue_sent(struct tls *tls, uint32_t index, enum status status) {
    const struct tls_send *send = &tls->sends[index];
    struct channel_event *event = tls_queue_event(tls, CHANNEL_SENT);
    event->peer = send->peer;
    event->cookie = send->cookie;
    event->status = status;
    event->slot = index; /* the table's entry is free when it is told */
    if (status != STATUS_OK) return;
    tls->stats.sent_frames++;
    tls->stats.sent_bytes += FRAME_BYTES + send->payload_bytes;
}

void tls_progress_drop_peer(struct tls *tls, uint32_t number) {
    for (uint32_t n = 0; n < TLS_CHANNEL_LANES; n++) {
        uint32_t task = number * TLS_CHANNEL_LANES + n, index;
        struct tls_lane *lane = &tls->lanes[task];
        tls_lane_close(lane);
        lane->broken_ns = 0;
        watch(tls, task, -1, 0);
        while ((index = tls_lane_take_done(lane)) != TLS_LANE_NONE) {
            queue_sent(tls, index, STATUS_OK);
        }
        while ((index = tls_lane_take(lane)) != TLS_LANE_NONE) {
            queue_sent(tls, index, STATUS_PEER_LOST);
        }
    }
    tls->peers[number].connected = false;
}

static void lose_peer(struct tls *tls, uint32_t number, const char *why) {
    struct tls_peer *peer = &tls->peers[number];
    log_debug("tls: peer %u lost: %s", number, why);
    tls_progress_drop_peer(tls, number);
    peer->lost = true;
    if (peer->lost_queued) return;
    peer->lost_queued = true;
    struct channel_event *event = tls_queue_event(tls, CHANNEL_PEER_LOST);
    event->peer = number;
    event->status = STATUS_PEER_LOST;
}

static void tell_again(const struct tls_lane *lane, uint32_t number, int64_t since_ns,
                       int64_t now_ns, uint64_t resent) {
    if (lane->opened == 1 || lane->why[0] == 0) return; /* it did not break; or new keys */
    log_info("tls: a connection to peer %u is back after %.2f s (%s), %llu frames are sent again",
             number, (double)(now_ns - since_ns) / (double)CLOCK_S, lane->why,
             (unsigned long long)resent);
}

/* After anything was done with a lane. */
static void settle_lane(struct tls *tls, uint32_t task) {
    struct tls_lane *lane = &tls->lanes[task];
    uint32_t number = task / TLS_CHANNEL_LANES, index;
    if (!tls->peers[number].connected) return;
    while ((index = tls_lane_take_done(lane)) != TLS_LANE_NONE) {
        queue_sent(tls, index, STATUS_OK);
    }
    int64_t lost_ns = lane->broken_ns != 0 ? lane->broken_ns + tls->self.lease_ns : 0;
    if (lane->refused || (lost_ns != 0 && tls->now_ns >= lost_ns)) {
        lose_peer(tls, number, lane->why);
        return;
    }
    watch(tls, task, lane->fd, tls_lane_interest(lane));
    remind(tls, lane->deadline_ns);
    remind(tls, lost_ns);
    if (tls_lane_is_ready(lane)) tls_progress_queue(tls, task);
}

static void step_lane(struct tls *tls, uint32_t task) {
    struct tls_lane *lane = &tls->lanes[task];
    bool was_open = lane->state == TLS_LANE_OPEN;
    int64_t since_ns = lane->broken_ns;
    uint64_t resent = lane->resent;
    if (!tls->peers[task / TLS_CHANNEL_LANES].connected) return;
    tls_lane_step(lane, tls->now_ns);
    if (!was_open && lane->state == TLS_LANE_OPEN) {
        tell_again(lane, task / TLS_CHANNEL_LANES, since_ns, tls->now_ns, lane->resent - resent);
    }
    settle_lane(tls, task);
}

/* ---- inlets ---- */

static void queue_received(struct tls *tls, uint32_t number) {
    const struct tls_slot *slot = &tls->slots.slots[number];
    struct channel_event *event = tls_queue_event(tls, CHANNEL_RECEIVED);
    event->slot = number;
    event->header = slot->header;
    event->payload = slot->memory;
    event->payload_bytes = slot->payload_bytes;
    tls->stats.received_frames++;
    tls->stats.received_bytes += FRAME_BYTES + slot->payload_bytes;
}

static void settle_inlet(struct tls *tls, uint32_t index) {
    const struct tls_inlet *inlet = &tls->inlets[index];
    watch(tls, tls->lane_count + index, inlet->fd, tls_inlet_interest(inlet));
    remind(tls, inlet->deadline_ns);
    if (inlet->hungry) tls_progress_queue(tls, tls->lane_count + index);
}

static void refuse(struct tls *tls, const struct tls_inlet *inlet, const char *why) {
    char peer[80];
    connection_address(inlet->fd, false, true, peer, sizeof peer);
    door_refuse(&tls->door, tls->now_ns, peer[0] != 0 ? peer : "one that has gone", why);
}

/* A connection that failed; an open one's link may come back. */
static void end_inlet(struct tls *tls, uint32_t index) {
    struct tls_inlet *inlet = &tls->inlets[index];
    if (inlet->state == TLS_INLET_GREETING || inlet->status == STATUS_CORRUPT) {
        refuse(tls, inlet, inlet->why);
    } else {
        log_debug("tls: a connection ended: %s", inlet->why);
    }
    /* Its sender tries for a lease after it has noticed, which may take one. */
    tls_inlet_end(inlet, tls->now_ns + 2 * tls->self.lease_ns);
    settle_inlet(tls, index);
}

/* The inlet of the link that says hello anew. */
static struct tls_inlet *find_link(struct tls *tls, const struct tls_hello *hello) {
    for (uint32_t i = 0; i < tls->inlet_count; i++) {
        struct tls_inlet *inlet = &tls->inlets[i];
        bool known = inlet->state == TLS_INLET_OPEN || inlet->state == TLS_INLET_AWAY;
        if (known && inlet->link == hello->link &&
            memcmp(inlet->from, hello->from, TLS_ID_BYTES) == 0) {
            return inlet;
        }
    }
    return NULL;
}

static void greet_inlet(struct tls *tls, uint32_t index) {
    struct tls_inlet *inlet = &tls->inlets[index], *earlier = NULL;
    struct tls_hello hello;
    enum tls_answer answer = TLS_ANSWER_COME;
    enum status status = tls_inlet_hear(inlet, &hello);
    if (status == STATUS_OK) {
        earlier = find_link(tls, &hello);
        if (memcmp(hello.to, tls->self.id, TLS_ID_BYTES) != 0) answer = TLS_ANSWER_STRANGER;
        if (hello.wire != tls->self.wire) answer = TLS_ANSWER_WIRE;
        if (answer != TLS_ANSWER_COME) earlier = NULL;
        status = tls_inlet_answer(inlet, answer, &hello, earlier);
    }
    if (earlier) settle_inlet(tls, (uint32_t)(earlier - tls->inlets));
    if (status == STATUS_AGAIN) {
        settle_inlet(tls, index);
    } else if (status != STATUS_OK) {
        end_inlet(tls, index);
    } else {
        if (answer == TLS_ANSWER_COME) door_give_back(&tls->door);
        if (answer != TLS_ANSWER_COME) tls_inlet_free(inlet);
        settle_inlet(tls, index);
    }
}

/* Takes what has come, up to a limit. */
static void read_inlet(struct tls *tls, uint32_t index) {
    struct tls_inlet *inlet = &tls->inlets[index];
    enum status status = STATUS_OK;
    uint32_t slot = 0;
    for (size_t bytes = 0; bytes < TURN_BYTES && status == STATUS_OK;) {
        status = tls_inlet_next(inlet, &slot, tls->now_ns);
        if (status == STATUS_OK) {
            bytes += FRAME_BYTES + tls->slots.slots[slot].payload_bytes;
            queue_received(tls, slot);
        }
    }
    bool more = status == STATUS_OK;
    if (status == STATUS_OK || status == STATUS_AGAIN) status = tls_inlet_tell(inlet);
    if (status != STATUS_OK) {
        end_inlet(tls, index);
        return;
    }
    settle_inlet(tls, index);
    if (more) tls_progress_queue(tls, tls->lane_count + index);
}

static void step_inlet(struct tls *tls, uint32_t index) {
    enum tls_inlet_state state = tls->inlets[index].state;
    if (state == TLS_INLET_GREETING) greet_inlet(tls, index);
    /* What came right behind the hello may be here already. */
    if (tls->inlets[index].state == TLS_INLET_OPEN) read_inlet(tls, index);
}

static void step(struct tls *tls, uint32_t task) {
    if (is_lane(tls, task)) {
        step_lane(tls, task);
    } else {
        step_inlet(tls, task - tls->lane_count);
    }
}

/* ---- who comes in ---- */

static void watch_listener(struct tls *tls, bool watched) {
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = TAG_LISTENER};
    if (tls->listener_watched == watched) return;
    if (epoll_ctl(tls->epoll_fd, watched ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, tls->listener, &event) !=
        0) {
        log_error("tls: cannot watch the listening socket: %s", strerror(errno));
        return;
    }
    tls->listener_watched = watched;
}

/* A free inlet. Where too many have not shown the key, the oldest of them makes room; where there
 * is none, the link that has been away for longest. */
static uint32_t find_inlet(struct tls *tls) {
    uint32_t found = TLS_LANE_NONE, pending = 0, oldest = TLS_LANE_NONE, away = TLS_LANE_NONE;
    for (uint32_t i = 0; i < tls->inlet_count; i++) {
        const struct tls_inlet *inlet = &tls->inlets[i];
        uint32_t *first = inlet->state == TLS_INLET_GREETING ? &oldest : &away;
        if (inlet->state == TLS_INLET_FREE) found = i;
        if (inlet->state == TLS_INLET_FREE || inlet->state == TLS_INLET_OPEN) continue;
        if (inlet->state == TLS_INLET_GREETING) pending++;
        if (*first == TLS_LANE_NONE || inlet->deadline_ns < tls->inlets[*first].deadline_ns) {
            *first = i;
        }
    }
    if (pending >= TLS_CHANNEL_PENDING) {
        refuse(tls, &tls->inlets[oldest], "too many have not shown the key");
        found = oldest;
    } else if (found == TLS_LANE_NONE) {
        found = away;
    }
    if (found != TLS_LANE_NONE && tls->inlets[found].state != TLS_INLET_FREE) {
        tls_inlet_free(&tls->inlets[found]);
        settle_inlet(tls, found);
    }
    return found;
}

/* All that came are in. */
static void rest(struct tls *tls) {
    int64_t until_ns = door_rest_ns(&tls->door, tls->now_ns);
    if (until_ns == tls->now_ns) return;
    watch_listener(tls, false);
    remind(tls, until_ns);
}

static void accept_some(struct tls *tls) {
    for (int i = 0; i < TURN_ACCEPTS; i++) {
        int fd = -1;
        if (!door_take(&tls->door, tls->now_ns)) {
            watch_listener(tls, false);
            remind(tls, door_next_ns(&tls->door, tls->now_ns));
            return;
        }
        enum status status = tls_socket_accept(tls->listener, &fd);
        if (status == STATUS_AGAIN) {
            door_give_back(&tls->door);
            rest(tls);
            return;
        }
        if (status != STATUS_OK) { /* what waits would keep the listener readable for ever */
            log_warn("tls: cannot accept a connection: %s (is `ulimit -n` too low?)",
                     strerror(errno));
            watch_listener(tls, false);
            remind(tls, tls->now_ns + CLOCK_S);
            return;
        }
        uint32_t index = find_inlet(tls);
        if (index == TLS_LANE_NONE) {
            close(fd);
        } else if (tls_inlet_accept(&tls->inlets[index], fd, tls->now_ns)) {
            step_inlet(tls, index); /* what it has to say is mostly there */
        }
    }
}

/* ---- a turn ---- */

static void gather(struct tls *tls) {
    struct epoll_event events[BATCH];
    int count = epoll_wait(tls->epoll_fd, events, BATCH, 0);
    for (int i = 0; i < count; i++) {
        uint32_t tag = events[i].data.u32;
        if (tag == TAG_LISTENER) {
            accept_some(tls);
        } else if (tag == TAG_TIMER) {
            uint64_t times;
            ssize_t bytes = read(tls->timer_fd, &times, sizeof times);
            (void)bytes; /* EAGAIN: it was set anew */
            tls->timer_ns = INT64_MAX;
        } else if (tls->tasks[tag].watched != 0) {
            step(tls, tag);
        }
    }
}

static bool is_starving(const struct tls *tls, uint32_t task) {
    return !is_lane(tls, task) && tls->inlets[task - tls->lane_count].hungry &&
           tls->slots.free_count == 0;
}

static void run_queue(struct tls *tls) {
    uint32_t capacity = tls->lane_count + tls->inlet_count;
    for (uint32_t i = 0, count = tls->queue_count; i < count; i++) {
        uint32_t task = tls->queue[tls->queue_head];
        tls->queue_head = (tls->queue_head + 1) % capacity;
        tls->queue_count--;
        tls->tasks[task].queued = false;
        if (is_starving(tls, task)) {
            tls_progress_queue(tls, task);
        } else {
            step(tls, task);
        }
    }
}

static void expire_lane(struct tls *tls, uint32_t task) {
    struct tls_lane *lane = &tls->lanes[task];
    if (!tls->peers[task / TLS_CHANNEL_LANES].connected) return;
    if (lane->deadline_ns != 0 && tls->now_ns >= lane->deadline_ns) {
        step_lane(tls, task); /* what has come in time counts, however late we look */
        if (lane->deadline_ns != 0 && tls->now_ns >= lane->deadline_ns) {
            tls_lane_expire(lane, tls->now_ns);
        }
    }
    settle_lane(tls, task);
}

static void expire_inlet(struct tls *tls, uint32_t index) {
    struct tls_inlet *inlet = &tls->inlets[index];
    if (inlet->deadline_ns != 0 && tls->now_ns >= inlet->deadline_ns) {
        step_inlet(tls, index);
    }
    if (inlet->deadline_ns == 0 || tls->now_ns < inlet->deadline_ns) {
        remind(tls, inlet->deadline_ns);
        return;
    }
    if (inlet->state == TLS_INLET_AWAY) {
        tls_inlet_free(inlet);
        return;
    }
    inlet->status = STATUS_TIMEOUT;
    (void)snprintf(inlet->why, sizeof inlet->why, "it did not go on");
    end_inlet(tls, index);
}

/* Ends what has run out of time, and finds the next deadline. */
static void expire(struct tls *tls) {
    tls->next_deadline_ns = INT64_MAX;
    watch_listener(tls, true);
    for (uint32_t task = 0; task < tls->lane_count; task++) {
        expire_lane(tls, task);
    }
    for (uint32_t index = 0; index < tls->inlet_count; index++) {
        expire_inlet(tls, index);
    }
}

void tls_progress(struct tls *tls) {
    tls->now_ns = clock_now_ns();
    run_queue(tls); /* first: who waits for a slot has waited for longest */
    gather(tls);
    if (tls->now_ns >= tls->next_deadline_ns) expire(tls);
}

bool tls_progress_is_due(const struct tls *tls) {
    uint32_t capacity = tls->lane_count + tls->inlet_count;
    for (uint32_t i = 0; i < tls->queue_count; i++) {
        if (!is_starving(tls, tls->queue[(tls->queue_head + i) % capacity])) return true;
    }
    return false;
}

void tls_progress_set_timer(struct tls *tls) {
    if (tls->timer_ns == tls->next_deadline_ns || tls->next_deadline_ns == INT64_MAX) return;
    int64_t at_ns = tls->next_deadline_ns > 0 ? tls->next_deadline_ns : 1;
    struct itimerspec time = {
        .it_value = {.tv_sec = (time_t)(at_ns / CLOCK_S), .tv_nsec = (long)(at_ns % CLOCK_S)}};
    if (timerfd_settime(tls->timer_fd, TFD_TIMER_ABSTIME, &time, NULL) == 0) {
        tls->timer_ns = tls->next_deadline_ns;
    }
}

enum status tls_progress_start(struct tls *tls) {
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = TAG_TIMER};
    tls->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    tls->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (tls->epoll_fd < 0 || tls->timer_fd < 0 ||
        epoll_ctl(tls->epoll_fd, EPOLL_CTL_ADD, tls->timer_fd, &event) != 0) {
        log_error("tls: cannot create an epoll with a timer: %s", strerror(errno));
        return STATUS_IO;
    }
    tls->next_deadline_ns = tls->timer_ns = INT64_MAX;
    tls->now_ns = clock_now_ns();
    door_init(&tls->door, "tls", tls->now_ns);
    watch_listener(tls, true);
    return tls->listener_watched ? STATUS_OK : STATUS_IO;
}
