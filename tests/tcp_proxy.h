/* tcp_proxy.h - stands between two TCP peers of a test, on loopback, in the test's own thread.
 *
 * Passes on what either side sends, at each proxy_turn(); changes a byte, holds everything back,
 * cuts all connections, or keeps what was sent. For one translation unit.
 */
#ifndef RUBATO_TESTS_TCP_PROXY_H
#define RUBATO_TESTS_TCP_PROXY_H

#include "tests/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

#define TCP_PROXY_PIPES  64
#define TCP_PROXY_BUFFER ((size_t)64 << 10)
#define TCP_PROXY_RECORD ((size_t)1 << 20)

struct pipe {
    int in, out;   /* who dialled, where to; -1: free */
    bool ended[2]; /* no more comes from in, from out */
};

struct proxy {
    int listener;
    uint16_t to; /* port; 0: connections are closed at once */
    struct pipe pipes[TCP_PROXY_PIPES];
    uint64_t passed;  /* bytes from those who dialled */
    uint64_t flip_at; /* of these, one byte that is changed; UINT64_MAX: none */
    bool stalled;     /* nothing passes */
    uint8_t *record;  /* [TCP_PROXY_RECORD]: what the first connection's dialler sent */
    size_t recorded;
};

static inline struct sockaddr_in tcp_proxy_loopback(uint16_t port) {
    struct sockaddr_in address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static inline uint16_t listen_anywhere(int *fd) {
    struct sockaddr_in address = tcp_proxy_loopback(0);
    socklen_t length = sizeof address;
    *fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(*fd >= 0);
    CHECK_INT(bind(*fd, (struct sockaddr *)&address, length), 0);
    CHECK_INT(listen(*fd, 64), 0);
    CHECK_INT(getsockname(*fd, (struct sockaddr *)&address, &length), 0);
    return ntohs(address.sin_port);
}

static inline int dial_port(uint16_t port) {
    struct sockaddr_in address = tcp_proxy_loopback(port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    CHECK_INT(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    CHECK_INT(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    return fd;
}

/* Without waiting: the listener's queue may be full. */
static inline int dial_port_soon(uint16_t port) {
    struct sockaddr_in address = tcp_proxy_loopback(port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(fd >= 0);
    (void)!connect(fd, (struct sockaddr *)&address, sizeof address);
    return fd;
}

static inline void pipe_close(struct pipe *pipe) {
    if (pipe->in < 0) return;
    CHECK_INT(close(pipe->in) | close(pipe->out), 0);
    pipe->in = -1;
}

/* Passes on what is there, as far as the other side takes it. */
static inline void pipe_pass(struct proxy *proxy, struct pipe *pipe, bool outward) {
    uint8_t bytes[TCP_PROXY_BUFFER];
    int from = outward ? pipe->in : pipe->out, to = outward ? pipe->out : pipe->in;
    ssize_t seen = recv(from, bytes, sizeof bytes, MSG_PEEK);
    if (seen == 0 || (seen < 0 && errno != EAGAIN)) pipe->ended[outward ? 0 : 1] = true;
    if (seen <= 0) return;
    uint64_t at = proxy->flip_at - proxy->passed;
    if (outward && proxy->flip_at >= proxy->passed && at < (uint64_t)seen) bytes[at] ^= 0x10;
    ssize_t put = send(to, bytes, (size_t)seen, MSG_NOSIGNAL);
    if (put < 0) return;
    if (outward && pipe == proxy->pipes && proxy->recorded + (size_t)put <= TCP_PROXY_RECORD) {
        memcpy(proxy->record + proxy->recorded, bytes, (size_t)put);
        proxy->recorded += (size_t)put;
    }
    if (outward) proxy->passed += (uint64_t)put;
    CHECK_INT(recv(from, bytes, (size_t)put, 0), put);
}

static inline void proxy_turn(struct proxy *proxy) {
    int fd = accept(proxy->listener, NULL, NULL);
    if (fd >= 0 && proxy->to == 0) {
        close(fd);
    } else if (fd >= 0) {
        struct pipe *pipe = proxy->pipes;
        while (pipe->in >= 0) {
            pipe++;
            CHECK(pipe < proxy->pipes + TCP_PROXY_PIPES);
        }
        CHECK_INT(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
        pipe->in = fd;
        pipe->out = dial_port(proxy->to);
        pipe->ended[0] = pipe->ended[1] = false;
    }
    for (struct pipe *pipe = proxy->pipes; pipe < proxy->pipes + TCP_PROXY_PIPES; pipe++) {
        if (pipe->in < 0 || proxy->stalled) continue;
        pipe_pass(proxy, pipe, true);
        pipe_pass(proxy, pipe, false);
        if (pipe->ended[0] || pipe->ended[1]) pipe_close(pipe);
    }
}

static inline void proxy_cut(struct proxy *proxy) {
    for (size_t i = 0; i < TCP_PROXY_PIPES; i++) {
        pipe_close(&proxy->pipes[i]);
    }
}

#endif
