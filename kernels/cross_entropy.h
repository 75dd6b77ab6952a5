/* cross_entropy.h - softmax, loss and the gradient of the logits, in one pass and in place.
 *
 * Per row: loss = log(sum(exp(l - max))) + max - l[target], which never overflows. A logit that is
 * not finite makes the row's loss not finite (but -inf, a token ruled out, which counts as 0).
 * All arrays on the host and the caller's. The bits do not depend on the thread count. The _ref
 * twin is the oracle. Any thread may call.
 */
#ifndef RUBATO_KERNELS_CROSS_ENTROPY_H
#define RUBATO_KERNELS_CROSS_ENTROPY_H

#include <stdint.h>

/* logits [R, V] f32, targets [R] in 0..V-1 -> losses [R] f32 = -log softmax(logits)[target] in
 * nats. With scale != 0, logits become scale * (softmax - onehot), the gradient of
 * scale * sum(losses); with scale 0 they are left alone. A row whose target is negative does not
 * count: loss and gradient are 0, whatever its logits. */
void cross_entropy(float *logits, const int32_t *targets, float *losses, int64_t R, int64_t V,
                   float scale);
void cross_entropy_ref(float *logits, const int32_t *targets, float *losses, int64_t R, int64_t V,
                       float scale);

#endif
