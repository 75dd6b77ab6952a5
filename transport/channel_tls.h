/* channel_tls.h - the data channel over TCP, authenticated and encrypted with the job's key.
 *
 * For links that others can reach or read; it needs no device and no library but OpenSSL.
 * One listening socket, one epoll and one owner's thread a channel. connect() opens
 * TLS_CHANNEL_LANES connections to the peer (tls_lane.h), which carry frames one way; the peer
 * opens its own for the other way (tls_inlet.h). Each begins with a TLS 1.3 handshake
 * (tls_greet.h), then come records of AES-256-GCM (tls_cipher.h). A frame goes by the connection
 * that has least to do, so frames of one peer may overtake each other; on one connection they
 * cannot.
 * CHANNEL_SENT comes when the receiver has the frame whole in a slot. A connection that breaks is
 * dialled again, and what had not arrived is sent again, once; the peer is lost when that fails for
 * a lease, or at once when another process listens there.
 * Strangers: at most TLS_CHANNEL_PENDING connections have not shown the key yet, the oldest makes
 * room for the newest, each has 5 s, and those that fail are accepted at a bounded rate. They are
 * counted in one warning every few seconds.
 */
#ifndef RUBATO_TRANSPORT_CHANNEL_TLS_H
#define RUBATO_TRANSPORT_CHANNEL_TLS_H

#include "transport/channel.h"
#include "transport/tls_cipher.h"

#define TLS_CHANNEL_LANES   2
#define TLS_CHANNEL_PENDING 64

struct channel_tls_config {
    const char *ip;       /* numeric address of this machine at which the peers reach it */
    const uint8_t *key;   /* [CONTROL_KEY_BYTES], or NULL: wire must be plain */
    enum tls_wire wire;   /* how frames are protected; the same on all sides */
    int64_t lease_ns;     /* how long a peer may be unreachable */
    uint64_t key_records; /* records under one key; 0: as many as are sound */
};

/* "plain", "auth" or "encrypt" -> wire. INVALID. Pure. */
enum status channel_tls_wire(const char *text, enum tls_wire *wire) WARN_UNUSED;

/* INVALID or IO: cannot listen at this address; MEMORY. Logged. */
enum status channel_tls_open(struct channel **channel, const struct channel_config *config,
                             const struct channel_tls_config *own) WARN_UNUSED;

#endif
