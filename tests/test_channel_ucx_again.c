/* Proves that two UCX channels that lose each other in the middle of traffic both ways, since all
 * connections between them break or some, can connect again, each in its own time and again and
 * again: both are told each time, frames go both ways as before, and no send stays in flight.
 * How: this process's sockets are shut down; frames are checked as channel_battery.h does.
 */
#include "base/random.h"
#include "tests/channel_battery.h"
#include "tests/test.h"
#include "transport/channel_ucx.h"

#include <sys/socket.h>

enum { CUTS = 10, FRAMES = 20, FILES = 1024 };

/* More than UCX is given for a peer at once. */
enum { SENDS = 12, BYTES = 4 << 20 };

/* One of the two: sends all the time. */
struct end {
    struct channel *channel, *other;
    struct random_stream random;
    uint64_t received, failed, lost, next;
    int64_t connect_ns; /* 0: connected */
    bool busy[SENDS];   /* the channel has the payload */
    uint8_t payloads[SENDS][BYTES];
};

static struct end ends[2];

static enum status open_ucx(struct channel **channel, const struct channel_config *config) {
    return channel_ucx_open(channel, config, "lo", "");
}

static bool is_connected(int fd) {
    struct sockaddr_storage peer;
    socklen_t bytes = sizeof peer;
    return getpeername(fd, (struct sockaddr *)&peer, &bytes) == 0 && peer.ss_family == AF_INET;
}

static void break_connections(bool all, struct random_stream *random) {
    int broken = 0;
    for (int fd = 0; fd < FILES; fd++) {
        if (!is_connected(fd) || (!all && broken > 0 && random_below(random, 3) > 0)) continue;
        CHECK_INT(shutdown(fd, SHUT_RDWR), 0);
        broken++;
    }
    CHECK(broken > 0);
}

static void take(struct end *end, const struct channel_event *event, int64_t now_ns) {
    if (event->kind == CHANNEL_RECEIVED) {
        (void)channel_battery_check(event);
        end->channel->ops->release(end->channel, event->slot);
        end->received++;
    } else if (event->kind == CHANNEL_SENT) {
        CHECK(end->busy[event->cookie]);
        end->busy[event->cookie] = false;
        end->failed += event->status != STATUS_OK;
    } else {
        CHECK_INT(end->connect_ns, 0);
        end->lost++;
        end->connect_ns = now_ns + (int64_t)(1 + random_below(&end->random, 40)) * CLOCK_MS;
    }
}

static void send_all(struct end *end) {
    static const size_t sizes[] = {0, 20000, 500, BYTES};
    for (uint64_t i = 0; i < SENDS; i++) {
        uint8_t header[FRAME_BYTES];
        if (end->busy[i]) continue;
        size_t bytes = i % 2 == 0 ? BYTES : sizes[end->next % 4];
        channel_battery_fill(end->next++, header, end->payloads[i], bytes);
        enum status status =
            end->channel->ops->send(end->channel, 1, header, end->payloads[i], bytes, i);
        CHECK(status == STATUS_OK || status == STATUS_PEER_LOST);
        end->busy[i] = status == STATUS_OK;
    }
}

/* Does what can be done now; sends only with `more`. */
static void turn(struct end *end, bool more) {
    struct channel_event events[8];
    int64_t now_ns = clock_now_ns();
    size_t count = end->channel->ops->poll(end->channel, events, 8);
    for (size_t i = 0; i < count; i++)
        take(end, &events[i], now_ns);
    if (end->connect_ns != 0 && now_ns >= end->connect_ns) {
        end->connect_ns = 0;
        channel_battery_connect(end->channel, 1, end->other);
    }
    if (more && end->connect_ns == 0) send_all(end);
}

static bool has_sends(const struct end *end) {
    for (int i = 0; i < SENDS; i++)
        if (end->busy[i]) return true;
    return false;
}

static void test_connect_again(void) {
    int64_t limit_ns = clock_now_ns() + CHANNEL_BATTERY_DEADLINE_NS;
    for (uint64_t i = 0; i < 2; i++) {
        ends[i].channel = channel_battery_open(&channel_battery_config);
        random_open(&ends[i].random, i, RANDOM_SIMULATOR, 0);
    }
    for (int i = 0; i < 2; i++) {
        ends[i].other = ends[1 - i].channel;
        channel_battery_connect(ends[i].channel, 1, ends[i].other);
    }
    for (int cut = 0; cut < CUTS; cut++) {
        uint64_t goals[2] = {ends[0].received + FRAMES, ends[1].received + FRAMES};
        while (ends[0].received < goals[0] || ends[1].received < goals[1]) {
            CHECK(clock_now_ns() < limit_ns);
            turn(&ends[0], true);
            turn(&ends[1], true);
        }
        break_connections(cut % 2 == 0, &ends[0].random);
    }
    while (has_sends(&ends[0]) || has_sends(&ends[1])) {
        CHECK(clock_now_ns() < limit_ns);
        turn(&ends[0], false);
        turn(&ends[1], false);
    }
    for (int i = 0; i < 2; i++) {
        CHECK(ends[i].lost >= CUTS - 1); /* of the last one it need not have heard */
        CHECK(ends[i].failed >= CUTS);
        ends[i].channel->ops->close(ends[i].channel);
    }
}

int main(void) {
    const struct channel_battery battery = {.open = open_ucx};
    channel_battery_begin(&battery);
    channel_ucx_setup();
    TEST_RUN(test_connect_again);
    return 0;
}
