#include "worker/raw_weights.h"

#include "base/log.h"
#include "compression/cast.h"
#include "compression/delta.h"
#include "kernels/compute.h"
#include "proto/codec_id.h"

#include <string.h>

bool raw_weights_wanted(const struct job *job, bool local, const struct device *device) {
    const char *why = NULL;
    uint8_t delta;
    if (device->compute->widen == NULL || strcmp(job->pull, "none") == 0) {
        return false;
    }
    if (job_workers_step(job)) {
        why = "gradients come, and steps are made there";
    } else if (local) {
        why = "local modes keep them there";
    } else if (delta_find(job->pull, &delta)) {
        why = "--pull delta-* moves what is there";
    }
    if (why != NULL) {
        log_info("weights are decoded on the host: %s", why);
        return false;
    }
    log_info("weights are decoded on %s", device->backend->name);
    return true;
}

enum status raw_weights_install(const struct raw_weights *raw, uint64_t block, uint8_t codec,
                                const uint8_t *payload, size_t bytes) {
    const struct plan_block *planned = &raw->plan->blocks[block];
    if ((codec != CODEC_F32 && codec != CODEC_BF16) ||
        bytes != cast_bytes(codec, (size_t)planned->count)) {
        return STATUS_CORRUPT;
    }
    memcpy(raw->values + planned->offset, payload, bytes);
    raw->codecs[block] = codec;
    return STATUS_OK;
}

/* In place, from the last value to the first: each takes the place of ones that are done. */
void raw_weights_decode(const struct raw_weights *raw, uint64_t block) {
    const struct plan_block *planned = &raw->plan->blocks[block];
    uint8_t *place = (uint8_t *)(raw->values + planned->offset);
    if (raw->codecs == NULL || raw->codecs[block] == CODEC_F32) {
        return;
    }
    for (size_t i = (size_t)planned->count; i-- > 0;) {
        uint16_t half;
        memcpy(&half, place + i * sizeof half, sizeof half);
        const uint32_t bits = (uint32_t)half << 16;
        memcpy(place + i * sizeof bits, &bits, sizeof bits);
    }
    raw->codecs[block] = CODEC_F32;
}

void raw_weights_decode_all(const struct raw_weights *raw) {
    for (uint64_t block = 0; raw->codecs != NULL && block < raw->plan->block_count; block++) {
        raw_weights_decode(raw, block);
    }
}

uint64_t raw_weights_block(const struct plan *plan, uint64_t at) {
    uint64_t first = 0;
    uint64_t end = plan->block_count;
    while (end - first > 1) {
        uint64_t middle = first + (end - first) / 2;
        if (plan->blocks[middle].offset <= at) {
            first = middle;
        } else {
            end = middle;
        }
    }
    return first;
}
