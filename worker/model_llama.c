/* Llama: token embeddings, layers of [RMS norm, causal attention of rotated queries and keys, which
 * share heads of keys and values, residual, RMS norm, MLP with SwiGLU, residual], a last RMS norm,
 * and a head of its own or tied (Touvron et al., arXiv 2302.13971 and 2307.09288), as Hugging
 * Face's LlamaForCausalLM computes it without rope scaling. Its weights are [out, in]. */
#include "worker/model_family.h"

#include <inttypes.h>
#include <stdio.h>

enum first_tensor { EMBED, FIRST_TENSORS };
enum last_tensor { LAST_GAIN, LAST_TENSORS };
enum layer_tensor {
    LN1_GAIN,
    Q_WEIGHT,
    K_WEIGHT,
    V_WEIGHT,
    O_WEIGHT,
    LN2_GAIN,
    GATE_WEIGHT,
    UP_WEIGHT,
    DOWN_WEIGHT,
    LAYER_TENSORS
};
enum product { Q, K, V, O, GATE, UP, DOWN, PRODUCTS };

static const struct model_preset presets[] = {
    {"tiny", {.layers = 4, .channels = 128, .heads = 4, .kv_heads = 2, .intermediate = 352}},
    {"small", {.layers = 6, .channels = 384, .heads = 6, .kv_heads = 2, .intermediate = 1024}},
    {"1B",
     {.layers = 16,
      .channels = 2048,
      .heads = 32,
      .kv_heads = 8,
      .intermediate = 8192,
      .rope_theta = 500000.0,
      .tied_head = true}},
};

/* The MLP has three matrices: 8/3 channels make it as large as one of two with 4. */
static void complete(struct model_shape *shape) {
    if (shape->kv_heads == 0) shape->kv_heads = shape->heads;
    if (shape->intermediate == 0) shape->intermediate = (8 * shape->channels / 3 + 31) / 32 * 32;
    if (shape->rope_theta == 0) shape->rope_theta = 10000.0;
    if (shape->norm_eps <= 0) shape->norm_eps = 1e-5;
}

static bool check(const struct model_shape *shape, char *why, size_t why_bytes) {
    int64_t D = shape->channels / shape->heads;
    if (D % 2 != 0 || D > ROPE_HEAD_MAX) {
        snprintf(why, why_bytes,
                 "Llama's heads have an even number of channels up to %d, not %" PRId64,
                 ROPE_HEAD_MAX, D);
        return false;
    }
    if (!(shape->rope_theta >= 1 && shape->rope_theta <= 1e12)) {
        snprintf(why, why_bytes, "rope theta %g is not in 1..1e12", shape->rope_theta);
        return false;
    }
    return true;
}

/* Values of a row's keys, and of its values. */
static int64_t kv_width(const struct model_shape *shape) {
    return shape->kv_heads * (shape->channels / shape->heads);
}

static void tensors(const struct model_shape *shape, struct tensor *list) {
    int64_t C = shape->channels, I = shape->intermediate, KV = kv_width(shape);
    const struct {
        const char *name;
        int64_t rows, cols;
    } layer[LAYER_TENSORS] = {
        [LN1_GAIN] = {"input_layernorm.weight", C, 0},
        [Q_WEIGHT] = {"self_attn.q_proj.weight", C, C},
        [K_WEIGHT] = {"self_attn.k_proj.weight", KV, C},
        [V_WEIGHT] = {"self_attn.v_proj.weight", KV, C},
        [O_WEIGHT] = {"self_attn.o_proj.weight", C, C},
        [LN2_GAIN] = {"post_attention_layernorm.weight", C, 0},
        [GATE_WEIGHT] = {"mlp.gate_proj.weight", I, C},
        [UP_WEIGHT] = {"mlp.up_proj.weight", I, C},
        [DOWN_WEIGHT] = {"mlp.down_proj.weight", C, I},
    };
    snprintf(list[EMBED].name, TENSOR_NAME_MAX, "model.embed_tokens.weight");
    model_set_tensor(&list[EMBED], shape->vocab, C);
    struct tensor *next = list + FIRST_TENSORS;
    for (int64_t l = 0; l < shape->layers; l++) {
        for (int i = 0; i < LAYER_TENSORS; i++, next++) {
            snprintf(next->name, TENSOR_NAME_MAX, "model.layers.%" PRId64 ".%s", l, layer[i].name);
            model_set_tensor(next, layer[i].rows, layer[i].cols);
        }
    }
    snprintf(next[LAST_GAIN].name, TENSOR_NAME_MAX, "model.norm.weight");
    model_set_tensor(&next[LAST_GAIN], C, 0);
    if (shape->tied_head) return;
    snprintf(next[LAST_TENSORS].name, TENSOR_NAME_MAX, "lm_head.weight");
    model_set_tensor(&next[LAST_TENSORS], shape->vocab, C);
}

/* Q, K and V write side by side into qkv, GATE and UP into fc. */
static int products(const struct model_shape *shape, struct model_product *list) {
    int64_t C = shape->channels, I = shape->intermediate, KV = kv_width(shape);
    list[Q] = (struct model_product){Q_WEIGHT, C, C, C, C + 2 * KV, true};
    list[K] = (struct model_product){K_WEIGHT, C, KV, C, C + 2 * KV, true};
    list[V] = (struct model_product){V_WEIGHT, C, KV, C, C + 2 * KV, true};
    list[O] = (struct model_product){O_WEIGHT, C, C, C, C, true};
    list[GATE] = (struct model_product){GATE_WEIGHT, C, I, C, 2 * I, true};
    list[UP] = (struct model_product){UP_WEIGHT, C, I, C, 2 * I, true};
    list[DOWN] = (struct model_product){DOWN_WEIGHT, I, C, I, C, true};
    return PRODUCTS;
}

static void embed(struct model *model, const int32_t *tokens) {
    model->device->compute->embedding_forward(model->device, tokens, model_weights(model, EMBED),
                                              NULL, model->layers[0].in, model->now.B, model->now.T,
                                              model->shape.channels);
}

/* Of x; which is the sum of `unadded` and the branch, and made first, unless that is NULL.
 * NOLINTNEXTLINE(readability-non-const-parameter) */
static void forward_norm(const struct model *model, uint64_t gain, const float *unadded, float *x,
                         float *y, float *rstd) {
    int64_t N = model->now.N, C = model->shape.channels;
    struct residual residual = {.x = unadded, .branch = model->branch, .sum = x};
    if (unadded == NULL) residual = (struct residual){.x = x};
    model->device->compute->rms_norm_forward(model->device, &residual, model_weights(model, gain),
                                             y, rstd, N, C, (float)model->shape.norm_eps);
}

static struct rope_shape rope_of(const struct model *model) {
    const struct model_shape *shape = &model->shape;
    return (struct rope_shape){.B = model->now.B,
                               .T = model->now.T,
                               .heads = shape->heads,
                               .kv_heads = shape->kv_heads,
                               .head_size = shape->channels / shape->heads,
                               .position = model->now.position,
                               .theta = shape->rope_theta};
}

/* Queries and keys are kept rotated: attention's backward wants them so. */
static void forward_qkv(struct model *model, const struct model_layer *layer) {
    const struct compute_ops *compute = model->device->compute;
    int64_t N = model->now.N, C = model->shape.channels;
    struct rope_shape rope = rope_of(model);
    compute->linear_forward(layer->products[Q], layer->ln1, NULL, layer->qkv, N);
    compute->linear_forward(layer->products[K], layer->ln1, NULL, layer->qkv + C, N);
    compute->linear_forward(layer->products[V], layer->ln1, NULL,
                            layer->qkv + C + kv_width(&model->shape), N);
    compute->rope_forward(model->device, &rope, layer->qkv);
}

static void layer_forward(struct model *model, int64_t l, bool again) {
    const struct model_layer *layer = &model->layers[l];
    const struct compute_ops *compute = model->device->compute;
    int64_t N = model->now.N, I = model->shape.intermediate;
    forward_norm(model, model_layer_tensor(model, l, LN1_GAIN), again ? NULL : model->unadded,
                 layer->in, layer->ln1, layer->ln1_rstd);
    if (!again) forward_qkv(model, layer);
    model_attend(model, l);
    if (!again) compute->linear_forward(layer->products[O], layer->heads, NULL, model->branch, N);
    forward_norm(model, model_layer_tensor(model, l, LN2_GAIN), again ? NULL : layer->in,
                 layer->middle, layer->ln2, layer->ln2_rstd);
    if (!again) {
        compute->linear_forward(layer->products[GATE], layer->ln2, NULL, layer->fc, N);
        compute->linear_forward(layer->products[UP], layer->ln2, NULL, layer->fc + I, N);
    }
    compute->swiglu_forward(model->device, layer->fc, layer->act, N, I);
    if (again) return;
    compute->linear_forward(layer->products[DOWN], layer->act, NULL, model->branch, N);
    model->unadded = layer->middle;
}

static void last(struct model *model) {
    forward_norm(model, model_last_tensor(model, LAST_GAIN), model->unadded,
                 model->layers[model->shape.layers - 1].out, model->last, model->last_rstd);
}

/* d_branch is the gradient of the norm's result, d_residual [N, C] is added to. */
static void backward_norm(const struct model_backward *pass, uint64_t gain, const float *x,
                          const float *rstd) {
    const struct model *model = pass->model;
    struct rms_norm_saved saved = {.x = x, .rstd = rstd, .gain = model_weights(model, gain)};
    struct norm_gradients gradients = {
        .dx = model->d_residual, .dgain = model_grad_adding(pass, gain), .scratch = model->scratch};
    model->device->compute->rms_norm_backward_add(model->device, &saved, model->d_branch,
                                                  &gradients, model->now.N, model->shape.channels);
    model_announce(pass, gain);
}

static void last_backward(const struct model_backward *pass) {
    const struct model *model = pass->model;
    backward_norm(pass, model_last_tensor(model, LAST_GAIN),
                  model->layers[model->shape.layers - 1].out, model->last_rstd);
}

static void backward_product(const struct model_backward *pass, int64_t l, enum product which,
                             const float *x, const float *dy, float *dx, bool add_dx) {
    struct model_product_backward product = {
        .which = (int)which, .x = x, .dy = dy, .add_dx = add_dx};
    product.dx = dx;
    model_product_backward(pass, l, &product);
}

static void layer_backward(const struct model_backward *pass, int64_t l) {
    struct model *model = pass->model;
    const struct model_layer *layer = &model->layers[l];
    const struct compute_ops *compute = model->device->compute;
    int64_t C = model->shape.channels, I = model->shape.intermediate;
    float *d_branch = model->d_branch, *d_qkv = model->d_qkv, *d_fc = model->d_fc;
    struct rope_shape rope = rope_of(model);
    backward_product(pass, l, DOWN, layer->act, model->d_residual, model->d_act, false);
    compute->swiglu_backward(model->device, layer->fc, model->d_act, d_fc, model->now.N, I);
    backward_product(pass, l, GATE, layer->ln2, d_fc, d_branch, false);
    backward_product(pass, l, UP, layer->ln2, d_fc + I, d_branch, true);
    backward_norm(pass, model_layer_tensor(model, l, LN2_GAIN), layer->middle, layer->ln2_rstd);

    backward_product(pass, l, O, layer->heads, model->d_residual, d_branch, false);
    model_attend_backward(model, l);
    compute->rope_backward(model->device, &rope, d_qkv);
    backward_product(pass, l, Q, layer->ln1, d_qkv, d_branch, false);
    backward_product(pass, l, K, layer->ln1, d_qkv + C, d_branch, true);
    backward_product(pass, l, V, layer->ln1, d_qkv + C + kv_width(&model->shape), d_branch, true);
    backward_norm(pass, model_layer_tensor(model, l, LN1_GAIN), layer->in, layer->ln1_rstd);
}

/* With a tied head, its share is in the embeddings' gradient already. */
static void embed_backward(const struct model_backward *pass, const int32_t *tokens) {
    const struct model *model = pass->model;
    float *d_embed =
        model->shape.tied_head ? model_grad(pass, EMBED) : model_grad_adding(pass, EMBED);
    struct embedding_gradients gradients = {.dwte = d_embed, .scratch = model->scratch};
    model->device->compute->embedding_backward_add(model->device, tokens, model->d_residual,
                                                   &gradients, model->now.B, model->now.T,
                                                   model->shape.channels);
    model_announce(pass, EMBED);
}

const struct model_family model_llama = {
    .name = "llama",
    .presets = presets,
    .preset_count = sizeof(presets) / sizeof(presets[0]),
    .first_tensors = FIRST_TENSORS,
    .layer_tensors = LAYER_TENSORS,
    .last_tensors = LAST_TENSORS,
    .mlp_parts = 2,
    .residual_matrices = {"o_proj.weight", "down_proj.weight"},
    .complete = complete,
    .check = check,
    .tensors = tensors,
    .products = products,
    .embed = embed,
    .layer = layer_forward,
    .last = last,
    .last_backward = last_backward,
    .layer_backward = layer_backward,
    .embed_backward = embed_backward,
};
