#include "tests/fake_channel.h"

#include "base/checksum.h"
#include "base/memory.h"
#include "tests/test.h"

static enum status fake_channel_send(struct channel *channel, uint32_t peer, const uint8_t *header,
                                     const uint8_t *payload, size_t bytes, uint64_t cookie) {
    struct fake_channel *fake = (struct fake_channel *)channel;
    CHECK(peer < FAKE_PEERS);
    if (fake->lost[peer]) {
        return STATUS_PEER_LOST;
    }
    if (fake->room == 0) {
        return STATUS_AGAIN;
    }
    fake->room -= fake->room != UINT32_MAX ? 1 : 0;
    CHECK(fake->send_count < FAKE_SENDS && bytes <= FAKE_BYTES);
    struct fake_send *send = &fake->sends[fake->send_count++];
    *send = (struct fake_send){.peer = peer, .cookie = cookie, .payload = payload, .bytes = bytes};
    memcpy(send->header, header, FRAME_BYTES);
    if (bytes > 0) {
        memcpy(send->copy, payload, bytes);
    }
    /* What leaves must be sound: it is what the other side checks first. */
    CHECK_INT(frame_decode(header, &send->frame), STATUS_OK);
    CHECK_INT(frame_check_payload(&send->frame, payload, bytes), STATUS_OK);
    return STATUS_OK;
}

const struct channel_address fake_channel_addresses[FAKE_PEERS] = {
    {1, {0}}, {1, {1}}, {1, {2}}, {1, {3}}, {1, {4}}, {1, {5}}, {1, {6}}, {1, {7}}};

static enum status fake_channel_connect(struct channel *channel, uint32_t peer,
                                        const uint8_t *address, size_t bytes) {
    struct fake_channel *fake = (struct fake_channel *)channel;
    CHECK(peer < FAKE_PEERS && bytes == 1 && address[0] == peer);
    fake->connects[peer]++;
    if (fake->connect_status == STATUS_OK) fake->lost[peer] = false;
    return fake->connect_status;
}

static size_t fake_channel_poll(struct channel *channel, struct channel_event *events,
                                size_t capacity) {
    struct fake_channel *fake = (struct fake_channel *)channel;
    size_t count = 0;
    while (count < capacity && fake->event_head < fake->event_count) {
        events[count++] = fake->events[fake->event_head++];
    }
    if (fake->event_head == fake->event_count) {
        fake->event_head = fake->event_count = 0;
    }
    return count;
}

static void fake_channel_release(struct channel *channel, uint32_t slot) {
    struct fake_channel *fake = (struct fake_channel *)channel;
    CHECK(slot < FAKE_SLOTS && fake->taken[slot]);
    fake->taken[slot] = false;
    /* The memory is anyone's now: who still reads it gets what is no frame. */
    memset(fake->headers[slot], 0xee, FRAME_BYTES);
    memset(fake->payloads[slot], 0xee, FAKE_BYTES);
}

static void fake_channel_close(struct channel *channel) {
    struct fake_channel *fake = (struct fake_channel *)channel;
    CHECK(!fake->closed);
    fake->closed = true;
    free(fake->sends);
    fake->sends = NULL;
}

static const struct channel_ops fake_channel_ops = {.name = "fake",
                                                    .lossy = true,
                                                    .connect = fake_channel_connect,
                                                    .send = fake_channel_send,
                                                    .poll = fake_channel_poll,
                                                    .release = fake_channel_release,
                                                    .close = fake_channel_close};

void fake_channel_open(struct fake_channel *fake) {
    memset(fake, 0, sizeof *fake);
    fake->channel.ops = &fake_channel_ops;
    fake->room = UINT32_MAX;
    fake->sends = memory_zeroed(FAKE_SENDS, sizeof *fake->sends);
}

void fake_channel_lose(struct fake_channel *fake, uint32_t peer) {
    fake->lost[peer] = true;
    fake_channel_event(fake, &(struct channel_event){.kind = CHANNEL_PEER_LOST, .peer = peer});
}

uint32_t fake_channel_taken(const struct fake_channel *fake) {
    uint32_t count = 0;
    for (uint32_t slot = 0; slot < FAKE_SLOTS; slot++) {
        count += fake->taken[slot] ? 1 : 0;
    }
    return count;
}

void fake_channel_event(struct fake_channel *fake, const struct channel_event *event) {
    CHECK(fake->event_count < FAKE_EVENTS);
    fake->events[fake->event_count++] = *event;
}

void fake_channel_receive_raw(struct fake_channel *fake, const uint8_t *header, const void *payload,
                              size_t bytes) {
    uint32_t slot = 0;
    while (slot < FAKE_SLOTS && fake->taken[slot]) {
        slot++;
    }
    CHECK(slot < FAKE_SLOTS && bytes <= FAKE_BYTES);
    fake->taken[slot] = true;
    memcpy(fake->headers[slot], header, FRAME_BYTES);
    if (bytes > 0) {
        memcpy(fake->payloads[slot], payload, bytes);
    }
    fake_channel_event(fake, &(struct channel_event){.kind = CHANNEL_RECEIVED,
                                                     .slot = slot,
                                                     .header = fake->headers[slot],
                                                     .payload = fake->payloads[slot],
                                                     .payload_bytes = bytes});
}

void fake_channel_receive(struct fake_channel *fake, const struct frame *frame, const void *payload,
                          size_t bytes) {
    uint8_t header[FRAME_BYTES];
    struct frame sound = *frame;
    sound.payload_bytes = (uint32_t)bytes;
    sound.payload_xxh3 = checksum_xxh3(payload, bytes);
    frame_encode(&sound, header);
    fake_channel_receive_raw(fake, header, payload, bytes);
}

void fake_channel_finish(struct fake_channel *fake, uint32_t index, enum status status) {
    CHECK(index < fake->send_count);
    struct fake_send *send = &fake->sends[index];
    CHECK(!send->over);
    send->over = true;
    CHECK(send->bytes == 0 || memcmp(send->payload, send->copy, send->bytes) == 0);
    fake_channel_event(fake, &(struct channel_event){.kind = CHANNEL_SENT,
                                                     .peer = send->peer,
                                                     .cookie = send->cookie,
                                                     .status = status});
}

void fake_channel_finish_all(struct fake_channel *fake) {
    for (uint32_t i = 0; i < fake->send_count; i++) {
        if (!fake->sends[i].over) {
            fake_channel_finish(fake, i, STATUS_OK);
        }
    }
}
