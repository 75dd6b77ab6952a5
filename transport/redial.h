/* redial.h - the connections of a data channel that broke are made again.
 *
 * A data connection may break while both its ends live. Whether the peer is dead is the control
 * channel's to say, which it does within a lease; until then the channel's owner dials the address
 * that it has: first after lease / 32, since who has died is known by then as a rule, then after
 * waits that double up to lease / 4. To each peer that is dialled the owner sends a greeting, which
 * changes nothing there, and again what may not have arrived. A frame that has left by the new
 * connection proves it. One that is not back a lease after it broke has failed, for good.
 * One that breaks again within a lease is dialled after the longer waits, too, and one that has not
 * held for a lease in twelve has failed.
 * Both ends do this, each for what it sends. Pure but for connect() and the log; the channel's
 * owner alone calls.
 */
#ifndef RUBATO_TRANSPORT_REDIAL_H
#define RUBATO_TRANSPORT_REDIAL_H

#include "transport/channel.h"

#include <stdbool.h>
#include <stdint.h>

struct redial_config {
    struct channel *channel;
    /* [count], kept by the caller; NULL: nothing is dialled. */
    const struct channel_address *addresses;
    uint32_t count;   /* peers 0..count-1 */
    const char *kind; /* what they are, for the log: a constant */
    int64_t lease_ns;
};

enum redial_state {
    REDIAL_HOLDS,   /* as far as is known */
    REDIAL_BROKEN,  /* to be dialled at next_ns */
    REDIAL_DIALLED, /* the greeting is to be sent */
    REDIAL_GREETED, /* it is on its way */
    REDIAL_FAILED,
    REDIAL_GONE /* the peer: nothing is dialled any more */
};

struct redial_peer {
    enum redial_state state;
    int64_t lost_ns;   /* since when it is not known to hold */
    int64_t series_ns; /* when it first broke without having held for a lease before */
    int64_t back_ns;   /* when it was last known to be back, */
    bool was_back;     /* if ever */
    bool told;         /* that it broke */
    int64_t next_ns;
    int64_t wait_ns; /* until the next dial, if this one fails */
};

struct redial {
    struct redial_config config;
    struct redial_peer *peers; /* [count] */
    uint32_t broken;           /* of them: BROKEN, DIALLED, GREETED or FAILED */
};

void redial_init(struct redial *redial, const struct redial_config *config);
void redial_free(struct redial *redial);

/* Events of the channel's about peer `number`: its PEER_LOST; its SENT with OK. */
void redial_lost(struct redial *redial, uint32_t number, int64_t now_ns);
void redial_sent(struct redial *redial, uint32_t number, int64_t now_ns);

/* The peer is dead or has left. */
void redial_gone(struct redial *redial, uint32_t number);

/* Can nothing be sent to the peer? */
bool redial_is_down(const struct redial *redial, uint32_t number);

/* Dials what is due. True: *peer is connected anew, and is to be greeted: redial_greeted() follows,
 * with send()'s status; it comes again after AGAIN. */
bool redial_next(struct redial *redial, int64_t now_ns, uint32_t *peer);
void redial_greeted(struct redial *redial, uint32_t number, enum status status, int64_t now_ns);

/* The lowest peer whose connection has failed, -1: none. */
int64_t redial_failed(const struct redial *redial);

/* When redial_next() has something to do by the clock; INT64_MAX: it has not. */
int64_t redial_deadline_ns(const struct redial *redial);

#endif
