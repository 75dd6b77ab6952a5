/* The backward pass of any family: the layers in reverse, what was not kept computed again, each
 * tensor's gradient written once and announced as soon as it is final. */
#include "base/assert.h"
#include "worker/model_family.h"

#include <string.h>

const float *model_weights(const struct model *model, uint64_t tensor) {
    return model->weights + model->plan->offsets[tensor];
}

uint64_t model_layer_tensor(const struct model *model, int64_t l, uint64_t which) {
    const struct model_family *family = model->shape.family;
    return family->first_tensors + (uint64_t)l * family->layer_tensors + which;
}

uint64_t model_last_tensor(const struct model *model, uint64_t which) {
    return model_layer_tensor(model, model->shape.layers, which);
}

uint64_t model_head_tensor(const struct model *model) {
    if (model->shape.tied_head) return 0;
    return model_last_tensor(model, model->shape.family->last_tensors);
}

float *model_grad(const struct model_backward *pass, uint64_t tensor) {
    return pass->gradient->values + pass->model->plan->offsets[tensor];
}

float *model_grad_adding(const struct model_backward *pass, uint64_t tensor) {
    const struct tensor *shape = &pass->model->plan->tensors[tensor];
    uint64_t count = shape->shape[0] * (shape->dims == 1 ? 1 : shape->shape[1]);
    float *grad = model_grad(pass, tensor);
    if (!pass->gradient->add) memset(grad, 0, count * sizeof(*grad));
    return grad;
}

void model_announce(const struct model_backward *pass, uint64_t tensor) {
    if (pass->ready != NULL) pass->ready(pass->context, tensor);
}

void model_product_backward(const struct model_backward *pass, int64_t l,
                            const struct model_product_backward *product) {
    struct model *model = pass->model;
    struct model_product products[MODEL_PRODUCTS_MAX];
    (void)model->shape.family->products(&model->shape, products);
    struct linear *linear = model->layers[l].products[product->which];
    uint64_t tensor = model_layer_tensor(model, l, products[product->which].tensor);
    float *d_bias = product->bias ? model_grad(pass, tensor + 1) : NULL;
    /* In this order: the weights' gradient uses what the input's has rounded. */
    linear_backward_input(linear, product->dy, product->dx, product->add_dx, model->now.N);
    linear_backward_weights(linear, product->x, product->dy, model_grad(pass, tensor), d_bias,
                            pass->gradient->add, model->now.N);
    model_announce(pass, tensor);
    if (product->bias) model_announce(pass, tensor + 1);
}

/* Makes sure that layer l's activations are there, with the same bits as they had forwards. */
static void recompute(struct model *model, int64_t l) {
    const struct model_family *family = model->shape.family;
    if (model->options.recompute == MODEL_RECOMPUTE_ATTENTION) family->layer(model, l, true);
    if (model->options.recompute != MODEL_RECOMPUTE_EVERY) return;
    /* The last segment's are still there; another's go where the next segment's were. */
    if (l + 1 == model->shape.layers || (l + 1) % model->segment != 0) return;
    model->unadded = NULL;
    for (int64_t k = l + 1 - model->segment; k <= l; k++)
        family->layer(model, k, false);
}

void model_backward(struct model *model, const struct model_batch *batch,
                    const struct model_gradient *gradient, model_ready_fn *ready, void *context) {
    ASSERT(model->gradient_ready);
    const struct model_family *family = model->shape.family;
    struct model_backward pass = {
        .model = model, .gradient = gradient, .ready = ready, .context = context};
    model->gradient_ready = false;
    if (!model->shape.tied_head) model_announce(&pass, model_head_tensor(model));
    memset(model->d_residual, 0,
           (size_t)(model->now.N * model->shape.channels) * sizeof(*model->d_residual));
    family->last_backward(&pass);
    for (int64_t l = model->shape.layers - 1; l >= 0; l--) {
        recompute(model, l);
        family->layer_backward(&pass, l);
    }
    family->embed_backward(&pass, batch->tokens);
}
