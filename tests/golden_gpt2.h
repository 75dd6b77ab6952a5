/* golden_gpt2.h - a small GPT-2 whose losses and gradients PyTorch has computed.
 *
 * Weights and batches are formulas of integers, repeated in tests/golden/make_gpt2.py, which made
 * the values; keep the two alike. A batch is GOLDEN_B sequences that workers may share out by rows:
 * the mean of their losses and gradients is the batch's.
 */
#ifndef RUBATO_TESTS_GOLDEN_GPT2_H
#define RUBATO_TESTS_GOLDEN_GPT2_H

#include "proto/plan.h"
#include "tests/golden/gpt2_values.h"
#include "worker/model.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define GOLDEN_LAYERS    2
#define GOLDEN_CHANNELS  32
#define GOLDEN_HEADS     4
#define GOLDEN_VOCAB     61
#define GOLDEN_POSITIONS 20 /* more than GOLDEN_T: the last rows of wpe are never used */
#define GOLDEN_B         4
#define GOLDEN_T         16
#define GOLDEN_STEPS     50
#define GOLDEN_GRADIENTS "tests/golden/gpt2_gradients.f32" /* of batch 0, in model order */

/* AdamW's settings in both curves; matrices decay, vectors do not. */
#define GOLDEN_BETA1 0.9F
#define GOLDEN_BETA2 0.95F
#define GOLDEN_EPS   1e-8F
#define GOLDEN_DECAY 0.1F
#define GOLDEN_CLIP  1.0 /* of the global norm */

/* One training curve: GOLDEN_STEPS losses, each before the step's update. */
struct golden_curve {
    const float *losses;
    double lr;           /* the peak */
    int64_t warmup;      /* steps */
    double lr_min_ratio; /* where the cosine ends; 1: a constant rate */
};

static inline struct golden_curve golden_constant(void) {
    return (struct golden_curve){golden_losses_constant, 1e-3, 0, 1.0};
}

static inline struct golden_curve golden_cosine(void) {
    return (struct golden_curve){golden_losses_cosine, 3e-3, 10, 0.1};
}

static inline double golden_learning_rate(const struct golden_curve *curve, int64_t step) {
    if (step < curve->warmup) return curve->lr * (double)(step + 1) / (double)curve->warmup;
    double progress = (double)(step - curve->warmup) / (double)(GOLDEN_STEPS - curve->warmup);
    double cosine = 0.5 * (1 + cos(3.14159265358979323846 * progress));
    return curve->lr * (curve->lr_min_ratio + (1 - curve->lr_min_ratio) * cosine);
}

static inline struct model_shape golden_shape(void) {
    struct model_shape shape;
    char why[100];
    memset(&shape, 0, sizeof(shape));
    shape.family = &model_gpt2;
    shape.layers = GOLDEN_LAYERS;
    shape.channels = GOLDEN_CHANNELS;
    shape.heads = GOLDEN_HEADS;
    shape.vocab = GOLDEN_VOCAB;
    shape.positions = GOLDEN_POSITIONS;
    if (model_shape_check(&shape, why, sizeof(why)) != STATUS_OK) shape.layers = 0;
    return shape;
}

/* MurmurHash3's 32-bit finaliser. */
static inline uint32_t golden_mix(uint32_t x) {
    x = (x ^ x >> 16) * UINT32_C(0x85ebca6b);
    x = (x ^ x >> 13) * UINT32_C(0xc2b2ae35);
    return x ^ x >> 16;
}

/* Values of a tensor. */
static inline uint64_t golden_count(const struct tensor *tensor) {
    return tensor->dims == 1 ? tensor->shape[0] : tensor->shape[0] * tensor->shape[1];
}

/* First weights -> weights [plan.value_count], for a plan over model_tensors(golden_shape()). */
static inline void golden_weights(const struct plan *plan, float *weights) {
    for (uint64_t t = 0; t < plan->tensor_count; t++) {
        const struct tensor *tensor = &plan->tensors[t];
        size_t length = strlen(tensor->name);
        bool gain = tensor->dims == 1 && strcmp(tensor->name + length - 7, ".weight") == 0;
        for (uint64_t i = 0; i < golden_count(tensor); i++) {
            uint32_t bits = golden_mix((uint32_t)(t << 20) + (uint32_t)i) >> 8;
            float unit = (float)bits / 16777216.0F - 0.5F;
            float value = tensor->dims == 2 ? unit * 0.25F : unit * 0.125F;
            weights[plan->offsets[t] + i] = gain ? 1.0F + unit * 0.5F : value;
        }
    }
}

/* Token n of the endless stream that the batches cut up. */
static inline int32_t golden_token(uint32_t n) {
    return (int32_t)((golden_mix(n / 4 + 12345) % 16 + n % 4 * 15) % GOLDEN_VOCAB);
}

/* The batch of a step, 0-based -> tokens, targets [GOLDEN_B, GOLDEN_T]. */
static inline void golden_batch(int64_t step, int32_t *tokens, int32_t *targets) {
    uint32_t count = GOLDEN_B * GOLDEN_T, first = (uint32_t)step * count;
    for (uint32_t i = 0; i < count; i++) {
        tokens[i] = golden_token(first + i);
        targets[i] = golden_token(first + i + 1);
    }
}

#endif
