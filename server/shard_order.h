/* shard_order.h - what a shard and the control thread of its server say to each other.
 *
 * Orders go to the shard, notes come from it, each through a ring (base/ring.h) of these structs.
 */
#ifndef RUBATO_SERVER_SHARD_ORDER_H
#define RUBATO_SERVER_SHARD_ORDER_H

#include "proto/discipline.h"
#include "server/vote.h"

#include <stdint.h>

#define SHARD_WORKERS_MAX 1024

/* A set of ranks. */
struct shard_ranks {
    uint64_t bits[SHARD_WORKERS_MAX / 64];
};

static inline void shard_ranks_add(struct shard_ranks *ranks, uint32_t rank) {
    ranks->bits[rank / 64] |= UINT64_C(1) << rank % 64;
}

static inline void shard_ranks_remove(struct shard_ranks *ranks, uint32_t rank) {
    ranks->bits[rank / 64] &= ~(UINT64_C(1) << rank % 64);
}

/* The first that is `rank` or higher; SHARD_WORKERS_MAX: none is. */
static inline uint32_t shard_ranks_next(const struct shard_ranks *ranks, uint32_t rank) {
    for (uint32_t word = rank / 64; word < SHARD_WORKERS_MAX / 64; word++, rank = 64 * word) {
        uint64_t bits = ranks->bits[word] >> rank % 64;
        if (bits != 0) {
            return rank + (uint32_t)__builtin_ctzll(bits);
        }
    }
    return SHARD_WORKERS_MAX;
}

static inline bool shard_ranks_has(const struct shard_ranks *ranks, uint32_t rank) {
    return (ranks->bits[rank / 64] >> rank % 64 & 1) != 0;
}

enum shard_note_kind {
    SHARD_REPORT,  /* the open round is summed: report */
    SHARD_ARRIVED, /* a worker's report is whole here, or came too late: arrival */
    SHARD_CHANGED  /* the discipline that was ordered holds */
};

struct shard_arrival {
    uint64_t round; /* the open one; an earlier one: too late for it */
    uint64_t seq;
    uint32_t rank;
};

struct shard_note {
    enum shard_note_kind kind;
    union {
        struct vote_report report;
        struct shard_arrival arrival;
    };
};

enum shard_order_kind {
    SHARD_VERDICT, /* verdict */
    SHARD_CLOSE,   /* close: sum these workers' reports */
    SHARD_DROP,    /* drop: this report will never be whole */
    SHARD_GONE,    /* gone: nothing waits for this worker */
    SHARD_RELEASE, /* answer everyone, whatever the staleness: a change of mode is coming */
    SHARD_CHANGE   /* discipline: holds from now on */
};

struct shard_order {
    enum shard_order_kind kind;
    union {
        struct vote_verdict verdict;
        struct {
            uint64_t round;
            struct shard_ranks ranks;
        } close;
        struct {
            uint64_t seq;
            uint32_t rank;
        } drop;
        uint32_t gone;
        struct discipline discipline;
    };
};

#endif
