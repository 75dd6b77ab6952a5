/* stepper.h - --optimizer worker:NAME: each worker steps a replica of the weights by itself.
 *
 * What comes back of a push is the mean gradient of the round, as one payload that all workers get
 * (proto/frame.h, FRAME_MEAN). All make the same step of it, and steps have the same bits on every
 * chip, so the replicas stay equal without weights on the wire; each push says its replica's
 * check-sum, and the shard compares them.
 * worker:1bit-adam (Tang et al., "1-bit Adam", ICML 2021): the codec's feedback needs updates that
 * are a linear function of what travels. AdamW's are, once the second moment stays. So after
 * job_momentum_after() rounds it stays, workers push what their gradient would make of the first
 * moment, m' = beta1 m + (1 - beta1) g, and the mean M becomes the first moment of all: AdamW's own
 * step with the gradient (M - beta1 m) / (1 - beta1).
 * Memory: the optimizer's state, and 8 bytes for each value of the largest block. One thread.
 */
#ifndef RUBATO_WORKER_STEPPER_H
#define RUBATO_WORKER_STEPPER_H

#include "compression/push_codec.h"
#include "worker/inner.h"

#include <stdint.h>

struct stepper {
    struct inner inner;
    struct push_codec *push; /* the exchange's */
    int64_t momentum_after;  /* rounds; 0: gradients for ever */
    int64_t *gradients;      /* [plan.block_count] steps that were made of gradients */
    float *mean;             /* [plan.largest_block] */
    float *moment;           /* [plan.largest_block] */
    void *scratch;           /* of the decoder */
    struct arena arena;
};

/* job, plan and what encodes the pushes must outlive it. MEMORY. */
enum status stepper_init(struct stepper *stepper, const struct job *job, const struct plan *plan,
                         struct push_codec *push) WARN_UNUSED;
void stepper_free(struct stepper *stepper);

/* What is to be encoded of block `id` in round `seq`: values [block.count] themselves, which are
 * weight * gradient, or weight * m' with the gradient clipped by `clip`, valid until the next call.
 */
const float *stepper_push(struct stepper *stepper, uint64_t id, uint64_t seq, double weight,
                          float clip, const float *values);

/* The mean of round `seq` has come: steps weights [block.count]. A payload of 0 bytes leaves the
 * round out. CORRUPT: malformed, and nothing was changed. */
enum status stepper_apply(struct stepper *stepper, uint64_t id, uint64_t seq, uint8_t codec,
                          const uint8_t *payload, size_t bytes, float *weights) WARN_UNUSED;

#endif
