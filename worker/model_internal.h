/* model_internal.h - what model.c, model_gpt2.c and model_backward.c share: where tensors and
 * activations are. Not for others.
 *
 * Activations that backward needs are kept per layer; a model without `training` has one layer's
 * memory, which all layers point to, and their `in` and `out` are the same.
 * N = B * T rows, C channels, H heads, V vocabulary, of the current batch.
 */
#ifndef RUBATO_WORKER_MODEL_INTERNAL_H
#define RUBATO_WORKER_MODEL_INTERNAL_H

#include "worker/model.h"

#define MODEL_NORM_EPS 1e-5F

/* Index of a tensor: the two embeddings, then twelve a layer, then the last norm. */
enum model_tensor {
    MODEL_WTE,
    MODEL_WPE,
    MODEL_LAYERS /* first tensor of layer 0 */
};

enum model_layer_tensor {
    LAYER_LN1_GAIN,
    LAYER_LN1_BIAS,
    LAYER_QKV_WEIGHT,
    LAYER_QKV_BIAS,
    LAYER_OUT_WEIGHT,
    LAYER_OUT_BIAS,
    LAYER_LN2_GAIN,
    LAYER_LN2_BIAS,
    LAYER_FC_WEIGHT,
    LAYER_FC_BIAS,
    LAYER_PROJ_WEIGHT,
    LAYER_PROJ_BIAS,
    LAYER_TENSORS
};

/* One layer's activations, as pointers into the arena. */
struct model_layer {
    float *in;            /* [N, C] residual stream at the layer's start */
    float *ln1;           /* [N, C] */
    float *ln1_mean;      /* [N] */
    float *ln1_rstd;      /* [N] */
    float *qkv;           /* [N, 3C] */
    float *probabilities; /* [B, H, T, T] */
    float *heads;         /* [N, C] attention before its projection */
    float *middle;        /* [N, C] residual stream after attention */
    float *ln2;           /* [N, C] */
    float *ln2_mean;      /* [N] */
    float *ln2_rstd;      /* [N] */
    float *fc;            /* [N, 4C] before the GELU */
    float *act;           /* [N, 4C] after it */
    float *out;           /* [N, C] residual stream at its end: the next layer's `in` */
};

struct model {
    struct model_shape shape;
    const struct plan *plan;
    bool training;
    int64_t B, T;             /* the most of a batch */
    int64_t batch_B, batch_T; /* of the last model_forward; 0: backward is not possible */
    struct arena arena;
    struct model_layer *layers; /* [shape.layers] */
    float *ln_f;                /* [N, C] */
    float *ln_f_mean;           /* [N] */
    float *ln_f_rstd;           /* [N] */
    float *logits;              /* [N, V]; after model_forward with training: their gradient */
    float *losses;              /* [N] */
    float *branch;              /* [N, C] what a branch adds to the residual stream */
    /* Gradients; training only. */
    float *d_residual; /* [N, C] */
    float *d_branch;   /* [N, C] */
    float *d_fc;       /* [N, 4C] */
    float *d_qkv;      /* [N, 3C] */
    float *scratch;    /* [attention_scratch] */
};

/* Index in plan.tensors of a layer's tensor, and of the last norm's two. */
uint64_t model_layer_tensor(int64_t layer, enum model_layer_tensor which);
uint64_t model_last_norm(const struct model *model);

/* y [rows, out] = x [rows, in] weight [in, out] + bias [out]. */
void model_linear(const float *x, const float *weight, const float *bias, float *y, int64_t rows,
                  int64_t in, int64_t out);

#endif
