/* channel.h - a data channel: frames between shards and workers.
 *
 * Each owner (a shard thread, a worker's communication thread) opens one channel, publishes its
 * address by the control channel, and connects to the addresses of its peers, which it numbers
 * itself. Nothing blocks: send() starts a message, poll() returns what has happened since, AGAIN is
 * back-pressure. No callback of the owner runs inside the channel.
 * A received message lies in one of the channel's slots, in place, until the owner releases it;
 * when all slots are taken, further messages wait at the sender. Received headers and payloads are
 * unchecked: the owner runs frame_decode() and frame_check_payload(), and knows the sender by the
 * frame's session. Delivery may fail only together with the connection; the simulator (loop) may
 * also lose, repeat and reorder, which the protocol above survives.
 * CHANNEL_SENT may come only when the receiver has released the slot, since it may read the payload
 * where the sender has it (channel_shm.h): while it holds a slot, an owner must not wait for what
 * the sender does after that event.
 * A peer's number may be connected again, after a loss (redial.h) or to another address: what was
 * in flight to the old one ends with PEER_LOST, and may have come; what had left may not have.
 * One thread owns a channel; only it may call.
 */
#ifndef RUBATO_TRANSPORT_CHANNEL_H
#define RUBATO_TRANSPORT_CHANNEL_H

#include "base/memory.h"
#include "base/status.h"
#include "proto/frame.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHANNEL_ADDRESS_MAX ((size_t)4096)
#define CHANNEL_HOST        (-1) /* among the numbers of devices */

/* A peer's, as it came over the control channel. */
struct channel_address {
    size_t bytes;
    uint8_t data[CHANNEL_ADDRESS_MAX];
};

struct channel; /* each kind embeds it first */
struct device;  /* kernels/device.h */

enum channel_event_kind {
    CHANNEL_RECEIVED, /* slot, header, payload */
    CHANNEL_SENT, /* cookie, peer: the buffers are the owner's again; status says whether it left */
    /* peer: sends to it fail from now on; what it means, the control channel says. */
    CHANNEL_PEER_LOST
};

struct channel_event {
    enum channel_event_kind kind;
    uint32_t peer;
    uint64_t cookie;
    enum status status;
    uint32_t slot;
    const uint8_t *header;  /* [FRAME_BYTES], valid until the slot is released */
    const uint8_t *payload; /* [payload_bytes], likewise */
    size_t payload_bytes;
};

struct channel_config {
    uint32_t peers_max; /* numbers 0..peers_max-1 may be connected */
    uint32_t slots;     /* messages held at once */
    size_t slot_bytes;  /* largest payload that is taken; a longer one is dropped and counted */
    uint32_t sends_max; /* sends in flight; then AGAIN */
    /* Sends in flight to one peer; then AGAIN may come. 0: as many as there may be at all. */
    uint32_t peer_sends_max;
    /* [device_count] whose memory device_memory() will be asked for; open longer than this. */
    struct device *const *devices;
    int device_count; /* 0: payloads come from the host's memory alone */
};

struct channel_stats {
    uint64_t sent_bytes, received_bytes; /* headers included */
    uint64_t sent_frames, received_frames;
    uint64_t refused;      /* too long for a slot */
    uint32_t shared_peers; /* connected now by memory that they share with us */
};

struct channel_ops {
    const char *name;

    /* Frames may be lost while the peer lives (the simulator): unanswered ones must be repeated. */
    bool lossy;

    /* This channel's address -> address [*bytes], capacity CHANNEL_ADDRESS_MAX. */
    enum status (*address)(struct channel *channel, uint8_t *address, size_t *bytes);

    /* Peer `peer` is at `address`. PEER_LOST or INVALID, logged. UNSUPPORTED, logged: what it has
     * lost this channel cannot connect again. */
    enum status (*connect)(struct channel *channel, uint32_t peer, const uint8_t *address,
                           size_t bytes);

    /* `bytes` (>= 1) of zeroed memory -> *memory, aligned to MEMORY_ALIGN, of which payloads travel
     * best; it lives as long as the channel. UNSUPPORTED, as without this function: all memory is
     * the same to it; MEMORY, logged. See channel_memory(). */
    enum status (*memory)(struct channel *channel, size_t bytes, uint8_t **memory);

    /* From now on payloads may lie in memory [bytes] of the config's device of this number, too:
     * one piece a device, which must outlive the channel. 0 bytes: only asks. UNSUPPORTED, as
     * without this function: from this device the channel cannot send. Or CHANNEL_HOST: of the
     * host's, from where it sends anyway, but better what it was told of; UNSUPPORTED says nothing,
     * MEMORY, logged, that it may not be used. */
    enum status (*device_memory)(struct channel *channel, int device, const void *memory,
                                 size_t bytes);

    /* header [FRAME_BYTES] is copied; payload [payload_bytes] stays the channel's until its
     * CHANNEL_SENT. AGAIN: too many in flight. PEER_LOST: the peer is gone, or was never connected.
     * Then no event follows. */
    enum status (*send)(struct channel *channel, uint32_t peer, const uint8_t *header,
                        const uint8_t *payload, size_t payload_bytes, uint64_t cookie);

    /* Progress; then up to `capacity` events -> events. Returns how many. */
    size_t (*poll)(struct channel *channel, struct channel_event *events, size_t capacity);

    /* Gives a slot back. */
    void (*release)(struct channel *channel, uint32_t slot);

    /* Readable when poll() would return something; -1 in the simulator. */
    int (*wait_fd)(struct channel *channel);

    /* To be called before sleeping on wait_fd. AGAIN: something came in meanwhile, poll again. */
    enum status (*arm)(struct channel *channel);

    void (*stats)(const struct channel *channel, struct channel_stats *stats);

    /* Drops what is in flight and frees the channel. */
    void (*close)(struct channel *channel);
};

struct channel {
    const struct channel_ops *ops;
};

/* INVALID: longer than any. */
enum status channel_address_keep(struct channel_address *address, const uint8_t *data,
                                 size_t bytes) WARN_UNUSED;

/* Memory for payloads, as ops->memory says; where the channel has none of its own, it is taken into
 * `own`, which the caller frees by arena_free() (harmless on one that was not needed). A few times
 * a channel at most. MEMORY, logged. */
enum status channel_memory(struct channel *channel, size_t bytes, struct arena *own,
                           uint8_t **memory) WARN_UNUSED;

#endif
