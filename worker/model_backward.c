/* The backward pass: the forward pass of model_gpt2.c in reverse, each tensor's gradient
 * overwritten once and announced as soon as it is final. */
#include "base/assert.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/embedding.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "worker/model_internal.h"

#include <string.h>

/* What all steps of one backward share. */
struct backward {
    const struct model *model;
    const float *weights;
    float *grad;
    model_ready_fn *ready;
    void *context;
    int64_t N, C;
};

static void announce(const struct backward *pass, uint64_t tensor) {
    if (pass->ready != NULL) pass->ready(pass->context, tensor);
}

/* The gradient of `tensor`, zeroed for kernels that add. */
static float *zeroed_grad(const struct backward *pass, uint64_t tensor) {
    const struct tensor *shape = &pass->model->plan->tensors[tensor];
    uint64_t count = shape->shape[0] * (shape->dims == 1 ? 1 : shape->shape[1]);
    float *grad = pass->grad + pass->model->plan->offsets[tensor];
    memset(grad, 0, count * sizeof(*grad));
    return grad;
}

/* Of y = x W + b (x [N, in], W [in, out] the tensor `weight`, b the next one), from dy [N, out]:
 * dW = x' dy, db = column sums of dy, dx [N, in] = dy W'. */
static void backward_linear(const struct backward *pass, uint64_t weight, const float *x,
                            const float *dy, float *dx) {
    const struct plan *plan = pass->model->plan;
    int64_t in = (int64_t)plan->tensors[weight].shape[0];
    int64_t out = (int64_t)plan->tensors[weight].shape[1];
    struct matmul to_weight = {.rows = in,
                               .cols = out,
                               .inner = pass->N,
                               .transpose_a = true,
                               .stride_a = in,
                               .stride_b = out,
                               .stride_c = out};
    struct matmul to_input = {.rows = pass->N,
                              .cols = in,
                              .inner = out,
                              .transpose_b = true,
                              .stride_a = out,
                              .stride_b = out,
                              .stride_c = in};
    matmul(&to_weight, x, dy, pass->grad + plan->offsets[weight]);
    bias_backward_add(dy, zeroed_grad(pass, weight + 1), pass->N, out);
    matmul(&to_input, dy, pass->weights + plan->offsets[weight], dx);
    announce(pass, weight);
    announce(pass, weight + 1);
}

/* Of a norm whose gain is the tensor `gain` and whose bias the next: dx [N, C] is added to. */
static void backward_norm(const struct backward *pass, uint64_t gain, struct norm_saved saved,
                          const float *dy, float *dx) {
    saved.gain = pass->weights + pass->model->plan->offsets[gain];
    norm_backward_add(&saved, dy, dx, zeroed_grad(pass, gain), zeroed_grad(pass, gain + 1), pass->N,
                      pass->C);
    announce(pass, gain);
    announce(pass, gain + 1);
}

/* The head's share of wte's gradient (the embedding adds the other), and the last norm. */
static void backward_head(const struct backward *pass) {
    const struct model *model = pass->model;
    int64_t N = pass->N, C = pass->C, V = model->shape.vocab;
    uint64_t wte = model->plan->offsets[MODEL_WTE];
    struct matmul to_weight = {.rows = V,
                               .cols = C,
                               .inner = N,
                               .transpose_a = true,
                               .stride_a = V,
                               .stride_b = C,
                               .stride_c = C};
    struct matmul to_input = {
        .rows = N, .cols = C, .inner = V, .stride_a = V, .stride_b = C, .stride_c = C};
    matmul(&to_weight, model->logits, model->ln_f, pass->grad + wte);
    matmul(&to_input, model->logits, pass->weights + wte, model->d_branch);
    memset(model->d_residual, 0, (size_t)(N * C) * sizeof(*model->d_residual));
    struct norm_saved saved = {.x = model->layers[model->shape.layers - 1].out,
                               .mean = model->ln_f_mean,
                               .rstd = model->ln_f_rstd};
    backward_norm(pass, model_last_norm(model), saved, model->d_branch, model->d_residual);
}

static void backward_layer(const struct backward *pass, int64_t l,
                           const struct attention_shape *attention) {
    const struct model *model = pass->model;
    const struct model_layer *layer = &model->layers[l];
    uint64_t first = model_layer_tensor(l, 0);

    backward_linear(pass, first + LAYER_PROJ_WEIGHT, layer->act, model->d_residual, model->d_fc);
    gelu_backward(layer->fc, model->d_fc, model->d_fc, pass->N * 4 * pass->C);
    backward_linear(pass, first + LAYER_FC_WEIGHT, layer->ln2, model->d_fc, model->d_branch);
    struct norm_saved ln2 = {.x = layer->middle, .mean = layer->ln2_mean, .rstd = layer->ln2_rstd};
    backward_norm(pass, first + LAYER_LN2_GAIN, ln2, model->d_branch, model->d_residual);

    backward_linear(pass, first + LAYER_OUT_WEIGHT, layer->heads, model->d_residual,
                    model->d_branch);
    attention_backward(attention, layer->qkv, layer->probabilities, model->d_branch, model->d_qkv,
                       model->scratch);
    backward_linear(pass, first + LAYER_QKV_WEIGHT, layer->ln1, model->d_qkv, model->d_branch);
    struct norm_saved ln1 = {.x = layer->in, .mean = layer->ln1_mean, .rstd = layer->ln1_rstd};
    backward_norm(pass, first + LAYER_LN1_GAIN, ln1, model->d_branch, model->d_residual);
}

void model_backward(struct model *model, const float *weights, const int32_t *tokens,
                    const int32_t *targets, float *grad, model_ready_fn *ready, void *context) {
    ASSERT(model->training);
    ASSERT_OP(model->batch_B, >=, 1);
    (void)targets; // model_forward has already put them into the gradient of the logits
    int64_t B = model->batch_B, T = model->batch_T, C = model->shape.channels;
    struct backward pass = {.model = model,
                            .weights = weights,
                            .grad = grad,
                            .ready = ready,
                            .context = context,
                            .N = B * T,
                            .C = C};
    struct attention_shape attention = {B, T, C, model->shape.heads};
    backward_head(&pass);
    for (int64_t l = model->shape.layers - 1; l >= 0; l--)
        backward_layer(&pass, l, &attention);
    float *d_wpe = zeroed_grad(&pass, MODEL_WPE);
    embedding_backward_add(tokens, model->d_residual, grad + model->plan->offsets[MODEL_WTE], d_wpe,
                           B, T, C);
    announce(&pass, MODEL_WPE);
    announce(&pass, MODEL_WTE);
}
