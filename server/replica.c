/* replica.c - --pull delta-*: what the workers have of a block, and the last steps to there.
 *
 * The replica moves once a version, when the first answer of it is due, however many workers get
 * it. Each step is kept as its bytes, with the place that it starts from, until newer ones take its
 * room; there is room for as many as are cheaper on the wire than the whole replica.
 */
#include "base/assert.h"
#include "server/shard_parts.h"

#include <string.h>

static bool has_replica(const struct shard *shard, const struct plan_block *plan) {
    return shard->delta != CODEC_F32 && plan->fragment != PLAN_FROZEN;
}

size_t replica_bytes(const struct shard *shard, const struct plan_block *plan) {
    size_t count = (size_t)plan->count;
    if (!has_replica(shard, plan)) {
        return 0;
    }
    return arena_need(count * sizeof(float)) +
           arena_need(delta_steps_max(shard->delta, count) * delta_step_bytes(shard->delta, count));
}

void replica_init(struct shard *shard, struct shard_block *block) {
    size_t count = (size_t)block->plan->count;
    if (!has_replica(shard, block->plan)) {
        return;
    }
    struct shard_replica *replica = &block->replica;
    size_t step_bytes = delta_step_bytes(shard->delta, count);
    replica->values = arena_take(&shard->arena, count * sizeof(float));
    replica->steps_max = (uint32_t)delta_steps_max(shard->delta, count);
    ASSERT_OP(replica->steps_max, <=, DELTA_STEPS_TOP);
    replica->bytes = arena_take(&shard->arena, replica->steps_max * step_bytes);
}

void replica_follow(const struct shard *shard, struct shard_block *block) {
    struct shard_replica *replica = &block->replica;
    size_t count = (size_t)block->plan->count;
    struct delta_place from = replica->at;
    if (from.check != DELTA_NONE && from.version == block->version) {
        return;
    }
    uint8_t *step = replica->bytes + replica->next * delta_step_bytes(shard->delta, count);
    if (replica->steps_max > 0 && from.check != DELTA_NONE &&
        delta_encode_step(shard->delta, block->weights, replica->values, count, step)) {
        replica->from[replica->next] = from;
        replica->next = (replica->next + 1) % replica->steps_max;
        replica->steps += replica->steps < replica->steps_max ? 1 : 0;
    } else {
        delta_rebase(block->weights, replica->values, count);
        replica->steps = 0;
    }
    replica->at = (struct delta_place){.version = block->version,
                                       .check = delta_check(replica->values, count)};
}

static bool same(const struct delta_place *a, const struct delta_place *b) {
    return a->version == b->version && a->check == b->check;
}

uint32_t replica_steps_from(const struct shard_block *block, const struct delta_place *place) {
    const struct shard_replica *replica = &block->replica;
    uint32_t most = replica->steps_max;
    if (most == 0 || place->check == DELTA_NONE) {
        return REPLICA_WHOLE;
    }
    if (same(&replica->at, place)) {
        return 0;
    }
    for (uint32_t i = 1; i <= replica->steps; i++) {
        if (same(&replica->from[(replica->next + most - i) % most], place)) {
            return i;
        }
    }
    return REPLICA_WHOLE;
}

size_t replica_encode(const struct shard *shard, const struct shard_block *block, uint32_t steps,
                      uint8_t *payload) {
    const struct shard_replica *replica = &block->replica;
    size_t step_bytes = delta_step_bytes(shard->delta, (size_t)block->plan->count);
    uint32_t most = replica->steps_max;
    uint32_t first = (replica->next + most - steps) % most;
    ASSERT_OP(steps, <=, replica->steps);
    delta_head_put(payload, steps > 0 ? &replica->from[first] : &replica->at, replica->at.check,
                   steps);
    for (uint32_t i = 0; i < steps; i++) {
        memcpy(payload + DELTA_HEAD + i * step_bytes,
               replica->bytes + (first + i) % most * step_bytes, step_bytes);
    }
    return DELTA_HEAD + steps * step_bytes;
}
