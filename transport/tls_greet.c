#include "transport/tls_greet.h"

#include "base/assert.h"
#include "base/memory.h"
#include "transport/control_connection.h"
#include "transport/control_tcp.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum status tls_greet_context(const uint8_t *key, struct control_tls_context **context) {
    /* HKDF-Expand of 32 bytes (RFC 5869, section 2.3); the key file's are random already. */
    static const uint8_t info[] = "rubato data channel\x01";
    uint8_t derived[CONTROL_KEY_BYTES];
    unsigned int bytes = sizeof derived;
    ASSERT(HMAC(EVP_sha256(), key, (int)CONTROL_KEY_BYTES, info, sizeof info - 1, derived, &bytes));
    ASSERT_OP(bytes, ==, sizeof derived);
    enum status status = control_tls_init(context, derived);
    OPENSSL_cleanse(derived, sizeof derived);
    return status;
}

enum status tls_greet_begin(struct tls_greet *greet, const struct tls_self *self, int fd,
                            bool incoming) {
    greet->self = self;
    greet->tls = NULL;
    greet->fd = fd;
    greet->incoming = incoming;
    greet->heard_bytes = greet->said_bytes = 0;
    if (self->context) {
        greet->stage = TLS_GREET_HANDSHAKE;
        /* A connection that begins in mid-job takes memory of TLS; the owner's loop, which forbids
         * that, sets the mark anew in its next turn. */
        memory_forbid(false);
        return control_tls_open(&greet->tls, self->context, fd, incoming);
    }
    greet->stage = incoming ? TLS_GREET_HEAR : TLS_GREET_SAY;
    return STATUS_OK;
}

/* What a socket call that failed means. */
static enum status translate(int error, char *why, size_t why_bytes) {
    if (error == EAGAIN || error == EWOULDBLOCK || error == EINTR) return STATUS_AGAIN;
    (void)connection_error_text(error, why, why_bytes);
    return STATUS_PEER_LOST;
}

static enum status hear(struct tls_greet *greet, char *why, size_t why_bytes) {
    size_t wanted = greet->incoming ? TLS_HELLO_BYTES : TLS_WELCOME_BYTES;
    while (greet->heard_bytes < wanted) {
        uint8_t *at = greet->heard + greet->heard_bytes;
        size_t left = wanted - greet->heard_bytes, count = 0;
        if (greet->tls) {
            TRY(control_tls_read(greet->tls, at, left, &count, why, why_bytes));
        } else {
            ssize_t got = recv(greet->fd, at, left, 0);
            if (got < 0) return translate(errno, why, why_bytes);
            if (got == 0) {
                snprintf(why, why_bytes, "closed by the other side");
                return STATUS_PEER_LOST;
            }
            count = (size_t)got;
        }
        greet->heard_bytes += count;
    }
    return STATUS_OK;
}

static enum status say(struct tls_greet *greet, char *why, size_t why_bytes) {
    size_t wanted = greet->incoming ? TLS_WELCOME_BYTES : TLS_HELLO_BYTES;
    while (greet->said_bytes < wanted) {
        const uint8_t *at = greet->said + greet->said_bytes;
        size_t left = wanted - greet->said_bytes, count = 0;
        if (greet->tls) {
            TRY(control_tls_write(greet->tls, at, left, &count, why, why_bytes));
        } else {
            ssize_t put = send(greet->fd, at, left, MSG_NOSIGNAL);
            if (put < 0) return translate(errno, why, why_bytes);
            count = (size_t)put;
        }
        greet->said_bytes += count;
    }
    return STATUS_OK;
}

enum status tls_greet_step(struct tls_greet *greet, char *why, size_t why_bytes) {
    if (greet->stage == TLS_GREET_HANDSHAKE) {
        enum status status = control_tls_handshake(greet->tls, why, why_bytes);
        if (status == STATUS_UNSUPPORTED) {
            snprintf(why, why_bytes, "it does not speak TLS");
            return STATUS_CORRUPT;
        }
        TRY(status);
        greet->stage = greet->incoming ? TLS_GREET_HEAR : TLS_GREET_SAY;
    }
    if (greet->stage == TLS_GREET_HEAR && greet->incoming) {
        TRY(hear(greet, why, why_bytes));
        greet->stage = TLS_GREET_SAY;
        return STATUS_OK;
    }
    if (greet->stage == TLS_GREET_SAY) {
        TRY(say(greet, why, why_bytes));
        greet->stage = greet->incoming ? TLS_GREET_DONE : TLS_GREET_HEAR;
    }
    if (greet->stage == TLS_GREET_HEAR) {
        TRY(hear(greet, why, why_bytes));
        greet->stage = TLS_GREET_DONE;
    }
    return STATUS_OK;
}

bool tls_greet_wants_write(const struct tls_greet *greet) {
    if (greet->tls) return control_tls_wants_write(greet->tls);
    return greet->stage == TLS_GREET_SAY;
}

enum status tls_greet_ciphers(struct tls_greet *greet, struct tls_cipher *out,
                              struct tls_cipher *in) {
    uint8_t secrets[2 * TLS_CIPHER_SECRET_BYTES] = {0};
    enum tls_wire wire = greet->self->wire;
    ASSERT(wire == TLS_WIRE_PLAIN || greet->tls);
    if (wire != TLS_WIRE_PLAIN) {
        TRY(control_tls_export(greet->tls, "EXPORTER-rubato-data", secrets, sizeof secrets));
    }
    const uint8_t *dialler = secrets, *listener = secrets + TLS_CIPHER_SECRET_BYTES;
    enum status status = tls_cipher_init(out, wire, greet->incoming ? listener : dialler, true);
    if (status == STATUS_OK) {
        status = tls_cipher_init(in, wire, greet->incoming ? dialler : listener, false);
        if (status != STATUS_OK) tls_cipher_free(out);
    }
    OPENSSL_cleanse(secrets, sizeof secrets);
    return status;
}

void tls_greet_end(struct tls_greet *greet) {
    control_tls_close(greet->tls);
    greet->tls = NULL;
}
