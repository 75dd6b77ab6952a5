/* anchor.h - how far a worker's own steps have come from where they started, and back to a new
 * start (worker/local.h).
 *
 * A value goes through the same correctly rounded f32 operations in the same order on every chip
 * and device, so the bits are the same everywhere; only which NaN a NaN is may differ. Arrays
 * [N] f32, the caller's, none overlapping another. Any thread.
 */
#ifndef RUBATO_KERNELS_ANCHOR_H
#define RUBATO_KERNELS_ANCHOR_H

#include <stdint.h>

/* delta = (anchor - weights) * factor. */
void anchor_delta(const float *anchor, const float *weights, float factor, float *delta, int64_t N);

/* weights = mix * weights + (1 - mix) * anchor, in place. */
void anchor_mix(const float *anchor, float mix, float *weights, int64_t N);

#endif
