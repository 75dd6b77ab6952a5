/* inner.h - a worker's own optimizer, block by block: that of local steps (local.h), and that of
 * --optimizer worker:NAME (stepper.h).
 *
 * A block's step uses the job's settings and the plan's factors of learning rate and decay, and
 * gives the same bits on every chip (kernels/optimizer_state.h) and device, if that has the
 * optimizer.
 * Memory: the state of each block that the place steps, where the weights are; and on the host, for
 * each thread, what its steps need for a while. There steps of different blocks may run at once,
 * each with the number of its own thread; on another device they are queued on DEVICE_COMPUTE.
 */
#ifndef RUBATO_WORKER_INNER_H
#define RUBATO_WORKER_INNER_H

#include "base/memory.h"
#include "kernels/optimizer_device.h"
#include "proto/job.h"
#include "proto/plan.h"

struct inner_block {
    void *state; /* the optimizer's, on the device */
    size_t state_bytes;
    int64_t updates; /* since its state was zero */
};

struct inner {
    const struct job *job;
    const struct plan *plan;
    struct device *device;
    struct optimizer optimizer;
    struct inner_block *blocks; /* [plan.block_count] */
    uint8_t *scratch;           /* of the optimizer, for each thread */
    size_t scratch_bytes;       /* of one thread */
    struct arena arena;
    struct arena states; /* of the device */
};

/* Has the device the job's optimizer? The host has every one. */
bool inner_can(const struct job *job, const struct device *device);

/* The bytes of a block's state, wherever it is. */
size_t inner_state_bytes(const struct job *job, const struct plan_block *block);

/* What steps, where, and which blocks: all outlive it. */
struct inner_config {
    const struct job *job;
    const struct plan *plan;
    struct device *device; /* that has the optimizer */
    int threads;           /* of the host, whose steps may be made at once */
    const uint8_t *owners; /* [plan.block_count] those of `rank` alone; NULL: all */
    int rank;
};

/* MEMORY. */
enum status inner_init(struct inner *inner, const struct inner_config *config) WARN_UNUSED;

/* When the device is idle. */
void inner_free(struct inner *inner);

/* One step of block `id`, one of its own, unless it is frozen: weights, grad [block.count] are the
 * block's, on the device. lr: the job's, before the plan's factor. */
void inner_step(struct inner *inner, uint64_t id, float *weights, const float *grad,
                float grad_scale, double lr, int thread);

/* The block's state is zero again. */
void inner_forget(struct inner *inner, uint64_t id);

/* What a gradient of this norm is multiplied by so that it is no longer than --clip, as PyTorch's
 * clip_grad_norm_ does. Pure. */
float gradient_clip(const struct job *job, double norm);

#endif
