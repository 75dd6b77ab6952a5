/* node.h - the devices of a worker, which train as one: data parallelism within a process.
 *
 * Each device has a model (model.h) of its own, and all but the first a thread; the caller's thread
 * drives the first one. A batch's sequences are shared out in order, as many to each; the sum of
 * gradients is that of the batch on one device, in rank order on the host (kernels/group.h). So a
 * worker with two devices computes, to the bit, what two workers with half its batch do together,
 * and what one device does that accumulates such halves `apart` (model.h).
 * The interface is a model's: weights and gradient are the caller's, on the host, unless it says
 * that they stay on the devices, and `ready` is called on its thread. With one device a node is
 * that device's model and nothing else. Nobody is stuck: when a device fails, a member is not there
 * in the node's time, or the caller's gate says that weights will not come, the pass ends on all of
 * them.
 */
#ifndef RUBATO_WORKER_NODE_H
#define RUBATO_WORKER_NODE_H

#include "kernels/group.h"
#include "worker/model.h"

/* What a worker's node has as its time. */
enum { NODE_LEASES = 12 };

struct node;

/* The devices that --device names: opened -> devices [GROUP_MAX], how many -> count. Several need
 * not be alike, but of one kind. Of all that are here the first GROUP_MAX; logged, if there are
 * more. DEVICE, logged, and none is open. */
enum status node_open_devices(const struct device_names *named, struct device **devices,
                              int *count) WARN_UNUSED;
void node_close_devices(struct device *const *devices, int count);

/* Can so many devices share batches of B sequences? INVALID: not evenly; logged. */
enum status node_check_batch(int count, int64_t B) WARN_UNUSED;

/* As model_open, of options whose batch is that of all devices together and whose device is not
 * looked at; members wait `timeout_ms` for each other. On the host the kernels' threads of the
 * caller are shared out, too. MEMORY, DEVICE, UNSUPPORTED; logged; then the node can be closed,
 * which the caller does, and nothing else. */
enum status node_open(struct node **node, const struct model_shape *shape, const struct plan *plan,
                      const struct model_options *options, struct device *const *devices, int count,
                      int timeout_ms) WARN_UNUSED;

/* Harmless on NULL. TIMEOUT: as group_close. */
enum status node_close(struct node *node) WARN_UNUSED;

/* OK, or why nothing that was computed since is worth anything, logged. */
enum status node_status(const struct node *node) WARN_UNUSED;

/* A model on the host that has no part in the node's passes, for model_decode; NULL: there is
 * none. */
struct model *node_host_model(struct node *node);

/* As model_set_weights, model_expect_weights, model_forward and model_backward. */
void node_set_weights(struct node *node, const float *weights);
void node_expect_weights(struct node *node, const float *weights, const struct model_gate *gate);
float node_forward(struct node *node, const struct model_batch *batch,
                   const struct model_gradient *gradient);
void node_backward(struct node *node, const struct model_batch *batch,
                   const struct model_gradient *gradient, model_ready_fn *ready, void *context);

/* As model_device_weights and model_device_gradient, of device `rank`. */
float *node_device_weights(const struct node *node, int rank);
const float *node_device_gradient(const struct node *node, int rank);

/* Which device has the sum of the block's gradient (owner.h), and its model_ready_event. */
int node_owner(const struct node *node, uint64_t block);
const struct device_event *node_ready_event(const struct node *node, uint64_t block,
                                            uint64_t tensor);

/* What is done of something besides passes at device `rank`, by the thread that drives it; it may
 * use the node's group. */
typedef void node_part_fn(void *context, int rank);

/* Each device's part at once; waits for all. Returns node_status(). */
enum status node_each(struct node *node, node_part_fn *part, void *context) WARN_UNUSED;

/* Of its devices; NULL: it has one. Lives as long as the node. */
struct group *node_group(const struct node *node);

#endif
