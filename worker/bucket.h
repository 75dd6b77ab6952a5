/* bucket.h - from "this tensor's gradient is final" to "this block can leave".
 *
 * A matrix may fill several blocks, and a pack holds several vectors; a block is ready when the
 * last of its tensors is. One pass of backward marks every tensor once; bucket_reset() starts the
 * next.
 */
#ifndef RUBATO_WORKER_BUCKET_H
#define RUBATO_WORKER_BUCKET_H

#include "proto/plan.h"

#include <stdint.h>

struct bucket {
    const struct plan *plan;
    uint64_t *first_block; /* [tensor_count] the first block that touches it */
    uint64_t *last_block;  /* [tensor_count] and the last */
    uint64_t *waiting;     /* [block_count] tensors that are not final yet */
};

/* The plan must outlive it. Takes memory; ends the process when there is none. */
void bucket_init(struct bucket *bucket, const struct plan *plan);
void bucket_free(struct bucket *bucket);
void bucket_reset(struct bucket *bucket);

/* Tensor `tensor` is final -> ready [capacity >= bucket_most()] gets the blocks that are ready now;
 * returns how many. */
uint64_t bucket_mark(struct bucket *bucket, uint64_t tensor, uint64_t *ready);

/* The most blocks that one tensor touches. */
uint64_t bucket_most(const struct bucket *bucket);

#endif
