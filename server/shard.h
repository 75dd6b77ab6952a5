/* shard.h - one shard: the sole owner of a set of blocks, their weights and optimizer state.
 *
 * Single-threaded and without waits: shard_poll() takes what the channel and the control thread
 * have brought (shard_order.h), does all that can be done, and returns. In a server each shard has
 * a thread; in the simulator many share one.
 *
 * The life of a push (report s of worker r, block b; push.c):
 *   arrives -> admission_push() -> held in its channel slot, compressed ->
 *     round of all: added to the block's sum in rank order (aggregate.c); when all living workers
 *         are in all the shard's blocks of the round's fragment, the shard reports; the
 *         coordinator's verdict gives every shard the same clip factor, and the optimizer steps the
 *         blocks (update.c);
 *     round of a quorum: stays held, and the shard says when it has all of a worker's report; the
 *         coordinator closes the round with those it names, in rank order; then as above. Who
 *         missed the round is dropped and answered, or waits for the next;
 *     by itself: waits for the worker's COMMIT, which tells the norm of its whole report; then
 *         clip, optimizer, done. So a push of a dying worker counts wholly or not.
 *   -> an answer is due to the worker; it is sent once admission_answer() allows (reply.c).
 * With --optimizer worker:NAME a round's step is the workers': the answer is the mean gradient, by
 * --push's codec (mean.c), and the shard's own weights stay the first ones.
 * A connection to a worker that broke is made again (transport/redial.h), and then all last answers
 * are sent to it again, but for those that it has gone on from: they may be lost, or on their way.
 * The worker knows those that it had by their tickets.
 * A worker that has gone is waited for no more, and its frames are ignored. So is, in rounds, one
 * that has made all its reports.
 *
 * Memory is from the plan: weights and sum in f32 (8 bytes a value), the optimizer's state
 * (optimizer_state_bytes(): 8 bytes a value with AdamW in f32, 4 in bf16), encoded answers (2 bytes
 * a value, 4 with --pull none; in memory of the channel's where it has some), with --pull
 * delta-int8 or delta-int4 a replica and its last steps (5 or 5.5 bytes a value: 1 or 3 steps are
 * cheaper on the wire than the whole), and with --delay-base copies 4 bytes a value and worker.
 * With --optimizer worker:NAME there is no state, but what feedback holds back of the means. The
 * channel's slots hold compressed frames, at most one a block and worker: in rounds of all those
 * that wait for a lower rank, in rounds of a quorum all that have come, by themselves those without
 * their commit. They are decoded once, into the sum.
 */
#ifndef RUBATO_SERVER_SHARD_H
#define RUBATO_SERVER_SHARD_H

#include "base/memory.h"
#include "base/ring.h"
#include "base/wake.h"
#include "compression/delta.h"
#include "compression/push_codec.h"
#include "kernels/optimizer_state.h"
#include "proto/frame.h"
#include "proto/job.h"
#include "proto/plan.h"
#include "server/admission.h"
#include "server/shard_order.h"
#include "transport/channel.h"
#include "transport/redial.h"

#include <stdatomic.h>

#define SHARD_NO_SLOT   UINT32_MAX
#define SHARD_NO_BUFFER UINT32_MAX
#define REPLICA_WHOLE   UINT32_MAX

/* One worker's dealings with one block. */
struct shard_lane {
    struct admission_record record;
    uint32_t slot;          /* the held push's, or SHARD_NO_SLOT */
    const uint8_t *payload; /* in the slot */
    size_t payload_bytes;
    uint8_t codec;          /* enum codec_id of it */
    uint64_t base_version;  /* of the weights that the held gradient is of */
    double weight;          /* of the held push */
    double counted;         /* what the last one that had its turn counted with */
    uint32_t held_ticket;   /* of the held push */
    uint32_t held_check;    /* of the replica of base_version, as the held push says */
    uint32_t ticket;        /* of the last request that may be answered */
    struct delta_place has; /* the replica that the worker had then */
    bool exact;             /* and it asked for the weights themselves */
    uint32_t staleness;     /* of the last push that had its turn */
    bool summed;            /* the held push is in the sum of the open round */
    float *copy;            /* [plan.count] what was last sent; NULL without --delay-base copies */
    uint64_t copy_version;
};

/* What the workers have of a block (replica.c). All zero without --pull delta-*. */
struct shard_replica {
    float *values;                            /* [plan.count] */
    struct delta_place at;                    /* check DELTA_NONE: there is none yet */
    uint32_t steps_max, steps, next;          /* room; how many there are; slot of the next */
    uint8_t *bytes;                           /* [steps_max][delta_step_bytes()] */
    struct delta_place from[DELTA_STEPS_TOP]; /* where the step in each slot starts */
};

struct shard_block {
    const struct plan_block *plan;
    float *weights, *sum;          /* [plan.count] f32 */
    void *state;                   /* the optimizer's; NULL where it has none */
    double weight, sum_of_squares; /* of what is in the sum */
    bool damaged;                  /* a push of the round could not be decoded */
    bool votes;                    /* all of the round's pushes so far are signs alone */
    uint64_t version;              /* rounds or pushes that had their turn, skipped ones too */
    uint64_t updates;              /* optimizer steps */
    uint64_t base_steps;           /* the schedule's step when the discipline began */
    uint64_t base_version;         /* and the version */
    uint32_t next_rank;            /* ranks below are in the sum (rounds of all) */
    bool ready;                    /* has weights */
    uint32_t buffer;               /* that holds the last encoded answer, while it is good */
    uint32_t due;                  /* workers that wait for an answer: */
    struct shard_ranks waiting;    /* these */
    bool stirred;                  /* since the last look, one more may be allowed to have it */
    uint64_t slowest;              /* clock of the slowest living worker, */
    uint32_t at_slowest;           /* and how many are there; 0: to be found anew */
    float mean_factor;             /* --optimizer worker: what the last round's sum, which stays */
                                   /* until it is encoded, is to be multiplied by; 0: left out */
    struct shard_lane *lanes;      /* [workers] */
    struct shard_replica replica;
};

/* An encoded answer; several sends may share it. */
struct shard_buffer {
    uint8_t *bytes;
    size_t used;
    bool sealed; /* the check-sum is there: */
    uint64_t xxh3;
    uint8_t codec;
    uint64_t version; /* of the block; */
    uint32_t steps;   /* that of the replica are in it, or REPLICA_WHOLE */
    uint32_t sends;   /* in flight */
    bool current;     /* its block still points at it */
};

/* A worker's word that all of push `seq` is on its way (modes that apply each push by itself). */
struct shard_commit {
    uint64_t seq;
    double sum_of_squares;
};

struct shard_worker {
    uint64_t session;
    struct shard_commit commit;
    bool gone;
    /* Rounds of a quorum: the report that is coming in. */
    uint64_t seq;
    uint64_t here;       /* blocks of it that have come */
    bool late;           /* some came too late: the report is dropped */
    uint64_t late_round; /* the round that it missed */
    bool untold;         /* the ring was full; `told` is still to be said */
    struct shard_arrival told;
    /* For the end of the run, counted at the first block of each fragment; the last report. */
    uint64_t counted, dropped, staleness_sum, last_seq;
};

struct shard_counters {
    uint64_t pushes; /* that had their turn, one a block */
    uint64_t duplicates, stale, breaches, corrupt;
    uint64_t skipped; /* pushes or rounds whose gradient was not finite, or had no weight */
    uint64_t dropped; /* pushes that came too late */
    uint64_t staleness_sum, staleness_max;
};

struct shard_config {
    const struct job *job;
    const struct plan *plan;
    uint64_t id; /* in the plan */
    uint64_t job_id, epoch;
    struct channel *channel; /* open; the shard's from now on, closed by shard_free */
    /* [job.workers] of the workers, kept by the caller; NULL: what breaks stays broken. */
    const struct channel_address *addresses;
    const uint64_t *sessions;    /* [job.workers], copied */
    const struct wake *reported; /* signalled after each note, or NULL */
};

struct shard {
    struct shard_config config;
    struct discipline discipline; /* that holds now: sync while --sync-warmup lasts */
    struct discipline after;      /* that holds after the warm-up */
    bool by_round, needs_all;
    bool released; /* answers wait for nobody */
    uint32_t workers, living;
    uint64_t reports; /* that a worker makes: the last round of a quorum */
    enum staleness_scale scale;
    bool copies; /* lanes have one */
    struct optimizer optimizer;
    double outer_rate;          /* local modes: the learning rate */
    void *scratch;              /* what a step or a decoder needs of the hungriest block */
    bool votes;                 /* --push signsgd: a round's step is the sign of what most say */
    struct push_codec *mean;    /* --optimizer worker:NAME; NULL: answers are weights */
    uint8_t pull;               /* enum codec_id of whole blocks in answers */
    uint8_t delta;              /* of replicas' steps; CODEC_F32: there are no replicas */
    struct shard_block *blocks; /* [block_count], ascending ids */
    uint64_t block_count;
    uint64_t *index;         /* [plan.block_count] -> position in blocks, or UINT64_MAX */
    uint64_t *parts;         /* [fragment_count] blocks of each fragment */
    uint64_t *first;         /* [fragment_count] position of the first, or UINT64_MAX */
    uint64_t round;          /* open round, from 1: the next one in which the shard has a part */
    uint64_t summed;         /* blocks of it whose sum is complete */
    bool is_closed;          /* quorum: it is known who is in it */
    uint64_t *report_blocks; /* [block_count] what report.blocks points at */
    double *report_sums;
    struct shard_worker *ranks; /* [workers] */
    uint32_t untold;            /* of them */
    struct shard_buffer *buffers;
    uint32_t buffer_count;
    uint32_t *free_buffers;
    uint32_t free_count;
    uint64_t due;       /* answers due in all blocks */
    struct ring notes;  /* struct shard_note: shard -> control thread */
    struct ring orders; /* struct shard_order: control thread -> shard */
    struct arena arena;
    struct arena answers; /* of the buffers; empty where the channel has memory for them */
    struct redial redial;
    struct shard_counters counters;
    _Atomic int64_t lost_worker; /* one that is out of reach, -1: none; any thread may read */
};

/* What a shard asks of its channel, from the plan: to be opened before shard_init. */
void shard_channel_config(const struct job *job, const struct plan *plan, uint64_t id,
                          struct channel_config *config);

/* The config's pointers must outlive the shard. MEMORY; the channel is the caller's still then. */
enum status shard_init(struct shard *shard, const struct shard_config *config) WARN_UNUSED;
void shard_free(struct shard *shard);

/* Does what can be done now; true when something was. Owner thread only. */
bool shard_poll(struct shard *shard, int64_t now_ns);

/* When shard_poll() has something to do by the clock; INT64_MAX: it has not. Owner thread only. */
int64_t shard_deadline_ns(const struct shard *shard);

/* Blocks that the shard has in a round: 0: it has no part in it. Any thread. */
uint64_t shard_part(const struct shard *shard, uint64_t round);

#endif
