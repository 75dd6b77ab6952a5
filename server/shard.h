/* shard.h - one shard: the sole owner of a set of blocks, their weights and optimizer state.
 *
 * Single-threaded and without waits: shard_poll() takes what the channel and the control thread
 * have brought, does all that can be done, and returns. In a server each shard has a thread; in the
 * simulator many share one.
 *
 * The life of a push (seq s of worker r at block b):
 *   arrives -> admission_push() -> held in its channel slot, compressed ->
 *     by round:    added to the block's sum in rank order (aggregate.c); when all workers are in
 *                  all blocks, the shard reports sums of squares; the coordinator's verdict gives
 *                  every shard the same clip factor, and the optimizer steps every block;
 *     by itself:   waits for the worker's COMMIT, which tells the norm of its whole gradient; then
 *                  clip, optimizer, done. So a push of a dying worker counts wholly or not.
 *   -> an answer is due to the worker; it is sent once admission_answer() allows (reply.c).
 *
 * Memory is one arena, from the plan: weights, moments and sum in f32 (16 bytes a value with
 * AdamW), encoded answers, and the channel's slots for `workers` pushes of each block.
 */
#ifndef RUBATO_SERVER_SHARD_H
#define RUBATO_SERVER_SHARD_H

#include "base/memory.h"
#include "base/ring.h"
#include "base/wake.h"
#include "compression/codec.h"
#include "proto/job.h"
#include "proto/plan.h"
#include "server/admission.h"
#include "server/vote.h"
#include "transport/channel.h"

#include <stdatomic.h>

#define SHARD_NO_SLOT   UINT32_MAX
#define SHARD_NO_BUFFER UINT32_MAX

/* One worker's dealings with one block. */
struct shard_lane {
    struct admission_record record;
    uint32_t slot;          /* the held push's, or SHARD_NO_SLOT */
    const uint8_t *payload; /* in the slot */
    size_t payload_bytes;
    const struct codec *codec;
    uint64_t base_version; /* of the weights that the held gradient is of */
    uint32_t held_ticket;  /* of the held push */
    uint32_t ticket;       /* of the last request that may be answered */
    uint32_t staleness;    /* of the last push that had its turn */
    bool due;              /* the worker waits for an answer */
};

struct shard_block {
    const struct plan_block *plan;
    float *weights, *moment1, *moment2, *sum; /* [plan.count] f32; moment2 NULL with sgd */
    double sum_of_squares;                    /* of sum, when summed */
    uint64_t version;                         /* updates that it has had */
    uint32_t next_rank;                       /* ranks below are in the sum (by round) */
    bool ready;                               /* has weights */
    uint32_t buffer;                          /* that holds the answer of `version` */
    uint32_t due;                             /* lanes with an answer due */
    struct shard_lane *lanes;                 /* [workers] */
};

/* An encoded answer; several sends may share it. */
struct shard_buffer {
    uint8_t *bytes;
    size_t used;
    uint64_t xxh3;
    uint32_t sends; /* in flight */
    bool current;   /* its block still points at it */
};

/* A worker's word that all of push `seq` is on its way (modes that apply each push by itself). */
struct shard_commit {
    uint64_t seq;
    double sum_of_squares;
};

struct shard_counters {
    uint64_t pushes; /* that had their turn, one a block */
    uint64_t duplicates, stale, breaches, corrupt;
    uint64_t skipped; /* pushes or rounds whose gradient was not finite */
    uint64_t staleness_sum, staleness_max;
    uint64_t answers;
};

struct shard_config {
    const struct job *job;
    const struct plan *plan;
    uint64_t id; /* in the plan */
    uint64_t job_id, epoch;
    struct channel *channel;     /* open; the shard's from now on, closed by shard_free */
    const uint64_t *sessions;    /* [job.workers], copied */
    const struct wake *reported; /* signalled after each report, or NULL */
};

struct shard {
    struct shard_config config;
    struct discipline discipline;
    bool by_round;
    uint32_t workers;
    const struct codec *pull;
    struct shard_block *blocks; /* [block_count], ascending ids */
    uint64_t block_count;
    uint64_t *index; /* [plan.block_count] -> position in blocks, or UINT64_MAX */
    uint64_t round;  /* open round, from 1 (by round) */
    uint64_t blocks_summed;
    uint64_t *report_blocks; /* [block_count] what report.blocks points at */
    double *report_sums;
    uint64_t *sessions;           /* [workers] */
    struct shard_commit *commits; /* [workers] */
    struct shard_buffer *buffers;
    uint32_t buffer_count;
    uint32_t *free_buffers;
    uint32_t free_count;
    uint64_t due;         /* answers due in all blocks */
    struct ring reports;  /* struct vote_report: shard -> control thread */
    struct ring verdicts; /* struct vote_verdict: control thread -> shard */
    struct arena arena;
    struct shard_counters counters;
    _Atomic int64_t lost_worker; /* the first whose channel broke, -1: none; any thread may read */
};

/* What a shard asks of its channel, from the plan: to be opened before shard_init. */
void shard_channel_config(const struct job *job, const struct plan *plan, uint64_t id,
                          struct channel_config *config);

/* The config's pointers must outlive the shard. MEMORY; the channel is the caller's still then. */
enum status shard_init(struct shard *shard, const struct shard_config *config) WARN_UNUSED;
void shard_free(struct shard *shard);

/* Does what can be done now; true when something was. Owner thread only. */
bool shard_poll(struct shard *shard);

/* aggregate.c: sums, rounds and optimizer steps. */

/* A push is in its lane: add it, or apply it, when its turn has come. */
void aggregate_arrived(struct shard *shard, struct shard_block *block, uint32_t rank);

/* The worker committed: apply what is held of that push. */
void aggregate_commit(struct shard *shard, uint32_t rank, const struct shard_commit *commit);

/* The coordinator decided the open round. */
void aggregate_verdict(struct shard *shard, const struct vote_verdict *verdict);

/* reply.c: answers to workers. */

/* The worker `rank` waits for `block`. */
void reply_due(struct shard *shard, struct shard_block *block, uint32_t rank);

/* The block has a new version: its encoded answer is old. */
void reply_outdated(struct shard *shard, struct shard_block *block);

/* Sends the answers that are due and allowed; true when one was sent. */
bool reply_flush(struct shard *shard);

/* A send of buffer `cookie` is over. */
void reply_sent(struct shard *shard, uint64_t cookie);

#endif
