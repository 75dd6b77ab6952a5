/* Proves that the tls channel does what every data channel must (channel_battery.h), encrypted and
 * without a key, and what only it promises: records are AES-256-GCM with counted nonces (OpenSSL's
 * one-shot interface as the oracle) and open in their place alone; a bit that is changed anywhere
 * in a stream, a connection cut at any moment, a sender that stalls, new keys every few frames: all
 * frames still arrive, once and whole; another key, a recorded stream and a process that has taken
 * another's place get nothing in; thousands of strangers in mid-transfer and more than may wait
 * change nothing; no descriptor stays open. What happens on the way is done by a proxy of this
 * process between the two channels.
 */
#include "tests/channel_battery.h"
#include "tests/log_capture.h"
#include "tests/tcp_proxy.h"
#include "tests/test.h"
#include "transport/channel_tls_parts.h"
#include "transport/control_tcp.h"
#include "transport/tls_hello.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEASE_NS  (2 * CLOCK_S)
#define SOON_NS   (100 * CLOCK_MS)
#define WIRE_NAME "TEST_CHANNEL_TLS_WIRE"
#define END_NS    (clock_now_ns() + CHANNEL_BATTERY_DEADLINE_NS)

static const uint8_t key_a[CONTROL_KEY_BYTES] = {1, 2, 3};
static const uint8_t key_b[CONTROL_KEY_BYTES] = {1, 2, 4};

static struct channel *open_with(const struct channel_config *config, enum tls_wire wire,
                                 const uint8_t *key, uint64_t key_records) {
    struct channel *channel = NULL;
    const struct channel_tls_config tls = {.ip = "127.0.0.1",
                                           .key = key,
                                           .wire = wire,
                                           .lease_ns = LEASE_NS,
                                           .key_records = key_records};
    CHECK_INT(channel_tls_open(&channel, config, &tls), STATUS_OK);
    return channel;
}

/* The battery's: with the protection that the environment names; another name is plain
 * without a key. */
static enum status open_named(struct channel **channel, const struct channel_config *config) {
    const char *name = getenv(WIRE_NAME);
    enum tls_wire wire = TLS_WIRE_PLAIN;
    CHECK(name);
    bool keyed = channel_tls_wire(name, &wire) == STATUS_OK;
    *channel = open_with(config, wire, keyed ? key_a : NULL, 0);
    return STATUS_OK;
}

/* The lease is read anew whenever a connection is looked at. */
static void hasten(struct channel *channel, bool on) {
    ((struct tls *)channel)->self.lease_ns = on ? SOON_NS : LEASE_NS;
}

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

/* ---- records ---- */

/* The record's oracle: OpenSSL, with the nonce made by hand. */
static void seal_plainly(const uint8_t *secret, uint64_t record, bool aad, const uint8_t *plain,
                         size_t bytes, uint8_t *out) {
    uint8_t nonce[12];
    int count = 0;
    memcpy(nonce, secret + 32, sizeof nonce);
    nonce[11] ^= (uint8_t)record;
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    CHECK(context);
    CHECK_INT(EVP_EncryptInit_ex(context, EVP_aes_256_gcm(), NULL, secret, nonce), 1);
    CHECK_INT(EVP_EncryptUpdate(context, aad ? NULL : out, &count, plain, (int)bytes), 1);
    if (aad) memcpy(out, plain, bytes);
    CHECK_INT(EVP_EncryptFinal_ex(context, out + bytes, &count), 1);
    CHECK_INT(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, 16, out + bytes), 1);
    EVP_CIPHER_CTX_free(context);
}

static void test_records(void) {
    uint8_t secret[TLS_CIPHER_SECRET_BYTES], plain[100], sealed[3][116], expected[116];
    for (size_t i = 0; i < sizeof secret; i++) {
        secret[i] = (uint8_t)(i * 7);
    }
    for (size_t i = 0; i < sizeof plain; i++) {
        plain[i] = (uint8_t)i;
    }
    for (int wire = TLS_WIRE_AUTH; wire <= TLS_WIRE_ENCRYPT; wire++) {
        struct tls_cipher seal, open;
        CHECK_INT(tls_cipher_init(&seal, wire, secret, true), STATUS_OK);
        for (uint64_t record = 0; record < 3; record++) {
            tls_cipher_seal(&seal, plain, sizeof plain, sealed[record]);
            seal_plainly(secret, record, wire == TLS_WIRE_AUTH, plain, sizeof plain, expected);
            CHECK(memcmp(sealed[record], expected, sizeof expected) == 0);
        }
        CHECK(memcmp(sealed[0], sealed[1], sizeof expected) != 0);
        tls_cipher_free(&seal);
        /* In its place a record opens; with any bit changed, or in another's place, it does not. */
        for (size_t bit = 0; bit <= 8 * sizeof expected + 1; bit++) {
            uint8_t copy[116];
            bool whole = bit == 8 * sizeof expected;
            bool moved = bit > 8 * sizeof expected;
            CHECK_INT(tls_cipher_init(&open, wire, secret, false), STATUS_OK);
            memcpy(copy, sealed[moved ? 1 : 0], sizeof copy);
            if (!whole && !moved) copy[bit / 8] ^= (uint8_t)(1 << bit % 8);
            CHECK_INT(tls_cipher_open(&open, copy, 100, copy + 100),
                      whole ? STATUS_OK : STATUS_CORRUPT);
            if (whole) CHECK(memcmp(copy, plain, sizeof plain) == 0);
            tls_cipher_free(&open);
        }
    }
}

static void address_of(struct channel *channel, struct tls_address *address) {
    uint8_t bytes[CHANNEL_ADDRESS_MAX];
    size_t count = 0;
    CHECK_INT(channel->ops->address(channel, bytes, &count), STATUS_OK);
    CHECK_INT(tls_hello_get_address(bytes, count, address), STATUS_OK);
}

/* Connects by way of the proxy. */
static void proxy_connect(struct proxy *proxy, struct channel *from, struct channel *to) {
    struct tls_address address;
    uint8_t bytes[TLS_ADDRESS_BYTES];
    *proxy = (struct proxy){.flip_at = UINT64_MAX, .record = proxy->record};
    for (size_t i = 0; i < TCP_PROXY_PIPES; i++) {
        proxy->pipes[i].in = -1;
    }
    address_of(to, &address);
    proxy->to = address.port;
    address.port = listen_anywhere(&proxy->listener);
    tls_hello_put_address(&address, bytes);
    CHECK_INT(from->ops->connect(from, 0, bytes, sizeof bytes), STATUS_OK);
}

static void proxy_close(struct proxy *proxy) {
    proxy_cut(proxy);
    CHECK_INT(close(proxy->listener), 0);
}

/* ---- a transfer ---- */

#define FRAMES_MAX 400
#define FRAME_MOST ((size_t)200000)

/* Frames 0..total-1 from one channel to another; each must come once, whole, with its own bytes. */
struct transfer {
    struct channel *from, *to;
    struct proxy *proxy; /* NULL: none */
    uint64_t total, next, sent, received, lost;
    uint64_t payloads; /* buffers */
    bool seen[FRAMES_MAX];
    bool busy[16];
    uint8_t payload[16][FRAME_MOST];
};

static size_t size_of(uint64_t id) {
    static const size_t sizes[] = {0, 200000, 7, 70000, 65536, 1000, 131072};
    return sizes[id % 7];
}

static void transfer_turn(struct transfer *transfer) {
    struct channel *from = transfer->from, *to = transfer->to;
    struct channel_event events[64];
    for (uint64_t i = 0; i < 16 && transfer->next < transfer->total; i++) {
        uint8_t header[FRAME_BYTES];
        if (transfer->busy[i]) continue;
        size_t bytes = size_of(transfer->next);
        channel_battery_fill(transfer->next, header, transfer->payload[i], bytes);
        if (from->ops->send(from, 0, header, transfer->payload[i], bytes, i) != STATUS_OK) break;
        transfer->busy[i] = true;
        transfer->next++;
    }
    size_t count = from->ops->poll(from, events, 64);
    for (size_t i = 0; i < count; i++) {
        if (events[i].kind == CHANNEL_PEER_LOST) transfer->lost++;
        if (events[i].kind != CHANNEL_SENT) continue;
        CHECK(transfer->busy[events[i].cookie]);
        transfer->busy[events[i].cookie] = false;
        if (events[i].status == STATUS_OK) transfer->sent++;
    }
    count = to->ops->poll(to, events, 64);
    for (size_t i = 0; i < count; i++) {
        CHECK_INT(events[i].kind, CHANNEL_RECEIVED);
        uint64_t id = channel_battery_check(&events[i]);
        CHECK(id < transfer->total && !transfer->seen[id]);
        transfer->seen[id] = true;
        transfer->received++;
        to->ops->release(to, events[i].slot);
    }
    if (transfer->proxy) proxy_turn(transfer->proxy);
}

static struct transfer *transfer_begin(struct channel *from, struct channel *to,
                                       struct proxy *proxy, uint64_t total) {
    static struct transfer transfer;
    memset(&transfer, 0, sizeof transfer);
    transfer.from = from;
    transfer.to = to;
    transfer.proxy = proxy;
    transfer.total = total;
    return &transfer;
}

static void transfer_finish(struct transfer *transfer) {
    int64_t end_ns = END_NS;
    while (transfer->sent < transfer->total || transfer->received < transfer->total) {
        CHECK(clock_now_ns() < end_ns);
        CHECK_INT(transfer->lost, 0);
        transfer_turn(transfer);
    }
}

static void close_all(struct channel *a, struct channel *b, struct proxy *proxy) {
    a->ops->close(a);
    b->ops->close(b);
    if (proxy) proxy_close(proxy);
}

/* ---- on the way ---- */

/* A bit is changed: in the handshake, in the hello, in heads, payloads and tags. */
static void test_changed_bits(void) {
    static struct proxy proxy;
    int changed = 0;
    static uint8_t record[TCP_PROXY_RECORD];
    proxy.record = record;
    for (int wire = TLS_WIRE_AUTH; wire <= TLS_WIRE_ENCRYPT; wire++) {
        for (uint64_t at = 3; at < 500000; at += at < 2000 ? 97 : at) {
            struct channel *a = open_with(&channel_battery_config, wire, key_a, 0);
            struct channel *b = open_with(&channel_battery_config, wire, key_a, 0);
            proxy_connect(&proxy, a, b);
            proxy.flip_at = at;
            log_restart();
            transfer_finish(transfer_begin(a, b, &proxy, 14));
            CHECK(proxy.passed > at);
            CHECK_INT(log_count("tls: refused or dropped"), 1);
            changed += log_count("was changed on its way");
            close_all(a, b, &proxy);
        }
    }
    CHECK(changed > 20);
}

static void test_cut_connections(void) {
    static struct proxy proxy;
    static uint8_t record[TCP_PROXY_RECORD];
    proxy.record = record;
    for (int wire = TLS_WIRE_PLAIN; wire <= TLS_WIRE_ENCRYPT; wire++) {
        struct channel *a = open_with(&channel_battery_config, wire, key_a, 0);
        struct channel *b = open_with(&channel_battery_config, wire, key_a, 0);
        proxy_connect(&proxy, a, b);
        struct transfer *transfer = transfer_begin(a, b, &proxy, FRAMES_MAX);
        log_restart();
        int64_t end_ns = END_NS;
        uint64_t cut_at = 1;
        while (transfer->sent < transfer->total) {
            CHECK(clock_now_ns() < end_ns && transfer->lost == 0);
            memory_forbid(true); /* as in a step loop; to connect anew is allowed to allocate */
            transfer_turn(transfer);
            memory_forbid(false);
            if (proxy.passed < cut_at) continue;
            proxy_cut(&proxy);
            cut_at = proxy.passed + 1000 + cut_at % 3000000;
        }
        transfer_finish(transfer);
        CHECK(log_count("is back after") > 5);
        close_all(a, b, &proxy);
    }
}

/* The sender stalls within a frame for more than a lease: its slot is given to others, and the
 * frame comes all the same. */
static void test_stalled_sender(void) {
    static struct proxy proxy;
    static uint8_t record[TCP_PROXY_RECORD], payload[100];
    struct channel_config one = channel_battery_config;
    proxy.record = record;
    one.slots = 1;
    struct channel *a = open_with(&channel_battery_config, TLS_WIRE_ENCRYPT, key_a, 0);
    struct channel *b = open_with(&one, TLS_WIRE_ENCRYPT, key_a, 0);
    struct channel *c = open_with(&channel_battery_config, TLS_WIRE_ENCRYPT, key_a, 0);
    proxy_connect(&proxy, a, b);
    struct transfer *transfer = transfer_begin(a, b, &proxy, 2); /* the second has 200000 bytes */
    int64_t end_ns = END_NS;
    while (proxy.passed < 100000) {
        CHECK(clock_now_ns() < end_ns);
        transfer_turn(transfer);
    }
    proxy.stalled = true;
    channel_battery_connect(c, 3, b);
    uint8_t header[FRAME_BYTES];
    channel_battery_fill(77, header, payload, sizeof payload);
    CHECK_INT(c->ops->send(c, 3, header, payload, sizeof payload, 0), STATUS_OK);
    struct channel_event event = {0}, other;
    while (b->ops->poll(b, &event, 1) == 0) {
        CHECK(clock_now_ns() < end_ns);
        c->ops->poll(c, &other, 1);
        CHECK_INT(a->ops->poll(a, &other, 1), 0);
    }
    CHECK_INT(channel_battery_check(&event), 77);
    b->ops->release(b, event.slot);
    proxy.stalled = false;
    transfer_finish(transfer);
    close_all(a, b, &proxy);
    c->ops->close(c);
}

static void test_new_keys(void) {
    for (int wire = TLS_WIRE_AUTH; wire <= TLS_WIRE_ENCRYPT; wire++) {
        struct channel *a = open_with(&channel_battery_config, wire, key_a, 20);
        struct channel *b = open_with(&channel_battery_config, wire, key_a, 20);
        channel_battery_connect(a, 0, b);
        log_restart();
        transfer_finish(transfer_begin(a, b, NULL, FRAMES_MAX));
        CHECK_INT(log_count("warn tls:"), 0); /* nothing is wrong with that */
        close_all(a, b, NULL);
    }
}

/* ---- who must not come in ---- */

/* Turns until the sender has lost its peer; nothing may arrive. */
static void expect_lost(struct transfer *transfer) {
    int64_t end_ns = END_NS;
    while (transfer->lost == 0) {
        CHECK(clock_now_ns() < end_ns);
        transfer_turn(transfer);
        CHECK_INT(transfer->received + transfer->sent, 0);
    }
}

static void test_another_key(void) {
    for (int keyed = 0; keyed < 3; keyed++) { /* another one; none against one; one against none */
        bool any_plain = keyed > 0;
        enum tls_wire wire = any_plain ? TLS_WIRE_PLAIN : TLS_WIRE_ENCRYPT;
        struct channel *a = open_with(&channel_battery_config, wire, keyed == 1 ? NULL : key_a, 0);
        struct channel *b = open_with(&channel_battery_config, wire, keyed == 2 ? NULL : key_b, 0);
        channel_battery_connect(a, 0, b);
        log_restart();
        struct transfer *transfer = transfer_begin(a, b, NULL, 3);
        int64_t end_ns = END_NS;
        while (log_count("tls: refused or dropped") == 0) {
            CHECK(clock_now_ns() < end_ns);
            transfer_turn(transfer);
        }
        hasten(a, true);
        expect_lost(transfer);
        CHECK_INT(log_count("tls: refused or dropped 1 connections"), 1);
        close_all(a, b, NULL);
    }
}

/* Where the peer listened there is another channel now, of the same job. */
static void test_another_process(void) {
    static struct proxy proxy;
    static uint8_t record[TCP_PROXY_RECORD];
    proxy.record = record;
    struct channel *a = open_with(&channel_battery_config, TLS_WIRE_ENCRYPT, key_a, 0);
    struct channel *b = open_with(&channel_battery_config, TLS_WIRE_ENCRYPT, key_a, 0);
    struct channel *c = open_with(&channel_battery_config, TLS_WIRE_ENCRYPT, key_a, 0);
    struct tls_address address;
    proxy_connect(&proxy, a, b);
    address_of(c, &address);
    proxy.to = address.port;
    expect_lost(transfer_begin(a, c, &proxy, 3));
    close_all(a, b, &proxy);
    c->ops->close(c);
}

/* Who records a connection from its first byte and plays it again gets nothing in. */
static void test_replay(void) {
    static struct proxy proxy;
    static uint8_t record[TCP_PROXY_RECORD];
    proxy.record = record;
    for (int wire = TLS_WIRE_PLAIN; wire <= TLS_WIRE_ENCRYPT; wire++) {
        struct channel *a = open_with(&channel_battery_config, wire, key_a, 0);
        struct channel *b = open_with(&channel_battery_config, wire, key_a, 0);
        struct tls_address address;
        struct channel_event event;
        proxy_connect(&proxy, a, b);
        transfer_finish(transfer_begin(a, b, &proxy, 4));
        CHECK(proxy.recorded > 1000);
        address_of(b, &address);
        int fd = dial_port(address.port);
        size_t at = 0;
        uint8_t bytes[4096];
        int64_t end_ns = END_NS;
        for (bool over = false; !over;) {
            CHECK(clock_now_ns() < end_ns);
            ssize_t put = send(fd, record + at, proxy.recorded - at, MSG_NOSIGNAL);
            if (put > 0) at += (size_t)put;
            CHECK_INT(b->ops->poll(b, &event, 1), 0);
            ssize_t got = recv(fd, bytes, sizeof bytes, 0);
            over = got == 0 || (got < 0 && errno != EAGAIN);
        }
        CHECK_INT(close(fd), 0);
        close_all(a, b, &proxy);
    }
}

static const struct {
    const char *bytes;
    size_t count;
} garbage[] = {
    {"", 0},
    {"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16},
    {"GET / HTTP/1.1\r\nHost: rubato\r\n\r\n", 32},
    {"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03", 10},
    {"\x16\x03\x01\xff\xff", 5},
    {"RBTDATA1RBTDATA1RBTDATA1RBTDATA1RBTDATA1RBTDATA1RBTDATA1RBTDATA1RBTDATA1", 72},
    {"RBTCTL1\n", 8},
};

/* Strangers come by the thousand while frames flow, some stay. */
static void strangers(enum tls_wire wire, const uint8_t *key) {
    enum { KINDS = sizeof garbage / sizeof garbage[0], KEPT = 100 };
    struct channel *a = open_with(&channel_battery_config, wire, key, 0);
    struct channel *b = open_with(&channel_battery_config, wire, key, 0);
    struct tls_address address;
    int kept[KEPT], kept_count = 0;
    channel_battery_connect(a, 0, b);
    address_of(b, &address);
    struct transfer *transfer = transfer_begin(a, b, NULL, FRAMES_MAX);
    log_restart();
    for (size_t i = 0; i < 1500; i++) {
        int fd = dial_port_soon(address.port);
        (void)!send(fd, garbage[i % KINDS].bytes, garbage[i % KINDS].count, MSG_NOSIGNAL);
        if (kept_count < KEPT && i % 3 == 0) {
            kept[kept_count++] = fd;
        } else {
            CHECK_INT(close(fd), 0);
        }
        for (int n = 0; n < 3; n++) {
            transfer_turn(transfer);
        }
        if (i % 200 == 199) usleep(300000); /* as many may come in again */
    }
    transfer_finish(transfer);
    CHECK(log_count("tls: refused or dropped") >= 1);
    CHECK(log_count("tls: refused or dropped") < 5);
    /* With as many strangers waiting as may, one who has the key still comes in. */
    struct channel *c = open_with(&channel_battery_config, wire, key, 0);
    channel_battery_connect(c, 0, b);
    transfer_finish(transfer_begin(c, b, NULL, 20));
    for (int i = 0; i < kept_count; i++) {
        CHECK_INT(close(kept[i]), 0);
    }
    close_all(a, b, NULL);
    c->ops->close(c);
}

static void test_strangers(void) {
    strangers(TLS_WIRE_ENCRYPT, key_a);
    strangers(TLS_WIRE_PLAIN, NULL);
}

static void test_addresses(void) {
    struct channel *channel = NULL;
    static const char *const bad[] = {"0.0.0.0", "::", "localhost", "", "203.0.113.7"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const struct channel_tls_config tls = {.ip = bad[i], .lease_ns = LEASE_NS};
        CHECK_INT(channel_tls_open(&channel, &channel_battery_config, &tls),
                  i < 4 ? STATUS_INVALID : STATUS_IO);
        CHECK(!channel);
    }
    struct channel *a = open_with(&channel_battery_config, TLS_WIRE_AUTH, key_a, 0);
    struct channel *b = open_with(&channel_battery_config, TLS_WIRE_ENCRYPT, key_a, 0);
    uint8_t bytes[CHANNEL_ADDRESS_MAX];
    size_t count = 0;
    CHECK_INT(b->ops->address(b, bytes, &count), STATUS_OK);
    log_restart();
    CHECK_INT(a->ops->connect(a, 0, bytes, count), STATUS_INVALID);
    EXPECT_LOG("peer 0 has --wire encrypt, this process --wire auth", 1);
    close_all(a, b, NULL);
}

int main(int argc, char **argv) {
    static const char *const wires[] = {"encrypt", "no key"};
    char program[4096];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    CHECK(length > 0);
    program[length] = 0;
    /* As many as may be in flight, and those that the two slots hold. */
    const struct channel_battery battery = {
        .open = open_named, .program = program, .sent_least = 66, .hasten = hasten};
    channel_battery_begin(&battery);
    int code = channel_battery_role(argc, argv);
    if (code >= 0) return code;
    if (argc == 2 && strcmp(argv[1], "battery") == 0) {
        channel_battery_run();
        return 0;
    }
    for (size_t i = 0; i < sizeof wires / sizeof wires[0]; i++) { /* each in its own process */
        printf("%s\n", wires[i]);
        fflush(stdout);
        CHECK_INT(setenv(WIRE_NAME, wires[i], 1), 0);
        CHECK_INT(waitpid(channel_battery_spawn("battery", NULL, NULL), &code, 0) > 0, 1);
        CHECK_INT(code, 0);
    }
    log_capture();
    int files = count_files();
    TEST_RUN(test_records);
    TEST_RUN(test_addresses);
    TEST_RUN(test_changed_bits);
    TEST_RUN(test_cut_connections);
    TEST_RUN(test_stalled_sender);
    TEST_RUN(test_new_keys);
    TEST_RUN(test_another_key);
    TEST_RUN(test_another_process);
    TEST_RUN(test_replay);
    TEST_RUN(test_strangers);
    CHECK_INT(count_files(), files);
    return 0;
}
