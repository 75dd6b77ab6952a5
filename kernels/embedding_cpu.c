/* embedding_cpu.c - rows in parallel forwards, columns in parallel backwards.
 *
 * Two positions may have the same token, so backwards a thread takes a range of columns for all
 * positions: nothing is shared, and each sum is in the order of the positions.
 */
#include "kernels/dispatch.h"
#include "kernels/embedding.h"

#include <string.h>

enum {
    COLUMNS = 64,          /* columns a thread adds at a time */
    PARALLEL_MIN = 1 << 15 /* values below which waking threads costs more than it saves */
};

KERNEL_CLONES static void add_rows(const float *restrict a, const float *restrict b,
                                   float *restrict y, int64_t C) {
    for (int64_t c = 0; c < C; c++)
        y[c] = a[c] + b[c];
}

KERNEL_CLONES static void add_row(const float *restrict from, float *restrict to, int64_t width) {
    for (int64_t c = 0; c < width; c++)
        to[c] += from[c];
}

/* Channels 0..width-1 of all positions; dy, dwte and dwpe point at the first channel. */
KERNEL_CLONES static void add_columns(const int32_t *restrict tokens, const float *restrict dy,
                                      float *restrict dwte, float *restrict dwpe,
                                      const int64_t shape[3], int64_t width) {
    int64_t B = shape[0], T = shape[1], C = shape[2];
    for (int64_t b = 0; b < B; b++) {
        for (int64_t t = 0; t < T; t++) {
            int64_t position = b * T + t;
            const float *from = dy + position * C;
            float *token_to = dwte + tokens[position] * C;
            float *place_to = dwpe + t * C;
#pragma omp simd
            for (int64_t c = 0; c < width; c++) {
                token_to[c] += from[c];
                place_to[c] += from[c];
            }
        }
    }
}

/* Likewise, of the tokens alone. */
static void add_token_columns(const int32_t *tokens, const float *dy, float *dwte, int64_t N,
                              int64_t C, int64_t width) {
    for (int64_t i = 0; i < N; i++)
        add_row(dy + i * C, dwte + tokens[i] * C, width);
}

void embedding_forward(const int32_t *tokens, const float *wte, const float *wpe, float *y,
                       int64_t B, int64_t T, int64_t C) {
#pragma omp parallel for if (B * T * C >= PARALLEL_MIN)
    for (int64_t i = 0; i < B * T; i++) {
        const float *token = wte + tokens[i] * C;
        if (wpe != NULL)
            add_rows(token, wpe + i % T * C, y + i * C, C);
        else
            memcpy(y + i * C, token, (size_t)C * sizeof *y);
    }
}

void embedding_backward_add(const int32_t *tokens, const float *dy, float *dwte, float *dwpe,
                            int64_t B, int64_t T, int64_t C) {
    const int64_t shape[3] = {B, T, C};
#pragma omp parallel for if (B * T * C >= PARALLEL_MIN)
    for (int64_t c = 0; c < C; c += COLUMNS) {
        int64_t width = C - c < COLUMNS ? C - c : COLUMNS;
        if (dwpe != NULL)
            add_columns(tokens, dy + c, dwte + c, dwpe + c, shape, width);
        else
            add_token_columns(tokens, dy + c, dwte + c, B * T, C, width);
    }
}
