#include "transport/paced.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* A send that waits for its time. */
struct waiting_send {
    int64_t due_ns;
    uint64_t cookie;
    const uint8_t *payload;
    size_t payload_bytes;
    uint32_t peer;
    bool lost; /* its peer is gone: it ends with PEER_LOST */
    uint8_t header[FRAME_BYTES];
};

struct waiting_event {
    int64_t due_ns;
    struct channel_event event;
};

struct paced {
    struct channel channel; /* first */
    struct channel_ops ops; /* ours, with the name and the lossiness of the wrapped one */
    struct channel *inner;
    struct paced_link *link;
    struct channel_config config;
    struct waiting_send *sends; /* [sends_max], a circle */
    uint32_t send_first, send_count;
    uint32_t inner_sends;         /* in flight in the wrapped channel */
    struct waiting_event *events; /* [slots], a circle */
    uint32_t event_first, event_count;
    bool *connected;  /* [peers_max] */
    int epoll, timer; /* -1 where the wrapped channel has no wait_fd */
};

enum status paced_parse(const char *text, uint64_t *bytes_a_second) {
    static const struct {
        const char *name;
        double bits;
    } units[] = {{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}};
    char *end = NULL;
    if (strcmp(text, "none") == 0) {
        *bytes_a_second = 0;
        return STATUS_OK;
    }
    /* strtod alone would take spaces, signs, exponents and names. */
    size_t digits = strspn(text, "0123456789.");
    double value = strtod(text, &end);
    if (digits == 0 || end != text + digits) return STATUS_INVALID;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        double bits = value * units[i].bits;
        if (strcmp(end, units[i].name) == 0 && bits >= 1e3 && bits <= 1e13) {
            *bytes_a_second = (uint64_t)(bits / 8);
            return STATUS_OK;
        }
    }
    return STATUS_INVALID;
}

enum status paced_link_init(struct paced_link *link, const char *text) {
    uint64_t rate = 0;
    TRY(paced_parse(text, &rate));
    memset(link, 0, sizeof *link);
    link->bytes_a_second = rate;
    return STATUS_OK;
}

static int64_t link_now_ns(const struct paced_link *link) {
    return link->clock != NULL ? link->clock(link->context) : clock_now_ns();
}

static int64_t duration_ns(const struct paced_link *link, uint64_t bytes) {
    return (int64_t)ceil((double)bytes * (double)CLOCK_S / (double)link->bytes_a_second);
}

/* Takes `bytes` out of a bucket -> when they are through, never before now_ns. The bucket is the
 * time at which it will have let everything through; it may lag behind the clock by what it may
 * have saved, `credit` bytes. */
static int64_t bucket_take(const struct paced_link *link, _Atomic int64_t *bucket, uint64_t bytes,
                           uint64_t credit, int64_t now_ns) {
    int64_t earliest_ns = now_ns - duration_ns(link, credit);
    int64_t before_ns = atomic_load(bucket);
    int64_t after_ns;
    do {
        int64_t start_ns = before_ns > earliest_ns ? before_ns : earliest_ns;
        after_ns = start_ns + duration_ns(link, bytes);
    } while (!atomic_compare_exchange_weak(bucket, &before_ns, after_ns));
    return after_ns > now_ns ? after_ns : now_ns;
}

static struct waiting_send *first_send(const struct paced *paced) {
    return &paced->sends[paced->send_first];
}

static void drop_first_send(struct paced *paced) {
    paced->send_first = (paced->send_first + 1) % paced->config.sends_max;
    paced->send_count--;
}

static enum status paced_address(struct channel *channel, uint8_t *address, size_t *bytes) {
    struct paced *paced = (struct paced *)channel;
    return paced->inner->ops->address(paced->inner, address, bytes);
}

/* What waits for the peer ends with PEER_LOST. */
static void lose_sends(struct paced *paced, uint32_t peer) {
    for (uint32_t i = 0; i < paced->send_count; i++) {
        struct waiting_send *send =
            &paced->sends[(paced->send_first + i) % paced->config.sends_max];
        send->lost = send->lost || send->peer == peer;
    }
}

static enum status paced_connect(struct channel *channel, uint32_t peer, const uint8_t *address,
                                 size_t bytes) {
    struct paced *paced = (struct paced *)channel;
    ASSERT(peer < paced->config.peers_max);
    lose_sends(paced, peer);
    enum status status = paced->inner->ops->connect(paced->inner, peer, address, bytes);
    paced->connected[peer] = status == STATUS_OK;
    return status;
}

static enum status paced_memory(struct channel *channel, size_t bytes, uint8_t **memory) {
    struct channel *inner = ((struct paced *)channel)->inner;
    return inner->ops->memory ? inner->ops->memory(inner, bytes, memory) : STATUS_UNSUPPORTED;
}

static enum status paced_device_memory(struct channel *channel, int device, const void *memory,
                                       size_t bytes) {
    struct channel *inner = ((struct paced *)channel)->inner;
    if (inner->ops->device_memory == NULL) return STATUS_UNSUPPORTED;
    return inner->ops->device_memory(inner, device, memory, bytes);
}

static enum status paced_send(struct channel *channel, uint32_t peer, const uint8_t *header,
                              const uint8_t *payload, size_t payload_bytes, uint64_t cookie) {
    struct paced *paced = (struct paced *)channel;
    struct paced_link *link = paced->link;
    if (peer >= paced->config.peers_max || !paced->connected[peer]) {
        return STATUS_PEER_LOST;
    }
    if (paced->send_count + paced->inner_sends >= paced->config.sends_max) {
        return STATUS_AGAIN;
    }
    uint32_t place = (paced->send_first + paced->send_count) % paced->config.sends_max;
    struct waiting_send *send = &paced->sends[place];
    *send = (struct waiting_send){
        .cookie = cookie, .payload = payload, .payload_bytes = payload_bytes, .peer = peer};
    memcpy(send->header, header, FRAME_BYTES);
    send->due_ns = bucket_take(link, &link->out_ns, FRAME_BYTES + payload_bytes, PACED_BURST_BYTES,
                               link_now_ns(link));
    paced->send_count++;
    return STATUS_OK;
}

/* Hands over what is due; sends that cannot be end here, as events [capacity]. */
static size_t hand_over(struct paced *paced, struct channel_event *events, size_t capacity,
                        int64_t now_ns) {
    size_t count = 0;
    while (paced->send_count > 0 && count < capacity) {
        const struct waiting_send *send = first_send(paced);
        enum status status = STATUS_PEER_LOST;
        if (!send->lost) {
            if (send->due_ns > now_ns) break;
            status = paced->inner->ops->send(paced->inner, send->peer, send->header, send->payload,
                                             send->payload_bytes, send->cookie);
        }
        if (status == STATUS_AGAIN) break;
        if (status == STATUS_OK) {
            paced->inner_sends++;
        } else {
            events[count++] = (struct channel_event){
                .kind = CHANNEL_SENT, .peer = send->peer, .cookie = send->cookie, .status = status};
        }
        drop_first_send(paced);
    }
    return count;
}

/* An event of the wrapped channel: true when it is to be shown now. */
static bool take_event(struct paced *paced, const struct channel_event *event, int64_t now_ns) {
    struct paced_link *link = paced->link;
    if (event->kind == CHANNEL_SENT) {
        ASSERT(paced->inner_sends > 0);
        paced->inner_sends--;
        return true;
    }
    if (event->kind == CHANNEL_PEER_LOST) {
        if (event->peer < paced->config.peers_max) {
            paced->connected[event->peer] = false;
            lose_sends(paced, event->peer);
        }
        return true;
    }
    uint64_t bytes = FRAME_BYTES + event->payload_bytes;
    uint64_t credit = bytes > PACED_BURST_BYTES ? bytes : PACED_BURST_BYTES;
    int64_t due_ns = bucket_take(link, &link->in_ns, bytes, credit, now_ns);
    if (due_ns <= now_ns && paced->event_count == 0) return true;
    ASSERT(paced->event_count < paced->config.slots);
    uint32_t place = (paced->event_first + paced->event_count) % paced->config.slots;
    paced->events[place] = (struct waiting_event){.due_ns = due_ns, .event = *event};
    paced->event_count++;
    return false;
}

static size_t paced_poll(struct channel *channel, struct channel_event *events, size_t capacity) {
    struct paced *paced = (struct paced *)channel;
    int64_t now_ns = link_now_ns(paced->link);
    size_t count = hand_over(paced, events, capacity, now_ns);
    while (count < capacity && paced->event_count > 0 &&
           paced->events[paced->event_first].due_ns <= now_ns) {
        events[count++] = paced->events[paced->event_first].event;
        paced->event_first = (paced->event_first + 1) % paced->config.slots;
        paced->event_count--;
    }
    if (count == capacity) return count;
    size_t polled = paced->inner->ops->poll(paced->inner, events + count, capacity - count);
    size_t end = count + polled;
    for (size_t i = count; i < end; i++) {
        struct channel_event event = events[i];
        if (take_event(paced, &event, now_ns)) events[count++] = event;
    }
    return count;
}

static void paced_release(struct channel *channel, uint32_t slot) {
    struct paced *paced = (struct paced *)channel;
    paced->inner->ops->release(paced->inner, slot);
}

static int paced_wait_fd(struct channel *channel) {
    const struct paced *paced = (const struct paced *)channel;
    return paced->epoll;
}

int64_t paced_next_ns(const struct channel *channel) {
    if (channel->ops->poll != paced_poll) return INT64_MAX;
    const struct paced *paced = (const struct paced *)channel;
    int64_t next_ns = INT64_MAX;
    if (paced->send_count > 0) {
        const struct waiting_send *send = first_send(paced);
        next_ns = send->lost ? INT64_MIN : send->due_ns;
    }
    if (paced->event_count > 0 && paced->events[paced->event_first].due_ns < next_ns) {
        next_ns = paced->events[paced->event_first].due_ns;
    }
    return next_ns;
}

static enum status paced_arm(struct channel *channel) {
    struct paced *paced = (struct paced *)channel;
    struct itimerspec when = {0};
    int64_t next_ns = paced_next_ns(channel);
    int64_t left_ns = 0; /* disarms the timer */
    if (next_ns != INT64_MAX) {
        int64_t now_ns = link_now_ns(paced->link);
        if (next_ns <= now_ns) return STATUS_AGAIN;
        left_ns = next_ns - now_ns;
    }
    when.it_value.tv_sec = left_ns / CLOCK_S;
    when.it_value.tv_nsec = left_ns % CLOCK_S;
    if (paced->timer >= 0) (void)timerfd_settime(paced->timer, 0, &when, NULL);
    return paced->inner->ops->arm(paced->inner);
}

static void paced_stats(const struct channel *channel, struct channel_stats *stats) {
    const struct paced *paced = (const struct paced *)channel;
    paced->inner->ops->stats(paced->inner, stats);
}

static void paced_close(struct channel *channel) {
    struct paced *paced = (struct paced *)channel;
    paced->inner->ops->close(paced->inner);
    if (paced->timer >= 0) close(paced->timer);
    if (paced->epoll >= 0) close(paced->epoll);
    free(paced->sends);
    free(paced->events);
    free(paced->connected);
    free(paced);
}

/* One descriptor that tells of both: the wrapped channel's events and the next due time. */
static enum status open_descriptors(struct paced *paced) {
    int inner_fd = paced->inner->ops->wait_fd(paced->inner);
    if (inner_fd < 0) return STATUS_OK;
    paced->epoll = epoll_create1(EPOLL_CLOEXEC);
    paced->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    struct epoll_event inner_event = {.events = EPOLLIN};
    struct epoll_event timer_event = {.events = EPOLLIN};
    if (paced->epoll < 0 || paced->timer < 0 ||
        epoll_ctl(paced->epoll, EPOLL_CTL_ADD, inner_fd, &inner_event) != 0 ||
        epoll_ctl(paced->epoll, EPOLL_CTL_ADD, paced->timer, &timer_event) != 0) {
        log_error("cannot watch a paced channel: %s", strerror(errno));
        return STATUS_IO;
    }
    return STATUS_OK;
}

enum status paced_wrap(struct paced_link *link, const struct channel_config *config,
                       struct channel **channel) {
    if (link->bytes_a_second == 0) return STATUS_OK;
    struct paced *paced = memory_zeroed(1, sizeof *paced);
    paced->inner = *channel;
    paced->link = link;
    paced->config = *config;
    paced->sends = memory_zeroed(config->sends_max, sizeof *paced->sends);
    paced->events = memory_zeroed(config->slots, sizeof *paced->events);
    paced->connected = memory_zeroed(config->peers_max, sizeof *paced->connected);
    paced->epoll = paced->timer = -1;
    paced->ops = (struct channel_ops){.name = (*channel)->ops->name,
                                      .lossy = (*channel)->ops->lossy,
                                      .address = paced_address,
                                      .connect = paced_connect,
                                      .memory = paced_memory,
                                      .device_memory = paced_device_memory,
                                      .send = paced_send,
                                      .poll = paced_poll,
                                      .release = paced_release,
                                      .wait_fd = paced_wait_fd,
                                      .arm = paced_arm,
                                      .stats = paced_stats,
                                      .close = paced_close};
    paced->channel.ops = &paced->ops;
    enum status status = open_descriptors(paced);
    if (status != STATUS_OK) {
        paced_close(&paced->channel);
        *channel = NULL;
        return status;
    }
    *channel = &paced->channel;
    return STATUS_OK;
}
