#include "kernels/optimizer_device.h"

#include "base/assert.h"
#include "kernels/compute.h"
#include "kernels/optimizer_rules.h"

bool optimizer_device_can(const struct device *device, const struct optimizer *optimizer) {
    if (device_is_host(device)) return true;
    if (optimizer->moments != MOMENT_F32) return false;
    if (optimizer->kind == OPTIMIZER_ADAMW) return device->compute->adamw != NULL;
    return optimizer->kind == OPTIMIZER_SGD && device->compute->sgd != NULL;
}

void optimizer_device_step(struct device *device, const struct optimizer *optimizer,
                           const struct optimizer_update *update,
                           const struct optimizer_piece *piece, float *weights, void *state,
                           const float *grad, void *scratch) {
    if (device_is_host(device)) {
        optimizer_step(optimizer, update, piece, weights, state, grad, scratch);
        return;
    }
    ASSERT(optimizer_device_can(device, optimizer));
    const struct optimizer_rule rule = optimizer_rule_make(optimizer, update, piece, state);
    if (rule.count == 0) return;
    if (rule.kind == OPTIMIZER_ADAMW) {
        device->compute->adamw(device, &rule.adamw, weights, rule.first.data, rule.second.data,
                               grad, rule.count);
    } else {
        const struct sgd sgd = {rule.lr, rule.momentum, rule.decay, rule.grad_scale, rule.step};
        device->compute->sgd(device, &sgd, weights, rule.stored ? rule.first.data : NULL, grad,
                             rule.count);
    }
}
