/* shard_rig.h - one struct shard with a fake channel and hand-made frames, for the shard's tests.
 *
 * The model is a matrix w [6, 2], cut into blocks 0, 1 and 2 of 4 values, and a vector b [3], block
 * 3. With two fragments, blocks 0 and 2 are fragment 0, blocks 1 and 3 fragment 1. Workers have
 * sessions 1000 + rank. A plain twin of the weights (struct twin) is stepped by the optimizers'
 * reference versions, and must have the same bits as the shard's.
 */
#ifndef RUBATO_TESTS_SHARD_RIG_H
#define RUBATO_TESTS_SHARD_RIG_H

#include "base/random.h"
#include "kernels/optimizer.h"
#include "server/shard_parts.h"
#include "tests/fake_channel.h"

#define RIG_JOB   UINT64_C(0xa11ce)
#define RIG_EPOCH 5

enum { RIG_BLOCKS = 4, RIG_VALUES = 4, RIG_WORKERS = 6 };

struct rig {
    struct fake_channel fake;
    struct job job;
    struct options options;
    struct plan plan;
    struct shard shard;
    double weight; /* of the pushes to come; 1 at first */
    uint32_t seen; /* sends that the test has looked at */
    int64_t now_ns;
};

/* What the weights must be. */
struct twin {
    float weights[RIG_BLOCKS][RIG_VALUES];
    float moment1[RIG_BLOCKS][RIG_VALUES];
    float moment2[RIG_BLOCKS][RIG_VALUES];
    uint64_t version[RIG_BLOCKS], updates[RIG_BLOCKS];
};

/* A job without clip, decay, momentum and warm-up, with values as they are on the wire; the test
 * changes what it needs before rig_open(). */
void rig_prepare(struct rig *rig, const char *mode, int64_t workers);

void rig_open(struct rig *rig, uint64_t shards, uint64_t id);

void rig_close(struct rig *rig);

void rig_poll(struct rig *rig);

uint32_t rig_count(const struct rig *rig, uint64_t block);

/* ---- frames from workers ---- */

struct frame rig_frame(const struct rig *rig, enum frame_kind kind, uint32_t rank, uint64_t block);

void rig_init(struct rig *rig, uint64_t block, const float *weights);

void rig_pull(struct rig *rig, uint32_t rank, uint64_t block, uint32_t ticket);

/* Push `seq` with ticket seq + 1: the first ticket was the pull's. */
void rig_push(struct rig *rig, uint32_t rank, uint64_t block, uint64_t seq, uint64_t version,
              const float *grad);

void rig_commit(struct rig *rig, uint32_t rank, uint64_t seq, double sum);

/* ---- orders from the coordinator ---- */

void rig_verdict(struct rig *rig, uint64_t round, bool skip, float scale);
void rig_close_round(struct rig *rig, uint64_t round, uint32_t count, const uint32_t *ranks);
void rig_order(struct rig *rig, const struct shard_order *order);
void rig_gone(struct rig *rig, uint32_t rank);

/* ---- notes to it ---- */

/* The next note must be of this kind. */
struct shard_note rig_note(struct rig *rig, enum shard_note_kind kind);
void rig_expect_arrival(struct rig *rig, uint64_t round, uint32_t rank, uint64_t seq);
void rig_expect_silence(struct rig *rig);

/* ---- what the shard does ---- */

/* The blocks in the order in which answers that are due together leave: the vector's first. */
extern const uint64_t rig_need[RIG_BLOCKS];

/* The next answer, NULL when there is none. */
const struct fake_send *rig_next(struct rig *rig);

/* The next answer must be this one. */
const struct fake_send *rig_expect(struct rig *rig, uint32_t rank, uint64_t block, uint32_t ticket,
                                   uint64_t seq, uint64_t version);

const struct shard_block *rig_block(const struct rig *rig, uint64_t block);

/* ---- the twin ---- */

void twin_open(struct twin *twin, const struct rig *rig);

/* First weights and first pulls of all workers; answers are dropped. */
void rig_start(struct rig *rig, struct twin *twin);

/* The block's next update, on grad * scale. A step of the learning rate's schedule is an update in
 * sync; in the other modes it is `workers` updates, each at the rate divided by their number. */
void twin_step(struct twin *twin, const struct rig *rig, uint64_t block, const float *grad,
               float scale);

/* A round or a push that changed nothing. */
void twin_skip(struct twin *twin, uint64_t block);

void twin_compare(const struct twin *twin, const struct rig *rig);

/* ---- whole reports ---- */

/* Worker `rank`'s gradient of any block. */
extern const float rig_grads[4][RIG_VALUES];

/* Pushes report `seq` of a worker: the blocks of its fragment, of their present versions. */
void rig_push_report(struct rig *rig, uint32_t rank, uint64_t seq);

/* The twin's step on the sum of these workers' gradients, in this order. */
void twin_round(struct twin *twin, const struct rig *rig, uint64_t block, uint32_t count,
                const uint32_t *ranks, float scale);

/* Each block's answer of the report goes to this worker, once, and counted with this weight. */
void rig_expect_answers(struct rig *rig, uint32_t rank, uint64_t seq, uint64_t version,
                        double weight);

/* Answers to the worker that the test has not seen. */
uint32_t rig_answers_to(const struct rig *rig, uint32_t rank);

/* All answers are seen, and have arrived. */
void rig_see_all(struct rig *rig);

/* Values of very different sizes, so that the order of additions shows in the bits. */
void rig_gradient(struct random_stream *random, float *grad);

/* All that frames may change, but for counters, in one number. */
uint64_t rig_state(const struct rig *rig);

#endif
