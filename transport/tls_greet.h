/* tls_greet.h - how a connection of channel_tls begins, on either side, without waiting.
 *
 * With a key: a TLS 1.3 handshake (control_tls.h), in which both sides show that they have it; then
 * the hello and the welcome (tls_hello.h) as its application data; then the keys of the records
 * from its exporter, and TLS's part is over: what follows on the socket are records of
 * tls_cipher.h. The handshake is left to TLS because replays, key confirmation and forward secrecy
 * are solved there; its records are not used for the frames because they cannot be in the clear
 * with a tag (--wire auth), and are copied twice and cut into 16 KiB, where ours are opened where
 * the payload is to lie.
 * The data channel's pre-shared key is derived from the job's, so that a connection to the one can
 * never pass for one to the other. Without a key there are the hello and the welcome alone.
 */
#ifndef RUBATO_TRANSPORT_TLS_GREET_H
#define RUBATO_TRANSPORT_TLS_GREET_H

#include "transport/control_tls.h"
#include "transport/tls_hello.h"

/* What is the same in all connections of a channel. */
struct tls_self {
    struct control_tls_context *context; /* NULL: the job has no key */
    enum tls_wire wire;
    uint8_t id[TLS_ID_BYTES];
    int64_t lease_ns;
};

enum tls_greet_stage { TLS_GREET_HANDSHAKE, TLS_GREET_HEAR, TLS_GREET_SAY, TLS_GREET_DONE };

struct tls_greet {
    const struct tls_self *self;
    struct control_tls *tls; /* NULL without a key */
    int fd;
    bool incoming;
    enum tls_greet_stage stage;
    uint8_t heard[TLS_HELLO_BYTES]; /* hello or welcome */
    uint8_t said[TLS_HELLO_BYTES];
    size_t heard_bytes, said_bytes; /* so far */
};

/* The settings of a channel whose job has this key [CONTROL_KEY_BYTES]. MEMORY, logged. */
enum status tls_greet_context(const uint8_t *key, struct control_tls_context **context) WARN_UNUSED;

/* The socket stays the caller's. A dialling side fills `said` first (a hello). MEMORY. */
enum status tls_greet_begin(struct tls_greet *greet, const struct tls_self *self, int fd,
                            bool incoming) WARN_UNUSED;

/* Goes on. OK: the listening side has heard the hello and must fill `said` (a welcome) before it
 * calls again, or the stage is DONE. AGAIN: when the socket is ready (see wants_write). Otherwise
 * it is over, why [why_bytes] says why: DENIED (another key), CORRUPT (not our protocol),
 * PEER_LOST. */
enum status tls_greet_step(struct tls_greet *greet, char *why, size_t why_bytes) WARN_UNUSED;
bool tls_greet_wants_write(const struct tls_greet *greet);

/* In stage DONE: the ciphers of both directions. MEMORY. */
enum status tls_greet_ciphers(struct tls_greet *greet, struct tls_cipher *out,
                              struct tls_cipher *in) WARN_UNUSED;

/* Frees what TLS took; harmless twice, and on a zeroed struct. */
void tls_greet_end(struct tls_greet *greet);

#endif
