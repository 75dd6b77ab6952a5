/* Proves that what a stranger sends to the control channel's port reaches nobody and is not kept:
 * garbage of many kinds, half a preamble, broken lengths, half a hello, a recorded stream of one
 * who had the key, and more connections than may wait or come in at once; and that the port serves
 * its own again afterwards.
 * How: raw sockets against a listening object (control_pair.h), with virtual time.
 */
#include "base/random.h"
#include "control_pair.h"
#include "log_capture.h"

#include <sys/resource.h>

#define REST_NS (10 * CLOCK_MS) /* after strangers, the port looks again */

/* Whether a stranger gets a word in return. */
enum answer { ANSWER_NONE, ANSWER_SOME, ANSWER_ANY };

static void garbage(const uint8_t *key, const uint8_t *bytes, size_t count, enum answer answer) {
    struct pair pair;
    size_t got = 0;
    bool over = false;
    listen_open(&pair, key);
    int fd = stranger(&pair);
    (void)!send(fd, bytes, count, MSG_NOSIGNAL); // may be cut short: the server closes early
    AWAIT(&pair, over = over || hung_up(fd, &got));
    if (answer != ANSWER_ANY) CHECK_INT(got > 0, answer == ANSWER_SOME);
    CHECK_INT(pair.server.opened + pair.server.closed + pair.server.packets, 0);
    close(fd);
    // The port still serves who speaks its language.
    pair.now_ns += REST_NS;
    side_open(&pair.client, key);
    dial_port(&pair.client, control_tcp_port(pair.server.control));
    AWAIT(&pair, pair.server.opened == 1 && pair.client.opened == 1);
    pair_close(&pair);
}

static void test_garbage(void) {
    static const uint8_t zeros[512];
    static const uint8_t http[] = "GET / HTTP/1.1\r\nHost: rubato\r\n\r\n";
    static const uint8_t near[] = "RBTCTL2\n and more";
    static const uint8_t deny[] = "RBTDENY\n";
    static const uint8_t record[] = {0x16, 3, 1, 0x40, 0};
    static const uint8_t hello[] = {0x16, 3, 1, 0, 5, 1, 0, 0, 1, 3, 9, 9, 9, 9};
    static uint8_t noise[65536];
    struct random_stream stream;
    random_open(&stream, 7, RANDOM_SIMULATOR, 0);
    for (size_t i = 0; i < sizeof(noise); i++) {
        noise[i] = (uint8_t)random_u32(&stream);
    }
    for (int keyed = 0; keyed < 2; keyed++) {
        const uint8_t *key = keyed ? key_a : NULL;
        garbage(key, zeros, sizeof(zeros), ANSWER_NONE);
        garbage(key, http, sizeof(http) - 1, ANSWER_NONE);
        garbage(key, near, sizeof(near) - 1, ANSWER_NONE);
        garbage(key, deny, sizeof(deny) - 1, ANSWER_NONE);
        garbage(key, noise, sizeof(noise), ANSWER_NONE);
        garbage(key, hello, sizeof(hello), keyed ? ANSWER_ANY : ANSWER_SOME);
    }
    // A client hello of 100000 bytes in records of 16 KiB: it is not waited for.
    for (size_t i = 0; i < sizeof(noise); i += sizeof(record) + 16384) {
        memcpy(noise + i, record, sizeof(record));
    }
    static const uint8_t hello_length[4] = {0x01, 0x01, 0x86, 0xa0};
    memcpy(noise + sizeof(record), hello_length, sizeof(hello_length));
    garbage(key_a, noise, 40000, ANSWER_ANY);
}

static void test_slow_preamble(void) {
    for (int keyed = 0; keyed < 2; keyed++) {
        struct pair pair;
        size_t got = 0;
        bool over = false;
        listen_open(&pair, keyed ? key_a : NULL);
        int fd = stranger(&pair);
        for (int i = 0; i < 7; i++) {
            CHECK_INT(send(fd, keyed ? "\x16\x03\x01\x00\x50\x01\x00" + i : "RBTCTL1" + i, 1, 0),
                      1);
            for (int n = 0; n < 3; n++) {
                turn(&pair);
            }
            pair.now_ns += 700 * CLOCK_MS; // 4.9 s in all
            CHECK(!hung_up(fd, &got));
        }
        pair.now_ns += 200 * CLOCK_MS;
        AWAIT(&pair, over = over || hung_up(fd, &got));
        CHECK_INT(pair.server.opened + pair.server.closed, 0);
        close(fd);
        pair_close(&pair);
    }
}

/* A raw peer that gets through the preamble and then breaks the packets' rules. */
static void broken_length(const uint8_t *length, int packets_before) {
    struct pair pair;
    listen_open(&pair, NULL);
    int fd = stranger(&pair);
    CHECK_INT(send(fd, "RBTCTL1\n", 8, 0), 8);
    for (int i = 0; i < packets_before; i++) {
        const uint8_t packet[5] = {1, 0, 0, 0, pattern(1, 0)};
        CHECK_INT(send(fd, packet, sizeof(packet), 0), sizeof(packet));
    }
    CHECK_INT(send(fd, length, 4, 0), 4);
    AWAIT(&pair, pair.server.closed == 1);
    CHECK_INT(pair.server.opened, 1);
    CHECK_INT(pair.server.packets, packets_before);
    CHECK(pair.server.intact);
    CHECK_INT(pair.server.status, STATUS_CORRUPT);
    close(fd);
    pair_close(&pair);
}

static void test_broken_length(void) {
    broken_length((const uint8_t[]){0, 0, 0, 0}, 0);
    broken_length((const uint8_t[]){1, 0, 16, 0}, 3); // MESSAGE_MAX + 1
    broken_length((const uint8_t[]){255, 255, 255, 255}, 1);
}

/* Packets that arrive together with the end of the stream are delivered before it. */
static void test_end_behind_packets(void) {
    struct pair pair;
    listen_open(&pair, NULL);
    int fd = stranger(&pair);
    const uint8_t stream[] = {'R', 'B', 'T', 'C', 'T', 'L', '1', '\n', 1, 0, 0,
                              0,   0,   1,   0,   0,   0,   0,   1,    0, 0, 0};
    uint8_t bytes[sizeof(stream)];
    memcpy(bytes, stream, sizeof(stream));
    bytes[12] = bytes[17] = pattern(1, 0);
    CHECK_INT(send(fd, bytes, sizeof(bytes), 0), sizeof(bytes));
    close(fd);
    AWAIT(&pair, pair.server.closed == 1);
    CHECK_INT(pair.server.opened, 1);
    CHECK_INT(pair.server.packets, 2); // the third is not whole
    CHECK(pair.server.intact);
    CHECK_INT(pair.server.status, STATUS_PEER_LOST);
    pair_close(&pair);
}

/* The first `count` of the sockets are closed by the server, within turns. */
static void await_closed(struct pair *pair, const int *fds, int count) {
    size_t got = 0;
    for (int i = 0; i < count; i++) {
        bool closed = false;
        AWAIT(pair, closed = closed || hung_up(fds[i], &got));
    }
    CHECK_INT(got, 0);
}

/* More strangers than may wait: each has 100 ms; then the oldest make room for the newest, and for
 * one who belongs to the job; what is left ends after 5 s. */
static void test_many_strangers(void) {
    enum { MORE = 40, COUNT = CONTROL_TCP_PENDING_MAX + MORE };
    struct pair pair;
    static int fds[COUNT];
    size_t got = 0;
    listen_open(&pair, NULL);
    for (int i = 0; i < COUNT; i++) {
        fds[i] = stranger(&pair);
        turn(&pair);
    }
    pair.now_ns += 99 * CLOCK_MS;
    turn(&pair);
    for (int i = 0; i < COUNT; i++) {
        CHECK(!hung_up(fds[i], &got));
    }
    pair.now_ns += CLOCK_MS;
    await_closed(&pair, fds, MORE);
    for (int i = MORE; i < COUNT; i++) {
        CHECK(!hung_up(fds[i], &got));
    }
    side_open(&pair.client, NULL);
    dial_port(&pair.client, control_tcp_port(pair.server.control));
    turn(&pair);
    CHECK_INT(pair.server.opened, 0);
    pair.now_ns += 100 * CLOCK_MS;
    AWAIT(&pair, pair.server.opened == 1 && pair.client.opened == 1);
    await_closed(&pair, fds + MORE, 1);
    pair.now_ns += 6 * CLOCK_S;
    await_closed(&pair, fds + MORE + 1, COUNT - MORE - 1);
    CHECK_INT(pair.server.opened + pair.server.closed, 1);
    for (int i = 0; i < COUNT; i++) {
        close(fds[i]);
    }
    pair_close(&pair);
}

/* Garbage comes in at a bounded rate, at first 256 at once; the rest waits, and is told of in few
 * lines. Who speaks the protocol is not counted. */
static void test_rate(void) {
    enum { FIRST = 250, NEXT = 11, COUNT = 290 }; // the kernel keeps 256; NEXT: 6 are left, and 5
    struct pair pair;
    static int fds[COUNT];
    size_t got = 0;
    log_restart();
    listen_open(&pair, NULL);
    for (int i = 0; i < COUNT; i++) {
        fds[i] = stranger(&pair);
        CHECK_INT(send(fds[i], "GET /", 5, 0), 5);
        if (i == FIRST - 1) await_closed(&pair, fds, FIRST);
    }
    pair.now_ns += REST_NS;
    await_closed(&pair, fds + FIRST, NEXT);
    for (int i = 0; i < 20; i++) {
        turn(&pair);
    }
    for (int i = FIRST + NEXT; i < COUNT; i++) {
        CHECK(!hung_up(fds[i], &got));
    }
    pair.now_ns += 100 * CLOCK_MS; // 50 more
    await_closed(&pair, fds + FIRST + NEXT, COUNT - FIRST - NEXT);
    EXPECT_LOG("control: refused or dropped", 1);
    pair.now_ns += 2 * CLOCK_S;
    for (int i = 0; i < COUNT; i++) {
        close(fds[i]);
        int fd = stranger(&pair);
        CHECK_INT(send(fd, "RBTCTL1\n", 8, 0), 8);
        close(fd);
        AWAIT(&pair, pair.server.closed == i + 1);
    }
    CHECK_INT(pair.server.opened, COUNT);
    pair_close(&pair);
}

/* Out of descriptors the listener rests for a second instead of spinning, then goes on. */
static void test_out_of_descriptors(void) {
    struct pair pair;
    struct rlimit limit, low;
    listen_open(&pair, NULL);
    int fd = stranger(&pair);
    CHECK_INT(send(fd, "RBTCTL1\n", 8, 0), 8);
    CHECK_INT(getrlimit(RLIMIT_NOFILE, &limit), 0);
    low = limit;
    int next = dup(fd); // the lowest free descriptor
    CHECK(next >= 0);
    close(next);
    low.rlim_cur = (rlim_t)next;
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &low), 0);
    turn(&pair);
    turn(&pair);
    struct pollfd idle = {.fd = pair.server.control->ops->wait_fd(pair.server.control),
                          .events = POLLIN};
    CHECK_INT(poll(&idle, 1, 0), 0);
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &limit), 0);
    turn(&pair);
    CHECK_INT(pair.server.opened, 0);
    pair.now_ns += CLOCK_S;
    AWAIT(&pair, pair.server.opened == 1);
    close(fd);
    pair_close(&pair);
}

/* Carries at most so many bytes between two sockets. */
static size_t carry(int from, int to, uint8_t *bytes, size_t most) {
    ssize_t got = recv(from, bytes, most, MSG_DONTWAIT);
    if (got <= 0) return 0;
    CHECK_INT(send(to, bytes, (size_t)got, MSG_NOSIGNAL), got);
    return (size_t)got;
}

/* The client's end of a connection that it dials to a listener of the test. */
static int catch_client(struct pair *pair) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_INT(bind(listener, (struct sockaddr *)&address, length), 0);
    CHECK_INT(listen(listener, 4), 0);
    CHECK_INT(getsockname(listener, (struct sockaddr *)&address, &length), 0);
    dial_port(&pair->client, ntohs(address.sin_port));
    int client_end = accept(listener, NULL, NULL);
    CHECK(client_end >= 0);
    close(listener);
    return client_end;
}

/* What a client with the right key once sent, byte for byte, opens nothing when sent again, and is
 * known by its hello. */
static void test_replay(void) {
    static uint8_t record[65536];
    uint8_t answer[4096];
    struct pair pair;
    size_t recorded = 0, got = 0;
    bool over = false;
    int near[2];
    log_restart();
    listen_open(&pair, key_a);
    side_open(&pair.client, key_a);
    // The client's end of a socket pair is handed to the server; so the proxy sits between.
    int client_end = catch_client(&pair);
    CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM, 0, near), 0);
    control_tcp_adopt(pair.server.control, near[1]);
    for (int i = 0; i < 20000 && pair.server.packets == 0; i++) {
        recorded += carry(client_end, near[0], record + recorded, sizeof(record) - recorded);
        (void)carry(near[0], client_end, answer, sizeof(answer));
        turn(&pair);
        if (pair.client.opened == 1 && i % 50 == 49 && pair.server.opened == 1) {
            CHECK_INT(send_pattern(&pair.client, 100), STATUS_OK);
        }
    }
    CHECK(pair.server.packets > 0 && pair.server.intact && recorded > 300);
    close(client_end);
    close(near[0]);
    AWAIT(&pair, pair.server.closed == 1);

    int fd = stranger(&pair);
    CHECK_INT(send(fd, record, recorded, 0), recorded);
    AWAIT(&pair, over = over || hung_up(fd, &got));
    CHECK_INT(pair.server.opened, 1); // the genuine one
    CHECK_INT(got, 0);
    close(fd);
    AWAIT(&pair, log_count("a hello that was here before") == 1);
    pair_close(&pair);
}

/* Nothing to do until the stranger does something. */
static void expect_quiet(struct pair *pair) {
    struct pollfd idle = {.fd = pair->server.control->ops->wait_fd(pair->server.control),
                          .events = POLLIN};
    for (int i = 0; i < 5; i++) {
        turn(pair);
    }
    CHECK_INT(poll(&idle, 1, 0), 0);
}

/* A genuine hello in pieces of 7 bytes gets in. One that is cut short keeps nobody busy, and is
 * over when the stranger closes. */
static void test_pieces(void) {
    static const uint8_t cut[60] = {0x16, 3, 1, 1, 0, 1, 0, 0, 0xfc, 3, 3};
    uint8_t bytes[4096];
    struct pair pair;
    size_t got = 0;
    bool over = false;
    listen_open(&pair, key_a);
    side_open(&pair.client, key_a);
    int client_end = catch_client(&pair), server_end = stranger(&pair);
    for (int i = 0; i < 20000 && pair.server.opened + pair.client.opened < 2; i++) {
        (void)carry(client_end, server_end, bytes, 7);
        (void)carry(server_end, client_end, bytes, sizeof(bytes));
        turn(&pair);
    }
    CHECK_INT(pair.server.opened, 1);
    CHECK_INT(pair.client.opened, 1);
    for (size_t i = 0; i < 2; i++) {
        size_t count = i == 0 ? 3 : sizeof(cut); // in the record's header, and behind it
        int fd = stranger(&pair);
        pair.now_ns += REST_NS;
        CHECK_INT(send(fd, cut, count, 0), count);
        expect_quiet(&pair);
        CHECK(!hung_up(fd, &got));
        CHECK_INT(shutdown(fd, SHUT_WR), 0);
        over = false;
        AWAIT(&pair, over = over || hung_up(fd, &got));
        close(fd);
    }
    CHECK_INT(got, 0);
    close(client_end);
    close(server_end);
    pair_close(&pair);
}

int main(void) {
    log_capture();
    TEST_RUN(test_garbage);
    TEST_RUN(test_slow_preamble);
    TEST_RUN(test_broken_length);
    TEST_RUN(test_end_behind_packets);
    TEST_RUN(test_many_strangers);
    TEST_RUN(test_rate);
    TEST_RUN(test_out_of_descriptors);
    TEST_RUN(test_replay);
    TEST_RUN(test_pieces);
    return 0;
}
