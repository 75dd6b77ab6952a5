#include "worker/local.h"

#include "base/assert.h"
#include "kernels/optimizer.h"

#include <math.h>
#include <omp.h>
#include <string.h>

static struct optimizer_piece piece_of(const struct plan_block *block) {
    return (struct optimizer_piece){
        .rows = (int64_t)block->rows, .cols = (int64_t)block->cols, .hidden = block->hidden};
}

static size_t scratch_need(const struct local *local) {
    size_t most = 0;
    for (uint64_t id = 0; id < local->plan->block_count; id++) {
        struct optimizer_piece piece = piece_of(&local->plan->blocks[id]);
        size_t bytes = optimizer_scratch_bytes(&local->optimizer, &piece);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static size_t state_need(const struct local *local, const struct plan_block *block) {
    struct optimizer_piece piece = piece_of(block);
    return block->fragment == PLAN_FROZEN ? 0 : optimizer_state_bytes(&local->optimizer, &piece);
}

enum status local_init(struct local *local, const struct job *job, const struct plan *plan) {
    *local = (struct local){.job = job, .plan = plan, .threads = omp_get_max_threads()};
    local->resets = strcmp(job->inner_state, "reset") == 0;
    local->optimizer = (struct optimizer){.beta1 = (float)job->beta1,
                                          .beta2 = (float)job->beta2,
                                          .eps = (float)job->eps,
                                          .momentum = (float)job->momentum};
    ASSERT(optimizer_find(job->optimizer, &local->optimizer.kind));
    ASSERT(moment_find(job->moments, &local->optimizer.moments));
    local->scratch_bytes = scratch_need(local);
    size_t vector = (size_t)plan->value_count * sizeof(float);
    size_t bytes = 2 * arena_need(vector) +
                   arena_need((size_t)plan->block_count * sizeof(struct local_block)) +
                   arena_need((size_t)local->threads * local->scratch_bytes);
    for (uint64_t id = 0; id < plan->block_count; id++) {
        bytes += arena_need(state_need(local, &plan->blocks[id]));
    }
    TRY(arena_init(&local->arena, bytes));
    local->anchor = arena_take(&local->arena, vector);
    local->delta = arena_take(&local->arena, vector);
    local->blocks =
        arena_take(&local->arena, (size_t)plan->block_count * sizeof(struct local_block));
    local->scratch = arena_take(&local->arena, (size_t)local->threads * local->scratch_bytes);
    for (uint64_t id = 0; id < plan->block_count; id++) {
        struct local_block *block = &local->blocks[id];
        block->state_bytes = state_need(local, &plan->blocks[id]);
        block->state = arena_take(&local->arena, block->state_bytes);
    }
    return STATUS_OK;
}

void local_free(struct local *local) {
    arena_free(&local->arena);
    *local = (struct local){0};
}

/* The gradient's norm, in one order of sums for any number of threads; frozen blocks have none. */
static double norm_of(struct local *local, const float *grad) {
    const struct plan *plan = local->plan;
    int64_t count = (int64_t)plan->block_count;
    double total = 0;
#pragma omp parallel for schedule(dynamic) num_threads(local->threads)
    for (int64_t id = 0; id < count; id++) {
        const struct plan_block *block = &plan->blocks[id];
        local->blocks[id].sum_of_squares =
            block->fragment == PLAN_FROZEN
                ? 0
                : optimizer_sum_of_squares(grad + block->offset, (int64_t)block->count);
    }
    for (int64_t id = 0; id < count; id++) {
        total += local->blocks[id].sum_of_squares;
    }
    return sqrt(total);
}

static float clip_factor(double clip, double norm) {
    double factor = clip > 0 ? clip / (norm + 1e-6) : 1;
    return factor < 1 ? (float)factor : 1.0F;
}

static void step_block(struct local *local, uint64_t id, float *weights, const float *grad,
                       const struct optimizer_update *whole, double lr) {
    const struct plan_block *planned = &local->plan->blocks[id];
    struct local_block *block = &local->blocks[id];
    struct optimizer_piece piece = piece_of(planned);
    struct optimizer_update update = *whole;
    size_t thread = (size_t)omp_get_thread_num();
    if (planned->fragment == PLAN_FROZEN) {
        return;
    }
    block->updates++;
    update.step = block->updates;
    update.lr = (float)(lr * planned->rate);
    update.decay = (float)(local->job->weight_decay * planned->decay);
    optimizer_step(&local->optimizer, &update, &piece, weights + planned->offset, block->state,
                   grad + planned->offset, local->scratch + thread * local->scratch_bytes);
}

bool local_step(struct local *local, float *weights, const float *grad, double weight, double lr) {
    int64_t count = (int64_t)local->plan->block_count;
    ASSERT(weight > 0);
    double norm = norm_of(local, grad) / weight;
    if (!isfinite(norm)) {
        return false;
    }
    const struct optimizer_update update = {
        .grad_scale = clip_factor(local->job->clip, norm) * (float)(1.0 / weight),
    };
#pragma omp parallel for schedule(dynamic) num_threads(local->threads)
    for (int64_t id = 0; id < count; id++) {
        step_block(local, (uint64_t)id, weights, grad, &update, lr);
    }
    return true;
}

void local_delta(struct local *local, const float *weights, uint64_t fragment, double weight) {
    const struct plan *plan = local->plan;
    float factor = (float)weight;
    for (uint64_t id = 0; id < plan->block_count; id++) {
        const struct plan_block *block = &plan->blocks[id];
        if (block->fragment != fragment) {
            continue;
        }
        for (uint64_t i = block->offset; i < block->offset + block->count; i++) {
            local->delta[i] = (local->anchor[i] - weights[i]) * factor;
        }
    }
}

static bool all_finite(const float *values, uint64_t count) {
    int finite = 1;
    for (uint64_t i = 0; i < count; i++) {
        finite &= isfinite(values[i]) != 0;
    }
    return finite != 0;
}

static void forget_state(struct local_block *block) {
    if (block->state_bytes > 0) {
        memset(block->state, 0, block->state_bytes);
    }
    block->updates = 0;
}

static void install_block(struct local *local, uint64_t id, float *weights, float mix) {
    const struct plan_block *planned = &local->plan->blocks[id];
    const float *anchor = local->anchor + planned->offset;
    float *own = weights + planned->offset;
    bool sound = all_finite(own, planned->count);
    if (mix == 0 || !sound) {
        memcpy(own, anchor, (size_t)planned->count * sizeof(float));
    } else {
        for (uint64_t i = 0; i < planned->count; i++) {
            own[i] = mix * own[i] + (1.0F - mix) * anchor[i];
        }
    }
    if (local->resets || !sound) {
        forget_state(&local->blocks[id]);
    }
}

void local_install(struct local *local, float *weights, uint64_t fragment) {
    float mix = fragment == LOCAL_ALL ? 0 : (float)local->job->mix;
    for (uint64_t id = 0; id < local->plan->block_count; id++) {
        if (fragment == LOCAL_ALL || local->plan->blocks[id].fragment == fragment) {
            install_block(local, id, weights, mix);
        }
    }
}
