#include "server/membership.h"

#include "base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void membership_init(struct membership *membership, uint32_t capacity) {
    membership->peers = memory_zeroed(capacity, sizeof(struct peer));
    membership->capacity = capacity;
}

void membership_remove(struct peer *peer) {
    free(peer->given);
    free(peer->addresses);
    free(peer->address_bytes);
    *peer = (struct peer){0};
}

void membership_free(struct membership *membership) {
    for (uint32_t i = 0; i < membership->capacity; i++) {
        membership_remove(&membership->peers[i]);
    }
    free(membership->peers);
    *membership = (struct membership){0};
}

static const char *role_name(enum job_role role) {
    return role == JOB_SERVER ? "server" : "worker";
}

/* A departed peer's number is given again: a full set has all of them. With `count` peers, one of
 * the numbers 0..count is free. */
static uint32_t free_index(const struct membership *membership, enum job_role role) {
    uint32_t index = membership_count(membership, role, PEER_JOINED);
    while (membership_by_index(membership, role, index) != NULL) {
        index--;
    }
    return index;
}

static void name_peer(struct peer *peer, uint32_t index) {
    peer->index = index;
    (void)snprintf(peer->name, sizeof peer->name, "%s %u (%s:%" PRIu64 ")", role_name(peer->role),
                   index, peer->host, peer->pid);
}

static struct peer *free_entry(const struct membership *membership) {
    for (uint32_t i = 0; i < membership->capacity; i++) {
        if (membership->peers[i].state == PEER_FREE) {
            return &membership->peers[i];
        }
    }
    return NULL;
}

struct peer *membership_add(struct membership *membership,
                            const struct membership_newcomer *newcomer) {
    enum job_role role = newcomer->role;
    uint32_t index = free_index(membership, role);
    struct peer *peer = free_entry(membership);
    if (peer == NULL) {
        return NULL;
    }
    if (newcomer->place > 0) {
        struct peer *holder = membership_by_index(membership, role, newcomer->place - 1);
        if (holder != NULL && holder->wished) {
            return NULL;
        }
        if (holder != NULL) {
            name_peer(holder, index);
        }
        index = newcomer->place - 1;
    }
    *peer = (struct peer){.state = PEER_JOINED,
                          .role = role,
                          .connection = newcomer->connection,
                          .pid = newcomer->pid,
                          .wished = newcomer->place > 0};
    (void)snprintf(peer->host, sizeof peer->host, "%.64s", newcomer->host);
    name_peer(peer, index);
    return peer;
}

struct peer *membership_by_connection(const struct membership *membership, uint32_t connection) {
    for (uint32_t i = 0; i < membership->capacity; i++) {
        struct peer *peer = &membership->peers[i];
        if (peer->state != PEER_FREE && peer->connection == connection) {
            return peer;
        }
    }
    return NULL;
}

struct peer *membership_by_index(const struct membership *membership, enum job_role role,
                                 uint32_t index) {
    for (uint32_t i = 0; i < membership->capacity; i++) {
        struct peer *peer = &membership->peers[i];
        if (peer->state != PEER_FREE && peer->role == role && peer->index == index) {
            return peer;
        }
    }
    return NULL;
}

uint32_t membership_count(const struct membership *membership, enum job_role role,
                          enum peer_state state) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < membership->capacity; i++) {
        const struct peer *peer = &membership->peers[i];
        count += peer->state != PEER_FREE && peer->role == role && peer->state >= state ? 1 : 0;
    }
    return count;
}

static void append(char *text, size_t bytes, const char *more) {
    size_t used = strlen(text);
    (void)snprintf(text + used, bytes - used, "%s%s", used > 0 ? ", " : "", more);
}

static void append_missing(char *text, size_t bytes, uint32_t have, int64_t want,
                           const char *role) {
    char part[64];
    if (have < want) {
        (void)snprintf(part, sizeof part, "%" PRId64 " of %" PRId64 " %s%s", want - have, want,
                       role, want > 1 ? "s" : "");
        append(text, bytes, part);
    }
}

void membership_missing(const struct membership *membership, const struct job *job,
                        enum peer_state state, char *text, size_t bytes) {
    text[0] = '\0';
    append_missing(text, bytes, membership_count(membership, JOB_SERVER, PEER_JOINED), job->servers,
                   "server");
    append_missing(text, bytes, membership_count(membership, JOB_WORKER, PEER_JOINED), job->workers,
                   "worker");
    for (uint32_t i = 0; i < membership->capacity; i++) {
        const struct peer *peer = &membership->peers[i];
        if (peer->state != PEER_FREE && peer->state < state) {
            append(text, bytes, peer->name);
        }
    }
}

struct peer *membership_silent(const struct membership *membership, int64_t lease_ns,
                               int64_t now_ns) {
    for (uint32_t i = 0; i < membership->capacity; i++) {
        struct peer *peer = &membership->peers[i];
        if (peer->state != PEER_FREE && now_ns - peer->heard_ns > lease_ns) {
            return peer;
        }
    }
    return NULL;
}
