#include "worker/exchange_device.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

#include <stdlib.h>

void exchange_device_open(struct exchange_device *encoding, struct device *device,
                          struct push_codec *push, uint64_t block_count, uint8_t *wire,
                          size_t wire_bytes, int64_t timeout_ns) {
    enum status status = push_codec_use_device(push, device);
    if (status != STATUS_OK) {
        if (status != STATUS_UNSUPPORTED)
            log_warn("pushes are encoded on the host: %s:%d has no memory left for it",
                     device->backend->name, device->index);
        return;
    }
    *encoding = (struct exchange_device){
        .device = device, .push = push, .block_count = block_count, .timeout_ns = timeout_ns};
    encoding->done = memory_zeroed((size_t)block_count, sizeof(struct device_event *));
    encoding->queued = memory_zeroed((size_t)block_count, sizeof *encoding->queued);
    for (uint64_t id = 0; id < block_count; id++)
        encoding->done[id] = device_event_open(device);
    encoding->pinned = device_pin(device, wire, wire_bytes) ? wire : NULL;
    log_info("pushes are encoded on %s:%d", device->backend->name, device->index);
}

void exchange_device_close(struct exchange_device *encoding) {
    struct device *device = encoding->device;
    if (device == NULL) return;
    push_codec_leave_device(encoding->push); /* waits */
    if (encoding->pinned != NULL) device_unpin(device, encoding->pinned);
    for (uint64_t id = 0; id < encoding->block_count; id++)
        device_event_close(device, encoding->done[id]);
    free(encoding->done);
    free(encoding->queued);
    *encoding = (struct exchange_device){0};
}

void exchange_device_push(struct exchange_device *encoding, uint64_t id, uint64_t seq,
                          const float *values, const struct device_event *ready, uint8_t *wire) {
    struct device *device = encoding->device;
    ASSERT_OP(encoding->count, <, encoding->block_count);
    device_event_wait(device, DEVICE_CODEC, ready);
    push_codec_queue(encoding->push, id, seq, values, wire);
    device_event_record(device, encoding->done[id], DEVICE_CODEC);
    encoding->queued[(encoding->first + encoding->count++) % encoding->block_count] = id;
    encoding->moved_ns = 0;
}

enum status exchange_device_next(struct exchange_device *encoding, int64_t now_ns, uint64_t *id,
                                 struct encoder_result *result) {
    if (encoding->count == 0) return STATUS_AGAIN;
    uint64_t next = encoding->queued[encoding->first];
    enum status status = device_done(encoding->device, encoding->done[next]);
    if (encoding->moved_ns == 0) encoding->moved_ns = now_ns;
    if (status == STATUS_AGAIN && now_ns - encoding->moved_ns > encoding->timeout_ns) {
        log_error("%s:%d has not encoded the push of block %llu for %.0f s: it hangs",
                  encoding->device->backend->name, encoding->device->index,
                  (unsigned long long)next, (double)encoding->timeout_ns / (double)CLOCK_S);
        return STATUS_TIMEOUT;
    }
    if (status != STATUS_OK) return status;
    push_codec_result(encoding->push, next, result);
    *id = next;
    encoding->first = (encoding->first + 1) % encoding->block_count;
    encoding->count--;
    encoding->moved_ns = now_ns;
    return STATUS_OK;
}
