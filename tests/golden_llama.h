/* golden_llama.h - a small Llama whose losses and gradients PyTorch has computed.
 *
 * Weights, batches and rates are golden_gpt2.h's formulas; what is Llama's alone is repeated in
 * tests/golden/make_llama.py, which made the values; keep the two alike. Two query heads share a
 * head of keys and values, and theta is small, so that all channels turn.
 */
#ifndef RUBATO_TESTS_GOLDEN_LLAMA_H
#define RUBATO_TESTS_GOLDEN_LLAMA_H

#include "tests/golden/llama_values.h"
#include "tests/golden_gpt2.h"

/* Of batch 0, in model order. */
#define GOLDEN_LLAMA_GRADIENTS      "tests/golden/llama_gradients.f32"
#define GOLDEN_LLAMA_TIED_GRADIENTS "tests/golden/llama_tied_gradients.f32"

static inline struct model_shape golden_llama_shape(bool tied) {
    return (struct model_shape){.family = &model_llama,
                                .layers = 2,
                                .channels = 32,
                                .heads = 4,
                                .vocab = GOLDEN_VOCAB,
                                .positions = GOLDEN_POSITIONS,
                                .kv_heads = 2,
                                .intermediate = 48,
                                .rope_theta = 100.0,
                                .norm_eps = 1e-5,
                                .tied_head = tied};
}

static inline struct golden_curve golden_llama_curve(void) {
    return (struct golden_curve){golden_llama_losses, 3e-3, 10, 0.1};
}

#endif
