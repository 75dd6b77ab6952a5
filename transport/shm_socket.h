/* shm_socket.h - the Unix sockets of channel_shm: who may connect, and the messages on them.
 *
 * A listening socket has a random name of SHM_NAME_BYTES in the abstract space, which belongs to
 * the network namespace, so that processes of two containers do not find each other. Both ends see
 * the other's user by SO_PEERCRED and refuse another one than their own.
 * A message is one packet of a fixed size with at most one descriptor. Nothing waits: whoever does
 * not read his packets has lost the connection.
 */
#ifndef RUBATO_TRANSPORT_SHM_SOCKET_H
#define RUBATO_TRANSPORT_SHM_SOCKET_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

#define SHM_NAME_BYTES ((size_t)16)

enum shm_message_kind {
    SHM_HELLO = 1, /* sender -> receiver, first: fd of the outbox, value: its items, name */
    SHM_WELCOME,   /* receiver -> sender, the answer: fd of the returns */
    SHM_REGION,    /* sender -> receiver: fd of memory with payloads, value: its number */
    SHM_BELL       /* both ways: there is something in your box */
};

struct shm_message {
    uint32_t magic; /* SHM_MAGIC */
    uint32_t kind;
    uint64_t bytes; /* of the memory whose descriptor comes along */
    uint32_t value;
    uint32_t reserved;
    uint8_t name[SHM_NAME_BYTES]; /* HELLO: of the sender's own listening socket */
};
#ifndef __cplusplus
_Static_assert(sizeof(struct shm_message) == 40, "part of the protocol");
#endif
#define SHM_MAGIC UINT32_C(0x314d4853) /* "SHM1": its digit is the version of all layouts */

/* A listening socket under a new name. IO, logged. */
enum status shm_socket_listen(int *fd, uint8_t name[SHM_NAME_BYTES]) WARN_UNUSED;

/* Connects to it. PEER_LOST: nobody listens there; DENIED: another user does. Not logged. */
enum status shm_socket_dial(const uint8_t name[SHM_NAME_BYTES], int *fd) WARN_UNUSED;

/* The next connection. AGAIN: there is none; DENIED: it was another user's and is closed. */
enum status shm_socket_accept(int listening, int *fd) WARN_UNUSED;

/* `fd_along` -1: no descriptor. AGAIN: the other side has not read for long; PEER_LOST. */
enum status shm_socket_send(int fd, const struct shm_message *message, int fd_along) WARN_UNUSED;

/* The next message; *fd_along -1 or the caller's to close. AGAIN: there is none; PEER_LOST: the
 * other side has closed; CORRUPT: not one of ours. */
enum status shm_socket_receive(int fd, struct shm_message *message, int *fd_along) WARN_UNUSED;

#endif
