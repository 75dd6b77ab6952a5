/* tls_socket.h - the TCP sockets of channel_tls. Nothing waits. */
#ifndef RUBATO_TRANSPORT_TLS_SOCKET_H
#define RUBATO_TRANSPORT_TLS_SOCKET_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A listening socket at the numeric address `text`, on any free port -> *fd, and the address that
 * leads there -> ip [16] (IPv4 as ::ffff:a.b.c.d), *port. INVALID: no numeric address, or one that
 * stands for all; IO: not this machine's, or no sockets left. Logged. */
enum status tls_socket_listen(const char *text, int *fd, uint8_t *ip, uint16_t *port) WARN_UNUSED;

/* Starts to connect -> *fd, set up as by keep(). IO: errno says why, not logged. */
enum status tls_socket_dial(const uint8_t *ip, uint16_t port, int64_t lease_ns,
                            int *fd) WARN_UNUSED;

/* How a connection that was started went: 0 or an errno. */
int tls_socket_error(int fd);

/* The next connection that came in -> *fd. AGAIN: there is none; IO: out of descriptors or memory,
 * errno says which. */
enum status tls_socket_accept(int listening, int *fd) WARN_UNUSED;

/* For a connection that is to last: while nothing is sent, probes notice within a lease that the
 * other side has vanished without a word. */
void tls_socket_keep(int fd, int64_t lease_ns);

/* From now on it is readable when `bytes` (1 .. 2^30) are there at once, or nothing more will come.
 * More than its buffer holds is taken for what that holds. */
void tls_socket_wake_at(int fd, size_t bytes);

/* Has the other side's kernel left what we sent unanswered for a lease? (TCP_USER_TIMEOUT would
 * count a receiver that is slow to read as well.) */
bool tls_socket_is_silent(int fd, int64_t lease_ns);

#endif
