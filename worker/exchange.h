/* exchange.h - a worker's traffic with the shards: pushes out, weights in.
 *
 * Push and pull are one exchange: the answer to a block's push is the block's new weights, which
 * are installed in place. A block has at most one request open; each request has a ticket that its
 * answer repeats, so that a late answer to an older request is known. An encoded push stays in its
 * buffer until it is answered; on a channel that may lose frames, what is not answered within half
 * a lease is sent again, the same bytes; on others after 12 leases, in case it was damaged.
 * A connection to a shard that broke is made again (transport/redial.h), and then all requests that
 * the shard has not answered, and its commit, are sent again.
 * With --optimizer worker:NAME the answer is the mean gradient, of which the installed weights are
 * stepped (stepper.h).
 * With --pull delta-* the installed weights are the block's replica (compression/delta.h): a
 * request says which one, the answer has the steps from there. Steps that do not fit are refused,
 * and the request is repeated without a replica: the answer is a whole one.
 * Where only devices read the weights, answers are installed as they came (raw_weights.h).
 * Where the gradient is on devices, blocks are encoded there (exchange_device.h), packed here if
 * they have +zstd, and leave as they are done.
 * A state machine without threads or waits, polled by its owner. Memory is from the plan: one
 * encoded push a block, in memory of the channel's where it has some (channel_memory).
 */
#ifndef RUBATO_WORKER_EXCHANGE_H
#define RUBATO_WORKER_EXCHANGE_H

#include "base/memory.h"
#include "compression/push_codec.h"
#include "proto/frame.h"
#include "proto/job.h"
#include "proto/plan.h"
#include "transport/channel.h"
#include "transport/redial.h"
#include "worker/exchange_device.h"
#include "worker/raw_weights.h"
#include "worker/stepper.h"

#include <stdatomic.h>
#include <stdbool.h>

/* Pushes that are encoded or packed on the exchange's thread before it looks at what has come. */
enum { EXCHANGE_PUSHES_A_POLL = 16 };

struct exchange_block {
    uint32_t ticket;      /* of the last request */
    bool open;            /* the request is not answered */
    bool first;           /* its first weights are to be sent before the pull (worker 0) */
    bool exact;           /* the pull is for the shard's own weights, f32 */
    bool encoding;        /* the request's payload is not there yet: a device makes it */
    bool unsent;          /* the request is to be handed to the channel */
    bool lent;            /* the weights are the channel's, as the first frame's payload */
    uint32_t sends;       /* of requests in flight: the wire buffer is the channel's */
    enum frame_kind kind; /* of the request: FRAME_PULL or FRAME_PUSH */
    uint64_t seq;         /* of the push */
    double weight;        /* of the push's report */
    uint64_t version;     /* of the weights that are installed */
    uint32_t check;       /* of them, when they are a replica: delta_check() */
    int64_t asked_ns;     /* when it was last handed to the channel */
    uint8_t *wire;        /* the encoded push; on a device if exchange_device_place() had it so */
    uint8_t codec;        /* of it */
    size_t wire_bytes;
    uint64_t wire_xxh3;
    double sum_of_squares;     /* of the last push that commits, as the wire holds it */
    _Atomic uint64_t answered; /* seq of the last push whose answer is installed */
};

struct exchange_counters {
    uint64_t pushed_bytes; /* headers included */
    uint64_t pulled_bytes;
    uint64_t pushed_values;
    uint64_t answers;
    uint64_t staleness_sum, staleness_max; /* over answers to pushes */
    uint64_t pushes_answered;
    uint64_t dropped; /* reports of which a block did not count */
    uint64_t resent, ignored, corrupt;
    int64_t codec_ns;     /* of the host in encoders, check-sums included */
    uint64_t codec_bytes; /* memory that they keep */
    /* Over all pushes whose values were finite: of the gradients, and of what was held back. */
    double gradient_square_sum, residual_square_sum;
};

/* What a worker pushes at once: the blocks of one fragment, or all. */
struct exchange_report {
    uint64_t seq;  /* from 1 */
    double weight; /* its tokens over the usual number; what is pushed is multiplied by it */
    float clip;    /* what first moments that travel have their gradient clipped by; else 1 */
    bool commits;  /* exchange_commit() will follow: the mode applies each report by itself */
};

struct exchange_config {
    const struct job *job;
    const struct plan *plan;
    struct channel *channel; /* open and connected: peer i is shard i; the caller's */
    /* [plan.shard_count] of the shards, kept by the caller; NULL: what breaks stays broken. */
    const struct channel_address *addresses;
    uint64_t job_id, epoch, session;
    uint32_t rank;
    float *weights; /* [plan.value_count], installed into: in local modes the anchor */
    /* [plan.block_count] what each block of the weights is in (raw_weights.h). NULL: in f32, since
     * answers are decoded when they come, as they must be if --pull is steps of what is there. */
    uint8_t *codecs;
    struct exchange_devices devices; /* where pushes are encoded if that can be */
};

struct exchange {
    struct exchange_config config;
    struct push_codec *push;
    struct exchange_device encoding;
    enum status device_status;     /* OK; DEVICE: it failed while it encoded; TIMEOUT: it hangs */
    struct exchange_block *blocks; /* [plan.block_count] */
    struct raw_weights raw;        /* the config's */
    bool follows;                  /* the weights are replicas: --pull delta-* */
    bool steps;                    /* and are stepped here: --optimizer worker:NAME */
    struct stepper stepper;        /* then */
    uint64_t open;                 /* requests that are not answered */
    uint64_t unsent;               /* requests that wait for the channel */
    uint64_t commit_seq;           /* the report that is committed, 0: none */
    double commit_sum;
    bool commit_waits;       /* for blocks that are being encoded */
    uint64_t dropped_seq;    /* the last report that did not count */
    uint64_t commits_unsent; /* shards still to be told */
    bool *commit_due;        /* [shard_count] */
    bool *commit_shards;     /* [shard_count] those with blocks in the report */
    int64_t commit_ns;
    int64_t resend_ns;
    struct redial redial;     /* redial_failed(): a shard that is out of reach */
    int64_t nonfinite_in_row; /* commits of gradients that are not finite */
    struct exchange_counters counters;
    struct arena arena;
    struct arena wires; /* of the blocks; empty where the channel has memory for them */
};

/* What the worker asks of its channel. */
void exchange_channel_config(const struct plan *plan, struct channel_config *config);

/* INVALID, IO: --push-policy names a file that cannot be used (logged). MEMORY. */
enum status exchange_init(struct exchange *exchange,
                          const struct exchange_config *config) WARN_UNUSED;
void exchange_free(struct exchange *exchange);

/* The device has no part in it any more: ahead of the channel's closing. Waits for what it encodes.
 * Harmless without a device. */
void exchange_leave_device(struct exchange *exchange);

/* Asks for every block; worker 0 sends its weights first when `first` is set. No request may be
 * open. */
void exchange_pull_all(struct exchange *exchange, bool first);

/* Asks for every block's weights as the shard has them, in f32, whatever --pull says. No request
 * may be open. */
void exchange_pull_exact(struct exchange *exchange);

/* Asks for the blocks whose version is lower than that of others; frozen ones have none. No request
 * may be open. */
void exchange_pull_behind(struct exchange *exchange);

/* Encodes block `id`'s part of a report (values [block.count]; free again on return) and sends it.
 * AGAIN: the last push of the block has not left its buffer yet. */
enum status exchange_push(struct exchange *exchange, const struct exchange_report *report,
                          uint64_t id, const float *values) WARN_UNUSED;

/* Are the values of all pushes to be on config.devices, each block's on its owner? Any thread, once
 * the first SETTLED (session.h) has come. */
bool exchange_on_device(const struct exchange *exchange);

/* Then, instead of exchange_push(): values [block.count] there, final behind `ready`; they are free
 * again, and the event may be recorded again, once the block is answered. */
enum status exchange_push_device(struct exchange *exchange, const struct exchange_report *report,
                                 uint64_t id, const float *values,
                                 const struct device_event *ready) WARN_UNUSED;

/* All blocks of the report are handed over: tells the shards that own some the sum of squares of
 * the whole. */
void exchange_commit(struct exchange *exchange, uint64_t seq);

/* Does what can be done now; true when something came from the channel or was encoded. */
bool exchange_poll(struct exchange *exchange, int64_t now_ns);

/* When exchange_poll() has something to do by the clock; INT64_MAX: it has not. */
int64_t exchange_deadline_ns(const struct exchange *exchange);

/* A device encodes: poll soon, nothing will wake the owner. */
bool exchange_encodes(const struct exchange *exchange);

/* The last push of block `id` whose answer is installed, 0: none. Until its next push the block's
 * weights stay as they are, and may be read. Any thread, once the first SETTLED (session.h) has
 * come. */
uint64_t exchange_answered(const struct exchange *exchange, uint64_t id);

/* All that was asked or pushed is answered and installed. */
bool exchange_settled(const struct exchange *exchange);

/* The lowest and the highest version among the blocks that are installed, without frozen ones. */
void exchange_versions(const struct exchange *exchange, uint64_t *least, uint64_t *most);

#endif
