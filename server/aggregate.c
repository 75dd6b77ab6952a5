/* aggregate.c - rounds: sums in rank order, the report and the verdict: see shard.h.
 *
 * A round is of the blocks of one fragment. `next` below is the shard's part in it.
 */
#include "base/assert.h"
#include "base/log.h"
#include "compression/decoder.h"
#include "kernels/optimizer.h"
#include "proto/codec_id.h"
#include "server/shard_parts.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static uint64_t fragment_of(const struct shard *shard, uint64_t round) {
    return (round - 1) % shard->config.plan->fragment_count;
}

uint64_t shard_part(const struct shard *shard, uint64_t round) {
    return shard->parts[fragment_of(shard, round)];
}

static bool in_round(const struct shard *shard, const struct shard_block *block) {
    return block->plan->fragment == fragment_of(shard, shard->round);
}

static void tell(struct shard *shard, const struct shard_note *note) {
    /* One report and one change are under way at a time, so the ring has room for them. */
    ASSERT(ring_push(&shard->notes, note) == STATUS_OK);
    if (shard->config.reported != NULL) {
        wake_signal(shard->config.reported);
    }
}

/* Leaves room for a report and a change. */
static bool tell_arrival(struct shard *shard, const struct shard_arrival *arrival) {
    if (ring_count(&shard->notes) + 2 >= shard->notes.capacity) {
        return false;
    }
    tell(shard, &(struct shard_note){.kind = SHARD_ARRIVED, .arrival = *arrival});
    return true;
}

void aggregate_tell_rest(struct shard *shard) {
    for (uint32_t rank = 0; rank < shard->workers && shard->untold > 0; rank++) {
        struct shard_worker *worker = &shard->ranks[rank];
        if (worker->untold) {
            if (!tell_arrival(shard, &worker->told)) {
                return;
            }
            worker->untold = false;
            shard->untold--;
        }
    }
}

/* ---- sums ---- */

static uint32_t contributors_of(const struct shard *shard, const struct shard_block *block) {
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < shard->workers; rank++) {
        count += block->lanes[rank].summed ? 1 : 0;
    }
    return count;
}

static void report_round(struct shard *shard) {
    struct vote_report report = {.round = shard->round,
                                 .shard = shard->config.id,
                                 .blocks = shard->report_blocks,
                                 .sums_of_squares = shard->report_sums};
    bool equal = true;
    for (uint64_t i = 0; i < shard->block_count; i++) {
        const struct shard_block *block = &shard->blocks[i];
        if (!in_round(shard, block)) {
            continue;
        }
        if (report.block_count == 0) {
            report.contributors = contributors_of(shard, block);
            report.weight = block->weight;
        }
        equal = equal && report.contributors == contributors_of(shard, block) &&
                !(report.weight < block->weight) && !(report.weight > block->weight) &&
                (shard->mean == NULL || mean_agrees(shard, block));
        shard->report_blocks[report.block_count] = block->plan->id;
        shard->report_sums[report.block_count++] = block->sum_of_squares;
        report.nonfinite = report.nonfinite || !isfinite(block->sum_of_squares);
    }
    if (!equal) {
        log_error("the pushes of round %" PRIu64 " do not fit each other", shard->round);
        report.contributors = 0; /* which the coordinator will not take */
    }
    tell(shard, &(struct shard_note){.kind = SHARD_REPORT, .report = report});
}

static void add_push(struct shard *shard, struct shard_block *block, uint32_t rank) {
    struct shard_lane *lane = &block->lanes[rank];
    if (decoder_add(lane->codec, lane->payload, lane->payload_bytes, block->sum,
                    (size_t)block->plan->count, shard->scratch) != STATUS_OK) {
        push_damaged(shard, block, rank);
        block->damaged = true;
    } else if (decoder_inner_codec(lane->codec, lane->payload) != CODEC_SIGNSGD) {
        block->votes = false;
    }
    push_release(shard, lane);
    lane->summed = true;
    block->weight += lane->weight;
}

/* The sum of signs becomes what it is where all agree with the majority. */
static void count_votes(struct shard_block *block) {
    float weight = (float)block->weight;
    for (uint64_t i = 0; i < block->plan->count; i++) {
        float sum = block->sum[i];
        block->sum[i] = sum > 0 ? weight : sum < 0 ? -weight : sum;
    }
}

static void finish_sum(struct shard *shard, struct shard_block *block) {
    if (shard->votes && block->votes) {
        count_votes(block);
    }
    block->sum_of_squares = block->damaged
                                ? (double)NAN
                                : optimizer_sum_of_squares(block->sum, (int64_t)block->plan->count);
    shard->summed++;
    if (shard->summed == shard_part(shard, shard->round)) {
        report_round(shard);
    }
}

/* Does the round wait for the worker's push of the block? */
static bool awaited(const struct shard *shard, const struct shard_block *block, uint32_t rank) {
    const struct shard_lane *lane = &block->lanes[rank];
    uint64_t last = lane->record.applied_seq;
    uint64_t next =
        last == 0 ? block->plan->fragment + 1 : last + shard->config.plan->fragment_count;
    return !shard->ranks[rank].gone && next <= shard->reports;
}

/* Rounds of all: adds the pushes that are next in rank order. */
static void add_in_order(struct shard *shard, struct shard_block *block) {
    if (block->next_rank == shard->workers) {
        return; /* complete already */
    }
    for (; block->next_rank < shard->workers; block->next_rank++) {
        const struct shard_lane *lane = &block->lanes[block->next_rank];
        if (lane->slot != SHARD_NO_SLOT) {
            add_push(shard, block, block->next_rank);
        } else if (awaited(shard, block, block->next_rank)) {
            return;
        }
    }
    if (contributors_of(shard, block) > 0) {
        finish_sum(shard, block);
    } else {
        block->next_rank = 0; /* nobody is left, or nobody has more to say */
    }
}

/* ---- who is there (rounds of a quorum) ---- */

static void say(struct shard *shard, uint32_t rank, uint64_t round) {
    struct shard_worker *worker = &shard->ranks[rank];
    worker->told = (struct shard_arrival){.round = round, .seq = worker->seq, .rank = rank};
    shard->untold += worker->untold ? 0 : 1;
    worker->untold = true;
    aggregate_tell_rest(shard);
}

static void drop_held(struct shard *shard, uint32_t rank, uint64_t seq) {
    for (uint64_t i = 0; i < shard->block_count; i++) {
        struct shard_block *block = &shard->blocks[i];
        const struct shard_lane *lane = &block->lanes[rank];
        if (lane->slot != SHARD_NO_SLOT && lane->record.held_seq == seq) {
            push_drop(shard, block, rank);
        }
    }
}

/* Another block of the worker's report is here. */
static void note_block(struct shard *shard, uint32_t rank, uint64_t seq, bool late,
                       uint64_t late_round) {
    struct shard_worker *worker = &shard->ranks[rank];
    if (worker->seq != seq) {
        worker->seq = seq;
        worker->here = 0;
        worker->late = false;
    }
    worker->here++;
    if (late) {
        worker->late = true;
        worker->late_round = late_round;
    }
    if (worker->here < shard_part(shard, shard->round)) {
        return;
    }
    if (worker->late) {
        drop_held(shard, rank, seq);
    }
    say(shard, rank, worker->late ? worker->late_round : shard->round);
}

void aggregate_late(struct shard *shard, const struct shard_block *block, uint32_t rank,
                    uint64_t seq, uint64_t base_version) {
    uint64_t behind = block->version > base_version ? block->version - base_version : 1;
    if (shard->round <= shard->reports) {
        note_block(shard, rank, seq, true, shard->round > behind ? shard->round - behind : 1);
    }
}

void aggregate_arrived(struct shard *shard, struct shard_block *block, uint32_t rank) {
    if (!shard->needs_all) {
        note_block(shard, rank, block->lanes[rank].record.held_seq, false, 0);
    } else if (in_round(shard, block)) {
        add_in_order(shard, block);
    }
}

void aggregate_close(struct shard *shard, uint64_t round, const struct shard_ranks *ranks) {
    if (round != shard->round || shard->is_closed || shard->needs_all || !shard->by_round ||
        shard_part(shard, round) == 0) {
        log_debug("close of round %" PRIu64 " in round %" PRIu64 " ignored", round, shard->round);
        return;
    }
    shard->is_closed = true;
    for (uint64_t i = 0; i < shard->block_count; i++) {
        struct shard_block *block = &shard->blocks[i];
        if (!in_round(shard, block)) {
            continue;
        }
        for (uint32_t rank = 0; rank < shard->workers; rank++) {
            const struct shard_lane *lane = &block->lanes[rank];
            /* That one is named but not here shows in the report. */
            if (shard_ranks_has(ranks, rank) && lane->slot != SHARD_NO_SLOT) {
                add_push(shard, block, rank);
            }
        }
        finish_sum(shard, block);
    }
}

void aggregate_drop(struct shard *shard, uint32_t rank, uint64_t seq) {
    if (shard->by_round && !shard->needs_all && rank < shard->workers) {
        drop_held(shard, rank, seq);
    }
}

/* The round that was open is over: those who missed it are dropped, or are there for the next. */
static void turn_to_late(struct shard *shard, uint64_t missed) {
    bool over = shard->round > shard->reports;
    for (uint32_t rank = 0; rank < shard->workers; rank++) {
        struct shard_worker *worker = &shard->ranks[rank];
        bool held = false;
        for (uint64_t i = 0; i < shard->block_count && !held; i++) {
            held = shard->blocks[i].lanes[rank].slot != SHARD_NO_SLOT;
        }
        if (!held) {
            continue;
        }
        if (over || !shard->discipline.late_joins) {
            worker->late = true;
            worker->late_round = missed;
            drop_held(shard, rank, worker->seq);
        } else if (worker->here == shard_part(shard, shard->round)) {
            say(shard, rank, shard->round);
        }
    }
}

/* ---- the verdict ---- */

/* The next round in which the shard has a part. */
static void open_next(struct shard *shard) {
    do {
        shard->round++;
    } while (shard_part(shard, shard->round) == 0);
    shard->summed = 0;
    shard->is_closed = false;
    if (!shard->needs_all) {
        return;
    }
    /* Pushes may have come before their round. */
    for (uint64_t i = 0; i < shard->block_count; i++) {
        if (in_round(shard, &shard->blocks[i])) {
            add_in_order(shard, &shard->blocks[i]);
        }
    }
}

/* The sum is empty, or will be. */
static void begin_sum(struct shard_block *block) {
    block->weight = 0;
    block->next_rank = 0;
    block->damaged = false;
    block->votes = true;
}

static void decide_block(struct shard *shard, struct shard_block *block,
                         const struct vote_verdict *verdict) {
    for (uint32_t rank = 0; rank < shard->workers; rank++) {
        if (block->lanes[rank].summed) {
            push_had_turn(shard, block, rank, block->lanes[rank].weight);
        }
    }
    if (shard->mean != NULL) {
        mean_decide(shard, block, verdict);
    } else if (!verdict->skip) {
        struct update update = {.grad_scale = verdict->scale * (1.0F / (float)block->weight),
                                .rate = 1};
        update_block(shard, block, &update);
    } else {
        memset(block->sum, 0, (size_t)block->plan->count * sizeof(float));
    }
    block->version++;
    begin_sum(block);
}

void aggregate_verdict(struct shard *shard, const struct vote_verdict *verdict) {
    uint64_t round = shard->round;
    if (!shard->by_round || verdict->round != round || shard->block_count == 0 ||
        shard_part(shard, round) == 0 || shard->summed != shard_part(shard, round)) {
        log_debug("verdict on round %" PRIu64 " in round %" PRIu64 " ignored", verdict->round,
                  round);
        return;
    }
    for (uint64_t i = 0; i < shard->block_count; i++) {
        if (in_round(shard, &shard->blocks[i])) {
            decide_block(shard, &shard->blocks[i], verdict);
        }
    }
    shard->counters.skipped += verdict->skip ? 1 : 0;
    if (shard->after.sync_warmup > 0 && round == (uint64_t)shard->after.sync_warmup) {
        shard->round++;
        aggregate_change(shard, &shard->after);
        return;
    }
    open_next(shard);
    if (!shard->needs_all) {
        turn_to_late(shard, round);
    }
}

void aggregate_gone(struct shard *shard, uint32_t rank) {
    shard->ranks[rank].here = 0;
    if (!shard->needs_all || shard->block_count == 0) {
        return;
    }
    uint64_t round = shard->round;
    for (uint64_t i = 0; i < shard->block_count && shard->round == round; i++) {
        if (in_round(shard, &shard->blocks[i])) {
            add_in_order(shard, &shard->blocks[i]);
        }
    }
}

void aggregate_begin(struct shard *shard, const struct discipline *discipline) {
    shard->discipline = *discipline;
    shard->by_round = discipline_by_round(discipline);
    shard->needs_all = discipline_needs_all(discipline, shard->workers);
}

void aggregate_change(struct shard *shard, const struct discipline *discipline) {
    for (uint64_t i = 0; i < shard->block_count; i++) {
        struct shard_block *block = &shard->blocks[i];
        block->base_steps = update_position(shard, block);
        block->base_version = block->version;
        block->stirred = true;
        memset(block->sum, 0, (size_t)block->plan->count * sizeof(float));
        begin_sum(block);
    }
    aggregate_begin(shard, discipline);
    shard->after = *discipline;
    shard->released = false;
    shard->summed = 0;
    shard->is_closed = false;
}

void aggregate_tell_changed(struct shard *shard) {
    tell(shard, &(struct shard_note){.kind = SHARD_CHANGED});
}
