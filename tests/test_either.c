/* Proves that one channel serves peers by shared memory and by the network at the same time.
 *
 * UCX over the loopback interface is the network, all ends are in this thread. Every pair of kinds
 * that two sides can have either meets by shared memory first, or is refused with a reason; an
 * address that says another host goes by the network; slots of both parts are held at once and
 * given back; either part ends arm()'s sleep; a peer that changes its kind is lost only when the
 * kind that it has now says so. The battery of channel_battery.h runs over the pair, too.
 */
#include "base/checksum.h"
#include "base/log.h"
#include "tests/channel_battery.h"
#include "tests/test.h"
#include "transport/channel_shm.h"
#include "transport/channel_ucx.h"
#include "transport/either.h"
#include "transport/shm_address.h"

#include <poll.h>
#include <unistd.h>

enum { HEAD_BYTES = 16 };

static struct channel *open_kinds(bool shm, bool net) {
    struct channel *parts[2] = {NULL, NULL}, *channel = NULL;
    if (shm) CHECK_INT(channel_shm_open(&parts[0], &channel_battery_config), STATUS_OK);
    if (net) CHECK_INT(channel_ucx_open(&parts[1], &channel_battery_config, "lo", ""), STATUS_OK);
    CHECK_INT(either_open(parts[0], parts[1], &channel_battery_config, &channel), STATUS_OK);
    return channel;
}

/* Progress of `other` without its events, until `channel` has one of this kind. */
static struct channel_event wait_for(struct channel *channel, struct channel *other,
                                     enum channel_event_kind kind) {
    int64_t end_ns = clock_now_ns() + CHANNEL_BATTERY_DEADLINE_NS;
    for (;;) {
        struct channel_event event;
        CHECK(clock_now_ns() < end_ns);
        (void)other->ops->poll(other, &event, 0);
        if (channel->ops->poll(channel, &event, 1) == 0) continue;
        if (event.kind == kind) return event;
    }
}

static void send_one(struct channel *from, uint32_t peer, uint64_t id, uint8_t *payload,
                     size_t bytes) {
    uint8_t header[FRAME_BYTES];
    channel_battery_fill(id, header, payload, bytes);
    CHECK_INT(from->ops->send(from, peer, header, payload, bytes, id), STATUS_OK);
}

static uint32_t shared(const struct channel *channel) {
    struct channel_stats stats;
    channel->ops->stats(channel, &stats);
    return stats.shared_peers;
}

/* The address of `to`; `far`: as one of another host. */
static enum status connect_to(struct channel *from, uint32_t peer, struct channel *to, bool far) {
    uint8_t address[CHANNEL_ADDRESS_MAX];
    size_t bytes = 0;
    CHECK_INT(to->ops->address(to, address, &bytes), STATUS_OK);
    if (far) {
        struct shm_address part;
        memcpy(&part, address + HEAD_BYTES, sizeof part);
        part.boot[0] ^= 1;
        part.crc32c = checksum_crc32c(&part, offsetof(struct shm_address, crc32c));
        memcpy(address + HEAD_BYTES, &part, sizeof part);
        uint32_t check = checksum_crc32c(address + HEAD_BYTES, bytes - HEAD_BYTES);
        memcpy(address + 12, &check, sizeof check);
        check = checksum_crc32c(address, HEAD_BYTES);
        memcpy(address + 12, &check, sizeof check);
    }
    return from->ops->connect(from, peer, address, bytes);
}

/* Kinds of the two sides as bits: 1 shm, 2 the network. */
static void test_pairs(void) {
    static uint8_t payload[1000];
    for (int a_kinds = 1; a_kinds <= 3; a_kinds++) {
        for (int b_kinds = 1; b_kinds <= 3; b_kinds++) {
            struct channel *a = open_kinds(a_kinds & 1, a_kinds & 2);
            struct channel *b = open_kinds(b_kinds & 1, b_kinds & 2);
            int common = a_kinds & b_kinds;
            CHECK_INT(connect_to(a, 1, b, false), common ? STATUS_OK : STATUS_INVALID);
            CHECK_INT(shared(a), common & 1);
            if (common) {
                send_one(a, 1, 5, payload, sizeof payload);
                struct channel_event event = wait_for(b, a, CHANNEL_RECEIVED);
                CHECK_INT(channel_battery_check(&event), 5);
                b->ops->release(b, event.slot);
                CHECK_INT(wait_for(a, b, CHANNEL_SENT).cookie, 5);
            } else {
                CHECK_INT(a->ops->send(a, 1, payload, NULL, 0, 1), STATUS_PEER_LOST);
            }
            a->ops->close(a);
            b->ops->close(b);
        }
    }
}

/* `channel` sleeps until `sender`'s frame comes. */
static void wakes(struct channel *channel, struct channel *sender, uint8_t *payload) {
    int64_t end_ns = clock_now_ns() + CHANNEL_BATTERY_DEADLINE_NS;
    struct channel_event event;
    while (channel->ops->arm(channel) == STATUS_AGAIN) {
        CHECK(clock_now_ns() < end_ns);
        CHECK_INT(channel->ops->poll(channel, &event, 1), 0);
    }
    struct pollfd fd = {.fd = channel->ops->wait_fd(channel), .events = POLLIN};
    CHECK_INT(poll(&fd, 1, 0), 0);
    send_one(sender, 0, 6, payload, 100);
    while (poll(&fd, 1, 1) == 0) {
        CHECK(clock_now_ns() < end_ns);
        (void)sender->ops->poll(sender, &event, 1);
    }
    event = wait_for(channel, sender, CHANNEL_RECEIVED);
    CHECK_INT(channel_battery_check(&event), 6);
    channel->ops->release(channel, event.slot);
}

/* Peer 0 is here, peer 1 on another host; frames of both are held, and go back to where they came
 * from. */
static void test_both_at_once(void) {
    struct channel *near = open_kinds(true, true), *far = open_kinds(true, true);
    struct channel *channel = open_kinds(true, true);
    static uint8_t payloads[4][5000];
    CHECK_INT(connect_to(near, 0, channel, false), STATUS_OK);
    CHECK_INT(connect_to(far, 0, channel, true), STATUS_OK);
    CHECK_INT(shared(near), 1);
    CHECK_INT(shared(far), 0);
    struct channel_event held[4];
    for (uint64_t i = 0; i < 4; i++) {
        struct channel *sender = i % 2 ? far : near;
        send_one(sender, 0, i, payloads[i], 5000);
        held[i] = wait_for(channel, sender, CHANNEL_RECEIVED);
    }
    for (uint64_t i = 0; i < 4; i++) {
        CHECK_INT(channel_battery_check(&held[i]), i);
        channel->ops->release(channel, held[i].slot);
    }
    CHECK_INT(wait_for(near, channel, CHANNEL_SENT).cookie, 0);
    CHECK_INT(wait_for(near, channel, CHANNEL_SENT).cookie, 2);
    CHECK_INT(wait_for(far, channel, CHANNEL_SENT).cookie, 1);
    CHECK_INT(wait_for(far, channel, CHANNEL_SENT).cookie, 3);
    struct channel_stats stats;
    channel->ops->stats(channel, &stats);
    CHECK_INT(stats.received_frames, 4);
    CHECK_INT(stats.received_bytes, 4 * (FRAME_BYTES + 5000));
    wakes(channel, near, payloads[0]);
    wakes(channel, far, payloads[0]);
    near->ops->close(near);
    far->ops->close(far);
    channel->ops->close(channel);
}

/* The peer's new address is on another host. That the old one ends then is not the peer's loss. */
static void test_change_of_kind(void) {
    struct channel *a = open_kinds(true, true), *old = open_kinds(true, true);
    struct channel *new = open_kinds(true, true);
    static uint8_t payload[100];
    CHECK_INT(connect_to(a, 2, old, false), STATUS_OK);
    CHECK_INT(connect_to(a, 2, new, true), STATUS_OK);
    CHECK_INT(shared(a), 0);
    old->ops->close(old);
    send_one(a, 2, 9, payload, sizeof payload);
    struct channel_event event = wait_for(new, a, CHANNEL_RECEIVED);
    CHECK_INT(channel_battery_check(&event), 9);
    for (int i = 0; i < 200; i++) {
        if (a->ops->poll(a, &event, 1) == 1) CHECK_INT(event.kind, CHANNEL_SENT);
    }
    a->ops->close(a);
    new->ops->close(new);
}

/* A peer of this host that is dead is not looked for by the network, which may abort over it. */
static void test_lost_by_its_kind(void) {
    struct channel *a = open_kinds(true, true), *b = open_kinds(true, true);
    uint8_t address[CHANNEL_ADDRESS_MAX];
    size_t bytes = 0;
    CHECK_INT(b->ops->address(b, address, &bytes), STATUS_OK);
    CHECK_INT(a->ops->connect(a, 1, address, bytes), STATUS_OK);
    CHECK_INT(a->ops->connect(a, 1, address, bytes), STATUS_OK);
    CHECK_INT(shared(a), 1);
    b->ops->close(b);
    CHECK_INT(a->ops->connect(a, 1, address, bytes), STATUS_PEER_LOST);
    CHECK_INT(a->ops->send(a, 1, address, NULL, 0, 1), STATUS_PEER_LOST);
    a->ops->close(a);
}

static enum status open_real(struct channel **channel, const struct channel_config *config) {
    struct channel *shm = NULL, *ucx = NULL;
    CHECK_INT(channel_shm_open(&shm, config), STATUS_OK);
    CHECK_INT(channel_ucx_open(&ucx, config, "lo", ""), STATUS_OK);
    return either_open(shm, ucx, config, channel);
}

int main(int argc, char **argv) {
    char program[4096];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    CHECK(length > 0);
    program[length] = 0;
    const struct channel_battery battery = {
        .open = open_real, .program = program, .sent_least = 64};
    channel_battery_begin(&battery);
    channel_ucx_setup();
    int code = channel_battery_role(argc, argv);
    if (code >= 0) return code;
    TEST_RUN(test_pairs);
    TEST_RUN(test_both_at_once);
    TEST_RUN(test_change_of_kind);
    TEST_RUN(test_lost_by_its_kind);
    channel_battery_run();
    return 0;
}
