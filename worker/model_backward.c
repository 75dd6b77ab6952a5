/* The backward pass of any family: the layers in reverse, what was not kept computed again, each
 * tensor's gradient written once and announced as soon as it is final. */
#include "base/assert.h"
#include "worker/model_family.h"

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

/* It is computed in model->apart. */
static bool is_apart(const struct model *model, const struct model_gradient *gradient) {
    return gradient->add && model->apart != NULL;
}

/* Where the device has the whole gradient. */
static float *sum_of(const struct model *model, const struct model_gradient *gradient) {
    return model->mirror != NULL ? mirror_gradient(model->mirror) : gradient->values;
}

float *model_gradient_values(const struct model *model, const struct model_gradient *gradient) {
    return is_apart(model, gradient) ? model->apart : sum_of(model, gradient);
}

bool model_gradient_adds(const struct model *model, const struct model_gradient *gradient) {
    return gradient->add && !is_apart(model, gradient);
}

float *model_device_weights(const struct model *model) {
    return model->mirror != NULL ? mirror_weights(model->mirror) : NULL;
}

const float *model_device_gradient(const struct model *model) {
    return model->mirror != NULL ? mirror_gradient(model->mirror) : NULL;
}

const struct device_event *model_ready_event(const struct model *model, uint64_t tensor) {
    return mirror_ready_event(model->mirror, tensor);
}

float *model_grad(const struct model_backward *pass, uint64_t tensor) {
    return pass->values + pass->model->plan->offsets[tensor];
}

float *model_grad_adding(const struct model_backward *pass, uint64_t tensor) {
    float *grad = model_grad(pass, tensor);
    if (!pass->add)
        device_zero(pass->model->device, DEVICE_COMPUTE, grad,
                    plan_values(pass->model->plan, tensor) * sizeof(*grad));
    return grad;
}

/* From another device than the host hear_of_copies() announces it. */
void model_announce(const struct model_backward *pass, uint64_t tensor) {
    struct model *model = pass->model;
    if (is_apart(model, pass->gradient))
        model->device->compute->add(model->device, model_grad(pass, tensor),
                                    sum_of(model, pass->gradient) + model->plan->offsets[tensor],
                                    (int64_t)plan_values(model->plan, tensor));
    if (model->mirror == NULL) {
        if (pass->ready != NULL) pass->ready(pass->context, tensor);
    } else if (!pass->gradient->more) {
        mirror_send(model->mirror, tensor, pass->gradient->values);
    }
}

/* Announces what has come since; with `all`, waits for what is under way. */
static void hear_of_copies(const struct model_backward *pass, bool all) {
    struct model *model = pass->model;
    if (model->mirror == NULL) return;
    enum status status = mirror_tell(model->mirror, all, pass->ready, pass->context);
    if (status != STATUS_OK) model->status = status;
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
    const struct compute_ops *compute = model->device->compute;
    compute->linear_backward_input(linear, product->dy, product->dx, product->add_dx, model->now.N);
    compute->linear_backward_weights(linear, product->x, product->dy, model_grad(pass, tensor),
                                     d_bias, pass->add, model->now.N);
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
    ASSERT(ready == NULL || !gradient->more);
    const struct model_family *family = model->shape.family;
    struct model_backward pass = {.model = model,
                                  .gradient = gradient,
                                  .values = model_gradient_values(model, gradient),
                                  .add = model_gradient_adds(model, gradient),
                                  .ready = ready,
                                  .context = context};
    const int32_t *tokens = model->mirror != NULL ? mirror_tokens(model->mirror) : batch->tokens;
    model->gradient_ready = false;
    if (!model->shape.tied_head) model_announce(&pass, model_head_tensor(model));
    device_zero(model->device, DEVICE_COMPUTE, model->d_residual,
                (size_t)(model->now.N * model->shape.channels) * sizeof(*model->d_residual));
    family->last_backward(&pass);
    for (int64_t l = model->shape.layers - 1; l >= 0; l--) {
        recompute(model, l);
        family->layer_backward(&pass, l);
        hear_of_copies(&pass, false);
    }
    family->embed_backward(&pass, tokens);
    hear_of_copies(&pass, true);
}
