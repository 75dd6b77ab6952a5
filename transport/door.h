/* door.h - how many strangers a listening port lets in, and what is said of them. Pure but for the
 * log.
 *
 * A connection that comes in takes one from a credit that grows with time; who shows the key (or,
 * without one, speaks the protocol) gives it back. So the members of a job come in as fast as they
 * like, and others at a bounded rate, 500 a second after the first 256: the rest waits in the
 * kernel. While strangers come, a port looks for new ones every 10 ms only, since to wake up for
 * each costs more than to refuse it. What is logged of them is bounded, too: a line in 5 s.
 */
#ifndef RUBATO_TRANSPORT_DOOR_H
#define RUBATO_TRANSPORT_DOOR_H

#include <stdbool.h>
#include <stdint.h>

struct door {
    const char *name;  /* of the port, in the log; a literal */
    int64_t credit_ns; /* time saved up; a stranger costs some */
    int64_t seen_ns;
    int64_t warn_ns;    /* no warning before */
    int64_t refused_ns; /* when the last one was */
    uint64_t refused;
};

void door_init(struct door *door, const char *name, int64_t now_ns);

/* May one more come in? If so, it is counted. */
bool door_take(struct door *door, int64_t now_ns);

/* It was no stranger. */
void door_give_back(struct door *door);

/* When the next ones may come in. */
int64_t door_next_ns(const struct door *door, int64_t now_ns);

/* When to look for the next ones, after all that came are in: now_ns, or later while strangers
 * come. */
int64_t door_rest_ns(const struct door *door, int64_t now_ns);

/* A connection from `peer` was refused, or dropped, because of `why`. */
void door_refuse(struct door *door, int64_t now_ns, const char *peer, const char *why);

#endif
