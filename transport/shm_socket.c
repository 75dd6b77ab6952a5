#define _GNU_SOURCE /* accept4, struct ucred; NOLINT(*-identifier*) */

#include "transport/shm_socket.h"

#include "base/log.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Connections of so many peers may wait; the system's own limit may be lower. */
#define BACKLOG 4096

/* The name in the abstract space: a zero byte, this, and 32 hexadecimal digits. */
#define PREFIX       "rubato-"
#define PREFIX_BYTES (sizeof PREFIX - 1)

static socklen_t make_address(const uint8_t name[SHM_NAME_BYTES], struct sockaddr_un *address) {
    static const char digits[] = "0123456789abcdef";
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    char *text = address->sun_path + 1;
    memcpy(text, PREFIX, PREFIX_BYTES);
    for (size_t i = 0; i < SHM_NAME_BYTES; i++) {
        text[PREFIX_BYTES + 2 * i] = digits[name[i] >> 4];
        text[PREFIX_BYTES + 2 * i + 1] = digits[name[i] & 15];
    }
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + PREFIX_BYTES +
                       2 * SHM_NAME_BYTES);
}

enum status shm_socket_listen(int *fd, uint8_t name[SHM_NAME_BYTES]) {
    struct sockaddr_un address;
    int made = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool sound = made >= 0 && getrandom(name, SHM_NAME_BYTES, 0) == (ssize_t)SHM_NAME_BYTES;
    if (sound) {
        socklen_t bytes = make_address(name, &address);
        sound =
            bind(made, (const struct sockaddr *)&address, bytes) == 0 && listen(made, BACKLOG) == 0;
    }
    if (!sound) {
        log_error("cannot listen at a Unix socket: %s; --channel ucx needs none", strerror(errno));
        if (made >= 0) close(made);
        return STATUS_IO;
    }
    *fd = made;
    return STATUS_OK;
}

/* Is the other end a process of our user's? */
static bool is_ours(int fd) {
    struct ucred peer = {0};
    socklen_t bytes = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && bytes == sizeof peer &&
           peer.uid == geteuid();
}

enum status shm_socket_dial(const uint8_t name[SHM_NAME_BYTES], int *fd) {
    struct sockaddr_un address;
    socklen_t bytes = make_address(name, &address);
    int made = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    enum status status = STATUS_PEER_LOST;
    if (made >= 0 && connect(made, (const struct sockaddr *)&address, bytes) == 0) {
        status = is_ours(made) ? STATUS_OK : STATUS_DENIED;
    }
    if (status != STATUS_OK) {
        if (made >= 0) close(made);
        return status;
    }
    *fd = made;
    return STATUS_OK;
}

enum status shm_socket_accept(int listening, int *fd) {
    int made = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (made < 0) return STATUS_AGAIN;
    if (!is_ours(made)) {
        close(made);
        return STATUS_DENIED;
    }
    *fd = made;
    return STATUS_OK;
}

enum status shm_socket_send(int fd, const struct shm_message *message, int fd_along) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof fd_along)];
    } control = {0};
    struct iovec part = {.iov_base = (void *)message, .iov_len = sizeof *message};
    struct msghdr packet = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd_along >= 0) {
        packet.msg_control = control.bytes;
        packet.msg_controllen = sizeof control.bytes;
        struct cmsghdr *rights = CMSG_FIRSTHDR(&packet);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof fd_along);
        memcpy(CMSG_DATA(rights), &fd_along, sizeof fd_along);
    }
    ssize_t sent = sendmsg(fd, &packet, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent == (ssize_t)sizeof *message) return STATUS_OK;
    return sent < 0 && errno == EAGAIN ? STATUS_AGAIN : STATUS_PEER_LOST;
}

enum status shm_socket_receive(int fd, struct shm_message *message, int *fd_along) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof *fd_along)];
    } control;
    struct iovec part = {.iov_base = message, .iov_len = sizeof *message};
    struct msghdr packet = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = CMSG_LEN(sizeof *fd_along)}; // not room for two
    *fd_along = -1;
    ssize_t bytes = recvmsg(fd, &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (bytes < 0) return errno == EAGAIN || errno == EINTR ? STATUS_AGAIN : STATUS_PEER_LOST;
    if (bytes == 0) return STATUS_PEER_LOST;
    const struct cmsghdr *rights = CMSG_FIRSTHDR(&packet);
    if (rights && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS &&
        rights->cmsg_len == CMSG_LEN(sizeof *fd_along)) {
        memcpy(fd_along, CMSG_DATA(rights), sizeof *fd_along);
    }
    bool sound = bytes == (ssize_t)sizeof *message && message->magic == SHM_MAGIC &&
                 (packet.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
    if (!sound && *fd_along >= 0) {
        close(*fd_along);
        *fd_along = -1;
    }
    return sound ? STATUS_OK : STATUS_CORRUPT;
}
