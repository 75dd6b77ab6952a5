/* tls_cipher.h - the records of channel_tls's connections: AES-256-GCM by OpenSSL.
 *
 * One object is one direction of one connection. Its key and its first nonce come from the TLS
 * exporter of the connection's own handshake, so that no two connections share a key; record n has
 * the first nonce XOR n (RFC 8446, section 5.3), so that a record is good in its place alone: a
 * changed, repeated, missing or moved one does not open, and the connection ends.
 * Records bear no lengths: both sides know from the frame's head what comes next.
 *   plain    the bytes as they are, no tag
 *   auth     the bytes in the clear, and a tag of 16 bytes over them (GMAC)
 *   encrypt  the ciphertext and a tag of 16 bytes
 */
#ifndef RUBATO_TRANSPORT_TLS_CIPHER_H
#define RUBATO_TRANSPORT_TLS_CIPHER_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TLS_CIPHER_TAG_BYTES    ((size_t)16)
#define TLS_CIPHER_NONCE_BYTES  ((size_t)12)
#define TLS_CIPHER_SECRET_BYTES ((size_t)44) /* key 32, first nonce 12 */

enum tls_wire { TLS_WIRE_PLAIN, TLS_WIRE_AUTH, TLS_WIRE_ENCRYPT };

struct tls_cipher {
    enum tls_wire wire;
    struct evp_cipher_ctx_st *context; /* OpenSSL's; NULL for plain */
    uint8_t nonce[TLS_CIPHER_NONCE_BYTES];
    uint64_t records; /* sealed or opened so far */
};

/* secret [TLS_CIPHER_SECRET_BYTES] is not looked at for plain. MEMORY, not logged. */
enum status tls_cipher_init(struct tls_cipher *cipher, enum tls_wire wire, const uint8_t *secret,
                            bool sealing) WARN_UNUSED;

/* Harmless on a zeroed struct, and leaves one. */
void tls_cipher_free(struct tls_cipher *cipher);

/* Bytes of the tag: 16, or 0 for plain. Pure. */
size_t tls_cipher_tag_bytes(enum tls_wire wire);

/* plain [bytes] -> sealed [bytes + tag], elsewhere. */
void tls_cipher_seal(struct tls_cipher *cipher, const uint8_t *plain, size_t bytes,
                     uint8_t *sealed);

/* sealed [bytes] is opened in place by its tag. CORRUPT: not this connection's next record. */
enum status tls_cipher_open(struct tls_cipher *cipher, uint8_t *sealed, size_t bytes,
                            const uint8_t *tag) WARN_UNUSED;

#endif
