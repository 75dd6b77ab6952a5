/* update.c - one optimizer step of one block: see shard_parts.h. */
#include "base/assert.h"
#include "server/shard_parts.h"

#include <string.h>

/* The servers' optimizer after local steps, on the mean of what workers moved by. "average" is
 * plain SGD with rate 1: weights - mean. No weight decay, one rate for the whole run. */
static enum status choose_outer(struct shard *shard) {
    const struct job *job = shard->config.job;
    const char *name = job->outer;
    double rate = 0.001;
    if (strcmp(name, "auto") == 0) {
        name = strncmp(job->mode, "diloco", strlen("diloco")) == 0 ? "nesterov" : "average";
    }
    bool average = strcmp(name, "average") == 0;
    if (average || strcmp(name, "sgd") == 0) {
        rate = 1;
    } else if (strcmp(name, "nesterov") == 0) {
        rate = 0.7;
    }
    shard->outer_rate = job->outer_lr > 0 ? job->outer_lr : rate;
    shard->optimizer.momentum = average ? 0 : (float)job->outer_momentum;
    return optimizer_find(average ? "sgd" : name, &shard->optimizer.kind) ? STATUS_OK
                                                                          : STATUS_INVALID;
}

enum status update_init(struct shard *shard) {
    const struct job *job = shard->config.job;
    shard->optimizer = (struct optimizer){.beta1 = (float)job->beta1,
                                          .beta2 = (float)job->beta2,
                                          .eps = (float)job->eps,
                                          .momentum = (float)job->momentum};
    if (!moment_find(job->moments, &shard->optimizer.moments)) {
        return STATUS_INVALID;
    }
    if (shard->after.local) {
        return choose_outer(shard);
    }
    return optimizer_find(job->optimizer, &shard->optimizer.kind) ? STATUS_OK : STATUS_INVALID;
}

struct optimizer_piece update_piece(const struct plan_block *plan) {
    return (struct optimizer_piece){
        .rows = (int64_t)plan->rows, .cols = (int64_t)plan->cols, .hidden = plan->hidden};
}

/* Where each push is an update, a round of all workers' pushes is one step of the schedule, and
 * moves the weights as far: with SGD, lr / W each adds up to lr times the mean gradient. W is the
 * job's, also when some workers have gone. */
static uint64_t pushes_a_step(const struct shard *shard) {
    return shard->by_round ? 1 : (uint64_t)shard->workers;
}

uint64_t update_position(const struct shard *shard, const struct shard_block *block) {
    return block->base_steps + (block->version - block->base_version) / pushes_a_step(shard);
}

static double learning_rate(const struct shard *shard, const struct shard_block *block) {
    if (shard->discipline.local) {
        return shard->outer_rate;
    }
    return job_learning_rate(shard->config.job, (int64_t)update_position(shard, block)) *
           block->plan->rate;
}

/* Moves the gradient in the sum to where the weights are now. */
static void compensate(struct shard *shard, struct shard_block *block,
                       const struct optimizer_update *terms, const struct shard_lane *lane) {
    struct optimizer_piece piece = update_piece(block->plan);
    /* After a lost answer the copy may be of newer weights than the worker had: then estimate. */
    bool exact = lane->copy != NULL && lane->copy_version == lane->base_version;
    optimizer_delay_compensate(&shard->optimizer, terms, &piece, block->weights, block->state,
                               exact ? lane->copy : NULL, (float)shard->config.job->delay_comp,
                               lane->staleness, block->sum, shard->scratch);
}

void update_block(struct shard *shard, struct shard_block *block, const struct update *update) {
    const struct job *job = shard->config.job;
    struct optimizer_piece piece = update_piece(block->plan);
    double rate = learning_rate(shard, block) * update->rate / (double)pushes_a_step(shard);
    bool local = shard->discipline.local;
    struct optimizer_update terms = {
        .lr = (float)rate,
        .decay = local ? 0 : (float)(job->weight_decay * block->plan->decay),
        .grad_scale = update->grad_scale,
        .step = (int64_t)block->updates + 1};
    if (update->lane != NULL && job->delay_comp > 0) {
        compensate(shard, block, &terms, update->lane);
    }
    optimizer_step(&shard->optimizer, &terms, &piece, block->weights, block->state, block->sum,
                   shard->scratch);
    block->updates++;
}
