/* GPT-2: token and learned position embeddings, layers of [norm, causal attention, residual, norm,
 * MLP with GELU, residual], a last norm, and a head tied to the token embeddings (Radford et al.
 * 2019), as Hugging Face's GPT2LMHeadModel computes it, with one rate for its three of dropout. Its
 * Conv1D weights are [in, out]. */
#include "worker/model_family.h"

#include <inttypes.h>
#include <stdio.h>

enum first_tensor { WTE, WPE, FIRST_TENSORS };
enum last_tensor { LAST_GAIN, LAST_BIAS, LAST_TENSORS };
enum layer_tensor {
    LN1_GAIN,
    LN1_BIAS,
    QKV_WEIGHT,
    QKV_BIAS,
    OUT_WEIGHT,
    OUT_BIAS,
    LN2_GAIN,
    LN2_BIAS,
    FC_WEIGHT,
    FC_BIAS,
    PROJ_WEIGHT,
    PROJ_BIAS,
    LAYER_TENSORS
};
enum product { QKV, OUT, FC, PROJ, PRODUCTS };

static const struct model_preset presets[] = {
    {"tiny", {.layers = 4, .channels = 128, .heads = 4}},
    {"small", {.layers = 6, .channels = 384, .heads = 6}},
    {"124M", {.layers = 12, .channels = 768, .heads = 12}},
    {"350M", {.layers = 24, .channels = 1024, .heads = 16}},
    {"774M", {.layers = 36, .channels = 1280, .heads = 20}},
    {"1.5B", {.layers = 48, .channels = 1600, .heads = 25}},
};

static void complete(struct model_shape *shape) {
    if (shape->kv_heads == 0) shape->kv_heads = shape->heads;
    if (shape->intermediate == 0) shape->intermediate = 4 * shape->channels;
    if (shape->norm_eps <= 0) shape->norm_eps = 1e-5;
    shape->tied_head = true;
}

static bool check(const struct model_shape *shape, char *why, size_t why_bytes) {
    if (shape->kv_heads == shape->heads) return true;
    snprintf(why, why_bytes,
             "GPT-2 has as many heads of keys (%" PRId64 ") as of queries (%" PRId64 ")",
             shape->kv_heads, shape->heads);
    return false;
}

static void tensors(const struct model_shape *shape, struct tensor *list) {
    int64_t C = shape->channels, I = shape->intermediate;
    const struct {
        const char *name;
        int64_t rows, cols;
    } layer[LAYER_TENSORS] = {
        [LN1_GAIN] = {"ln_1.weight", C, 0},
        [LN1_BIAS] = {"ln_1.bias", C, 0},
        [QKV_WEIGHT] = {"attn.c_attn.weight", C, 3 * C},
        [QKV_BIAS] = {"attn.c_attn.bias", 3 * C, 0},
        [OUT_WEIGHT] = {"attn.c_proj.weight", C, C},
        [OUT_BIAS] = {"attn.c_proj.bias", C, 0},
        [LN2_GAIN] = {"ln_2.weight", C, 0},
        [LN2_BIAS] = {"ln_2.bias", C, 0},
        [FC_WEIGHT] = {"mlp.c_fc.weight", C, I},
        [FC_BIAS] = {"mlp.c_fc.bias", I, 0},
        [PROJ_WEIGHT] = {"mlp.c_proj.weight", I, C},
        [PROJ_BIAS] = {"mlp.c_proj.bias", C, 0},
    };
    snprintf(list[WTE].name, TENSOR_NAME_MAX, "transformer.wte.weight");
    model_set_tensor(&list[WTE], shape->vocab, C);
    snprintf(list[WPE].name, TENSOR_NAME_MAX, "transformer.wpe.weight");
    model_set_tensor(&list[WPE], shape->positions, C);
    struct tensor *next = list + FIRST_TENSORS;
    for (int64_t l = 0; l < shape->layers; l++) {
        for (int i = 0; i < LAYER_TENSORS; i++, next++) {
            snprintf(next->name, TENSOR_NAME_MAX, "transformer.h.%" PRId64 ".%s", l, layer[i].name);
            model_set_tensor(next, layer[i].rows, layer[i].cols);
        }
    }
    snprintf(next[LAST_GAIN].name, TENSOR_NAME_MAX, "transformer.ln_f.weight");
    model_set_tensor(&next[LAST_GAIN], C, 0);
    snprintf(next[LAST_BIAS].name, TENSOR_NAME_MAX, "transformer.ln_f.bias");
    model_set_tensor(&next[LAST_BIAS], C, 0);
}

static int products(const struct model_shape *shape, struct model_product *list) {
    int64_t C = shape->channels, I = shape->intermediate;
    list[QKV] = (struct model_product){QKV_WEIGHT, C, 3 * C, C, 3 * C, false};
    list[OUT] = (struct model_product){OUT_WEIGHT, C, C, C, C, false};
    list[FC] = (struct model_product){FC_WEIGHT, C, I, C, I, false};
    list[PROJ] = (struct model_product){PROJ_WEIGHT, I, C, I, C, false};
    return PRODUCTS;
}

static void embed(struct model *model, const int32_t *tokens) {
    int64_t C = model->shape.channels;
    model->device->compute->embedding_forward(model->device, tokens, model_weights(model, WTE),
                                              model_weights(model, WPE) + model->now.position * C,
                                              model->layers[0].in, model->now.B, model->now.T, C);
    model_drop(model, 0, DROPOUT_EMBEDDING, model->layers[0].in);
}

static const float *weights_of(const struct model *model, int64_t l, enum layer_tensor which) {
    return model_weights(model, model_layer_tensor(model, l, which));
}

/* The norm whose gain is the tensor `gain` and whose bias the next, of x; which is the sum of
 * `unadded` and the branch, and made first, unless that is NULL.
 * NOLINTNEXTLINE(readability-non-const-parameter) */
static void forward_norm(const struct model *model, uint64_t gain, const float *unadded, float *x,
                         struct norm_result result) {
    int64_t N = model->now.N, C = model->shape.channels;
    struct residual residual = {.x = unadded, .branch = model->branch, .sum = x};
    if (unadded == NULL) residual = (struct residual){.x = x};
    model->device->compute->norm_forward(model->device, &residual, model_weights(model, gain),
                                         model_weights(model, gain + 1), &result, N, C,
                                         (float)model->shape.norm_eps);
}

static void layer_forward(struct model *model, int64_t l, bool again) {
    const struct model_layer *layer = &model->layers[l];
    const struct compute_ops *compute = model->device->compute;
    int64_t N = model->now.N, I = model->shape.intermediate;
    forward_norm(model, model_layer_tensor(model, l, LN1_GAIN), again ? NULL : model->unadded,
                 layer->in, (struct norm_result){layer->ln1, layer->ln1_mean, layer->ln1_rstd});
    if (!again)
        compute->linear_forward(layer->products[QKV], layer->ln1, weights_of(model, l, QKV_BIAS),
                                layer->qkv, N);
    model_attend(model, l);
    if (!again) {
        compute->linear_forward(layer->products[OUT], layer->heads, weights_of(model, l, OUT_BIAS),
                                model->branch, N);
        model_drop(model, l, DROPOUT_PROJECTION, model->branch);
    }
    forward_norm(model, model_layer_tensor(model, l, LN2_GAIN), again ? NULL : layer->in,
                 layer->middle, (struct norm_result){layer->ln2, layer->ln2_mean, layer->ln2_rstd});
    if (!again) compute->linear_forward(layer->products[FC], layer->ln2, NULL, layer->fc, N);
    compute->gelu_bias_forward(model->device, layer->fc, weights_of(model, l, FC_BIAS), layer->act,
                               N, I);
    if (again) return;
    compute->linear_forward(layer->products[PROJ], layer->act, weights_of(model, l, PROJ_BIAS),
                            model->branch, N);
    model_drop(model, l, DROPOUT_MLP, model->branch);
    model->unadded = layer->middle;
}

static void last(struct model *model) {
    forward_norm(model, model_last_tensor(model, LAST_GAIN), model->unadded,
                 model->layers[model->shape.layers - 1].out,
                 (struct norm_result){model->last, model->last_mean, model->last_rstd});
}

/* Of a norm whose gain is the tensor `gain` and whose bias the next: d_branch is the gradient of
 * its result, d_residual [N, C] is added to. */
static void backward_norm(const struct model_backward *pass, uint64_t gain,
                          struct norm_saved saved) {
    const struct model *model = pass->model;
    struct norm_gradients gradients = {.dx = model->d_residual,
                                       .dgain = model_grad_adding(pass, gain),
                                       .dbias = model_grad_adding(pass, gain + 1),
                                       .scratch = model->scratch};
    saved.gain = model_weights(model, gain);
    model->device->compute->norm_backward_add(model->device, &saved, model->d_branch, &gradients,
                                              model->now.N, model->shape.channels);
    model_announce(pass, gain);
    model_announce(pass, gain + 1);
}

static void last_backward(const struct model_backward *pass) {
    const struct model *model = pass->model;
    struct norm_saved saved = {.x = model->layers[model->shape.layers - 1].out,
                               .mean = model->last_mean,
                               .rstd = model->last_rstd};
    backward_norm(pass, model_last_tensor(model, LAST_GAIN), saved);
}

/* dx is written. */
static void backward_product(const struct model_backward *pass, int64_t l, enum product which,
                             const float *x, const float *dy, float *dx) { // NOLINT
    struct model_product_backward product = {
        .which = (int)which, .x = x, .dy = dy, .dx = dx, .bias = true};
    model_product_backward(pass, l, &product);
}

static void layer_backward(const struct model_backward *pass, int64_t l) {
    struct model *model = pass->model;
    const struct model_layer *layer = &model->layers[l];
    backward_product(pass, l, PROJ, layer->act, model_drop_gradient(model, l, DROPOUT_MLP),
                     model->d_fc);
    model->device->compute->gelu_bias_backward(
        model->device, layer->fc, weights_of(model, l, FC_BIAS), model->d_fc, model->d_fc,
        model->now.N, model->shape.intermediate);
    backward_product(pass, l, FC, layer->ln2, model->d_fc, model->d_branch);
    struct norm_saved ln2 = {.x = layer->middle, .mean = layer->ln2_mean, .rstd = layer->ln2_rstd};
    backward_norm(pass, model_layer_tensor(model, l, LN2_GAIN), ln2);

    backward_product(pass, l, OUT, layer->heads, model_drop_gradient(model, l, DROPOUT_PROJECTION),
                     model->d_branch);
    model_attend_backward(model, l);
    backward_product(pass, l, QKV, layer->ln1, model->d_qkv, model->d_branch);
    struct norm_saved ln1 = {.x = layer->in, .mean = layer->ln1_mean, .rstd = layer->ln1_rstd};
    backward_norm(pass, model_layer_tensor(model, l, LN1_GAIN), ln1);
}

static void embed_backward(const struct model_backward *pass, const int32_t *tokens) {
    const struct model *model = pass->model;
    struct embedding_gradients gradients = {.dwte = model_grad(pass, WTE),
                                            .dwpe = model_grad_adding(pass, WPE),
                                            .scratch = model->scratch};
    model_drop(model, 0, DROPOUT_EMBEDDING, model->d_residual);
    model->device->compute->embedding_backward_add(model->device, tokens, model->d_residual,
                                                   &gradients, model->now.B, model->now.T,
                                                   model->shape.channels);
    model_announce(pass, WPE);
    model_announce(pass, WTE);
}

const struct model_family model_gpt2 = {
    .name = "gpt2",
    .presets = presets,
    .preset_count = sizeof(presets) / sizeof(presets[0]),
    .first_tensors = FIRST_TENSORS,
    .layer_tensors = LAYER_TENSORS,
    .last_tensors = LAST_TENSORS,
    .mlp_parts = 1,
    .residual_matrices = {"c_proj.weight", NULL},
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
