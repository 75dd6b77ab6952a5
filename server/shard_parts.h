/* shard_parts.h - the parts that a shard is made of, for each other: shard.h tells how they work
 * together. All are called by the shard's owner thread. */
#ifndef RUBATO_SERVER_SHARD_PARTS_H
#define RUBATO_SERVER_SHARD_PARTS_H

#include "compression/decoder.h"
#include "server/shard.h"

/* ---- push.c: what becomes of a worker's frames ---- */

/* Keeps the push in its slot; true when the slot is now the lane's. The frame is of this block. */
bool push_take(struct shard *shard, struct shard_block *block, const struct frame *frame,
               const struct channel_event *event);

/* The worker committed: applies what is held of that push. */
void push_commit(struct shard *shard, const struct frame *frame);

/* Gives the held push's slot back. */
void push_release(struct shard *shard, struct shard_lane *lane);

/* The held push had its turn with this weight, whether it changed the block or not; the worker is
 * owed an answer. */
void push_had_turn(struct shard *shard, struct shard_block *block, uint32_t rank, double weight);

/* The held push's payload is malformed, although its check-sum is right: says so. It counts as one
 * that is not finite. */
void push_damaged(struct shard *shard, const struct shard_block *block, uint32_t rank);

/* The held push came too late: its turn, with weight 0. */
void push_drop(struct shard *shard, struct shard_block *block, uint32_t rank);

/* The worker will send nothing more. */
void push_gone(struct shard *shard, uint32_t rank);

/* ---- aggregate.c: rounds ---- */

/* A push is in its lane. */
void aggregate_arrived(struct shard *shard, struct shard_block *block, uint32_t rank);

/* A push of a round was dropped as it came. */
void aggregate_late(struct shard *shard, const struct shard_block *block, uint32_t rank,
                    uint64_t seq, uint64_t base_version);

/* Orders of the coordinator's. */
void aggregate_close(struct shard *shard, uint64_t round, const struct shard_ranks *ranks);
void aggregate_drop(struct shard *shard, uint32_t rank, uint64_t seq);
void aggregate_verdict(struct shard *shard, const struct vote_verdict *verdict);
void aggregate_gone(struct shard *shard, uint32_t rank);

/* This discipline holds: at the start; */
void aggregate_begin(struct shard *shard, const struct discipline *discipline);

/* or from now on. Nothing may be held. */
void aggregate_change(struct shard *shard, const struct discipline *discipline);

/* Notes that it does. */
void aggregate_tell_changed(struct shard *shard);

/* Says what could not be said while the ring of notes was full. */
void aggregate_tell_rest(struct shard *shard);

/* ---- update.c: optimizer steps ---- */

/* Chooses the optimizer from the job. INVALID: no such optimizer. */
enum status update_init(struct shard *shard) WARN_UNUSED;

struct optimizer_piece update_piece(const struct plan_block *plan);

struct update {
    float grad_scale;
    double rate;                   /* factor of the learning rate */
    const struct shard_lane *lane; /* of a push by itself, for delay compensation; else NULL */
    struct decoder *push;          /* the gradient, not yet decoded; NULL: it is in the sum */
};

/* One optimizer step of the block, which makes its next version's answer too, where it can: both
 * while a tile of it is in the cache. What was in the sum is used up. */
void update_block(struct shard *shard, struct shard_block *block, const struct update *update);

/* The step of the job's schedule that the block has reached. */
uint64_t update_position(const struct shard *shard, const struct shard_block *block);

/* ---- mean.c: --optimizer worker:NAME ---- */

/* Opens shard->mean where the job's workers step by themselves. */
enum status mean_init(struct shard *shard) WARN_UNUSED;

/* Most bytes of an encoded mean of one of the shard's blocks. */
size_t mean_bytes(const struct shard *shard);

/* The round's sum is complete and judged: its mean is the answer from now on. */
void mean_decide(struct shard *shard, struct shard_block *block,
                 const struct vote_verdict *verdict);

/* The answer -> the buffer, once a version; the sum is empty then. */
void mean_encode(struct shard *shard, struct shard_block *block, struct shard_buffer *buffer);

/* Do all whose pushes are in the sum compute with the same weights? Else it is logged. */
bool mean_agrees(const struct shard *shard, const struct shard_block *block);

/* ---- replica.c: --pull delta-* ---- */

/* Arena bytes of a block's replica; and where it is laid out. Frozen blocks have none. */
size_t replica_bytes(const struct shard *shard, const struct plan_block *plan);
void replica_init(struct shard *shard, struct shard_block *block);

/* Brings the replica to the block's version, in one step, if it is not there. */
void replica_follow(const struct shard *shard, struct shard_block *block);

/* Steps from a worker's replica to this one; REPLICA_WHOLE: they are not at hand. */
uint32_t replica_steps_from(const struct shard_block *block, const struct delta_place *place);

/* payload = the last `steps` steps; returns its bytes, fewer than 2 a value. */
size_t replica_encode(const struct shard *shard, const struct shard_block *block, uint32_t steps,
                      uint8_t *payload);

/* ---- reply.c: answers to workers ---- */

/* The worker `rank` waits for `block`. */
void reply_due(struct shard *shard, struct shard_block *block, uint32_t rank);

/* It does not any more. */
void reply_cancel(struct shard *shard, struct shard_block *block, uint32_t rank);

/* A living worker's clock of the block moved on from this one, or the worker has gone. */
void reply_clock(struct shard_block *block, uint64_t from);

/* The block has a new version: its encoded answer is old. */
void reply_outdated(struct shard *shard, struct shard_block *block);

/* The same, and the new weights are at hand. Where an answer is all of them and there is room for
 * it, returns where they are to be written by cast_encode(shard->pull, ...); else NULL. */
uint8_t *reply_open(struct shard *shard, struct shard_block *block);

/* Sends the answers that are due and allowed; true when one was sent. */
bool reply_flush(struct shard *shard);

/* A send of buffer `cookie` is over. */
void reply_sent(struct shard *shard, uint64_t cookie);

/* Makes connections to workers again that broke, and sends what may be lost. */
void reply_redial(struct shard *shard, int64_t now_ns);

#endif
