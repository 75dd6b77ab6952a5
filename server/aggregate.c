/* aggregate.c - sums in rank order, the round's report and verdict, optimizer steps: see shard.h */
#include "base/assert.h"
#include "base/log.h"
#include "kernels/optimizer.h"
#include "server/shard.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static void release_slot(struct shard *shard, struct shard_lane *lane) {
    struct channel *channel = shard->config.channel;
    channel->ops->release(channel, lane->slot);
    lane->slot = SHARD_NO_SLOT;
    lane->payload = NULL;
}

/* The lane's push had its turn, whether it changed the block or not. */
static void had_turn(struct shard *shard, struct shard_block *block, uint32_t rank) {
    struct shard_lane *lane = &block->lanes[rank];
    lane->record.applied_seq = lane->record.held_seq;
    lane->record.held_seq = 0;
    lane->ticket = lane->held_ticket;
    uint64_t staleness =
        block->version > lane->base_version ? block->version - lane->base_version : 0;
    lane->staleness = staleness < UINT32_MAX ? (uint32_t)staleness : UINT32_MAX;
    struct shard_counters *counters = &shard->counters;
    counters->pushes++;
    counters->staleness_sum += lane->staleness;
    counters->staleness_max =
        lane->staleness > counters->staleness_max ? lane->staleness : counters->staleness_max;
    reply_due(shard, block, rank);
}

/* One optimizer step of the block on sum * grad_scale. */
static void step_block(struct shard *shard, struct shard_block *block, float grad_scale) {
    const struct job *job = shard->config.job;
    int64_t count = (int64_t)block->plan->count;
    /* Where each push is an update, a round of all workers' pushes is one step of the schedule, and
     * moves the weights as far: with SGD, lr / W each adds up to lr times the mean gradient. */
    int64_t pushes_a_step = shard->by_round ? 1 : (int64_t)shard->workers;
    ASSERT_OP(pushes_a_step, >, 0);
    double rate = job_learning_rate(job, (int64_t)block->version / pushes_a_step);
    float lr = (float)(rate / (double)pushes_a_step);
    float decay = block->plan->decay ? (float)job->weight_decay : 0.0F;
    int64_t step = (int64_t)block->version + 1;
    if (block->moment2 != NULL) {
        struct adamw adamw = {.lr = lr,
                              .beta1 = (float)job->beta1,
                              .beta2 = (float)job->beta2,
                              .eps = (float)job->eps,
                              .decay = decay,
                              .step = step,
                              .grad_scale = grad_scale};
        optimizer_adamw(&adamw, block->weights, block->moment1, block->moment2, block->sum, count);
    } else {
        struct sgd sgd = {.lr = lr,
                          .momentum = (float)job->momentum,
                          .decay = decay,
                          .grad_scale = grad_scale,
                          .step = step};
        optimizer_sgd(&sgd, block->weights, block->moment1, block->sum, count);
    }
    block->version++;
    reply_outdated(shard, block);
}

/* --- by round --- */

static void report_round(struct shard *shard) {
    bool nonfinite = false;
    for (uint64_t i = 0; i < shard->block_count; i++) {
        shard->report_sums[i] = shard->blocks[i].sum_of_squares;
        nonfinite = nonfinite || !isfinite(shard->report_sums[i]);
    }
    struct vote_report report = {.round = shard->round,
                                 .shard = shard->config.id,
                                 .contributors = shard->workers,
                                 .nonfinite = nonfinite,
                                 .block_count = shard->block_count,
                                 .blocks = shard->report_blocks,
                                 .sums_of_squares = shard->report_sums};
    /* One report is open at a time, so the ring has room. */
    ASSERT(ring_push(&shard->reports, &report) == STATUS_OK);
    if (shard->config.reported != NULL) {
        wake_signal(shard->config.reported);
    }
}

/* Adds the pushes that are next in rank order. */
static void add_in_order(struct shard *shard, struct shard_block *block) {
    size_t count = (size_t)block->plan->count;
    while (block->next_rank < shard->workers) {
        struct shard_lane *lane = &block->lanes[block->next_rank];
        if (lane->slot == SHARD_NO_SLOT) {
            return;
        }
        /* take_push() checked the length, the only thing that can be wrong. */
        ASSERT(lane->codec->decode_add(lane->payload, lane->payload_bytes, block->sum, count) ==
               STATUS_OK);
        release_slot(shard, lane);
        block->next_rank++;
    }
    block->sum_of_squares = optimizer_sum_of_squares(block->sum, (int64_t)count);
    shard->blocks_summed++;
    if (shard->blocks_summed == shard->block_count) {
        report_round(shard);
    }
}

void aggregate_verdict(struct shard *shard, const struct vote_verdict *verdict) {
    if (verdict->round != shard->round || shard->blocks_summed != shard->block_count ||
        !shard->by_round || shard->block_count == 0) {
        log_debug("verdict on round %" PRIu64 " in round %" PRIu64 " ignored", verdict->round,
                  shard->round);
        return;
    }
    float grad_scale = verdict->scale * (1.0F / (float)shard->workers);
    for (uint64_t i = 0; i < shard->block_count; i++) {
        struct shard_block *block = &shard->blocks[i];
        for (uint32_t rank = 0; rank < shard->workers; rank++) {
            had_turn(shard, block, rank);
        }
        if (!verdict->skip) {
            step_block(shard, block, grad_scale);
        }
        memset(block->sum, 0, (size_t)block->plan->count * sizeof(float));
        block->next_rank = 0;
    }
    shard->counters.skipped += verdict->skip ? 1 : 0;
    shard->blocks_summed = 0;
    shard->round++;
}

/* --- each push by itself --- */

static void apply_push(struct shard *shard, struct shard_block *block, uint32_t rank,
                       const struct shard_commit *commit) {
    struct shard_lane *lane = &block->lanes[rank];
    size_t count = (size_t)block->plan->count;
    ASSERT(lane->codec->decode(lane->payload, lane->payload_bytes, block->sum, count) == STATUS_OK);
    release_slot(shard, lane);
    had_turn(shard, block, rank);
    if (isfinite(commit->sum_of_squares)) {
        step_block(shard, block,
                   vote_clip_factor(shard->config.job->clip, sqrt(commit->sum_of_squares)));
    } else {
        shard->counters.skipped++;
    }
}

void aggregate_commit(struct shard *shard, uint32_t rank, const struct shard_commit *commit) {
    if (!isfinite(commit->sum_of_squares)) {
        log_warn("push %" PRIu64 " of worker %u is not finite: dropped", commit->seq, rank);
    }
    for (uint64_t i = 0; i < shard->block_count; i++) {
        struct shard_block *block = &shard->blocks[i];
        struct shard_lane *lane = &block->lanes[rank];
        if (lane->slot != SHARD_NO_SLOT && lane->record.held_seq == commit->seq) {
            apply_push(shard, block, rank, commit);
        }
    }
}

void aggregate_arrived(struct shard *shard, struct shard_block *block, uint32_t rank) {
    if (shard->by_round) {
        add_in_order(shard, block);
    } else if (shard->commits[rank].seq == block->lanes[rank].record.held_seq) {
        apply_push(shard, block, rank, &shard->commits[rank]);
    }
}
