/* mean.c - --optimizer worker:NAME: the mean gradient is the answer: see shard_parts.h.
 *
 * The sum waits until the first answer of its version can be sent, and is encoded then: no push of
 * the next round can be in before, since each worker's follows its answer. What feedback holds back
 * is the shard's own, and moves once a version.
 */
#include "base/log.h"
#include "proto/codec_id.h"
#include "server/shard_parts.h"

#include <inttypes.h>
#include <string.h>

enum status mean_init(struct shard *shard) {
    const struct shard_config *config = &shard->config;
    if (!job_workers_step(config->job)) {
        return STATUS_OK;
    }
    return push_codec_open(config->job, config->plan, shard->workers, config->id, &shard->mean);
}

size_t mean_bytes(const struct shard *shard) {
    size_t most = 0;
    for (uint64_t id = 0; id < shard->config.plan->block_count; id++) {
        size_t bytes = push_codec_bound(shard->mean, id);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Where first moments travel, each worker has clipped its own gradient. */
static float clip_of(const struct shard *shard, const struct shard_block *block,
                     const struct vote_verdict *verdict) {
    int64_t gradients = job_momentum_after(shard->config.job);
    return gradients > 0 && block->version >= (uint64_t)gradients ? 1.0F : verdict->scale;
}

void mean_decide(struct shard *shard, struct shard_block *block,
                 const struct vote_verdict *verdict) {
    float factor = clip_of(shard, block, verdict) * (1.0F / (float)block->weight);
    block->mean_factor = verdict->skip ? 0 : factor;
    reply_outdated(shard, block);
}

void mean_encode(struct shard *shard, struct shard_block *block, struct shard_buffer *buffer) {
    size_t count = (size_t)block->plan->count;
    struct encoder_result result = {.codec = CODEC_F32};
    if (block->mean_factor != 0) {
        for (size_t i = 0; i < count; i++) {
            block->sum[i] *= block->mean_factor;
        }
        push_codec_encode(shard->mean, block->plan->id, block->version, block->sum, buffer->bytes,
                          &result);
    }
    buffer->codec = result.codec;
    buffer->used = result.bytes;
    memset(block->sum, 0, count * sizeof(float));
}

bool mean_agrees(const struct shard *shard, const struct shard_block *block) {
    const struct shard_lane *first = NULL;
    for (uint32_t rank = 0; rank < shard->workers; rank++) {
        const struct shard_lane *lane = &block->lanes[rank];
        if (!lane->summed) {
            continue;
        }
        if (first != NULL && lane->held_check != first->held_check) {
            log_error("worker %u has other weights of block %" PRIu64 " than worker %td: its "
                      "memory or its build is not sound",
                      rank, block->plan->id, first - block->lanes);
            return false;
        }
        first = first != NULL ? first : lane;
    }
    return true;
}
