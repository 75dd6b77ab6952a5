/* gate.h - a step that starts while weights of the last round are still on their way.
 *
 * Answers come in the order in which a forward pass reads them (server/reply.c). With
 * --forward-overlap, in rounds of all workers where servers step (cadence.h), a step starts when
 * the blocks that it reads first are installed, and waits before each layer for that layer's: what
 * is left of the exchange is hidden behind the layers before. Backward starts after SETTLED, so a
 * push always finds its block answered. All weights that are read are of the same version: the bits
 * of a run do not depend on this, nor on time.
 */
#ifndef RUBATO_WORKER_GATE_H
#define RUBATO_WORKER_GATE_H

#include "worker/train.h"

/* The answer to the last report has not come whole, but the next step may start. */
bool gate_is_open(const struct trainer *trainer);

/* The model's (struct model_gate): waits until the tensors' blocks are installed. False: the job
 * has ended. The time goes into the step's forward_wait_ns. */
bool gate_wait(void *trainer, uint64_t first, uint64_t count);

/* Waits likewise for SETTLED, and takes the events on the way. */
bool gate_settle(struct trainer *trainer);

#endif
