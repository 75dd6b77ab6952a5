/* quorum.h - when a round that need not wait for everyone is closed, and with whom.
 *
 * Shards say which workers' reports they hold whole; a worker has arrived when every shard with a
 * part in the model has said so. The open round is to be closed when all living workers have
 * arrived, or when `quorum` of them have (all, where fewer live) and the grace is over:
 *   grace N      N ns after the quorum was complete
 *   grace auto   first arrival + median + 4 MAD of the last 64 x workers lags, at least 1 ms, and
 *                not before the quorum is complete. A worker's lag is the time since the first
 *                arrival of its round; of one that missed its round, since the first arrival there,
 *                10 s at most. (MAD: median of the absolute deviations from the median.)
 * A report that came too late for its round in some shard can never be whole: what other shards
 * hold of it must be dropped (quorum_arrive() says AGAIN), unless late reports join the next round.
 * Invariant: a report is counted wholly, in all shards, or not at all.
 * A pure state machine: no I/O, time comes in as now_ns. Memory is taken at the start: a byte a
 * worker and shard, and 1 KiB a worker of lags.
 */
#ifndef RUBATO_SERVER_QUORUM_H
#define RUBATO_SERVER_QUORUM_H

#include "base/status.h"
#include "proto/discipline.h"

#include <stdbool.h>
#include <stdint.h>

#define QUORUM_LAGS_A_WORKER 64
#define QUORUM_ROUNDS_KEPT   64 /* whose first arrival is remembered */

struct quorum_config {
    int64_t quorum, grace_ns; /* GRACE_AUTO */
    bool late_joins;
    uint32_t workers;
    uint64_t shards; /* ids that may come */
    uint64_t voters; /* of them, with a part in the model */
};

/* What the shards say of one worker's report. */
struct quorum_worker {
    uint64_t seq;
    uint64_t held, late; /* voters that hold it for the open round; to which it came too late */
    bool gone;
};

struct quorum {
    struct quorum_config config;
    uint64_t round; /* the open one, from 1 */
    struct quorum_worker *workers;
    uint8_t *said; /* [workers][shards] */
    uint32_t living, arrived;
    int64_t first_ns;    /* first arrival of the open round; INT64_MIN: none yet */
    int64_t deadline_ns; /* INT64_MAX: the quorum is not there */
    int64_t firsts[QUORUM_ROUNDS_KEPT];
    int64_t *lags, *sorted; /* [capacity] */
    uint32_t lag_capacity, lag_count, lag_next;
};

struct quorum_arrival {
    uint64_t round, shard, seq;
    uint32_t rank;
};

void quorum_init(struct quorum *quorum, const struct quorum_config *config);
void quorum_free(struct quorum *quorum);

/* A shard's word: it holds the worker's report of the open round whole, or (an earlier round) the
 * report came too late. OK; AGAIN: it can never be whole, tell the shards to drop it; STALE: of an
 * older report, of a worker that has gone, or repeated, ignored; MISMATCH: a later round, no such
 * rank or shard, ignored. */
enum status quorum_arrive(struct quorum *quorum, const struct quorum_arrival *arrival,
                          int64_t now_ns) WARN_UNUSED;

/* Nothing waits for this worker any more. */
void quorum_leave(struct quorum *quorum, uint32_t rank, int64_t now_ns);

/* Is the open round to be closed now? */
bool quorum_due(const struct quorum *quorum, int64_t now_ns);

/* When it will be without another arrival; INT64_MAX: not by the clock. */
int64_t quorum_deadline_ns(const struct quorum *quorum);

/* Closes the round -> ranks [workers], ascending, of its contributors; returns how many. The next
 * one is open. */
uint32_t quorum_close(struct quorum *quorum, uint32_t *ranks);

/* The time after the first arrival that `auto` allows, with these lags [count], whose memory is
 * used up. Pure. */
int64_t quorum_spread_ns(int64_t *lags, uint32_t count);

#endif
