/* exchange_device.h - the pushes of an exchange that are encoded on a device, where their values
 * are.
 *
 * A block is queued with an event behind which its values are final, so it may be handed over while
 * backward still computes them; payloads are done in the order in which they were queued.
 * Invariant: a payload leaves when it is done, and a worker computes a new gradient where the last
 * one was only once that is answered; so the device needs no wait for encoders before it
 * overwrites a gradient.
 * The exchange's thread alone calls, and uses DEVICE_CODEC.
 */
#ifndef RUBATO_WORKER_EXCHANGE_DEVICE_H
#define RUBATO_WORKER_EXCHANGE_DEVICE_H

#include "compression/push_codec.h"
#include "kernels/device.h"

#include <stdbool.h>

struct exchange_device {
    struct device *device; /* NULL: the host encodes */
    struct push_codec *push;
    uint8_t *pinned;            /* where payloads go, if it could be pinned */
    struct device_event **done; /* [block_count] */
    uint64_t *queued;           /* [block_count] a ring of ids: `count` from `first` on */
    uint64_t block_count, first, count;
    int64_t moved_ns;   /* when one was done last; 0: one was queued since */
    int64_t timeout_ns; /* from then on the device hangs */
};

/* `push` encodes on the device from now on, into wire [wire_bytes]; they must outlive it. Where it
 * cannot, for want of a codec or of memory, the host encodes, and a line says so. */
void exchange_device_open(struct exchange_device *encoding, struct device *device,
                          struct push_codec *push, uint64_t block_count, uint8_t *wire,
                          size_t wire_bytes, int64_t timeout_ns);

/* Waits for what is queued; while the wire is still there. Harmless on one that encodes nothing. */
void exchange_device_close(struct exchange_device *encoding);

/* Queues block `id` of report `seq`: values [block.count] on the device, final behind `ready`, ->
 * wire, its place in the one of open. */
void exchange_device_push(struct exchange_device *encoding, uint64_t id, uint64_t seq,
                          const float *values, const struct device_event *ready, uint8_t *wire);

/* The next block that is done, with its result. AGAIN: there is none now. DEVICE, TIMEOUT: the
 * device failed, or hangs; logged. */
enum status exchange_device_next(struct exchange_device *encoding, int64_t now_ns, uint64_t *id,
                                 struct encoder_result *result) WARN_UNUSED;

#endif
