/* model_flops.h - the floating-point operations that training a model takes, whatever computes it.
 *
 * Forward and backward of one token take 6 N + 12 L C T of them: N weights in matrix products, the
 * head's among them, two operations forward and four backward each; and attention of L layers with
 * C channels over T positions, of which a causal model needs half, which is not deducted
 * (Chowdhery et al., "PaLM", JMLR 2023, appendix B). Lookups, norms and activation functions are
 * left out, and so is what is computed again to save memory: it is the model's work, not the
 * machine's. Model FLOPs utilisation (MFU) is this work over what the devices could do in the time
 * that it took.
 */
#ifndef RUBATO_WORKER_MODEL_FLOPS_H
#define RUBATO_WORKER_MODEL_FLOPS_H

#include "worker/model.h"

/* Of one token in sequences of T. The shape has passed model_shape_check. Pure. */
double model_flops(const struct model_shape *shape, int64_t T);

#endif
