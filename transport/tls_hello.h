/* tls_hello.h - what channel_tls's sides tell each other before the first frame. Pure.
 *
 * An address travels by the control channel and names a channel: where it listens, and a random id
 * that no other channel ever had. A hello goes from the dialling side to the listening one, a
 * welcome back, both inside the TLS handshake's keys where there are any. A link is one sequence of
 * frames; it outlives its connections, and the welcome says which of its frames is the next one.
 *
 * address, 44 bytes: offset size field
 *      0    4 magic  "RTLS"
 *      4    1 version 1
 *      5    1 wire   enum tls_wire
 *      6    2 port
 *      8   16 ip     IPv4 as ::ffff:a.b.c.d
 *     24   16 id     of the channel
 *     40    4 crc32c of bytes 0..39
 * hello, 64 bytes:
 *      0    8 magic  "RBTDATA1"
 *      8   16 to     id of the channel that is dialled
 *     24   16 from   id of the one that dials
 *     40    8 link   number of the link, of the dialling channel
 *     48    8 first  number of the first frame that is not known to have arrived
 *     56    1 wire
 *     57    7 reserved, 0
 * welcome, 24 bytes:
 *      0    8 magic  "RBTDATA1"
 *      8    1 answer enum tls_answer
 *      9    7 reserved, 0
 *     16    8 next   number of the frame to begin with
 */
#ifndef RUBATO_TRANSPORT_TLS_HELLO_H
#define RUBATO_TRANSPORT_TLS_HELLO_H

#include "base/status.h"
#include "transport/tls_cipher.h"

#define TLS_ADDRESS_BYTES ((size_t)44)
#define TLS_HELLO_BYTES   ((size_t)64)
#define TLS_WELCOME_BYTES ((size_t)24)
#define TLS_ID_BYTES      ((size_t)16)

struct tls_address {
    enum tls_wire wire;
    uint16_t port;
    uint8_t ip[16];
    uint8_t id[TLS_ID_BYTES];
};

struct tls_hello {
    uint8_t to[TLS_ID_BYTES], from[TLS_ID_BYTES];
    uint64_t link, first;
    enum tls_wire wire;
};

enum tls_answer {
    TLS_ANSWER_COME = 1,
    TLS_ANSWER_STRANGER, /* no channel with the id `to` is here: it has ended */
    TLS_ANSWER_WIRE,     /* another --wire */
    TLS_ANSWER_FULL      /* no room for one more connection now */
};

struct tls_welcome {
    enum tls_answer answer;
    uint64_t next;
};

void tls_hello_put_address(const struct tls_address *address, uint8_t *bytes);
void tls_hello_put(const struct tls_hello *hello, uint8_t *bytes);
void tls_hello_put_welcome(const struct tls_welcome *welcome, uint8_t *bytes);

/* CORRUPT: not one of ours; the output is unchanged then. */
enum status tls_hello_get_address(const uint8_t *bytes, size_t count,
                                  struct tls_address *address) WARN_UNUSED;
enum status tls_hello_get(const uint8_t *bytes, struct tls_hello *hello) WARN_UNUSED;
enum status tls_hello_get_welcome(const uint8_t *bytes, struct tls_welcome *welcome) WARN_UNUSED;

/* A u64 in little-endian order. */
void tls_hello_put_u64(uint8_t *bytes, uint64_t value);
uint64_t tls_hello_get_u64(const uint8_t *bytes);

#endif
