/* local.h - steps of a worker's own: its optimizer, where it started from, and what came of them.
 *
 * `anchor` holds the weights that the servers sent last; the exchange installs there. Steps are
 * made on other weights, the worker's own. What a fragment reports is anchor - own: shaped like a
 * gradient, so that a server's step on it moves the weights to where the worker went. When the
 * answer is in the anchor, own = mix own + (1 - mix) anchor for the fragment's blocks (mix 0: the
 * anchor, bit for bit): local SGD (Stich, arXiv 1805.09767), DiLoCo (arXiv 2311.08105), fragments
 * and overlap as in Streaming DiLoCo (arXiv 2501.18512).
 * Own weights that are not finite are replaced by the anchor, whatever the mix, and the optimizer's
 * state of those blocks starts anew.
 * The inner optimizer is --optimizer with the job's learning rate, the plan's factors, and
 * clipping at the worker's own global norm; norms are sums over blocks in order of id, so bits do
 * not depend on the number of threads or devices.
 * All this happens where the weights and the gradient are: on the host, or on devices that have the
 * optimizer. There between two reports nothing crosses but the sums of the norm, which alone are
 * added in another order than the host's; all else has its bits. Of several devices each has all
 * own weights, and for the blocks that it owns (owner.h) the rest: it steps these and spreads them.
 * Memory: on the host anchor and delta, 8 bytes a value; on a device likewise, of its blocks, and
 * the state of the optimizer. The trainer's thread calls all; the host's anchor is the session's
 * while a report or a pull is not settled.
 */
#ifndef RUBATO_WORKER_LOCAL_H
#define RUBATO_WORKER_LOCAL_H

#include "worker/inner.h"
#include "worker/node.h"
#include "worker/squares.h"

#include <stdbool.h>

/* For local_install(): the blocks of all fragments, and the frozen ones. */
#define LOCAL_ALL SQUARES_ALL

/* Where steps are made. */
struct local_place {
    struct device *device; /* the host, or one with inner_can() */
    float *weights;        /* [plan.value_count] of the device: the worker's own */
    const float *grad;     /* likewise, complete when a step is made; of several, in own blocks */
};

/* What it has at a place. */
struct local_member {
    struct local_place place;
    struct inner inner; /* the optimizer */
    struct squares squares;
    float *anchor, *delta;      /* of own blocks, at local.at; on the host local's */
    struct device_event *ready; /* behind the last delta */
    struct device_event *done;  /* behind what a call waits for */
    enum status status;         /* of its part of the last call */
};

struct local {
    const struct job *job;
    const struct plan *plan;
    struct node *node; /* that drives several places; NULL: there is one */
    struct local_member members[GROUP_MAX];
    int count;
    uint8_t *owners;            /* [plan.block_count] ranks; NULL: there is one place */
    uint64_t *at;               /* [plan.block_count] where a block is among its owner's */
    struct group_piece *pieces; /* [count, plan.block_count] what each spreads */
    bool resets;                /* --inner-state reset */
    float *anchor, *delta;      /* [plan.value_count] the host's; delta where that encodes pushes */
    bool pinned;                /* both */
    int threads;
    struct arena arena;
    /* The call that is made. */
    float scale, mix, weight;
    double lr;
    uint64_t fragment;
    bool stays;
};

/* Bytes that it takes of device `rank` of `count`, none of them the host, without the optimizer's
 * state. owners as owner_assign() has them. */
uint64_t local_device_bytes(const struct plan *plan, const uint8_t *owners, int rank);

/* places [count]; several are the devices of `node`, not the host. All but the array outlive it;
 * local_step() runs on as many threads as the caller's kernels have now. MEMORY. */
enum status local_init(struct local *local, const struct job *job, const struct plan *plan,
                       struct node *node, const struct local_place *places, int count) WARN_UNUSED;

/* Waits for what encodes a delta. Harmless on a zeroed struct. */
void local_free(struct local *local);

/* One optimizer step of all blocks that are not frozen. The gradient is that of `weight` > 0 times
 * the mean loss. CORRUPT: it is not finite, and nothing was changed. DEVICE: a device failed. */
enum status local_step(struct local *local, double weight, double lr) WARN_UNUSED;

/* delta = (anchor - weights) * weight for the fragment's blocks; weight 1 leaves the bits. With
 * `stays` on the devices, else on the host. The fragment's last one must be answered. DEVICE. */
enum status local_delta(struct local *local, uint64_t fragment, double weight,
                        bool stays) WARN_UNUSED;

/* A block's part of it [block.count]; on a device final behind *ready, else that is NULL. */
const float *local_delta_of(const struct local *local, uint64_t block,
                            const struct device_event **ready);

/* The fragment's answer is in the anchor: into the weights. LOCAL_ALL: the anchor as it is, of
 * every block. DEVICE. */
enum status local_install(struct local *local, uint64_t fragment) WARN_UNUSED;

#endif
