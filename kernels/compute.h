/* compute.h - a model's operations, and those of a worker's own steps (worker/local.h), on whatever
 * computes (kernels/device.h).
 *
 * One table a kind of device. The host's (compute_cpu.c) calls the functions that are named beside
 * each entry, whose headers say shapes, formulas and what may overlap; CUDA's
 * (kernels/cuda/compute_cuda.c) queues kernels on DEVICE_COMPUTE, widen() on any queue; results are
 * the same within roundings and, like the host's, the same bits in every run.
 * Arrays are on the device and the caller's; structs are on the host, and have been read when the
 * call returns. `scratch` is [scratch(need)] floats on the device, of which nothing lasts beyond a
 * call. No call waits for the device, none allocates. One thread drives a device.
 */
#ifndef RUBATO_KERNELS_COMPUTE_H
#define RUBATO_KERNELS_COMPUTE_H

#include "kernels/attention.h"
#include "kernels/device.h"
#include "kernels/dropout.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/optimizer_factors.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"

/* What sum_of_squares needs for a while, in f64. */
enum { COMPUTE_SQUARES_SCRATCH = 1024 };

/* The most that calls will be of. */
struct compute_need {
    int64_t rows;     /* of activations, = B * T of attention */
    int64_t channels; /* the widest that is normed */
    struct attention_shape attention;
};

struct embedding_gradients {
    float *dwte, *dwpe; /* dwpe may be NULL */
    float *scratch;
};

/* dbias is not used by the root mean square norm. */
struct norm_gradients {
    float *dx, *dgain, *dbias;
    float *scratch;
};

struct compute_ops {
    int64_t (*scratch)(const struct compute_need *need);

    /* kernels/embedding.h. Several rows may have the same token: they are added in order. */
    void (*embedding_forward)(struct device *device, const int32_t *tokens, const float *wte,
                              const float *wpe, float *y, int64_t B, int64_t T, int64_t C);
    void (*embedding_backward_add)(struct device *device, const int32_t *tokens, const float *dy,
                                   const struct embedding_gradients *gradients, int64_t B,
                                   int64_t T, int64_t C);

    /* kernels/norm.h, of residual->sum, which it makes first; of residual->x where branch is NULL:
     * then sum is not used. */
    void (*norm_forward)(struct device *device, const struct residual *residual, const float *gain,
                         const float *bias, const struct norm_result *result, int64_t R, int64_t C,
                         float eps);
    void (*norm_backward_add)(struct device *device, const struct norm_saved *saved,
                              const float *dy, const struct norm_gradients *gradients, int64_t R,
                              int64_t C);

    /* kernels/rms_norm.h; residual as above. */
    void (*rms_norm_forward)(struct device *device, const struct residual *residual,
                             const float *gain, float *y, float *rstd, int64_t R, int64_t C,
                             float eps);
    void (*rms_norm_backward_add)(struct device *device, const struct rms_norm_saved *saved,
                                  const float *dy, const struct norm_gradients *gradients,
                                  int64_t R, int64_t C);

    /* kernels/rope.h. */
    void (*rope_forward)(struct device *device, const struct rope_shape *shape, float *qkv);
    void (*rope_backward)(struct device *device, const struct rope_shape *shape, float *dqkv);

    /* kernels/activation.h. */
    void (*gelu_bias_forward)(struct device *device, const float *x, const float *bias, float *y,
                              int64_t R, int64_t F);
    void (*gelu_bias_backward)(struct device *device, const float *x, const float *bias,
                               const float *dy, float *dx, int64_t R, int64_t F);
    void (*swiglu_forward)(struct device *device, const float *x, float *y, int64_t R, int64_t F);
    void (*swiglu_backward)(struct device *device, const float *x, const float *dy, float *dx,
                            int64_t R, int64_t F);

    /* kernels/dropout.h. */
    void (*dropout_rows)(struct device *device, const struct dropout *dropout, const float *x,
                         float *y, int64_t R, int64_t C);

    /* kernels/attention.h. */
    void (*attention_forward)(struct device *device, const struct attention_shape *shape,
                              const float *qkv, float *lse, float *y, float *scratch);
    void (*attention_backward)(struct device *device, const struct attention_shape *shape,
                               const struct attention_saved *saved, const float *dy, float *dqkv,
                               float *scratch);

    /* kernels/cross_entropy.h. */
    void (*cross_entropy)(struct device *device, float *logits, const int32_t *targets,
                          float *losses, int64_t R, int64_t V, float scale);

    /* kernels/linear.h. An object belongs to the device that it was opened on. linear_need is pure:
     * bytes that an object takes; what oneDNN takes is an estimate. */
    uint64_t (*linear_need)(const struct linear_shape *shape);
    enum status (*linear_open)(struct device *device, struct linear **linear,
                               const struct linear_shape *shape);
    void (*linear_close)(struct linear *linear);
    void (*linear_load)(struct linear *linear, const float *weights);
    void (*linear_forward)(struct linear *linear, const float *x, const float *bias, float *y,
                           int64_t rows);
    void (*linear_backward_input)(struct linear *linear, const float *dy, float *dx, bool add,
                                  int64_t rows);
    void (*linear_backward_weights)(struct linear *linear, const float *x, const float *dy,
                                    float *dweights, float *dbias, bool add, int64_t rows);

    /* kernels/optimizer.h; factors as kernels/optimizer_state.h has them; velocity NULL: there is
     * no momentum. NULL: kernels/optimizer_device.h does without. */
    void (*adamw)(struct device *device, const struct adamw_factors *factors, float *weights,
                  float *m, float *v, const float *grad, int64_t N);
    void (*sgd)(struct device *device, const struct sgd *sgd, float *weights, float *velocity,
                const float *grad, int64_t N);

    /* kernels/optimizer.h; values [N], N >= 1, -> *sum; scratch [COMPUTE_SQUARES_SCRATCH]. Each
     * device adds in an order of its own. */
    void (*sum_of_squares)(struct device *device, const float *values, double *scratch, double *sum,
                           int64_t N);

    /* kernels/anchor.h, with its bits; N >= 1. */
    void (*anchor_delta)(struct device *device, const float *anchor, const float *weights,
                         float factor, float *delta, int64_t N);
    void (*anchor_mix)(struct device *device, const float *anchor, float mix, float *weights,
                       int64_t N);

    /* sum [N] += values [N], each rounded once, so with the same bits everywhere; N >= 1. They do
     * not overlap. */
    void (*add)(struct device *device, const float *values, float *sum, int64_t N);

    /* from [N] bfloat16 -> to [N], exactly; on any queue; N >= 1. NULL: the host's weights are f32
     * when they are read. */
    void (*widen)(struct device *device, enum device_queue queue, const uint16_t *from, float *to,
                  int64_t N);
};

extern const struct compute_ops compute_cpu;

#endif
