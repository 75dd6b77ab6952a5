#include "tests/sim_reference.h"

#include "base/memory.h"
#include "compression/codec.h"
#include "kernels/optimizer.h"
#include "tests/test.h"

struct reference {
    const struct job *job;
    const struct plan *plan;
    float *master, *grad, *sum, *moment1, *moment2;
    int32_t *tokens, *targets;
    uint8_t *wire;
    size_t wire_capacity;
};

static void *take(size_t count, size_t bytes) {
    return memory_zeroed(count, bytes);
}

/* weights = decode(encode(master)), block by block, as a pull does. */
static void pull(struct reference *r, float *weights) {
    const struct codec *codec = codec_find(r->job->pull);
    for (uint64_t id = 0; id < r->plan->block_count; id++) {
        const struct plan_block *block = &r->plan->blocks[id];
        size_t bytes = 0;
        CHECK(codec->encode(r->master + block->offset, block->count, r->wire, r->wire_capacity,
                            &bytes) == STATUS_OK);
        CHECK(codec->decode(r->wire, bytes, weights + block->offset, block->count) == STATUS_OK);
    }
}

/* sum += decode(encode(grad)), block by block, as a push does. */
static void push(struct reference *r) {
    const struct codec *codec = codec_find(r->job->push);
    for (uint64_t id = 0; id < r->plan->block_count; id++) {
        const struct plan_block *block = &r->plan->blocks[id];
        size_t bytes = 0;
        CHECK(codec->encode(r->grad + block->offset, block->count, r->wire, r->wire_capacity,
                            &bytes) == STATUS_OK);
        CHECK(codec->decode_add(r->wire, bytes, r->sum + block->offset, block->count) == STATUS_OK);
    }
}

/* The clip factor over all blocks, times one over the workers. */
static float scale_of(const struct reference *r) {
    double total = 0;
    for (uint64_t id = 0; id < r->plan->block_count; id++) {
        const struct plan_block *block = &r->plan->blocks[id];
        total += optimizer_sum_of_squares_ref(r->sum + block->offset, (int64_t)block->count);
    }
    double norm = sqrt(total) / (double)r->job->workers;
    double factor = r->job->clip > 0 ? r->job->clip / (norm + 1e-6) : 1;
    return (factor < 1 ? (float)factor : 1.0F) * (1.0F / (float)r->job->workers);
}

static void step(struct reference *r, int64_t step_index) {
    const struct job *job = r->job;
    float scale = scale_of(r);
    for (uint64_t id = 0; id < r->plan->block_count; id++) {
        const struct plan_block *block = &r->plan->blocks[id];
        float decay = block->decay ? (float)job->weight_decay : 0;
        float *weights = r->master + block->offset;
        if (strcmp(job->optimizer, "adamw") == 0) {
            struct adamw adamw = {.lr = (float)job_learning_rate(job, step_index),
                                  .beta1 = (float)job->beta1,
                                  .beta2 = (float)job->beta2,
                                  .eps = (float)job->eps,
                                  .decay = decay,
                                  .step = step_index + 1,
                                  .grad_scale = scale};
            optimizer_adamw_ref(&adamw, weights, r->moment1 + block->offset,
                                r->moment2 + block->offset, r->sum + block->offset,
                                (int64_t)block->count);
        } else {
            struct sgd sgd = {.lr = (float)job_learning_rate(job, step_index),
                              .momentum = (float)job->momentum,
                              .decay = decay,
                              .step = step_index + 1,
                              .grad_scale = scale};
            optimizer_sgd_ref(&sgd, weights, r->moment1 + block->offset, r->sum + block->offset,
                              (int64_t)block->count);
        }
    }
}

void sim_reference(const struct job *job, const struct plan *plan, const struct model_shape *shape,
                   const struct data_stream *stream, float *weights) {
    size_t count = (size_t)plan->value_count;
    size_t batch = (size_t)(job->batch * job->seq_len);
    struct reference r = {.job = job,
                          .plan = plan,
                          .master = take(count, 4),
                          .grad = take(count, 4),
                          .sum = take(count, 4),
                          .moment1 = take(count, 4),
                          .moment2 = take(count, 4),
                          .tokens = take(batch, 4),
                          .targets = take(batch, 4),
                          .wire = take((size_t)plan->largest_block + 1024, 8),
                          .wire_capacity = ((size_t)plan->largest_block + 1024) * 8};
    struct model *model = NULL;
    struct model_options options = {.B = job->batch, .T = job->seq_len, .training = true};
    CHECK(model_open(&model, shape, plan, &options) == STATUS_OK);
    model_init_weights(shape, plan, (uint64_t)job->seed, r.master);
    for (int64_t s = 0; s < job->steps; s++) {
        pull(&r, weights);
        model_set_weights(model, weights);
        memset(r.sum, 0, count * sizeof(float));
        for (int64_t rank = 0; rank < job->workers; rank++) {
            uint64_t sequence = (uint64_t)((s * job->workers + rank) * job->batch);
            data_stream_read(stream, sequence, job->batch, r.tokens, r.targets);
            struct model_batch read = {r.tokens, r.targets, job->batch, job->seq_len};
            struct model_gradient gradient = {.values = r.grad, .scale = 1};
            (void)model_forward(model, &read, &gradient);
            model_backward(model, &read, &gradient, NULL, NULL);
            push(&r);
        }
        step(&r, s);
    }
    pull(&r, weights);
    model_close(model);
    free(r.master);
    free(r.grad);
    free(r.sum);
    free(r.moment1);
    free(r.moment2);
    free(r.tokens);
    free(r.targets);
    free(r.wire);
}
