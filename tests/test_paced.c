/* Proves that a paced channel keeps the pace of its link, and changes nothing else.
 *
 * In the simulator's network, by its virtual clock, the moment at which each frame appears must be
 * the closed form of a token bucket: for frames in a row, for two channels of one process that
 * share its link, and for two senders that meet at one receiver. Under a random load the order
 * must hold, every frame must come, and no more bytes than the bucket allows. Back-pressure, lost
 * peers and reconnects are scripts. Over a channel with descriptors, one poll() without a limit
 * must wake up for a frame that only time makes due.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "tests/test.h"
#include "transport/loop.h"
#include "transport/paced.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { BYTES = 100000, FRAME = BYTES + (int)FRAME_BYTES, SLOTS = 16 };
static const double rate = 1e6; /* bytes a second, of "8mbit" */
static const struct loop_faults calm = {0};
static const struct channel_config wide = {
    .peers_max = 4, .slots = SLOTS, .slot_bytes = BYTES, .sends_max = 8};
static uint8_t payload[BYTES];

struct net {
    struct loop *loop;
    struct paced_link link;
};

static int64_t virtual_ns(void *context) {
    const struct net *net = context;
    return loop_now_ns(net->loop);
}

static void net_open(struct net *net, const char *link) {
    CHECK_INT(loop_open(&net->loop, 1, &calm), STATUS_OK);
    CHECK_INT(paced_link_init(&net->link, link), STATUS_OK);
    net->link.clock = virtual_ns;
    net->link.context = net;
}

static struct channel *net_channel(struct net *net, uint32_t node, bool paced) {
    struct channel *channel = NULL;
    CHECK_INT(loop_channel(net->loop, node, &wide, &channel), STATUS_OK);
    const struct channel *inner = channel;
    if (paced) CHECK_INT(paced_wrap(&net->link, &wide, &channel), STATUS_OK);
    CHECK((channel != inner) == (paced && net->link.bytes_a_second > 0));
    return channel;
}

static void connect_to(struct channel *from, uint32_t number, struct channel *to) {
    uint8_t address[CHANNEL_ADDRESS_MAX];
    size_t bytes = 0;
    CHECK_INT(to->ops->address(to, address, &bytes), STATUS_OK);
    CHECK_INT(from->ops->connect(from, number, address, bytes), STATUS_OK);
}

static enum status send_id(struct channel *channel, uint32_t peer, uint64_t id, size_t bytes) {
    uint8_t header[FRAME_BYTES] = {0};
    memcpy(header, &id, sizeof id);
    return channel->ops->send(channel, peer, header, payload, bytes, id);
}

static uint64_t id_of(const struct channel_event *event) {
    uint64_t id;
    memcpy(&id, event->header, sizeof id);
    return id;
}

static void close_channel(struct channel *channel) {
    channel->ops->close(channel);
}

/* Moves the clock to the next moment at which anything is due; false when nothing ever is. */
static bool step(struct net *net, struct channel *const *channels, size_t count) {
    int64_t next_ns = loop_next_ns(net->loop);
    for (size_t i = 0; i < count; i++) {
        int64_t due_ns = paced_next_ns(channels[i]);
        next_ns = due_ns < next_ns ? due_ns : next_ns;
    }
    if (next_ns == INT64_MAX) return false;
    int64_t now_ns = loop_now_ns(net->loop);
    loop_advance(net->loop, next_ns > now_ns ? next_ns : now_ns);
    return true;
}

/* Receives everything -> arrival times by id, virtual seconds; sends that end are counted. */
static size_t drain(struct net *net, struct channel *const *channels, size_t count, double *at_s) {
    struct channel_event events[8];
    size_t sent = 0;
    for (int idle = 0; idle < 3;) {
        bool any = false;
        for (size_t c = 0; c < count; c++) {
            size_t n = channels[c]->ops->poll(channels[c], events, 8);
            for (size_t i = 0; i < n; i++) {
                any = true;
                if (events[i].kind == CHANNEL_SENT) sent++;
                if (events[i].kind != CHANNEL_RECEIVED) continue;
                at_s[id_of(&events[i])] = (double)loop_now_ns(net->loop) / (double)CLOCK_S;
                channels[c]->ops->release(channels[c], events[i].slot);
            }
        }
        if (any) {
            idle = 0;
        } else if (!step(net, channels, count)) {
            idle++;
        }
    }
    return sent;
}

static void rates_are_read(void) {
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"none", 0},
                {"1kbit", 125},
                {"100mbit", 12500000},
                {"2.5gbit", 312500000},
                {"10000gbit", 1250000000000}};
    static const char *const bad[] = {"",        "100",  "0mbit",  "-1mbit",    " 1mbit",
                                      "1 mbit",  "mbit", "1mbit ", "10001gbit", "nan",
                                      "infmbit", "1MB",  "none ",  "0x1gbit",   "1e3mbit"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        uint64_t bytes = 7;
        CHECK_INT(paced_parse(good[i].text, &bytes), STATUS_OK);
        CHECK_INT(bytes, good[i].bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t bytes = 7;
        CHECK_INT(paced_parse(bad[i], &bytes), STATUS_INVALID);
        CHECK_INT(bytes, 7);
    }
}

static void none_changes_nothing(void) {
    struct net net;
    net_open(&net, "none");
    struct channel *channel = net_channel(&net, 0, true);
    CHECK(paced_next_ns(channel) == INT64_MAX);
    close_channel(channel);
    loop_close(net.loop);
}

/* The bucket begins full: frame k has left when (k + 1) frames less the burst have. */
static void frames_leave_at_the_rate(void) {
    struct net net;
    double at_s[8] = {0};
    net_open(&net, "8mbit");
    struct channel *channels[2] = {net_channel(&net, 0, true), net_channel(&net, 1, false)};
    connect_to(channels[0], 2, channels[1]);
    loop_advance(net.loop, CLOCK_S);
    for (uint64_t k = 0; k < 8; k++) {
        CHECK_INT(send_id(channels[0], 2, k, BYTES), STATUS_OK);
    }
    CHECK_INT(send_id(channels[0], 2, 8, BYTES), STATUS_AGAIN);
    CHECK_INT(drain(&net, channels, 2, at_s), 8);
    for (int k = 0; k < 8; k++) {
        double closed_form = 1 + ((k + 1.0) * FRAME - (double)PACED_BURST_BYTES) / rate;
        CHECK_NEAR(at_s[k], closed_form, 2e-8);
    }
    close_channel(channels[0]);
    close_channel(channels[1]);
    loop_close(net.loop);
}

/* Two shards of a process, in turns: together they have the rate of one. */
static void channels_share_the_link(void) {
    struct net net;
    double at_s[8] = {0};
    net_open(&net, "8mbit");
    struct channel *channels[3] = {net_channel(&net, 0, true), net_channel(&net, 0, true),
                                   net_channel(&net, 1, false)};
    connect_to(channels[0], 0, channels[2]);
    connect_to(channels[1], 0, channels[2]);
    loop_advance(net.loop, CLOCK_S);
    for (uint64_t k = 0; k < 8; k++) {
        CHECK_INT(send_id(channels[k % 2], 0, k, BYTES), STATUS_OK);
    }
    CHECK_INT(drain(&net, channels, 3, at_s), 8);
    for (int k = 0; k < 8; k++) {
        double closed_form = 1 + ((k + 1.0) * FRAME - (double)PACED_BURST_BYTES) / rate;
        CHECK_NEAR(at_s[k], closed_form, 2e-8);
    }
    for (int i = 0; i < 3; i++) {
        close_channel(channels[i]);
    }
    loop_close(net.loop);
}

/* Frames that come together queue up; the first, whose bytes came while it was sent, waits not. */
static void receiving_has_its_own_bucket(void) {
    struct net net;
    double at_s[6] = {0};
    net_open(&net, "8mbit");
    struct channel *channels[3] = {net_channel(&net, 0, true), net_channel(&net, 1, false),
                                   net_channel(&net, 2, false)};
    connect_to(channels[1], 0, channels[0]);
    connect_to(channels[2], 0, channels[0]);
    connect_to(channels[0], 1, channels[1]);
    loop_advance(net.loop, CLOCK_S);
    for (uint64_t k = 0; k < 6; k++) {
        CHECK_INT(send_id(channels[1 + k % 2], 0, k, BYTES), STATUS_OK);
    }
    CHECK_INT(drain(&net, channels, 3, at_s), 6);
    double sum = 0;
    for (int k = 0; k < 6; k++) {
        sum += at_s[k]; /* which of two that come at once is first, the simulator decides */
    }
    CHECK_NEAR(sum, 6 + (0 + 1 + 2 + 3 + 4 + 5) * FRAME / rate, 1e-6);
    /* The outgoing bucket is still full: what leaves now leaves at once. */
    double before_s = (double)loop_now_ns(net.loop) / (double)CLOCK_S;
    CHECK_INT(send_id(channels[0], 1, 0, 1000), STATUS_OK);
    CHECK_INT(drain(&net, channels, 3, at_s), 1);
    CHECK_NEAR(at_s[0], before_s, 1e-9);
    for (int i = 0; i < 3; i++) {
        close_channel(channels[i]);
    }
    loop_close(net.loop);
}

static void lost_peers_end_their_sends(void) {
    struct net net;
    struct channel_event events[16];
    net_open(&net, "8mbit");
    struct channel *sender = net_channel(&net, 0, true), *peer = net_channel(&net, 1, false);
    CHECK_INT(send_id(sender, 0, 1, BYTES), STATUS_PEER_LOST); /* never connected */
    CHECK_INT(send_id(sender, 9, 1, BYTES), STATUS_PEER_LOST);
    connect_to(sender, 0, peer);
    for (uint64_t k = 0; k < 3; k++) {
        CHECK_INT(send_id(sender, 0, k, BYTES), STATUS_OK);
    }
    loop_cut(net.loop, 1, false);
    loop_advance(net.loop, loop_now_ns(net.loop) + 1);
    size_t lost = 0, ended = 0;
    for (int i = 0; i < 4; i++) {
        size_t count = sender->ops->poll(sender, events, 16);
        for (size_t e = 0; e < count; e++) {
            lost += events[e].kind == CHANNEL_PEER_LOST;
            ended += events[e].kind == CHANNEL_SENT && events[e].status == STATUS_PEER_LOST;
        }
    }
    CHECK_INT(lost, 1);
    CHECK_INT(ended, 3);
    CHECK_INT(send_id(sender, 0, 9, BYTES), STATUS_PEER_LOST);
    /* Connected again, to another: what waits for the old one does not go to the new one. */
    struct channel *next = net_channel(&net, 2, false), *last = net_channel(&net, 3, false);
    connect_to(sender, 0, next);
    CHECK_INT(send_id(sender, 0, 10, BYTES), STATUS_OK);
    connect_to(sender, 0, last);
    size_t count = sender->ops->poll(sender, events, 16);
    CHECK_INT(count, 1);
    CHECK_INT(events[0].kind, CHANNEL_SENT);
    CHECK_INT(events[0].status, STATUS_PEER_LOST);
    CHECK_INT(events[0].cookie, 10);
    close_channel(sender);
    close_channel(peer);
    close_channel(next);
    close_channel(last);
    loop_close(net.loop);
}

/* Frames of all sizes at random times, both directions paced. */
static void random_load_keeps_order_and_rate(void) {
    enum { FRAMES = 2000 };
    struct net net;
    struct random_stream random;
    struct channel_event events[8];
    uint64_t next_sent = 0, next_received = 0, received_bytes = 0, most = 0, outgoing[FRAMES] = {0};
    random_open(&random, 3, RANDOM_SIMULATOR, 0);
    net_open(&net, "8mbit");
    struct channel *sender = net_channel(&net, 0, true), *receiver = net_channel(&net, 1, true);
    connect_to(sender, 0, receiver);
    while (next_received < FRAMES) {
        loop_advance(net.loop, loop_now_ns(net.loop) + (int64_t)random_below(&random, 20000000));
        size_t bytes = random_below(&random, 20) == 0 ? 0 : random_below(&random, 40000);
        if (next_sent < FRAMES && send_id(sender, 0, next_sent, bytes) == STATUS_OK) {
            outgoing[next_sent++] = bytes;
        }
        (void)sender->ops->poll(sender, events, 8);
        size_t count = receiver->ops->poll(receiver, events, 1 + random_below(&random, 8));
        for (size_t i = 0; i < count; i++) {
            CHECK_INT(events[i].kind, CHANNEL_RECEIVED);
            CHECK_INT(id_of(&events[i]), next_received);
            CHECK_INT(events[i].payload_bytes, outgoing[next_received]);
            received_bytes += FRAME_BYTES + outgoing[next_received++];
            receiver->ops->release(receiver, events[i].slot);
        }
        most = PACED_BURST_BYTES + (uint64_t)(rate * (double)loop_now_ns(net.loop) / 1e9);
        CHECK(received_bytes <= most);
    }
    CHECK((double)received_bytes > 0.8 * (double)most); /* the load was near the rate */
    close_channel(sender);
    close_channel(receiver);
    loop_close(net.loop);
}

/* A channel that has a descriptor and takes every send. */
struct mute {
    struct channel channel;
    int fd;
    int taken;
};

static enum status mute_connect(struct channel *channel, uint32_t peer, const uint8_t *address,
                                size_t bytes) {
    (void)channel, (void)peer, (void)address, (void)bytes;
    return STATUS_OK;
}

static enum status mute_send(struct channel *channel, uint32_t peer, const uint8_t *header,
                             const uint8_t *bytes, size_t payload_bytes, uint64_t cookie) {
    (void)peer, (void)header, (void)bytes, (void)payload_bytes, (void)cookie;
    ((struct mute *)channel)->taken++;
    return STATUS_OK;
}

static size_t mute_poll(struct channel *channel, struct channel_event *events, size_t capacity) {
    (void)channel, (void)events, (void)capacity;
    return 0;
}

static int mute_wait_fd(struct channel *channel) {
    return ((struct mute *)channel)->fd;
}

static enum status mute_arm(struct channel *channel) {
    (void)channel;
    return STATUS_OK;
}

static void mute_close(struct channel *channel) {
    close(((struct mute *)channel)->fd);
}

static void time_wakes_the_owner(void) {
    static const struct channel_ops ops = {.name = "mute",
                                           .connect = mute_connect,
                                           .send = mute_send,
                                           .poll = mute_poll,
                                           .wait_fd = mute_wait_fd,
                                           .arm = mute_arm,
                                           .close = mute_close};
    struct mute mute = {.channel = {&ops}, .fd = eventfd(0, EFD_CLOEXEC)};
    struct channel *channel = &mute.channel;
    struct channel_event events[8];
    struct paced_link link;
    CHECK_INT(paced_link_init(&link, "80mbit"), STATUS_OK);
    CHECK_INT(paced_wrap(&link, &wide, &channel), STATUS_OK);
    CHECK_INT(channel->ops->connect(channel, 0, NULL, 0), STATUS_OK);
    for (uint64_t k = 0; k < 4; k++) {
        CHECK_INT(send_id(channel, 0, k, BYTES), STATUS_OK);
    }
    while (mute.taken < 4) {
        struct pollfd wait = {.fd = channel->ops->wait_fd(channel), .events = POLLIN};
        if (channel->ops->arm(channel) == STATUS_OK) CHECK_INT(poll(&wait, 1, -1), 1);
        CHECK_INT(channel->ops->poll(channel, events, 8), 0);
    }
    /* The wrapped channel's descriptor wakes it, too, with nothing due. */
    struct pollfd wait = {.fd = channel->ops->wait_fd(channel), .events = POLLIN};
    CHECK_INT(channel->ops->arm(channel), STATUS_OK);
    CHECK_INT(poll(&wait, 1, 0), 0);
    CHECK_INT(eventfd_write(mute.fd, 1), 0);
    CHECK_INT(poll(&wait, 1, -1), 1);
    close_channel(channel);
}

int main(void) {
    TEST_RUN(rates_are_read);
    TEST_RUN(none_changes_nothing);
    TEST_RUN(frames_leave_at_the_rate);
    TEST_RUN(channels_share_the_link);
    TEST_RUN(receiving_has_its_own_bucket);
    TEST_RUN(lost_peers_end_their_sends);
    TEST_RUN(random_load_keeps_order_and_rate);
    TEST_RUN(time_wakes_the_owner);
    return 0;
}
