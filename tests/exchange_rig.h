/* exchange_rig.h - one struct exchange with a fake channel and hand-made answers, for its tests.
 *
 * The model is a matrix w [6, 2], cut into blocks 0, 1 and 2 of 4 values, and a vector b [3], block
 * 3. Shard 0 has blocks 0 and 2, shard 1 has 1 and 3. The push's ticket is seq + 1: the first
 * ticket was the pull's.
 */
#ifndef RUBATO_TESTS_EXCHANGE_RIG_H
#define RUBATO_TESTS_EXCHANGE_RIG_H

#include "base/clock.h"
#include "tests/fake_channel.h"
#include "worker/exchange.h"

#define JOB     UINT64_C(0xa11ce)
#define SESSION UINT64_C(77)

enum { BLOCKS = 4, SHARDS = 2, RANK = 3, EPOCH = 5, VALUES = 15 };

struct rig {
    struct fake_channel fake;
    struct job job;
    struct options options;
    struct plan plan;
    struct exchange exchange;
    float weights[VALUES + 1]; /* the last one is nobody's */
    bool keeps;                /* answers are installed as they come, */
    uint8_t codecs[BLOCKS];    /* in these */
    int64_t now_ns;
    uint32_t seen; /* sends that the test has looked at */
};

/* An exchange of an async job with a lease of 10 s; `push` is its codec. */
void rig_open(struct rig *rig, uint32_t rank, const char *push);

/* rig_open()'s last step: the exchange, of rig->job as it is now; devices: who encodes, or NULL. */
void rig_exchange(struct rig *rig, uint32_t rank, const struct exchange_devices *devices);

void rig_close(struct rig *rig);

void rig_poll(struct rig *rig);

uint32_t rig_count(const struct rig *rig, uint64_t block);

float *rig_weights(struct rig *rig, uint64_t block);

/* The next frame that left, NULL when there is none. */
const struct fake_send *rig_next(struct rig *rig);

/* The next frame must be of this kind, block, ticket and seq; returns it. */
const struct fake_send *rig_expect(struct rig *rig, enum frame_kind kind, uint64_t block,
                                   uint32_t ticket, uint64_t seq);

/* What the weights of a version are, when the test answers. */
void rig_version(uint64_t block, uint64_t version, float *weights);

/* The answer to the request with this ticket; rig_answer() delivers it. */
struct frame rig_answer_frame(const struct rig *rig, uint64_t block, uint32_t ticket, uint64_t seq,
                              uint64_t version);

void rig_answer(struct rig *rig, uint64_t block, uint32_t ticket, uint64_t seq, uint64_t version,
                uint32_t staleness);

void rig_check_installed(struct rig *rig, uint64_t block, uint64_t version);

/* All blocks pulled and installed at version 0. */
void rig_start(struct rig *rig);

/* A block of report `seq`, of weight 1, with a commit to come. */
enum status rig_push(struct rig *rig, uint64_t block, uint64_t seq, const float *grad) WARN_UNUSED;

/* Every block of push `seq`. */
void rig_push_all(struct rig *rig, uint64_t seq);

#endif
