/* model_family.h - what a model family (GPT-2, Llama) brings, and what all families share. For
 * worker/model*.c alone; others use model.h.
 *
 * A family is one constant table in a file of its own: its names and sizes, its tensors, and the
 * forward and backward step of the embedding, of one layer, and of the last norm. All else is
 * model.c's and the same for every family: memory, the loop over layers, recomputation, the head
 * with its loss, keys and values kept for sampling (model_attend.c).
 * To add a family: write worker/model_NAME.c with its table; declare the table in model.h and list
 * it in families[] of model.c; add its file to worker/CMakeLists.txt and its shapes to
 * tests/test_model.c.
 *
 * What is computed is computed by model->device->compute, on arrays of the device; the host touches
 * none of them, but where model.h says: on the host alone.
 * Activations that backward needs are kept per layer (model_recompute says which); what is not kept
 * is shared by the layers. A model without `training` has one layer's memory, which all layers
 * point to, and their `in` and `out` are the same.
 * N = B * T rows of the current batch, C channels, V vocabulary, D = channels / heads,
 * Q = (heads + 2 kv_heads) * D values of a row's queries, keys and values, I = intermediate.
 */
#ifndef RUBATO_WORKER_MODEL_FAMILY_H
#define RUBATO_WORKER_MODEL_FAMILY_H

#include "kernels/compute.h"
#include "worker/model.h"
#include "worker/model_mirror.h"

enum { MODEL_PRODUCTS_MAX = 8 };

/* A size with a name. Fields of the shape that are 0 are filled in by `complete`. */
struct model_preset {
    const char *name;
    struct model_shape shape;
};

/* The product of activations with one weight matrix of each layer: struct linear_shape's fields. */
struct model_product {
    uint64_t tensor; /* the matrix, counted from the layer's first tensor */
    int64_t in, out, stride_x, stride_y;
    bool out_in;
};

struct model_backward;

struct model_family {
    const char *name;                   /* "gpt2": what stands before the colon */
    const struct model_preset *presets; /* [preset_count] */
    size_t preset_count;
    uint64_t first_tensors; /* before layer 0's; the token embeddings, [V, C], are tensor 0 */
    uint64_t layer_tensors; /* a layer's; behind the last layer's: the last norm, then the head */
    uint64_t last_tensors;  /* the last norm's */
    int64_t mlp_parts;      /* layer.fc is [N, mlp_parts * I]: 1, or 2 for gate and up */
    /* Names of matrices that end so write to the residual stream; NULL: no more of them. */
    const char *residual_matrices[2];

    /* Fills in what is 0 of kv_heads, intermediate, rope_theta, norm_eps. */
    void (*complete)(struct model_shape *shape);

    /* Optional: what the family demands beyond model_shape_check. False with the reason. */
    bool (*check)(const struct model_shape *shape, char *why, size_t why_bytes);

    /* A complete shape's tensors in model order -> tensors [model_tensor_count], zeroed before. */
    void (*tensors)(const struct model_shape *shape, struct tensor *tensors);

    /* The matrices of a layer -> products [MODEL_PRODUCTS_MAX]; how many. layer.products[i] is
     * opened for, and loaded with, number i. */
    int (*products)(const struct model_shape *shape, struct model_product *products);

    /* tokens [N] -> layers[0].in. Positions: now.position + row % now.T. */
    void (*embed)(struct model *model, const int32_t *tokens);

    /* Layer l and what backward needs of it. Its last branch is left to whoever norms the sum: the
     * layer adds model->unadded and model->branch to its `in` first (NULL: that is there), leaves
     * its own last branch in model->branch, and sets unadded. With `again` (in backward, under
     * MODEL_RECOMPUTE_ATTENTION) it makes only ln1, heads, lse, ln2 and act afresh, from in, qkv,
     * middle and fc, which are still there, to the same bits: no products. */
    void (*layer)(struct model *model, int64_t l, bool again);

    /* The last layer's unadded sum -> its out, and -> last. */
    void (*last)(struct model *model);

    /* The three in reverse. The gradient of what `last` wrote is in d_branch; of the residual
     * stream, before and after, in d_residual (zeroed before last_backward). Every activation of
     * the layer is there. Each announces its tensors; embed_backward tensor 0, too, whose gradient
     * it adds to with a tied head, since the head's share is there. */
    void (*last_backward)(const struct model_backward *pass);
    void (*layer_backward)(const struct model_backward *pass, int64_t l);
    void (*embed_backward)(const struct model_backward *pass, const int32_t *tokens);
};

/* One layer's activations, as pointers into the arena, and its products. */
struct model_layer {
    float *in;       /* [N, C] residual stream at the layer's start */
    float *ln1;      /* [N, C] the first norm's result */
    float *ln1_mean; /* [N]; not used by RMS norms */
    float *ln1_rstd; /* [N] */
    float *qkv;      /* [N, Q] queries, keys, values, as attention takes them */
    float *lse;      /* [B, heads, T] of attention_forward */
    float *heads;    /* [N, C] attention before its projection */
    float *middle;   /* [N, C] residual stream after attention */
    float *ln2;      /* [N, C] */
    float *ln2_mean; /* [N] */
    float *ln2_rstd; /* [N] */
    float *fc;       /* [N, mlp_parts * I] before bias and activation */
    float *act;      /* [N, I] after it */
    float *out;      /* [N, C] residual stream at its end: the next layer's `in` */
    struct linear *products[MODEL_PRODUCTS_MAX];
};

/* The batch that is being computed. */
struct model_now {
    int64_t B, T, N;
    int64_t position; /* of each sequence's first token: 0 but in model_decode */
    float *cache;     /* model_decode's; else NULL */
    bool drops;       /* dropout is at work, with these two numbers of the batch's */
    uint64_t dropout_seed, dropout_step;
};

struct model {
    struct model_shape shape;
    const struct plan *plan;
    struct model_options options;
    struct device *device;       /* all arrays below are on it */
    struct model_mirror *mirror; /* NULL on the host, without a team */
    enum status status;          /* as model_status() */
    const float *weights;        /* where they are read; NULL before model_set_weights */
    struct model_gate gate;      /* of the next pass; `wait` is NULL when all weights are there */
    bool loads;                  /* the next pass loads the weights, layer by layer */
    struct model_now now;
    bool gradient_ready; /* the last model_forward prepared a backward */
    float *apart; /* [value_count] where a gradient is computed that is added then; or NULL */
    struct arena arena;
    struct model_layer *layers; /* [shape.layers] */
    int product_count;          /* of a layer */
    int64_t segment;            /* layers whose activations are kept together (EVERY), or all */
    struct linear *head;        /* [V, C] to [chunk, V] */
    int64_t chunk;              /* rows of logits at a time */
    float *last;                /* [N, C] the last norm's result */
    float *last_mean;           /* [N] */
    float *last_rstd;           /* [N] */
    float *logits;              /* [chunk, V] */
    float *losses;              /* [N] */
    float *branch;              /* [N, C] what a branch adds to the residual stream */
    const float *unadded;       /* [N, C] the stream that it was not added to yet; or NULL */
    /* Gradients; training only. */
    float *d_residual; /* [N, C] */
    float *d_branch;   /* [N, C] */
    float *d_fc;       /* [N, mlp_parts * I] */
    float *d_act;      /* [N, I]; d_fc itself where mlp_parts is 1 */
    float *d_qkv;      /* [N, Q] */
    float *scratch;    /* what the device's operations need */
};

/* What the steps of one backward share. */
struct model_backward {
    struct model *model;
    const struct model_gradient *gradient;
    float *values;         /* model_gradient_values() */
    bool add;              /* model_gradient_adds() */
    model_ready_fn *ready; /* may be NULL */
    void *context;
};

/* Sizes of the current batch's attention, without dropout. */
struct attention_shape model_attention(const struct model *model);

/* x [N, C] of layer l, dropped in place; as it is unless the batch drops. */
void model_drop(const struct model *model, int64_t l, enum dropout_site site, float *x);

/* d_residual as the gradient of a branch that model_drop dropped: itself, or a copy in `branch`. */
const float *model_drop_gradient(struct model *model, int64_t l, enum dropout_site site);

/* layers[l].qkv -> heads (and lse): causal attention; in model_decode, over the cache. */
void model_attend(struct model *model, int64_t l);

/* d_branch, the gradient of heads -> d_qkv. */
void model_attend_backward(struct model *model, int64_t l);

/* A tensor's weights; the number in the plan of a tensor: of layer l (`which` counts from the
 * layer's first), of the last norm, of the head; how many there are. */
const float *model_weights(const struct model *model, uint64_t tensor);
uint64_t model_layer_tensor(const struct model *model, int64_t l, uint64_t which);
uint64_t model_last_tensor(const struct model *model, uint64_t which);
uint64_t model_head_tensor(const struct model *model);
uint64_t model_tensor_count(const struct model_shape *shape);

/* Puts weights where they are read, and gives the products theirs: of the first tensors, of layer
 * l, of the last norm and the head. */
void model_load_first(struct model *model);
void model_load_layer(struct model *model, int64_t l);
void model_load_last(struct model *model);

/* Where the device computes the gradient [value_count], and whether onto what is there. */
float *model_gradient_values(const struct model *model, const struct model_gradient *gradient);
bool model_gradient_adds(const struct model *model, const struct model_gradient *gradient);

/* Where a tensor's gradient goes; `_adding`: zeroed first unless it is added to what is there, for
 * kernels that add. Announced is one that is complete: where it was computed apart, it is added
 * now. */
float *model_grad(const struct model_backward *pass, uint64_t tensor);
float *model_grad_adding(const struct model_backward *pass, uint64_t tensor);
void model_announce(const struct model_backward *pass, uint64_t tensor);

/* Backward of product `which` of layer l: x its input, dy -> dx (NULL: not wanted; added to with
 * `add_dx`), the matrix's gradient and, if `bias`, that of the tensor behind it; both announced. */
struct model_product_backward {
    int which;
    const float *x, *dy;
    float *dx;
    bool add_dx, bias;
};
void model_product_backward(const struct model_backward *pass, int64_t l,
                            const struct model_product_backward *product);

/* For tables of tensors: cols 0 makes a vector of `rows` values. */
void model_set_tensor(struct tensor *tensor, int64_t rows, int64_t cols);

#endif
