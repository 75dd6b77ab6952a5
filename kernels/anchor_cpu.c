#include "kernels/anchor.h"

void anchor_delta(const float *anchor, const float *weights, float factor, float *delta,
                  int64_t N) {
    for (int64_t i = 0; i < N; i++)
        delta[i] = (anchor[i] - weights[i]) * factor;
}

void anchor_mix(const float *anchor, float mix, float *weights, int64_t N) {
    const float part = 1.0F - mix;
    for (int64_t i = 0; i < N; i++)
        weights[i] = mix * weights[i] + part * anchor[i];
}
