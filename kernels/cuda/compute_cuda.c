/* compute_cuda.c - kernels/compute.h on a CUDA device: each queues its kernels on DEVICE_COMPUTE
 * and keeps the first error for the device's next wait.
 */
#include "kernels/compute.h"
#include "kernels/cuda/activation_cuda.h"
#include "kernels/cuda/anchor_cuda.h"
#include "kernels/cuda/attention_cuda.h"
#include "kernels/cuda/cast_cuda.h"
#include "kernels/cuda/cross_entropy_cuda.h"
#include "kernels/cuda/device_cuda.h"
#include "kernels/cuda/dropout_cuda.h"
#include "kernels/cuda/embedding_cuda.h"
#include "kernels/cuda/linear_cuda.h"
#include "kernels/cuda/norm_cuda.h"
#include "kernels/cuda/optimizer_cuda.h"
#include "kernels/cuda/rope_cuda.h"

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t scratch(const struct compute_need *need) {
    const int64_t norm = norm_cuda_scratch(need->rows, need->channels);
    const int64_t embedding = embedding_cuda_scratch(need->rows, need->channels);
    return larger(larger(norm, embedding), attention_cuda_scratch(&need->attention));
}

static void embedding(struct device *device, const int32_t *tokens, const float *wte,
                      const float *wpe, float *y, int64_t B, int64_t T, int64_t C) {
    const struct embedding_cuda shape = {B, T, C, device_cuda_stream(device)};
    device_cuda_note(device, embedding_cuda_forward(&shape, tokens, wte, wpe, y), "embedding");
}

static void embedding_backward(struct device *device, const int32_t *tokens, const float *dy,
                               const struct embedding_gradients *gradients, int64_t B, int64_t T,
                               int64_t C) {
    const struct embedding_cuda shape = {B, T, C, device_cuda_stream(device)};
    device_cuda_note(device,
                     embedding_cuda_backward_add(&shape, tokens, dy, gradients->dwte,
                                                 gradients->dwpe, gradients->scratch),
                     "embedding, backward");
}

static void norm(struct device *device, const struct residual *residual, const float *gain,
                 const float *bias, const struct norm_result *result, int64_t R, int64_t C,
                 float eps) {
    const struct norm_cuda shape = {R, C, eps, device_cuda_stream(device)};
    device_cuda_note(device, norm_cuda_forward(&shape, residual, gain, bias, result), "layer norm");
}

static void norm_backward(struct device *device, const struct norm_saved *saved, const float *dy,
                          const struct norm_gradients *gradients, int64_t R, int64_t C) {
    const struct norm_cuda shape = {R, C, 0.0F, device_cuda_stream(device)};
    device_cuda_note(device,
                     norm_cuda_backward_add(&shape, saved, dy, gradients->dx, gradients->dgain,
                                            gradients->dbias, gradients->scratch),
                     "layer norm, backward");
}

static void rms_norm(struct device *device, const struct residual *residual, const float *gain,
                     float *y, float *rstd, int64_t R, int64_t C, float eps) {
    const struct norm_cuda shape = {R, C, eps, device_cuda_stream(device)};
    struct norm_result result = {NULL, NULL, NULL};
    result.y = y;
    result.rstd = rstd;
    device_cuda_note(device, norm_cuda_forward(&shape, residual, gain, NULL, &result), "rms norm");
}

static void rms_norm_backward(struct device *device, const struct rms_norm_saved *saved,
                              const float *dy, const struct norm_gradients *gradients, int64_t R,
                              int64_t C) {
    const struct norm_cuda shape = {R, C, 0.0F, device_cuda_stream(device)};
    const struct norm_saved had = {.x = saved->x, .rstd = saved->rstd, .gain = saved->gain};
    device_cuda_note(device,
                     norm_cuda_backward_add(&shape, &had, dy, gradients->dx, gradients->dgain, NULL,
                                            gradients->scratch),
                     "rms norm, backward");
}

static void rope(struct device *device, const struct rope_shape *shape, float *qkv) {
    device_cuda_note(device, rope_cuda_forward(shape, qkv, device_cuda_stream(device)), "rope");
}

static void rope_back(struct device *device, const struct rope_shape *shape, float *dqkv) {
    device_cuda_note(device, rope_cuda_backward(shape, dqkv, device_cuda_stream(device)),
                     "rope, backward");
}

static void gelu_bias(struct device *device, const float *x, const float *bias, float *y, int64_t R,
                      int64_t F) {
    const cudaStream_t stream = device_cuda_stream(device);
    device_cuda_note(device, activation_cuda_gelu_bias_forward(x, bias, y, R, F, stream), "gelu");
}

static void gelu_bias_back(struct device *device, const float *x, const float *bias,
                           const float *dy, float *dx, int64_t R, int64_t F) {
    const cudaStream_t stream = device_cuda_stream(device);
    device_cuda_note(device, activation_cuda_gelu_bias_backward(x, bias, dy, dx, R, F, stream),
                     "gelu, backward");
}

static void swiglu(struct device *device, const float *x, float *y, int64_t R, int64_t F) {
    const cudaStream_t stream = device_cuda_stream(device);
    device_cuda_note(device, activation_cuda_swiglu_forward(x, y, R, F, stream), "swiglu");
}

static void swiglu_back(struct device *device, const float *x, const float *dy, float *dx,
                        int64_t R, int64_t F) {
    const cudaStream_t stream = device_cuda_stream(device);
    device_cuda_note(device, activation_cuda_swiglu_backward(x, dy, dx, R, F, stream),
                     "swiglu, backward");
}

static void dropout(struct device *device, const struct dropout *drop, const float *x, float *y,
                    int64_t R, int64_t C) {
    device_cuda_note(device, dropout_cuda_rows(drop, x, y, R, C, device_cuda_stream(device)),
                     "dropout");
}

static void entropy(struct device *device, float *logits, const int32_t *targets, float *losses,
                    int64_t R, int64_t V, float scale) {
    const cudaStream_t stream = device_cuda_stream(device);
    device_cuda_note(device, cross_entropy_cuda(logits, targets, losses, R, V, scale, stream),
                     "cross entropy");
}

static void adamw(struct device *device, const struct adamw_factors *factors, float *weights,
                  float *m, float *v, const float *grad, int64_t N) {
    const cudaStream_t stream = device_cuda_stream(device);
    device_cuda_note(device, optimizer_cuda_adamw(factors, weights, m, v, grad, N, stream),
                     "AdamW");
}

static void descend(struct device *device, const struct sgd *sgd, float *weights, float *velocity,
                    const float *grad, int64_t N) {
    const cudaStream_t stream = device_cuda_stream(device);
    device_cuda_note(device, optimizer_cuda_sgd(sgd, weights, velocity, grad, N, stream), "SGD");
}

_Static_assert((int)COMPUTE_SQUARES_SCRATCH == (int)OPTIMIZER_CUDA_PARTS, "of sum_of_squares");

static void squares(struct device *device, const float *values, double *memory, double *sum,
                    int64_t N) {
    const cudaStream_t stream = device_cuda_stream(device);
    device_cuda_note(device, optimizer_cuda_sum_of_squares(values, N, memory, sum, stream),
                     "a sum of squares");
}

static void delta(struct device *device, const float *anchor, const float *weights, float factor,
                  float *result, int64_t N) {
    const cudaStream_t stream = device_cuda_stream(device);
    device_cuda_note(device, anchor_cuda_delta(anchor, weights, factor, result, N, stream),
                     "what local steps have come to");
}

static void mix_in(struct device *device, const float *anchor, float mix, float *weights,
                   int64_t N) {
    device_cuda_note(device, anchor_cuda_mix(anchor, mix, weights, N, device_cuda_stream(device)),
                     "mixing weights");
}

static void add(struct device *device, const float *values, float *sum, int64_t N) {
    device_cuda_note(device, optimizer_cuda_add(values, sum, N, device_cuda_stream(device)),
                     "adding gradients");
}

static void widen(struct device *device, enum device_queue queue, const uint16_t *from, float *to,
                  int64_t N) {
    const cudaStream_t stream = device_cuda_stream_of(device, queue);
    device_cuda_note(device, cast_cuda_from_bf16(from, to, N, stream), "widening weights");
}

const struct compute_ops compute_cuda = {
    .scratch = scratch,
    .embedding_forward = embedding,
    .embedding_backward_add = embedding_backward,
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
    .dropout_rows = dropout,
    .attention_forward = attention_cuda_forward,
    .attention_backward = attention_cuda_backward,
    .cross_entropy = entropy,
    .linear_need = linear_cuda_need,
    .linear_open = linear_cuda_open,
    .linear_close = linear_cuda_close,
    .linear_load = linear_cuda_load,
    .linear_forward = linear_cuda_forward,
    .linear_backward_input = linear_cuda_backward_input,
    .linear_backward_weights = linear_cuda_backward_weights,
    .adamw = adamw,
    .sgd = descend,
    .sum_of_squares = squares,
    .anchor_delta = delta,
    .anchor_mix = mix_in,
    .add = add,
    .widen = widen,
};
