/* control_pair.h - for the tests of control_tcp: two sides over loopback, and strangers.
 *
 * A pair is a listening control object and a dialling one in one process, polled in turn until what
 * is expected has come; a stranger is a raw socket. Time is a variable: time limits are passed by
 * adding to it. Packets' content is a function of (length, place), so that the receiver needs no
 * copy to compare with.
 */
#ifndef RUBATO_TESTS_CONTROL_PAIR_H
#define RUBATO_TESTS_CONTROL_PAIR_H

#include "base/clock.h"
#include "proto/message.h"
#include "test.h"
#include "transport/control_tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

static const uint8_t key_a[CONTROL_KEY_BYTES] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
static const uint8_t key_b[CONTROL_KEY_BYTES] = {1, 2, 3, 4, 5, 6, 7, 8, 10};

/* A control object, and what it has told so far. */
struct side {
    struct control *control;
    uint32_t connection; /* of the last OPENED */
    int opened, closed, packets;
    enum status status; /* of the last CLOSED */
    char text[256];
    size_t sizes[64]; /* of the first packets */
    bool intact;      /* all packets had the content that their length implies */
};

struct pair {
    struct side server, client;
    int64_t now_ns;
};

static inline uint8_t pattern(size_t bytes, size_t place) {
    return (uint8_t)((bytes * 31 + place * 7 + (place >> 8)) & 0xff);
}

static inline void note(struct side *side, const struct control_event *event) {
    if (event->kind == CONTROL_OPENED) {
        side->opened++;
        side->connection = event->connection;
        snprintf(side->text, sizeof(side->text), "%s", event->text);
    } else if (event->kind == CONTROL_CLOSED) {
        side->closed++;
        side->status = event->status;
        snprintf(side->text, sizeof(side->text), "%s", event->text);
    } else {
        if (side->packets < 64) side->sizes[side->packets] = event->packet_bytes;
        side->packets++;
        for (size_t i = 0; i < event->packet_bytes; i++) {
            if (event->packet[i] != pattern(event->packet_bytes, i)) side->intact = false;
        }
    }
}

/* Polls a side until it has nothing to say; true when it said something. */
static inline bool drain(struct side *side, int64_t now_ns) {
    struct control_event event;
    bool any = false;
    if (side->control == NULL) return false;
    while (side->control->ops->poll(side->control, now_ns, &event)) {
        note(side, &event);
        any = true;
    }
    return any;
}

/* One turn of both sides, with a millisecond's sleep on their descriptors when all is quiet. */
static inline void turn(struct pair *pair) {
    bool any = drain(&pair->server, pair->now_ns);
    any = drain(&pair->client, pair->now_ns) || any;
    if (any) return;
    struct pollfd fds[2];
    struct side *sides[2] = {&pair->server, &pair->client};
    for (int i = 0; i < 2; i++) {
        struct control *control = sides[i]->control;
        fds[i].fd = control != NULL ? control->ops->wait_fd(control) : -1;
        fds[i].events = POLLIN;
    }
    poll(fds, 2, 1);
}

/* Turns until `condition`; that it never comes is a failure. */
#define AWAIT(pair, condition)                                                                     \
    do {                                                                                           \
        for (int turn_ = 0; turn_ < 20000 && !(condition); turn_++)                                \
            turn(pair);                                                                            \
        CHECK(condition);                                                                          \
    } while (0)

static inline void side_open(struct side *side, const uint8_t *key) {
    memset(side, 0, sizeof(*side));
    side->intact = true;
    CHECK_INT(control_tcp_open(&side->control, key), STATUS_OK);
}

static inline void listen_open(struct pair *pair, const uint8_t *key) {
    memset(pair, 0, sizeof(*pair));
    pair->now_ns = 1000 * CLOCK_S;
    side_open(&pair->server, key);
    CHECK_INT(pair->server.control->ops->listen(pair->server.control, "127.0.0.1", "0"), STATUS_OK);
    CHECK(control_tcp_port(pair->server.control) != 0);
}

static inline uint32_t dial_port(struct side *side, uint16_t port) {
    char text[8];
    uint32_t connection = UINT32_MAX;
    snprintf(text, sizeof(text), "%u", port);
    CHECK_INT(side->control->ops->dial(side->control, "127.0.0.1", text, &connection), STATUS_OK);
    return connection;
}

/* A listening server, a client that has dialled it. */
static inline void pair_open(struct pair *pair, const uint8_t *server_key,
                             const uint8_t *client_key) {
    listen_open(pair, server_key);
    side_open(&pair->client, client_key);
    dial_port(&pair->client, control_tcp_port(pair->server.control));
}

static inline void pair_close(struct pair *pair) {
    if (pair->client.control != NULL) pair->client.control->ops->close(pair->client.control, 0);
    if (pair->server.control != NULL) pair->server.control->ops->close(pair->server.control, 0);
}

static inline enum status send_pattern(struct side *side, size_t bytes) {
    static uint8_t packet[MESSAGE_MAX];
    for (size_t i = 0; i < bytes; i++) {
        packet[i] = pattern(bytes, i);
    }
    return side->control->ops->send(side->control, side->connection, packet, bytes);
}

/* A raw socket connected to the server of the pair. */
static inline int stranger(const struct pair *pair) {
    struct sockaddr_in address;
    memset(&address, 0, sizeof(address));
    address.sin_family = AF_INET;
    address.sin_port = htons(control_tcp_port(pair->server.control));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK_INT(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    CHECK_INT(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    return fd;
}

/* True when the other side has closed; what it sent before is dropped, counted in *got. */
static inline bool hung_up(int fd, size_t *got) {
    uint8_t bytes[4096];
    ssize_t count = recv(fd, bytes, sizeof(bytes), 0);
    if (count > 0) *got += (size_t)count;
    return count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
}

#endif
