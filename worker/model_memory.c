/* What a model takes at model_open: the arena's layout, and the products. */
#include "base/assert.h"
#include "base/log.h"
#include "worker/model_family.h"

#include <inttypes.h>
#include <stdlib.h>

#define ROWS_MAX ((int64_t)INT32_MAX) /* tokens of a batch */

/* Logits of a chunk, about: what fits in caches matters on the host; elsewhere that the gradient of
 * the head's weights is read and written once a chunk. */
#define LOGITS_BYTES        ((int64_t)64 << 20)
#define LOGITS_DEVICE_BYTES ((int64_t)512 << 20)

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

static int64_t head_size(const struct model_shape *shape) {
    return shape->channels / shape->heads;
}

static int64_t qkv_width(const struct model_shape *shape) {
    return (shape->heads + 2 * shape->kv_heads) * head_size(shape);
}

/* What backward needs of every layer, whatever is recomputed. */
static void carve_kept(struct carver *carver, const struct model *model,
                       struct model_layer *layer) {
    const struct model_shape *shape = &model->shape;
    int64_t N = model->now.N, C = shape->channels;
    layer->ln1_mean = carve(carver, N, 1);
    layer->ln1_rstd = carve(carver, N, 1);
    layer->qkv = carve(carver, N, qkv_width(shape));
    layer->middle = carve(carver, N, C);
    layer->ln2_mean = carve(carver, N, 1);
    layer->ln2_rstd = carve(carver, N, 1);
    layer->fc = carve(carver, N, shape->family->mlp_parts * shape->intermediate);
}

/* What is cheap to compute again. */
static void carve_cheap(struct carver *carver, const struct model *model,
                        struct model_layer *layer) {
    const struct model_shape *shape = &model->shape;
    int64_t N = model->now.N, C = shape->channels;
    layer->ln1 = carve(carver, N, C);
    layer->lse = carve(carver, N, shape->heads);
    layer->heads = carve(carver, N, C);
    layer->ln2 = carve(carver, N, C);
    layer->act = carve(carver, N, shape->intermediate);
}

/* Layer l has the memory of layer l % segment. The residual stream between segments is kept, that
 * within one belongs to the segment; without training there is one for all. model->layers may be
 * NULL while only sizes count. */
static void carve_layers(struct carver *carver, struct model *model) {
    int64_t N = model->now.N, C = model->shape.channels;
    bool training = model->options.training;
    bool cheap_shared = model->options.recompute == MODEL_RECOMPUTE_ATTENTION;
    struct model_layer layer = {0};
    float *residual = carve(carver, N, C);
    for (int64_t l = 0; l < model->shape.layers && !carver->overflow; l++) {
        int64_t slot = l % model->segment;
        bool fresh = l < model->segment;
        if (fresh) {
            carve_kept(carver, model, &layer);
            if (l == 0 || !cheap_shared) carve_cheap(carver, model, &layer);
        } else if (model->layers != NULL) {
            layer = model->layers[slot];
        }
        layer.in = residual;
        if (training && (fresh || slot + 1 == model->segment)) layer.out = carve(carver, N, C);
        if (!training) layer.out = residual;
        residual = layer.out;
        if (model->layers != NULL) model->layers[l] = layer;
    }
}

/* Points every array into the carver's arena. */
static void carve_model(struct carver *carver, struct model *model) {
    const struct model_shape *shape = &model->shape;
    int64_t N = model->now.N, C = shape->channels;
    carve_layers(carver, model);
    model->last = carve(carver, N, C);
    model->last_mean = carve(carver, N, 1);
    model->last_rstd = carve(carver, N, 1);
    model->logits = carve(carver, model->chunk, shape->vocab);
    model->losses = carve(carver, N, 1);
    model->branch = carve(carver, N, C);
    if (carver->overflow) return;
    struct compute_need need = {.rows = N, .channels = C, .attention = model_attention(model)};
    model->scratch = carve(carver, model->device->compute->scratch(&need), 1);
    if (!model->options.training) return;
    model->d_residual = carve(carver, N, C);
    model->d_branch = carve(carver, N, C);
    model->d_fc = carve(carver, N, shape->family->mlp_parts * shape->intermediate);
    model->d_act =
        shape->family->mlp_parts == 1 ? model->d_fc : carve(carver, N, shape->intermediate);
    model->d_qkv = carve(carver, N, qkv_width(shape));
}

/* Everything but memory. */
static struct model prepare(const struct model_shape *shape, const struct model_options *options) {
    struct device *device = options->device != NULL ? options->device : device_host();
    int64_t N = options->B * options->T, chunk = N;
    int64_t bytes = device_is_host(device) ? LOGITS_BYTES : LOGITS_DEVICE_BYTES;
    int64_t most = bytes / (int64_t)sizeof(float) / shape->vocab / 64 * 64;
    if (most < 64) most = 64;
    if (chunk > most) chunk = most;
    int64_t segment = shape->layers;
    if (!options->training) segment = 1;
    if (options->training && options->recompute == MODEL_RECOMPUTE_EVERY &&
        options->recompute_every < segment)
        segment = options->recompute_every;
    return (struct model){.shape = *shape,
                          .options = *options,
                          .device = device,
                          .now = {.B = options->B, .T = options->T, .N = N},
                          .segment = segment,
                          .chunk = chunk};
}

static void check_options(const struct model_shape *shape, const struct model_options *options) {
    ASSERT_OP(options->B, >=, 1);
    ASSERT_OP(options->B, <=, INT32_MAX);
    ASSERT_OP(options->T, >=, 1);
    ASSERT_OP(options->T, <=, shape->positions);
    ASSERT(options->recompute != MODEL_RECOMPUTE_EVERY || options->recompute_every >= 1);
    ASSERT(options->dropout >= 0 && options->dropout < 1);
}

static struct linear_shape product_shape(const struct model *model,
                                         const struct model_product *product) {
    return (struct linear_shape){.rows = model->now.N,
                                 .in = product->in,
                                 .out = product->out,
                                 .stride_x = product->stride_x,
                                 .stride_y = product->stride_y,
                                 .out_in = product->out_in,
                                 .type = model->options.type,
                                 .training = model->options.training};
}

static struct linear_shape head_shape(const struct model *model) {
    int64_t C = model->shape.channels, V = model->shape.vocab;
    return (struct linear_shape){.rows = model->chunk,
                                 .in = C,
                                 .out = V,
                                 .stride_x = C,
                                 .stride_y = V,
                                 .out_in = true,
                                 .type = model->options.type,
                                 .training = model->options.training};
}

static enum status open_products(struct model *model) {
    struct model_product products[MODEL_PRODUCTS_MAX];
    model->product_count = model->shape.family->products(&model->shape, products);
    for (int64_t l = 0; l < model->shape.layers; l++) {
        for (int i = 0; i < model->product_count; i++) {
            struct linear_shape shape = product_shape(model, &products[i]);
            TRY(model->device->compute->linear_open(model->device, &model->layers[l].products[i],
                                                    &shape));
        }
    }
    struct linear_shape head = head_shape(model);
    return model->device->compute->linear_open(model->device, &model->head, &head);
}

static enum status take_arena(struct model *model, size_t bytes) {
    if (device_is_host(model->device)) return arena_init(&model->arena, bytes);
    model->arena = (struct arena){.base = device_take(model->device, bytes), .bytes = bytes};
    return model->arena.base != NULL ? STATUS_OK : STATUS_MEMORY;
}

static void give_arena(struct model *model) {
    if (device_is_host(model->device)) {
        arena_free(&model->arena);
    } else {
        device_give(model->device, model->arena.base);
    }
}

enum status model_open(struct model **model, const struct model_shape *shape,
                       const struct plan *plan, const struct model_options *options) {
    check_options(shape, options);
    ASSERT_OP(plan->tensor_count, ==, model_tensor_count(shape));
    struct model *made = memory_zeroed(1, sizeof(*made));
    struct carver carver = {.overflow = options->B > ROWS_MAX / options->T};
    enum status status = STATUS_MEMORY;
    size_t apart = options->training && options->apart ? plan->value_count * sizeof(float) : 0;
    if (!carver.overflow) {
        *made = prepare(shape, options);
        carve_model(&carver, made);
    }
    if (carver.overflow) {
        log_error("a batch of %" PRId64 " sequences of %" PRId64
                  " tokens does not fit in memory; lower --batch or --seq-len",
                  options->B, options->T);
    } else {
        status = take_arena(made, carver.need + arena_need(apart));
    }
    if (status != STATUS_OK) {
        free(made);
        return status;
    }
    made->plan = plan;
    made->layers = memory_zeroed((size_t)shape->layers, sizeof(*made->layers));
    carver = (struct carver){.arena = &made->arena};
    carve_model(&carver, made);
    if (apart > 0) made->apart = arena_take(&made->arena, apart);
    status = open_products(made);
    if (status == STATUS_OK && (!device_is_host(made->device) || options->team != NULL)) {
        status = mirror_open(&made->mirror, made->device, plan, options);
    }
    if (status != STATUS_OK) {
        model_close(made);
        return status;
    }
    *model = made;
    return STATUS_OK;
}

/* NULL: the model was not opened so far. */
static void close_product(const struct compute_ops *compute, struct linear *linear) {
    if (linear != NULL) compute->linear_close(linear);
}

void model_close(struct model *model) {
    if (model == NULL) return;
    const struct compute_ops *compute = model->device->compute;
    mirror_close(model->mirror);
    for (int64_t l = 0; l < model->shape.layers; l++) {
        for (int i = 0; i < model->product_count; i++)
            close_product(compute, model->layers[l].products[i]);
    }
    close_product(compute, model->head);
    give_arena(model);
    free(model->layers);
    free(model);
}

static void load_tensors(struct model *model, uint64_t first, uint64_t count) {
    if (model->mirror != NULL) mirror_load(model->mirror, first, count);
}

void model_load_first(struct model *model) {
    load_tensors(model, 0, model->shape.family->first_tensors);
}

void model_load_layer(struct model *model, int64_t l) {
    struct model_product products[MODEL_PRODUCTS_MAX];
    int count = model->shape.family->products(&model->shape, products);
    load_tensors(model, model_layer_tensor(model, l, 0), model->shape.family->layer_tensors);
    for (int i = 0; i < count; i++) {
        uint64_t tensor = model_layer_tensor(model, l, products[i].tensor);
        model->device->compute->linear_load(model->layers[l].products[i],
                                            model_weights(model, tensor));
    }
}

void model_load_last(struct model *model) {
    uint64_t first = model_last_tensor(model, 0);
    load_tensors(model, first, model->plan->tensor_count - first);
    model->device->compute->linear_load(model->head,
                                        model_weights(model, model_head_tensor(model)));
}

/* From the host's `weights` come those that are read; NULL: the device's own are. */
static void take_weights(struct model *model, const float *weights) {
    model->weights = weights;
    if (model->mirror == NULL) return;
    mirror_expect(model->mirror, weights);
    model->weights = mirror_weights(model->mirror);
}

/* Another device's copies are left to the next pass, which computes while they are under way. */
void model_set_weights(struct model *model, const float *weights) {
    take_weights(model, weights);
    model->gate = (struct model_gate){0};
    model->loads = model->mirror != NULL;
    for (int64_t l = 0; l < model->shape.layers && !model->loads; l++)
        model_load_layer(model, l);
    if (!model->loads) model_load_last(model);
}

void model_expect_weights(struct model *model, const float *weights,
                          const struct model_gate *gate) {
    take_weights(model, weights);
    model->gate = *gate;
    model->loads = true;
}

uint64_t model_bytes(const struct model_shape *shape, const struct model_options *options) {
    check_options(shape, options);
    if (options->B > ROWS_MAX / options->T) return 0;
    struct model model = prepare(shape, options);
    const struct compute_ops *compute = model.device->compute;
    struct carver carver = {0};
    struct model_product products[MODEL_PRODUCTS_MAX];
    int count = shape->family->products(shape, products);
    uint64_t layer_bytes = 0, layers_bytes;
    carve_model(&carver, &model);
    for (int i = 0; i < count; i++) {
        struct linear_shape product = product_shape(&model, &products[i]);
        layer_bytes += compute->linear_need(&product);
    }
    struct linear_shape head = head_shape(&model);
    if (carver.overflow || !memory_multiply(layer_bytes, (uint64_t)shape->layers, &layers_bytes) ||
        layers_bytes > UINT64_MAX / 2)
        return 0;
    return carver.need + layers_bytes + compute->linear_need(&head);
}
