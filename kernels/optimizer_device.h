/* optimizer_device.h - an optimizer's step (optimizer_state.h) where weights, state and gradient
 * are: on the host, or on a device that has the optimizer.
 *
 * The bits are the host's. The thread that drives the device calls; a step is queued on
 * DEVICE_COMPUTE.
 */
#ifndef RUBATO_KERNELS_OPTIMIZER_DEVICE_H
#define RUBATO_KERNELS_OPTIMIZER_DEVICE_H

#include "kernels/device.h"
#include "kernels/optimizer_state.h"

/* Has the device this optimizer? The host has all; CUDA AdamW and SGD, with moments in f32. */
bool optimizer_device_can(const struct device *device, const struct optimizer *optimizer);

/* optimizer_step(), of an optimizer that the device has. weights, state and grad are the device's;
 * scratch is used on the host alone. */
void optimizer_device_step(struct device *device, const struct optimizer *optimizer,
                           const struct optimizer_update *update,
                           const struct optimizer_piece *piece, float *weights, void *state,
                           const float *grad, void *scratch);

#endif
