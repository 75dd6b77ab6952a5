/* attention.h - causal multi-head self-attention (Vaswani et al., arXiv 1706.03762, section 3.2).
 *
 * qkv [B, T, 3C]: queries, keys, values side by side, each split in H heads of C / H channels.
 * y [B, T, C]. probabilities [B, H, T, T] keeps the softmax for backward (row t: columns 0..t, zero
 * beyond). Scores are scaled by 1 / sqrt(C / H).
 * All arrays f32 on the host and the caller's, none overlapping another. The bits do not depend on
 * the thread count. The _ref twins are the oracles. Any thread may call.
 */
#ifndef RUBATO_KERNELS_ATTENTION_H
#define RUBATO_KERNELS_ATTENTION_H

#include <stdint.h>

/* Sequences, positions, channels, heads: each >= 1, H divides C. */
struct attention_shape {
    int64_t B, T, C, H;
};

void attention_forward(const struct attention_shape *shape, const float *qkv, float *probabilities,
                       float *y);
void attention_forward_ref(const struct attention_shape *shape, const float *qkv,
                           float *probabilities, float *y);

/* Floats of scratch that backward needs, whatever the thread count: a [T, T] matrix for each thread
 * that can be at work, which is min(B H, ATTENTION_THREADS_MAX). */
#define ATTENTION_THREADS_MAX 64
int64_t attention_scratch(const struct attention_shape *shape);

/* dy [B, T, C] -> dqkv [B, T, 3C] (overwritten). scratch: attention_scratch(shape) floats. */
void attention_backward(const struct attention_shape *shape, const float *qkv,
                        const float *probabilities, const float *dy, float *dqkv, float *scratch);
void attention_backward_ref(const struct attention_shape *shape, const float *qkv,
                            const float *probabilities, const float *dy, float *dqkv,
                            float *scratch);

#endif
