/* control_tls.h - TLS 1.3 with an external pre-shared key on a non-blocking socket, by OpenSSL.
 *
 * For control_connection.c, and for the handshake of tls_greet.c. Both sides know the 32 bytes of
 * the key under the identity "rubato"; there are no certificates, no tickets, no resumption and no
 * early data, so a recorded stream is worth nothing (RFC 8446, sections 2.2 and 4.2.11). A
 * handshake that ended without the key is refused even if TLS itself is content with it. What is
 * read is taken from the socket record by record, never beyond (OpenSSL's read_ahead is off).
 * The socket is read and written by a BIO of our own: it raises no SIGPIPE, stops at the first byte
 * of a peer that does not speak TLS without taking it, and gives a peer that has not shown the key
 * 16 KiB at most. OpenSSL, which costs more than all else, hears of a connection that came in only
 * when its hello is there as a whole and is none of the last 4096 of who had the key.
 * `why` [why_bytes] gets the reason in words whenever the status is neither OK nor AGAIN.
 */
#ifndef RUBATO_TRANSPORT_CONTROL_TLS_H
#define RUBATO_TRANSPORT_CONTROL_TLS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct control_tls_context; /* the key and the settings, one a control object */
struct control_tls;         /* one connection */

/* key [CONTROL_KEY_BYTES] is copied. MEMORY, logged. */
enum status control_tls_init(struct control_tls_context **context, const uint8_t *key) WARN_UNUSED;
void control_tls_free(struct control_tls_context *context);

/* The socket stays the caller's; the context must outlive it. MEMORY. */
enum status control_tls_open(struct control_tls **tls, struct control_tls_context *context, int fd,
                             bool incoming) WARN_UNUSED;
void control_tls_close(struct control_tls *tls);

/* OK: done, the peer has the key. AGAIN: call again when the socket is ready. UNSUPPORTED: the peer
 * does not speak TLS, nothing of what it sent was taken. DENIED: another key. CORRUPT: other TLS.
 * PEER_LOST, MEMORY. */
enum status control_tls_handshake(struct control_tls *tls, char *why, size_t why_bytes) WARN_UNUSED;

/* Up to `capacity` bytes -> bytes, *count >= 1 with OK. AGAIN, PEER_LOST, CORRUPT. */
enum status control_tls_read(struct control_tls *tls, uint8_t *bytes, size_t capacity,
                             size_t *count, char *why, size_t why_bytes) WARN_UNUSED;

/* The first *count of bytes [capacity], *count >= 1 with OK. After AGAIN the next call must begin
 * with the same bytes. PEER_LOST, CORRUPT. */
enum status control_tls_write(struct control_tls *tls, const uint8_t *bytes, size_t capacity,
                              size_t *count, char *why, size_t why_bytes) WARN_UNUSED;

/* Keying material of this connection (RFC 8446, section 7.5) -> bytes [count], the same on both
 * sides, once the handshake is done. MEMORY. */
enum status control_tls_export(struct control_tls *tls, const char *label, uint8_t *bytes,
                               size_t count) WARN_UNUSED;

/* Tells the peer that nothing more will come. */
void control_tls_finish(struct control_tls *tls);

/* True when the last AGAIN waits for the socket to become writable. */
bool control_tls_wants_write(const struct control_tls *tls);

#endif
