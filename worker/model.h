/* model.h - a decoder-only transformer: its tensors, forward, backward, and logits.
 *
 * Families (model_family.h): GPT-2 and Llama. Names, shapes and orientation of tensors are Hugging
 * Face's. Weights and gradients are one flat vector each, laid out by the plan (proto/plan.h); the
 * model finds its tensors at plan.offsets. model_set_weights() prepares the matrices for the
 * products of a step.
 * Dropout is where Hugging Face has it: GPT-2 drops of the embeddings' sum, of attention's
 * probabilities and of both projections into the residual stream; Llama of the probabilities alone.
 * Only a pass with a gradient drops anything.
 * The head and the loss are computed a chunk of rows at a time, forwards and backwards at once, so
 * that the logits of a whole batch are never in memory. Backward calls `ready` for each tensor as
 * soon as its gradient is final, in reverse layer order, so that blocks leave while the rest is
 * computed; token embeddings come last, since a tied head and the embedding both add to them.
 * Memory is taken at model_open: one arena (with less of it, activations are computed again in
 * backward: the gradients are the same to the bit) and the products' own. Nothing is allocated
 * afterwards. One thread drives a model and its device; on the host the kernels use OpenMP below.
 * Arrays of the caller's are on the host, whatever computes. Another device (kernels/device.h) has
 * copies of weights and gradient, which move while it computes (model_mirror.h): fastest if the
 * caller has pinned its own. When the device fails, passes end early and model_status() says so.
 */
#ifndef RUBATO_WORKER_MODEL_H
#define RUBATO_WORKER_MODEL_H

#include "base/memory.h"
#include "kernels/device.h"
#include "kernels/linear.h"
#include "proto/plan.h"

struct model_family;
struct model_team;

struct model_shape {
    const struct model_family *family;
    int64_t layers, channels, heads; /* heads divide channels */
    int64_t vocab;
    int64_t positions;    /* longest sequence */
    int64_t kv_heads;     /* heads of keys and values; they divide heads */
    int64_t intermediate; /* width of the MLP */
    double rope_theta;    /* Llama's base of rotary positions */
    double norm_eps;      /* added to the variance */
    bool tied_head;       /* the head's weights are the token embeddings */
};

/* model_gpt2.c, model_llama.c. */
extern const struct model_family model_gpt2, model_llama;

/* "gpt2", "llama"; NULL if there is none of that name. */
const struct model_family *model_family_find(const char *name);

/* FAMILY:SIZE, or FAMILY:LAYERSxCHANNELSxHEADS[xKEY_HEADS] -> a complete shape. INVALID with the
 * reason in why [why_bytes], shape unchanged. vocab and positions come from the caller, in
 * 1 .. 2^31-1. */
enum status model_shape_parse(const char *text, int64_t vocab, int64_t positions,
                              struct model_shape *shape, char *why, size_t why_bytes) WARN_UNUSED;

/* Whether a shape from anywhere (a config.json) can be computed; fills in what is 0 of kv_heads,
 * intermediate, rope_theta and norm_eps with the family's own first. INVALID with the reason. All
 * other functions need a shape that passed. */
enum status model_shape_check(struct model_shape *shape, char *why, size_t why_bytes) WARN_UNUSED;

/* Its tensors in model order -> new memory, free() it; names as in Hugging Face's GPT2LMHeadModel
 * ("transformer.wte.weight", ...) and LlamaForCausalLM. Matrices decay, vectors do not. */
struct tensor *model_tensors(const struct model_shape *shape, uint64_t *count);

/* First weights of the flat vector [plan.value_count]: normal(0, 0.02), projections into the
 * residual stream divided by sqrt(2 layers), vectors 0, gains 1. A pure function of (seed,
 * tensor). Uses the kernels' threads. */
void model_init_weights(const struct model_shape *shape, const struct plan *plan, uint64_t seed,
                        float *weights);

enum model_recompute {
    MODEL_RECOMPUTE_NONE,      /* every activation is kept for backward */
    MODEL_RECOMPUTE_ATTENTION, /* norms, attention and activation functions are computed again */
    MODEL_RECOMPUTE_EVERY      /* kept: the residual stream before every N-th layer */
};

struct model_options {
    int64_t B, T;           /* most sequences, and most tokens of one, T <= positions */
    bool training;          /* memory for backward */
    enum compute_type type; /* of the products */
    enum model_recompute recompute;
    int64_t recompute_every; /* N >= 1 of MODEL_RECOMPUTE_EVERY */
    float dropout;           /* 0 <= p < 1: of training passes; 0 costs nothing */
    struct device *device;   /* what computes, open until the model is closed; NULL: the host */
    struct model_team *team; /* whose models make each pass together (node.h), or NULL */
    int rank;                /* in the team */
    /* With devices that are not the host, and training: what each block of the weights that are set
     * is in (raw_weights.h) when they are read; NULL: in f32. They are set when no gradient is to
     * be added to, since what is not f32 waits where a gradient will be. */
    const uint8_t *codecs;
    bool apart; /* of training: a gradient that is to be added is computed by itself */
};

struct model; /* activations, and where the tensors are */

/* The plan, built from model_tensors(shape), must outlive it. MEMORY or DEVICE, logged. */
enum status model_open(struct model **model, const struct model_shape *shape,
                       const struct plan *plan, const struct model_options *options) WARN_UNUSED;

/* Harmless on NULL. */
void model_close(struct model *model);

/* Bytes that model_open would take of options.device, which need not be open (device_describe); 0
 * if they do not fit in 64 bits. What the products take inside oneDNN is an estimate. Weights and
 * gradients are not among them: on the host they are the caller's, and on another device, or in a
 * team, model_copies_bytes() of as many values; nor is the gradient that is computed `apart`.
 * Allocates nothing. */
uint64_t model_bytes(const struct model_shape *shape, const struct model_options *options);
uint64_t model_copies_bytes(uint64_t value_count, const struct model_options *options);

/* OK; DEVICE: the device failed; TIMEOUT, PEER_LOST: the team did (kernels/group.h). Logged: what
 * was computed since is worth nothing. */
enum status model_status(const struct model *model) WARN_UNUSED;

/* Before the first pass, and after every change of weights [value_count], which the model goes on
 * reading: vectors, embeddings and, in f32, matrices from there; in bfloat16 matrices from copies
 * that are made now. Another device than the host copies all in the next model_forward, and reads
 * them no more when that has returned. NULL, with devices that are not the host: those that they
 * have, which were changed there. */
void model_set_weights(struct model *model, const float *weights);

/* Its own weights [value_count] where it has them; NULL: the model is the host's. Who changes them
 * queues that on DEVICE_COMPUTE, and sets them again. */
float *model_device_weights(const struct model *model);

/* Waits for weights that are still to come. */
struct model_gate {
    /* Returns when tensors first .. first + count - 1 of plan.tensors are there, and stay as they
     * are; false: they will not come. Runs on the calling thread, must not call the model. */
    bool (*wait)(void *context, uint64_t first, uint64_t count);
    void *context; /* must outlive the pass */
};

/* As model_set_weights, before all weights are there. The next pass is a model_forward: it asks the
 * gate for the first tensors, for each layer's and for the last ones before it reads any of them,
 * every tensor once in all. When it returns with a loss, all are there. */
void model_expect_weights(struct model *model, const float *weights, const struct model_gate *gate);

/* How many tensors, from number 0 on, it asks for first. */
uint64_t model_first_tensors(const struct model_shape *shape);

/* tokens and targets [B, T]. Tokens are in 0..vocab-1, checked by the caller (data_check_vocab);
 * so are targets, or -1: a position that does not count. */
struct model_batch {
    const int32_t *tokens, *targets;
    int64_t B, T;
    /* With dropout: what is dropped is a pure function of these two, the layer and the value's
     * place in the batch, so batches that are to differ in it need numbers that do. */
    uint64_t dropout_seed, dropout_step;
};

/* Where a gradient goes. To accumulate K batches: scale 1/K, `add` for all but the first, `more`
 * for all but the last. Sums go on where the last pass's ended, or with the model's option `apart`
 * each gradient is computed from zero, as that of a single batch is, and each tensor's then added
 * to the last pass's, before it is announced: ((g0 + g1) + g2) + ..., as a group adds its members'
 * (kernels/group.h). */
struct model_gradient {
    float *values; /* [value_count]; NULL, with devices that are not the host: it stays there */
    double scale;  /* the gradient is that of scale * mean loss; rounded to f32 where it is used */
    bool add;      /* to the last pass's; else it is overwritten, every value */
    bool more;     /* the next pass will add to it: another device than the host keeps it till then,
                    * and values stay as they are */
};

/* -> mean loss in nats a token, of the targets that count; 0 where none does. NaN if the device
 * failed, or a gate said that weights will not come: then weights must be set again before another
 * pass, and none of the caller's arrays is in use any more. With `gradient`
 * (training only; NULL: the loss alone) model_backward may follow; the head's share of the gradient
 * is written already. */
float model_forward(struct model *model, const struct model_batch *batch,
                    const struct model_gradient *gradient);

/* Called with the index (in plan.tensors) of a tensor whose gradient is final, once a tensor; a
 * gradient that stays on a device is final behind model_ready_event(). */
typedef void model_ready_fn(void *context, uint64_t tensor);

/* Right after model_forward with the same arguments: the rest of the gradient. `ready` may be NULL,
 * as with `more` it is; it runs on the calling thread and must not call the model. Once it is
 * called for a tensor, backward reads the tensor's weights no more, so new ones may be received in
 * their place. It is not called for all if the device fails. */
void model_backward(struct model *model, const struct model_batch *batch,
                    const struct model_gradient *gradient, model_ready_fn *ready, void *context);

/* Where a gradient that stays on a device is, [value_count] of its memory; NULL: the model is the
 * host's. And the event behind which that of a tensor is final for which `ready` was called, in a
 * team for member 0, while each has the sum of the blocks that it owns (model_team.h); the next
 * pass records it again. Any thread. */
const float *model_device_gradient(const struct model *model);
const struct device_event *model_ready_event(const struct model *model, uint64_t tensor);

/* T of its options: the longest text it can see at once. */
int64_t model_longest(const struct model *model);

/* Logits of the last position of tokens [count], 1 <= count <= T -> logits [vocab]. On the host
 * alone. */
void model_logits(struct model *model, const int32_t *tokens, int64_t count, float *logits);

/* Values of a cache for model_decode: [layers, T, 2 kv_heads D], the caller's. */
uint64_t model_cache_count(const struct model *model);

/* As model_logits, of a text that grows: tokens [count] stand at `position`.. ; the keys and values
 * of 0..position-1 are in the cache from earlier calls, theirs are put there. count is 1, or
 * position is 0. position + count <= T. On the host alone. */
void model_decode(struct model *model, float *cache, const int32_t *tokens, int64_t count,
                  int64_t position, float *logits);

#endif
