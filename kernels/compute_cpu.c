/* compute_cpu.c - a model's operations on the host: the kernels by their own names. */
#include "kernels/activation.h"
#include "kernels/anchor.h"
#include "kernels/compute.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"

enum { ADD_ALONE = 1 << 14 };

static int64_t scratch(const struct compute_need *need) {
    return attention_scratch(&need->attention);
}

static void embed(struct device *device, const int32_t *tokens, const float *wte, const float *wpe,
                  float *y, int64_t B, int64_t T, int64_t C) {
    (void)device;
    embedding_forward(tokens, wte, wpe, y, B, T, C);
}

static void embed_backward(struct device *device, const int32_t *tokens, const float *dy,
                           const struct embedding_gradients *gradients, int64_t B, int64_t T,
                           int64_t C) {
    (void)device;
    embedding_backward_add(tokens, dy, gradients->dwte, gradients->dwpe, B, T, C);
}

static void norm(struct device *device, const struct residual *residual, const float *gain,
                 const float *bias, const struct norm_result *result, int64_t R, int64_t C,
                 float eps) {
    (void)device;
    if (residual->branch == NULL)
        norm_forward(residual->x, gain, bias, result->y, result->mean, result->rstd, R, C, eps);
    else
        norm_residual_forward(residual, gain, bias, result, R, C, eps);
}

static void norm_backward(struct device *device, const struct norm_saved *saved, const float *dy,
                          const struct norm_gradients *gradients, int64_t R, int64_t C) {
    (void)device;
    norm_backward_add(saved, dy, gradients->dx, gradients->dgain, gradients->dbias, R, C);
}

static void rms_norm(struct device *device, const struct residual *residual, const float *gain,
                     float *y, float *rstd, int64_t R, int64_t C, float eps) {
    (void)device;
    if (residual->branch == NULL)
        rms_norm_forward(residual->x, gain, y, rstd, R, C, eps);
    else
        rms_norm_residual_forward(residual, gain, y, rstd, R, C, eps);
}

static void rms_norm_backward(struct device *device, const struct rms_norm_saved *saved,
                              const float *dy, const struct norm_gradients *gradients, int64_t R,
                              int64_t C) {
    (void)device;
    rms_norm_backward_add(saved, dy, gradients->dx, gradients->dgain, R, C);
}

static void rope(struct device *device, const struct rope_shape *shape, float *qkv) {
    (void)device;
    rope_forward(shape, qkv);
}

static void rope_back(struct device *device, const struct rope_shape *shape, float *dqkv) {
    (void)device;
    rope_backward(shape, dqkv);
}

static void gelu_bias(struct device *device, const float *x, const float *bias, float *y, int64_t R,
                      int64_t F) {
    (void)device;
    gelu_bias_forward(x, bias, y, R, F);
}

static void gelu_bias_back(struct device *device, const float *x, const float *bias,
                           const float *dy, float *dx, int64_t R, int64_t F) {
    (void)device;
    gelu_bias_backward(x, bias, dy, dx, R, F);
}

static void swiglu(struct device *device, const float *x, float *y, int64_t R, int64_t F) {
    (void)device;
    swiglu_forward(x, y, R, F);
}

static void swiglu_back(struct device *device, const float *x, const float *dy, float *dx,
                        int64_t R, int64_t F) {
    (void)device;
    swiglu_backward(x, dy, dx, R, F);
}

static void drop_rows(struct device *device, const struct dropout *dropout, const float *x,
                      float *y, int64_t R, int64_t C) {
    (void)device;
    dropout_rows(dropout, x, y, R, C);
}

static void attend(struct device *device, const struct attention_shape *shape, const float *qkv,
                   float *lse, float *y, float *memory) {
    (void)device;
    attention_forward(shape, qkv, lse, y, memory);
}

static void attend_backward(struct device *device, const struct attention_shape *shape,
                            const struct attention_saved *saved, const float *dy, float *dqkv,
                            float *memory) {
    (void)device;
    attention_backward(shape, saved, dy, dqkv, memory);
}

static void loss(struct device *device, float *logits, const int32_t *targets, float *losses,
                 int64_t R, int64_t V, float scale) {
    (void)device;
    cross_entropy(logits, targets, losses, R, V, scale);
}

/* Without scratch, which another device writes. NOLINTNEXTLINE(readability-non-const-parameter) */
static void squares(struct device *device, const float *values, double *memory, double *sum,
                    int64_t N) {
    (void)device;
    (void)memory;
    *sum = optimizer_sum_of_squares(values, N);
}

static void delta(struct device *device, const float *anchor, const float *weights, float factor,
                  float *result, int64_t N) {
    (void)device;
    anchor_delta(anchor, weights, factor, result, N);
}

static void mix_in(struct device *device, const float *anchor, float mix, float *weights,
                   int64_t N) {
    (void)device;
    anchor_mix(anchor, mix, weights, N);
}

/* In threads where that pays. */
static void add(struct device *device, const float *values, float *sum, int64_t N) {
    (void)device;
#pragma omp parallel for simd if (N > ADD_ALONE)
    for (int64_t i = 0; i < N; i++)
        sum[i] += values[i];
}

static enum status open_linear(struct device *device, struct linear **linear,
                               const struct linear_shape *shape) {
    (void)device;
    return linear_open(linear, shape);
}

const struct compute_ops compute_cpu = {
    .scratch = scratch,
    .embedding_forward = embed,
    .embedding_backward_add = embed_backward,
    .norm_forward = norm,
    .norm_backward_add = norm_backward,
    .rms_norm_forward = rms_norm,
    .rms_norm_backward_add = rms_norm_backward,
    .rope_forward = rope,
    .rope_backward = rope_back,
    .gelu_bias_forward = gelu_bias,
    .gelu_bias_backward = gelu_bias_back,
    .swiglu_forward = swiglu,
    .swiglu_backward = swiglu_back,
    .dropout_rows = drop_rows,
    .attention_forward = attend,
    .attention_backward = attend_backward,
    .cross_entropy = loss,
    .linear_need = linear_need,
    .linear_open = open_linear,
    .linear_close = linear_close,
    .linear_load = linear_load,
    .linear_forward = linear_forward,
    .linear_backward_input = linear_backward_input,
    .linear_backward_weights = linear_backward_weights,
    .sum_of_squares = squares,
    .anchor_delta = delta,
    .anchor_mix = mix_in,
    .add = add,
};
