/* model.h - a decoder-only transformer: its tensors, forward, backward, and logits.
 *
 * GPT-2: token and learned position embeddings, `layers` of [norm, causal attention, residual,
 * norm, MLP with GELU, residual], a last norm, and a head tied to the token embeddings (Radford et
 * al. 2019). Names, shapes and orientation are Hugging Face's: Conv1D weights are [in, out].
 * Weights and gradients are one flat vector each, laid out by the plan (proto/plan.h); the model
 * finds its tensors at plan.offsets. Backward calls `ready` for each tensor as soon as its gradient
 * is final, in reverse layer order, so that blocks leave while the rest is computed; the token
 * embeddings come last, since the head and the embedding both add to them.
 * Memory is one arena, sized at model_open; nothing is allocated afterwards. One thread drives a
 * model; the kernels use OpenMP below it. All arrays are on the host.
 */
#ifndef RUBATO_WORKER_MODEL_H
#define RUBATO_WORKER_MODEL_H

#include "base/memory.h"
#include "proto/plan.h"

struct model_shape {
    int64_t layers, channels, heads; /* heads divide channels */
    int64_t vocab;
    int64_t positions; /* longest sequence */
};

/* "gpt2:tiny" (4x128x4), "gpt2:small" (6x384x6), "gpt2:124M", 350M, 774M, 1.5B, or "gpt2:LxCxH".
 * INVALID with the reason in why [why_bytes], shape unchanged. vocab and positions come from the
 * caller, 1 .. 2^31-1. */
enum status model_shape_parse(const char *text, int64_t vocab, int64_t positions,
                              struct model_shape *shape, char *why, size_t why_bytes) WARN_UNUSED;

/* Its tensors in model order -> new memory, free() it; names as in Hugging Face's GPT2LMHeadModel
 * ("transformer.wte.weight", ...). Matrices decay, vectors do not. */
struct tensor *model_tensors(const struct model_shape *shape, uint64_t *count);

/* First weights of the flat vector [plan.value_count]: normal(0, 0.02), projections into the
 * residual stream divided by sqrt(2 layers), vectors 0, gains 1. A pure function of (seed,
 * tensor). */
void model_init_weights(const struct model_shape *shape, const struct plan *plan, uint64_t seed,
                        float *weights);

struct model; /* activations, and where the tensors are */

/* For batches of up to B sequences of up to T tokens, T <= positions; with `training` false no
 * memory for backward is taken. The plan, built from model_tensors(shape), must outlive it.
 * MEMORY, logged. */
enum status model_open(struct model **model, const struct model_shape *shape,
                       const struct plan *plan, int64_t B, int64_t T, bool training) WARN_UNUSED;

/* Harmless on NULL. */
void model_close(struct model *model);

/* weights [value_count], tokens [B, T], targets [B, T] -> mean loss in nats a token. Tokens are in
 * 0..vocab-1, checked by the caller (data_check_vocab). With `training` it also leaves the gradient
 * of the logits where the logits were. */
float model_forward(struct model *model, const float *weights, const int32_t *tokens,
                    const int32_t *targets, int64_t B, int64_t T);

/* Called with the index (in plan.tensors) of a tensor whose gradient is final, once a tensor. */
typedef void model_ready_fn(void *context, uint64_t tensor);

/* Of a model opened with `training`, right after model_forward with the same arguments: gradient of
 * the mean loss -> grad [value_count], overwritten. `ready` may be NULL; it runs on the calling
 * thread and must not call the model. Once it is called for a tensor, backward reads the tensor's
 * weights no more, so new ones may be received in their place. */
void model_backward(struct model *model, const float *weights, const int32_t *tokens,
                    const int32_t *targets, float *grad, model_ready_fn *ready, void *context);

/* Logits of the last position of tokens [count], 1 <= count <= T -> logits [vocab]. */
void model_logits(struct model *model, const float *weights, const int32_t *tokens, int64_t count,
                  float *logits);

#endif
