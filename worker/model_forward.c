/* The forward pass of any family, and the head: logits and loss, a chunk of rows at a time. */
#include "base/assert.h"
#include "worker/model_family.h"

#include <math.h>

/* False: the tensors will not come. */
static bool pass_gate(const struct model *model, uint64_t first, uint64_t count) {
    const struct model_gate *gate = &model->gate;
    return gate->wait == NULL || gate->wait(gate->context, first, count);
}

/* The layer, when its weights are there. */
static bool forward_layer(struct model *model, int64_t l) {
    const struct model_family *family = model->shape.family;
    if (!pass_gate(model, model_layer_tensor(model, l, 0), family->layer_tensors)) return false;
    if (model->loads) model_load_layer(model, l);
    family->layer(model, l, false);
    return true;
}

/* The last norm, and what the head needs. */
static bool forward_last(struct model *model) {
    uint64_t first = model_last_tensor(model, 0);
    if (!pass_gate(model, first, model->plan->tensor_count - first)) return false;
    if (model->loads) model_load_last(model);
    model->shape.family->last(model);
    return true;
}

/* tokens [B, T] of the device -> model->last [N, C]; false: weights will not come. */
static bool forward_body(struct model *model, struct model_now now, const int32_t *tokens) {
    const struct model_family *family = model->shape.family;
    ASSERT(model->weights != NULL);
    ASSERT_OP(now.B, >=, 1);
    ASSERT_OP(now.B, <=, model->options.B);
    ASSERT_OP(now.T, >=, 1);
    ASSERT_OP(now.position + now.T, <=, model->options.T);
    now.N = now.B * now.T;
    model->now = now;
    model->gradient_ready = false;
    if (!pass_gate(model, 0, family->first_tensors)) return false;
    if (model->loads) model_load_first(model);
    family->embed(model, tokens);
    model->unadded = NULL;
    for (int64_t l = 0; l < model->shape.layers; l++) {
        if (!forward_layer(model, l)) return false;
    }
    if (!forward_last(model)) return false;
    model->gate = (struct model_gate){0};
    model->loads = false;
    return true;
}

static int64_t count_targets(const int32_t *targets, int64_t N) {
    int64_t count = 0;
    for (int64_t n = 0; n < N; n++)
        count += targets[n] >= 0;
    return count;
}

/* Losses of all rows; targets [N] are the device's. With `gradient`, scaled by `scale`: that of the
 * head's weights, and of `last` -> d_branch. */
static void head(struct model *model, const int32_t *targets, const struct model_gradient *gradient,
                 float scale) {
    const struct compute_ops *compute = model->device->compute;
    int64_t N = model->now.N, C = model->shape.channels, V = model->shape.vocab;
    bool add = gradient != NULL && model_gradient_adds(model, gradient);
    for (int64_t first = 0; first < N; first += model->chunk) {
        int64_t rows = N - first < model->chunk ? N - first : model->chunk;
        const float *x = model->last + first * C;
        compute->linear_forward(model->head, x, NULL, model->logits, rows);
        compute->cross_entropy(model->device, model->logits, targets + first, model->losses + first,
                               rows, V, scale);
        if (gradient == NULL) continue;
        float *d_weights =
            model_gradient_values(model, gradient) + model->plan->offsets[model_head_tensor(model)];
        /* In this order: the weights' gradient uses what the input's has rounded. */
        compute->linear_backward_input(model->head, model->logits, model->d_branch + first * C,
                                       false, rows);
        compute->linear_backward_weights(model->head, x, model->logits, d_weights, NULL,
                                         add || first > 0, rows);
    }
}

/* The pass ends early: no copy is under way when the caller hears of it. */
static float give_up(struct model *model) {
    if (model->mirror != NULL) model->status = mirror_settle(model->mirror);
    return NAN;
}

float model_forward(struct model *model, const struct model_batch *batch,
                    const struct model_gradient *gradient) {
    ASSERT(gradient == NULL || (model->options.training && gradient->scale > 0));
    struct model_now now = {.B = batch->B,
                            .T = batch->T,
                            .drops = gradient != NULL && model->options.dropout > 0,
                            .dropout_seed = batch->dropout_seed,
                            .dropout_step = batch->dropout_step};
    int64_t N = batch->B * batch->T, count = count_targets(batch->targets, N);
    const int32_t *tokens = batch->tokens, *targets = batch->targets;
    if (model->mirror != NULL) {
        mirror_batch(model->mirror, tokens, targets, N);
        tokens = mirror_tokens(model->mirror);
        targets = mirror_targets(model->mirror);
    }
    if (!forward_body(model, now, tokens)) return give_up(model);
    /* Without targets that count, the gradient is 0 whatever it is scaled by. */
    float share = 1.0F / (float)(count > 0 ? count : 1);
    head(model, targets, gradient, gradient != NULL ? (float)gradient->scale * share : 0.0F);
    const float *losses = model->losses;
    if (model->mirror != NULL) losses = mirror_losses(model->mirror, losses, N);
    if (losses == NULL) return give_up(model);
    model->gradient_ready = gradient != NULL;
    double sum = 0;
    for (int64_t n = 0; n < N; n++)
        sum += losses[n];
    return count > 0 ? (float)(sum / (double)count) : 0.0F;
}

enum status model_status(const struct model *model) {
    return model->status;
}

int64_t model_longest(const struct model *model) {
    return model->options.T;
}

/* Of the last row. */
static void last_logits(struct model *model, float *logits) {
    const float *x = model->last + (model->now.N - 1) * model->shape.channels;
    model->device->compute->linear_forward(model->head, x, NULL, logits, 1);
}

void model_logits(struct model *model, const int32_t *tokens, int64_t count, float *logits) {
    ASSERT(model->gate.wait == NULL && model->mirror == NULL);
    (void)forward_body(model, (struct model_now){.B = 1, .T = count}, tokens);
    last_logits(model, logits);
}

/* Keys and values are put into the cache. NOLINTNEXTLINE(readability-non-const-parameter) */
void model_decode(struct model *model, float *cache, const int32_t *tokens, int64_t count,
                  int64_t position, float *logits) {
    ASSERT(count == 1 || position == 0);
    struct model_now now = {.B = 1, .T = count, .position = position, .cache = cache};
    ASSERT(model->gate.wait == NULL && model->mirror == NULL);
    (void)forward_body(model, now, tokens);
    last_logits(model, logits);
}
