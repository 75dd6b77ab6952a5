#include "transport/redial.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

#include <stdlib.h>

enum { FIRST_WAITS = 32, LAST_WAITS = 4 }; /* a lease */
enum { SERIES_LEASES = 12 };

void redial_init(struct redial *redial, const struct redial_config *config) {
    *redial = (struct redial){.config = *config};
    redial->peers = memory_zeroed(config->count, sizeof *redial->peers);
}

void redial_free(struct redial *redial) {
    free(redial->peers);
    *redial = (struct redial){0};
}

static int64_t next_wait_ns(const struct redial *redial, int64_t wait_ns) {
    int64_t most_ns = redial->config.lease_ns / LAST_WAITS;
    return 2 * wait_ns < most_ns ? 2 * wait_ns : most_ns;
}

/* Its next dial, and the wait after that. */
static void schedule(const struct redial *redial, struct redial_peer *peer, int64_t now_ns) {
    peer->state = REDIAL_BROKEN;
    peer->next_ns = now_ns + peer->wait_ns;
    peer->wait_ns = next_wait_ns(redial, peer->wait_ns);
}

void redial_lost(struct redial *redial, uint32_t number, int64_t now_ns) {
    ASSERT_OP(number, <, redial->config.count);
    struct redial_peer *peer = &redial->peers[number];
    if (peer->state == REDIAL_DIALLED || peer->state == REDIAL_GREETED) {
        schedule(redial, peer, now_ns);
        return;
    }
    if (peer->state != REDIAL_HOLDS) return;
    const int64_t lease_ns = redial->config.lease_ns;
    log_debug("the data connection to %s %u broke", redial->config.kind, number);
    redial->broken++;
    peer->lost_ns = now_ns;
    peer->told = false;
    if (!peer->was_back || now_ns - peer->back_ns >= lease_ns) {
        peer->wait_ns = lease_ns / FIRST_WAITS;
        peer->series_ns = now_ns;
    }
    schedule(redial, peer, now_ns);
    if (now_ns - peer->series_ns >= SERIES_LEASES * lease_ns) peer->state = REDIAL_FAILED;
}

void redial_sent(struct redial *redial, uint32_t number, int64_t now_ns) {
    ASSERT_OP(number, <, redial->config.count);
    struct redial_peer *peer = &redial->peers[number];
    if (peer->state != REDIAL_GREETED) return;
    peer->state = REDIAL_HOLDS;
    peer->back_ns = now_ns;
    peer->was_back = true;
    redial->broken--;
    log_info("the data connection to %s %u is back after %.2f s", redial->config.kind, number,
             (double)(now_ns - peer->lost_ns) / (double)CLOCK_S);
}

void redial_gone(struct redial *redial, uint32_t number) {
    ASSERT_OP(number, <, redial->config.count);
    struct redial_peer *peer = &redial->peers[number];
    if (peer->state != REDIAL_HOLDS && peer->state != REDIAL_GONE) redial->broken--;
    peer->state = REDIAL_GONE;
}

bool redial_is_down(const struct redial *redial, uint32_t number) {
    ASSERT_OP(number, <, redial->config.count);
    enum redial_state state = redial->peers[number].state;
    return state == REDIAL_BROKEN || state == REDIAL_FAILED || state == REDIAL_GONE;
}

static void dial(struct redial *redial, uint32_t number, int64_t now_ns) {
    const struct redial_config *config = &redial->config;
    const struct channel_address *address = &config->addresses[number];
    struct redial_peer *peer = &redial->peers[number];
    if (!peer->told) {
        log_warn("the data connection to %s %u broke: connecting again", config->kind, number);
        peer->told = true;
    }
    memory_forbid(false); /* connecting takes some; until the owner's next turn */
    enum status status =
        config->channel->ops->connect(config->channel, number, address->data, address->bytes);
    if (status == STATUS_OK) {
        peer->state = REDIAL_DIALLED;
    } else if (status == STATUS_UNSUPPORTED) {
        peer->next_ns = INT64_MAX;
    } else {
        schedule(redial, peer, now_ns);
    }
}

static void look_at(struct redial *redial, uint32_t number, int64_t now_ns) {
    struct redial_peer *peer = &redial->peers[number];
    if (peer->state == REDIAL_HOLDS || peer->state == REDIAL_FAILED || peer->state == REDIAL_GONE) {
        return;
    }
    if (now_ns - peer->lost_ns >= redial->config.lease_ns) {
        peer->state = REDIAL_FAILED;
    } else if (peer->state == REDIAL_BROKEN && now_ns >= peer->next_ns &&
               redial->config.addresses != NULL) {
        dial(redial, number, now_ns);
    }
}

bool redial_next(struct redial *redial, int64_t now_ns, uint32_t *peer) {
    for (uint32_t i = 0; i < redial->config.count && redial->broken > 0; i++) {
        look_at(redial, i, now_ns);
        if (redial->peers[i].state == REDIAL_DIALLED) {
            *peer = i;
            return true;
        }
    }
    return false;
}

void redial_greeted(struct redial *redial, uint32_t number, enum status status, int64_t now_ns) {
    struct redial_peer *peer = &redial->peers[number];
    ASSERT(peer->state == REDIAL_DIALLED);
    if (status == STATUS_OK) {
        peer->state = REDIAL_GREETED;
    } else if (status != STATUS_AGAIN) {
        schedule(redial, peer, now_ns);
    }
}

int64_t redial_failed(const struct redial *redial) {
    for (uint32_t i = 0; i < redial->config.count && redial->broken > 0; i++) {
        if (redial->peers[i].state == REDIAL_FAILED) return i;
    }
    return -1;
}

int64_t redial_deadline_ns(const struct redial *redial) {
    int64_t deadline_ns = INT64_MAX;
    for (uint32_t i = 0; i < redial->config.count && redial->broken > 0; i++) {
        const struct redial_peer *peer = &redial->peers[i];
        int64_t own_ns = INT64_MAX;
        if (peer->state == REDIAL_BROKEN || peer->state == REDIAL_DIALLED ||
            peer->state == REDIAL_GREETED) {
            own_ns = peer->lost_ns + redial->config.lease_ns;
        }
        if (peer->state == REDIAL_BROKEN && redial->config.addresses != NULL &&
            peer->next_ns < own_ns) {
            own_ns = peer->next_ns;
        }
        deadline_ns = own_ns < deadline_ns ? own_ns : deadline_ns;
    }
    return deadline_ns;
}
