/* control_tcp.h - the control channel over TCP, with TLS 1.3 and an external pre-shared key.
 *
 * With a key every connection is TLS 1.3 (psk_dhe_ke, TLS_AES_256_GCM_SHA384; RFC 8446), the key file's 32
 * bytes being the PSK: who does not have it does not get past the handshake, and a replayed hello fails. Without a
 * key it is plain TCP, allowed on loopback only unless the user said --insecure.
 * In both cases the first 8 bytes of the stream are a preamble, then packets: u32 length
 * little-endian (1..MESSAGE_MAX), bytes. Before a connection has shown the preamble (and the key) it costs at most
 * 16 KiB and 5 s, and 64 such connections are kept; whatever else it sends closes it and changes nothing.
 */
#ifndef RUBATO_TRANSPORT_CONTROL_TCP_H
#define RUBATO_TRANSPORT_CONTROL_TCP_H

#include "transport/control.h"

#include <stdbool.h>

#define CONTROL_KEY_BYTES ((size_t)32)

/* key: [CONTROL_KEY_BYTES] or NULL for plain TCP; copied. MEMORY, logged. */
enum status control_tcp_open(struct control **control, const uint8_t *key) WARN_UNUSED;

/* True for 127.0.0.0/8, ::1 and localhost. */
bool control_tcp_is_loopback(const char *host);

/* Reads a key file: 64 hexadecimal digits and a newline. DENIED, logged: cannot be read, malformed, or readable by
 * others than its owner (mode must be 0600 or 0400). */
enum status control_tcp_read_key(const char *path, uint8_t key[CONTROL_KEY_BYTES]) WARN_UNUSED;

/* Writes a new random key with mode 0600; never over an existing file. IO, logged. */
enum status control_tcp_write_key(const char *path) WARN_UNUSED;

#endif
