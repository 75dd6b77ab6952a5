/* attention.h - causal self-attention in memory linear in T, multi-head or grouped-query.
 *
 * Heads: Vaswani et al., arXiv 1706.03762, section 3.2; `heads / kv_heads` neighbouring query heads
 * share a head of keys and values: Ainslie et al., arXiv 2305.13245. Scores are scaled by
 * 1 / sqrt(head_size). They are made a tile of queries and keys at a time and never kept: forward
 * carries each query's maximum and sum along (online softmax) and leaves their log-sum-exp, from
 * which backward makes the probabilities again (Dao, FlashAttention-2, arXiv 2307.08691).
 * Backward's tasks are heads of keys and values; where these are too few for the threads, tiles of
 * keys and then tiles of queries, which costs 7 products instead of 5 but keeps the threads busy.
 * All arrays f32 on the host and the caller's, none overlapping another. The bits do not depend on
 * the thread count. The _ref twins are the oracles. Any thread may call.
 */
#ifndef RUBATO_KERNELS_ATTENTION_H
#define RUBATO_KERNELS_ATTENTION_H

#include "kernels/dropout.h"

#include <stdbool.h>

/* Sequences, positions, and the heads: each >= 1, kv_heads divides heads. */
struct attention_shape {
    int64_t B, T, heads, kv_heads, head_size;
    const struct dropout *dropout; /* of the probabilities, before they meet the values; or NULL */
    bool bf16; /* products may round their operands to bfloat16: CUDA then does, the host never */
};

/* Floats of scratch that forward and backward need, whatever the thread count: some tiles for each
 * thread that can be at work, which are ATTENTION_THREADS_MAX at most. It grows with
 * head_size, and with T only until there is a task for each of these threads. */
#define ATTENTION_THREADS_MAX 64
int64_t attention_scratch(const struct attention_shape *shape);

/* qkv [B, T, (heads + 2 * kv_heads) * head_size]: queries, keys, values side by side, each split in
 * heads -> y [B, T, heads * head_size], lse [B, heads, T]: the logarithm of the sum of the
 * exponentials of a query's scaled scores. */
void attention_forward(const struct attention_shape *shape, const float *qkv, float *lse, float *y,
                       float *scratch);
void attention_forward_ref(const struct attention_shape *shape, const float *qkv, float *lse,
                           float *y, float *scratch);

/* What the forward pass had and made. */
struct attention_saved {
    const float *qkv, *y, *lse;
};

/* dy [B, T, heads * head_size] -> dqkv, as qkv (overwritten). */
void attention_backward(const struct attention_shape *shape, const struct attention_saved *saved,
                        const float *dy, float *dqkv, float *scratch);
void attention_backward_ref(const struct attention_shape *shape,
                            const struct attention_saved *saved, const float *dy, float *dqkv,
                            float *scratch);

#endif
