/* cross_entropy.h - softmax, loss and the gradient of the logits, in one pass and in place. */
#ifndef RUBATO_KERNELS_CROSS_ENTROPY_H
#define RUBATO_KERNELS_CROSS_ENTROPY_H

#include <stdint.h>

/* logits [R, V], targets [R] in 0..V-1 -> losses [R] = -log softmax(logits)[target] in nats. With scale
 * != 0, logits become scale * (softmax - onehot), the gradient of scale * sum(losses); with
 * scale 0 they are left alone. */
void cross_entropy(float *logits, const int32_t *targets, float *losses, int64_t R, int64_t V,
                   float scale);
void cross_entropy_ref(float *logits, const int32_t *targets, float *losses, int64_t R, int64_t V,
                       float scale);

#endif
