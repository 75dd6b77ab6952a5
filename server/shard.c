#include "server/shard.h"

#include "base/assert.h"
#include "base/log.h"
#include "kernels/optimizer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { EVENTS_A_POLL = 64, RING_ITEMS = 16 };

static uint64_t owned_blocks(const struct plan *plan, uint64_t id) {
    uint64_t count = 0;
    for (uint64_t i = 0; i < plan->block_count; i++) {
        count += plan->blocks[i].shard == id ? 1 : 0;
    }
    return count;
}

void shard_channel_config(const struct job *job, const struct plan *plan, uint64_t id,
                          struct channel_config *config) {
    const struct codec *push = codec_find(job->push);
    ASSERT(push != NULL);
    size_t first_weights = (size_t)plan->largest_block * sizeof(float);
    size_t gradient = push->bound((size_t)plan->largest_block);
    uint64_t blocks = owned_blocks(plan, id);
    /* Every worker's push of every block may be held at once; the rest is for repetitions, pulls
     * and commits, which are released as soon as they are read. */
    uint64_t slots = blocks * (uint64_t)job->workers + 4 * (uint64_t)job->workers + 16;
    *config = (struct channel_config){
        .peers_max = (uint32_t)job->workers,
        .slots = (uint32_t)slots,
        .slot_bytes = first_weights > gradient ? first_weights : gradient,
        .sends_max = (uint32_t)(2 * blocks * (uint64_t)job->workers + 64),
    };
}

static size_t arena_bytes(const struct shard *shard, uint64_t floats, size_t buffer_bytes) {
    size_t lanes = (size_t)shard->block_count * shard->workers;
    return arena_need((size_t)floats * sizeof(float)) + (size_t)shard->block_count * 4 * 64 +
           arena_need(lanes * sizeof(struct shard_lane)) + (size_t)shard->block_count * 64 +
           arena_need((size_t)shard->block_count * sizeof(struct shard_block)) +
           arena_need((size_t)shard->config.plan->block_count * sizeof(uint64_t)) +
           arena_need((size_t)shard->block_count * sizeof(uint64_t)) +
           arena_need((size_t)shard->block_count * sizeof(double)) +
           arena_need(shard->workers * sizeof(struct shard_commit)) +
           arena_need(shard->workers * sizeof(uint64_t)) +
           arena_need(shard->buffer_count * sizeof(struct shard_buffer)) +
           arena_need(shard->buffer_count * sizeof(uint32_t)) +
           (size_t)shard->buffer_count * arena_need(buffer_bytes) + 4096;
}

static void block_init(struct shard *shard, struct shard_block *block,
                       const struct plan_block *plan, bool two_moments) {
    struct arena *arena = &shard->arena;
    size_t bytes = (size_t)plan->count * sizeof(float);
    block->plan = plan;
    block->weights = arena_take(arena, bytes);
    block->moment1 = arena_take(arena, bytes);
    block->moment2 = two_moments ? arena_take(arena, bytes) : NULL;
    block->sum = arena_take(arena, bytes);
    block->buffer = SHARD_NO_BUFFER;
    block->lanes = arena_take(arena, shard->workers * sizeof(struct shard_lane));
    for (uint32_t rank = 0; rank < shard->workers; rank++) {
        block->lanes[rank].slot = SHARD_NO_SLOT;
        block->lanes[rank].record.session = shard->sessions[rank];
    }
}

static void lay_out(struct shard *shard, bool two_moments, size_t buffer_bytes) {
    struct arena *arena = &shard->arena;
    const struct plan *plan = shard->config.plan;
    shard->blocks = arena_take(arena, (size_t)shard->block_count * sizeof(struct shard_block));
    shard->index = arena_take(arena, (size_t)plan->block_count * sizeof(uint64_t));
    shard->report_blocks = arena_take(arena, (size_t)shard->block_count * sizeof(uint64_t));
    shard->report_sums = arena_take(arena, (size_t)shard->block_count * sizeof(double));
    shard->sessions = arena_take(arena, shard->workers * sizeof(uint64_t));
    memcpy(shard->sessions, shard->config.sessions, shard->workers * sizeof(uint64_t));
    shard->config.sessions = NULL; /* the caller's, not to be used later */
    shard->commits = arena_take(arena, shard->workers * sizeof(struct shard_commit));
    shard->buffers = arena_take(arena, shard->buffer_count * sizeof(struct shard_buffer));
    shard->free_buffers = arena_take(arena, shard->buffer_count * sizeof(uint32_t));
    for (uint32_t i = 0; i < shard->buffer_count; i++) {
        shard->buffers[i].bytes = arena_take(arena, buffer_bytes);
        shard->free_buffers[shard->free_count++] = shard->buffer_count - 1 - i;
    }
    uint64_t position = 0;
    for (uint64_t id = 0; id < plan->block_count; id++) {
        shard->index[id] = UINT64_MAX;
        if (plan->blocks[id].shard == shard->config.id) {
            shard->index[id] = position;
            shard->report_blocks[position] = id;
            block_init(shard, &shard->blocks[position], &plan->blocks[id], two_moments);
            position++;
        }
    }
}

enum status shard_init(struct shard *shard, const struct shard_config *config) {
    *shard = (struct shard){.config = *config, .round = 1};
    atomic_init(&shard->lost_worker, -1);
    TRY(job_discipline(config->job->mode, &shard->discipline));
    shard->by_round = admission_by_round(&shard->discipline);
    shard->workers = (uint32_t)config->job->workers;
    shard->pull = codec_find(config->job->pull);
    ASSERT(shard->pull != NULL);
    shard->block_count = owned_blocks(config->plan, config->id);
    /* A few more than blocks: while workers at different paces still receive older versions, newer
     * ones can be encoded. */
    shard->buffer_count = (uint32_t)(shard->block_count + 16);
    bool two_moments = strcmp(config->job->optimizer, "adamw") == 0;
    uint64_t values = 0;
    uint64_t largest = 0;
    for (uint64_t id = 0; id < config->plan->block_count; id++) {
        const struct plan_block *block = &config->plan->blocks[id];
        if (block->shard == config->id) {
            values += block->count;
            largest = block->count > largest ? block->count : largest;
        }
    }
    size_t buffer_bytes = shard->pull->bound((size_t)largest) + MEMORY_ALIGN;
    TRY(arena_init(&shard->arena,
                   arena_bytes(shard, values * (two_moments ? 4 : 3), buffer_bytes)));
    lay_out(shard, two_moments, buffer_bytes);
    enum status status = ring_init(&shard->reports, sizeof(struct vote_report), RING_ITEMS);
    if (status == STATUS_OK) {
        status = ring_init(&shard->verdicts, sizeof(struct vote_verdict), RING_ITEMS);
    }
    if (status != STATUS_OK) {
        shard->config.channel = NULL;
        shard_free(shard);
    }
    return status;
}

void shard_free(struct shard *shard) {
    if (shard->config.channel != NULL) {
        shard->config.channel->ops->close(shard->config.channel);
    }
    ring_free(&shard->reports);
    ring_free(&shard->verdicts);
    arena_free(&shard->arena);
    *shard = (struct shard){0};
}

/* Worker 0 brings a block's first weights; later ones change nothing. */
static void take_init(struct shard *shard, struct shard_block *block,
                      const struct channel_event *event) {
    const struct codec *plain = codec_by_id(CODEC_F32);
    if (block->ready) {
        shard->counters.duplicates++;
        return;
    }
    if (plain->decode(event->payload, event->payload_bytes, block->weights,
                      (size_t)block->plan->count) != STATUS_OK) {
        shard->counters.corrupt++;
        return;
    }
    block->ready = true;
}

/* Keeps the push in its slot; true when the slot is now the lane's. */
static bool take_push(struct shard *shard, struct shard_block *block, const struct frame *frame,
                      const struct channel_event *event) {
    struct shard_lane *lane = &block->lanes[frame->rank];
    const struct codec *codec = codec_by_id(frame->codec);
    size_t count = (size_t)block->plan->count;
    if (codec == NULL || codec->bound(count) != event->payload_bytes || !block->ready) {
        shard->counters.corrupt++;
        return false;
    }
    switch (admission_push(&lane->record, frame->session, frame->seq)) {
    case ADMISSION_NEW:
        break;
    case ADMISSION_APPLIED:
        shard->counters.duplicates++;
        /* An older request than the last was answered, or the worker would not have gone on. */
        if (frame->ticket == lane->ticket) {
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
    lane->record.held_seq = frame->seq;
    lane->held_ticket = frame->ticket;
    lane->slot = event->slot;
    lane->payload = event->payload;
    lane->payload_bytes = event->payload_bytes;
    lane->codec = codec;
    lane->base_version = frame->block_version;
    aggregate_arrived(shard, block, frame->rank);
    return true;
}

static void take_commit(struct shard *shard, const struct frame *frame) {
    struct shard_commit *last = &shard->commits[frame->rank];
    if (shard->by_round || frame->seq <= last->seq) {
        shard->counters.duplicates++;
        return;
    }
    *last = (struct shard_commit){.seq = frame->seq, .sum_of_squares = frame->scalar};
    aggregate_commit(shard, frame->rank, last);
}

/* The frame is whole and of this job, from a worker of this epoch. True: the slot is kept. */
static bool take_frame(struct shard *shard, const struct frame *frame,
                       const struct channel_event *event) {
    if (frame->kind == FRAME_COMMIT) {
        take_commit(shard, frame);
        return false;
    }
    if (frame->block >= shard->config.plan->block_count ||
        shard->index[frame->block] == UINT64_MAX) {
        shard->counters.corrupt++;
        return false;
    }
    struct shard_block *block = &shard->blocks[shard->index[frame->block]];
    bool sized = frame->value_count == block->plan->count;
    if (frame->kind == FRAME_PUSH && sized) {
        return take_push(shard, block, frame, event);
    }
    if (frame->kind == FRAME_PULL) {
        struct shard_lane *lane = &block->lanes[frame->rank];
        if (frame->ticket >= lane->ticket) {
            lane->ticket = frame->ticket;
            reply_due(shard, block, frame->rank);
        }
    } else if (frame->kind == FRAME_INIT && frame->rank == 0 && sized &&
               frame->codec == CODEC_F32) {
        take_init(shard, block, event);
    } else {
        shard->counters.corrupt++;
    }
    return false;
}

static bool take_received(struct shard *shard, const struct channel_event *event) {
    struct frame frame;
    if (frame_decode(event->header, &frame) != STATUS_OK ||
        frame_check_payload(&frame, event->payload, event->payload_bytes) != STATUS_OK) {
        shard->counters.corrupt++;
        log_debug("a damaged frame was dropped");
        return false;
    }
    if (frame.job != shard->config.job_id || frame.epoch != shard->config.epoch ||
        frame.rank >= shard->workers || frame.session != shard->sessions[frame.rank]) {
        shard->counters.stale++;
        return false;
    }
    log_trace("frame kind %d of worker %u, seq %" PRIu64 ", block %" PRIu64, (int)frame.kind,
              frame.rank, frame.seq, frame.block);
    return take_frame(shard, &frame, event);
}

static void note_lost(struct shard *shard, uint32_t worker) {
    int64_t none = -1;
    log_debug("channel to worker %u broke", worker);
    if (atomic_compare_exchange_strong(&shard->lost_worker, &none, worker) &&
        shard->config.reported != NULL) {
        wake_signal(shard->config.reported);
    }
}

bool shard_poll(struct shard *shard) {
    struct channel *channel = shard->config.channel;
    struct channel_event events[EVENTS_A_POLL];
    struct vote_verdict verdict;
    size_t count = channel->ops->poll(channel, events, EVENTS_A_POLL);
    bool worked = count > 0;
    for (size_t i = 0; i < count; i++) {
        const struct channel_event *event = &events[i];
        if (event->kind == CHANNEL_RECEIVED) {
            if (!take_received(shard, event)) {
                channel->ops->release(channel, event->slot);
            }
        } else if (event->kind == CHANNEL_SENT) {
            reply_sent(shard, event->cookie);
        } else {
            note_lost(shard, event->peer);
        }
    }
    while (ring_pop(&shard->verdicts, &verdict) == STATUS_OK) {
        aggregate_verdict(shard, &verdict);
        worked = true;
    }
    return reply_flush(shard) || worked;
}
