/* admission.h - what becomes of a push, and may a request be answered: pure functions.
 *
 * The mode is a few numbers (struct discipline, proto/discipline.h); nothing else decides. Reports
 * of a worker are numbered from 1; with F fragments, block b is in every F-th report, from that of
 * its fragment on. A worker's clock for a block is the number of its last report there that had its
 * turn.
 * Invariant: per (session, block) pushes have their turn in order of seq, each exactly once.
 */
#ifndef RUBATO_SERVER_ADMISSION_H
#define RUBATO_SERVER_ADMISSION_H

#include "proto/discipline.h"

#include <stdbool.h>
#include <stdint.h>

enum admission {
    ADMISSION_NEW,     /* the next push of this worker: hold it until its turn */
    ADMISSION_HELD,    /* a repetition of one that waits for its turn: drop it */
    ADMISSION_APPLIED, /* a repetition of one that had its turn: answer again */
    ADMISSION_STALE,   /* of another session: drop it */
    ADMISSION_BREACH   /* not this block's next seq: the worker broke the protocol */
};

/* What a shard knows of one worker at one block. */
struct admission_record {
    uint64_t session;
    uint64_t applied_seq; /* 0: none yet */
    uint64_t held_seq;    /* 0: none is held */
};

/* A push of a block that is in fragment `fragment` of `fragments`. */
enum admission admission_push(const struct admission_record *record, uint64_t session, uint64_t seq,
                              uint64_t fragment, uint64_t fragments);

/* Must a new push be dropped at once? Of a round with a quorum: when the rounds are over, or the
 * gradient is not of the block's present version, and a late report does not join the next round.
 * needs_all: the rounds wait for everyone. */
struct admission_round {
    uint64_t round, rounds; /* the open one, from 1, and how many there are */
    bool needs_all;
};
bool admission_drops(const struct discipline *discipline, const struct admission_round *round,
                     uint64_t base_version, uint64_t version);

/* May a worker with this clock have the block, when the slowest worker's clock is `slowest`? In
 * rounds always: an answer is due only when its round is closed. Both clocks count reports: with
 * fragments a block is in every F-th one, and the bound then holds with up to F - 1 to spare. */
bool admission_answer(const struct discipline *discipline, uint64_t clock, uint64_t slowest);

/* The text of --staleness-scale -> its meaning; INVALID for another text. */
enum staleness_scale { STALENESS_SCALE_NONE, STALENESS_SCALE_INVERSE, STALENESS_SCALE_EXP };
enum status admission_scale_find(const char *text, enum staleness_scale *scale) WARN_UNUSED;

/* Factor of the learning rate of a push with this staleness. Among W workers of equal speed a push
 * is W - 1 updates stale; e is what it has more: 1, W / (W + e), or exp(-e / W). `living` is W. */
double admission_rate(enum staleness_scale scale, uint64_t staleness, uint32_t living);

#endif
