/* cross_entropy_ref.c - the oracle: a row at a time, in double. */
#include "kernels/cross_entropy.h"

#include <math.h>
#include <stdbool.h>

void cross_entropy_ref(float *logits, const int32_t *targets, float *losses, int64_t R, int64_t V,
                       float scale) {
    bool want_gradient = scale > 0.0F || scale < 0.0F;
    for (int64_t r = 0; r < R; r++) {
        float *row = logits + r * V;
        if (targets[r] < 0) {
            losses[r] = 0;
            for (int64_t v = 0; want_gradient && v < V; v++)
                row[v] = 0;
            continue;
        }
        double most = (double)row[0], sum = 0.0;
        for (int64_t v = 1; v < V; v++)
            most = fmax(most, (double)row[v]);
        for (int64_t v = 0; v < V; v++)
            sum += exp((double)row[v] - most);
        losses[r] = (float)(log(sum) + most - (double)row[targets[r]]);
        for (int64_t v = 0; want_gradient && v < V; v++) {
            double probability = exp((double)row[v] - most) / sum;
            double onehot = v == targets[r] ? 1.0 : 0.0;
            row[v] = (float)((double)scale * (probability - onehot));
        }
    }
}
