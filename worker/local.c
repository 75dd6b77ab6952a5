#include "worker/local.h"

#include "base/assert.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum status local_init(struct local *local, const struct job *job, const struct plan *plan) {
    *local = (struct local){.job = job, .plan = plan, .threads = omp_get_max_threads()};
    local->resets = strcmp(job->inner_state, "reset") == 0;
    size_t vector = (size_t)plan->value_count * sizeof(float);
    size_t sums = (size_t)plan->block_count * sizeof(double);
    TRY(arena_init(&local->arena, 2 * arena_need(vector) + arena_need(sums)));
    local->anchor = arena_take(&local->arena, vector);
    local->delta = arena_take(&local->arena, vector);
    local->sums = arena_take(&local->arena, sums);
    return inner_init(&local->inner, job, plan, local->threads);
}

void local_free(struct local *local) {
    inner_free(&local->inner);
    arena_free(&local->arena);
    *local = (struct local){0};
}

bool local_step(struct local *local, float *weights, const float *grad, double weight, double lr) {
    const struct plan *plan = local->plan;
    int64_t count = (int64_t)plan->block_count;
    ASSERT(weight > 0);
    double norm = gradient_norm(plan, grad, local->sums, local->threads) / weight;
    if (!isfinite(norm)) {
        return false;
    }
    float scale = gradient_clip(local->job, norm) * (float)(1.0 / weight);
#pragma omp parallel for schedule(dynamic) num_threads(local->threads)
    for (int64_t id = 0; id < count; id++) {
        uint64_t offset = plan->blocks[id].offset;
        inner_step(&local->inner, (uint64_t)id, weights + offset, grad + offset, scale, lr,
                   omp_get_thread_num());
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
        inner_forget(&local->inner, id);
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
