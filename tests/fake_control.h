/* fake_control.h - a control object made by hand: the test scripts its events, and it records what
 * is dialled, sent and hung up. It knows one connection at a time, to host "h", port "7".
 */
#ifndef RUBATO_TESTS_FAKE_CONTROL_H
#define RUBATO_TESTS_FAKE_CONTROL_H

#include "test.h"
#include "transport/control.h"

struct fake {
    struct control control; /* first */
    struct control_event events[16];
    uint8_t packets[16][8192];
    uint32_t event_head, event_count;
    uint32_t dials, hang_ups;
    enum status dial_status, send_status;
    uint32_t sent[32]; /* by body case */
    uint8_t last[65536];
    size_t last_bytes;
};

static inline enum status fake_dial(struct control *control, const char *host, const char *port,
                                    uint32_t *connection) {
    struct fake *fake = (struct fake *)control;
    CHECK_TEXT(host, "h");
    CHECK_TEXT(port, "7");
    *connection = fake->dials++;
    return fake->dial_status;
}

static inline enum status fake_send(struct control *control, uint32_t connection,
                                    const uint8_t *packet, size_t bytes) {
    struct fake *fake = (struct fake *)control;
    CHECK_INT(connection, fake->dials - 1);
    CHECK(bytes >= 2 && bytes <= sizeof(fake->last));
    memcpy(fake->last, packet, bytes);
    fake->last_bytes = bytes;
    // The body's field number is its tag's upper bits, in one or two bytes of a varint.
    uint32_t tag = packet[0] < 128 ? packet[0] : (uint32_t)(packet[0] & 127) | packet[1] << 7;
    fake->sent[tag >> 3]++;
    return fake->send_status;
}

static inline bool fake_poll(struct control *control, int64_t now_ns, struct control_event *event) {
    struct fake *fake = (struct fake *)control;
    (void)now_ns;
    if (fake->event_head == fake->event_count) {
        fake->event_head = fake->event_count = 0;
        return false;
    }
    *event = fake->events[fake->event_head++];
    return true;
}

static inline void fake_hang_up(struct control *control, uint32_t connection) {
    struct fake *fake = (struct fake *)control;
    CHECK_INT(connection, fake->dials - 1);
    fake->hang_ups++;
}

#endif
