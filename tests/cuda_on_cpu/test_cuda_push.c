/* Proves that an exchange sends the same pushes whether their values are on the host, on a CUDA
 * device or, each block's, on one of two: for codecs with noise, feedback and a dense start, report
 * after report, each frame and the commit are, byte for byte, those of a twin that encodes on the
 * host. Values come late: they are computed behind the event that goes with them, and nothing
 * leaves, is settled or is repeated before its payload is done, the commit last. A device that
 * fails or hangs while it encodes says so, and what it and the other one had done before has left;
 * what is done when the group that makes the values has ended does not leave. Where a device lacks
 * memory, the host encodes, and nothing stays behind. Where the channel sends from the devices,
 * each payload leaves from memory of its block's device, which the host never touches, but for one
 * that the host packs.
 *
 * What the device says can be bent: its table of functions is a copy with a few others in it.
 */
#include "kernels/device.h"
#include "tests/exchange_rig.h"
#include "tests/test.h"

enum { DEVICES = 2 };

static struct device *devices[DEVICES];
static int device_total; /* that are here, at most these */
static const struct device_backend *real;
static struct device_backend bent;

/* What the bent functions go by. */
static bool holds;          /* no event is done */
static int64_t events_left; /* then the device has failed; < 0: never */
static int64_t takes_left;  /* then there is no memory; < 0: always */
static int64_t taken;       /* pieces of memory that were not given back */

static enum status event_done(struct device *of, const struct device_event *event) {
    if (holds) return STATUS_AGAIN;
    enum status status = real->event_sync(of, event);
    if (events_left == 0) return STATUS_DEVICE;
    events_left--;
    return status;
}

static void *take(struct device *of, size_t bytes) {
    if (takes_left == 0) return NULL;
    takes_left--;
    taken++;
    return real->take(of, bytes);
}

static void give(struct device *of, void *memory) {
    taken--;
    real->give(of, memory);
}

static void bend(int which) {
    bent = *real;
    bent.take = take;
    bent.give = give;
    bent.event_done = event_done;
    devices[which]->backend = &bent;
    holds = false;
    events_left = takes_left = -1;
}

static void unbend(void) {
    for (int i = 0; i < device_total; i++)
        devices[i]->backend = real;
}

/* Members of a group that ends when the test says so. */
static enum status group_state = STATUS_OK;

static enum status ask_group(struct group *group) {
    (void)group;
    return group_state;
}

static const struct group_ops told_ops = {.status = ask_group};
static struct group told = {.ops = &told_ops, .count = DEVICES};

/* ---- a channel that sends from devices' memory, by copying what it sends ---- */

static bool sends_from_devices;
static struct channel_ops sending_ops;
static const struct channel_ops *host_ops; /* the fake channel's own */
static struct {
    const uint8_t *start; /* [bytes] */
    size_t bytes;
} kept[DEVICES];
static uint8_t copies[FAKE_SENDS][FAKE_BYTES]; /* of one fake channel's sends */

static enum status take_piece(struct channel *channel, int device, const void *memory,
                              size_t bytes) {
    (void)channel;
    CHECK(device < device_total);
    if (bytes == 0) return STATUS_OK;
    kept[device].start = memory;
    kept[device].bytes = bytes;
    return STATUS_OK;
}

static enum status send_piece(struct channel *channel, uint32_t peer, const uint8_t *header,
                              const uint8_t *payload, size_t bytes, uint64_t cookie) {
    uint8_t *copy = copies[((struct fake_channel *)channel)->send_count];
    struct frame frame;
    CHECK_INT(frame_decode(header, &frame), STATUS_OK);
    if (frame.kind == FRAME_PUSH && kept[0].start != NULL) {
        int owner = kept[1].start != NULL ? (int)(frame.block % DEVICES) : 0;
        size_t at = (size_t)((uintptr_t)payload - (uintptr_t)kept[owner].start);
        CHECK(at < kept[owner].bytes && bytes <= kept[owner].bytes - at);
        CHECK(bytes > 0 && bytes <= FAKE_BYTES);
        device_copy(devices[owner], DEVICE_COPY_OUT, copy, payload, bytes, DEVICE_FROM);
        CHECK_INT(device_wait(devices[owner], DEVICE_COPY_OUT), STATUS_OK);
        payload = copy;
    }
    return host_ops->send(channel, peer, header, payload, bytes, cookie);
}

static void send_from_devices(struct channel *channel) {
    host_ops = channel->ops;
    sending_ops = *host_ops;
    sending_ops.device_memory = take_piece;
    sending_ops.send = send_piece;
    channel->ops = &sending_ops;
}

/* ---- an exchange, with its values on so many devices, or on the host ---- */

struct push_rig {
    struct rig rig;
    int count;
    float *values;         /* [VALUES] the host's, pinned */
    float *there[DEVICES]; /* [VALUES] each device's */
    struct device_event *ready[DEVICES];
};

static void open_rig(struct push_rig *push_rig, const char *push, int count) {
    const struct exchange_devices used = {
        .devices = devices, .count = count, .group = count > 1 ? &told : NULL};
    struct rig *rig = &push_rig->rig;
    rig_open(rig, RANK, "none");
    exchange_free(&rig->exchange);
    (void)snprintf(rig->job.push, sizeof rig->job.push, "%s", push);
    (void)snprintf(rig->job.push_policy, sizeof rig->job.push_policy, "all");
    rig->job.dense_warmup = 1;
    rig->job.density_schedule = 0;
    if (count > 0) memset(kept, 0, sizeof kept);
    if (count > 0 && sends_from_devices) send_from_devices(&rig->fake.channel);
    rig_exchange(rig, RANK, count > 0 ? &used : NULL);
    push_rig->count = count;
    push_rig->values = real->take_pinned(devices[0], VALUES * sizeof(float));
    CHECK(push_rig->values != NULL);
    for (int i = 0; i < count; i++) {
        push_rig->there[i] = real->take(devices[i], VALUES * sizeof(float));
        push_rig->ready[i] = device_event_open(devices[i]);
        CHECK(push_rig->there[i] != NULL);
    }
}

static void close_rig(struct push_rig *push_rig) {
    exchange_leave_device(&push_rig->rig.exchange);
    rig_close(&push_rig->rig);
    for (int i = 0; i < push_rig->count; i++) {
        CHECK_INT(device_wait(devices[i], DEVICE_COMPUTE), STATUS_OK);
        real->give(devices[i], push_rig->there[i]);
        device_event_close(devices[i], push_rig->ready[i]);
    }
    real->give_pinned(devices[0], push_rig->values);
}

static void set_values(struct push_rig *push_rig, uint64_t seq) {
    for (uint64_t i = 0; i < VALUES; i++)
        push_rig->values[i] = sinf((float)(i * 7 + seq * 31)) * (i % 5 == 0 ? 20.0F : 0.1F);
    for (uint64_t i = 4; i < 8 && seq == 3; i++)
        push_rig->values[i] = 0; /* two rows */
}

/* All blocks of report `seq`, the last ones first, as backward has them. */
static void push_all(struct push_rig *push_rig, uint64_t seq) {
    struct rig *rig = &push_rig->rig;
    const struct exchange_report report = {.seq = seq, .weight = 1, .clip = 1, .commits = true};
    for (uint64_t i = 0; i < BLOCKS; i++) {
        uint64_t id = BLOCKS - 1 - i, at = rig->plan.blocks[id].offset;
        if (!exchange_on_device(&rig->exchange)) {
            CHECK_INT(exchange_push(&rig->exchange, &report, id, push_rig->values + at), STATUS_OK);
            continue;
        }
        int owner = push_rig->count > 1 ? (int)(id % DEVICES) : 0; /* of blocks of 4, 4, 4, 3 */
        struct device *device = devices[owner];
        device_copy(device, DEVICE_COMPUTE, push_rig->there[owner] + at, push_rig->values + at,
                    rig_count(rig, id) * sizeof(float), DEVICE_TO);
        device_event_record(device, push_rig->ready[owner], DEVICE_COMPUTE);
        CHECK_INT(exchange_push_device(&rig->exchange, &report, id, push_rig->there[owner] + at,
                                       push_rig->ready[owner]),
                  STATUS_OK);
    }
    exchange_commit(&rig->exchange, seq);
}

static void poll_until_sent(struct rig *rig, uint32_t sends) {
    for (int i = 0; rig->fake.send_count < sends; i++) {
        CHECK(i < 1000000);
        (void)exchange_poll(&rig->exchange, rig->now_ns);
    }
    CHECK_INT(rig->fake.send_count, sends);
}

/* The push of a block, or the commit to a shard. */
static const struct fake_send *find_send(const struct rig *rig, enum frame_kind kind, uint64_t seq,
                                         uint64_t block, uint32_t peer) {
    for (uint32_t i = 0; i < rig->fake.send_count; i++) {
        const struct fake_send *send = &rig->fake.sends[i];
        if (send->frame.kind == kind && send->frame.seq == seq && send->frame.block == block &&
            send->peer == peer)
            return send;
    }
    CHECK(!"there is no such frame");
    return NULL;
}

static void check_same_send(const struct fake_send *send, const struct fake_send *wanted) {
    CHECK_INT(send->bytes, wanted->bytes);
    CHECK(memcmp(send->header, wanted->header, FRAME_BYTES) == 0);
    CHECK(memcmp(send->copy, wanted->copy, send->bytes) == 0);
}

static void check_same_report(const struct rig *rig, const struct rig *host, uint64_t seq) {
    for (uint64_t id = 0; id < BLOCKS; id++) {
        uint32_t shard = (uint32_t)rig->plan.blocks[id].shard;
        check_same_send(find_send(rig, FRAME_PUSH, seq, id, shard),
                        find_send(host, FRAME_PUSH, seq, id, shard));
    }
    for (uint32_t shard = 0; shard < SHARDS; shard++)
        check_same_send(find_send(rig, FRAME_COMMIT, seq, 0, shard),
                        find_send(host, FRAME_COMMIT, seq, 0, shard));
}

static void answer_all(struct rig *rig, uint64_t seq) {
    fake_channel_finish_all(&rig->fake);
    for (uint64_t id = 0; id < BLOCKS; id++)
        rig_answer(rig, id, (uint32_t)seq + 1, seq, seq, 0);
    rig_poll(rig);
    CHECK(exchange_settled(&rig->exchange));
}

/* ---- the cases ---- */

static void check_codec(const char *push, int count) {
    static struct push_rig here, host;
    open_rig(&here, push, count);
    open_rig(&host, push, 0);
    CHECK(exchange_on_device(&here.rig.exchange) && !exchange_on_device(&host.rig.exchange));
    rig_start(&here.rig);
    rig_start(&host.rig);
    for (uint64_t seq = 1; seq <= 4; seq++) {
        uint32_t sends = here.rig.fake.send_count + BLOCKS + SHARDS;
        set_values(&here, seq);
        set_values(&host, seq);
        push_all(&here, seq);
        push_all(&host, seq);
        poll_until_sent(&here.rig, sends);
        poll_until_sent(&host.rig, sends);
        check_same_report(&here.rig, &host.rig, seq);
        answer_all(&here.rig, seq);
        answer_all(&host.rig, seq);
    }
    const struct exchange_counters *mine = &here.rig.exchange.counters;
    const struct exchange_counters *wanted = &host.rig.exchange.counters;
    CHECK_INT(mine->pushed_bytes, wanted->pushed_bytes);
    CHECK_INT(mine->pushed_values, wanted->pushed_values);
    CHECK(mine->gradient_square_sum == wanted->gradient_square_sum);
    CHECK_NEAR(mine->residual_square_sum, wanted->residual_square_sum,
               1e-5 * wanted->residual_square_sum);
    CHECK((wanted->residual_square_sum > 0) == (strstr(push, "ef") != NULL));
    close_rig(&here);
    close_rig(&host);
}

static void test_same_pushes(void) {
    static const char *const pushes[] = {
        "none",         "int8",         "int4:sr,had", "onebit,ef",     "topk:0.3,global,ef",
        "int8,ef=loco", "randk:0.4,ef", "fp8:e5m2",    "onebit,ef+zstd"};
    for (size_t i = 0; i < sizeof pushes / sizeof pushes[0]; i++) {
        for (int count = 1; count <= device_total; count++)
            check_codec(pushes[i], count);
    }
}

/* What all devices' users have taken. */
static uint64_t used_now(void) {
    uint64_t used = 0;
    for (int i = 0; i < device_total; i++) {
        struct device_memory memory;
        device_memory(devices[i], &memory);
        used += memory.used;
    }
    return used;
}

static void test_sends_from_devices(void) {
    static const char *const pushes[] = {"none", "int8", "onebit,ef", "topk:0.3,ef"};
    uint64_t before = used_now();
    sends_from_devices = true;
    for (size_t i = 0; i < sizeof pushes / sizeof pushes[0]; i++) {
        for (int count = 1; count <= device_total; count++) {
            check_codec(pushes[i], count);
            for (int owner = 0; owner < DEVICES; owner++)
                CHECK((kept[owner].start != NULL) == (owner < count));
        }
    }
    check_codec("int8+zstd", device_total); /* the host packs */
    CHECK(kept[0].start == NULL);
    sends_from_devices = false;
    CHECK_INT(used_now(), before);
}

/* Report 1 is pushed, and the last of so many devices holds it. Returns the sends before. */
static uint32_t open_held(struct push_rig *here, const char *push, int count) {
    bend(count - 1);
    open_rig(here, push, count);
    rig_start(&here->rig);
    uint32_t sends = here->rig.fake.send_count;
    holds = true;
    set_values(here, 1);
    push_all(here, 1);
    return sends;
}

static void test_waits(void) {
    static struct push_rig here;
    uint32_t sends = open_held(&here, "int8,ef", 1);
    struct exchange *exchange = &here.rig.exchange;
    for (int i = 0; i < 11; i++) {
        rig_poll(&here.rig);
        CHECK(exchange_encodes(exchange) && !exchange_settled(exchange));
        CHECK_INT(here.rig.fake.send_count, sends);
        here.rig.now_ns += 10 * CLOCK_S; /* a lease */
    }
    rig_answer(&here.rig, 0, 1, 0, 9, 0); /* an old one changes nothing */
    rig_poll(&here.rig);
    rig_check_installed(&here.rig, 0, 0);
    CHECK_INT(exchange->device_status, STATUS_OK);
    holds = false;
    poll_until_sent(&here.rig, sends + BLOCKS + SHARDS);
    CHECK(!exchange_encodes(exchange));
    for (uint32_t i = 0; i < BLOCKS + SHARDS; i++)
        CHECK_INT(here.rig.fake.sends[sends + i].frame.kind,
                  i < BLOCKS ? FRAME_PUSH : FRAME_COMMIT);
    CHECK_INT(exchange->counters.resent, 0);
    answer_all(&here.rig, 1);
    close_rig(&here);
    unbend();
}

/* The last of so many devices: the blocks of the other one leave. */
static void check_hang(int count) {
    static struct push_rig here;
    const uint32_t others = count > 1 ? BLOCKS / 2 : 0;
    uint32_t sends = open_held(&here, "int8", count);
    struct exchange *exchange = &here.rig.exchange;
    poll_until_sent(&here.rig, sends + others);
    rig_poll(&here.rig);
    here.rig.now_ns += 12 * 10 * CLOCK_S;
    rig_poll(&here.rig);
    CHECK_INT(exchange->device_status, STATUS_OK);
    here.rig.now_ns++;
    rig_poll(&here.rig);
    CHECK_INT(exchange->device_status, STATUS_TIMEOUT);
    CHECK(!exchange_encodes(exchange) && !exchange_settled(exchange));
    CHECK_INT(here.rig.fake.send_count, sends + others);
    fake_channel_finish_all(&here.rig.fake);
    rig_poll(&here.rig);
    close_rig(&here);
    unbend();
}

static void test_hangs(void) {
    for (int count = 1; count <= device_total; count++)
        check_hang(count);
}

/* What waited for a group's sums is let go when the group ends. */
static void test_group_ends(void) {
    static struct push_rig here;
    uint32_t sends = open_held(&here, "int8", DEVICES);
    poll_until_sent(&here.rig, sends + BLOCKS / 2);
    group_state = STATUS_PEER_LOST;
    holds = false;
    rig_poll(&here.rig);
    CHECK_INT(here.rig.exchange.device_status, STATUS_DEVICE);
    CHECK_INT(here.rig.fake.send_count, sends + BLOCKS / 2);
    group_state = STATUS_OK;
    fake_channel_finish_all(&here.rig.fake);
    rig_poll(&here.rig);
    close_rig(&here);
    unbend();
}

/* At each block. */
static void test_fails(void) {
    static struct push_rig here;
    for (int64_t good = 0; good < BLOCKS; good++) {
        bend(0);
        open_rig(&here, "int8", 1);
        rig_start(&here.rig);
        uint32_t sends = here.rig.fake.send_count;
        events_left = good;
        set_values(&here, 1);
        push_all(&here, 1);
        rig_poll(&here.rig);
        rig_poll(&here.rig);
        CHECK_INT(here.rig.exchange.device_status, STATUS_DEVICE);
        CHECK(!exchange_settled(&here.rig.exchange));
        CHECK_INT(here.rig.fake.send_count, sends + good);
        for (int64_t i = 0; i < good; i++)
            CHECK_INT(here.rig.fake.sends[sends + i].frame.kind, FRAME_PUSH);
        fake_channel_finish_all(&here.rig.fake);
        rig_poll(&here.rig);
        close_rig(&here);
        unbend();
    }
}

/* At each piece of the last of so many devices: the host encodes, or what the device has encoded
 * leaves from the host's memory. */
static void check_no_memory(int count, bool stays) {
    static struct push_rig here;
    uint64_t before = used_now();
    bool enough = false;
    sends_from_devices = stays;
    for (int64_t pieces = 0; !enough; pieces++) {
        CHECK(pieces < 16);
        bend(count - 1);
        takes_left = pieces;
        open_rig(&here, "int8,ef", count);
        enough =
            exchange_on_device(&here.rig.exchange) && (!stays || here.rig.exchange.encoding.stays);
        CHECK((kept[count - 1].start != NULL) == (enough && stays));
        rig_start(&here.rig);
        uint32_t sends = here.rig.fake.send_count;
        set_values(&here, 1);
        push_all(&here, 1);
        poll_until_sent(&here.rig, sends + BLOCKS + SHARDS);
        answer_all(&here.rig, 1);
        close_rig(&here);
        CHECK_INT(taken, 0);
        CHECK_INT(used_now(), before);
        unbend();
    }
}

static void test_no_memory(void) {
    for (int count = 1; count <= device_total; count++)
        for (int stays = 0; stays < 2; stays++)
            check_no_memory(count, stays == 1);
    sends_from_devices = false;
}

int main(void) {
    device_total = device_count(DEVICE_CUDA);
    if (device_total == 0) TEST_SKIP("no CUDA device");
    if (device_total > DEVICES) device_total = DEVICES;
    for (int i = 0; i < device_total; i++)
        CHECK_INT(device_open(&devices[i], DEVICE_CUDA, i), STATUS_OK);
    real = devices[0]->backend;
    TEST_RUN(test_same_pushes);
    TEST_RUN(test_sends_from_devices);
    TEST_RUN(test_waits);
    TEST_RUN(test_hangs);
    if (device_total == DEVICES) TEST_RUN(test_group_ends);
    TEST_RUN(test_fails);
    TEST_RUN(test_no_memory);
    for (int i = 0; i < device_total; i++)
        device_close(devices[i]);
    return 0;
}
