#include "server/coordinator.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PEERS_MAX 2048

#define STRAGGLER_NS (INT64_C(10) * CLOCK_S)

enum status coordinator_init(struct coordinator *coordinator,
                             const struct coordinator_config *config, int64_t now_ns) {
    *coordinator = (struct coordinator){.config = *config,
                                        .epoch = 1,
                                        .started_ns = now_ns,
                                        .beat_at_ns = now_ns,
                                        .nag_at_ns = now_ns + CLOCK_S,
                                        .straggler_at_ns = now_ns + STRAGGLER_NS};
    random_open(&coordinator->random, config->seed, RANDOM_SESSION, 0);
    coordinator->job_id = random_u64(&coordinator->random);
    membership_init(&coordinator->membership, PEERS_MAX);
    coordinator_settle(coordinator); /* how many peers the job has must be known before the first */
    coordinator->packed = memory_zeroed(MESSAGE_MAX, 1);
    return message_scratch_init(&coordinator->scratch, MESSAGE_MAX * 8);
}

void coordinator_free(struct coordinator *coordinator) {
    if (coordinator->allocated) {
        plan_free(&coordinator->plan);
        vote_free(&coordinator->vote);
    }
    if (coordinator->has_quorum) {
        quorum_free(&coordinator->quorum);
    }
    free(coordinator->ranks);
    membership_free(&coordinator->membership);
    message_scratch_free(&coordinator->scratch);
    free(coordinator->tensors);
    free(coordinator->packed);
}

void coordinator_send(struct coordinator *coordinator, uint32_t connection,
                      const Rubato__Message *message) {
    struct control *control = coordinator->config.control;
    size_t bytes = 0;
    if (message_pack(message, coordinator->packed, MESSAGE_MAX, &bytes) != STATUS_OK) {
        log_error("control message %s is too long to send", message_name(message));
        coordinator_end(coordinator,
                        "a control message is too long: use fewer peers or larger blocks",
                        EXIT_CODE_INTERNAL);
        return;
    }
    enum status status = control->ops->send(control, connection, coordinator->packed, bytes);
    if (status == STATUS_AGAIN) {
        /* It would miss a message that it must have. Its CLOSED event tells the rest. */
        log_warn("a peer does not read its control messages: hanging up");
        control->ops->hang_up(control, connection);
    }
}

void coordinator_send_all(struct coordinator *coordinator, unsigned roles,
                          const Rubato__Message *message) {
    for (uint32_t i = 0; i < coordinator->membership.capacity; i++) {
        const struct peer *peer = &coordinator->membership.peers[i];
        if (peer->state != PEER_FREE && (roles == 0 || (peer->role & roles) != 0)) {
            coordinator_send(coordinator, peer->connection, message);
        }
    }
}

void coordinator_end(struct coordinator *coordinator, const char *reason, int exit_code) {
    struct control *control = coordinator->config.control;
    Rubato__End end = RUBATO__END__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    if (coordinator->phase == COORDINATOR_ENDED) {
        return;
    }
    coordinator_abandon_change(coordinator);
    (void)snprintf(coordinator->reason, sizeof coordinator->reason, "%s", reason);
    coordinator->exit_code = exit_code;
    coordinator->phase = COORDINATOR_ENDED;
    end.reason = coordinator->reason;
    end.exit_code = (uint32_t)exit_code;
    message.body_case = RUBATO__MESSAGE__BODY_END;
    message.end = &end;
    coordinator_send_all(coordinator, 0, &message);
    for (uint32_t i = 0; i < coordinator->membership.capacity; i++) {
        const struct peer *peer = &coordinator->membership.peers[i];
        if (peer->state != PEER_FREE) {
            control->ops->hang_up(control, peer->connection);
        }
    }
}

static void take_leave(struct coordinator *coordinator, struct peer *peer,
                       const Rubato__Leave *leave, int64_t now_ns) {
    char how[384];
    (void)snprintf(how, sizeof how, "left: %.300s", leave->reason);
    peer->tokens = leave->tokens > peer->tokens ? leave->tokens : peer->tokens;
    coordinator_lose(coordinator, peer, how,
                     leave->exit_code == EXIT_CODE_OK ? DEPARTURE_PLANNED : DEPARTURE_FAILED,
                     now_ns);
}

static void take_beat(struct coordinator *coordinator, struct peer *peer,
                      const Rubato__Beat *beat) {
    peer->step = beat->step;
    if (peer->role == JOB_WORKER && beat->step > 0) {
        coordinator->weights_spread = true;
    }
    peer->tokens = beat->tokens;
    peer->speed = isfinite(beat->speed) && beat->speed > 0 ? beat->speed : 0;
}

static void take_peer_message(struct coordinator *coordinator, struct peer *peer,
                              const Rubato__Message *message, int64_t now_ns) {
    switch (message->body_case) {
    case RUBATO__MESSAGE__BODY_READY:
        coordinator_take_ready(coordinator, peer, message->ready);
        break;
    case RUBATO__MESSAGE__BODY_ARMED:
        coordinator_take_armed(coordinator, peer, message->armed);
        break;
    case RUBATO__MESSAGE__BODY_CONNECTED:
        coordinator_take_connected(coordinator, peer);
        break;
    case RUBATO__MESSAGE__BODY_REPORT:
        coordinator_take_report(coordinator, peer, message->report);
        break;
    case RUBATO__MESSAGE__BODY_ARRIVED:
        coordinator_take_arrived(coordinator, peer, message->arrived, now_ns);
        break;
    case RUBATO__MESSAGE__BODY_CHANGE:
        coordinator_take_change(coordinator, peer, message->change);
        break;
    case RUBATO__MESSAGE__BODY_DONE:
        coordinator_take_done(coordinator, peer, message->done);
        break;
    case RUBATO__MESSAGE__BODY_SAVED:
        coordinator_take_saved(coordinator, peer);
        break;
    case RUBATO__MESSAGE__BODY_LEAVE:
        take_leave(coordinator, peer, message->leave, now_ns);
        break;
    case RUBATO__MESSAGE__BODY_BEAT:
        take_beat(coordinator, peer, message->beat);
        break;
    default:
        log_debug("%s sent an unexpected %s", peer->name, message_name(message));
    }
}

/* A connection that may join: kept until it does, for a lease at most. */
static void note_newcomer(struct coordinator *coordinator, const struct control_event *event,
                          int64_t now_ns) {
    struct control *control = coordinator->config.control;
    if (coordinator->newcomer_count == COORDINATOR_NEWCOMERS_MAX) {
        control->ops->hang_up(control, event->connection);
        return;
    }
    struct newcomer *newcomer = &coordinator->newcomers[coordinator->newcomer_count++];
    *newcomer = (struct newcomer){.connection = event->connection, .since_ns = now_ns};
    (void)snprintf(newcomer->from, sizeof newcomer->from, "%.63s",
                   event->text != NULL ? event->text : "");
}

static const char *newcomer_from(const struct coordinator *coordinator, uint32_t connection) {
    for (uint32_t i = 0; i < coordinator->newcomer_count; i++) {
        if (coordinator->newcomers[i].connection == connection) {
            return coordinator->newcomers[i].from;
        }
    }
    return "";
}

static void forget_newcomer(struct coordinator *coordinator, uint32_t connection) {
    for (uint32_t i = 0; i < coordinator->newcomer_count; i++) {
        if (coordinator->newcomers[i].connection == connection) {
            coordinator->newcomers[i] = coordinator->newcomers[--coordinator->newcomer_count];
            return;
        }
    }
}

static void drop_late_newcomers(struct coordinator *coordinator, int64_t now_ns) {
    struct control *control = coordinator->config.control;
    for (uint32_t i = coordinator->newcomer_count; i-- > 0;) {
        struct newcomer late = coordinator->newcomers[i];
        if (now_ns - late.since_ns > job_lease_ns(&coordinator->job)) {
            control->ops->hang_up(control, late.connection);
            forget_newcomer(coordinator, late.connection);
        }
    }
}

static void take_packet(struct coordinator *coordinator, const struct control_event *event,
                        int64_t now_ns) {
    const Rubato__Message *message = NULL;
    struct control *control = coordinator->config.control;
    struct peer *peer = membership_by_connection(&coordinator->membership, event->connection);
    if (message_unpack(&coordinator->scratch, event->packet, event->packet_bytes, &message) !=
        STATUS_OK) {
        log_warn("%s sent a malformed control message", peer != NULL ? peer->name : "a stranger");
        control->ops->hang_up(control, event->connection);
        if (peer != NULL) {
            coordinator_lose(coordinator, peer, "broke the protocol", DEPARTURE_LOST, now_ns);
        }
        return;
    }
    if (peer != NULL) {
        peer->heard_ns = now_ns;
        take_peer_message(coordinator, peer, message, now_ns);
    } else if (message->body_case == RUBATO__MESSAGE__BODY_JOIN &&
               coordinator->phase != COORDINATOR_ENDED) {
        forget_newcomer(coordinator, event->connection);
        coordinator_take_join(coordinator, event->connection, message->join, now_ns);
    } else if (message->body_case == RUBATO__MESSAGE__BODY_SET) {
        char from[64];
        (void)snprintf(from, sizeof from, "%s", newcomer_from(coordinator, event->connection));
        forget_newcomer(coordinator, event->connection);
        coordinator_take_set(coordinator, event->connection, from, message->set);
    }
}

static void beat(struct coordinator *coordinator) {
    Rubato__Beat beat = RUBATO__BEAT__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    beat.tokens = coordinator_tokens(coordinator);
    for (uint32_t i = 0; i < coordinator->membership.capacity; i++) {
        const struct peer *peer = &coordinator->membership.peers[i];
        beat.speed += peer->speed;
        beat.workers += peer->speed > 0 ? 1 : 0;
    }
    message.body_case = RUBATO__MESSAGE__BODY_BEAT;
    message.beat = &beat;
    coordinator_send_all(coordinator, 0, &message);
}

/* The state that all peers must reach to leave the phase. */
static enum peer_state awaited(enum coordinator_phase phase) {
    static const enum peer_state states[] = {
        [COORDINATOR_GATHERING] = PEER_JOINED, [COORDINATOR_ASSIGNED] = PEER_READY,
        [COORDINATOR_PLANNED] = PEER_ARMED,    [COORDINATOR_STARTED] = PEER_CONNECTED,
        [COORDINATOR_RUNNING] = PEER_FREE,     [COORDINATOR_DRAINED] = PEER_FREE,
        [COORDINATOR_ENDED] = PEER_FREE};
    return states[phase];
}

static int64_t join_timeout_ns(const struct coordinator *coordinator) {
    return coordinator->config.join_timeout_ns != 0 ? coordinator->config.join_timeout_ns
                                                    : job_join_timeout_ns(&coordinator->job);
}

static int64_t join_deadline_ns(const struct coordinator *coordinator) {
    int64_t timeout_ns = join_timeout_ns(coordinator);
    return timeout_ns == INT64_MAX ? timeout_ns : coordinator->started_ns + timeout_ns;
}

static void give_up(struct coordinator *coordinator, int64_t now_ns) {
    char missing[400];
    char reason[512];
    membership_missing(&coordinator->membership, &coordinator->job, awaited(coordinator->phase),
                       missing, sizeof missing);
    (void)snprintf(reason, sizeof reason, "gave up waiting for %s after %.0f s (--join-timeout)",
                   missing, (double)(now_ns - coordinator->started_ns) / (double)CLOCK_S);
    coordinator_end(coordinator, reason, EXIT_CODE_UNREACHABLE);
}

/* Tells all who have joined who is missing. */
static void nag(struct coordinator *coordinator) {
    char missing[400];
    Rubato__Waiting waiting = RUBATO__WAITING__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    membership_missing(&coordinator->membership, &coordinator->job, awaited(coordinator->phase),
                       missing, sizeof missing);
    waiting.missing = missing;
    message.body_case = RUBATO__MESSAGE__BODY_WAITING;
    message.waiting = &waiting;
    coordinator_send_all(coordinator, 0, &message);
}

static void check_clock(struct coordinator *coordinator, int64_t now_ns) {
    char how[64];
    int64_t lease_ns = job_lease_ns(&coordinator->job);
    struct peer *silent = coordinator->phase > COORDINATOR_GATHERING
                              ? membership_silent(&coordinator->membership, lease_ns, now_ns)
                              : NULL;
    if (silent != NULL) {
        struct control *control = coordinator->config.control;
        uint32_t connection = silent->connection;
        (void)snprintf(how, sizeof how, "was silent for %.1f s (--lease)",
                       (double)lease_ns / (double)CLOCK_S);
        coordinator_lose(coordinator, silent, how, DEPARTURE_LOST, now_ns);
        control->ops->hang_up(control, connection);
    }
    if (coordinator->phase < COORDINATOR_RUNNING && now_ns >= join_deadline_ns(coordinator)) {
        give_up(coordinator, now_ns);
    } else if (coordinator->phase < COORDINATOR_RUNNING && now_ns >= coordinator->nag_at_ns) {
        coordinator->nag_at_ns = now_ns + CLOCK_S;
        nag(coordinator);
    }
    if (coordinator->phase != COORDINATOR_ENDED && now_ns >= coordinator->beat_at_ns) {
        coordinator->beat_at_ns = now_ns + job_heartbeat_ns(&coordinator->job);
        beat(coordinator);
        drop_late_newcomers(coordinator, now_ns);
        if (now_ns >= coordinator->straggler_at_ns) {
            coordinator->straggler_at_ns = now_ns + STRAGGLER_NS;
            if (coordinator->phase == COORDINATOR_RUNNING &&
                coordinator->discipline.staleness != STALENESS_ANY) {
                coordinator_name_straggler(coordinator);
            }
        }
    }
}

void coordinator_poll(struct coordinator *coordinator, int64_t now_ns) {
    struct control *control = coordinator->config.control;
    struct control_event event;
    while (control->ops->poll(control, now_ns, &event)) {
        if (event.kind == CONTROL_PACKET) {
            take_packet(coordinator, &event, now_ns);
        } else if (event.kind == CONTROL_OPENED) {
            note_newcomer(coordinator, &event, now_ns);
        } else if (event.kind == CONTROL_CLOSED) {
            forget_newcomer(coordinator, event.connection);
            struct peer *peer =
                membership_by_connection(&coordinator->membership, event.connection);
            if (peer != NULL && coordinator->phase != COORDINATOR_ENDED) {
                coordinator_lose(coordinator, peer, "was lost: its connection closed",
                                 DEPARTURE_LOST, now_ns);
            } else if (coordinator->change.asked &&
                       coordinator->change.connection == event.connection) {
                coordinator->change.asked = false; /* the change goes on */
            }
        }
    }
    if (coordinator->phase != COORDINATOR_ENDED) {
        check_clock(coordinator, now_ns);
    }
    coordinator_close_round(coordinator, now_ns);
}

int64_t coordinator_deadline_ns(const struct coordinator *coordinator) {
    int64_t next_ns = coordinator->beat_at_ns;
    if (coordinator->phase == COORDINATOR_ENDED) {
        return INT64_MAX;
    }
    if (coordinator->phase < COORDINATOR_RUNNING) {
        int64_t give_up_ns = join_deadline_ns(coordinator);
        next_ns = coordinator->nag_at_ns < next_ns ? coordinator->nag_at_ns : next_ns;
        next_ns = give_up_ns < next_ns ? give_up_ns : next_ns;
    }
    if (coordinator->phase == COORDINATOR_RUNNING && coordinator->has_quorum) {
        int64_t close_ns = quorum_deadline_ns(&coordinator->quorum);
        next_ns = close_ns < next_ns ? close_ns : next_ns;
    }
    return next_ns;
}
