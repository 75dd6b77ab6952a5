#include "server/shard.h"

#include "base/assert.h"
#include "base/log.h"
#include "compression/cast.h"
#include "compression/decoder.h"
#include "proto/codec_spec.h"
#include "server/shard_parts.h"

#include <inttypes.h>
#include <string.h>

enum { EVENTS_A_POLL = 64 };

static uint64_t owned_blocks(const struct plan *plan, uint64_t id) {
    uint64_t count = 0;
    for (uint64_t i = 0; i < plan->block_count; i++) {
        count += plan->blocks[i].shard == id ? 1 : 0;
    }
    return count;
}

void shard_channel_config(const struct job *job, const struct plan *plan, uint64_t id,
                          struct channel_config *config) {
    uint64_t blocks = owned_blocks(plan, id);
    /* Every worker's push of every block may be held at once; the rest is for repetitions, pulls
     * and commits, which are released as soon as they are read. */
    uint64_t slots = blocks * (uint64_t)job->workers + 4 * (uint64_t)job->workers + 16;
    *config = (struct channel_config){
        .peers_max = (uint32_t)job->workers,
        .slots = (uint32_t)slots,
        /* A push of any codec, or the first weights in f32. */
        .slot_bytes = decoder_payload_max((size_t)plan->largest_block),
        .sends_max = (uint32_t)(2 * blocks * (uint64_t)job->workers + 64),
        .peer_sends_max = (uint32_t)(2 * blocks + 64),
    };
}

static size_t lane_bytes(const struct shard *shard, const struct plan_block *plan) {
    size_t copy = shard->copies ? arena_need((size_t)plan->count * sizeof(float)) : 0;
    return arena_need(shard->workers * sizeof(struct shard_lane)) + shard->workers * copy;
}

/* What the shard's own blocks take, and what the largest of them need. */
struct extent {
    size_t bytes, scratch;
    uint64_t largest;
};

static struct extent measure(const struct shard *shard) {
    struct extent extent = {0};
    const struct plan *plan = shard->config.plan;
    for (uint64_t id = 0; id < plan->block_count; id++) {
        const struct plan_block *block = &plan->blocks[id];
        if (block->shard != shard->config.id) {
            continue;
        }
        struct optimizer_piece piece = update_piece(block);
        size_t scratch = optimizer_scratch_bytes(&shard->optimizer, &piece);
        extent.bytes += 2 * arena_need((size_t)block->count * sizeof(float)) +
                        arena_need(optimizer_state_bytes(&shard->optimizer, &piece)) +
                        replica_bytes(shard, block) + lane_bytes(shard, block);
        extent.scratch = scratch > extent.scratch ? scratch : extent.scratch;
        extent.largest = block->count > extent.largest ? block->count : extent.largest;
    }
    size_t decoder = decoder_scratch_bytes((size_t)extent.largest);
    extent.scratch = decoder > extent.scratch ? decoder : extent.scratch;
    return extent;
}

static size_t arena_bytes(const struct shard *shard, const struct extent *extent) {
    size_t blocks = (size_t)shard->block_count;
    size_t fragments = (size_t)shard->config.plan->fragment_count;
    return extent->bytes + arena_need(extent->scratch) +
           arena_need(blocks * sizeof(struct shard_block)) +
           arena_need((size_t)shard->config.plan->block_count * sizeof(uint64_t)) +
           2 * arena_need(fragments * sizeof(uint64_t)) + arena_need(blocks * sizeof(uint64_t)) +
           arena_need(blocks * sizeof(double)) +
           arena_need(shard->workers * sizeof(struct shard_worker)) +
           arena_need(shard->buffer_count * sizeof(struct shard_buffer)) +
           arena_need(shard->buffer_count * sizeof(uint32_t)) + 4096;
}

static void block_init(struct shard *shard, struct shard_block *block,
                       const struct plan_block *plan) {
    struct arena *arena = &shard->arena;
    size_t bytes = (size_t)plan->count * sizeof(float);
    struct optimizer_piece piece = update_piece(plan);
    size_t state = optimizer_state_bytes(&shard->optimizer, &piece);
    block->plan = plan;
    block->weights = arena_take(arena, bytes);
    block->sum = arena_take(arena, bytes);
    block->state = state > 0 ? arena_take(arena, state) : NULL;
    block->votes = true;
    block->buffer = SHARD_NO_BUFFER;
    replica_init(shard, block);
    block->lanes = arena_take(arena, shard->workers * sizeof(struct shard_lane));
    for (uint32_t rank = 0; rank < shard->workers; rank++) {
        block->lanes[rank].slot = SHARD_NO_SLOT;
        block->lanes[rank].record.session = shard->ranks[rank].session;
        block->lanes[rank].copy = shard->copies ? arena_take(arena, bytes) : NULL;
    }
}

static void place_blocks(struct shard *shard) {
    const struct plan *plan = shard->config.plan;
    uint64_t position = 0;
    for (uint64_t fragment = 0; fragment < plan->fragment_count; fragment++) {
        shard->first[fragment] = UINT64_MAX;
    }
    for (uint64_t id = 0; id < plan->block_count; id++) {
        const struct plan_block *block = &plan->blocks[id];
        shard->index[id] = UINT64_MAX;
        if (block->shard != shard->config.id) {
            continue;
        }
        shard->index[id] = position;
        block_init(shard, &shard->blocks[position], block);
        if (block->fragment != PLAN_FROZEN) {
            uint64_t *first = &shard->first[block->fragment];
            *first = *first == UINT64_MAX ? position : *first;
            shard->parts[block->fragment]++;
        }
        position++;
    }
}

/* answers [buffer_count][buffer_bytes] */
static void lay_out(struct shard *shard, const struct extent *extent, uint8_t *answers,
                    size_t buffer_bytes) {
    struct arena *arena = &shard->arena;
    const struct plan *plan = shard->config.plan;
    size_t blocks = (size_t)shard->block_count;
    size_t fragments = (size_t)plan->fragment_count;
    shard->scratch = arena_take(arena, extent->scratch);
    shard->blocks = arena_take(arena, blocks * sizeof(struct shard_block));
    shard->index = arena_take(arena, (size_t)plan->block_count * sizeof(uint64_t));
    shard->parts = arena_take(arena, fragments * sizeof(uint64_t));
    shard->first = arena_take(arena, fragments * sizeof(uint64_t));
    shard->report_blocks = arena_take(arena, blocks * sizeof(uint64_t));
    shard->report_sums = arena_take(arena, blocks * sizeof(double));
    shard->ranks = arena_take(arena, shard->workers * sizeof(struct shard_worker));
    for (uint32_t rank = 0; rank < shard->workers; rank++) {
        shard->ranks[rank].session = shard->config.sessions[rank];
    }
    shard->config.sessions = NULL; /* the caller's, not to be used later */
    shard->buffers = arena_take(arena, shard->buffer_count * sizeof(struct shard_buffer));
    shard->free_buffers = arena_take(arena, shard->buffer_count * sizeof(uint32_t));
    for (uint32_t i = 0; i < shard->buffer_count; i++) {
        shard->buffers[i].bytes = answers + i * buffer_bytes;
        shard->free_buffers[shard->free_count++] = shard->buffer_count - 1 - i;
    }
    place_blocks(shard);
}

/* The mode's numbers, and those that hold at first. */
static enum status find_discipline(struct shard *shard) {
    const struct job *job = shard->config.job;
    char why[256];
    TRY(job_discipline(job, &shard->after, why, sizeof why));
    TRY(admission_scale_find(job->staleness_scale, &shard->scale));
    struct discipline first = shard->after;
    if (shard->after.sync_warmup > 0) {
        first = (struct discipline){.local_steps = 1, .fragments = 1, .quorum = job->workers};
    }
    aggregate_begin(shard, &first);
    shard->reports = (uint64_t)discipline_reports(&shard->after, job->steps);
    shard->copies = job->delay_comp > 0 && strcmp(job->delay_base, "copies") == 0;
    return update_init(shard);
}

static bool votes(const struct job *job) {
    struct codec_spec push;
    char why[256];
    ASSERT(codec_parse(job->push, &push, why, sizeof why)); // job_table checked it
    return push.codec == CODEC_SIGNSGD;
}

enum status shard_init(struct shard *shard, const struct shard_config *config) {
    *shard = (struct shard){.config = *config, .round = 1};
    atomic_init(&shard->lost_worker, -1);
    shard->workers = shard->living = (uint32_t)config->job->workers;
    ASSERT_OP(shard->workers, <=, SHARD_WORKERS_MAX);
    TRY(find_discipline(shard));
    shard->pull = CODEC_BF16;
    ASSERT(delta_find(config->job->pull, &shard->delta) ||
           cast_find(config->job->pull, &shard->pull));
    shard->votes = votes(config->job);
    TRY(mean_init(shard));
    shard->block_count = owned_blocks(config->plan, config->id);
    /* A few more than blocks: while workers at different paces still receive older versions, newer
     * ones can be encoded. */
    shard->buffer_count = (uint32_t)(shard->block_count + 16);
    struct extent extent = measure(shard);
    size_t buffer_bytes =
        shard->mean != NULL ? mean_bytes(shard) : cast_bytes(shard->pull, (size_t)extent.largest);
    buffer_bytes = arena_need(buffer_bytes + MEMORY_ALIGN);
    uint8_t *answers = NULL;
    enum status status = arena_init(&shard->arena, arena_bytes(shard, &extent));
    if (status == STATUS_OK) {
        status = channel_memory(config->channel, shard->buffer_count * buffer_bytes,
                                &shard->answers, &answers);
    }
    if (status != STATUS_OK) {
        push_codec_close(shard->mean);
        arena_free(&shard->arena);
        return status;
    }
    lay_out(shard, &extent, answers, buffer_bytes);
    for (uint64_t i = 0; i < config->plan->fragment_count && shard_part(shard, shard->round) == 0;
         i++) {
        shard->round++;
    }
    /* For each worker's arrival and what was still to be said; for each one's departure and what
     * one round takes. */
    redial_init(&shard->redial, &(struct redial_config){.channel = config->channel,
                                                        .addresses = config->addresses,
                                                        .count = shard->workers,
                                                        .kind = "worker",
                                                        .lease_ns = job_lease_ns(config->job)});
    status = ring_init(&shard->notes, sizeof(struct shard_note), 2 * shard->workers + 8);
    if (status == STATUS_OK) {
        status = ring_init(&shard->orders, sizeof(struct shard_order), 4 * shard->workers + 16);
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
    ring_free(&shard->notes);
    ring_free(&shard->orders);
    push_codec_close(shard->mean);
    redial_free(&shard->redial);
    arena_free(&shard->arena);
    arena_free(&shard->answers);
    *shard = (struct shard){0};
}

/* Worker 0 brings a block's first weights; later ones change nothing. */
static void take_init(struct shard *shard, struct shard_block *block,
                      const struct channel_event *event) {
    if (block->ready) {
        shard->counters.duplicates++;
        return;
    }
    if (decoder_set(CODEC_F32, event->payload, event->payload_bytes, block->weights,
                    (size_t)block->plan->count, NULL) != STATUS_OK) {
        shard->counters.corrupt++;
        return;
    }
    block->ready = true;
}

/* The frame is whole and of this job, from a worker of this epoch. True: the slot is kept. */
static bool take_frame(struct shard *shard, const struct frame *frame,
                       const struct channel_event *event) {
    if (frame->kind == FRAME_COMMIT) {
        push_commit(shard, frame);
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
        return push_take(shard, block, frame, event);
    }
    if (frame->kind == FRAME_PULL) {
        struct shard_lane *lane = &block->lanes[frame->rank];
        if (frame->ticket >= lane->ticket) {
            lane->ticket = frame->ticket;
            lane->has = (struct delta_place){frame->block_version, frame->check};
            lane->exact = frame->exact || shard->mean != NULL;
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
        frame.rank >= shard->workers || frame.session != shard->ranks[frame.rank].session ||
        shard->ranks[frame.rank].gone) {
        shard->counters.stale++;
        return false;
    }
    log_trace("frame kind %d of worker %u, seq %" PRIu64 ", block %" PRIu64, (int)frame.kind,
              frame.rank, frame.seq, frame.block);
    return take_frame(shard, &frame, event);
}

/* Says who is out of reach, if that has changed. */
static void note_lost(struct shard *shard) {
    int64_t worker = redial_failed(&shard->redial);
    if (worker == atomic_load(&shard->lost_worker)) {
        return;
    }
    atomic_store(&shard->lost_worker, worker);
    if (shard->config.reported != NULL) {
        wake_signal(shard->config.reported);
    }
}

static bool take_events(struct shard *shard, int64_t now_ns) {
    struct channel *channel = shard->config.channel;
    struct channel_event events[EVENTS_A_POLL];
    size_t count = channel->ops->poll(channel, events, EVENTS_A_POLL);
    for (size_t i = 0; i < count; i++) {
        const struct channel_event *event = &events[i];
        if (event->kind == CHANNEL_RECEIVED) {
            if (!take_received(shard, event)) {
                channel->ops->release(channel, event->slot);
            }
        } else if (event->kind == CHANNEL_PEER_LOST) {
            redial_lost(&shard->redial, event->peer, now_ns);
        } else {
            reply_sent(shard, event->cookie);
            if (event->status == STATUS_OK) redial_sent(&shard->redial, event->peer, now_ns);
        }
    }
    return count > 0;
}

static void take_order(struct shard *shard, const struct shard_order *order) {
    switch (order->kind) {
    case SHARD_VERDICT:
        aggregate_verdict(shard, &order->verdict);
        break;
    case SHARD_CLOSE:
        aggregate_close(shard, order->close.round, &order->close.ranks);
        break;
    case SHARD_DROP:
        aggregate_drop(shard, order->drop.rank, order->drop.seq);
        break;
    case SHARD_GONE:
        if (order->gone < shard->workers) {
            push_gone(shard, order->gone);
        }
        break;
    case SHARD_RELEASE:
        shard->released = true;
        break;
    case SHARD_CHANGE:
        aggregate_change(shard, &order->discipline);
        aggregate_tell_changed(shard);
        break;
    }
}

bool shard_poll(struct shard *shard, int64_t now_ns) {
    struct shard_order order;
    bool worked = take_events(shard, now_ns);
    while (ring_pop(&shard->orders, &order) == STATUS_OK) {
        take_order(shard, &order);
        worked = true;
    }
    if (shard->untold > 0) {
        aggregate_tell_rest(shard);
    }
    reply_redial(shard, now_ns);
    note_lost(shard);
    return reply_flush(shard) || worked;
}

int64_t shard_deadline_ns(const struct shard *shard) {
    return redial_deadline_ns(&shard->redial);
}
