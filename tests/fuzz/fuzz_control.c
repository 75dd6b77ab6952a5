/* fuzz_control.c - bytes from a stranger into the control channel's listening side.
 *
 * The first byte says whether there is a key (bit 0), whether the bytes come in small pieces (bit
 * 1), and whether the preamble goes before them (bit 2), so that the packets' parser is reached
 * too. What must hold: no crash; with a key nothing is ever reported; without one, nothing before
 * the preamble, packets within their limits and as long as the bytes that were sent, at most one
 * OPENED and one CLOSED; and after the limits in time have passed the connection is gone.
 * Build: clang -fsanitize=fuzzer,address,undefined with the libraries transport, proto and base.
 */
#include "base/assert.h"
#include "base/clock.h"
#include "proto/message.h"
#include "transport/control_tcp.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

struct tally {
    int opened, closed;
    size_t packet_bytes;
};

static void drain(struct control *control, int64_t now_ns, struct tally *tally) {
    struct control_event event;
    while (control->ops->poll(control, now_ns, &event)) {
        switch (event.kind) {
        case CONTROL_OPENED:
            ASSERT(tally->opened == 0 && event.incoming);
            tally->opened++;
            break;
        case CONTROL_PACKET:
            ASSERT(tally->opened == 1 && tally->closed == 0);
            ASSERT(event.packet_bytes >= 1 && event.packet_bytes <= MESSAGE_MAX);
            tally->packet_bytes += event.packet_bytes + 4;
            // Both ends are read, so that a wrong pointer is seen.
            ASSERT(event.packet[0] + event.packet[event.packet_bytes - 1] >= 0);
            break;
        case CONTROL_CLOSED:
            ASSERT(tally->opened == 1 && tally->closed == 0);
            tally->closed++;
            break;
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const uint8_t key[CONTROL_KEY_BYTES] = {42};
    struct control *control;
    struct tally tally = {0};
    int ends[2];
    if (bytes < 1) return 0;
    uint8_t choice = data[0];
    data++;
    bytes--;
    if (control_tcp_open(&control, choice & 1 ? key : NULL) != STATUS_OK) abort();
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) abort();
    control_tcp_adopt(control, ends[1]);
    if (choice & 4) ASSERT_OP(send(ends[0], "RBTCTL1\n", 8, MSG_NOSIGNAL), ==, 8);
    for (size_t sent = 0; sent < bytes;) {
        size_t piece = choice & 2 ? 7 : 4096;
        if (piece > bytes - sent) piece = bytes - sent;
        ssize_t put = send(ends[0], data + sent, piece, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (put <= 0) break;
        sent += (size_t)put;
        drain(control, CLOCK_S, &tally);
    }
    drain(control, CLOCK_S, &tally);
    drain(control, 10 * CLOCK_S, &tally);
    close(ends[0]);
    drain(control, 20 * CLOCK_S, &tally);
    ASSERT(!(choice & 1) || tally.opened == 0);
    ASSERT_OP(tally.opened, ==, tally.closed);
    ASSERT(tally.packet_bytes <= bytes);
    control->ops->close(control, 0);
    return 0;
}
