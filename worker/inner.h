/* inner.h - a worker's own optimizer, block by block: that of local steps (local.h), and that of
 * --optimizer worker:NAME (stepper.h).
 *
 * A block's step uses the job's settings and the plan's factors of learning rate and decay, and
 * gives the same bits on every chip (kernels/optimizer_state.h).
 * Memory is one arena: the state of each block, and for each thread what its steps need for a
 * while. Steps of different blocks may run at once, each with the number of its own thread.
 */
#ifndef RUBATO_WORKER_INNER_H
#define RUBATO_WORKER_INNER_H

#include "base/memory.h"
#include "kernels/optimizer_state.h"
#include "proto/job.h"
#include "proto/plan.h"

struct inner_block {
    void *state; /* the optimizer's */
    size_t state_bytes;
    int64_t updates; /* since its state was zero */
};

struct inner {
    const struct job *job;
    const struct plan *plan;
    struct optimizer optimizer;
    struct inner_block *blocks; /* [plan.block_count] */
    uint8_t *scratch;           /* of the optimizer, for each thread */
    size_t scratch_bytes;       /* of one thread */
    struct arena arena;
};

/* job and plan must outlive it. MEMORY. */
enum status inner_init(struct inner *inner, const struct job *job, const struct plan *plan,
                       int threads) WARN_UNUSED;
void inner_free(struct inner *inner);

/* One step of block `id`, unless it is frozen: weights, grad [block.count] are the block's. lr: the
 * job's, before the plan's factor. */
void inner_step(struct inner *inner, uint64_t id, float *weights, const float *grad,
                float grad_scale, double lr, int thread);

/* The block's state is zero again. */
void inner_forget(struct inner *inner, uint64_t id);

/* The norm of grad [plan.value_count], in one order of sums for any number of threads; frozen
 * blocks have none. sums [plan.block_count] is scratch. Runs on as many threads. */
double gradient_norm(const struct plan *plan, const float *grad, double *sums, int threads);

/* What a gradient of this norm is multiplied by so that it is no longer than --clip, as PyTorch's
 * clip_grad_norm_ does. Pure. */
float gradient_clip(const struct job *job, double norm);

#endif
