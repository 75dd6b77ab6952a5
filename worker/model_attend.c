/* Attention for any family: of a whole batch by the kernel, or of one new position over the keys
 * and values of the earlier ones, which model_decode keeps. And dropout. */
#include "worker/model_family.h"

#include <math.h>
#include <string.h>

struct attention_shape model_attention(const struct model *model) {
    return (struct attention_shape){.B = model->now.B,
                                    .T = model->now.T,
                                    .heads = model->shape.heads,
                                    .kv_heads = model->shape.kv_heads,
                                    .head_size = model->shape.channels / model->shape.heads,
                                    .bf16 = model->options.type == COMPUTE_BF16};
}

static struct dropout dropout_of(const struct model *model, int64_t l, enum dropout_site site) {
    return dropout_make(model->options.dropout, model->now.dropout_seed, model->now.dropout_step, l,
                        site);
}

void model_drop(const struct model *model, int64_t l, enum dropout_site site, float *x) {
    if (!model->now.drops) return;
    struct dropout dropout = dropout_of(model, l, site);
    model->device->compute->dropout_rows(model->device, &dropout, x, x, model->now.N,
                                         model->shape.channels);
}

const float *model_drop_gradient(struct model *model, int64_t l, enum dropout_site site) {
    if (!model->now.drops) return model->d_residual;
    struct dropout dropout = dropout_of(model, l, site);
    model->device->compute->dropout_rows(model->device, &dropout, model->d_residual, model->branch,
                                         model->now.N, model->shape.channels);
    return model->branch;
}

/* Values of a position's keys and values. */
static int64_t cache_width(const struct model *model) {
    return 2 * model->shape.kv_heads * (model->shape.channels / model->shape.heads);
}

uint64_t model_cache_count(const struct model *model) {
    return (uint64_t)(model->shape.layers * model->options.T * cache_width(model));
}

/* One head: query [D]; keys and values [positions] apart by `width` -> y [D]. scores [positions] is
 * scratch. */
static void attend_head(const float *query, const float *keys, const float *values, int64_t width,
                        int64_t positions, int64_t D, float *scores, float *y) {
    float scale = 1.0F / sqrtf((float)D), most = -INFINITY, sum = 0;
    for (int64_t p = 0; p < positions; p++) {
        float dot = 0;
        for (int64_t d = 0; d < D; d++)
            dot += query[d] * keys[p * width + d];
        scores[p] = dot * scale;
        most = scores[p] > most ? scores[p] : most;
    }
    memset(y, 0, (size_t)D * sizeof(*y));
    for (int64_t p = 0; p < positions; p++) {
        float weight = expf(scores[p] - most);
        sum += weight;
        for (int64_t d = 0; d < D; d++)
            y[d] += weight * values[p * width + d];
    }
    for (int64_t d = 0; d < D; d++)
        y[d] /= sum;
}

/* The batch is one position. losses, of which a forward pass alone has need, holds the scores. */
static void attend_one(struct model *model, const struct model_layer *layer, const float *cache) {
    int64_t heads = model->shape.heads, kv_heads = model->shape.kv_heads;
    int64_t D = model->shape.channels / heads, width = cache_width(model);
    for (int64_t h = 0; h < heads; h++) {
        const float *keys = cache + h / (heads / kv_heads) * D;
        attend_head(layer->qkv + h * D, keys, keys + kv_heads * D, width, model->now.position + 1,
                    D, model->losses, layer->heads + h * D);
    }
}

/* Keys and values of the batch's rows -> where its positions have their place in the cache. */
static void keep(struct model *model, const struct model_layer *layer, float *cache) {
    int64_t width = cache_width(model), C = model->shape.channels, row = C + width;
    for (int64_t t = 0; t < model->now.T; t++)
        memcpy(cache + (model->now.position + t) * width, layer->qkv + t * row + C,
               (size_t)width * sizeof(*cache));
}

void model_attend(struct model *model, int64_t l) {
    struct model_layer *layer = &model->layers[l];
    struct attention_shape shape = model_attention(model);
    if (model->now.cache != NULL) {
        float *cache = model->now.cache + l * model->options.T * cache_width(model);
        keep(model, layer, cache);
        if (model->now.N == 1) {
            attend_one(model, layer, cache);
            return;
        }
    }
    struct dropout dropout = dropout_of(model, l, DROPOUT_ATTENTION);
    if (model->now.drops) shape.dropout = &dropout;
    model->device->compute->attention_forward(model->device, &shape, layer->qkv, layer->lse,
                                              layer->heads, model->scratch);
}

void model_attend_backward(struct model *model, int64_t l) {
    struct model_layer *layer = &model->layers[l];
    struct attention_shape shape = model_attention(model);
    struct attention_saved saved = {.qkv = layer->qkv, .y = layer->heads, .lse = layer->lse};
    struct dropout dropout = dropout_of(model, l, DROPOUT_ATTENTION);
    if (model->now.drops) shape.dropout = &dropout;
    model->device->compute->attention_backward(model->device, &shape, &saved, model->d_branch,
                                               model->d_qkv, model->scratch);
}
