/* coordinator_change.c - `rubato set mode=...`: another mode for the running job. The stages are
 * told in proto/control.proto. */
#include "base/log.h"
#include "server/coordinator.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A worker that has finished its steps has no part in a change. */
static bool takes_part(const struct peer *peer) {
    return peer->role == JOB_WORKER && peer->state != PEER_FREE && peer->state != PEER_DONE;
}

static void send_change(struct coordinator *coordinator, const struct peer *peer,
                        Rubato__Change__Stage stage, uint64_t step) {
    Rubato__Change change = RUBATO__CHANGE__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    change.stage = stage;
    change.step = step;
    if (stage == RUBATO__CHANGE__STAGE__APPLY || stage == RUBATO__CHANGE__STAGE__RESUME) {
        change.mode = coordinator->change.mode;
        change.by = coordinator->change.by;
    }
    message.body_case = RUBATO__MESSAGE__BODY_CHANGE;
    message.change = &change;
    coordinator_send(coordinator, peer->connection, &message);
}

static void answer(struct coordinator *coordinator, const char *reason, int exit_code) {
    if (coordinator->change.asked) {
        coordinator->change.asked = false;
        coordinator_refuse(coordinator, coordinator->change.connection, reason, exit_code);
    }
}

void coordinator_abandon_change(struct coordinator *coordinator) {
    answer(coordinator, "the job ended before the mode was changed", EXIT_CODE_UNREACHABLE);
    coordinator->change.stage = CHANGE_NONE;
}

/* ---- the start ---- */

/* May this discipline be left, or taken, in the middle? Local steps and quorums have state on the
 * way that another mode knows nothing of. */
static bool changeable(const struct discipline *discipline, int64_t workers) {
    return !discipline->local &&
           (!discipline_by_round(discipline) || discipline_needs_all(discipline, workers));
}

/* False with the reason where the job cannot have this mode now; else its numbers. */
static bool check_mode(const struct coordinator *coordinator, const char *mode,
                       struct discipline *discipline, char *why, size_t why_bytes) {
    const struct job *job = &coordinator->job;
    if (coordinator->change.stage != CHANGE_NONE) {
        (void)snprintf(why, why_bytes, "another change of mode is under way");
        return false;
    }
    if (discipline_change(job, mode, discipline, why, why_bytes) != STATUS_OK) {
        return false;
    }
    if (!changeable(&coordinator->discipline, job->workers) ||
        !changeable(discipline, job->workers)) {
        (void)snprintf(why, why_bytes,
                       "a running job changes only between sync, ssp:S and async, without a "
                       "--quorum or --backup-workers");
        return false;
    }
    if (coordinator->vote.round <= (uint64_t)coordinator->discipline.sync_warmup) {
        (void)snprintf(why, why_bytes, "the job is in the first %" PRId64 " steps (--sync-warmup)",
                       coordinator->discipline.sync_warmup);
        return false;
    }
    return true;
}

void coordinator_take_set(struct coordinator *coordinator, uint32_t connection, const char *from,
                          const Rubato__Set *set) {
    char why[256];
    struct change change = {.stage = CHANGE_PROMISES, .asked = true, .connection = connection};
    if (coordinator->phase != COORDINATOR_RUNNING) {
        coordinator_refuse(coordinator, connection, "no job is running there",
                           EXIT_CODE_UNREACHABLE);
        return;
    }
    if (!check_mode(coordinator, set->mode, &change.discipline, why, sizeof why)) {
        log_warn("refused to change the mode to %.64s for %s: %s", set->mode, from, why);
        coordinator_refuse(coordinator, connection, why, EXIT_CODE_USAGE);
        return;
    }
    (void)snprintf(change.mode, sizeof change.mode, "%s", set->mode);
    (void)snprintf(change.by, sizeof change.by, "%s", from);
    coordinator->change = change;
    log_info("the mode is to be %s, says %s: waiting for the workers", change.mode, change.by);
    for (uint32_t i = 0; i < coordinator->membership.capacity; i++) {
        struct peer *peer = &coordinator->membership.peers[i];
        peer->promised = peer->holds = peer->applied = false;
        if (takes_part(peer)) {
            send_change(coordinator, peer, RUBATO__CHANGE__STAGE__PROMISE, 0);
        }
    }
    coordinator_go_on_changing(coordinator);
}

/* ---- the stages ---- */

static bool all_promised(const struct coordinator *coordinator) {
    for (uint32_t i = 0; i < coordinator->membership.capacity; i++) {
        const struct peer *peer = &coordinator->membership.peers[i];
        if (takes_part(peer) && !peer->promised) {
            return false;
        }
    }
    return true;
}

static bool all_hold(const struct coordinator *coordinator) {
    for (uint32_t i = 0; i < coordinator->membership.capacity; i++) {
        const struct peer *peer = &coordinator->membership.peers[i];
        if (takes_part(peer) && !peer->holds) {
            return false;
        }
    }
    return true;
}

static bool all_applied(const struct coordinator *coordinator) {
    for (uint32_t i = 0; i < coordinator->membership.capacity; i++) {
        const struct peer *peer = &coordinator->membership.peers[i];
        if (peer->state != PEER_FREE && peer->role == JOB_SERVER && !peer->applied) {
            return false;
        }
    }
    return true;
}

/* In rounds all must make the same ones, as many as the farthest has promised since the mode began;
 * else each stops where it said. */
static void send_limits(struct coordinator *coordinator) {
    bool by_round = discipline_by_round(&coordinator->discipline);
    uint64_t rounds = 0;
    coordinator->change.stage = CHANGE_HOLDS;
    for (uint32_t i = 0; i < coordinator->membership.capacity; i++) {
        const struct peer *peer = &coordinator->membership.peers[i];
        if (takes_part(peer) && peer->promise > peer->base) {
            uint64_t made = peer->promise - peer->base;
            rounds = made > rounds ? made : rounds;
        }
        if (peer->state != PEER_FREE && peer->role == JOB_SERVER) {
            /* A worker that the staleness holds up must get its answer, or it never settles. */
            send_change(coordinator, peer, RUBATO__CHANGE__STAGE__LIMIT, 0);
        }
    }
    for (uint32_t i = 0; i < coordinator->membership.capacity; i++) {
        const struct peer *peer = &coordinator->membership.peers[i];
        if (takes_part(peer)) {
            send_change(coordinator, peer, RUBATO__CHANGE__STAGE__LIMIT,
                        by_round ? peer->base + rounds : peer->promise);
        }
    }
}

static void send_apply(struct coordinator *coordinator) {
    struct change *change = &coordinator->change;
    change->stage = CHANGE_APPLIES;
    for (uint32_t i = 0; i < coordinator->membership.capacity; i++) {
        struct peer *peer = &coordinator->membership.peers[i];
        if (peer->state != PEER_FREE && peer->role == JOB_WORKER) {
            peer->base = peer->holds ? peer->hold : peer->step;
            change->step = peer->base > change->step ? peer->base : change->step;
        }
    }
    for (uint32_t i = 0; i < coordinator->membership.capacity; i++) {
        const struct peer *peer = &coordinator->membership.peers[i];
        if (peer->state != PEER_FREE && peer->role == JOB_SERVER) {
            send_change(coordinator, peer, RUBATO__CHANGE__STAGE__APPLY, change->step);
        }
    }
}

static void resume(struct coordinator *coordinator) {
    struct change *change = &coordinator->change;
    for (uint32_t i = 0; i < coordinator->membership.capacity; i++) {
        const struct peer *peer = &coordinator->membership.peers[i];
        if (peer->state != PEER_FREE && peer->role == JOB_WORKER) {
            send_change(coordinator, peer, RUBATO__CHANGE__STAGE__RESUME, change->step);
        }
    }
    job_change_mode(&coordinator->job, change->mode);
    coordinator->discipline = change->discipline;
    change->stage = CHANGE_NONE;
    answer(coordinator, "", EXIT_CODE_OK);
}

void coordinator_go_on_changing(struct coordinator *coordinator) {
    if (coordinator->phase != COORDINATOR_RUNNING) {
        return;
    }
    if (coordinator->change.stage == CHANGE_PROMISES && all_promised(coordinator)) {
        send_limits(coordinator);
    }
    if (coordinator->change.stage == CHANGE_HOLDS && all_hold(coordinator)) {
        send_apply(coordinator);
    }
    if (coordinator->change.stage == CHANGE_APPLIES && all_applied(coordinator)) {
        resume(coordinator);
    }
}

void coordinator_take_change(struct coordinator *coordinator, struct peer *peer,
                             const Rubato__Change *change) {
    enum change_stage stage = coordinator->change.stage;
    if (change->stage == RUBATO__CHANGE__STAGE__PROMISED && stage == CHANGE_PROMISES) {
        peer->promised = true;
        peer->promise = change->step;
    } else if (change->stage == RUBATO__CHANGE__STAGE__HELD && stage == CHANGE_HOLDS) {
        peer->holds = true;
        peer->hold = change->step;
    } else if (change->stage == RUBATO__CHANGE__STAGE__APPLIED && stage == CHANGE_APPLIES) {
        peer->applied = true;
    } else {
        log_debug("%s said stage %d of a change out of turn", peer->name, (int)change->stage);
    }
    coordinator_go_on_changing(coordinator);
}
