/* The forward pass, as Hugging Face's GPT2LMHeadModel computes it (without dropout). */
#include "base/assert.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "worker/model_internal.h"

void model_linear(const float *x, const float *weight, const float *bias, float *y, int64_t rows,
                  int64_t in, int64_t out) {
    struct matmul shape = {
        .rows = rows, .cols = out, .inner = in, .stride_a = in, .stride_b = out, .stride_c = out};
    matmul(&shape, x, weight, y);
    bias_add(y, bias, rows, out);
}

/* logits [rows, V] = x [rows, C] wte' [C, V] */
static void head(const struct model *model, const float *weights, const float *x, int64_t rows,
                 float *logits) {
    int64_t C = model->shape.channels, V = model->shape.vocab;
    struct matmul shape = {.rows = rows,
                           .cols = V,
                           .inner = C,
                           .transpose_b = true,
                           .stride_a = C,
                           .stride_b = C,
                           .stride_c = V};
    matmul(&shape, x, weights + model->plan->offsets[MODEL_WTE], logits);
}

static void forward_layer(const struct model *model, const float *weights, int64_t l, int64_t B,
                          int64_t T) {
    const struct model_layer *layer = &model->layers[l];
    const uint64_t *at = model->plan->offsets + model_layer_tensor(l, 0);
    int64_t N = B * T, C = model->shape.channels;
    struct attention_shape attention = {B, T, C, model->shape.heads};

    norm_forward(layer->in, weights + at[LAYER_LN1_GAIN], weights + at[LAYER_LN1_BIAS], layer->ln1,
                 layer->ln1_mean, layer->ln1_rstd, N, C, MODEL_NORM_EPS);
    model_linear(layer->ln1, weights + at[LAYER_QKV_WEIGHT], weights + at[LAYER_QKV_BIAS],
                 layer->qkv, N, C, 3 * C);
    attention_forward(&attention, layer->qkv, layer->probabilities, layer->heads);
    model_linear(layer->heads, weights + at[LAYER_OUT_WEIGHT], weights + at[LAYER_OUT_BIAS],
                 model->branch, N, C, C);
    residual_forward(layer->in, model->branch, layer->middle, N * C);

    norm_forward(layer->middle, weights + at[LAYER_LN2_GAIN], weights + at[LAYER_LN2_BIAS],
                 layer->ln2, layer->ln2_mean, layer->ln2_rstd, N, C, MODEL_NORM_EPS);
    model_linear(layer->ln2, weights + at[LAYER_FC_WEIGHT], weights + at[LAYER_FC_BIAS], layer->fc,
                 N, C, 4 * C);
    gelu_forward(layer->fc, layer->act, N * 4 * C);
    model_linear(layer->act, weights + at[LAYER_PROJ_WEIGHT], weights + at[LAYER_PROJ_BIAS],
                 model->branch, N, 4 * C, C);
    residual_forward(layer->middle, model->branch, layer->out, N * C);
}

/* tokens [B, T] -> model->ln_f [B * T, C] */
static void forward_body(const struct model *model, const float *weights, const int32_t *tokens,
                         int64_t B, int64_t T) {
    const uint64_t *at = model->plan->offsets;
    int64_t L = model->shape.layers, C = model->shape.channels;
    uint64_t last = model_last_norm(model);
    embedding_forward(tokens, weights + at[MODEL_WTE], weights + at[MODEL_WPE], model->layers[0].in,
                      B, T, C);
    for (int64_t l = 0; l < L; l++)
        forward_layer(model, weights, l, B, T);
    norm_forward(model->layers[L - 1].out, weights + at[last], weights + at[last + 1], model->ln_f,
                 model->ln_f_mean, model->ln_f_rstd, B * T, C, MODEL_NORM_EPS);
}

float model_forward(struct model *model, const float *weights, const int32_t *tokens,
                    const int32_t *targets, int64_t B, int64_t T) {
    ASSERT_OP(B, >=, 1);
    ASSERT_OP(B, <=, model->B);
    ASSERT_OP(T, >=, 1);
    ASSERT_OP(T, <=, model->T);
    int64_t N = B * T;
    forward_body(model, weights, tokens, B, T);
    head(model, weights, model->ln_f, N, model->logits);
    float scale = model->training ? 1.0F / (float)N : 0.0F;
    cross_entropy(model->logits, targets, model->losses, N, model->shape.vocab, scale);
    model->batch_B = B;
    model->batch_T = T;
    double sum = 0;
    for (int64_t n = 0; n < N; n++)
        sum += model->losses[n];
    return (float)(sum / (double)N);
}

void model_logits(struct model *model, const float *weights, const int32_t *tokens, int64_t count,
                  float *logits) {
    ASSERT_OP(count, >=, 1);
    ASSERT_OP(count, <=, model->T);
    model->batch_B = model->batch_T = 0;
    forward_body(model, weights, tokens, 1, count);
    head(model, weights, model->ln_f + (count - 1) * model->shape.channels, 1, logits);
}
