/* update.c - one optimizer step of one block: see shard_parts.h. */
#include "base/assert.h"
#include "compression/cast.h"
#include "server/shard_parts.h"

#include <math.h>
#include <string.h>

/* Values of a tile, unless the decoder's are larger. So few that what was asked for ahead, while
 * one is stepped, is on its way while the next is decoded. */
enum { TILE = SCHEME_TILE };

_Static_assert(TILE % 256 == 0 && SCHEME_TILE_MAX % TILE == 0, "tiles must fit each other");

/* The servers' optimizer after local steps, on the mean of what workers moved by. "average" is
 * plain SGD with rate 1: weights - mean. No weight decay, one rate for the whole run. */
static enum status choose_outer(struct shard *shard) {
    const struct job *job = shard->config.job;
    const char *name = job_outer(job);
    double rate = 0.001;
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
                                          .momentum = (float)job->momentum,
                                          .freeze_v_after = job->freeze_v_after};
    if (!moment_find(job->moments, &shard->optimizer.moments)) {
        return STATUS_INVALID;
    }
    if (shard->after.local) {
        return choose_outer(shard);
    }
    if (job_workers_step(job)) {
        shard->optimizer = (struct optimizer){.kind = OPTIMIZER_SGD}; /* never used: no state */
        return STATUS_OK;
    }
    return optimizer_find(job->optimizer, &shard->optimizer.kind) ? STATUS_OK : STATUS_INVALID;
}

struct optimizer_piece update_piece(const struct plan_block *plan) {
    return (struct optimizer_piece){
        .rows = (int64_t)plan->rows, .cols = (int64_t)plan->cols, .hidden = plan->hidden};
}

/* Where each push is an update, a round of all workers' pushes is one step of the schedule. W is
 * the job's, also when some workers have gone. */
static uint64_t pushes_a_step(const struct shard *shard) {
    return shard->by_round ? 1 : (uint64_t)shard->workers;
}

uint64_t update_position(const struct shard *shard, const struct shard_block *block) {
    return block->base_steps + (block->version - block->base_version) / pushes_a_step(shard);
}

/* How far one push moves the weights, as a part of a step. lr / W each adds up to a step of SGD. An
 * optimizer that divides by the gradient's own size sees pushes whose noise is sqrt(W) times that
 * of their mean, so lr / sqrt(W) each adds up to its step. */
static double push_part(const struct shard *shard) {
    double pushes = (double)pushes_a_step(shard);
    enum optimizer_kind kind = shard->optimizer.kind;
    bool additive = shard->discipline.local || kind == OPTIMIZER_SGD || kind == OPTIMIZER_NESTEROV;
    return additive ? 1 / pushes : 1 / sqrt(pushes);
}

/* The optimizer as it is for single pushes of several workers: gradients that are late act as
 * momentum themselves (Mitliagkas et al. 2016, arXiv 1605.09774), and the second moment needs more
 * of the noisier gradients. */
static struct optimizer optimizer_now(const struct shard *shard) {
    const struct job *job = shard->config.job;
    struct optimizer optimizer = shard->optimizer;
    if (shard->by_round || shard->workers == 1 || shard->discipline.local) {
        return optimizer;
    }
    optimizer.beta1 = (float)job->push_momentum;
    optimizer.momentum = (float)job->push_momentum;
    optimizer.beta2 = (float)(job->push_beta2 > 0 ? job->push_beta2
                                                  : pow(job->beta2, 1.0 / (double)shard->workers));
    return optimizer;
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
                       const struct optimizer *optimizer, const struct optimizer_update *terms,
                       const struct shard_lane *lane) {
    struct optimizer_piece piece = update_piece(block->plan);
    /* After a lost answer the copy may be of newer weights than the worker had: then estimate. */
    bool exact = lane->copy != NULL && lane->copy_version == lane->base_version;
    optimizer_delay_compensate(optimizer, terms, &piece, block->weights, block->state,
                               exact ? lane->copy : NULL, (float)shard->config.job->delay_comp,
                               lane->staleness, block->sum, shard->scratch);
}

/* What a step passes by, tile by tile. */
struct walk {
    const struct shard *shard;
    struct shard_block *block;
    struct decoder *push; /* as struct update's */
    uint8_t *answer;      /* or NULL */
    _Alignas(MEMORY_ALIGN) float grad[SCHEME_TILE_MAX];
};

static const float *walk_gradient(void *context, int64_t first, int64_t count) {
    struct walk *walk = context;
    float *sum = walk->block->sum + first;
    if (walk->push == NULL) {
        return sum;
    }
    float *to = count <= SCHEME_TILE_MAX ? walk->grad : sum;
    decoder_next(walk->push, to, (size_t)count, false);
    return to;
}

static void walk_done(void *context, int64_t first, int64_t count) {
    struct walk *walk = context;
    const struct shard_block *block = walk->block;
    uint8_t pull = walk->shard->pull;
    if (walk->answer != NULL) {
        cast_encode(pull, block->weights + first, (size_t)count,
                    walk->answer + cast_bytes(pull, (size_t)first));
    }
    if (walk->push == NULL) {
        memset(block->sum + first, 0, (size_t)count * sizeof(float));
    }
}

void update_block(struct shard *shard, struct shard_block *block, const struct update *update) {
    const struct job *job = shard->config.job;
    struct optimizer_piece piece = update_piece(block->plan);
    struct optimizer optimizer = optimizer_now(shard);
    double part = push_part(shard);
    double rate = learning_rate(shard, block) * update->rate * part;
    /* lr x decay of all pushes is that of a step. */
    double decay = job->weight_decay * block->plan->decay / (part * (double)pushes_a_step(shard));
    struct optimizer_update terms = {.lr = (float)rate,
                                     .decay = shard->discipline.local ? 0 : (float)decay,
                                     .grad_scale = update->grad_scale,
                                     .step = (int64_t)block->updates + 1};
    struct walk walk = {.shard = shard, .block = block, .push = update->push};
    bool compensates = update->lane != NULL && job->delay_comp > 0;
    if (walk.push != NULL && (compensates || decoder_tile(walk.push) == 0)) {
        decoder_next(walk.push, block->sum, (size_t)block->plan->count, false);
        walk.push = NULL;
    }
    if (compensates) {
        compensate(shard, block, &optimizer, &terms, update->lane);
    }
    walk.answer = reply_open(shard, block);
    bool larger = walk.push != NULL && decoder_tile(walk.push) > TILE;
    const struct optimizer_tiles tiles = {larger ? SCHEME_TILE_MAX : TILE, &walk, walk_gradient,
                                          walk_done};
    optimizer_step_tiles(&optimizer, &terms, &piece, block->weights, block->state, &tiles,
                         shard->scratch);
    block->updates++;
}
