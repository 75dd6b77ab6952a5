#include "worker/exchange_device.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "worker/owner.h"

#include <stdio.h>
#include <stdlib.h>

static struct exchange_encoder *encoder_of(struct exchange_device *encoding, uint64_t id) {
    return &encoding->encoders[encoding->owners[id]];
}

static void open_queues(struct exchange_device *encoding, const struct exchange_devices *devices) {
    for (uint64_t id = 0; id < encoding->block_count; id++)
        encoder_of(encoding, id)->owned++;
    for (int i = 0; i < devices->count; i++) {
        struct exchange_encoder *encoder = &encoding->encoders[i];
        encoder->device = devices->devices[i];
        encoder->queued = memory_zeroed((size_t)encoder->owned, sizeof *encoder->queued);
    }
    for (uint64_t id = 0; id < encoding->block_count; id++)
        encoding->done[id] = device_event_open(encoder_of(encoding, id)->device);
}

/* As --device names them. */
static void log_devices(const struct exchange_devices *devices) {
    char text[8 * GROUP_MAX] = "";
    size_t end = 0;
    for (int i = 0; i < devices->count && end < sizeof text; i++)
        end += (size_t)snprintf(text + end, sizeof text - end, "%s%d", i > 0 ? "," : "",
                                devices->devices[i]->index);
    log_info("pushes are encoded on %s:%s", devices->devices[0]->backend->name, text);
}

void exchange_device_open(struct exchange_device *encoding, const struct exchange_devices *devices,
                          struct push_codec *push, const struct plan *plan, int64_t timeout_ns) {
    size_t blocks = (size_t)plan->block_count;
    uint8_t *owners = memory_zeroed(blocks, sizeof *owners);
    owner_assign(plan, devices->count, owners);
    enum status status = push_codec_use_devices(push, devices->devices, devices->count, owners);
    if (status != STATUS_OK) {
        log_warn("pushes are encoded on the host: a device has no memory left for it");
        free(owners);
        return;
    }
    *encoding = (struct exchange_device){.push = push,
                                         .group = devices->group,
                                         .encoder_count = devices->count,
                                         .owners = owners,
                                         .block_count = plan->block_count,
                                         .timeout_ns = timeout_ns};
    encoding->done = memory_zeroed(blocks, sizeof(struct device_event *));
    open_queues(encoding, devices);
    log_devices(devices);
}

static size_t wire_bytes(const struct exchange_device *encoding, uint64_t id) {
    return arena_need(push_codec_bound(encoding->push, id));
}

static bool channel_sends(struct channel *channel, int device, const void *memory, size_t bytes) {
    return channel->ops->device_memory != NULL &&
           channel->ops->device_memory(channel, device, memory, bytes) == STATUS_OK;
}

/* Memory on each device, which its blocks' payloads leave from. False: one has not enough. */
static bool keep(struct exchange_device *encoding, struct channel *channel) {
    for (uint64_t id = 0; id < encoding->block_count; id++)
        encoder_of(encoding, id)->kept_bytes += wire_bytes(encoding, id);
    for (int i = 0; i < encoding->encoder_count; i++) {
        struct exchange_encoder *encoder = &encoding->encoders[i];
        if (encoder->kept_bytes == 0) continue;
        encoder->kept = device_take(encoder->device, encoder->kept_bytes);
        if (encoder->kept == NULL) return false;
    }
    bool sends = true;
    for (int i = 0; i < encoding->encoder_count && sends; i++) {
        const struct exchange_encoder *encoder = &encoding->encoders[i];
        sends = channel_sends(channel, i, encoder->kept, encoder->kept_bytes);
    }
    return sends;
}

void exchange_device_place(struct exchange_device *encoding, struct channel *channel, uint8_t *host,
                           size_t bytes) {
    struct device *first = encoding->encoders[0].device;
    bool can = !push_codec_packs(encoding->push);
    for (int i = 0; i < encoding->encoder_count && can; i++)
        can = channel_sends(channel, i, NULL, 0);
    encoding->stays = can && keep(encoding, channel);
    if (can)
        log_info("payloads of pushes leave from the memory of the %s%s",
                 encoding->stays ? "device" : "host",
                 encoding->stays && encoding->encoder_count > 1 ? "s" : "");
    if (encoding->stays) return;
    exchange_device_free(encoding);
    encoding->pinned = device_pin(first, host, bytes) ? host : NULL;
}

uint8_t *exchange_device_wire(struct exchange_device *encoding, uint64_t id, uint8_t *host) {
    struct exchange_encoder *encoder = encoder_of(encoding, id);
    if (!encoding->stays) return host;
    uint8_t *wire = encoder->kept + encoder->placed;
    encoder->placed += wire_bytes(encoding, id);
    ASSERT_OP(encoder->placed, <=, encoder->kept_bytes);
    return wire;
}

void exchange_device_free(struct exchange_device *encoding) {
    for (int i = 0; i < encoding->encoder_count; i++) {
        device_give(encoding->encoders[i].device, encoding->encoders[i].kept);
        encoding->encoders[i].kept = NULL;
    }
}

void exchange_device_close(struct exchange_device *encoding) {
    if (encoding->push == NULL) return;
    push_codec_leave_devices(encoding->push); /* waits */
    if (encoding->pinned != NULL) device_unpin(encoding->encoders[0].device, encoding->pinned);
    for (uint64_t id = 0; id < encoding->block_count; id++)
        device_event_close(encoder_of(encoding, id)->device, encoding->done[id]);
    for (int i = 0; i < encoding->encoder_count; i++)
        free(encoding->encoders[i].queued);
    free(encoding->done);
    free(encoding->owners);
    encoding->push = NULL;
}

void exchange_device_push(struct exchange_device *encoding, uint64_t id, uint64_t seq,
                          const float *values, const struct device_event *ready, uint8_t *wire) {
    struct exchange_encoder *encoder = encoder_of(encoding, id);
    ASSERT_OP(encoder->count, <, encoder->owned);
    device_event_wait(encoder->device, DEVICE_CODEC, ready);
    push_codec_queue(encoding->push, id, seq, values, wire, encoding->stays);
    device_event_record(encoder->device, encoding->done[id], DEVICE_CODEC);
    encoder->queued[(encoder->first + encoder->count++) % encoder->owned] = id;
    encoder->moved_ns = 0;
    encoding->count++;
}

/* Whether the device's next payload is done: OK, AGAIN, or what failed. */
static enum status next_done(const struct exchange_device *encoding,
                             struct exchange_encoder *encoder, int64_t now_ns) {
    if (encoder->count == 0) return STATUS_AGAIN;
    uint64_t next = encoder->queued[encoder->first];
    enum status status = device_done(encoder->device, encoding->done[next]);
    if (encoder->moved_ns == 0) encoder->moved_ns = now_ns;
    if (status == STATUS_AGAIN && now_ns - encoder->moved_ns > encoding->timeout_ns) {
        log_error("%s:%d has not encoded the push of block %llu for %.0f s: it hangs",
                  encoder->device->backend->name, encoder->device->index, (unsigned long long)next,
                  (double)encoding->timeout_ns / (double)CLOCK_S);
        return STATUS_TIMEOUT;
    }
    /* A group that ends lets go of what waited for its sums. */
    if (status == STATUS_OK && encoding->group != NULL &&
        group_status(encoding->group) != STATUS_OK)
        return STATUS_DEVICE;
    return status;
}

enum status exchange_device_next(struct exchange_device *encoding, int64_t now_ns, uint64_t *id,
                                 struct encoder_result *result) {
    for (int i = 0; i < encoding->encoder_count; i++) {
        struct exchange_encoder *encoder = &encoding->encoders[i];
        enum status status = next_done(encoding, encoder, now_ns);
        if (status == STATUS_AGAIN) continue;
        if (status != STATUS_OK) return status;
        *id = encoder->queued[encoder->first];
        push_codec_result(encoding->push, *id, result);
        encoder->first = (encoder->first + 1) % encoder->owned;
        encoder->count--;
        encoder->moved_ns = now_ns;
        encoding->count--;
        return STATUS_OK;
    }
    return STATUS_AGAIN;
}
