#include "tests/channel_battery.h"

#include "base/checksum.h"
#include "base/clock.h"
#include "base/log.h"
#include "tests/test.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define EVENTS      64
#define PAYLOAD_MAX ((size_t)4 << 20)
#define FLOOD_BYTES ((size_t)1 << 20)
#define MIXED_BYTES ((size_t)300032)

/* Of the battery that runs; one a process. */
static const struct channel_battery *battery;

const struct channel_config channel_battery_config = {
    .peers_max = 4, .slots = 16, .slot_bytes = PAYLOAD_MAX, .sends_max = 64};

struct channel *channel_battery_open(const struct channel_config *config) {
    struct channel *channel = NULL;
    CHECK_INT(battery->open(&channel, config), STATUS_OK);
    return channel;
}

void channel_battery_connect(struct channel *from, uint32_t number, struct channel *to) {
    uint8_t address[CHANNEL_ADDRESS_MAX];
    size_t bytes = 0;
    CHECK_INT(to->ops->address(to, address, &bytes), STATUS_OK);
    CHECK_INT(from->ops->connect(from, number, address, bytes), STATUS_OK);
}

void channel_battery_fill(uint64_t id, uint8_t header[FRAME_BYTES], uint8_t *payload,
                          size_t bytes) {
    for (size_t i = 0; i < FRAME_BYTES; i++) {
        header[i] = (uint8_t)(id * 31 + i);
    }
    memcpy(header, &id, sizeof id);
    uint64_t length = bytes;
    memcpy(header + 8, &length, sizeof length);
    for (size_t i = 0; i < bytes; i++) {
        payload[i] = (uint8_t)(id * 7 + i + (i >> 8) * 3 + (i >> 16));
    }
    uint64_t digest = checksum_xxh3(payload, bytes);
    memcpy(header + 16, &digest, sizeof digest);
}

static enum status send_frame(struct channel *channel, uint32_t peer, uint64_t id, uint8_t *payload,
                              size_t bytes) {
    uint8_t header[FRAME_BYTES];
    channel_battery_fill(id, header, payload, bytes);
    enum status status = channel->ops->send(channel, peer, header, payload, bytes, id);
    memset(header, 0, sizeof header); /* it was copied */
    return status;
}

static void close_both(struct channel *a, struct channel *b) {
    a->ops->close(a);
    b->ops->close(b);
}

uint64_t channel_battery_check(const struct channel_event *event) {
    uint64_t id, length, digest;
    memcpy(&id, event->header, sizeof id);
    memcpy(&length, event->header + 8, sizeof length);
    memcpy(&digest, event->header + 16, sizeof digest);
    CHECK_INT(event->payload_bytes, length);
    for (size_t i = 24; i < FRAME_BYTES; i++) {
        CHECK_INT(event->header[i], (uint8_t)(id * 31 + i));
    }
    CHECK_INT(checksum_xxh3(event->payload, event->payload_bytes), digest);
    CHECK_INT((uintptr_t)event->payload % 64, 0);
    return id;
}

static void test_sizes(void) {
    static const size_t sizes[] = {0, 1, 96, 8192, 16383, 16384, 65536, 1 << 20, 4 << 20};
    struct channel *a = channel_battery_open(&channel_battery_config),
                   *b = channel_battery_open(&channel_battery_config);
    channel_battery_connect(a, 2, b);
    static uint8_t payload[PAYLOAD_MAX];
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        CHECK_INT(send_frame(a, 2, 1000 + i, payload, sizes[i]), STATUS_OK);
        bool sent = false, received = false;
        int64_t end_ns = clock_now_ns() + CHANNEL_BATTERY_DEADLINE_NS;
        while (!sent || !received) {
            CHECK(clock_now_ns() < end_ns);
            struct channel_event event;
            if (a->ops->poll(a, &event, 1) == 1) {
                CHECK_INT(event.kind, CHANNEL_SENT);
                CHECK_INT(event.cookie, 1000 + i);
                CHECK_INT(event.peer, 2);
                CHECK_INT(event.status, STATUS_OK);
                sent = true;
            }
            if (b->ops->poll(b, &event, 1) == 1) {
                CHECK_INT(event.kind, CHANNEL_RECEIVED);
                CHECK_INT(channel_battery_check(&event), 1000 + i);
                b->ops->release(b, event.slot);
                received = true;
            }
        }
    }
    struct channel_stats from, to;
    a->ops->stats(a, &from);
    b->ops->stats(b, &to);
    CHECK_INT(from.sent_frames, 9);
    CHECK_INT(to.received_frames, 9);
    CHECK_INT(from.sent_bytes, to.received_bytes);
    CHECK_INT(to.refused, 0);
    close_both(a, b);
}

/* Memory that payloads travel best of. */
static uint8_t *take_memory(struct channel *channel, size_t bytes, struct arena *arena) {
    uint8_t *memory = NULL;
    CHECK_INT(channel_memory(channel, bytes, arena, &memory), STATUS_OK);
    CHECK_INT((uintptr_t)memory % MEMORY_ALIGN, 0);
    CHECK(memory[0] == 0 && memory[bytes - 1] == 0);
    return memory;
}

/* One end of the mixed traffic. */
struct end {
    struct channel *channel;
    struct arena arena;
    uint8_t *own; /* the channel's: [64] pieces of MIXED_BYTES, those of even cookies */
    uint8_t buffers[64][300000]; /* one a cookie: those of odd ones */
    bool busy[64];
    bool made; /* frame `next`: */
    uint8_t header[FRAME_BYTES], *payload;
    uint64_t cookie;
    uint64_t next, sent, again, received;
    bool seen[1000];
    uint32_t held[4]; /* slots not yet released, oldest first */
    uint32_t held_count;
};

static size_t mixed_size(uint64_t id) {
    static const size_t sizes[] = {0, 1, 500, 4096, 16384, 20000, 100000, 300000};
    return sizes[(id * 5 + id / 8) % 8];
}

/* Makes frame `next`, in the memory of a cookie that is free; false: all are busy. */
static bool make_next(struct end *end) {
    uint64_t cookie = 0;
    while (cookie < 64 && end->busy[cookie]) {
        cookie++;
    }
    if (cookie == 64) return false;
    end->cookie = cookie;
    end->payload = cookie % 2 ? end->buffers[cookie] : end->own + cookie * MIXED_BYTES;
    channel_battery_fill(end->next, end->header, end->payload, mixed_size(end->next));
    return true;
}

static void send_more(struct end *end, uint64_t total) {
    while (end->next < total) {
        end->made = end->made || make_next(end);
        if (!end->made) return;
        struct channel *channel = end->channel;
        enum status status = channel->ops->send(channel, 0, end->header, end->payload,
                                                mixed_size(end->next), end->cookie);
        if (status == STATUS_AGAIN) {
            end->again++;
            return;
        }
        CHECK_INT(status, STATUS_OK);
        end->busy[end->cookie] = true;
        end->made = false;
        end->next++;
    }
}

static void take(struct end *end, const struct channel_event *event) {
    if (event->kind == CHANNEL_SENT) {
        CHECK_INT(event->status, STATUS_OK);
        CHECK(end->busy[event->cookie]);
        end->busy[event->cookie] = false;
        end->sent++;
        return;
    }
    CHECK_INT(event->kind, CHANNEL_RECEIVED);
    uint64_t id = channel_battery_check(event);
    CHECK(id < 1000 && !end->seen[id]);
    CHECK_INT(event->payload_bytes, mixed_size(id));
    end->seen[id] = true;
    end->received++;
    CHECK(end->held_count < 4);
    end->held[end->held_count++] = event->slot;
}

static void test_mixed_through_few_slots(void) {
    const struct channel_config few = {
        .peers_max = 1, .slots = 3, .slot_bytes = 300000, .sends_max = 20};
    static struct end ends[2];
    for (int i = 0; i < 2; i++) {
        ends[i].channel = channel_battery_open(&few);
        ends[i].own = take_memory(ends[i].channel, 64 * MIXED_BYTES, &ends[i].arena);
    }
    channel_battery_connect(ends[0].channel, 0, ends[1].channel);
    channel_battery_connect(ends[1].channel, 0, ends[0].channel);
    int64_t end_ns = clock_now_ns() + CHANNEL_BATTERY_DEADLINE_NS;
    for (uint64_t turn = 0;; turn++) {
        CHECK(clock_now_ns() < end_ns);
        bool done = true;
        for (int i = 0; i < 2; i++) {
            struct end *end = &ends[i];
            send_more(end, 1000);
            struct channel_event events[EVENTS];
            size_t count = end->channel->ops->poll(end->channel, events, EVENTS);
            for (size_t k = 0; k < count; k++) {
                take(end, &events[k]);
            }
            if (turn % 8 == 0) { /* all slots stay taken for a while */
                while (end->held_count > 0) {
                    end->channel->ops->release(end->channel, end->held[--end->held_count]);
                }
            }
            done = done && end->sent == 1000 && end->received == 1000;
        }
        if (done) break;
    }
    for (int i = 0; i < 2; i++) {
        struct channel_stats stats;
        ends[i].channel->ops->stats(ends[i].channel, &stats);
        CHECK_INT(stats.refused, 0);
        CHECK_INT(stats.sent_frames, 1000);
        CHECK_INT(stats.received_frames, 1000);
        CHECK(ends[i].again > 0); /* more was offered than may be in flight */
        ends[i].channel->ops->close(ends[i].channel);
        arena_free(&ends[i].arena);
    }
}

struct channel_event channel_battery_wait(struct channel *channel, struct channel *other,
                                          enum channel_event_kind kind) {
    int64_t end_ns = clock_now_ns() + CHANNEL_BATTERY_DEADLINE_NS;
    for (;;) {
        CHECK(clock_now_ns() < end_ns);
        struct channel_event event;
        if (channel->ops->poll(channel, &event, 1) == 1) {
            if (event.kind == kind) return event;
            if (event.kind == CHANNEL_RECEIVED) channel->ops->release(channel, event.slot);
        }
        if (other && other->ops->poll(other, &event, 1) == 1 && event.kind == CHANNEL_RECEIVED) {
            other->ops->release(other, event.slot);
        }
    }
}

static void test_too_long_is_refused(void) {
    const struct channel_config small = {
        .peers_max = 1, .slots = 2, .slot_bytes = 1000, .sends_max = 4};
    struct channel *a = channel_battery_open(&channel_battery_config),
                   *b = channel_battery_open(&small);
    channel_battery_connect(a, 0, b);
    static uint8_t payload[100000];
    static const size_t sizes[] = {1001, 5000, 100000};
    for (size_t i = 0; i < 3; i++) {
        CHECK_INT(send_frame(a, 0, i, payload, sizes[i]), STATUS_OK);
        channel_battery_wait(a, b, CHANNEL_SENT);
    }
    CHECK_INT(send_frame(a, 0, 77, payload, 1000), STATUS_OK);
    struct channel_event event = channel_battery_wait(b, a, CHANNEL_RECEIVED);
    CHECK_INT(channel_battery_check(&event), 77);
    b->ops->release(b, event.slot);
    struct channel_stats stats;
    b->ops->stats(b, &stats);
    CHECK_INT(stats.refused, 3);
    CHECK_INT(stats.received_frames, 1);
    close_both(a, b);
}

/* b is never polled, so rendezvous sends stay in flight. Its close must end them all the same. */
static void test_again_at_sends_max(void) {
    struct channel_config config = channel_battery_config;
    config.sends_max = 5;
    struct channel *a = channel_battery_open(&config),
                   *b = channel_battery_open(&channel_battery_config);
    channel_battery_connect(a, 0, b);
    static uint8_t payload[65536];
    for (uint64_t i = 0; i < 5; i++) {
        CHECK_INT(send_frame(a, 0, 1, payload, sizeof payload), STATUS_OK);
    }
    CHECK_INT(send_frame(a, 0, 1, payload, sizeof payload), STATUS_AGAIN);
    channel_battery_wait(a, b, CHANNEL_SENT);
    CHECK_INT(send_frame(a, 0, 1, payload, sizeof payload), STATUS_OK);
    CHECK_INT(send_frame(a, 0, 1, payload, sizeof payload), STATUS_AGAIN);
    CHECK_INT(send_frame(a, 1, 1, payload, sizeof payload), STATUS_PEER_LOST);
    close_both(a, b);
}

/* Eager frames to a receiver whose slots stay taken: the sender must run into AGAIN, the receiver
 * must lose none. */
static void hold_back(size_t bytes) {
    struct channel_config config = channel_battery_config;
    config.slots = 2;
    struct channel *a = channel_battery_open(&channel_battery_config),
                   *b = channel_battery_open(&config);
    channel_battery_connect(a, 0, b);
    static uint8_t payload[4000];
    uint64_t sent = 0, received = 0;
    uint32_t slots[2];
    struct channel_event events[EVENTS];
    int64_t end_ns = clock_now_ns() + CHANNEL_BATTERY_DEADLINE_NS, last_ns = clock_now_ns();
    while (received < 2 || sent < battery->sent_least || clock_now_ns() < last_ns + CLOCK_S / 4) {
        CHECK(clock_now_ns() < end_ns && sent < 1000000);
        while (send_frame(a, 0, 5, payload, bytes) == STATUS_OK) {
            sent++;
            last_ns = clock_now_ns();
        }
        a->ops->poll(a, events, EVENTS);
        size_t count = b->ops->poll(b, events, EVENTS);
        for (size_t i = 0; i < count; i++) {
            CHECK(received < 2);
            slots[received++] = events[i].slot;
        }
    }
    b->ops->release(b, slots[0]);
    b->ops->release(b, slots[1]);
    while (received < sent) {
        CHECK(clock_now_ns() < end_ns);
        a->ops->poll(a, events, EVENTS);
        size_t count = b->ops->poll(b, events, EVENTS);
        for (size_t i = 0; i < count; i++, received++) {
            CHECK_INT(channel_battery_check(&events[i]), 5);
            b->ops->release(b, events[i].slot);
        }
    }
    struct channel_stats stats;
    b->ops->stats(b, &stats);
    CHECK_INT(stats.refused, 0);
    CHECK_INT(stats.received_frames, sent);
    close_both(a, b);
}

static void test_senders_are_held_back(void) {
    hold_back(0);
    hold_back(4000);
}

static void test_arm_and_sleep(void) {
    struct channel *a = channel_battery_open(&channel_battery_config),
                   *b = channel_battery_open(&channel_battery_config);
    channel_battery_connect(a, 0, b);
    static uint8_t payload[200000];
    CHECK_INT(send_frame(a, 0, 1, payload, 8), STATUS_OK);
    channel_battery_wait(b, a, CHANNEL_RECEIVED); /* it is up now; the slot stays taken */
    static const size_t sizes[] = {8, 200000};
    for (size_t i = 0; i < 2; i++) {
        struct channel_event event;
        int64_t end_ns = clock_now_ns() + CHANNEL_BATTERY_DEADLINE_NS;
        while (b->ops->arm(b) == STATUS_AGAIN) {
            CHECK(clock_now_ns() < end_ns);
            CHECK_INT(b->ops->poll(b, &event, 1), 0);
            if (a->ops->poll(a, &event, 1) == 1) CHECK_INT(event.kind, CHANNEL_SENT);
        }
        struct pollfd fd = {.fd = b->ops->wait_fd(b), .events = POLLIN};
        CHECK_INT(poll(&fd, 1, 0), 0);
        CHECK_INT(send_frame(a, 0, 2 + i, payload, sizes[i]), STATUS_OK);
        while (a->ops->poll(a, &event, 1) == 0 && poll(&fd, 1, 1) == 0) {
            CHECK(clock_now_ns() < end_ns);
        }
        CHECK_INT(poll(&fd, 1, 60000), 1);
        event = channel_battery_wait(b, a, CHANNEL_RECEIVED);
        CHECK_INT(channel_battery_check(&event), 2 + i);
    }
    close_both(a, b);
}

static void test_damaged_addresses(void) {
    struct channel *a = channel_battery_open(&channel_battery_config),
                   *b = channel_battery_open(&channel_battery_config);
    uint8_t address[CHANNEL_ADDRESS_MAX], bad[CHANNEL_ADDRESS_MAX + 1];
    size_t bytes = 0;
    CHECK_INT(b->ops->address(b, address, &bytes), STATUS_OK);
    log_set_level(LOG_ERROR);
    int errors = dup(STDERR_FILENO), null = open("/dev/null", O_WRONLY);
    dup2(null, STDERR_FILENO);
    int accepted = 0;
    for (size_t bit = 0; bit < bytes * 8; bit++) {
        memcpy(bad, address, bytes);
        bad[bit / 8] ^= (uint8_t)(1 << bit % 8);
        accepted += a->ops->connect(a, 0, bad, bytes) != STATUS_INVALID;
    }
    for (size_t cut = 0; cut < bytes; cut++) {
        accepted += a->ops->connect(a, 0, address, cut) != STATUS_INVALID;
    }
    memset(bad, 0xff, sizeof bad);
    accepted += a->ops->connect(a, 0, bad, sizeof bad) != STATUS_INVALID;
    dup2(errors, STDERR_FILENO);
    CHECK_INT(close(errors) | close(null), 0);
    log_set_level(LOG_INFO);
    CHECK_INT(accepted, 0);
    CHECK_INT(a->ops->connect(a, 0, address, bytes), STATUS_OK);
    close_both(a, b);
}

/* Reads or writes one address over a pipe. */
static void write_address(int fd, struct channel *channel) {
    uint8_t address[CHANNEL_ADDRESS_MAX] = {0};
    size_t bytes = 0;
    CHECK_INT(channel->ops->address(channel, address, &bytes), STATUS_OK);
    CHECK_INT(write(fd, &bytes, sizeof bytes), sizeof bytes);
    CHECK_INT(write(fd, address, bytes), bytes);
}

static void read_address(int fd, struct channel *channel) {
    uint8_t address[CHANNEL_ADDRESS_MAX];
    size_t bytes = 0;
    CHECK_INT(read(fd, &bytes, sizeof bytes), sizeof bytes);
    CHECK_INT(read(fd, address, bytes), bytes);
    CHECK_INT(channel->ops->connect(channel, 0, address, bytes), STATUS_OK);
}

/* The peer: floods with frames of both sizes and takes what comes, until it is killed. */
static int flood(int in, int out) {
    struct channel *channel = channel_battery_open(&channel_battery_config);
    write_address(out, channel);
    read_address(in, channel);
    struct arena arena = {0};
    uint8_t *payload = take_memory(channel, FLOOD_BYTES, &arena);
    uint8_t header[FRAME_BYTES];
    channel_battery_fill(1, header, payload, FLOOD_BYTES);
    for (uint64_t i = 0;; i++) {
        enum status status = channel->ops->send(channel, 0, header, payload, FLOOD_BYTES, i);
        if (status == STATUS_PEER_LOST) break;
        struct channel_event events[EVENTS];
        size_t count = channel->ops->poll(channel, events, EVENTS);
        for (size_t k = 0; k < count; k++) {
            if (events[k].kind == CHANNEL_RECEIVED) channel->ops->release(channel, events[k].slot);
        }
    }
    channel->ops->close(channel);
    arena_free(&arena);
    return 3;
}

pid_t channel_battery_spawn(const char *role, const char *in, const char *out) {
    const char *program = battery->program;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        execl(program, program, role, in, out, (char *)NULL);
        _exit(4);
    }
    return child;
}

static pid_t start_peer(struct channel *channel, bool both_ways) {
    int to[2], from[2];
    CHECK_INT(pipe(to) | pipe(from), 0);
    char in[16], out[16];
    snprintf(in, sizeof in, "%d", to[0]);
    snprintf(out, sizeof out, "%d", from[1]);
    pid_t child = channel_battery_spawn("flood", in, out);
    write_address(to[1], channel);
    if (both_ways) read_address(from[0], channel);
    CHECK_INT(close(to[0]) | close(to[1]) | close(from[0]) | close(from[1]), 0);
    return child;
}

struct outcome {
    uint64_t received, sent, failed, lost;
};

/* One turn of traffic with the peer; more is sent while it is there. */
static void turn(struct channel *channel, const uint8_t *payload, size_t bytes,
                 struct outcome *outcome) {
    uint8_t header[FRAME_BYTES] = {0};
    enum status status = channel->ops->send(channel, 0, header, payload, bytes, 0);
    CHECK(status == STATUS_OK || status == STATUS_AGAIN || status == STATUS_PEER_LOST);
    struct channel_event events[EVENTS];
    size_t count = channel->ops->poll(channel, events, EVENTS);
    for (size_t i = 0; i < count; i++) {
        if (events[i].kind == CHANNEL_RECEIVED) {
            CHECK_INT(channel_battery_check(&events[i]), 1);
            channel->ops->release(channel, events[i].slot);
            outcome->received++;
        } else if (events[i].kind == CHANNEL_PEER_LOST) {
            CHECK_INT(events[i].peer, 0);
            outcome->lost++;
        } else if (events[i].status == STATUS_OK) {
            outcome->sent++;
        } else {
            CHECK_INT(events[i].status, STATUS_PEER_LOST);
            outcome->failed++;
        }
    }
}

static void test_killed_peer(void) {
    struct channel_config config = channel_battery_config;
    config.slots = 3;
    struct channel *channel = channel_battery_open(&config);
    struct arena arena = {0};
    uint8_t *payload = take_memory(channel, FLOOD_BYTES, &arena);
    uint8_t header[FRAME_BYTES];
    channel_battery_fill(1, header, payload, FLOOD_BYTES);
    /* The same number is connected again and again: slots and sends must not leak with the dead. */
    for (int life = 0; life < 6; life++) {
        size_t bytes = life % 2 ? 4000 : FLOOD_BYTES;
        if (battery->hasten) battery->hasten(channel, false);
        pid_t child = start_peer(channel, true);
        struct outcome outcome = {0};
        int64_t end_ns = clock_now_ns() + CHANNEL_BATTERY_DEADLINE_NS;
        while (outcome.received < 50 || outcome.sent < 50) {
            CHECK(clock_now_ns() < end_ns);
            turn(channel, payload, bytes, &outcome);
            CHECK_INT(outcome.lost, 0);
        }
        CHECK_INT(kill(child, SIGKILL), 0);
        CHECK_INT(waitpid(child, NULL, 0), child);
        if (battery->hasten) battery->hasten(channel, true);
        while (outcome.lost == 0) {
            CHECK(clock_now_ns() < end_ns);
            turn(channel, payload, bytes, &outcome);
        }
        CHECK_INT(channel->ops->send(channel, 0, header, payload, bytes, 0), STATUS_PEER_LOST);
    }
    channel->ops->close(channel);
    arena_free(&arena);
}

/* Close in the midst of traffic, with slots taken and messages waiting; the peer sees it. */
static void test_close_under_traffic(void) {
    struct channel_config config = channel_battery_config;
    config.slots = 2;
    struct channel *channel = channel_battery_open(&config);
    pid_t child = start_peer(channel, true);
    struct channel_event event;
    int64_t end_ns = clock_now_ns() + CHANNEL_BATTERY_DEADLINE_NS;
    for (int taken = 0; taken < 2;) {
        CHECK(clock_now_ns() < end_ns);
        taken += channel->ops->poll(channel, &event, 1) == 1 && event.kind == CHANNEL_RECEIVED;
    }
    for (int i = 0; i < 1000; i++)
        CHECK_INT(channel->ops->poll(channel, &event, 1), 0);
    channel->ops->close(channel);
    int code = 0;
    CHECK_INT(waitpid(child, &code, 0), child);
    CHECK(WIFEXITED(code));
    CHECK_INT(WEXITSTATUS(code), 3);
}

void channel_battery_close_while_fetching(bool stopped, bool both_ways) {
    struct channel *channel = channel_battery_open(&channel_battery_config);
    pid_t child = start_peer(channel, both_ways);
    static uint8_t payload[1 << 20];
    uint8_t header[FRAME_BYTES];
    channel_battery_fill(1, header, payload, sizeof payload);
    struct channel_event event;
    int64_t end_ns = clock_now_ns() + CHANNEL_BATTERY_DEADLINE_NS;
    for (int taken = 0; taken < 5;) {
        CHECK(clock_now_ns() < end_ns);
        taken += channel->ops->poll(channel, &event, 1) == 1 && event.kind == CHANNEL_RECEIVED;
        if (!both_ways) continue;
        enum status status = channel->ops->send(channel, 0, header, payload, sizeof payload, 1);
        CHECK(status == STATUS_OK || status == STATUS_AGAIN);
    }
    if (stopped) CHECK_INT(kill(child, SIGSTOP), 0);
    for (int i = 0; i < 30; i++) {
        channel->ops->poll(channel, &event, 0);
    }
    channel->ops->close(channel);
    CHECK_INT(kill(child, SIGKILL), 0);
    CHECK_INT(waitpid(child, NULL, 0), child);
}

void channel_battery_begin(const struct channel_battery *chosen) {
    battery = chosen;
}

int channel_battery_role(int argc, char **argv) {
    if (argc != 4 || strcmp(argv[1], "flood") != 0) return -1;
    return flood(atoi(argv[2]), atoi(argv[3]));
}

void channel_battery_run(void) {
    TEST_RUN(test_sizes);
    TEST_RUN(test_mixed_through_few_slots);
    TEST_RUN(test_too_long_is_refused);
    TEST_RUN(test_again_at_sends_max);
    TEST_RUN(test_senders_are_held_back);
    TEST_RUN(test_arm_and_sleep);
    TEST_RUN(test_damaged_addresses);
    puts("with a peer in another process");
    TEST_RUN(test_killed_peer);
    TEST_RUN(test_close_under_traffic);
    channel_battery_close_while_fetching(false, false);
    channel_battery_close_while_fetching(false, true);
    channel_battery_close_while_fetching(true, true);
}
