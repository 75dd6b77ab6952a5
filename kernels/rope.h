/* rope.h - rotary position embeddings (Su et al., arXiv 2104.09864).
 *
 * Channels i and i + D / 2 of each query and key of position t (D = head_size, i < D / 2) are the
 * plane that is turned by the angle t * theta^(-2i / D): Hugging Face's order (`rotate_half`),
 * while the paper pairs neighbours. Values stay as they are. Angles are computed in double at each
 * call, so that distant positions are exact.
 * qkv [B, T, (heads + 2 * kv_heads) * D] f32 host as attention takes it, in place, the caller's.
 * The bits do not depend on the thread count. The _ref twins are the oracles. Any thread may call.
 */
#ifndef RUBATO_KERNELS_ROPE_H
#define RUBATO_KERNELS_ROPE_H

#include <stdint.h>

#define ROPE_HEAD_MAX 1024

struct rope_shape {
    int64_t B, T, heads, kv_heads;
    int64_t head_size; /* even, at most ROPE_HEAD_MAX */
    int64_t position;  /* of each sequence's first row, 0 .. 2^31-1 */
    double theta;
};

void rope_forward(const struct rope_shape *shape, float *qkv);
void rope_forward_ref(const struct rope_shape *shape, float *qkv);

/* Gradients of what rope_forward made -> of what it was given: the inverse rotation. */
void rope_backward(const struct rope_shape *shape, float *dqkv);
void rope_backward_ref(const struct rope_shape *shape, float *dqkv);

#endif
