/* push.c - what becomes of a worker's frames: see shard_parts.h. */
#include "base/assert.h"
#include "base/log.h"
#include "compression/decoder.h"
#include "server/shard_parts.h"

#include <inttypes.h>
#include <math.h>

void push_release(struct shard *shard, struct shard_lane *lane) {
    struct channel *channel = shard->config.channel;
    channel->ops->release(channel, lane->slot);
    lane->slot = SHARD_NO_SLOT;
    lane->payload = NULL;
}

static uint64_t staleness_of(const struct shard_block *block, const struct shard_lane *lane) {
    return block->version > lane->base_version ? block->version - lane->base_version : 0;
}

static void count_turn(struct shard *shard, const struct shard_block *block, uint32_t rank,
                       bool dropped) {
    const struct shard_lane *lane = &block->lanes[rank];
    struct shard_counters *counters = &shard->counters;
    counters->pushes++;
    counters->dropped += dropped ? 1 : 0;
    counters->staleness_sum += lane->staleness;
    counters->staleness_max =
        lane->staleness > counters->staleness_max ? lane->staleness : counters->staleness_max;
    if (block == &shard->blocks[shard->first[block->plan->fragment]]) {
        struct shard_worker *worker = &shard->ranks[rank];
        worker->counted += dropped ? 0 : 1;
        worker->dropped += dropped ? 1 : 0;
        worker->staleness_sum += lane->staleness;
        worker->last_seq = lane->record.applied_seq;
    }
}

static void end_turn(struct shard *shard, struct shard_block *block, uint32_t rank, bool dropped) {
    struct shard_lane *lane = &block->lanes[rank];
    uint64_t clock = lane->record.applied_seq;
    lane->record.applied_seq = lane->record.held_seq;
    lane->record.held_seq = 0;
    reply_clock(block, clock);
    lane->ticket = lane->held_ticket;
    lane->has = (struct delta_place){lane->base_version, lane->held_check};
    lane->exact = false;
    lane->summed = false;
    uint64_t staleness = staleness_of(block, lane);
    lane->staleness = staleness < UINT32_MAX ? (uint32_t)staleness : UINT32_MAX;
    count_turn(shard, block, rank, dropped);
    reply_due(shard, block, rank);
}

void push_had_turn(struct shard *shard, struct shard_block *block, uint32_t rank, double weight) {
    block->lanes[rank].counted = weight;
    end_turn(shard, block, rank, false);
}

void push_drop(struct shard *shard, struct shard_block *block, uint32_t rank) {
    struct shard_lane *lane = &block->lanes[rank];
    if (lane->slot != SHARD_NO_SLOT) {
        push_release(shard, lane);
    }
    lane->counted = 0;
    end_turn(shard, block, rank, true);
}

void push_damaged(struct shard *shard, const struct shard_block *block, uint32_t rank) {
    shard->counters.corrupt++;
    log_warn("push %" PRIu64 " of worker %u, block %" PRIu64
             ", cannot be decoded: it counts as not finite",
             block->lanes[rank].record.held_seq, rank, block->plan->id);
}

/* ---- each push by itself ---- */

static float clip_factor(const struct shard *shard, const struct shard_commit *commit,
                         double weight) {
    if (shard->discipline.local) {
        return 1;
    }
    return vote_clip_factor(shard->config.job->clip, sqrt(commit->sum_of_squares) / weight);
}

static void apply(struct shard *shard, struct shard_block *block, uint32_t rank,
                  const struct shard_commit *commit) {
    struct shard_lane *lane = &block->lanes[rank];
    double weight = lane->weight;
    uint64_t staleness = staleness_of(block, lane);
    int64_t most = shard->config.job->max_staleness;
    if (most >= 0 && staleness > (uint64_t)most) {
        push_drop(shard, block, rank);
        return;
    }
    struct decoder decoder;
    bool sound = decoder_open(&decoder, lane->codec, lane->payload, lane->payload_bytes,
                              (size_t)block->plan->count, shard->scratch) == STATUS_OK;
    if (!sound) push_damaged(shard, block, rank);
    push_had_turn(shard, block, rank, weight);
    if (sound && isfinite(commit->sum_of_squares) && weight > 0) {
        struct update update = {
            .grad_scale = (float)((double)clip_factor(shard, commit, weight) / weight),
            .rate = weight * admission_rate(shard->scale, staleness, shard->living),
            .lane = lane,
            .push = &decoder};
        update_block(shard, block, &update);
    } else {
        shard->counters.skipped++;
    }
    push_release(shard, lane);
    block->version++;
}

void push_commit(struct shard *shard, const struct frame *frame) {
    struct shard_commit *last = &shard->ranks[frame->rank].commit;
    if (shard->by_round || frame->seq <= last->seq) {
        shard->counters.duplicates++;
        return;
    }
    *last = (struct shard_commit){.seq = frame->seq, .sum_of_squares = frame->scalar};
    if (!isfinite(last->sum_of_squares)) {
        log_warn("push %" PRIu64 " of worker %u is not finite: dropped", last->seq, frame->rank);
    }
    for (uint64_t i = 0; i < shard->block_count; i++) {
        struct shard_block *block = &shard->blocks[i];
        struct shard_lane *lane = &block->lanes[frame->rank];
        if (lane->slot != SHARD_NO_SLOT && lane->record.held_seq == last->seq) {
            apply(shard, block, frame->rank, last);
        }
    }
}

/* ---- arrival ---- */

/* True when the push is the lane's next; else it is dealt with. */
static bool admit(struct shard *shard, struct shard_block *block, const struct frame *frame) {
    struct shard_lane *lane = &block->lanes[frame->rank];
    switch (admission_push(&lane->record, frame->session, frame->seq, block->plan->fragment,
                           shard->config.plan->fragment_count)) {
    case ADMISSION_NEW:
        return true;
    case ADMISSION_APPLIED:
        shard->counters.duplicates++;
        /* An older request than the last was answered, or the worker would not have gone on. */
        if (frame->ticket == lane->ticket) {
            lane->has = (struct delta_place){frame->block_version, frame->check};
            reply_due(shard, block, frame->rank);
        }
        return false;
    case ADMISSION_HELD:
        shard->counters.duplicates++;
        return false;
    case ADMISSION_STALE:
        shard->counters.stale++;
        return false;
    case ADMISSION_BREACH:
    default:
        shard->counters.breaches++;
        log_warn("worker %u pushed seq %" PRIu64 " of block %" PRIu64 " after %" PRIu64 ": dropped",
                 frame->rank, frame->seq, frame->block, lane->record.applied_seq);
        return false;
    }
}

bool push_take(struct shard *shard, struct shard_block *block, const struct frame *frame,
               const struct channel_event *event) {
    uint32_t rank = frame->rank;
    struct shard_lane *lane = &block->lanes[rank];
    if (!block->ready || block->plan->fragment == PLAN_FROZEN || !isfinite(frame->scalar) ||
        frame->scalar < 0) {
        shard->counters.corrupt++;
        return false;
    }
    if (!admit(shard, block, frame)) {
        return false;
    }
    lane->record.held_seq = frame->seq;
    lane->held_ticket = frame->ticket;
    lane->held_check = frame->check;
    lane->base_version = frame->block_version;
    const struct admission_round round = {
        .round = shard->round, .rounds = shard->reports, .needs_all = shard->needs_all};
    if (admission_drops(&shard->discipline, &round, frame->block_version, block->version)) {
        push_drop(shard, block, rank);
        aggregate_late(shard, block, rank, frame->seq, frame->block_version);
        return false;
    }
    lane->slot = event->slot;
    lane->payload = event->payload;
    lane->payload_bytes = event->payload_bytes;
    lane->codec = frame->codec;
    lane->weight = frame->scalar;
    if (shard->by_round) {
        aggregate_arrived(shard, block, rank);
    } else if (shard->ranks[rank].commit.seq == frame->seq) {
        apply(shard, block, rank, &shard->ranks[rank].commit);
    }
    return true;
}

/* ---- departures ---- */

void push_gone(struct shard *shard, uint32_t rank) {
    struct shard_worker *worker = &shard->ranks[rank];
    if (worker->gone) {
        return;
    }
    worker->gone = true;
    shard->living--;
    for (uint64_t i = 0; i < shard->block_count; i++) {
        struct shard_block *block = &shard->blocks[i];
        struct shard_lane *lane = &block->lanes[rank];
        if (lane->slot != SHARD_NO_SLOT) {
            push_release(shard, lane);
        }
        if (!lane->summed) {
            lane->record.held_seq = 0;
        }
        reply_cancel(shard, block, rank);
        reply_clock(block, lane->record.applied_seq);
    }
    redial_gone(&shard->redial, rank);
    if (shard->by_round) {
        aggregate_gone(shard, rank);
    }
}
