#include "worker/bucket.h"

#include "base/assert.h"
#include "base/memory.h"

#include <stdlib.h>

void bucket_init(struct bucket *bucket, const struct plan *plan) {
    bucket->plan = plan;
    bucket->first_block = memory_zeroed((size_t)plan->tensor_count, sizeof(uint64_t));
    bucket->last_block = memory_zeroed((size_t)plan->tensor_count, sizeof(uint64_t));
    bucket->waiting = memory_zeroed((size_t)plan->block_count, sizeof(uint64_t));
    for (uint64_t tensor = 0; tensor < plan->tensor_count; tensor++) {
        bucket->first_block[tensor] = UINT64_MAX;
    }
    for (uint64_t id = 0; id < plan->block_count; id++) {
        const struct plan_block *block = &plan->blocks[id];
        for (uint64_t i = 0; i < block->tensor_count; i++) {
            uint64_t tensor = plan->pack_order[block->first_tensor + i];
            if (bucket->first_block[tensor] == UINT64_MAX) {
                bucket->first_block[tensor] = id;
            }
            bucket->last_block[tensor] = id;
        }
    }
    bucket_reset(bucket);
}

void bucket_free(struct bucket *bucket) {
    free(bucket->first_block);
    free(bucket->last_block);
    free(bucket->waiting);
    *bucket = (struct bucket){0};
}

void bucket_reset(struct bucket *bucket) {
    for (uint64_t id = 0; id < bucket->plan->block_count; id++) {
        bucket->waiting[id] = bucket->plan->blocks[id].tensor_count;
    }
}

uint64_t bucket_mark(struct bucket *bucket, uint64_t tensor, uint64_t *ready) {
    uint64_t count = 0;
    for (uint64_t id = bucket->first_block[tensor]; id <= bucket->last_block[tensor]; id++) {
        ASSERT_OP(bucket->waiting[id], >, 0);
        bucket->waiting[id]--;
        if (bucket->waiting[id] == 0) {
            ready[count++] = id;
        }
    }
    return count;
}

uint64_t bucket_most(const struct bucket *bucket) {
    uint64_t most = 0;
    for (uint64_t tensor = 0; tensor < bucket->plan->tensor_count; tensor++) {
        uint64_t touched = bucket->last_block[tensor] - bucket->first_block[tensor] + 1;
        most = touched > most ? touched : most;
    }
    return most;
}
