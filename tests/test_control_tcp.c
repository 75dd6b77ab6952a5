/* Proves the control channel over TCP: packets of every size arrive whole and in order both ways,
 * plain and inside TLS; who has another key, or none, is told so; whatever a stranger sends reaches
 * nobody; nothing is kept longer or in greater number than promised; key files obey their rules.
 * How: two control objects (or one and a raw socket) in one process over loopback, polled in turn
 * until what is expected has come. Time is a variable: time limits are passed by adding to it.
 * Packets' content is a function of (length, place), so that the receiver needs no copy.
 */
#include "base/clock.h"
#include "base/random.h"
#include "proto/message.h"
#include "test.h"
#include "transport/control_connection.h"
#include "transport/control_tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint8_t key_a[CONTROL_KEY_BYTES] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
static const uint8_t key_b[CONTROL_KEY_BYTES] = {1, 2, 3, 4, 5, 6, 7, 8, 10};

/* A control object, and what it has told so far. */
struct side {
    struct control *control;
    uint32_t connection; /* of the last OPENED */
    int opened, closed, packets;
    enum status status; /* of the last CLOSED */
    char text[256];
    size_t sizes[64]; /* of the first packets */
    bool intact;      /* all packets had the content that their length implies */
};

struct pair {
    struct side server, client;
    int64_t now_ns;
};

static uint8_t pattern(size_t bytes, size_t place) {
    return (uint8_t)((bytes * 31 + place * 7 + (place >> 8)) & 0xff);
}

static void note(struct side *side, const struct control_event *event) {
    if (event->kind == CONTROL_OPENED) {
        side->opened++;
        side->connection = event->connection;
        snprintf(side->text, sizeof(side->text), "%s", event->text);
    } else if (event->kind == CONTROL_CLOSED) {
        side->closed++;
        side->status = event->status;
        snprintf(side->text, sizeof(side->text), "%s", event->text);
    } else {
        if (side->packets < 64) side->sizes[side->packets] = event->packet_bytes;
        side->packets++;
        for (size_t i = 0; i < event->packet_bytes; i++) {
            if (event->packet[i] != pattern(event->packet_bytes, i)) side->intact = false;
        }
    }
}

/* Polls a side until it has nothing to say; true when it said something. */
static bool drain(struct side *side, int64_t now_ns) {
    struct control_event event;
    bool any = false;
    if (side->control == NULL) return false;
    while (side->control->ops->poll(side->control, now_ns, &event)) {
        note(side, &event);
        any = true;
    }
    return any;
}

/* One turn of both sides, with a millisecond's sleep on their descriptors when all is quiet. */
static void turn(struct pair *pair) {
    bool any = drain(&pair->server, pair->now_ns);
    any = drain(&pair->client, pair->now_ns) || any;
    if (any) return;
    struct pollfd fds[2] = {{.fd = -1, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
    struct side *sides[2] = {&pair->server, &pair->client};
    for (int i = 0; i < 2; i++) {
        struct control *control = sides[i]->control;
        if (control != NULL) fds[i].fd = control->ops->wait_fd(control);
    }
    poll(fds, 2, 1);
}

/* Turns until `condition`; that it never comes is a failure. */
#define AWAIT(pair, condition)                                                                     \
    do {                                                                                           \
        for (int turn_ = 0; turn_ < 20000 && !(condition); turn_++)                                \
            turn(pair);                                                                            \
        CHECK(condition);                                                                          \
    } while (0)

static void side_open(struct side *side, const uint8_t *key) {
    *side = (struct side){.intact = true};
    CHECK_INT(control_tcp_open(&side->control, key), STATUS_OK);
}

static void listen_open(struct pair *pair, const uint8_t *key) {
    *pair = (struct pair){.now_ns = 1000 * CLOCK_S};
    side_open(&pair->server, key);
    CHECK_INT(pair->server.control->ops->listen(pair->server.control, "127.0.0.1", "0"), STATUS_OK);
    CHECK(control_tcp_port(pair->server.control) != 0);
}

static uint32_t dial_port(struct side *side, uint16_t port) {
    char text[8];
    uint32_t connection = UINT32_MAX;
    snprintf(text, sizeof(text), "%u", port);
    CHECK_INT(side->control->ops->dial(side->control, "127.0.0.1", text, &connection), STATUS_OK);
    return connection;
}

/* A listening server, a client that has dialled it. */
static void pair_open(struct pair *pair, const uint8_t *server_key, const uint8_t *client_key) {
    listen_open(pair, server_key);
    side_open(&pair->client, client_key);
    dial_port(&pair->client, control_tcp_port(pair->server.control));
}

static void pair_close(struct pair *pair) {
    if (pair->client.control != NULL) pair->client.control->ops->close(pair->client.control, 0);
    if (pair->server.control != NULL) pair->server.control->ops->close(pair->server.control, 0);
}

static enum status send_pattern(struct side *side, size_t bytes) {
    static uint8_t packet[MESSAGE_MAX];
    for (size_t i = 0; i < bytes; i++) {
        packet[i] = pattern(bytes, i);
    }
    return side->control->ops->send(side->control, side->connection, packet, bytes);
}

static void exchange(const uint8_t *key) {
    static const size_t sizes[] = {
        1,           2,     3,     4,     5,     255,   256,    4095,
        16383,       16384, 16385, 65535, 65536, 70000, 300001, MESSAGE_MAX - 1,
        MESSAGE_MAX, 1};
    const int count = (int)(sizeof(sizes) / sizeof(*sizes));
    struct pair pair;
    char ip[64];
    pair_open(&pair, key, key);
    AWAIT(&pair, pair.server.opened == 1 && pair.client.opened == 1);
    CHECK(strncmp(pair.server.text, "127.0.0.1:", 10) == 0);
    pair.client.control->ops->local_ip(pair.client.control, pair.client.connection, ip, sizeof(ip));
    CHECK_TEXT(ip, "127.0.0.1");
    for (int i = 0; i < count; i++) {
        enum status there, back;
        while ((there = send_pattern(&pair.client, sizes[i])) == STATUS_AGAIN) {
            turn(&pair);
        }
        while ((back = send_pattern(&pair.server, sizes[count - 1 - i])) == STATUS_AGAIN) {
            turn(&pair);
        }
        CHECK_INT(there, STATUS_OK);
        CHECK_INT(back, STATUS_OK);
    }
    AWAIT(&pair, pair.server.packets == count && pair.client.packets == count);
    for (int i = 0; i < count; i++) {
        CHECK_INT(pair.server.sizes[i], sizes[i]);
        CHECK_INT(pair.client.sizes[i], sizes[count - 1 - i]);
    }
    CHECK(pair.server.intact && pair.client.intact);
    CHECK_INT(pair.server.closed + pair.client.closed, 0);
    pair_close(&pair);
}

static void test_exchange_plain(void) {
    exchange(NULL);
}

static void test_exchange_tls(void) {
    exchange(key_a);
}

/* What is queued at the moment of hanging up still arrives, then both are told; the number's use
 * afterwards is harmless. */
static void hang_up(const uint8_t *key) {
    struct pair pair;
    pair_open(&pair, key, key);
    AWAIT(&pair, pair.server.opened == 1 && pair.client.opened == 1);
    CHECK_INT(send_pattern(&pair.server, MESSAGE_MAX), STATUS_OK);
    CHECK_INT(send_pattern(&pair.server, 77), STATUS_OK);
    pair.server.control->ops->hang_up(pair.server.control, pair.server.connection);
    CHECK_INT(send_pattern(&pair.server, 1), STATUS_PEER_LOST);
    AWAIT(&pair, pair.client.closed == 1 && pair.server.closed == 1);
    CHECK_INT(pair.client.packets, 2);
    CHECK(pair.client.intact);
    CHECK_INT(pair.client.status, STATUS_PEER_LOST);
    CHECK_TEXT(pair.client.text, "closed by the other side");
    CHECK_INT(pair.server.status, STATUS_AGAIN);
    CHECK_INT(send_pattern(&pair.server, 1), STATUS_PEER_LOST);
    pair.server.control->ops->hang_up(pair.server.control, pair.server.connection);
    pair_close(&pair);
}

static void test_hang_up(void) {
    hang_up(NULL);
    hang_up(key_a);
}

/* close() with a flush delivers although the other side polls only later, and even though this
 * side leaves input unread. */
static void test_close_flushes(void) {
    struct pair pair;
    pair_open(&pair, key_a, key_a);
    AWAIT(&pair, pair.server.opened == 1 && pair.client.opened == 1);
    CHECK_INT(send_pattern(&pair.client, 5000), STATUS_OK);
    CHECK_INT(send_pattern(&pair.server, 1000), STATUS_OK);
    pair.server.control->ops->close(pair.server.control, 100 * CLOCK_MS);
    pair.server.control = NULL;
    AWAIT(&pair, pair.client.closed == 1);
    CHECK_INT(pair.client.packets, 1);
    CHECK_INT(pair.client.sizes[0], 1000);
    pair_close(&pair);
}

/* A peer that does not read: the queue fills and says AGAIN, and nothing of it is lost. */
static void test_back_pressure(void) {
    struct pair pair;
    int sent = 0;
    pair_open(&pair, NULL, NULL);
    AWAIT(&pair, pair.server.opened == 1 && pair.client.opened == 1);
    while (sent < 60 && send_pattern(&pair.server, MESSAGE_MAX) == STATUS_OK) {
        sent++;
    }
    CHECK(sent >= 3 && sent < 60);
    AWAIT(&pair, pair.client.packets == sent);
    CHECK(pair.client.intact);
    CHECK_INT(send_pattern(&pair.server, MESSAGE_MAX), STATUS_OK);
    AWAIT(&pair, pair.client.packets == sent + 1);
    pair_close(&pair);
}

/* The dialling side is DENIED with `part` in the text, the listening side hears nothing. */
static void denied(const uint8_t *server_key, const uint8_t *client_key, const char *part) {
    struct pair pair;
    pair_open(&pair, server_key, client_key);
    AWAIT(&pair, pair.client.closed == 1);
    CHECK_INT(pair.client.status, STATUS_DENIED);
    if (strstr(pair.client.text, part) == NULL) fprintf(stderr, "text: %s\n", pair.client.text);
    CHECK(strstr(pair.client.text, part) != NULL);
    CHECK_INT(pair.client.opened, 0);
    for (int i = 0; i < 5; i++) {
        turn(&pair);
    }
    CHECK_INT(pair.server.opened + pair.server.closed + pair.server.packets, 0);
    pair_close(&pair);
}

static void test_wrong_key(void) {
    denied(key_a, key_b, "key does not match");
}

static void test_key_against_none(void) {
    denied(NULL, key_a, "we have a key (--key-file), the other side has none");
    denied(key_a, NULL, "the other side has a key (--key-file), we have none");
}

/* A raw socket connected to the server of the pair. */
static int stranger(const struct pair *pair) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(control_tcp_port(pair->server.control)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK_INT(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    CHECK_INT(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    return fd;
}

/* True when the other side has closed; what it sent before is dropped, counted in *got. */
static bool hung_up(int fd, size_t *got) {
    uint8_t bytes[4096];
    ssize_t count = recv(fd, bytes, sizeof(bytes), 0);
    if (count > 0) *got += (size_t)count;
    return count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
}

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
    // Noise that claims to be TLS, and a record that never ends: 16 KiB are read, not more.
    noise[0] = 0x16;
    noise[1] = noise[2] = 3;
    noise[3] = 0x40;
    noise[4] = 0;
    noise[5] = 1;
    noise[6] = 1;
    garbage(key_a, noise, sizeof(noise), ANSWER_ANY);
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

static void test_port_in_use(void) {
    struct pair pair;
    char port[8];
    listen_open(&pair, NULL);
    side_open(&pair.client, NULL);
    snprintf(port, sizeof(port), "%u", control_tcp_port(pair.server.control));
    CHECK_INT(pair.client.control->ops->listen(pair.client.control, "127.0.0.1", port), STATUS_IO);
    CHECK_INT(pair.client.control->ops->listen(pair.client.control, "no such host", "0"),
              STATUS_IO);
    CHECK_INT(control_tcp_port(pair.client.control), 0);
    pair_close(&pair);
}

static void test_dial_fails(void) {
    struct pair pair;
    uint32_t connection;
    listen_open(&pair, NULL);
    uint16_t port = control_tcp_port(pair.server.control);
    pair_close(&pair); // nobody listens there now
    pair.server.control = NULL;
    side_open(&pair.client, NULL);
    dial_port(&pair.client, port);
    AWAIT(&pair, pair.client.closed == 1);
    CHECK_INT(pair.client.status, STATUS_PEER_LOST);
    CHECK_TEXT(pair.client.text, "connection refused");
    struct control *control = pair.client.control;
    CHECK_INT(control->ops->dial(control, "no such host", "29600", &connection), STATUS_OK);
    struct pollfd bell = {.fd = control->ops->wait_fd(control), .events = POLLIN};
    CHECK_INT(poll(&bell, 1, 0), 1); // the failure is there before anything happens on a socket
    AWAIT(&pair, pair.client.closed == 2);
    CHECK_INT(pair.client.status, STATUS_PEER_LOST);
    CHECK_INT(poll(&bell, 1, 0), 0);
    pair_close(&pair);
}

/* Something that accepts and says nothing, and something that says the wrong thing. */
static void test_dial_silence(void) {
    for (int keyed = 0; keyed < 2; keyed++) {
        struct pair pair = {.now_ns = CLOCK_S};
        struct sockaddr_in address = {.sin_family = AF_INET,
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t length = sizeof(address);
        int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK_INT(bind(listener, (struct sockaddr *)&address, length), 0);
        CHECK_INT(listen(listener, 4), 0);
        CHECK_INT(getsockname(listener, (struct sockaddr *)&address, &length), 0);
        side_open(&pair.client, keyed ? key_a : NULL);
        dial_port(&pair.client, ntohs(address.sin_port));
        int fd = accept(listener, NULL, NULL);
        for (int i = 0; i < 5; i++) {
            turn(&pair);
        }
        pair.now_ns += 6 * CLOCK_S;
        AWAIT(&pair, pair.client.closed == 1);
        CHECK_INT(pair.client.status, STATUS_TIMEOUT);
        close(fd);

        dial_port(&pair.client, ntohs(address.sin_port));
        fd = accept(listener, NULL, NULL);
        CHECK_INT(send(fd, "SSH-2.0-x\r\n", 11, 0), 11);
        AWAIT(&pair, pair.client.closed == 2);
        CHECK_INT(pair.client.status, STATUS_CORRUPT);
        close(fd);

        dial_port(&pair.client, ntohs(address.sin_port));
        fd = accept(listener, NULL, NULL);
        close(fd);
        AWAIT(&pair, pair.client.closed == 3);
        CHECK_INT(pair.client.status, STATUS_PEER_LOST);
        CHECK_INT(pair.client.opened, 0);
        close(listener);
        pair_close(&pair);
    }
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

static void write_text(const char *path, const char *text, mode_t mode) {
    unlink(path);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    CHECK(fputs(text, file) >= 0);
    fclose(file);
    CHECK_INT(chmod(path, mode), 0);
}

#define HEX "00112233445566778899aabbccddeeffFFEEDDCCBBAA99887766554433221100"

static void test_key_files(void) {
    char folder[] = "/tmp/rubato-test-XXXXXX";
    char path[64];
    uint8_t key[CONTROL_KEY_BYTES], again[CONTROL_KEY_BYTES];
    struct stat info;
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof(path), "%s/key", folder);
    CHECK_INT(control_tcp_read_key(path, key), STATUS_DENIED);
    CHECK_INT(control_tcp_write_key(path), STATUS_OK);
    CHECK_INT(stat(path, &info), 0);
    CHECK_INT(info.st_mode & 0777, 0600);
    CHECK_INT(info.st_size, 65);
    CHECK_INT(control_tcp_read_key(path, key), STATUS_OK);
    CHECK_INT(control_tcp_write_key(path), STATUS_IO);
    CHECK_INT(control_tcp_read_key(path, again), STATUS_OK);
    CHECK_INT(memcmp(key, again, sizeof(key)), 0);
    unlink(path);
    CHECK_INT(control_tcp_write_key(path), STATUS_OK);
    CHECK_INT(control_tcp_read_key(path, again), STATUS_OK);
    CHECK(memcmp(key, again, sizeof(key)) != 0);

    write_text(path, HEX "\n", 0400);
    CHECK_INT(control_tcp_read_key(path, key), STATUS_OK);
    CHECK(key[1] == 0x11 && key[15] == 0xff && key[16] == 0xff && key[31] == 0);
    static const mode_t modes[] = {0640, 0604, 0644, 0660, 0700, 0606};
    for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); i++) {
        write_text(path, HEX "\n", modes[i]);
        CHECK_INT(control_tcp_read_key(path, key), STATUS_DENIED);
    }
    static const char *malformed[] = {"", "\n", HEX, HEX "\n\n", HEX "0\n", "g" HEX "\n", "zz" HEX};
    for (size_t i = 0; i < sizeof(malformed) / sizeof(*malformed); i++) {
        write_text(path, malformed[i], 0600);
        CHECK_INT(control_tcp_read_key(path, key), STATUS_DENIED);
    }
    CHECK_INT(control_tcp_read_key(folder, key), STATUS_DENIED);
    unlink(path);
    CHECK_INT(rmdir(folder), 0);
}

static void test_loopback(void) {
    CHECK(control_tcp_is_loopback("127.0.0.1") && control_tcp_is_loopback("127.255.3.4"));
    CHECK(control_tcp_is_loopback("::1") && control_tcp_is_loopback("localhost"));
    CHECK(!control_tcp_is_loopback("0.0.0.0") && !control_tcp_is_loopback("10.0.0.1"));
    CHECK(!control_tcp_is_loopback("::") && !control_tcp_is_loopback("128.0.0.1"));
    CHECK(!control_tcp_is_loopback("") && !control_tcp_is_loopback("127.0.0.1.example.org"));
}

int main(void) {
    TEST_RUN(test_exchange_plain);
    TEST_RUN(test_exchange_tls);
    TEST_RUN(test_hang_up);
    TEST_RUN(test_close_flushes);
    TEST_RUN(test_back_pressure);
    TEST_RUN(test_wrong_key);
    TEST_RUN(test_key_against_none);
    TEST_RUN(test_garbage);
    TEST_RUN(test_slow_preamble);
    TEST_RUN(test_broken_length);
    TEST_RUN(test_end_behind_packets);
    TEST_RUN(test_many_strangers);
    TEST_RUN(test_out_of_descriptors);
    TEST_RUN(test_port_in_use);
    TEST_RUN(test_dial_fails);
    TEST_RUN(test_dial_silence);
    TEST_RUN(test_replay);
    TEST_RUN(test_key_files);
    TEST_RUN(test_loopback);
    return 0;
}
