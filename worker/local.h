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
 * not depend on the number of threads.
 * Memory: anchor and delta 8 bytes a value, and the optimizer's state. The trainer's
 * thread calls all; the anchor is the session's while a report or a pull is not settled.
 */
#ifndef RUBATO_WORKER_LOCAL_H
#define RUBATO_WORKER_LOCAL_H

#include "worker/inner.h"

#include <stdbool.h>

/* For local_install(): the blocks of all fragments, and the frozen ones. */
#define LOCAL_ALL (UINT64_MAX - 1)

struct local {
    const struct job *job;
    const struct plan *plan;
    struct inner inner; /* the optimizer */
    bool resets;        /* --inner-state reset */
    float *anchor;      /* [plan.value_count] */
    float *delta;       /* [plan.value_count] what local_delta() made */
    double *sums;       /* [plan.block_count] of the norm */
    int threads;
    struct arena arena;
};

/* job and plan must outlive it; local_step() runs on as many threads as the caller's kernels have
 * now. MEMORY. */
enum status local_init(struct local *local, const struct job *job,
                       const struct plan *plan) WARN_UNUSED;
void local_free(struct local *local);

/* One optimizer step of all blocks that are not frozen: weights [value_count] in place, grad
 * [value_count] is read only. The gradient is that of `weight` > 0 times the mean loss. False: it
 * is not finite, and nothing was changed. */
bool local_step(struct local *local, float *weights, const float *grad, double weight, double lr);

/* delta = (anchor - weights) * weight for the fragment's blocks; weight 1 leaves the bits. */
void local_delta(struct local *local, const float *weights, uint64_t fragment, double weight);

/* The fragment's answer is in the anchor: into weights [value_count]. LOCAL_ALL: the anchor as it
 * is, of every block. */
void local_install(struct local *local, float *weights, uint64_t fragment);

#endif
