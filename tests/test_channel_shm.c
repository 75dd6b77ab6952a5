/* Proves that the shared-memory channel does what every data channel must (channel_battery.h), and
 * what only it promises: a payload of the channel's memory is received where it lies, and stays
 * readable after its sender was killed; a peer that hands over unsealed, resized, foreign or
 * malformed memory, or puts bad offsets, lengths, counts or tokens into its rings, loses its
 * connection and nothing else happens; another user's process is refused (as root only); nothing
 * stays open, neither descriptors nor mappings. The bad peer is made by hand from shm_socket.h and
 * shm_box.h.
 */
#define _GNU_SOURCE /* memfd_create; NOLINT(*-identifier*) */

#include "base/checksum.h"
#include "base/log.h"
#include "tests/channel_battery.h"
#include "tests/test.h"
#include "transport/channel_shm.h"
#include "transport/shm_address.h"
#include "transport/shm_link.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define END_NS (clock_now_ns() + CHANNEL_BATTERY_DEADLINE_NS)

static int count_files(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder);
    while (readdir(folder)) {
        count++;
    }
    CHECK_INT(closedir(folder), 0);
    return count;
}

/* Mappings of memfds; other mappings belong to sanitizers and libraries. */
static int count_mappings(void) {
    int count = 0;
    char line[512];
    FILE *file = fopen("/proc/self/maps", "r");
    CHECK(file);
    while (fgets(line, sizeof line, file)) {
        count += strstr(line, "/memfd:") ? 1 : 0;
    }
    CHECK_INT(fclose(file), 0);
    return count;
}

/* ---- in place ---- */

/* The receiver's payload is the sender's memory: what is written there after the send shows. */
static void test_in_place(void) {
    struct channel *a = channel_battery_open(&channel_battery_config);
    struct channel *b = channel_battery_open(&channel_battery_config);
    uint8_t header[FRAME_BYTES], *memory = NULL, elsewhere[4096];
    CHECK_INT(a->ops->memory(a, 1 << 20, &memory), STATUS_OK);
    channel_battery_connect(a, 0, b);
    for (int late = 0; late < 2; late++) { // memory from before the connection, and from after it
        if (late) CHECK_INT(a->ops->memory(a, 1 << 20, &memory), STATUS_OK);
        channel_battery_fill(7, header, memory + 64, 5000);
        CHECK_INT(a->ops->send(a, 0, header, memory + 64, 5000, 1), STATUS_OK);
        struct channel_event event = channel_battery_wait(b, a, CHANNEL_RECEIVED);
        CHECK_INT(channel_battery_check(&event), 7);
        memory[64] ^= 0xff;
        CHECK_INT(event.payload[0], memory[64]);
        b->ops->release(b, event.slot);
        channel_battery_wait(a, b, CHANNEL_SENT);
    }
    channel_battery_fill(8, header, elsewhere, sizeof elsewhere);
    CHECK_INT(a->ops->send(a, 0, header, elsewhere, sizeof elsewhere, 1), STATUS_OK);
    memset(elsewhere, 0, sizeof elsewhere); // it was copied
    struct channel_event event = channel_battery_wait(b, a, CHANNEL_RECEIVED);
    CHECK_INT(channel_battery_check(&event), 8);
    b->ops->release(b, event.slot);
    a->ops->close(a);
    b->ops->close(b);
}

/* One peer that releases nothing has its own part of the sends alone. */
static void test_peer_sends_max(void) {
    struct channel_config config = channel_battery_config;
    config.peer_sends_max = 2;
    struct channel *a = channel_battery_open(&config);
    struct channel *b = channel_battery_open(&config), *c = channel_battery_open(&config);
    uint8_t header[FRAME_BYTES];
    channel_battery_fill(1, header, NULL, 0);
    channel_battery_connect(a, 0, b);
    channel_battery_connect(a, 1, c);
    for (uint64_t i = 0; i < 2; i++) {
        CHECK_INT(a->ops->send(a, 0, header, NULL, 0, i), STATUS_OK);
    }
    CHECK_INT(a->ops->send(a, 0, header, NULL, 0, 2), STATUS_AGAIN);
    CHECK_INT(a->ops->send(a, 1, header, NULL, 0, 3), STATUS_OK);
    struct channel_event event = channel_battery_wait(b, NULL, CHANNEL_RECEIVED);
    CHECK_INT(a->ops->send(a, 0, header, NULL, 0, 2), STATUS_AGAIN);
    b->ops->release(b, event.slot);
    CHECK_INT(channel_battery_wait(a, NULL, CHANNEL_SENT).peer, 0);
    CHECK_INT(a->ops->send(a, 0, header, NULL, 0, 2), STATUS_OK);
    a->ops->close(a);
    b->ops->close(b);
    c->ops->close(c);
}

/* ---- the peer's death ---- */

/* Sends eight frames and waits to be killed. */
static int dying(int in, int out) {
    struct channel *channel = channel_battery_open(&channel_battery_config);
    uint8_t address[CHANNEL_ADDRESS_MAX], header[FRAME_BYTES], *memory = NULL;
    size_t bytes = 0;
    CHECK_INT(read(in, &bytes, sizeof bytes), sizeof bytes);
    CHECK_INT(read(in, address, bytes), bytes);
    CHECK_INT(channel->ops->connect(channel, 0, address, bytes), STATUS_OK);
    CHECK_INT(channel->ops->memory(channel, 8 << 20, &memory), STATUS_OK);
    for (uint64_t i = 0; i < 8; i++) {
        channel_battery_fill(100 + i, header, memory + (i << 20), 1 << 20);
        CHECK_INT(channel->ops->send(channel, 0, header, memory + (i << 20), 1 << 20, i),
                  STATUS_OK);
    }
    CHECK_INT(write(out, "x", 1), 1);
    struct channel_event event;
    while (channel->ops->poll(channel, &event, 1) == 0) {
        (void)poll(NULL, 0, 10);
    }
    return 5; // nothing is to come
}

/* A frame that was sent is received whole, though its sender was killed before it was looked at;
 * frames that are held outlive the sender, too. */
static void test_killed_sender(void) {
    int files = count_files(), mappings = count_mappings();
    struct channel_config config = channel_battery_config;
    config.slots = 3;
    struct channel *channel = channel_battery_open(&config);
    int to[2], from[2];
    char in[16], out[16], byte;
    uint8_t address[CHANNEL_ADDRESS_MAX];
    size_t bytes = 0;
    CHECK_INT(pipe(to) | pipe(from), 0);
    snprintf(in, sizeof in, "%d", to[0]);
    snprintf(out, sizeof out, "%d", from[1]);
    pid_t child = channel_battery_spawn("dying", in, out);
    CHECK_INT(channel->ops->address(channel, address, &bytes), STATUS_OK);
    CHECK_INT(write(to[1], &bytes, sizeof bytes), sizeof bytes);
    CHECK_INT(write(to[1], address, bytes), bytes);
    CHECK_INT(read(from[0], &byte, 1), 1);
    CHECK_INT(kill(child, SIGKILL), 0);
    CHECK_INT(waitpid(child, NULL, 0), child);
    struct channel_event held[3];
    for (int i = 0; i < 3; i++) {
        held[i] = channel_battery_wait(channel, NULL, CHANNEL_RECEIVED);
    }
    CHECK_INT(channel->ops->poll(channel, &held[0], 0), 0);
    for (uint64_t i = 0; i < 3; i++) {
        CHECK_INT(channel_battery_check(&held[i]), 100 + i);
        channel->ops->release(channel, held[i].slot);
    }
    for (uint64_t i = 3; i < 8; i++) {
        held[0] = channel_battery_wait(channel, NULL, CHANNEL_RECEIVED);
        CHECK_INT(channel_battery_check(&held[0]), 100 + i);
        channel->ops->release(channel, held[0].slot);
    }
    /* All of the dead is let go while the channel lives: its bounce ring alone is mapped. */
    CHECK_INT(count_mappings(), mappings + 1);
    channel->ops->close(channel);
    CHECK_INT(close(to[0]) | close(to[1]) | close(from[0]) | close(from[1]), 0);
    CHECK_INT(count_files(), files);
    CHECK_INT(count_mappings(), mappings);
}

/* ---- a bad peer ---- */

/* A channel under test with a bad peer: connected to it as peer 0, and with a sender's link from
 * it, which the test makes by hand. */
struct bad {
    struct channel *channel, *other; /* under test; what peer 0 is */
    struct shm_address own, others;
    struct shm_memory outbox_memory;
    struct shm_box outbox;
    int fd;
    int files, mappings;
};

enum { BAD_ITEMS = 64 };

static void read_own(struct channel *channel, struct shm_address *address) {
    uint8_t bytes[CHANNEL_ADDRESS_MAX];
    size_t length = 0;
    CHECK_INT(channel->ops->address(channel, bytes, &length), STATUS_OK);
    CHECK_INT(length, sizeof *address);
    memcpy(address, bytes, sizeof *address);
}

static void bad_begin(struct bad *bad) {
    *bad = (struct bad){.files = count_files(), .mappings = count_mappings()};
    bad->channel = channel_battery_open(&channel_battery_config);
    bad->other = channel_battery_open(&channel_battery_config);
    channel_battery_connect(bad->channel, 0, bad->other);
    read_own(bad->channel, &bad->own);
    read_own(bad->other, &bad->others);
    CHECK_INT(shm_socket_dial(bad->own.name, &bad->fd), STATUS_OK);
    CHECK_INT(shm_memory_create(&bad->outbox_memory, shm_box_bytes(BAD_ITEMS, SHM_ITEM_WORDS)),
              STATUS_OK);
    bad->outbox = (struct shm_box){
        .memory = bad->outbox_memory.base, .items = BAD_ITEMS, .item_words = SHM_ITEM_WORDS};
}

static void tell(const struct bad *bad, uint32_t kind, uint32_t value, uint64_t bytes, int fd) {
    struct shm_message message = {.magic = SHM_MAGIC, .kind = kind, .value = value, .bytes = bytes};
    memcpy(message.name, bad->others.name, SHM_NAME_BYTES);
    CHECK_INT(shm_socket_send(bad->fd, &message, fd), STATUS_OK);
}

static void hello(const struct bad *bad) {
    tell(bad, SHM_HELLO, BAD_ITEMS, bad->outbox_memory.bytes, bad->outbox_memory.fd);
}

/* A region of a page of ours. */
static void region(const struct bad *bad) {
    struct shm_memory memory = {0};
    CHECK_INT(shm_memory_create(&memory, 4096), STATUS_OK);
    tell(bad, SHM_REGION, 0, memory.bytes, memory.fd);
    shm_memory_free(&memory);
}

static void put(struct bad *bad, uint32_t number, uint64_t offset, uint64_t bytes) {
    struct shm_frame frame = {.token = 1, .region = number, .offset = offset, .bytes = bytes};
    uint64_t item[SHM_ITEM_WORDS] = {0};
    memcpy(item, &frame, sizeof frame);
    shm_box_put(&bad->outbox, item);
}

/* The connection is closed, peer 0 is lost, and no frame has come; the channel works on. */
static void bad_end(struct bad *bad) {
    int64_t end_ns = END_NS;
    struct channel_event event = {0};
    log_set_level(LOG_ERROR);
    while (event.kind != CHANNEL_PEER_LOST) {
        CHECK(clock_now_ns() < end_ns);
        if (bad->channel->ops->poll(bad->channel, &event, 1) == 0) continue;
        CHECK_INT(event.kind, CHANNEL_PEER_LOST);
        CHECK_INT(event.peer, 0);
    }
    log_set_level(LOG_INFO);
    struct shm_message message;
    int fd = -1;
    enum status status = STATUS_OK;
    while (status == STATUS_OK) { // WELCOME may be there
        status = shm_socket_receive(bad->fd, &message, &fd);
        if (fd >= 0) CHECK_INT(close(fd), 0);
    }
    CHECK_INT(status, STATUS_PEER_LOST);
    struct channel_stats stats;
    bad->channel->ops->stats(bad->channel, &stats);
    CHECK_INT(stats.received_frames, 0);
    channel_battery_connect(bad->channel, 0, bad->other);
    uint8_t payload[100], header[FRAME_BYTES];
    channel_battery_fill(3, header, payload, sizeof payload);
    CHECK_INT(bad->channel->ops->send(bad->channel, 0, header, payload, sizeof payload, 1),
              STATUS_OK);
    event = channel_battery_wait(bad->other, bad->channel, CHANNEL_RECEIVED);
    CHECK_INT(channel_battery_check(&event), 3);
    bad->other->ops->release(bad->other, event.slot);
    bad->channel->ops->close(bad->channel);
    bad->other->ops->close(bad->other);
    shm_memory_free(&bad->outbox_memory);
    CHECK_INT(close(bad->fd), 0);
    CHECK_INT(count_files(), bad->files);
    CHECK_INT(count_mappings(), bad->mappings);
}

/* Frames whose payload is not within a region. */
static void test_bad_frames(void) {
    static const struct {
        uint32_t region;
        uint64_t offset, bytes;
    } frames[] = {
        {0, 0, 4097},
        {0, 64, 4096},
        {0, 4096, 1},
        {0, UINT64_MAX - 63, 128},
        {0, 1, 64},
        {0, 0, UINT64_MAX},
        {0, 4032, 65},
        {1, 0, 1},
        {SHM_REGIONS_MAX, 0, 1},
        {UINT32_MAX, 0, 1},
    };
    for (size_t i = 0; i < sizeof frames / sizeof frames[0]; i++) {
        struct bad bad;
        bad_begin(&bad);
        hello(&bad);
        region(&bad);
        put(&bad, frames[i].region, frames[i].offset, frames[i].bytes);
        bad_end(&bad);
    }
}

/* More items than the ring has. */
static void test_bad_count(void) {
    static const uint32_t counts[] = {BAD_ITEMS + 1, UINT32_MAX, 1U << 31};
    for (size_t i = 0; i < 3; i++) {
        struct bad bad;
        bad_begin(&bad);
        hello(&bad);
        bad.outbox.count = counts[i] - 1;
        put(&bad, 0, 0, 0);
        bad_end(&bad);
    }
}

/* The outbox as it must not be: unsealed, with a seal missing, of another size than was said, no
 * memfd, not there; and rings of a size that there is not. */
static void test_bad_memory(void) {
    size_t bytes = 65536;
    for (int which = 0; which < 9; which++) {
        struct bad bad;
        bad_begin(&bad);
        int fd = memfd_create("bad", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        CHECK_INT(ftruncate(fd, (off_t)bytes), 0);
        if (which == 1) CHECK_INT(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), 0);
        if (which == 2) CHECK_INT(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
        if (which >= 3) CHECK_INT(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
        uint32_t items = which == 3 ? 63 : which == 4 ? 512 : which == 5 ? 0 : 256;
        uint64_t said = which == 6 ? bytes * 2 : bytes;
        if (which == 7) {
            CHECK_INT(close(fd), 0);
            fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
        }
        tell(&bad, SHM_HELLO, items, said, which == 8 ? -1 : fd);
        CHECK_INT(close(fd), 0);
        /* No name was believed, so peer 0 is not known to be the one. */
        int64_t end_ns = END_NS;
        struct channel_event event;
        struct pollfd closed = {.fd = bad.fd, .events = POLLIN};
        log_set_level(LOG_ERROR);
        while (poll(&closed, 1, 0) == 0) {
            CHECK(clock_now_ns() < end_ns);
            CHECK_INT(bad.channel->ops->poll(bad.channel, &event, 1), 0);
        }
        log_set_level(LOG_INFO);
        struct shm_message message;
        CHECK_INT(shm_socket_receive(bad.fd, &message, &fd), STATUS_PEER_LOST);
        bad.channel->ops->close(bad.channel);
        bad.other->ops->close(bad.other);
        shm_memory_free(&bad.outbox_memory);
        CHECK_INT(close(bad.fd), 0);
        CHECK_INT(count_files(), bad.files);
        CHECK_INT(count_mappings(), bad.mappings);
    }
}

/* After a good HELLO: messages that are none, and descriptors that nobody wants. */
static void test_bad_messages(void) {
    for (int which = 0; which < 7; which++) {
        struct bad bad;
        bad_begin(&bad);
        hello(&bad);
        int fd = memfd_create("bad", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        CHECK_INT(ftruncate(fd, 4096), 0);
        if (which == 0) hello(&bad);
        if (which == 1) tell(&bad, SHM_REGION, 0, 4096, fd); // not sealed
        if (which == 2) tell(&bad, SHM_REGION, SHM_REGIONS_MAX, 4096, fd);
        if (which == 3) tell(&bad, SHM_BELL, 0, 4096, fd);
        if (which == 4) tell(&bad, SHM_WELCOME, 0, 0, -1);
        if (which == 5) CHECK_INT(write(bad.fd, "garbage", 7), 7);
        if (which == 6) {
            region(&bad);
            region(&bad); // the same number again
        }
        CHECK_INT(close(fd), 0);
        bad_end(&bad);
    }
}

/* A receiver that returns what it was not sent. The test is peer 0's receiving side. */
static void test_bad_returns(void) {
    static const uint64_t tokens[] = {1000, UINT32_MAX, UINT64_MAX, 5};
    for (size_t i = 0; i < 4; i++) {
        int files = count_files(), mappings = count_mappings();
        struct channel *channel = channel_battery_open(&channel_battery_config);
        struct shm_address address;
        uint8_t name[SHM_NAME_BYTES], header[FRAME_BYTES] = {0};
        int listening = -1, fd = -1;
        CHECK_INT(shm_socket_listen(&listening, name), STATUS_OK);
        CHECK_INT(shm_address_make(&address, name), STATUS_OK);
        CHECK_INT(channel->ops->connect(channel, 0, (const uint8_t *)&address, sizeof address),
                  STATUS_OK);
        CHECK_INT(channel->ops->send(channel, 0, header, NULL, 0, 77), STATUS_OK);
        CHECK_INT(shm_socket_accept(listening, &fd), STATUS_OK);
        struct shm_memory memory = {0};
        CHECK_INT(shm_memory_create(&memory, shm_box_bytes(64, 1)), STATUS_OK);
        struct shm_box returns = {.memory = memory.base, .items = 64, .item_words = 1};
        shm_box_put(&returns, &tokens[i]);
        struct shm_message message = {
            .magic = SHM_MAGIC, .kind = SHM_WELCOME, .bytes = memory.bytes};
        CHECK_INT(shm_socket_send(fd, &message, memory.fd), STATUS_OK);
        log_set_level(LOG_ERROR);
        struct channel_event event = channel_battery_wait(channel, NULL, CHANNEL_SENT);
        CHECK(event.cookie == 77 && event.status == STATUS_PEER_LOST);
        event = channel_battery_wait(channel, NULL, CHANNEL_PEER_LOST);
        log_set_level(LOG_INFO);
        CHECK_INT(event.peer, 0);
        CHECK_INT(channel->ops->send(channel, 0, header, NULL, 0, 1), STATUS_PEER_LOST);
        channel->ops->close(channel);
        shm_memory_free(&memory);
        CHECK_INT(close(listening) | close(fd), 0);
        CHECK_INT(count_files(), files);
        CHECK_INT(count_mappings(), mappings);
    }
}

/* ---- who may connect ---- */

static void test_another_user(void) {
    if (geteuid() != 0) {
        puts("  skipped: only root can be two users");
        return;
    }
    struct channel *channel = channel_battery_open(&channel_battery_config);
    struct shm_address address;
    read_own(channel, &address);
    int ready[2];
    CHECK_INT(pipe(ready), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int fd = -1;
        if (setgid(65534) != 0 || setuid(65534) != 0) _exit(3);
        if (shm_socket_dial(address.name, &fd) != STATUS_DENIED) _exit(4);
        _exit(0);
    }
    int code = 0;
    CHECK_INT(waitpid(child, &code, 0), child);
    CHECK(WIFEXITED(code));
    CHECK_INT(WEXITSTATUS(code), 0);
    CHECK_INT(close(ready[0]) | close(ready[1]), 0);
    /* Without a look at who listens, the one who accepts refuses. */
    int listening = -1, fd = -1;
    uint8_t name[SHM_NAME_BYTES];
    CHECK_INT(shm_socket_listen(&listening, name), STATUS_OK);
    CHECK_INT(seteuid(65534), 0);
    enum status status = shm_socket_dial(name, &fd);
    CHECK_INT(seteuid(0), 0);
    CHECK_INT(status, STATUS_DENIED);
    CHECK_INT(shm_socket_accept(listening, &fd), STATUS_DENIED);
    CHECK_INT(shm_socket_accept(listening, &fd), STATUS_AGAIN);
    CHECK_INT(close(listening), 0);
    channel->ops->close(channel);
}

static void test_no_way(void) {
    struct channel *channel = channel_battery_open(&channel_battery_config);
    struct shm_address address, moved;
    read_own(channel, &address);
    moved = address;
    moved.boot[3] ^= 1; // another host
    moved.crc32c = checksum_crc32c(&moved, offsetof(struct shm_address, crc32c));
    CHECK_INT(channel->ops->connect(channel, 0, (const uint8_t *)&moved, sizeof moved),
              STATUS_PEER_LOST);
    CHECK_INT(shm_address_make(&moved, (const uint8_t[SHM_NAME_BYTES]){1, 2, 3}), STATUS_OK);
    CHECK_INT(channel->ops->connect(channel, 0, (const uint8_t *)&moved, sizeof moved),
              STATUS_PEER_LOST); // nobody listens
    CHECK_INT(channel->ops->connect(channel, 0, (const uint8_t *)&address, sizeof address),
              STATUS_OK); // itself
    channel->ops->close(channel);
}

int main(int argc, char **argv) {
    char program[4096];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    CHECK(length > 0);
    program[length] = 0;
    const struct channel_battery battery = {
        .open = channel_shm_open, .program = program, .sent_least = 64};
    channel_battery_begin(&battery);
    int code = channel_battery_role(argc, argv);
    if (code >= 0) return code;
    if (argc == 4 && strcmp(argv[1], "dying") == 0) return dying(atoi(argv[2]), atoi(argv[3]));
    int files = count_files(), mappings = count_mappings();
    channel_battery_run();
    TEST_RUN(test_in_place);
    TEST_RUN(test_peer_sends_max);
    TEST_RUN(test_killed_sender);
    TEST_RUN(test_bad_frames);
    TEST_RUN(test_bad_count);
    TEST_RUN(test_bad_memory);
    TEST_RUN(test_bad_messages);
    TEST_RUN(test_bad_returns);
    TEST_RUN(test_another_user);
    TEST_RUN(test_no_way);
    CHECK_INT(count_files(), files);
    CHECK_INT(count_mappings(), mappings);
    return 0;
}
