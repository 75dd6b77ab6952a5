/* tls_door.h - how many strangers channel_tls lets in, and what it says of them. Pure but for the
 * log.
 *
 * A connection that comes in takes one from a credit that grows with time; who shows the key gives
 * it back. So the members of a job come in as fast as they like, and others at a bounded rate: the
 * rest waits in the kernel.
 */
#ifndef RUBATO_TRANSPORT_TLS_DOOR_H
#define RUBATO_TRANSPORT_TLS_DOOR_H

#include <stdbool.h>
#include <stdint.h>

struct tls_door {
    int64_t credit_ns; /* time saved up; a stranger costs some */
    int64_t seen_ns;
    int64_t warn_ns; /* no warning before */
    uint64_t refused;
};

void tls_door_init(struct tls_door *door, int64_t now_ns);

/* May one more come in? If so, it is counted. */
bool tls_door_take(struct tls_door *door, int64_t now_ns);

/* It was no stranger. */
void tls_door_give_back(struct tls_door *door);

/* When the next ones may come in. */
int64_t tls_door_next_ns(const struct tls_door *door, int64_t now_ns);

/* A connection from `peer` was refused, or dropped, because of `why`. */
void tls_door_refuse(struct tls_door *door, int64_t now_ns, const char *peer, const char *why);

#endif
