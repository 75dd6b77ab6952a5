/* embedding_ref.c - the oracle. Each gradient is summed in double before it is added. */
#include "kernels/embedding.h"

#include <stddef.h>

void embedding_forward_ref(const int32_t *tokens, const float *wte, const float *wpe, float *y,
                           int64_t B, int64_t T, int64_t C) {
    for (int64_t i = 0; i < B * T; i++) {
        for (int64_t c = 0; c < C; c++)
            y[i * C + c] = wte[tokens[i] * C + c] + (wpe != NULL ? wpe[i % T * C + c] : 0.0F);
    }
}

/* What dy adds to channel c of the first position that has the token of position `first`. */
static double token_sum(const int32_t *tokens, const float *dy, int64_t first, int64_t count,
                        int64_t C, int64_t c) {
    double sum = 0.0;
    for (int64_t i = first; i < count; i++) {
        if (tokens[i] == tokens[first]) sum += (double)dy[i * C + c];
    }
    return sum;
}

static int seen_before(const int32_t *tokens, int64_t position) {
    for (int64_t i = 0; i < position; i++) {
        if (tokens[i] == tokens[position]) return 1;
    }
    return 0;
}

void embedding_backward_add_ref(const int32_t *tokens, const float *dy, float *dwte, float *dwpe,
                                int64_t B, int64_t T, int64_t C) {
    for (int64_t i = 0; i < B * T; i++) {
        if (seen_before(tokens, i)) continue;
        for (int64_t c = 0; c < C; c++) {
            float *to = &dwte[tokens[i] * C + c];
            *to = (float)((double)*to + token_sum(tokens, dy, i, B * T, C, c));
        }
    }
    for (int64_t t = 0; t < T && dwpe != NULL; t++) {
        for (int64_t c = 0; c < C; c++) {
            double sum = 0.0;
            for (int64_t b = 0; b < B; b++)
                sum += (double)dy[(b * T + t) * C + c];
            dwpe[t * C + c] = (float)((double)dwpe[t * C + c] + sum);
        }
    }
}
