/* membership.h - the coordinator's table of who is in the job, and how far each has come.
 *
 * Pure: no I/O, time comes in as now_ns. A peer's state only moves forward; the job moves when all
 * peers have reached the next state.
 */
#ifndef RUBATO_SERVER_MEMBERSHIP_H
#define RUBATO_SERVER_MEMBERSHIP_H

#include "proto/job.h"
#include "transport/channel.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MEMBERSHIP_NAME_MAX ((size_t)112)

enum peer_state {
    PEER_FREE,
    PEER_JOINED,
    PEER_READY,
    PEER_ARMED,
    PEER_CONNECTED,
    PEER_DONE /* a worker that finished its steps */
};

struct peer {
    enum peer_state state;
    enum job_role role;
    uint32_t connection;
    uint32_t index; /* among its role: as wished, or in order of joining */
    bool wished;    /* the index */
    uint64_t pid;
    char host[65];
    uint32_t shards; /* of a server */
    uint64_t session;
    uint64_t first_shard;
    int64_t heard_ns;
    uint64_t step, tokens; /* of a worker, from its Beats */
    double speed;          /* of a worker, steps a second; 0: not known */
    /* A change of mode: how far this worker, or server, has come in it. */
    bool promised, holds, applied;
    uint64_t promise, hold; /* steps */
    uint64_t base;          /* steps made when the mode that holds now began */
    uint64_t tensor_digest;
    struct job_values *given;       /* AGREED options that its user gave; freed with the peer */
    char who[64];                   /* "worker on host:pid", for what differs */
    char name[MEMBERSHIP_NAME_MAX]; /* "worker 1 (host:pid)" */
    uint8_t *addresses;             /* [shards or 1][CHANNEL_ADDRESS_MAX], from Armed */
    size_t *address_bytes;          /* [shards or 1] */
};

struct membership {
    struct peer *peers; /* [capacity], by no order */
    uint32_t capacity;
};

/* Room for `capacity` peers. */
void membership_init(struct membership *membership, uint32_t capacity);
void membership_free(struct membership *membership);

/* Who a newcomer says it is. */
struct membership_newcomer {
    enum job_role role;
    uint32_t connection;
    const char *host; /* for its name */
    uint64_t pid;
    uint32_t place; /* wanted index, from 1; 0: any */
};

/* A new peer in state JOINED; NULL when there is no room, or its place is another's by wish. Who
 * has a wanted place without having wished for it moves to a free one. */
struct peer *membership_add(struct membership *membership,
                            const struct membership_newcomer *newcomer);

/* Forgets the peer. */
void membership_remove(struct peer *peer);

struct peer *membership_by_connection(const struct membership *membership, uint32_t connection);
struct peer *membership_by_index(const struct membership *membership, enum job_role role,
                                 uint32_t index);

/* Peers of the role in `state` or beyond. */
uint32_t membership_count(const struct membership *membership, enum job_role role,
                          enum peer_state state);

/* Who is missing for `state`: "1 of 2 servers, 2 of 2 workers" before all have joined, then names.
 * Empty when nobody is. */
void membership_missing(const struct membership *membership, const struct job *job,
                        enum peer_state state, char *text, size_t bytes);

/* A peer that has not been heard for lease_ns, or NULL. */
struct peer *membership_silent(const struct membership *membership, int64_t lease_ns,
                               int64_t now_ns);

#endif
