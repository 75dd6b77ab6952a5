/* coordinator_run.c - the running job: rounds, departures, the end. See coordinator.h. */
#include "base/log.h"
#include "base/memory.h"
#include "server/coordinator.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define STRAGGLER_PART 0.7 /* of the median speed: a worker below it is named */

uint32_t coordinator_living(const struct coordinator *coordinator) {
    return membership_count(&coordinator->membership, JOB_WORKER, PEER_JOINED);
}

uint64_t coordinator_tokens(const struct coordinator *coordinator) {
    uint64_t tokens = coordinator->departed_tokens;
    for (uint32_t i = 0; i < coordinator->membership.capacity; i++) {
        tokens += coordinator->membership.peers[i].tokens;
    }
    return tokens;
}

/* ---- departures ---- */

/* Do rounds need every worker now? */
static bool needs_all(const struct coordinator *coordinator) {
    const struct job *job = &coordinator->job;
    bool warming_up = coordinator->vote.round <= (uint64_t)coordinator->discipline.sync_warmup;
    return warming_up || discipline_needs_all(&coordinator->discipline, job->workers);
}

/* The weights that all wait for at first come from worker 0. It has sent them all when it leaves as
 * planned, since it has fetched them then; else only another's step tells that they are there. */
static bool owes_first_weights(const struct coordinator *coordinator, const struct peer *peer,
                               enum departure departure) {
    return peer->index == 0 && departure != DEPARTURE_PLANNED && !coordinator->weights_spread;
}

/* Can the running job do without this worker? One that has made all its reports owes nothing. */
static bool dispensable(const struct coordinator *coordinator, const struct peer *peer,
                        enum departure departure) {
    uint32_t left = coordinator_living(coordinator) - 1;
    if (departure == DEPARTURE_PLANNED || peer->state == PEER_DONE) {
        return left >= 1;
    }
    return !needs_all(coordinator) && !owes_first_weights(coordinator, peer, departure) &&
           left >= 1 && left >= coordinator->discipline.quorum;
}

/* The lowest rank that is left is to save the run; there is one. */
static void name_saver(struct coordinator *coordinator) {
    Rubato__Drained drained = RUBATO__DRAINED__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    while (membership_by_index(&coordinator->membership, JOB_WORKER, drained.saver) == NULL) {
        drained.saver++;
    }
    drained.tokens = coordinator_tokens(coordinator);
    coordinator->saver = drained.saver;
    message.body_case = RUBATO__MESSAGE__BODY_DRAINED;
    message.drained = &drained;
    coordinator_send_all(coordinator, JOB_WORKER, &message);
}

static void check_done(struct coordinator *coordinator) {
    uint32_t done = membership_count(&coordinator->membership, JOB_WORKER, PEER_DONE);
    if (coordinator->phase == COORDINATOR_RUNNING && done >= coordinator_living(coordinator)) {
        coordinator_name_straggler(coordinator);
        coordinator->phase = COORDINATOR_DRAINED;
        name_saver(coordinator);
    }
}

static void send_gone(struct coordinator *coordinator, uint32_t rank) {
    Rubato__Gone gone = RUBATO__GONE__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    gone.rank = rank;
    message.body_case = RUBATO__MESSAGE__BODY_GONE;
    message.gone = &gone;
    coordinator_send_all(coordinator, JOB_SERVER, &message);
}

/* The running job goes on without the worker `rank`, which is not a member any more. */
static void go_on_without(struct coordinator *coordinator, uint32_t rank, int64_t now_ns) {
    send_gone(coordinator, rank);
    if (coordinator->has_quorum) {
        quorum_leave(&coordinator->quorum, rank, now_ns);
    }
    coordinator_go_on_changing(coordinator);
    check_done(coordinator);
}

static void describe_loss(const struct peer *peer, const char *how, char *reason, size_t bytes) {
    if (peer->role == JOB_WORKER && peer->step > 0) {
        (void)snprintf(reason, bytes, "%s, at step %" PRIu64 ", %s", peer->name, peer->step, how);
    } else {
        (void)snprintf(reason, bytes, "%s %s", peer->name, how);
    }
}

/* All are done and one of them goes, which is not a member any more. Only a saver that says that it
 * cannot save is believed to speak for all: the next would write the same weights. */
static void go_on_saving(struct coordinator *coordinator, uint32_t rank, enum departure departure,
                         const char *reason) {
    bool saver = rank == coordinator->saver;
    if (saver && (departure == DEPARTURE_FAILED || coordinator_living(coordinator) == 0)) {
        coordinator_end(coordinator, reason, EXIT_CODE_UNREACHABLE);
        return;
    }
    send_gone(coordinator, rank); /* its broken data channels mean nothing */
    if (saver) {
        name_saver(coordinator);
        log_warn("%s; worker %u saves the run instead", reason, coordinator->saver);
    } else {
        log_warn("%s", reason);
    }
}

/* The job runs and a worker goes. */
static void go_on_running(struct coordinator *coordinator, struct peer *peer,
                          enum departure departure, const char *reason, int64_t now_ns) {
    uint32_t rank = peer->index;
    bool planned = departure == DEPARTURE_PLANNED;
    bool goes_on = dispensable(coordinator, peer, departure);
    bool owes = owes_first_weights(coordinator, peer, departure) && !needs_all(coordinator);
    membership_remove(peer);
    if (goes_on) {
        log_write(planned ? LOG_INFO : LOG_WARN, "%s; the job goes on with %u workers", reason,
                  coordinator_living(coordinator));
        go_on_without(coordinator, rank, now_ns);
    } else if (planned) {
        coordinator_end(coordinator, "all workers have left: nobody is there to save the weights",
                        EXIT_CODE_UNREACHABLE);
    } else {
        char whole[512];
        (void)snprintf(whole, sizeof whole, "%.440s%s", reason,
                       owes ? ", before its first weights were everywhere" : "");
        coordinator_end(coordinator, whole, EXIT_CODE_UNREACHABLE);
    }
}

void coordinator_lose(struct coordinator *coordinator, struct peer *peer, const char *how,
                      enum departure departure, int64_t now_ns) {
    char reason[512];
    uint32_t rank = peer->index;
    bool worker = peer->role == JOB_WORKER;
    describe_loss(peer, how, reason, sizeof reason);
    coordinator->departed_tokens += peer->tokens;
    if (coordinator->phase == COORDINATOR_RUNNING && worker) {
        go_on_running(coordinator, peer, departure, reason, now_ns);
        return;
    }
    membership_remove(peer);
    if (coordinator->phase == COORDINATOR_GATHERING) {
        log_warn("%s", reason);
        coordinator_settle(coordinator); /* without what its user gave */
    } else if (coordinator->phase == COORDINATOR_DRAINED && worker) {
        go_on_saving(coordinator, rank, departure, reason);
    } else {
        coordinator_end(coordinator, reason, EXIT_CODE_UNREACHABLE);
    }
}

/* ---- rounds ---- */

void coordinator_open_rounds(struct coordinator *coordinator) {
    const struct discipline *discipline = &coordinator->discipline;
    const struct job *job = &coordinator->job;
    if (!discipline_by_round(discipline) || discipline_needs_all(discipline, job->workers)) {
        return;
    }
    struct quorum_config config = {.quorum = discipline->quorum,
                                   .grace_ns = discipline->grace_ns,
                                   .late_joins = discipline->late_joins,
                                   .workers = (uint32_t)job->workers,
                                   .shards = coordinator->plan.shard_count,
                                   .voters = coordinator->vote.voters};
    quorum_init(&coordinator->quorum, &config);
    coordinator->ranks = memory_zeroed(config.workers, sizeof *coordinator->ranks);
    coordinator->has_quorum = true;
}

static bool owns_shard(const struct peer *peer, uint64_t shard) {
    return peer->role == JOB_SERVER && shard >= peer->first_shard &&
           shard - peer->first_shard < peer->shards;
}

static void send_drop(struct coordinator *coordinator, const Rubato__Arrived *arrived) {
    Rubato__Drop drop = RUBATO__DROP__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    drop.rank = arrived->rank;
    drop.seq = arrived->seq;
    message.body_case = RUBATO__MESSAGE__BODY_DROP;
    message.drop = &drop;
    coordinator_send_all(coordinator, JOB_SERVER, &message);
}

void coordinator_take_arrived(struct coordinator *coordinator, const struct peer *peer,
                              const Rubato__Arrived *arrived, int64_t now_ns) {
    if (coordinator->phase != COORDINATOR_RUNNING) {
        return;
    }
    struct quorum_arrival arrival = {.round = arrived->round,
                                     .shard = arrived->shard,
                                     .seq = arrived->seq,
                                     .rank = arrived->rank};
    bool sound = coordinator->has_quorum && owns_shard(peer, arrived->shard);
    enum status status =
        sound ? quorum_arrive(&coordinator->quorum, &arrival, now_ns) : STATUS_MISMATCH;
    if (status == STATUS_MISMATCH) {
        coordinator_end(coordinator, "a shard's word on a round does not fit the job",
                        EXIT_CODE_PROTOCOL);
    } else if (status == STATUS_AGAIN) {
        send_drop(coordinator, arrived);
    }
}

void coordinator_close_round(struct coordinator *coordinator, int64_t now_ns) {
    Rubato__Close close = RUBATO__CLOSE__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    if (coordinator->phase != COORDINATOR_RUNNING || !coordinator->has_quorum ||
        !quorum_due(&coordinator->quorum, now_ns)) {
        return;
    }
    close.round = coordinator->quorum.round;
    coordinator->closed_count = quorum_close(&coordinator->quorum, coordinator->ranks);
    close.n_ranks = coordinator->closed_count;
    close.ranks = coordinator->ranks;
    message.body_case = RUBATO__MESSAGE__BODY_CLOSE;
    message.close = &close;
    coordinator_send_all(coordinator, JOB_SERVER, &message);
}

/* How many workers may be in the report's sum? */
static bool contributors_fit(const struct coordinator *coordinator, const Rubato__Report *report) {
    if (coordinator->has_quorum) {
        return report->round < coordinator->quorum.round &&
               report->contributors == coordinator->closed_count;
    }
    return report->contributors <= (uint64_t)coordinator->job.workers;
}

static void send_verdict(struct coordinator *coordinator, const struct vote_verdict *decided) {
    Rubato__Verdict verdict = RUBATO__VERDICT__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    verdict.round = decided->round;
    verdict.skip = decided->skip;
    verdict.scale = decided->scale;
    message.body_case = RUBATO__MESSAGE__BODY_VERDICT;
    message.verdict = &verdict;
    coordinator_send_all(coordinator, JOB_SERVER, &message);
}

void coordinator_take_report(struct coordinator *coordinator, const struct peer *peer,
                             const Rubato__Report *report) {
    struct vote_verdict decided;
    struct vote_report vote = {.round = report->round,
                               .shard = report->shard,
                               .contributors = report->contributors,
                               .weight = report->weight,
                               .nonfinite = report->nonfinite,
                               .block_count = report->n_blocks,
                               .blocks = report->blocks,
                               .sums_of_squares = report->sums_of_squares};
    if (coordinator->phase != COORDINATOR_RUNNING) {
        return;
    }
    bool sound = owns_shard(peer, report->shard) && report->n_blocks == report->n_sums_of_squares;
    /* Ignored, a report that does not fit would leave the round open for ever. */
    enum status status = sound ? vote_add(&coordinator->vote, &vote) : STATUS_MISMATCH;
    if ((status == STATUS_OK || status == STATUS_AGAIN) && !contributors_fit(coordinator, report)) {
        status = STATUS_MISMATCH;
    }
    if (status == STATUS_MISMATCH) {
        coordinator_end(coordinator, "a shard's report does not fit the plan", EXIT_CODE_PROTOCOL);
    }
    if (status != STATUS_OK) {
        return;
    }
    /* What workers moved by in local steps is no gradient, and is not clipped. */
    vote_decide(&coordinator->vote, coordinator->discipline.local ? 0 : coordinator->job.clip,
                &decided);
    send_verdict(coordinator, &decided);
    if (decided.nonfinite) {
        log_warn("round %" PRIu64 " skipped: the gradient is not finite", decided.round);
    } else if (decided.skip) {
        log_debug("round %" PRIu64 " skipped: it has no tokens to learn from", decided.round);
    } else {
        log_debug("round %" PRIu64 ": gradient norm %g, scaled by %g", decided.round, decided.norm,
                  (double)decided.scale);
    }
    if (coordinator->vote.skipped_in_row >= JOB_NONFINITE_MAX) {
        char reason[96];
        (void)snprintf(reason, sizeof reason,
                       "diverged: %d rounds in a row were not finite; try a lower --lr",
                       JOB_NONFINITE_MAX);
        coordinator_end(coordinator, reason, EXIT_CODE_TRAINING);
    }
}

/* ---- the end ---- */

void coordinator_take_done(struct coordinator *coordinator, struct peer *peer,
                           const Rubato__Done *done) {
    if (coordinator->phase != COORDINATOR_RUNNING || peer->role != JOB_WORKER) {
        return;
    }
    peer->state = PEER_DONE;
    peer->tokens = done->tokens > peer->tokens ? done->tokens : peer->tokens;
    coordinator->weights_spread = true;
    coordinator_go_on_changing(coordinator);
    check_done(coordinator);
}

void coordinator_take_saved(struct coordinator *coordinator, const struct peer *peer) {
    if (coordinator->phase == COORDINATOR_DRAINED && peer->role == JOB_WORKER &&
        peer->index == coordinator->saver) {
        coordinator_end(coordinator, "", EXIT_CODE_OK);
    }
}

/* ---- who holds the others up ---- */

static int compare_speeds(const void *left, const void *right) {
    const double *a = left;
    const double *b = right;
    return (*a > *b) - (*a < *b);
}

void coordinator_name_straggler(const struct coordinator *coordinator) {
    double speeds[SHARD_WORKERS_MAX];
    const struct peer *slowest = NULL;
    size_t count = 0;
    for (uint32_t i = 0; i < coordinator->membership.capacity; i++) {
        const struct peer *peer = &coordinator->membership.peers[i];
        if (peer->state != PEER_FREE && peer->role == JOB_WORKER && peer->speed > 0 &&
            count < SHARD_WORKERS_MAX) {
            speeds[count++] = peer->speed;
            slowest = slowest == NULL || peer->speed < slowest->speed ? peer : slowest;
        }
    }
    if (count < 2) {
        return;
    }
    qsort(speeds, count, sizeof *speeds, compare_speeds);
    double median = (speeds[(count - 1) / 2] + speeds[count / 2]) / 2;
    if (slowest->speed < STRAGGLER_PART * median) {
        log_info("slowest %s: %.1f steps/s of %.1f", slowest->name, slowest->speed, median);
    }
}
