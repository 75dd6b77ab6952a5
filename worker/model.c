/* The families, shapes, tensors and first weights. */
#include "worker/model.h"

#include "base/assert.h"
#include "base/random.h"
#include "worker/model_family.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of layers, channels, heads, MLP width: keeps products in 64 bits. */
#define DIMENSION_MAX ((int64_t)1 << 20)

/* Values that a thread makes at a time; even, since two share a block of random numbers. */
#define INIT_PIECE ((uint64_t)1 << 14)

static const struct model_family *const families[] = {&model_gpt2, &model_llama};
enum { FAMILIES = sizeof(families) / sizeof(families[0]) };

const struct model_family *model_family_find(const char *name) {
    for (int i = 0; i < FAMILIES; i++) {
        if (strcmp(families[i]->name, name) == 0) return families[i];
    }
    return NULL;
}

/* The family before the colon of `text`; *size is what stands behind it. */
static const struct model_family *family_of(const char *text, const char **size) {
    const char *colon = strchr(text, ':');
    if (colon == NULL) return NULL;
    for (int i = 0; i < FAMILIES; i++) {
        size_t length = strlen(families[i]->name);
        if (length != (size_t)(colon - text)) continue;
        if (strncmp(families[i]->name, text, length) != 0) continue;
        *size = colon + 1;
        return families[i];
    }
    return NULL;
}

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

static bool parse_size(const struct model_family *family, const char *size,
                       struct model_shape *shape) {
    for (size_t i = 0; i < family->preset_count; i++) {
        if (strcmp(size, family->presets[i].name) != 0) continue;
        *shape = family->presets[i].shape;
        return true;
    }
    if (!parse_dimension(&size, 'x', &shape->layers) ||
        !parse_dimension(&size, 'x', &shape->channels))
        return false;
    if (strchr(size, 'x') == NULL) return parse_dimension(&size, 0, &shape->heads);
    return parse_dimension(&size, 'x', &shape->heads) &&
           parse_dimension(&size, 0, &shape->kv_heads);
}

/* What could have been written instead of `text` -> why. */
static void explain(const char *text, const struct model_family *family, char *why,
                    size_t why_bytes) {
    size_t used = 0;
    int wrote = snprintf(why, why_bytes, "\"%s\" is none of ", text);
    used = wrote < 0 ? why_bytes : (size_t)wrote;
    size_t count = family != NULL ? family->preset_count : FAMILIES;
    for (size_t i = 0; i < count && used < why_bytes; i++) {
        wrote = family != NULL
                    ? snprintf(why + used, why_bytes - used, "%s%s%s, ", i == 0 ? family->name : "",
                               i == 0 ? ":" : "", family->presets[i].name)
                    : snprintf(why + used, why_bytes - used, "%s:SIZE, ", families[i]->name);
        used = wrote < 0 ? why_bytes : used + (size_t)wrote;
    }
    if (used >= why_bytes) return;
    snprintf(why + used, why_bytes - used, "%s:LAYERSxCHANNELSxHEADS",
             family != NULL ? family->name : "FAMILY");
}

enum status model_shape_parse(const char *text, int64_t vocab, int64_t positions,
                              struct model_shape *shape, char *why, size_t why_bytes) {
    struct model_shape parsed = {0};
    const char *size = NULL;
    const struct model_family *family = family_of(text, &size);
    if (family == NULL || !parse_size(family, size, &parsed)) {
        explain(text, family, why, why_bytes);
        return STATUS_INVALID;
    }
    parsed.family = family;
    parsed.vocab = vocab;
    parsed.positions = positions;
    TRY(model_shape_check(&parsed, why, why_bytes));
    *shape = parsed;
    return STATUS_OK;
}

static enum status divides(const char *what, int64_t part, const char *of, int64_t whole, char *why,
                           size_t why_bytes) {
    if (whole % part == 0) return STATUS_OK;
    snprintf(why, why_bytes, "%" PRId64 " %s do not divide %" PRId64 " %s", part, what, whole, of);
    return STATUS_INVALID;
}

enum status model_shape_check(struct model_shape *shape, char *why, size_t why_bytes) {
    if (shape->family == NULL) {
        snprintf(why, why_bytes, "the model's family is not known");
        return STATUS_INVALID;
    }
    shape->family->complete(shape);
    const struct {
        const char *name;
        int64_t value, most;
    } ranges[] = {
        {"number of layers", shape->layers, DIMENSION_MAX},
        {"number of channels", shape->channels, DIMENSION_MAX},
        {"number of heads", shape->heads, DIMENSION_MAX},
        {"number of key heads", shape->kv_heads, DIMENSION_MAX},
        {"MLP width", shape->intermediate, DIMENSION_MAX},
        {"vocabulary", shape->vocab, INT32_MAX},
        {"sequence length", shape->positions, INT32_MAX},
    };
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        if (ranges[i].value >= 1 && ranges[i].value <= ranges[i].most) continue;
        snprintf(why, why_bytes, "%s %" PRId64 " is not in 1..%" PRId64, ranges[i].name,
                 ranges[i].value, ranges[i].most);
        return STATUS_INVALID;
    }
    TRY(divides("heads", shape->heads, "channels", shape->channels, why, why_bytes));
    TRY(divides("key heads", shape->kv_heads, "heads", shape->heads, why, why_bytes));
    if (!(shape->norm_eps > 0 && shape->norm_eps < 1)) {
        snprintf(why, why_bytes, "norm epsilon %g is not between 0 and 1", shape->norm_eps);
        return STATUS_INVALID;
    }
    if (shape->family->check != NULL && !shape->family->check(shape, why, why_bytes))
        return STATUS_INVALID;
    return STATUS_OK;
}

uint64_t model_tensor_count(const struct model_shape *shape) {
    const struct model_family *family = shape->family;
    return family->first_tensors + (uint64_t)shape->layers * family->layer_tensors +
           family->last_tensors + (shape->tied_head ? 0 : 1);
}

uint64_t model_first_tensors(const struct model_shape *shape) {
    return shape->family->first_tensors;
}

struct tensor *model_tensors(const struct model_shape *shape, uint64_t *count) {
    uint64_t total = model_tensor_count(shape);
    struct tensor *tensors = memory_zeroed((size_t)total, sizeof(*tensors));
    shape->family->tensors(shape, tensors);
    /* Before the layers stand the embeddings, behind them the last norm and the head. */
    for (uint64_t i = 0; i < total; i++) {
        bool in_layers = i >= shape->family->first_tensors &&
                         i < shape->family->first_tensors +
                                 (uint64_t)shape->layers * shape->family->layer_tensors;
        tensors[i].embedding = !in_layers && tensors[i].dims > 1;
    }
    *count = total;
    return tensors;
}

void model_set_tensor(struct tensor *tensor, int64_t rows, int64_t cols) {
    tensor->dims = cols == 0 ? 1 : 2;
    tensor->shape[0] = (uint64_t)rows;
    tensor->shape[1] = (uint64_t)cols;
    tensor->decay = cols != 0;
}

static bool ends_with(const char *text, const char *end) {
    size_t text_bytes = strlen(text), end_bytes = strlen(end);
    return text_bytes >= end_bytes && strcmp(text + text_bytes - end_bytes, end) == 0;
}

/* Values first .. first + count - 1 of a matrix, `first` even. Two values share a block of four
 * random numbers, so a piece starts at a block of its own and has the same bits as in one go. */
static void init_piece(uint64_t seed, uint64_t tensor, float std, uint64_t first, uint64_t count,
                       float *values) {
    struct random_stream stream;
    random_open(&stream, seed, RANDOM_INIT_WEIGHTS, tensor);
    stream.counter[0] = (uint32_t)(first / 2);
    for (uint64_t n = first; n < first + count; n++)
        values[n] = std * random_normal(&stream);
}

static void init_matrix(uint64_t seed, uint64_t tensor, float std, uint64_t count, float *values) {
    ASSERT_OP(count / 2, <, UINT32_MAX);
#pragma omp parallel for if (count > INIT_PIECE)
    for (uint64_t first = 0; first < count; first += INIT_PIECE) {
        uint64_t left = count - first;
        init_piece(seed, tensor, std, first, left < INIT_PIECE ? left : INIT_PIECE, values);
    }
}

void model_init_weights(const struct model_shape *shape, const struct plan *plan, uint64_t seed,
                        float *weights) {
    const char *const *residual = shape->family->residual_matrices;
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
        bool to_residual = false;
        for (int r = 0; r < 2 && residual[r] != NULL; r++)
            to_residual = to_residual || ends_with(tensor->name, residual[r]);
        init_matrix(seed, i, to_residual ? residual_std : 0.02F,
                    tensor->shape[0] * tensor->shape[1], values);
    }
}
