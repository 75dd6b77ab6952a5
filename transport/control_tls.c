#include "transport/control_tls.h"

#include "base/log.h"
#include "transport/control_tcp.h"

#include <ctype.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define IDENTITY            "rubato"
#define UNAUTHENTICATED_MAX ((size_t)16 << 10)
#define HELLO_MAX           ((size_t)4 << 10) /* a hello of ours has less than half of it */
#define RECORD_HEADER       ((size_t)5)
#define HELLO_RANDOM        ((size_t)11) /* where the hello's random number begins in its record */
#define SEEN_MAX            4096
#define RECORD_ALERT        0x15
#define RECORD_HANDSHAKE    0x16
#define ANOTHER_KEY         "key does not match the other side's (compare the --key-file of both)"

struct control_tls_context {
    SSL_CTX *ssl_context;
    BIO_METHOD *socket_method;
    uint8_t key[CONTROL_KEY_BYTES];
    /* Of the last hellos by who has the key, the first 8 of the 32 random bytes: a hello that comes
     * a second time is a replay, and not worth a key exchange. */
    uint64_t seen[SEEN_MAX];
    uint32_t seen_count;
};

struct control_tls {
    struct control_tls_context *context;
    SSL *ssl; /* NULL: nothing has come in yet that would be worth it */
    int fd;
    bool incoming;
    bool noted;       /* its hello is in the context's list */
    size_t allowance; /* bytes that may still be read before the key was shown */
    bool sniffed;     /* the first byte was TLS */
    bool foreign;     /* it was not */
    bool authenticated;
    bool exceeded; /* the allowance was used up */
    bool end_of_stream;
    bool wants_write;
    int error; /* errno of the last socket call that failed */
};

/* True when the first byte that the peer sent, if it is there yet, begins a TLS record. */
static bool starts_as_tls(struct control_tls *tls) {
    uint8_t first;
    if (tls->sniffed) return true;
    if (recv(tls->fd, &first, 1, MSG_PEEK) != 1) return true;
    tls->sniffed = first == RECORD_HANDSHAKE || first == RECORD_ALERT;
    tls->foreign = !tls->sniffed;
    return tls->sniffed;
}

static int socket_read(BIO *bio, char *data, int bytes) {
    struct control_tls *tls = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (!starts_as_tls(tls)) {
        BIO_set_retry_read(bio);
        return -1;
    }
    size_t wanted = bytes > 0 ? (size_t)bytes : 0;
    if (!tls->authenticated && wanted > tls->allowance) wanted = tls->allowance;
    if (wanted == 0) {
        tls->exceeded = true;
        return -1;
    }
    ssize_t got;
    do {
        got = recv(tls->fd, data, wanted, 0);
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
        tls->error = errno;
        if (errno == EAGAIN || errno == EWOULDBLOCK) BIO_set_retry_read(bio);
        return -1;
    }
    if (got == 0) tls->end_of_stream = true;
    if (!tls->authenticated) tls->allowance -= (size_t)got;
    return (int)got;
}

static int socket_write(BIO *bio, const char *data, int bytes) {
    struct control_tls *tls = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    ssize_t put;
    do {
        put = send(tls->fd, data, (size_t)bytes, MSG_NOSIGNAL);
    } while (put < 0 && errno == EINTR);
    if (put < 0) {
        tls->error = errno;
        if (errno == EAGAIN || errno == EWOULDBLOCK) BIO_set_retry_write(bio);
        return -1;
    }
    return (int)put;
}

static long socket_control(BIO *bio, int command, long number, void *pointer) {
    (void)bio;
    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
}

/* The pre-shared key in the shape in which OpenSSL wants it, a session. NULL without memory. */
static SSL_SESSION *key_session(SSL *ssl) {
    static const unsigned char suite[2] = {0x13, 0x02}; /* TLS_AES_256_GCM_SHA384 */
    const struct control_tls_context *context = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, suite);
    SSL_SESSION *session = SSL_SESSION_new();
    if (session == NULL) return NULL;
    if (cipher == NULL ||
        SSL_SESSION_set1_master_key(session, context->key, CONTROL_KEY_BYTES) != 1 ||
        SSL_SESSION_set_cipher(session, cipher) != 1 ||
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1) {
        SSL_SESSION_free(session);
        return NULL;
    }
    return session;
}

/* Dialling side: which key to offer. */
static int offer_key(SSL *ssl, const EVP_MD *digest, const unsigned char **identity,
                     size_t *identity_bytes, SSL_SESSION **session) {
    *session = NULL;
    *identity = NULL;
    *identity_bytes = 0;
    if (digest != NULL && !EVP_MD_is_a(digest, "SHA384")) return 1;
    *session = key_session(ssl);
    if (*session == NULL) return 0;
    *identity = (const unsigned char *)IDENTITY;
    *identity_bytes = strlen(IDENTITY);
    return 1;
}

/* Listening side: the key that belongs to an identity; an unknown one fails the handshake. */
static int find_key(SSL *ssl, const unsigned char *identity, size_t identity_bytes,
                    SSL_SESSION **session) {
    *session = NULL;
    if (identity_bytes != strlen(IDENTITY) || memcmp(identity, IDENTITY, identity_bytes) != 0) {
        return 1;
    }
    *session = key_session(ssl);
    return *session != NULL;
}

static bool set_up(struct control_tls_context *context) {
    SSL_CTX *ssl_context = SSL_CTX_new(TLS_method());
    BIO_METHOD *method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "control");
    context->ssl_context = ssl_context;
    context->socket_method = method;
    if (ssl_context == NULL || method == NULL) return false;
    BIO_meth_set_read(method, socket_read);
    BIO_meth_set_write(method, socket_write);
    BIO_meth_set_ctrl(method, socket_control);
    SSL_CTX_set_app_data(ssl_context, context);
    SSL_CTX_set_session_cache_mode(ssl_context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(ssl_context, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
    SSL_CTX_clear_options(ssl_context, SSL_OP_ALLOW_NO_DHE_KEX);
    SSL_CTX_set_mode(ssl_context, SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                      SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_psk_use_session_callback(ssl_context, offer_key);
    SSL_CTX_set_psk_find_session_callback(ssl_context, find_key);
    return SSL_CTX_set_min_proto_version(ssl_context, TLS1_3_VERSION) == 1 &&
           SSL_CTX_set_max_proto_version(ssl_context, TLS1_3_VERSION) == 1 &&
           SSL_CTX_set_ciphersuites(ssl_context, "TLS_AES_256_GCM_SHA384") == 1 &&
           SSL_CTX_set_max_early_data(ssl_context, 0) == 1 &&
           SSL_CTX_set_num_tickets(ssl_context, 0) == 1;
}

enum status control_tls_init(struct control_tls_context **context, const uint8_t *key) {
    struct control_tls_context *made = calloc(1, sizeof(*made));
    if (made == NULL) {
        log_error("no memory for the TLS settings");
        return STATUS_MEMORY;
    }
    memcpy(made->key, key, CONTROL_KEY_BYTES);
    if (!set_up(made)) {
        const char *reason = ERR_reason_error_string(ERR_peek_error());
        log_error("cannot set up TLS 1.3: %s", reason != NULL ? reason : "out of memory");
        control_tls_free(made);
        return STATUS_MEMORY;
    }
    *context = made;
    return STATUS_OK;
}

void control_tls_free(struct control_tls_context *context) {
    if (context == NULL) return;
    SSL_CTX_free(context->ssl_context);
    BIO_meth_free(context->socket_method);
    OPENSSL_cleanse(context->key, sizeof(context->key));
    free(context);
}

/* OpenSSL's part of a connection. */
static enum status start(struct control_tls *tls, bool incoming) {
    BIO *bio = BIO_new(tls->context->socket_method);
    SSL *ssl = SSL_new(tls->context->ssl_context);
    if (bio == NULL || ssl == NULL) {
        SSL_free(ssl);
        BIO_free(bio);
        return STATUS_MEMORY;
    }
    BIO_set_data(bio, tls);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl, bio, bio);
    if (incoming) {
        SSL_set_accept_state(ssl);
    } else {
        SSL_set_connect_state(ssl);
        SSL_set_verify(ssl, SSL_VERIFY_PEER, NULL); // no trust store: any certificate is refused
    }
    tls->ssl = ssl;
    return STATUS_OK;
}

enum status control_tls_open(struct control_tls **tls, struct control_tls_context *context, int fd,
                             bool incoming) {
    struct control_tls *made = calloc(1, sizeof(*made));
    if (made == NULL) return STATUS_MEMORY;
    made->context = context;
    made->fd = fd;
    made->incoming = incoming;
    made->allowance = UNAUTHENTICATED_MAX;
    if (!incoming && start(made, false) != STATUS_OK) {
        free(made);
        return STATUS_MEMORY;
    }
    *tls = made;
    return STATUS_OK;
}

void control_tls_close(struct control_tls *tls) {
    if (tls == NULL) return;
    SSL_free(tls->ssl);
    free(tls);
}

/* What the protocol error `code` means. */
static enum status translate_error(unsigned long code, char *why, size_t why_bytes) {
    int reason = ERR_GET_REASON(code);
    // The binder check of a listening side, and how it reaches the dialling one.
    if (reason == SSL_R_BINDER_DOES_NOT_VERIFY || reason == SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER ||
        reason == SSL_R_TLSV1_ALERT_DECRYPT_ERROR) {
        snprintf(why, why_bytes, "%s", ANOTHER_KEY);
        return STATUS_DENIED;
    }
    const char *text = ERR_reason_error_string(code);
    snprintf(why, why_bytes, "TLS: %s", text != NULL ? text : "unknown error");
    return STATUS_CORRUPT;
}

static enum status translate_errno(int error, char *why, size_t why_bytes) {
    snprintf(why, why_bytes, "%s", strerror(error));
    why[0] = (char)tolower((unsigned char)why[0]); // as our logs have it
    return STATUS_PEER_LOST;
}

/* What an SSL call that returned `result` means. */
static enum status translate(struct control_tls *tls, int result, char *why, size_t why_bytes) {
    int kind = SSL_get_error(tls->ssl, result);
    unsigned long code = ERR_peek_error();
    tls->wants_write = kind == SSL_ERROR_WANT_WRITE;
    if (tls->exceeded) {
        snprintf(why, why_bytes, "more than 16 KiB without showing the key");
        return STATUS_CORRUPT;
    }
    if (kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE) return STATUS_AGAIN;
    if (kind == SSL_ERROR_ZERO_RETURN || tls->end_of_stream) {
        snprintf(why, why_bytes, "closed by the other side");
        return STATUS_PEER_LOST;
    }
    if (kind == SSL_ERROR_SYSCALL || code == 0) {
        return translate_errno(tls->error, why, why_bytes);
    }
    return translate_error(code, why, why_bytes);
}

/* Has the peer said that nothing more will come? */
static bool is_at_end(int fd) {
    struct tcp_info info = {0};
    socklen_t length = sizeof(info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
    return info.tcpi_state != TCP_ESTABLISHED;
}

static bool was_seen(const struct control_tls_context *context, const uint8_t *random) {
    uint64_t start;
    uint32_t count = context->seen_count < SEEN_MAX ? context->seen_count : SEEN_MAX;
    memcpy(&start, random, sizeof(start));
    for (uint32_t i = 0; i < count; i++) {
        if (context->seen[i] == start) return true;
    }
    return false;
}

/* Only who has the key gets its hello into the list: find_key()'s session is in use. */
static void note_hello(struct control_tls *tls) {
    unsigned char random[sizeof(uint64_t)];
    if (!tls->incoming || tls->noted || SSL_session_reused(tls->ssl) != 1) return;
    if (SSL_get_client_random(tls->ssl, random, sizeof(random)) != sizeof(random)) return;
    struct control_tls_context *context = tls->context;
    memcpy(&context->seen[context->seen_count % SEEN_MAX], random, sizeof(random));
    context->seen_count++;
    if (context->seen_count == 2 * SEEN_MAX) context->seen_count = SEEN_MAX;
    tls->noted = true;
}

/* The peer's first record, hello [got so far], is it whole? If not, the socket counts as readable
 * when it is. */
static enum status await_record(struct control_tls *tls, const uint8_t *hello, size_t got,
                                char *why, size_t why_bytes) {
    size_t wanted = RECORD_HEADER;
    if (got >= wanted) wanted += (size_t)hello[3] << 8 | hello[4];
    if (wanted > HELLO_MAX) {
        snprintf(why, why_bytes, "TLS: its hello is too long");
        return STATUS_CORRUPT;
    }
    int low_mark = got < wanted ? (int)wanted : 1;
    (void)setsockopt(tls->fd, SOL_SOCKET, SO_RCVLOWAT, &low_mark, sizeof(low_mark));
    if (got >= wanted) return STATUS_OK;
    if (!is_at_end(tls->fd)) return STATUS_AGAIN;
    snprintf(why, why_bytes, "closed by the other side");
    return STATUS_PEER_LOST;
}

/* A connection that came in: OpenSSL takes part once a whole hello is there that has not been there
 * before, since its part costs more than all else, and most strangers send something else. */
static enum status await_hello(struct control_tls *tls, char *why, size_t why_bytes) {
    uint8_t hello[HELLO_MAX];
    ssize_t got = recv(tls->fd, hello, sizeof(hello), MSG_PEEK);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return STATUS_AGAIN;
    if (got < 0) return translate_errno(errno, why, why_bytes);
    if (got == 0) {
        snprintf(why, why_bytes, "closed by the other side");
        return STATUS_PEER_LOST;
    }
    if (!starts_as_tls(tls)) return STATUS_UNSUPPORTED;
    TRY(await_record(tls, hello, (size_t)got, why, why_bytes));
    if ((size_t)got >= HELLO_RANDOM + sizeof(uint64_t) &&
        was_seen(tls->context, hello + HELLO_RANDOM)) {
        snprintf(why, why_bytes, "TLS: a hello that was here before");
        return STATUS_CORRUPT;
    }
    if (start(tls, true) == STATUS_OK) return STATUS_OK;
    snprintf(why, why_bytes, "no memory for TLS");
    return STATUS_MEMORY;
}

enum status control_tls_handshake(struct control_tls *tls, char *why, size_t why_bytes) {
    tls->wants_write = false;
    if (tls->ssl == NULL) TRY(await_hello(tls, why, why_bytes));
    ERR_clear_error();
    int result = SSL_do_handshake(tls->ssl);
    note_hello(tls);
    if (tls->foreign) return STATUS_UNSUPPORTED;
    if (result != 1) {
        enum status status = translate(tls, result, why, why_bytes);
        ERR_clear_error();
        return status;
    }
    if (SSL_session_reused(tls->ssl) != 1) {
        snprintf(why, why_bytes, "TLS without the key");
        return STATUS_CORRUPT;
    }
    tls->authenticated = true;
    return STATUS_OK;
}

enum status control_tls_read(struct control_tls *tls, uint8_t *bytes, size_t capacity,
                             size_t *count, char *why, size_t why_bytes) {
    ERR_clear_error();
    tls->wants_write = false;
    int result = SSL_read_ex(tls->ssl, bytes, capacity, count);
    if (result == 1) return STATUS_OK;
    enum status status = translate(tls, result, why, why_bytes);
    ERR_clear_error();
    return status;
}

enum status control_tls_write(struct control_tls *tls, const uint8_t *bytes, size_t capacity,
                              size_t *count, char *why, size_t why_bytes) {
    ERR_clear_error();
    tls->wants_write = false;
    int result = SSL_write_ex(tls->ssl, bytes, capacity, count);
    if (result == 1) return STATUS_OK;
    enum status status = translate(tls, result, why, why_bytes);
    ERR_clear_error();
    return status;
}

enum status control_tls_export(struct control_tls *tls, const char *label, uint8_t *bytes,
                               size_t count) {
    if (SSL_export_keying_material(tls->ssl, bytes, count, label, strlen(label), NULL, 0, 0) == 1) {
        return STATUS_OK;
    }
    ERR_clear_error();
    return STATUS_MEMORY;
}

void control_tls_finish(struct control_tls *tls) {
    ERR_clear_error();
    (void)SSL_shutdown(tls->ssl);
    ERR_clear_error();
}

bool control_tls_wants_write(const struct control_tls *tls) {
    return tls->wants_write;
}
