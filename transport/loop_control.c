#include "base/assert.h"
#include "base/log.h"
#include "base/memory.h"
#include "proto/message.h"
#include "transport/loop_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of packets that one direction of a connection holds, under way and not yet polled. */
#define BUFFER_BYTES (8 * MESSAGE_MAX)

/* A partition answers nothing: the dialler gives up after so long. */
#define DIAL_TIMEOUT_NS INT64_C(5000000000)

enum connection_state {
    CONNECTION_FREE = 0,
    CONNECTION_DIALING,
    CONNECTION_OPEN,
    CONNECTION_CLOSED /* its CLOSED event is queued or under way to the owner */
};

struct connection {
    enum connection_state state;
    uint64_t serial;        /* of this use of the number */
    uint64_t remote;        /* id of the other control; valid once has_remote */
    uint32_t remote_number; /* there */
    uint64_t remote_serial;
    bool has_remote;
    int64_t last_ns;     /* when the latest of what we sent arrives: nothing may overtake it */
    size_t inbox_bytes;  /* sent to us and not yet polled */
    char peer_name[300]; /* text of OPENED */
    char dial_host[256]; /* while dialing */
    char dial_port[16];
};

struct listener {
    char host[256];
    char port[16];
};

/* An event in the owner's queue, with its packet's memory. */
struct queued {
    struct control_event event;
    uint8_t *packet;
    uint64_t serial;
};

struct loop_control {
    struct control base;
    struct loop *loop;
    uint64_t id;
    uint32_t node;
    struct listener *listeners;
    size_t listener_count;
    struct connection **connections; /* [number]; never moved once made */
    size_t connection_count;
    struct queued *events; /* a queue: [event_head, event_count) */
    size_t event_head, event_count;
    uint8_t *packet; /* of the event that poll() returned last */
    uint32_t closed; /* a number to free at the next poll, after its CLOSED */
    bool has_closed;
};

/* ---- connections ---- */

static uint32_t take_number(struct loop_control *control) {
    uint32_t number = 0;
    while (number < control->connection_count &&
           control->connections[number]->state != CONNECTION_FREE) {
        number++;
    }
    if (number == control->connection_count) {
        control->connections =
            loop_grow(control->connections, control->connection_count, sizeof(struct connection *));
        control->connections[control->connection_count++] =
            memory_zeroed(1, sizeof(struct connection));
    }
    struct connection *connection = control->connections[number];
    memset(connection, 0, sizeof *connection);
    connection->serial = ++control->loop->serial;
    return number;
}

static struct loop_control *find_control(const struct loop *loop, uint64_t id) {
    return id < loop->control_count ? loop->controls[id] : NULL;
}

/* The connection that a delivery means, NULL when it has ended since. */
static struct connection *find_connection(const struct loop_control *control, uint32_t number,
                                          uint64_t serial) {
    if (number >= control->connection_count) return NULL;
    struct connection *connection = control->connections[number];
    bool same = connection->state != CONNECTION_FREE && connection->serial == serial;
    return same ? connection : NULL;
}

static struct queued *queue_event(struct loop_control *control, enum control_event_kind kind,
                                  uint32_t number) {
    control->events = loop_grow(control->events, control->event_count, sizeof *control->events);
    struct queued *queued = &control->events[control->event_count++];
    queued->event.kind = kind;
    queued->event.connection = number;
    queued->serial = control->connections[number]->serial;
    return queued;
}

static void queue_closed(struct loop_control *control, uint32_t number, enum status status,
                         const char *text) {
    control->connections[number]->state = CONNECTION_CLOSED;
    struct queued *queued = queue_event(control, CONTROL_CLOSED, number);
    queued->event.status = status;
    queued->event.text = text;
}

/* Schedules `delivery` for the other end of a connection, behind all that went before. */
static void send_in_order(struct loop_control *control, struct connection *connection,
                          struct delivery delivery) {
    struct loop *loop = control->loop;
    delivery.at_ns = loop->now_ns + loop_delay_ns(loop);
    if (delivery.at_ns < connection->last_ns) delivery.at_ns = connection->last_ns;
    connection->last_ns = delivery.at_ns;
    delivery.from = control->id;
    delivery.from_node = control->node;
    delivery.to = connection->remote;
    delivery.connection = connection->remote_number;
    delivery.serial = connection->remote_serial;
    loop_schedule(loop, &delivery);
}

/* ---- deliveries ---- */

static bool is_wildcard(const char *host) {
    return !*host || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

static bool listens_at(const struct loop_control *control, const char *host, const char *port) {
    for (size_t i = 0; i < control->listener_count; i++) {
        const struct listener *listener = &control->listeners[i];
        if (strcmp(listener->port, port) != 0) continue;
        if (is_wildcard(listener->host) || strcmp(listener->host, host) == 0) return true;
    }
    return false;
}

static struct loop_control *find_listener(const struct loop *loop, const char *host,
                                          const char *port) {
    for (size_t id = 0; id < loop->control_count; id++) {
        struct loop_control *control = loop->controls[id];
        if (!control || loop->nodes[control->node] == LOOP_DEAD) continue;
        if (listens_at(control, host, port)) return control;
    }
    return NULL;
}

/* To the dialler itself: what became of its dial. Not subject to cuts: the network says it. */
static void answer_dial(struct loop_control *dialler, uint32_t number, int64_t delay_ns,
                        enum status status, const char *text) {
    const struct delivery closed = {.kind = DELIVER_CLOSED,
                                    .at_ns = dialler->loop->now_ns + delay_ns,
                                    .reported = true,
                                    .to = dialler->id,
                                    .connection = number,
                                    .serial = dialler->connections[number]->serial,
                                    .status = status,
                                    .text = text};
    loop_schedule(dialler->loop, &closed);
}

static void deliver_dial(struct loop *loop, const struct delivery *delivery) {
    struct loop_control *dialler = find_control(loop, delivery->from);
    if (!dialler) return;
    struct connection *theirs = find_connection(dialler, delivery->connection, delivery->serial);
    if (!theirs || theirs->state != CONNECTION_DIALING) return;
    struct loop_control *control = find_listener(loop, theirs->dial_host, theirs->dial_port);
    if (loop->nodes[dialler->node] == LOOP_PARTITIONED ||
        (control && loop->nodes[control->node] == LOOP_PARTITIONED)) {
        answer_dial(dialler, delivery->connection, DIAL_TIMEOUT_NS, STATUS_TIMEOUT,
                    "connection timed out");
        return;
    }
    if (!control) {
        answer_dial(dialler, delivery->connection, loop_delay_ns(loop), STATUS_PEER_LOST,
                    "connection refused");
        return;
    }
    uint32_t number = take_number(control);
    struct connection *ours = control->connections[number];
    ours->state = CONNECTION_OPEN;
    ours->remote = dialler->id;
    ours->remote_number = delivery->connection;
    ours->remote_serial = theirs->serial;
    ours->has_remote = true;
    snprintf(ours->peer_name, sizeof ours->peer_name, "127.0.0.1:%llu",
             (unsigned long long)(40000 + theirs->serial % 20000));
    theirs->remote = control->id;
    theirs->remote_number = number;
    theirs->remote_serial = ours->serial;
    theirs->has_remote = true;
    struct queued *queued = queue_event(control, CONTROL_OPENED, number);
    queued->event.incoming = true;
    queued->event.text = ours->peer_name;
    send_in_order(control, ours, (struct delivery){.kind = DELIVER_OPENED});
}

static void deliver_packet(struct loop_control *control, struct connection *connection,
                           struct delivery *delivery) {
    if (connection->state != CONNECTION_OPEN) return;
    struct queued *queued = queue_event(control, CONTROL_PACKET, delivery->connection);
    queued->packet = delivery->packet;
    queued->event.packet = delivery->packet;
    queued->event.packet_bytes = delivery->packet_bytes;
    delivery->packet = NULL;
}

static void deliver_to_connection(struct loop_control *control, struct delivery *delivery) {
    struct connection *connection =
        find_connection(control, delivery->connection, delivery->serial);
    if (!connection) return;
    if (delivery->kind == DELIVER_PACKET) {
        deliver_packet(control, connection, delivery);
    } else if (delivery->kind == DELIVER_OPENED) {
        if (connection->state != CONNECTION_DIALING) return;
        connection->state = CONNECTION_OPEN;
        queue_event(control, CONTROL_OPENED, delivery->connection)->event.text =
            connection->peer_name;
    } else if (connection->state != CONNECTION_CLOSED) {
        queue_closed(control, delivery->connection, delivery->status, delivery->text);
    }
}

/* A dead node's packets are lost with it, the end of its connections is what its death means. */
static bool may_arrive(const struct loop *loop, const struct loop_control *control,
                       const struct delivery *delivery) {
    if (delivery->reported) return true;
    if (loop->nodes[control->node] != LOOP_UP) return false;
    uint8_t source = loop->nodes[delivery->from_node];
    return source == LOOP_UP || (source == LOOP_DEAD && delivery->kind == DELIVER_CLOSED);
}

void loop_control_deliver(struct loop *loop, struct delivery *delivery) {
    struct loop_control *control = find_control(loop, delivery->to);
    if (delivery->kind == DELIVER_DIAL) {
        if (loop->nodes[delivery->from_node] != LOOP_DEAD) deliver_dial(loop, delivery);
    } else if (control && may_arrive(loop, control, delivery)) {
        deliver_to_connection(control, delivery);
    }
    free(delivery->packet);
}

static void reset_connection(struct loop_control *control, struct connection *connection) {
    send_in_order(control, connection,
                  (struct delivery){.kind = DELIVER_CLOSED,
                                    .status = STATUS_PEER_LOST,
                                    .text = "connection reset"});
}

void loop_control_cut(struct loop *loop, uint32_t node) {
    for (size_t id = 0; id < loop->control_count; id++) {
        struct loop_control *control = loop->controls[id];
        if (!control || control->node != node) continue;
        for (size_t i = 0; i < control->connection_count; i++) {
            struct connection *connection = control->connections[i];
            bool live =
                connection->state == CONNECTION_OPEN || connection->state == CONNECTION_DIALING;
            if (live && connection->has_remote) reset_connection(control, connection);
        }
    }
}

/* ---- the control's operations ---- */

static enum status loop_listen(struct control *base, const char *host, const char *port) {
    struct loop_control *control = (struct loop_control *)base;
    const struct loop *loop = control->loop;
    for (size_t id = 0; id < loop->control_count; id++) {
        const struct loop_control *other = loop->controls[id];
        if (!other || loop->nodes[other->node] == LOOP_DEAD || !listens_at(other, host, port)) {
            continue;
        }
        log_error("loop: cannot listen at %s:%s: address already in use", host, port);
        return STATUS_IO;
    }
    control->listeners =
        loop_grow(control->listeners, control->listener_count, sizeof *control->listeners);
    struct listener *listener = &control->listeners[control->listener_count++];
    snprintf(listener->host, sizeof listener->host, "%s", host);
    snprintf(listener->port, sizeof listener->port, "%s", port);
    return STATUS_OK;
}

static enum status loop_dial(struct control *base, const char *host, const char *port,
                             uint32_t *connection) {
    struct loop_control *control = (struct loop_control *)base;
    struct loop *loop = control->loop;
    uint32_t number = take_number(control);
    struct connection *made = control->connections[number];
    made->state = CONNECTION_DIALING;
    snprintf(made->dial_host, sizeof made->dial_host, "%s", host);
    snprintf(made->dial_port, sizeof made->dial_port, "%s", port);
    snprintf(made->peer_name, sizeof made->peer_name, "%s:%s", made->dial_host, made->dial_port);
    const struct delivery dial = {.kind = DELIVER_DIAL,
                                  .at_ns = loop->now_ns + loop_delay_ns(loop),
                                  .from = control->id,
                                  .from_node = control->node,
                                  .connection = number,
                                  .serial = made->serial};
    loop_schedule(loop, &dial);
    *connection = number;
    return STATUS_OK;
}

static enum status loop_send(struct control *base, uint32_t number, const uint8_t *packet,
                             size_t bytes) {
    struct loop_control *control = (struct loop_control *)base;
    ASSERT(bytes >= 1 && bytes <= MESSAGE_MAX);
    ASSERT_OP(number, <, control->connection_count);
    struct connection *connection = control->connections[number];
    if (connection->state == CONNECTION_DIALING) return STATUS_AGAIN;
    if (connection->state != CONNECTION_OPEN) return STATUS_PEER_LOST;
    const struct loop_control *remote = find_control(control->loop, connection->remote);
    struct connection *theirs =
        remote ? find_connection(remote, connection->remote_number, connection->remote_serial)
               : NULL;
    if (theirs) { /* else its end is under way to us, and the packet will not arrive */
        if (theirs->inbox_bytes + bytes > BUFFER_BYTES) return STATUS_AGAIN;
        theirs->inbox_bytes += bytes;
    }
    control->loop->counts.packets++;
    struct delivery delivery = {.kind = DELIVER_PACKET, .packet_bytes = bytes};
    delivery.packet = memory_zeroed(1, bytes);
    memcpy(delivery.packet, packet, bytes);
    send_in_order(control, connection, delivery);
    return STATUS_OK;
}

static bool loop_poll(struct control *base, int64_t now_ns, struct control_event *event) {
    struct loop_control *control = (struct loop_control *)base;
    (void)now_ns; /* the network has a clock of its own */
    free(control->packet);
    control->packet = NULL;
    if (control->has_closed) control->connections[control->closed]->state = CONNECTION_FREE;
    control->has_closed = false;
    if (control->event_head == control->event_count) {
        free(control->events);
        control->events = NULL;
        control->event_head = control->event_count = 0;
        return false;
    }
    const struct queued *queued = &control->events[control->event_head++];
    control->packet = queued->packet;
    *event = queued->event;
    if (event->kind == CONTROL_PACKET) {
        struct connection *connection = find_connection(control, event->connection, queued->serial);
        if (connection) connection->inbox_bytes -= event->packet_bytes;
    } else if (event->kind == CONTROL_CLOSED) {
        control->closed = event->connection;
        control->has_closed = true;
    }
    return true;
}

/* Our end is over: what was sent arrives, then the end of the stream. */
static void end_stream(struct loop_control *control, struct connection *connection) {
    if (!connection->has_remote) return;
    send_in_order(control, connection,
                  (struct delivery){
                      .kind = DELIVER_CLOSED, .status = STATUS_PEER_LOST, .text = "end of stream"});
}

static void loop_hang_up(struct control *base, uint32_t number) {
    struct loop_control *control = (struct loop_control *)base;
    ASSERT_OP(number, <, control->connection_count);
    struct connection *connection = control->connections[number];
    if (connection->state != CONNECTION_OPEN && connection->state != CONNECTION_DIALING) return;
    end_stream(control, connection);
    queue_closed(control, number, STATUS_AGAIN, "hung up");
}

static int loop_wait_fd(struct control *base) {
    (void)base;
    return -1;
}

static void loop_local_ip(struct control *base, uint32_t connection, char *ip, size_t bytes) {
    (void)base;
    (void)connection;
    snprintf(ip, bytes, "127.0.0.1");
}

static void loop_control_close(struct control *base, int64_t flush_ns) {
    struct loop_control *control = (struct loop_control *)base;
    (void)flush_ns; /* nothing is ever kept back */
    for (size_t i = 0; i < control->connection_count; i++) {
        struct connection *connection = control->connections[i];
        bool live = connection->state == CONNECTION_OPEN || connection->state == CONNECTION_DIALING;
        if (live) end_stream(control, connection);
        free(connection);
    }
    for (size_t i = control->event_head; i < control->event_count; i++) {
        free(control->events[i].packet);
    }
    control->loop->controls[control->id] = NULL;
    free(control->packet);
    free(control->events);
    free(control->connections);
    free(control->listeners);
    free(control);
}

static const struct control_ops loop_control_ops = {
    .name = "loop",
    .listen = loop_listen,
    .dial = loop_dial,
    .send = loop_send,
    .poll = loop_poll,
    .hang_up = loop_hang_up,
    .wait_fd = loop_wait_fd,
    .local_ip = loop_local_ip,
    .close = loop_control_close,
};

enum status loop_control(struct loop *loop, uint32_t node, struct control **control) {
    ASSERT_OP(node, <, LOOP_NODES);
    struct loop_control *made = memory_zeroed(1, sizeof *made);
    made->base.ops = &loop_control_ops;
    made->loop = loop;
    made->node = node;
    made->id = loop->control_count;
    loop->controls = loop_grow(loop->controls, loop->control_count, sizeof(void *));
    loop->controls[loop->control_count++] = made;
    *control = &made->base;
    return STATUS_OK;
}
