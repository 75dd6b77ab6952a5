/* exchange_device.h - pushes of an exchange that are encoded on devices, where their values are.
 *
 * A block belongs to one of the devices (owner.h), which has its values and what its encoder holds
 * back. It is queued with an event behind which its values are final, so it may be handed over
 * while backward still computes them; a device's payloads are done in the order in which they were
 * queued.
 * Invariant: a payload leaves when it is done, and a worker computes a new gradient where the last
 * one was only once that is answered; so a device needs no wait for encoders before it overwrites a
 * gradient. What was made behind sums of a group that has ended does not leave. Where the channel
 * can send from the devices' memory, and nothing has +zstd, payloads stay on their blocks' devices.
 * The exchange's thread alone calls, and uses DEVICE_CODEC.
 */
#ifndef RUBATO_WORKER_EXCHANGE_DEVICE_H
#define RUBATO_WORKER_EXCHANGE_DEVICE_H

#include "compression/push_codec.h"
#include "kernels/group.h"
#include "proto/plan.h"
#include "transport/channel.h"

#include <stdbool.h>

/* Where gradients are: the caller's, open longer than what encodes there. */
struct exchange_devices {
    struct device *const *devices; /* [count], of one kind */
    int count;                     /* 0: on the host */
    struct group *group;           /* that sums among them; NULL: none does */
};

/* One of the devices. */
struct exchange_encoder {
    struct device *device;
    uint64_t *queued; /* [owned] a ring of ids: `count` from `first` on */
    uint64_t owned, first, count;
    int64_t moved_ns;  /* when one was done last; 0: one was queued since */
    uint8_t *kept;     /* [kept_bytes] where its payloads stay; NULL: they go to the host */
    size_t kept_bytes; /* that its blocks' payloads take */
    size_t placed;     /* bytes that blocks have been given */
};

struct exchange_device {
    struct push_codec *push; /* NULL: the host encodes */
    struct group *group;     /* or NULL */
    struct exchange_encoder encoders[GROUP_MAX];
    int encoder_count;
    uint8_t *owners;            /* [block_count] */
    struct device_event **done; /* [block_count] of their owners */
    uint64_t block_count;
    uint64_t count;     /* blocks that are queued, of all */
    bool stays;         /* payloads stay on the devices */
    uint8_t *pinned;    /* where they go on the host, if it could be pinned */
    int64_t timeout_ns; /* from when one was done last, until a device is taken to hang */
};

/* `push` encodes on the devices from now on; it and they must outlive it. Where it cannot, for want
 * of memory, the host encodes, and a line says so. */
void exchange_device_open(struct exchange_device *encoding, const struct exchange_devices *devices,
                          struct push_codec *push, const struct plan *plan, int64_t timeout_ns);

/* Payloads go to the host's memory [bytes], which is pinned; or, where nothing is packed, the
 * channel sends from each of the devices and each has enough memory, to theirs (`stays`): the host
 * must not touch it, and check-sums come with the results. */
void exchange_device_place(struct exchange_device *encoding, struct channel *channel, uint8_t *host,
                           size_t bytes);

/* After that, once a block: where its payload goes; `host` if it is to the host. */
uint8_t *exchange_device_wire(struct exchange_device *encoding, uint64_t id, uint8_t *host);

/* Waits for what is queued; while the host's memory is still there. Harmless on one that encodes
 * nothing. */
void exchange_device_close(struct exchange_device *encoding);

/* Gives back what payloads had on the devices: after that, and after the channel is closed. */
void exchange_device_free(struct exchange_device *encoding);

/* Queues block `id` of report `seq`: values [block.count] on its device, final behind `ready`, ->
 * wire, its place. */
void exchange_device_push(struct exchange_device *encoding, uint64_t id, uint64_t seq,
                          const float *values, const struct device_event *ready, uint8_t *wire);

/* A block that is done, with its result. AGAIN: there is none now. DEVICE, TIMEOUT: a device or the
 * group failed, or a device hangs; logged. */
enum status exchange_device_next(struct exchange_device *encoding, int64_t now_ns, uint64_t *id,
                                 struct encoder_result *result) WARN_UNUSED;

#endif
