/* admission.h - may this push count, may this request be answered: pure functions.
 *
 * The mode is three numbers (struct discipline, proto/job.h); nothing else decides. A worker's
 * clock for a block is the seq of its last push there that had its turn.
 * Invariant: per (session, block) pushes have their turn in order of seq, each exactly once.
 */
#ifndef RUBATO_SERVER_ADMISSION_H
#define RUBATO_SERVER_ADMISSION_H

#include "proto/job.h"

#include <stdbool.h>
#include <stdint.h>

enum admission {
    ADMISSION_NEW,     /* the next push of this worker: hold it until its turn */
    ADMISSION_HELD,    /* a repetition of one that waits for its turn: drop it */
    ADMISSION_APPLIED, /* a repetition of one that had its turn: answer again */
    ADMISSION_STALE,   /* of another session: drop it */
    ADMISSION_BREACH   /* seq leaves a gap: the worker broke the protocol */
};

/* What a shard knows of one worker at one block. */
struct admission_record {
    uint64_t session;
    uint64_t applied_seq; /* 0: none yet */
    uint64_t held_seq;    /* 0: none is held */
};

enum admission admission_push(const struct admission_record *record, uint64_t session,
                              uint64_t seq);

/* May a worker with this clock have the block, when the slowest worker's clock is `slowest`? */
bool admission_answer(const struct discipline *discipline, uint64_t clock, uint64_t slowest);

/* True when pushes are summed into rounds that close together (a quorum of all); false when each is
 * applied by itself. */
bool admission_by_round(const struct discipline *discipline);

#endif
