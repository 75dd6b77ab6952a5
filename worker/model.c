#include "worker/model.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/random.h"
#include "kernels/attention.h"
#include "worker/model_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIMENSION_MAX ((int64_t)1 << 20)   /* of layers and channels: keeps products in 64 bits */
#define ROWS_MAX      ((int64_t)INT32_MAX) /* tokens of a batch */

static const struct {
    const char *name;
    int64_t layers, channels, heads;
} sizes[] = {
    {"tiny", 4, 128, 4},    {"small", 6, 384, 6},   {"124M", 12, 768, 12},
    {"350M", 24, 1024, 16}, {"774M", 36, 1280, 20}, {"1.5B", 48, 1600, 25},
};

/* A whole decimal number 1..DIMENSION_MAX that ends at `end`; moves `text` behind it. */
static bool parse_dimension(const char **text, char end, int64_t *value) {
    int64_t number = 0;
    const char *digit = *text;
    for (; *digit >= '0' && *digit <= '9'; digit++) {
        number = number * 10 + (*digit - '0');
        if (number > DIMENSION_MAX) return false;
    }
    if (digit == *text || *digit != end || number == 0) return false;
    *text = end == 0 ? digit : digit + 1;
    *value = number;
    return true;
}

static bool parse_size(const char *size, struct model_shape *shape) {
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (strcmp(size, sizes[i].name) == 0) {
            shape->layers = sizes[i].layers;
            shape->channels = sizes[i].channels;
            shape->heads = sizes[i].heads;
            return true;
        }
    }
    return parse_dimension(&size, 'x', &shape->layers) &&
           parse_dimension(&size, 'x', &shape->channels) &&
           parse_dimension(&size, 0, &shape->heads);
}

enum status model_shape_parse(const char *text, int64_t vocab, int64_t positions,
                              struct model_shape *shape, char *why, size_t why_bytes) {
    struct model_shape parsed = {.vocab = vocab, .positions = positions};
    if (strncmp(text, "gpt2:", 5) != 0 || !parse_size(text + 5, &parsed)) {
        snprintf(why, why_bytes,
                 "\"%s\" is none of gpt2:tiny, small, 124M, 350M, 774M, 1.5B or "
                 "gpt2:LAYERSxCHANNELSxHEADS",
                 text);
        return STATUS_INVALID;
    }
    if (parsed.channels % parsed.heads != 0) {
        snprintf(why, why_bytes, "%" PRId64 " heads do not divide %" PRId64 " channels",
                 parsed.heads, parsed.channels);
        return STATUS_INVALID;
    }
    if (vocab < 1 || vocab > INT32_MAX) {
        snprintf(why, why_bytes, "vocabulary %" PRId64 " is not in 1..%d", vocab, INT32_MAX);
        return STATUS_INVALID;
    }
    if (positions < 1 || positions > INT32_MAX) {
        snprintf(why, why_bytes, "sequence length %" PRId64 " is not in 1..%d", positions,
                 INT32_MAX);
        return STATUS_INVALID;
    }
    *shape = parsed;
    return STATUS_OK;
}

/* The tensors of a layer: name, and shape in channels (0: not there). Order as in
 * enum model_layer_tensor. */
static const struct {
    const char *name;
    uint8_t rows, cols;
} layer_tensors[LAYER_TENSORS] = {
    {"ln_1.weight", 1, 0},      {"ln_1.bias", 1, 0},          {"attn.c_attn.weight", 1, 3},
    {"attn.c_attn.bias", 3, 0}, {"attn.c_proj.weight", 1, 1}, {"attn.c_proj.bias", 1, 0},
    {"ln_2.weight", 1, 0},      {"ln_2.bias", 1, 0},          {"mlp.c_fc.weight", 1, 4},
    {"mlp.c_fc.bias", 4, 0},    {"mlp.c_proj.weight", 4, 1},  {"mlp.c_proj.bias", 1, 0},
};

/* cols 0: a vector of `rows` values. */
static void set_tensor(struct tensor *tensor, int64_t rows, int64_t cols) {
    tensor->dims = cols == 0 ? 1 : 2;
    tensor->shape[0] = (uint64_t)rows;
    tensor->shape[1] = (uint64_t)cols;
    tensor->decay = cols != 0;
}

struct tensor *model_tensors(const struct model_shape *shape, uint64_t *count) {
    uint64_t total = MODEL_LAYERS + (uint64_t)shape->layers * LAYER_TENSORS + 2;
    struct tensor *tensors = memory_zeroed((size_t)total, sizeof(*tensors));
    int64_t C = shape->channels;
    snprintf(tensors[MODEL_WTE].name, TENSOR_NAME_MAX, "transformer.wte.weight");
    set_tensor(&tensors[MODEL_WTE], shape->vocab, C);
    snprintf(tensors[MODEL_WPE].name, TENSOR_NAME_MAX, "transformer.wpe.weight");
    set_tensor(&tensors[MODEL_WPE], shape->positions, C);
    struct tensor *next = tensors + MODEL_LAYERS;
    for (int64_t l = 0; l < shape->layers; l++) {
        for (int i = 0; i < LAYER_TENSORS; i++, next++) {
            snprintf(next->name, TENSOR_NAME_MAX, "transformer.h.%" PRId64 ".%s", l,
                     layer_tensors[i].name);
            set_tensor(next, layer_tensors[i].rows * C, layer_tensors[i].cols * C);
        }
    }
    snprintf(next[0].name, TENSOR_NAME_MAX, "transformer.ln_f.weight");
    set_tensor(&next[0], C, 0);
    snprintf(next[1].name, TENSOR_NAME_MAX, "transformer.ln_f.bias");
    set_tensor(&next[1], C, 0);
    *count = total;
    return tensors;
}

uint64_t model_layer_tensor(int64_t layer, enum model_layer_tensor which) {
    return MODEL_LAYERS + (uint64_t)layer * LAYER_TENSORS + (uint64_t)which;
}

uint64_t model_last_norm(const struct model *model) {
    return MODEL_LAYERS + (uint64_t)model->shape.layers * LAYER_TENSORS;
}

static bool ends_with(const char *text, const char *end) {
    size_t text_bytes = strlen(text), end_bytes = strlen(end);
    return text_bytes >= end_bytes && strcmp(text + text_bytes - end_bytes, end) == 0;
}

void model_init_weights(const struct model_shape *shape, const struct plan *plan, uint64_t seed,
                        float *weights) {
    float residual_std = 0.02F / sqrtf(2.0F * (float)shape->layers);
    for (uint64_t i = 0; i < plan->tensor_count; i++) {
        const struct tensor *tensor = &plan->tensors[i];
        float *values = weights + plan->offsets[i];
        if (tensor->dims == 1) {
            float first = ends_with(tensor->name, ".weight") ? 1.0F : 0.0F;
            for (uint64_t n = 0; n < tensor->shape[0]; n++)
                values[n] = first;
            continue;
        }
        float std = ends_with(tensor->name, "c_proj.weight") ? residual_std : 0.02F;
        struct random_stream stream;
        random_open(&stream, seed, RANDOM_INIT_WEIGHTS, i);
        for (uint64_t n = 0; n < tensor->shape[0] * tensor->shape[1]; n++)
            values[n] = std * random_normal(&stream);
    }
}

/* Hands out arrays of the arena; with `arena` NULL it only adds up what they need. */
struct carver {
    struct arena *arena;
    size_t need;
    bool overflow;
};

static float *carve(struct carver *carver, int64_t rows, int64_t cols) {
    uint64_t bytes;
    if (!memory_multiply((uint64_t)rows, (uint64_t)cols, &bytes) ||
        !memory_multiply(bytes, sizeof(float), &bytes) ||
        bytes > (uint64_t)PTRDIFF_MAX / 2 - carver->need) {
        carver->overflow = true;
        return NULL;
    }
    if (carver->arena != NULL) return arena_take(carver->arena, (size_t)bytes);
    carver->need += arena_need((size_t)bytes);
    return NULL;
}

static void carve_layer(struct carver *carver, const struct model *model,
                        struct model_layer *layer) {
    int64_t N = model->B * model->T, C = model->shape.channels;
    layer->ln1 = carve(carver, N, C);
    layer->ln1_mean = carve(carver, N, 1);
    layer->ln1_rstd = carve(carver, N, 1);
    layer->qkv = carve(carver, N, 3 * C);
    layer->probabilities = carve(carver, N * model->shape.heads, model->T);
    layer->heads = carve(carver, N, C);
    layer->middle = carve(carver, N, C);
    layer->ln2 = carve(carver, N, C);
    layer->ln2_mean = carve(carver, N, 1);
    layer->ln2_rstd = carve(carver, N, 1);
    layer->fc = carve(carver, N, 4 * C);
    layer->act = carve(carver, N, 4 * C);
}

/* Points every array into the carver's arena. model->layers may be NULL while only sizes count. */
static void carve_model(struct carver *carver, struct model *model) {
    int64_t N = model->B * model->T, C = model->shape.channels;
    struct model_layer unplaced = {0}, *layer = &unplaced;
    float *residual = carve(carver, N, C);
    for (int64_t l = 0; l < model->shape.layers; l++) {
        if (model->training || l == 0) carve_layer(carver, model, layer);
        layer->in = residual;
        if (model->training) residual = carve(carver, N, C);
        layer->out = residual;
        if (model->layers != NULL) model->layers[l] = *layer;
    }
    model->ln_f = carve(carver, N, C);
    model->ln_f_mean = carve(carver, N, 1);
    model->ln_f_rstd = carve(carver, N, 1);
    model->logits = carve(carver, N, model->shape.vocab);
    model->losses = carve(carver, N, 1);
    model->branch = carve(carver, N, C);
    if (!model->training || carver->overflow) return;
    struct attention_shape attention = {model->B, model->T, C, model->shape.heads};
    model->d_residual = carve(carver, N, C);
    model->d_branch = carve(carver, N, C);
    model->d_fc = carve(carver, N, 4 * C);
    model->d_qkv = carve(carver, N, 3 * C);
    model->scratch = carve(carver, attention_scratch(&attention), 1);
}

enum status model_open(struct model **model, const struct model_shape *shape,
                       const struct plan *plan, int64_t B, int64_t T, bool training) {
    ASSERT_OP(B, >=, 1);
    ASSERT_OP(B, <=, INT32_MAX);
    ASSERT_OP(T, >=, 1);
    ASSERT_OP(T, <=, shape->positions);
    ASSERT_OP(shape->channels % shape->heads, ==, 0);
    ASSERT_OP(plan->tensor_count, ==, MODEL_LAYERS + shape->layers * LAYER_TENSORS + 2);
    struct model *made = memory_zeroed(1, sizeof(*made));
    *made = (struct model){
        .shape = *shape, .plan = plan, .training = training, .B = B, .T = T, .layers = NULL};
    struct carver carver = {.overflow = B > ROWS_MAX / T};
    if (!carver.overflow) carve_model(&carver, made);
    enum status status = STATUS_MEMORY;
    if (carver.overflow) {
        log_error("a batch of %" PRId64 " sequences of %" PRId64
                  " tokens does not fit in memory; lower --batch or --seq-len",
                  B, T);
    } else {
        status = arena_init(&made->arena, carver.need);
    }
    if (status != STATUS_OK) {
        free(made);
        return status;
    }
    made->layers = memory_zeroed((size_t)shape->layers, sizeof(*made->layers));
    carver.arena = &made->arena;
    carver.need = 0;
    carve_model(&carver, made);
    *model = made;
    return STATUS_OK;
}

void model_close(struct model *model) {
    if (model == NULL) return;
    arena_free(&model->arena);
    free(model->layers);
    free(model);
}
