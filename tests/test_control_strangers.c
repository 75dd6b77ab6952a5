/* Proves that what a stranger sends to the control channel's port reaches nobody and is not kept:
 * garbage of many kinds, half a preamble, broken lengths, a recorded stream of who had the key, and
 * more connections than may wait; and that the port serves its own again afterwards.
 * How: raw sockets against a listening object (control_pair.h), with virtual time.
 */
#include "base/random.h"
#include "control_pair.h"

#include <sys/resource.h>

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

/* More strangers than may wait: the newest are closed at once, the first ones after 5 s, and then
 * there is room again. */
static void test_many_strangers(void) {
    enum { COUNT = CONTROL_TCP_PENDING_MAX + 40 };
    struct pair pair;
    static int fds[COUNT];
    size_t got = 0;
    int over = 0;
    listen_open(&pair, NULL);
    for (int i = 0; i < COUNT; i++) {
        fds[i] = stranger(&pair);
        turn(&pair);
    }
    for (int i = CONTROL_TCP_PENDING_MAX; i < COUNT; i++) {
        bool closed = false;
        AWAIT(&pair, closed = closed || hung_up(fds[i], &got));
    }
    for (int i = 0; i < CONTROL_TCP_PENDING_MAX; i++) {
        CHECK(!hung_up(fds[i], &got));
    }
    pair.now_ns += 6 * CLOCK_S;
    turn(&pair);
    for (int i = 0; i < CONTROL_TCP_PENDING_MAX; i++) {
        bool closed = false;
        AWAIT(&pair, closed = closed || hung_up(fds[i], &got));
        over++;
    }
    CHECK_INT(over, CONTROL_TCP_PENDING_MAX);
    CHECK_INT(got, 0);
    for (int i = 0; i < COUNT; i++) {
        close(fds[i]);
    }
    side_open(&pair.client, NULL);
    dial_port(&pair.client, control_tcp_port(pair.server.control));
    AWAIT(&pair, pair.server.opened == 1 && pair.client.opened == 1);
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

/* Carries bytes between two sockets; what came from `from` is kept. */
static void carry(int from, int to, uint8_t *record, size_t *recorded, size_t capacity) {
    uint8_t bytes[4096];
    ssize_t got = recv(from, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got <= 0) return;
    CHECK_INT(send(to, bytes, (size_t)got, MSG_NOSIGNAL), got);
    if (record == NULL) return;
    CHECK(*recorded + (size_t)got <= capacity);
    memcpy(record + *recorded, bytes, (size_t)got);
    *recorded += (size_t)got;
}

/* What a client with the right key once sent, byte for byte, opens nothing when sent again. */
static void test_replay(void) {
    static uint8_t record[65536];
    struct pair pair;
    size_t recorded = 0, got = 0;
    bool over = false;
    int near[2];
    listen_open(&pair, key_a);
    side_open(&pair.client, key_a);
    // The client's end of a socket pair is handed to the server; so the proxy sits between.
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_INT(bind(listener, (struct sockaddr *)&address, length), 0);
    CHECK_INT(listen(listener, 4), 0);
    CHECK_INT(getsockname(listener, (struct sockaddr *)&address, &length), 0);
    dial_port(&pair.client, ntohs(address.sin_port));
    int client_end = accept(listener, NULL, NULL);
    CHECK(client_end >= 0);
    CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM, 0, near), 0);
    control_tcp_adopt(pair.server.control, near[1]);
    for (int i = 0; i < 20000 && pair.server.packets == 0; i++) {
        carry(client_end, near[0], record, &recorded, sizeof(record));
        carry(near[0], client_end, NULL, NULL, 0);
        turn(&pair);
        if (pair.client.opened == 1 && i % 50 == 49 && pair.server.opened == 1) {
            CHECK_INT(send_pattern(&pair.client, 100), STATUS_OK);
        }
    }
    CHECK(pair.server.packets > 0 && pair.server.intact && recorded > 300);
    close(client_end);
    close(near[0]);
    close(listener);
    AWAIT(&pair, pair.server.closed == 1);

    int fd = stranger(&pair);
    CHECK_INT(send(fd, record, recorded, 0), recorded);
    AWAIT(&pair, over = over || hung_up(fd, &got));
    CHECK_INT(pair.server.opened, 1); // the genuine one
    close(fd);
    pair_close(&pair);
}

int main(void) {
    TEST_RUN(test_garbage);
    TEST_RUN(test_slow_preamble);
    TEST_RUN(test_broken_length);
    TEST_RUN(test_end_behind_packets);
    TEST_RUN(test_many_strangers);
    TEST_RUN(test_out_of_descriptors);
    TEST_RUN(test_replay);
    return 0;
}
