/* fake_channel.h - a data channel made by hand: the test injects its events, and it records what is
 * sent.
 *
 * It watches its owner, too: a slot is released once and only while it is taken, and a payload does
 * not change between send() and the CHANNEL_SENT that the test injects. Peers need no connecting,
 * but those that are lost are there again when they are connected.
 */
#ifndef RUBATO_TESTS_FAKE_CHANNEL_H
#define RUBATO_TESTS_FAKE_CHANNEL_H

#include "transport/channel.h"

#include <stdbool.h>

enum { FAKE_SLOTS = 256, FAKE_EVENTS = 512, FAKE_SENDS = 4096, FAKE_PEERS = 8, FAKE_BYTES = 1024 };

struct fake_send {
    uint32_t peer;
    uint64_t cookie;
    struct frame frame;
    uint8_t header[FRAME_BYTES];
    const uint8_t *payload; /* the owner's */
    uint8_t copy[FAKE_BYTES];
    size_t bytes;
    bool over; /* its CHANNEL_SENT was injected */
};

struct fake_channel {
    struct channel channel; /* first */
    struct channel_event events[FAKE_EVENTS];
    uint32_t event_head, event_count;
    bool taken[FAKE_SLOTS];
    uint8_t headers[FAKE_SLOTS][FRAME_BYTES];
    uint8_t payloads[FAKE_SLOTS][FAKE_BYTES];
    struct fake_send *sends; /* [FAKE_SENDS] all since the start */
    uint32_t send_count;
    uint32_t room; /* sends that are taken before AGAIN */
    bool lost[FAKE_PEERS];
    uint32_t connects[FAKE_PEERS];
    enum status connect_status; /* of those to come */
    bool closed;
};

/* Open, with room for any number of sends. Its owner closes it by its ops. */
void fake_channel_open(struct fake_channel *fake);

/* Slots that the owner holds, or that wait in events. */
uint32_t fake_channel_taken(const struct fake_channel *fake);

/* The next poll's next event. */
void fake_channel_event(struct fake_channel *fake, const struct channel_event *event);

/* The peer is lost from now on, as the next poll's next event says. */
void fake_channel_lose(struct fake_channel *fake, uint32_t peer);

/* The peers' addresses, as connect() expects them. */
extern const struct channel_address fake_channel_addresses[FAKE_PEERS];

/* A message comes in as it is: header [FRAME_BYTES], payload [bytes]. */
void fake_channel_receive_raw(struct fake_channel *fake, const uint8_t *header, const void *payload,
                              size_t bytes);

/* A frame comes in, with the length and checksum of its payload [bytes]. */
void fake_channel_receive(struct fake_channel *fake, const struct frame *frame, const void *payload,
                          size_t bytes);

/* Send number `index` is over. */
void fake_channel_finish(struct fake_channel *fake, uint32_t index, enum status status);

/* All sends that are not yet over are. */
void fake_channel_finish_all(struct fake_channel *fake);

#endif
