/* control_tcp.h - the control channel over TCP, with TLS 1.3 and an external pre-shared key.
 *
 * With a key every connection is TLS 1.3 (psk_dhe_ke, TLS_AES_256_GCM_SHA384; RFC 8446), the key
 * file's 32 bytes being the PSK: who does not have it does not get past the handshake, and a
 * replayed hello fails. Without a key it is plain TCP, allowed on loopback only unless the user
 * said --insecure.
 * In both cases the first 8 bytes of each direction are a preamble, then packets: u32 length
 * little-endian (1..MESSAGE_MAX), bytes. The dialling side shows its preamble first. Before a
 * connection has shown the preamble (and the key) it costs at most 16 KiB and 5 s, and 64 such
 * connections are kept, of which the oldest makes room for the next once it is 100 ms old; whatever
 * else it sends closes it and changes nothing. How many come in is bounded by door.h.
 * If one side has a key and the other has not, the listening one answers with 8 bytes in the clear
 * that say so, and the dialling one reports DENIED. They are not authenticated: who can write into
 * the connection could always have ended it.
 * How it works: one epoll for the listener and all connections (control_connection.h is the state
 * machine of one), and a queue of connections that have an event to report.
 * No SIGPIPE is raised. A host name is looked up with getaddrinfo, which may block for a while.
 */
#ifndef RUBATO_TRANSPORT_CONTROL_TCP_H
#define RUBATO_TRANSPORT_CONTROL_TCP_H

#include "transport/control.h"

#include <stdbool.h>

#define CONTROL_KEY_BYTES ((size_t)32)

#define CONTROL_TCP_PENDING_MAX     64   /* came in, not authenticated yet */
#define CONTROL_TCP_CONNECTIONS_MAX 2624 /* 1024 servers, 1024 workers, those who may join */

/* key: [CONTROL_KEY_BYTES] or NULL for plain TCP; copied. MEMORY or IO (descriptors), logged. */
enum status control_tcp_open(struct control **control, const uint8_t *key) WARN_UNUSED;

/* The port that listen() was given or, for port "0", got; 0 when it does not listen. */
uint16_t control_tcp_port(const struct control *control);

/* Takes over a connected stream socket as if it had been accepted; it is closed if there is no
 * room. For tests, and for who gets its sockets from elsewhere. */
void control_tcp_adopt(struct control *control, int fd);

/* True for 127.0.0.0/8, ::1 and localhost. */
bool control_tcp_is_loopback(const char *host);

/* Reads a key file: 64 hexadecimal digits and a newline. DENIED, logged: cannot be read, malformed,
 * or readable by others than its owner (mode must be 0600 or 0400). */
enum status control_tcp_read_key(const char *path, uint8_t key[CONTROL_KEY_BYTES]) WARN_UNUSED;

/* Writes a new random key with mode 0600; never over an existing file. IO, logged. */
enum status control_tcp_write_key(const char *path) WARN_UNUSED;

#endif
