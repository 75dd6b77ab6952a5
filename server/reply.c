/* reply.c - answers to workers: encoded once a version, sent to each that waits and may have it.
 *
 * They go in the order of a forward pass's need, which may start on the first.
 * An answer lies in a buffer until its last send is over; a block whose version moved on lets go of
 * its buffer, which is free again when no send needs it. When no buffer is free, answers wait.
 * With --pull delta-* a buffer holds what one worker lacks of the replica (replica.c); it serves
 * all that lack the same, as all do in rounds.
 * With --optimizer worker:NAME it holds the mean gradient (mean.c).
 * Who asks for the exact weights gets them from where they lie: that is done when nothing changes
 * them any more, and if it were done earlier, the payload's checksum would tell.
 */
#include "base/assert.h"
#include "base/checksum.h"
#include "compression/cast.h"
#include "server/shard_parts.h"

#include <string.h>

#define COOKIE_NO_BUFFER UINT64_MAX /* of a send whose payload is none */

void reply_due(struct shard *shard, struct shard_block *block, uint32_t rank) {
    if (!shard_ranks_has(&block->waiting, rank) && !shard->ranks[rank].gone) {
        shard_ranks_add(&block->waiting, rank);
        block->stirred = true;
        block->due++;
        shard->due++;
    }
}

void reply_cancel(struct shard *shard, struct shard_block *block, uint32_t rank) {
    if (shard_ranks_has(&block->waiting, rank)) {
        shard_ranks_remove(&block->waiting, rank);
        block->due--;
        shard->due--;
    }
}

static void free_buffer(struct shard *shard, uint32_t index) {
    shard->free_buffers[shard->free_count++] = index;
}

void reply_outdated(struct shard *shard, struct shard_block *block) {
    if (block->buffer == SHARD_NO_BUFFER) {
        return;
    }
    struct shard_buffer *buffer = &shard->buffers[block->buffer];
    buffer->current = false;
    if (buffer->sends == 0) {
        free_buffer(shard, block->buffer);
    }
    block->buffer = SHARD_NO_BUFFER;
}

/* Some buffer is free. */
static struct shard_buffer *take_buffer(struct shard *shard, struct shard_block *block) {
    uint32_t index = shard->free_buffers[--shard->free_count];
    struct shard_buffer *buffer = &shard->buffers[index];
    buffer->current = true;
    buffer->sealed = false;
    block->buffer = index;
    return buffer;
}

uint8_t *reply_open(struct shard *shard, struct shard_block *block) {
    reply_outdated(shard, block);
    if (shard->free_count == 0 || shard->mean != NULL || block->replica.values != NULL) {
        return NULL;
    }
    struct shard_buffer *buffer = take_buffer(shard, block);
    buffer->codec = shard->pull;
    buffer->used = cast_bytes(shard->pull, (size_t)block->plan->count);
    return buffer->bytes;
}

void reply_sent(struct shard *shard, uint64_t cookie) {
    if (cookie == COOKIE_NO_BUFFER) {
        return;
    }
    struct shard_buffer *buffer = &shard->buffers[cookie];
    ASSERT_OP(buffer->sends, >, 0);
    buffer->sends--;
    if (buffer->sends == 0 && !buffer->current) {
        free_buffer(shard, (uint32_t)cookie);
    }
}

static void fill(struct shard *shard, struct shard_block *block, uint32_t steps,
                 struct shard_buffer *buffer) {
    size_t count = (size_t)block->plan->count;
    const float *values = block->replica.values != NULL ? block->replica.values : block->weights;
    if (shard->mean != NULL) {
        mean_encode(shard, block, buffer);
    } else if (steps == REPLICA_WHOLE) {
        buffer->codec = shard->pull;
        cast_encode(shard->pull, values, count, buffer->bytes);
        buffer->used = cast_bytes(shard->pull, count);
    } else {
        buffer->codec = shard->delta;
        buffer->used = replica_encode(shard, block, steps, buffer->bytes);
    }
}

/* Not before someone is to get it. */
static void seal(struct shard_buffer *buffer) {
    if (!buffer->sealed) {
        buffer->xxh3 = checksum_xxh3(buffer->bytes, buffer->used);
        buffer->sealed = true;
    }
}

/* Encodes the answer to this lane into a buffer, unless the block's has it; false when none is
 * free. */
static bool encode_block(struct shard *shard, struct shard_block *block,
                         const struct shard_lane *lane) {
    bool follows = block->replica.values != NULL;
    uint32_t steps = REPLICA_WHOLE;
    if (follows) {
        replica_follow(shard, block);
        steps = replica_steps_from(block, &lane->has);
    }
    if (block->buffer != SHARD_NO_BUFFER) {
        struct shard_buffer *last = &shard->buffers[block->buffer];
        if (!follows || (last->version == block->version && last->steps == steps)) {
            seal(last);
            return true;
        }
        reply_outdated(shard, block);
    }
    if (shard->free_count == 0) {
        return false;
    }
    struct shard_buffer *buffer = take_buffer(shard, block);
    fill(shard, block, steps, buffer);
    buffer->version = block->version;
    buffer->steps = steps;
    seal(buffer);
    return true;
}

void reply_clock(struct shard_block *block, uint64_t from) {
    if (block->at_slowest > 0 && from == block->slowest) {
        block->at_slowest--;
        block->stirred = block->stirred || block->at_slowest == 0;
    }
}

/* All workers are looked at once for each clock that the slowest passes, which takes a push of
 * each. */
static uint64_t slowest_clock(const struct shard *shard, struct shard_block *block) {
    if (block->at_slowest > 0) {
        return block->slowest;
    }
    block->slowest = UINT64_MAX;
    for (uint32_t rank = 0; rank < shard->workers; rank++) {
        uint64_t clock = block->lanes[rank].record.applied_seq;
        if (shard->ranks[rank].gone || clock > block->slowest) {
            continue;
        }
        block->at_slowest = clock < block->slowest ? 1 : block->at_slowest + 1;
        block->slowest = clock;
    }
    return block->slowest;
}

static enum status send_answer(struct shard *shard, struct shard_block *block, uint32_t rank) {
    struct channel *channel = shard->config.channel;
    const struct shard_lane *lane = &block->lanes[rank];
    struct frame frame = {.kind = FRAME_WEIGHTS,
                          .codec = CODEC_F32,
                          .job = shard->config.job_id,
                          .epoch = shard->config.epoch,
                          .session = lane->record.session,
                          .seq = lane->record.applied_seq,
                          .block_version = block->version,
                          .block = block->plan->id,
                          .value_count = (uint32_t)block->plan->count,
                          .scalar = lane->counted,
                          .staleness = lane->staleness,
                          .rank = (uint16_t)rank,
                          .ticket = lane->ticket};
    const uint8_t *payload = (const uint8_t *)block->weights;
    size_t bytes = (size_t)block->plan->count * sizeof(float);
    uint8_t header[FRAME_BYTES];
    if (lane->exact) {
        frame.payload_xxh3 = checksum_xxh3(payload, bytes);
    } else {
        const struct shard_buffer *buffer = &shard->buffers[block->buffer];
        frame.kind = shard->mean != NULL ? FRAME_MEAN : FRAME_WEIGHTS;
        frame.codec = buffer->codec;
        frame.payload_xxh3 = buffer->xxh3;
        payload = buffer->bytes;
        bytes = buffer->used;
    }
    frame.payload_bytes = (uint32_t)bytes;
    frame_encode(&frame, header);
    return channel->ops->send(channel, rank, header, payload, bytes,
                              lane->exact ? COOKIE_NO_BUFFER : block->buffer);
}

/* What the worker computes its next gradient of, for delay compensation. */
static void keep_copy(const struct shard_block *block, struct shard_lane *lane) {
    if (lane->copy != NULL) {
        const float *sent =
            block->replica.values != NULL && !lane->exact ? block->replica.values : block->weights;
        memcpy(lane->copy, sent, (size_t)block->plan->count * sizeof(float));
        lane->copy_version = block->version;
    }
}

/* False when the channel or the buffers are full: no use to go on now. */
static bool answer_block(struct shard *shard, struct shard_block *block, bool *sent) {
    uint64_t slowest = slowest_clock(shard, block);
    for (uint32_t rank = shard_ranks_next(&block->waiting, 0); rank < shard->workers;
         rank = shard_ranks_next(&block->waiting, rank + 1)) {
        struct shard_lane *lane = &block->lanes[rank];
        uint64_t clock = lane->record.applied_seq;
        if (!shard->released && !admission_answer(&shard->discipline, clock, slowest)) {
            continue;
        }
        if (!lane->exact && !encode_block(shard, block, lane)) {
            return false;
        }
        enum status status = send_answer(shard, block, rank);
        if (status == STATUS_AGAIN) {
            return false;
        }
        /* A lost worker's answer is dropped; the control channel decides what its loss means. */
        reply_cancel(shard, block, rank);
        if (status == STATUS_OK) {
            if (!lane->exact) {
                shard->buffers[block->buffer].sends++;
            }
            *sent = true;
            keep_copy(block, lane);
        }
    }
    block->stirred = false;
    return true;
}

static bool is_pack(const struct shard *shard, uint64_t index) {
    const struct plan *plan = shard->config.plan;
    return plan->tensors[plan->pack_order[shard->blocks[index].plan->first_tensor]].dims == 1;
}

/* In the order in which a forward pass needs them, so that it can start on what has come: packs,
 * which hold vectors of all layers and stand behind the matrices in the plan; then the matrices in
 * the model's order. What becomes due meanwhile and is needed earlier goes first at the next
 * call. */
bool reply_flush(struct shard *shard) {
    bool sent = false;
    uint64_t packs = 0;
    while (shard->due > 0 && packs < shard->block_count &&
           is_pack(shard, shard->block_count - 1 - packs)) {
        packs++;
    }
    for (uint64_t i = 0; i < shard->block_count && shard->due > 0; i++) {
        uint64_t at = i < packs ? shard->block_count - packs + i : i - packs;
        struct shard_block *block = &shard->blocks[at];
        if (block->due > 0 && block->ready && (block->stirred || shard->released) &&
            !answer_block(shard, block, &sent)) {
            break;
        }
    }
    return sent;
}

/* ---- again ---- */

/* Weights that answer no request. */
static enum status send_greeting(struct shard *shard, uint32_t rank) {
    struct channel *channel = shard->config.channel;
    const struct frame frame = {.kind = FRAME_WEIGHTS,
                                .job = shard->config.job_id,
                                .epoch = shard->config.epoch,
                                .session = shard->ranks[rank].session,
                                .rank = (uint16_t)rank,
                                .payload_xxh3 = checksum_xxh3(NULL, 0)};
    uint8_t header[FRAME_BYTES];
    frame_encode(&frame, header);
    return channel->ops->send(channel, rank, header, NULL, 0, COOKIE_NO_BUFFER);
}

/* A worker that has pushed since has had its answer; so may others, who know it by its ticket. */
static void answer_again(struct shard *shard, uint32_t rank) {
    for (uint64_t i = 0; i < shard->block_count; i++) {
        struct shard_block *block = &shard->blocks[i];
        const struct shard_lane *lane = &block->lanes[rank];
        if (lane->ticket > 0 && lane->record.held_seq == 0) {
            reply_due(shard, block, rank);
        }
    }
}

void reply_redial(struct shard *shard, int64_t now_ns) {
    uint32_t rank;
    while (redial_next(&shard->redial, now_ns, &rank)) {
        enum status status = send_greeting(shard, rank);
        redial_greeted(&shard->redial, rank, status, now_ns);
        if (status == STATUS_AGAIN) {
            return;
        }
        if (status == STATUS_OK) {
            answer_again(shard, rank);
        }
    }
}
