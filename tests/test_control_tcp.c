/* Proves the control channel over TCP: packets of every size arrive whole and in order both ways,
 * plain and inside TLS; a hang-up and a close deliver what was queued; a slow reader is felt as
 * AGAIN; who has another key, or none, is told so; every way a dial can fail has its status; key
 * files obey their rules. What strangers can do is test_control_strangers.c.
 * How: two control objects (or one and a raw socket) in one process (control_pair.h).
 */
#include "control_pair.h"

#include <sys/stat.h>

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
    TEST_RUN(test_port_in_use);
    TEST_RUN(test_dial_fails);
    TEST_RUN(test_dial_silence);
    TEST_RUN(test_key_files);
    TEST_RUN(test_loopback);
    return 0;
}
