/* Proves that the UCX channel does what every data channel must (channel_battery.h), over the
 * loopback interface and under hostile UCX_* variables; that it names what devices it cannot use,
 * and takes no foreign address; that what is beyond the window of a peer leaves later, or ends with
 * the peer; and that closing returns even where UCX has requests that cannot end.
 *
 * And that rails (rails.h) of such channels send each payload by the channel of the memory that it
 * lies in, with that channel's device current in every call, and wake who sleeps on them; that a
 * rail is connected to whom it sends, and to nobody else; that a peer is lost once, whether one
 * connection to it breaks (its sockets are shut down), cannot be made, or all break, and is there
 * again when it is connected again; that nothing goes to a peer's old address when it has a new
 * one; and that they close with sends in flight. The UCX here
 * need not know CUDA: what lies on a "device" is the host's, and a table of functions stands
 * between the rails and UCX, which says that UCX takes it, and watches.
 */
#include "tests/channel_battery.h"
#include "tests/test.h"
#include "transport/channel_ucx.h"
#include "transport/rails.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

static enum status open_ucx(struct channel **channel, const struct channel_config *config) {
    return channel_ucx_open(channel, config, "lo", "");
}

static void test_devices(void) {
    struct channel *channel = NULL;
    CHECK_INT(channel_ucx_open(&channel, &channel_battery_config, "nonesuch0", ""), STATUS_DEVICE);
    CHECK(!channel);
    char name[64] = "x";
    channel_ucx_device_of("127.0.0.1", name, sizeof name);
    CHECK_TEXT(name, "lo");
    channel_ucx_device_of("203.0.113.77", name, sizeof name);
    CHECK_TEXT(name, "");
}

/* A stopped sender that we have no endpoint to leaves requests that UCX cannot end. Close must
 * return all the same. What it does not free is left in a process of its own, out of leak checkers'
 * sight. */
static void test_close_without_an_end(void) {
    pid_t child = channel_battery_spawn("lonely", NULL, NULL);
    int code = 0;
    CHECK_INT(waitpid(child, &code, 0), child);
    CHECK(WIFEXITED(code));
    CHECK_INT(WEXITSTATUS(code), 0);
}

/* More than the window of bytes that UCX is given for a peer: what is queued behind leaves in turn,
 * also to one whose window is empty meanwhile; and ends with the peer when that is connected anew.
 * */
static void test_window(void) {
    enum { MANY = 12, BYTES = 4 << 20 };
    static uint8_t payloads[2][BYTES];
    struct channel *from = channel_battery_open(&channel_battery_config);
    struct channel *to = channel_battery_open(&channel_battery_config);
    uint8_t header[FRAME_BYTES];
    uint64_t sent = 0, failed = 0, received = 0;
    channel_battery_connect(from, 1, to);
    for (int turn = 0; turn < 2; turn++) {
        channel_battery_fill((uint64_t)turn, header, payloads[turn], BYTES);
        for (uint64_t i = 0; i < MANY; i++)
            CHECK_INT(from->ops->send(from, 1, header, payloads[turn], BYTES, i), STATUS_OK);
        channel_battery_fill(2, header, NULL, 0);
        CHECK_INT(from->ops->send(from, 1, header, NULL, 0, MANY), STATUS_OK);
        if (turn == 1) channel_battery_connect(from, 1, to); /* queued ones are dropped */
        int64_t end_ns = clock_now_ns() + CHANNEL_BATTERY_DEADLINE_NS;
        while (sent + failed < (uint64_t)(turn + 1) * (MANY + 1) ||
               (turn == 0 && received <= MANY)) {
            struct channel_event event;
            CHECK(clock_now_ns() < end_ns);
            if (from->ops->poll(from, &event, 1) == 1 && event.kind == CHANNEL_SENT) {
                sent += event.status == STATUS_OK;
                failed += event.status != STATUS_OK;
            }
            if (to->ops->poll(to, &event, 1) == 1 && event.kind == CHANNEL_RECEIVED) {
                (void)channel_battery_check(&event);
                to->ops->release(to, event.slot);
                received++;
            }
        }
        CHECK(turn == 0 ? failed == 0 : failed >= 1);
    }
    from->ops->close(from);
    to->ops->close(to);
}

/* ---- rails ---- */

enum { RAILS = 2, WAYS = 1 + RAILS, FILES = 1024, PIECE = 300032 };

static struct device gpus[RAILS];
static struct device *const gpu_list[RAILS] = {&gpus[0], &gpus[1]};
static const struct device *current; /* as a thread's CUDA device is */

/* The rails that are open, one set at a time; ways[0] is the first channel. */
static struct channel *ways[WAYS];
static const struct channel_ops *ucx_ops; /* theirs */
static uint64_t way_sends[WAYS], way_connects[WAYS];
static int refused = WAYS;             /* this way cannot connect */
static bool way_files[WAYS][FILES];    /* sockets that connecting made */
static uint8_t memory[WAYS][4][PIECE]; /* of each way's device, the first one's is the host's */

static void enter_gpu(struct device *device) {
    current = device;
}

static const struct device_backend gpu_backend = {.name = "gpu", .enter = enter_gpu};

/* Which one it is; its device must be current. */
static int way_of(const struct channel *channel) {
    int way = 0;
    while (way < WAYS && ways[way] != channel)
        way++;
    CHECK(way < WAYS);
    if (way > 0) CHECK(current == &gpus[way - 1]);
    return way;
}

/* By their names, which touches none: UCX's own thread opens and closes files, too. */
static void list_sockets(bool sockets[FILES]) {
    for (int fd = 0; fd < FILES; fd++) {
        char path[64], name[8] = "";
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        sockets[fd] = readlink(path, name, sizeof name - 1) > 0 && strcmp(name, "socket:") == 0;
    }
}

static enum status watched_connect(struct channel *channel, uint32_t peer, const uint8_t *address,
                                   size_t bytes) {
    bool before[FILES];
    int way = way_of(channel);
    way_connects[way]++;
    if (way == refused) return STATUS_INVALID;
    list_sockets(before);
    enum status status = ucx_ops->connect(channel, peer, address, bytes);
    list_sockets(way_files[way]);
    for (int fd = 0; fd < FILES; fd++)
        way_files[way][fd] = way_files[way][fd] && !before[fd];
    return status;
}

static enum status watched_memory(struct channel *channel, int device, const void *start,
                                  size_t bytes) {
    CHECK(way_of(channel) > 0);
    CHECK_INT(device, 0);
    CHECK(bytes == 0 || start != NULL);
    return STATUS_OK;
}

static enum status watched_send(struct channel *channel, uint32_t peer, const uint8_t *header,
                                const uint8_t *payload, size_t bytes, uint64_t cookie) {
    enum status status = ucx_ops->send(channel, peer, header, payload, bytes, cookie);
    way_sends[way_of(channel)] += status == STATUS_OK;
    return status;
}

static size_t watched_poll(struct channel *channel, struct channel_event *events, size_t capacity) {
    (void)way_of(channel);
    return ucx_ops->poll(channel, events, capacity);
}

static enum status watched_arm(struct channel *channel) {
    (void)way_of(channel);
    return ucx_ops->arm(channel);
}

static void watched_close(struct channel *channel) {
    (void)way_of(channel);
    ucx_ops->close(channel);
}

static struct channel *open_rails(void) {
    static struct channel_ops watched;
    struct channel_config config = channel_battery_config;
    struct channel *channel = NULL;
    struct rail_choice choice = {.count = RAILS, .names = {"card_0:1", "card_1:1"}};
    memset(way_sends, 0, sizeof way_sends);
    memset(way_connects, 0, sizeof way_connects);
    for (int way = 0; way < WAYS; way++) {
        ways[way] = channel_battery_open(&config);
        ucx_ops = ways[way]->ops;
        watched = *ucx_ops;
        watched.connect = watched_connect;
        watched.device_memory = watched_memory;
        watched.send = watched_send;
        watched.poll = watched_poll;
        watched.arm = watched_arm;
        watched.close = watched_close;
        config.slots = 1; /* a rail's */
        config.slot_bytes = 1;
    }
    for (int way = 0; way < WAYS; way++)
        ways[way]->ops = &watched;
    for (int i = 0; i < RAILS; i++)
        gpus[i] = (struct device){.backend = &gpu_backend, .index = i};
    config.devices = gpu_list;
    config.device_count = RAILS;
    CHECK_INT(rails_open(ways[0], ways + 1, &config, &choice, &channel), STATUS_OK);
    for (int i = 0; i < RAILS; i++) {
        CHECK_INT(channel->ops->device_memory(channel, i, NULL, 0), STATUS_OK);
        CHECK_INT(channel->ops->device_memory(channel, i, memory[1 + i], sizeof memory[1 + i]),
                  STATUS_OK);
    }
    return channel;
}

/* What both ends have seen. */
struct seen {
    uint64_t sent, failed, lost, received;
};

static void poll_both(struct channel *rails, struct channel *other, struct seen *seen) {
    struct channel_event events[8];
    size_t count = rails->ops->poll(rails, events, 8);
    for (size_t i = 0; i < count; i++) {
        CHECK(events[i].kind != CHANNEL_RECEIVED);
        seen->lost += events[i].kind == CHANNEL_PEER_LOST;
        bool over = events[i].kind == CHANNEL_SENT;
        seen->sent += over && events[i].status == STATUS_OK;
        seen->failed += over && events[i].status != STATUS_OK;
    }
    count = other != NULL ? other->ops->poll(other, events, 8) : 0;
    for (size_t i = 0; i < count; i++) {
        if (events[i].kind != CHANNEL_RECEIVED) continue;
        (void)channel_battery_check(&events[i]);
        other->ops->release(other, events[i].slot);
        seen->received++;
    }
}

/* A frame of `bytes` in piece `piece` of a way's memory. */
static enum status send_piece(struct channel *rails, uint32_t peer, int way, int piece,
                              size_t bytes) {
    uint8_t header[FRAME_BYTES];
    uint8_t *payload = memory[way][piece];
    channel_battery_fill((uint64_t)way * 4 + (uint64_t)piece, header, payload, bytes);
    return rails->ops->send(rails, peer, header, payload, bytes, (uint64_t)way);
}

/* A frame of each size by each way arrives. */
static void exchange_all(struct channel *rails, uint32_t peer, struct channel *other) {
    static const size_t sizes[] = {0, 500, 20000, PIECE};
    uint64_t before[WAYS];
    struct seen seen = {0};
    int64_t end_ns = clock_now_ns() + CHANNEL_BATTERY_DEADLINE_NS;
    memcpy(before, way_sends, sizeof before);
    for (int i = 0; i < 4 * WAYS; i++)
        CHECK_INT(send_piece(rails, peer, i % WAYS, i / WAYS, sizes[i / WAYS]), STATUS_OK);
    while (seen.sent < 4 * WAYS || seen.received < 4 * WAYS) {
        CHECK(clock_now_ns() < end_ns);
        poll_both(rails, other, &seen);
    }
    CHECK_INT(seen.lost + seen.failed, 0);
    for (int way = 0; way < WAYS; way++)
        CHECK_INT(way_sends[way] - before[way], 4);
}

static void test_rails_send(void) {
    struct channel *rails = open_rails(), *other = channel_battery_open(&channel_battery_config);
    struct channel_stats stats;
    channel_battery_connect(rails, 2, other);
    channel_battery_connect(other, 0, rails);
    exchange_all(rails, 2, other);
    rails->ops->stats(rails, &stats);
    CHECK_INT(stats.sent_frames, 4 * WAYS);
    CHECK_INT(stats.sent_bytes, 4 * WAYS * FRAME_BYTES + WAYS * (500 + 20000 + PIECE));
    CHECK_INT(send_piece(rails, 1, 2, 0, 500), STATUS_PEER_LOST); /* never connected */
    /* What comes in is the first channel's. */
    static uint8_t payload[PIECE];
    uint8_t header[FRAME_BYTES];
    channel_battery_fill(77, header, payload, PIECE);
    CHECK_INT(other->ops->send(other, 0, header, payload, PIECE, 1), STATUS_OK);
    struct channel_event event = channel_battery_wait(rails, other, CHANNEL_RECEIVED);
    CHECK_INT(channel_battery_check(&event), 77);
    rails->ops->release(rails, event.slot);
    rails->ops->close(rails);
    other->ops->close(other);
}

/* A send by each way ends although its sender is polled only when its wait_fd says so. */
static void test_rails_wake(void) {
    struct channel *rails = open_rails(), *other = channel_battery_open(&channel_battery_config);
    struct pollfd fd = {.fd = rails->ops->wait_fd(rails), .events = POLLIN};
    channel_battery_connect(rails, 0, other);
    exchange_all(rails, 0, other);
    for (int way = 0; way < WAYS; way++) {
        struct seen seen = {0};
        int64_t end_ns = clock_now_ns() + CHANNEL_BATTERY_DEADLINE_NS;
        while (rails->ops->arm(rails) == STATUS_AGAIN)
            poll_both(rails, other, &seen);
        CHECK_INT(poll(&fd, 1, 0), 0);
        CHECK_INT(send_piece(rails, 0, way, 0, PIECE), STATUS_OK);
        while (seen.sent == 0) {
            struct channel_event event;
            CHECK(clock_now_ns() < end_ns);
            if (other->ops->poll(other, &event, 1) == 1) other->ops->release(other, event.slot);
            if (rails->ops->arm(rails) == STATUS_AGAIN || poll(&fd, 1, 1) == 1)
                poll_both(rails, NULL, &seen);
        }
        CHECK_INT(seen.sent, 1);
        CHECK_INT(seen.lost + seen.failed, 0);
    }
    rails->ops->close(rails);
    other->ops->close(other);
}

/* Until the peer is lost and all `sends` are over; the loss is told once, also later. */
static void await_loss(struct channel *rails, struct channel *other, uint64_t sends,
                       struct seen *seen) {
    int64_t end_ns = clock_now_ns() + CHANNEL_BATTERY_DEADLINE_NS;
    while (seen->lost == 0 || seen->sent + seen->failed < sends) {
        CHECK(clock_now_ns() < end_ns);
        poll_both(rails, other, seen);
    }
    for (int i = 0; i < 1000; i++)
        poll_both(rails, other, seen);
    CHECK_INT(seen->lost, 1);
    CHECK_INT(seen->sent + seen->failed, sends);
}

/* One of the connections to a peer breaks, of each way in turn: another peer is not touched. */
static void test_rail_lost(void) {
    struct channel *rails = open_rails();
    struct channel *other = channel_battery_open(&channel_battery_config);
    struct channel *neighbour = channel_battery_open(&channel_battery_config);
    channel_battery_connect(rails, 3, neighbour);
    for (int broken = 0; broken < WAYS; broken++) {
        struct seen seen = {0};
        int cut = 0;
        bool files[FILES];
        exchange_all(rails, 3, neighbour);
        channel_battery_connect(rails, 0, other);
        exchange_all(rails, 0, other);
        memcpy(files, way_files[broken], sizeof files);
        for (int way = 0; way < WAYS; way++)
            CHECK_INT(send_piece(rails, 0, way, 0, PIECE), STATUS_OK);
        for (int fd = 0; fd < FILES; fd++)
            cut += files[fd] && shutdown(fd, SHUT_RDWR) == 0;
        CHECK(cut > 0);
        await_loss(rails, other, WAYS, &seen);
        for (int way = 0; way < WAYS; way++)
            CHECK_INT(send_piece(rails, 0, way, 0, 500), STATUS_PEER_LOST);
        exchange_all(rails, 3, neighbour);
    }
    channel_battery_connect(rails, 0, other);
    exchange_all(rails, 0, other);
    rails->ops->close(rails);
    other->ops->close(other);
    neighbour->ops->close(neighbour);
}

/* A frame by one way arrives. */
static void send_one(struct channel *rails, uint32_t peer, struct channel *other, int way) {
    struct seen seen = {0};
    int64_t end_ns = clock_now_ns() + CHANNEL_BATTERY_DEADLINE_NS;
    CHECK_INT(send_piece(rails, peer, way, 0, PIECE), STATUS_OK);
    while (seen.sent + seen.received < 2) {
        CHECK(clock_now_ns() < end_ns);
        poll_both(rails, other, &seen);
    }
    CHECK_INT(seen.lost + seen.failed, 0);
}

/* One that never sends to some peer, or to any, has no connection there, also when it closes. */
static void test_rails_connect_late(void) {
    struct channel *rails = open_rails();
    struct channel *other = channel_battery_open(&channel_battery_config);
    struct channel *neighbour = channel_battery_open(&channel_battery_config);
    static const int ways_of[] = {0, 1, 1, 0, 1};
    channel_battery_connect(rails, 0, other);
    channel_battery_connect(rails, 3, neighbour);
    for (size_t i = 0; i < sizeof ways_of / sizeof ways_of[0]; i++) {
        CHECK_INT(way_connects[1], i > 1);
        send_one(rails, 0, other, ways_of[i]);
    }
    send_one(rails, 3, neighbour, 0);
    for (int way = 0; way < WAYS; way++)
        CHECK_INT(way_connects[way], 2 - way);
    rails->ops->close(rails);
    other->ops->close(other);
    neighbour->ops->close(neighbour);
}

/* The second rail, at its first send to a peer, with one by the other in flight. */
static void test_rail_cannot_connect(void) {
    struct channel *rails = open_rails();
    struct channel *other = channel_battery_open(&channel_battery_config);
    struct channel *neighbour = channel_battery_open(&channel_battery_config);
    channel_battery_connect(rails, 3, neighbour);
    exchange_all(rails, 3, neighbour);
    for (int life = 0; life < 2; life++) {
        struct seen seen = {0};
        channel_battery_connect(rails, 0, other);
        send_one(rails, 0, other, 1);
        CHECK_INT(send_piece(rails, 0, 1, 0, PIECE), STATUS_OK);
        refused = 2;
        CHECK_INT(send_piece(rails, 0, 2, 0, 500), STATUS_PEER_LOST);
        refused = WAYS;
        for (int way = 0; way < WAYS; way++)
            CHECK_INT(send_piece(rails, 0, way, 1, 500), STATUS_PEER_LOST);
        CHECK_INT(rails->ops->arm(rails), STATUS_AGAIN); /* the loss is yet to be told */
        await_loss(rails, other, 1, &seen);
        exchange_all(rails, 3, neighbour);
    }
    channel_battery_connect(rails, 0, other);
    exchange_all(rails, 0, other);
    /* One that was lost and is there again before that was told is not lost. */
    channel_battery_connect(rails, 0, other);
    refused = 2;
    CHECK_INT(send_piece(rails, 0, 2, 0, 500), STATUS_PEER_LOST);
    refused = WAYS;
    channel_battery_connect(rails, 0, other);
    exchange_all(rails, 0, other);
    rails->ops->close(rails);
    other->ops->close(other);
    neighbour->ops->close(neighbour);
}

/* A peer moves with sends by each way in flight to the old address, which is still there. */
static void test_rails_move(void) {
    struct channel *rails = open_rails();
    struct channel *old = channel_battery_open(&channel_battery_config);
    struct channel *new = channel_battery_open(&channel_battery_config);
    struct seen seen = {0};
    int64_t end_ns = clock_now_ns() + CHANNEL_BATTERY_DEADLINE_NS;
    channel_battery_connect(rails, 0, old);
    exchange_all(rails, 0, old);
    for (int way = 0; way < WAYS; way++)
        CHECK_INT(send_piece(rails, 0, way, 0, PIECE), STATUS_OK);
    channel_battery_connect(rails, 0, new);
    while (seen.failed < WAYS) {
        CHECK(clock_now_ns() < end_ns);
        poll_both(rails, NULL, &seen);
    }
    CHECK_INT(seen.lost + seen.sent, 0);
    for (int way = 0; way < WAYS; way++)
        CHECK_INT(way_connects[way], way == 0 ? 2 : 1);
    exchange_all(rails, 0, new);
    for (int way = 0; way < WAYS; way++)
        CHECK_INT(way_connects[way], 2);
    rails->ops->close(rails);
    old->ops->close(old);
    new->ops->close(new);
}

/* All connections to a peer end, since it closes, with sends by each way in flight. */
static void test_rails_peer_closes(void) {
    struct channel *rails = open_rails();
    for (int life = 0; life < 2; life++) {
        struct channel *other = channel_battery_open(&channel_battery_config);
        struct seen seen = {0};
        channel_battery_connect(rails, 0, other);
        exchange_all(rails, 0, other);
        for (int way = 0; way < WAYS; way++)
            CHECK_INT(send_piece(rails, 0, way, 0, PIECE), STATUS_OK);
        other->ops->close(other);
        await_loss(rails, NULL, WAYS, &seen);
        CHECK_INT(seen.failed, WAYS);
        CHECK_INT(send_piece(rails, 0, 1, 0, 500), STATUS_PEER_LOST);
    }
    rails->ops->close(rails);
}

/* The receiver, which is not polled, has taken none of it. */
static void test_rails_close_in_flight(void) {
    struct channel *rails = open_rails(), *other = channel_battery_open(&channel_battery_config);
    channel_battery_connect(rails, 0, other);
    exchange_all(rails, 0, other);
    for (int i = 0; i < 4 * WAYS; i++)
        CHECK_INT(send_piece(rails, 0, i % WAYS, i / WAYS, PIECE), STATUS_OK);
    rails->ops->close(rails);
    memset(memory, 0xff, sizeof memory); /* it is the owner's again */
    for (int i = 0; i < 1000; i++) {
        struct channel_event event;
        if (other->ops->poll(other, &event, 1) == 1) CHECK(event.kind != CHANNEL_RECEIVED);
    }
    other->ops->close(other);
}

/* An address of another kind, UCX or release, or a damaged one, never reaches UCX. */
static void test_foreign_address(void) {
    struct channel *channel = channel_battery_open(&channel_battery_config);
    uint8_t address[CHANNEL_ADDRESS_MAX];
    size_t bytes = 0;
    CHECK_INT(channel->ops->address(channel, address, &bytes), STATUS_OK);
    static const size_t fields[] = {0, 4, 6, 8, 12, 16, 20}; /* as ucx_setup.c has them */
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        address[fields[i]] ^= 1;
        CHECK_INT(channel->ops->connect(channel, 0, address, bytes), STATUS_INVALID);
        address[fields[i]] ^= 1;
    }
    CHECK_INT(channel->ops->connect(channel, 0, address, 20), STATUS_INVALID);
    CHECK_INT(channel->ops->connect(channel, 0, address, bytes), STATUS_OK);
    channel->ops->close(channel);
}

/* What a user may have exported must not matter: the first ones end, stop or slow a process that
 * lets UCX read them, each by itself; the last two are not to be taken away. */
static void export_variables(void) {
    static const char *const variables[][2] = {
        {"UCX_TLS", "nonsense"},
        {"UCX_NET_DEVICES", "nonsense"},
        {"UCX_TCP_TX_SEG_SIZE", "1m"},
        {"UCX_TCP_RX_SEG_SIZE", "2k"},
        {"UCX_ZCOPY_THRESH", "0"},
        {"UCX_TCP_SYN_CNT", "3"},
        {"UCX_TCP_AF_PRIO", "inet6"},
        {"UCX_ALLOC_PRIO", "none"},
        {"UCX_TCP_MAX_CONN_RETRIES", "0"},
        {"UCX_TCP_PORT_RANGE", "40000-40001"},
        {"UCX_TCP_RCVBUF", "4k"},
        {"UCX_TCP_NODELAY", "n"},
        {"UCX_NO_SUCH", "1"},
        {"UCX_MEM_LOG_LEVEL", "warn"},
        {"XUCX_TLS", "tcp"},
    };
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
        CHECK_INT(setenv(variables[i][0], variables[i][1], 1), 0);
}

int main(int argc, char **argv) {
    char program[4096];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    CHECK(length > 0);
    program[length] = 0;
    const struct channel_battery battery = {
        .open = open_ucx, .program = program, .sent_least = 1001};
    channel_battery_begin(&battery);
    export_variables();
    channel_ucx_setup();
    CHECK(!getenv("UCX_TLS") && !getenv("UCX_TCP_RCVBUF") && !getenv("UCX_NO_SUCH"));
    CHECK(getenv("UCX_MEM_LOG_LEVEL") && getenv("XUCX_TLS"));
    int code = channel_battery_role(argc, argv);
    if (code >= 0) return code;
    if (argc == 2 && strcmp(argv[1], "lonely") == 0) {
        channel_battery_close_while_fetching(true, false);
        _exit(0);
    }
    channel_battery_run();
    TEST_RUN(test_foreign_address);
    TEST_RUN(test_devices);
    TEST_RUN(test_close_without_an_end);
    TEST_RUN(test_window);
    TEST_RUN(test_rails_send);
    TEST_RUN(test_rails_wake);
    TEST_RUN(test_rails_connect_late);
    TEST_RUN(test_rail_cannot_connect);
    TEST_RUN(test_rails_move);
    TEST_RUN(test_rail_lost);
    TEST_RUN(test_rails_peer_closes);
    TEST_RUN(test_rails_close_in_flight);
    return 0;
}
