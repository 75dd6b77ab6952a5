#include "worker/inner.h"

#include "base/assert.h"
#include "kernels/optimizer.h"

#include <math.h>
#include <string.h>

static struct optimizer_piece piece_of(const struct plan_block *block) {
    return (struct optimizer_piece){
        .rows = (int64_t)block->rows, .cols = (int64_t)block->cols, .hidden = block->hidden};
}

static size_t scratch_need(const struct inner *inner) {
    size_t most = 0;
    for (uint64_t id = 0; id < inner->plan->block_count; id++) {
        struct optimizer_piece piece = piece_of(&inner->plan->blocks[id]);
        size_t bytes = optimizer_scratch_bytes(&inner->optimizer, &piece);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static size_t state_need(const struct inner *inner, const struct plan_block *block) {
    struct optimizer_piece piece = piece_of(block);
    return block->fragment == PLAN_FROZEN ? 0 : optimizer_state_bytes(&inner->optimizer, &piece);
}

enum status inner_init(struct inner *inner, const struct job *job, const struct plan *plan,
                       int threads) {
    *inner = (struct inner){.job = job, .plan = plan};
    inner->optimizer = (struct optimizer){.beta1 = (float)job->beta1,
                                          .beta2 = (float)job->beta2,
                                          .eps = (float)job->eps,
                                          .momentum = (float)job->momentum,
                                          .freeze_v_after = job->freeze_v_after};
    ASSERT(optimizer_find(job_optimizer(job), &inner->optimizer.kind));
    ASSERT(moment_find(job->moments, &inner->optimizer.moments));
    inner->scratch_bytes = scratch_need(inner);
    size_t blocks = (size_t)plan->block_count * sizeof(struct inner_block);
    size_t scratch = (size_t)threads * inner->scratch_bytes;
    size_t bytes = arena_need(blocks) + arena_need(scratch);
    for (uint64_t id = 0; id < plan->block_count; id++) {
        bytes += arena_need(state_need(inner, &plan->blocks[id]));
    }
    TRY(arena_init(&inner->arena, bytes));
    inner->blocks = arena_take(&inner->arena, blocks);
    inner->scratch = arena_take(&inner->arena, scratch);
    for (uint64_t id = 0; id < plan->block_count; id++) {
        struct inner_block *block = &inner->blocks[id];
        block->state_bytes = state_need(inner, &plan->blocks[id]);
        block->state = arena_take(&inner->arena, block->state_bytes);
    }
    return STATUS_OK;
}

void inner_free(struct inner *inner) {
    arena_free(&inner->arena);
    *inner = (struct inner){0};
}

void inner_step(struct inner *inner, uint64_t id, float *weights, const float *grad,
                float grad_scale, double lr, int thread) {
    const struct plan_block *planned = &inner->plan->blocks[id];
    struct inner_block *block = &inner->blocks[id];
    struct optimizer_piece piece = piece_of(planned);
    if (planned->fragment == PLAN_FROZEN) {
        return;
    }
    block->updates++;
    const struct optimizer_update update = {.lr = (float)(lr * planned->rate),
                                            .decay =
                                                (float)(inner->job->weight_decay * planned->decay),
                                            .grad_scale = grad_scale,
                                            .step = block->updates};
    optimizer_step(&inner->optimizer, &update, &piece, weights, block->state, grad,
                   inner->scratch + (size_t)thread * inner->scratch_bytes);
}

void inner_forget(struct inner *inner, uint64_t id) {
    struct inner_block *block = &inner->blocks[id];
    if (block->state_bytes > 0) {
        memset(block->state, 0, block->state_bytes);
    }
    block->updates = 0;
}

double gradient_norm(const struct plan *plan, const float *grad, double *sums, int threads) {
    int64_t count = (int64_t)plan->block_count;
    double total = 0;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t id = 0; id < count; id++) {
        const struct plan_block *block = &plan->blocks[id];
        sums[id] = block->fragment == PLAN_FROZEN
                       ? 0
                       : optimizer_sum_of_squares(grad + block->offset, (int64_t)block->count);
    }
    for (int64_t id = 0; id < count; id++) {
        total += sums[id];
    }
    return sqrt(total);
}

float gradient_clip(const struct job *job, double norm) {
    double factor = job->clip > 0 ? job->clip / (norm + 1e-6) : 1;
    return factor < 1 ? (float)factor : 1.0F;
}
