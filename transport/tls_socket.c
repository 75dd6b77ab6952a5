#define _GNU_SOURCE /* accept4; NOLINT(*-identifier*) */

#include "transport/tls_socket.h"

#include "base/clock.h"
#include "base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG    256
#define PROBES_MAX 3

static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

union any_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static void set_number(int fd, int level, int name, int value) {
    (void)setsockopt(fd, level, name, &value, sizeof value);
}

void tls_socket_keep(int fd, int64_t lease_ns) {
    int probe_s = (int)(lease_ns / CLOCK_S) / PROBES_MAX;
    set_number(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_number(fd, IPPROTO_TCP, TCP_KEEPIDLE, probe_s > 0 ? probe_s : 1);
    set_number(fd, IPPROTO_TCP, TCP_KEEPINTVL, probe_s > 0 ? probe_s : 1);
    set_number(fd, IPPROTO_TCP, TCP_KEEPCNT, PROBES_MAX);
    set_number(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
}

void tls_socket_wake_at(int fd, size_t bytes) {
    set_number(fd, SOL_SOCKET, SO_RCVLOWAT, (int)bytes);
}

bool tls_socket_is_silent(int fd, int64_t lease_ns) {
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
    return info.tcpi_unacked > 0 && info.tcpi_last_ack_recv * CLOCK_MS > lease_ns;
}

/* ip [16], port -> address; returns its length. */
static socklen_t fill_address(const uint8_t *ip, uint16_t port, union any_address *address) {
    memset(address, 0, sizeof *address);
    if (memcmp(ip, mapped, sizeof mapped) == 0) {
        address->v4.sin_family = AF_INET;
        address->v4.sin_port = htons(port);
        memcpy(&address->v4.sin_addr, ip + sizeof mapped, 4);
        return sizeof address->v4;
    }
    address->v6.sin6_family = AF_INET6;
    address->v6.sin6_port = htons(port);
    memcpy(&address->v6.sin6_addr, ip, 16);
    return sizeof address->v6;
}

/* A numeric address -> ip [16]. */
static bool parse(const char *text, uint8_t *ip) {
    static const uint8_t zeros[16];
    memcpy(ip, mapped, sizeof mapped);
    if (inet_pton(AF_INET, text, ip + sizeof mapped) == 1) {
        return memcmp(ip + sizeof mapped, zeros, 4) != 0;
    }
    return inet_pton(AF_INET6, text, ip) == 1 && memcmp(ip, zeros, sizeof zeros) != 0;
}

enum status tls_socket_listen(const char *text, int *fd, uint8_t *ip, uint16_t *port) {
    union any_address address;
    if (!parse(text, ip)) {
        log_error("tls: %s is no address of one machine that others could connect to", text);
        return STATUS_INVALID;
    }
    socklen_t length = fill_address(ip, 0, &address);
    int made = socket(address.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (made < 0 || bind(made, &address.any, length) != 0 || listen(made, BACKLOG) != 0 ||
        getsockname(made, &address.any, &length) != 0) {
        log_error("tls: cannot listen at %s: %s", text, strerror(errno));
        if (made >= 0) close(made);
        return STATUS_IO;
    }
    *port = ntohs(address.any.sa_family == AF_INET ? address.v4.sin_port : address.v6.sin6_port);
    *fd = made;
    return STATUS_OK;
}

enum status tls_socket_dial(const uint8_t *ip, uint16_t port, int64_t lease_ns, int *fd) {
    union any_address address;
    socklen_t length = fill_address(ip, port, &address);
    int made = socket(address.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (made < 0) return STATUS_IO;
    tls_socket_keep(made, lease_ns);
    if (connect(made, &address.any, length) != 0 && errno != EINPROGRESS) {
        int error = errno;
        close(made);
        errno = error;
        return STATUS_IO;
    }
    *fd = made;
    return STATUS_OK;
}

int tls_socket_error(int fd) {
    int error = 0;
    socklen_t length = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
    return error;
}

enum status tls_socket_accept(int listening, int *fd) {
    int made = accept4(listening, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (made < 0) {
        bool full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        return full ? STATUS_IO : STATUS_AGAIN;
    }
    *fd = made;
    return STATUS_OK;
}
