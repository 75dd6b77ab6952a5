/* vote.h - the one small vote a round: from each shard's sums of squares to one decision for all.
 *
 * With F fragments, round n is of the blocks of fragment (n - 1) mod F, and has a report from each
 * shard that owns one of them: for each such block the sum of squares of the summed gradient, and
 * how many workers with which weight are in the sum. When all have reported, the total is taken in
 * order of block id, so that the norm has the same bits for any number of shards; from it follow
 * the clip factor of the mean gradient (min(1, clip / (norm + 1e-6)), as PyTorch's
 * clip_grad_norm_), and whether the round is skipped because a value was not finite, or because
 * nobody had a token to learn from (weight 0). A pure state machine: no I/O, no clock.
 */
#ifndef RUBATO_SERVER_VOTE_H
#define RUBATO_SERVER_VOTE_H

#include "base/status.h"
#include "proto/plan.h"

#include <stdbool.h>
#include <stdint.h>

struct vote {
    uint64_t round; /* the one that is open, from 1 */
    uint64_t shard_count;
    uint64_t block_count;
    uint64_t fragment_count;
    uint64_t *owner;         /* [block_count] the shard of each block */
    uint64_t *fragments;     /* [block_count] PLAN_FROZEN for a block of none */
    uint64_t *owned;         /* [shard_count] how many blocks of the round's fragment each has */
    uint64_t voters;         /* shards that own one */
    uint64_t reported;       /* of them, this round */
    bool *has_reported;      /* [shard_count] */
    double *sums_of_squares; /* [block_count] */
    uint64_t contributors;   /* as the first report says; the others must say the same */
    double weight;
    bool nonfinite;
    uint64_t skipped_in_row; /* not finite, since the last good one */
    uint64_t skipped;        /* rounds skipped in all */
};

struct vote_report {
    uint64_t round, shard, contributors;
    double weight; /* the sum of the contributors' */
    bool nonfinite;
    uint64_t block_count;
    const uint64_t *blocks;        /* [block_count], ascending ids */
    const double *sums_of_squares; /* [block_count] */
};

struct vote_verdict {
    uint64_t round;
    bool skip;
    bool nonfinite; /* why it is skipped; else for want of weight */
    float scale;    /* clip factor of the mean gradient */
    double norm;    /* global norm of the mean gradient */
};

/* Memory for the plan's blocks and shards. */
void vote_init(struct vote *vote, const struct plan *plan);
void vote_free(struct vote *vote);

/* OK: the round is complete, ask for the verdict. AGAIN: others are missing. STALE: of an earlier
 * round, or repeated; ignored. MISMATCH: a later round, a shard that does not exist, other blocks
 * than the shard's own in the fragment, no contributors, a weight that is negative or not finite,
 * or another number or weight of contributors than the others'; ignored. */
enum status vote_add(struct vote *vote, const struct vote_report *report) WARN_UNUSED;

/* The decision of the complete round; the next round is open afterwards. clip 0: off. */
void vote_decide(struct vote *vote, double clip, struct vote_verdict *verdict);

/* The clip factor of a gradient with this norm; 1 when clip is 0. */
float vote_clip_factor(double clip, double norm);

#endif
