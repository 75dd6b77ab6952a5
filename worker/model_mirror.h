/* model_mirror.h - the vectors of a model on a device that is not the host, or of one that has
 * others beside it (model_team.h). For worker/model*.c alone.
 *
 * The trainer's weights and gradient stay on the host, where blocks come and go; the mirror has a
 * copy of both on the device and moves them while it computes:
 *   weights    some tensors at a time on DEVICE_COPY_IN; DEVICE_COMPUTE waits for them. Of blocks
 *              that are in bfloat16 (raw_weights.h) half the bytes, to where the gradient will be,
 *              and from there they are widened: a tensor's weights are there before its gradient
 *              is, and what was made of its last one came before them
 *   batch      by way of pinned memory, on DEVICE_COMPUTE
 *   losses     back on DEVICE_COMPUTE, and waited for: the one wait of a forward pass
 *   gradient   a tensor at a time on DEVICE_COPY_OUT, behind what computed it; or it stays, and
 *              whoever is told of a tensor waits for the event that goes with it
 * A copy of weights starts when all is done that was queued before they were announced, and is done
 * when the losses are back: so the host's weights may change as soon as a forward pass has
 * returned, and backward reads the device's copy alone.
 * In a team each member copies its part of some tensors' weights, and the group gathers the
 * others'; the group sums a tensor's gradient on DEVICE_COPY_OUT, each piece at its owner
 * (model_team.h), who copies it unless it stays.
 * Errors: what waits returns the device's first one; other calls queue. All memory is taken at
 * mirror_open. The thread that drives the model owns it.
 */
#ifndef RUBATO_WORKER_MODEL_MIRROR_H
#define RUBATO_WORKER_MODEL_MIRROR_H

#include "kernels/device.h"
#include "proto/plan.h"
#include "worker/model.h"

struct model_mirror;

/* For a model with these options. MEMORY, logged. device, plan and team must outlive it. */
enum status mirror_open(struct model_mirror **mirror, struct device *device,
                        const struct plan *plan, const struct model_options *options) WARN_UNUSED;

/* Waits for its copies, and for encoders of its gradient; harmless on NULL. */
void mirror_close(struct model_mirror *mirror);

/* The device's: weights and gradient [plan.value_count], gradient NULL without training; of the
 * batch, tokens and targets [rows]. */
float *mirror_weights(const struct model_mirror *mirror);
float *mirror_gradient(const struct model_mirror *mirror);
const int32_t *mirror_tokens(const struct model_mirror *mirror);
const int32_t *mirror_targets(const struct model_mirror *mirror);

/* From now on mirror_load takes from weights [value_count] of the host, in f32 or as the option
 * `codecs` says when it is called; NULL: it leaves the device's as they are. */
void mirror_expect(struct model_mirror *mirror, const float *weights);

/* Tensors first .. first + count - 1 -> the device's weights. */
void mirror_load(struct model_mirror *mirror, uint64_t first, uint64_t count);

/* tokens and targets [rows] of the host, which may change afterwards. */
void mirror_batch(struct model_mirror *mirror, const int32_t *tokens, const int32_t *targets,
                  int64_t rows);

/* The device's losses [rows] -> the host's, until the next call; NULL: the device failed. */
const float *mirror_losses(struct model_mirror *mirror, const float *losses, int64_t rows);

/* Waits until nothing is read from or written to the host's memory any more. DEVICE: it failed. */
enum status mirror_settle(struct model_mirror *mirror);

/* The tensor's gradient, final behind what is queued -> values [value_count] of the host; NULL: it
 * stays, which is the same for all tensors of a pass. */
void mirror_send(struct model_mirror *mirror, uint64_t tensor, float *values);

/* Of a tensor that `ready` was called for in this pass, if it stays: the gradient is final behind
 * this; in a team the pieces that this member owns. Any thread. */
const struct device_event *mirror_ready_event(const struct model_mirror *mirror, uint64_t tensor);

/* Calls `ready` (NULL: nobody) for each tensor that has arrived since, or stays, in the order they
 * were sent, in a team from all members, of whom member 0 calls; with `all`, waits for those under
 * way, also when it fails, and for what a gradient that stays is made of. DEVICE, TIMEOUT,
 * PEER_LOST: this device or the team failed, and `ready` is called no more in this pass. */
enum status mirror_tell(struct model_mirror *mirror, bool all, model_ready_fn *ready,
                        void *context) WARN_UNUSED;

#endif
