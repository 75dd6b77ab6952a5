/* Proves that the simulator's network does what its header promises.
 *
 * A busy little network of channels and controls is run from a seed and every event hashed in
 * order: the same seed must give the same hash, another seed another. Faults are counted over many
 * frames and must lie within six standard deviations of their odds. Order, back-pressure, cuts and
 * closes are checked on small scripts, in virtual time.
 */
#include "base/checksum.h"
#include "base/log.h"
#include "tests/test.h"
#include "transport/loop.h"

#include <math.h>

#define MS INT64_C(1000000)

static const struct loop_faults calm = {.delay_min_ns = 1 * MS, .delay_max_ns = 9 * MS};
static const struct channel_config small = {
    .peers_max = 4, .slots = 4, .slot_bytes = 1000, .sends_max = 8};

static struct loop *open_loop(uint64_t seed, const struct loop_faults *faults) {
    struct loop *loop = NULL;
    CHECK_INT(loop_open(&loop, seed, faults), STATUS_OK);
    return loop;
}

static struct channel *open_channel(struct loop *loop, uint32_t node,
                                    const struct channel_config *config) {
    struct channel *channel = NULL;
    CHECK_INT(loop_channel(loop, node, config, &channel), STATUS_OK);
    return channel;
}

static struct control *open_control(struct loop *loop, uint32_t node) {
    struct control *control = NULL;
    CHECK_INT(loop_control(loop, node, &control), STATUS_OK);
    return control;
}

static void connect_to(struct channel *from, uint32_t number, struct channel *to) {
    uint8_t address[CHANNEL_ADDRESS_MAX];
    size_t bytes = 0;
    CHECK_INT(to->ops->address(to, address, &bytes), STATUS_OK);
    CHECK_INT(from->ops->connect(from, number, address, bytes), STATUS_OK);
}

static enum status send_id(struct channel *channel, uint32_t peer, uint64_t id, size_t bytes) {
    uint8_t header[FRAME_BYTES] = {0}, payload[2000];
    memcpy(header, &id, sizeof id);
    memset(payload, (int)(id % 251), sizeof payload);
    return channel->ops->send(channel, peer, header, payload, bytes, id);
}

static uint64_t id_of(const struct channel_event *event) {
    uint64_t id;
    memcpy(&id, event->header, sizeof id);
    for (size_t i = 0; i < event->payload_bytes; i++) {
        CHECK_INT(event->payload[i], id % 251);
    }
    return id;
}

/* Lets everything that is under way arrive. */
static void drain(struct loop *loop) {
    while (loop_next_ns(loop) != INT64_MAX) {
        loop_advance(loop, loop_next_ns(loop));
    }
}

static bool next_event(struct channel *channel, struct channel_event *event) {
    return channel->ops->poll(channel, event, 1) == 1;
}

/* ---- determinism ---- */

struct trace {
    uint64_t hash;
};

static void note(struct trace *trace, uint64_t a, uint64_t b, uint64_t c) {
    uint64_t words[4] = {trace->hash, a, b, c};
    trace->hash = checksum_xxh3(words, sizeof words);
}

static void trace_channel(struct loop *loop, struct channel *channel, struct trace *trace) {
    struct channel_event event;
    while (next_event(channel, &event)) {
        note(trace, (uint64_t)loop_now_ns(loop), event.kind, event.peer);
        note(trace, event.cookie, (uint64_t)event.status, event.slot);
        if (event.kind != CHANNEL_RECEIVED) continue;
        note(trace, id_of(&event), event.payload_bytes, 0);
        channel->ops->release(channel, event.slot);
    }
}

static void trace_control(struct loop *loop, struct control *control, struct trace *trace) {
    struct control_event event;
    while (control->ops->poll(control, loop_now_ns(loop), &event)) {
        note(trace, (uint64_t)loop_now_ns(loop), event.kind, event.connection);
        if (event.kind != CONTROL_PACKET) continue;
        note(trace, checksum_xxh3(event.packet, event.packet_bytes), event.packet_bytes, 0);
        if (event.packet_bytes > 100) continue;
        uint8_t answer[200] = {0};
        memcpy(answer, event.packet, event.packet_bytes);
        control->ops->send(control, event.connection, answer, event.packet_bytes + 7);
    }
}

static uint64_t run(uint64_t seed) {
    const struct loop_faults faults = {
        .delay_min_ns = 0, .delay_max_ns = 20 * MS, .duplicate = 0.1, .drop = 0.1};
    struct loop *loop = open_loop(seed, &faults);
    struct channel *channels[4];
    struct control *controls[4];
    uint32_t dialled[4];
    for (uint32_t i = 0; i < 4; i++) {
        channels[i] = open_channel(loop, i, &small);
        controls[i] = open_control(loop, i);
    }
    CHECK_INT(controls[0]->ops->listen(controls[0], "10.0.0.1", "29600"), STATUS_OK);
    for (uint32_t i = 0; i < 4; i++) {
        for (uint32_t k = 0; k < 4; k++) {
            connect_to(channels[i], k, channels[k]);
        }
        CHECK_INT(controls[i]->ops->dial(controls[i], "10.0.0.1", "29600", &dialled[i]), STATUS_OK);
    }
    struct trace trace = {0};
    for (uint64_t step = 0; step < 500; step++) {
        for (uint32_t i = 0; i < 4; i++) {
            send_id(channels[i], (uint32_t)((step + i) % 4), step * 4 + i, step % 1000);
            uint8_t packet[50] = {(uint8_t)step, (uint8_t)i};
            if (step > 50 && step % 10 == i && (i != 3 || step < 300)) {
                controls[i]->ops->send(controls[i], dialled[i], packet, 1 + step % 50);
            }
            trace_channel(loop, channels[i], &trace);
            trace_control(loop, controls[i], &trace);
        }
        if (step == 300) loop_cut(loop, 3, false);
        if (step == 400) loop_cut(loop, 2, true);
        loop_advance(loop, loop_now_ns(loop) + 1 * MS);
    }
    struct loop_counts counts;
    loop_count(loop, &counts);
    note(&trace, counts.frames, counts.duplicated, counts.dropped);
    note(&trace, counts.overtaken, counts.packets, 0);
    CHECK(counts.frames > 500 && counts.overtaken > 100 && counts.packets > 50);
    for (uint32_t i = 0; i < 4; i++) {
        channels[i]->ops->close(channels[i]);
        controls[i]->ops->close(controls[i], 0);
    }
    loop_close(loop);
    return trace.hash;
}

static void test_same_seed_same_run(void) {
    uint64_t first = run(1);
    CHECK(run(1) == first);
    CHECK(run(2) != first);
    CHECK(run(3) != run(2));
}

/* ---- data ---- */

static void check_odds(uint64_t count, double trials, double odds) {
    CHECK_NEAR(count, trials * odds, 6 * sqrt(trials * odds * (1 - odds)));
}

static void test_faults_at_their_odds(void) {
    const struct loop_faults faults = {
        .delay_min_ns = 5 * MS, .delay_max_ns = 6 * MS, .duplicate = 0.03, .drop = 0.05};
    const double trials = 20000;
    struct loop *loop = open_loop(9, &faults);
    struct channel *a = open_channel(loop, 0, &small), *b = open_channel(loop, 1, &small);
    connect_to(a, 0, b);
    uint64_t sent = 0, received = 0;
    static uint8_t times[20000];
    for (uint64_t i = 0; i < (uint64_t)trials; i++) {
        CHECK_INT(send_id(a, 0, i, 10), STATUS_OK);
        int64_t sent_ns = loop_now_ns(loop);
        CHECK(loop_next_ns(loop) >= sent_ns + faults.delay_min_ns);
        drain(loop);
        CHECK(loop_now_ns(loop) <= sent_ns + faults.delay_max_ns);
        struct channel_event event;
        while (next_event(a, &event)) {
            CHECK_INT(event.kind, CHANNEL_SENT);
            CHECK_INT(event.cookie, i);
            CHECK_INT(event.status, STATUS_OK);
            sent++;
        }
        while (next_event(b, &event)) {
            CHECK_INT(event.kind, CHANNEL_RECEIVED);
            times[id_of(&event)]++;
            received++;
            b->ops->release(b, event.slot);
        }
    }
    uint64_t never = 0, twice = 0;
    for (size_t i = 0; i < (size_t)trials; i++) {
        never += times[i] == 0;
        twice += times[i] == 2;
    }
    struct loop_counts counts;
    loop_count(loop, &counts);
    CHECK_INT(sent, trials);
    CHECK_INT(counts.frames, trials);
    CHECK_INT(counts.dropped, never);
    CHECK_INT(counts.duplicated, twice);
    CHECK_INT(received, (uint64_t)trials - never + twice);
    check_odds(never, trials, 0.05);
    check_odds(twice, trials * 0.95, 0.03);
    a->ops->close(a);
    b->ops->close(b);
    loop_close(loop);
}

static void test_frames_overtake(void) {
    struct channel_config config = small;
    config.sends_max = config.slots = 200;
    struct loop *loop = open_loop(4, &calm);
    struct channel *a = open_channel(loop, 0, &config), *b = open_channel(loop, 1, &config);
    connect_to(a, 3, b);
    for (uint64_t i = 0; i < 200; i++) {
        CHECK_INT(send_id(a, 3, i, i), STATUS_OK);
    }
    drain(loop);
    uint64_t highest = 0, overtaken = 0;
    struct channel_event event;
    for (int i = 0; i < 200; i++) {
        CHECK(next_event(b, &event));
        uint64_t id = id_of(&event);
        overtaken += id < highest;
        if (id > highest) highest = id;
    }
    struct loop_counts counts;
    loop_count(loop, &counts);
    CHECK_INT(counts.overtaken, overtaken);
    CHECK(overtaken > 100);
    a->ops->close(a);
    b->ops->close(b);
    loop_close(loop);
}

static void test_again_slots_and_refusal(void) {
    struct loop *loop = open_loop(5, &calm);
    struct channel *a = open_channel(loop, 0, &small), *b = open_channel(loop, 1, &small);
    CHECK_INT(send_id(a, 0, 0, 0), STATUS_PEER_LOST);
    connect_to(a, 0, b);
    for (uint64_t i = 0; i < 8; i++) {
        CHECK_INT(send_id(a, 0, i, i == 7 ? 1001 : i), STATUS_OK);
    }
    CHECK_INT(send_id(a, 0, 8, 0), STATUS_AGAIN);
    CHECK_INT(a->ops->arm(a), STATUS_OK);
    drain(loop);
    CHECK_INT(a->ops->arm(a), STATUS_AGAIN);
    struct channel_event events[16];
    CHECK_INT(send_id(a, 0, 8, 0), STATUS_AGAIN); /* nobody has heard of the sends yet */
    CHECK_INT(a->ops->poll(a, events, 16), 8);
    CHECK_INT(a->ops->arm(a), STATUS_OK);
    bool seen[8] = {0};
    CHECK_INT(b->ops->poll(b, events, 16), 4); /* as many as there are slots */
    for (uint64_t i = 0;; i++) {
        seen[id_of(&events[0])] = true;
        b->ops->release(b, events[0].slot);
        if (i < 3) events[0] = events[i + 1];
        if (i == 3) CHECK_INT(b->ops->poll(b, events, 1), 1);
        if (i == 6) break;
        if (i > 3) CHECK_INT(b->ops->poll(b, events, 1), 1);
    }
    for (int i = 0; i < 7; i++) {
        CHECK(seen[i]);
    }
    struct channel_stats stats;
    b->ops->stats(b, &stats);
    CHECK_INT(stats.refused, 1);
    CHECK_INT(stats.received_frames, 7);
    CHECK_INT(stats.received_bytes, 7 * FRAME_BYTES + 21);
    a->ops->stats(a, &stats);
    CHECK_INT(stats.sent_frames, 8);
    CHECK_INT(stats.sent_bytes, 8 * FRAME_BYTES + 21 + 1001);
    CHECK_INT(a->ops->connect(a, 1, (const uint8_t *)"abc", 3), STATUS_INVALID);
    CHECK_INT(a->ops->connect(a, 1, (const uint8_t *)"abcdefgh", 8), STATUS_INVALID);
    a->ops->close(a);
    b->ops->close(b);
    loop_close(loop);
}

/* A cut loses what is under way both ways; death is told, a partition is not. */
static void test_cut_data(bool silent) {
    struct loop *loop = open_loop(6, &calm);
    struct channel *a = open_channel(loop, 0, &small), *b = open_channel(loop, 1, &small);
    connect_to(a, 2, b);
    connect_to(b, 0, a);
    CHECK_INT(send_id(a, 2, 1, 5), STATUS_OK);
    CHECK_INT(send_id(b, 0, 2, 5), STATUS_OK);
    loop_cut(loop, 1, silent);
    drain(loop);
    struct channel_event event;
    bool sent = false, lost = false;
    while (next_event(a, &event)) {
        CHECK_INT(event.peer, 2);
        CHECK(event.kind != CHANNEL_RECEIVED);
        sent = sent || event.kind == CHANNEL_SENT;
        lost = lost || event.kind == CHANNEL_PEER_LOST;
    }
    CHECK(sent);
    CHECK_INT(lost, !silent);
    CHECK_INT(send_id(a, 2, 3, 5), silent ? STATUS_OK : STATUS_PEER_LOST);
    drain(loop);
    while (next_event(b, &event)) {
        CHECK(event.kind != CHANNEL_RECEIVED);
    }
    /* The number can be used again, for the node's successor. */
    struct channel *c = open_channel(loop, 2, &small);
    connect_to(a, 2, c);
    while (next_event(a, &event)) {
        CHECK_INT(event.kind, CHANNEL_SENT);
    }
    CHECK_INT(send_id(a, 2, 4, 5), STATUS_OK);
    drain(loop);
    CHECK(next_event(c, &event));
    CHECK_INT(id_of(&event), 4);
    a->ops->close(a);
    b->ops->close(b);
    c->ops->close(c);
    loop_close(loop);
}

static void test_cuts_of_data(void) {
    test_cut_data(false);
    test_cut_data(true);
}

/* Data connections alone break, for a time: both ends are told, some of what is under way comes,
 * and until the time is over none can be made; then all is well. */
static void test_data_breaks(void) {
    enum { FRAMES = 100 };
    struct channel_config wide = small;
    wide.slots = wide.sends_max = FRAMES;
    struct loop *loop = open_loop(8, &calm);
    struct channel *ends[2] = {open_channel(loop, 0, &wide), open_channel(loop, 1, &wide)};
    struct channel_event event;
    uint8_t address[CHANNEL_ADDRESS_MAX];
    size_t bytes = 0;
    for (int i = 0; i < 2; i++) {
        connect_to(ends[i], 1, ends[1 - i]);
        for (uint64_t id = 0; id < FRAMES; id++)
            CHECK_INT(send_id(ends[i], 1, id, 5), STATUS_OK);
    }
    loop_cut_data(loop, 1, loop_now_ns(loop) + 6 * MS);
    CHECK_INT(ends[0]->ops->address(ends[0], address, &bytes), STATUS_OK);
    CHECK_INT(ends[1]->ops->connect(ends[1], 1, address, bytes), STATUS_PEER_LOST);
    drain(loop);
    for (int i = 0; i < 2; i++) {
        int received = 0, lost = 0;
        while (next_event(ends[i], &event)) {
            received += event.kind == CHANNEL_RECEIVED;
            lost += event.kind == CHANNEL_PEER_LOST;
        }
        CHECK_INT(lost, 1);
        CHECK(received > 0 && received < FRAMES / 2);
        connect_to(ends[i], 1, ends[1 - i]);
    }
    CHECK_INT(send_id(ends[0], 1, 7, 5), STATUS_OK);
    drain(loop);
    CHECK(next_event(ends[1], &event) && id_of(&event) == 7);
    ends[0]->ops->close(ends[0]);
    ends[1]->ops->close(ends[1]);
    loop_close(loop);
}

static void test_closed_channel_is_lost(void) {
    struct loop *loop = open_loop(7, &calm);
    struct channel *a = open_channel(loop, 0, &small), *b = open_channel(loop, 1, &small);
    connect_to(a, 0, b);
    connect_to(b, 0, a);
    CHECK_INT(send_id(b, 0, 1, 5), STATUS_OK);
    b->ops->close(b);
    drain(loop);
    struct channel_event event;
    bool lost = false, received = false;
    while (next_event(a, &event)) {
        lost = lost || event.kind == CHANNEL_PEER_LOST;
        received = received || event.kind == CHANNEL_RECEIVED;
    }
    CHECK(lost && received);
    CHECK_INT(send_id(a, 0, 2, 5), STATUS_PEER_LOST);
    a->ops->close(a);
    loop_close(loop);
}

/* ---- control ---- */

struct pair {
    struct loop *loop;
    struct control *a, *b; /* a dialled b */
    uint32_t at_a, at_b;
};

static bool poll_control(struct pair *pair, struct control *control, struct control_event *event) {
    return control->ops->poll(control, loop_now_ns(pair->loop), event);
}

static struct pair open_pair(uint64_t seed) {
    struct pair pair = {.loop = open_loop(seed, &calm)};
    pair.a = open_control(pair.loop, 0);
    pair.b = open_control(pair.loop, 1);
    CHECK_INT(pair.b->ops->listen(pair.b, "0.0.0.0", "7"), STATUS_OK);
    CHECK_INT(pair.a->ops->dial(pair.a, "10.1.1.1", "7", &pair.at_a), STATUS_OK);
    struct control_event event;
    CHECK(!poll_control(&pair, pair.a, &event));
    CHECK_INT(pair.a->ops->send(pair.a, pair.at_a, (const uint8_t *)"x", 1), STATUS_AGAIN);
    drain(pair.loop);
    CHECK(poll_control(&pair, pair.a, &event));
    CHECK_INT(event.kind, CONTROL_OPENED);
    CHECK_INT(event.incoming, false);
    CHECK_INT(event.connection, pair.at_a);
    CHECK_TEXT(event.text, "10.1.1.1:7");
    CHECK(poll_control(&pair, pair.b, &event));
    CHECK_INT(event.kind, CONTROL_OPENED);
    CHECK_INT(event.incoming, true);
    pair.at_b = event.connection;
    return pair;
}

static void close_pair(struct pair *pair) {
    if (pair->a) pair->a->ops->close(pair->a, 0);
    if (pair->b) pair->b->ops->close(pair->b, 0);
    loop_close(pair->loop);
}

static enum status send_number(struct control *control, uint32_t connection, uint32_t number) {
    return control->ops->send(control, connection, (const uint8_t *)&number, sizeof number);
}

static uint32_t number_of(const struct control_event *event) {
    uint32_t number;
    CHECK_INT(event->kind, CONTROL_PACKET);
    CHECK_INT(event->packet_bytes, sizeof number);
    memcpy(&number, event->packet, sizeof number);
    return number;
}

static void check_closed(struct pair *pair, struct control *control, enum status status,
                         const char *text) {
    struct control_event event;
    CHECK(poll_control(pair, control, &event));
    CHECK_INT(event.kind, CONTROL_CLOSED);
    CHECK_INT(event.status, status);
    CHECK_TEXT(event.text, text);
    CHECK(!poll_control(pair, control, &event));
}

static void test_packets_stay_in_order(void) {
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct pair pair = open_pair(seed);
        struct control_event event;
        uint32_t next_a = 0, next_b = 0;
        for (uint32_t i = 0; i < 100; i++) {
            CHECK_INT(send_number(pair.a, pair.at_a, i), STATUS_OK);
            CHECK_INT(send_number(pair.b, pair.at_b, 1000 + i), STATUS_OK);
            loop_advance(pair.loop, loop_now_ns(pair.loop) + i % 3 * MS);
            while (poll_control(&pair, pair.a, &event)) {
                CHECK_INT(number_of(&event), 1000 + next_a++);
            }
        }
        /* Hanging up comes after all that was sent before. */
        pair.a->ops->hang_up(pair.a, pair.at_a);
        CHECK_INT(send_number(pair.a, pair.at_a, 0), STATUS_PEER_LOST);
        drain(pair.loop);
        while (next_b < 100) {
            CHECK(poll_control(&pair, pair.b, &event));
            CHECK_INT(number_of(&event), next_b++);
        }
        check_closed(&pair, pair.b, STATUS_PEER_LOST, "end of stream");
        check_closed(&pair, pair.a, STATUS_AGAIN, "hung up");
        close_pair(&pair);
    }
}

static void test_close_delivers_first(void) {
    struct pair pair = open_pair(3);
    struct control_event event;
    for (uint32_t i = 0; i < 10; i++) {
        CHECK_INT(send_number(pair.b, pair.at_b, i), STATUS_OK);
    }
    pair.b->ops->close(pair.b, 0);
    pair.b = NULL;
    CHECK_INT(send_number(pair.a, pair.at_a, 1), STATUS_OK); /* a does not know yet */
    drain(pair.loop);
    for (uint32_t i = 0; i < 10; i++) {
        CHECK(poll_control(&pair, pair.a, &event));
        CHECK_INT(number_of(&event), i);
    }
    check_closed(&pair, pair.a, STATUS_PEER_LOST, "end of stream");
    close_pair(&pair);
}

static void test_cut_of_control(void) {
    struct pair pair = open_pair(4);
    CHECK_INT(send_number(pair.b, pair.at_b, 1), STATUS_OK);
    loop_cut(pair.loop, 1, false);
    drain(pair.loop);
    check_closed(&pair, pair.a, STATUS_PEER_LOST, "connection reset");
    uint32_t again;
    CHECK_INT(pair.a->ops->dial(pair.a, "10.1.1.1", "7", &again), STATUS_OK);
    drain(pair.loop);
    check_closed(&pair, pair.a, STATUS_PEER_LOST, "connection refused");
    /* A successor may take the dead node's port, but only one. */
    struct control *next = open_control(pair.loop, 2), *late = open_control(pair.loop, 3);
    CHECK_INT(next->ops->listen(next, "0.0.0.0", "7"), STATUS_OK);
    log_set_level(LOG_ERROR);
    CHECK_INT(late->ops->listen(late, "10.1.1.1", "7"), STATUS_IO);
    CHECK_INT(pair.a->ops->dial(pair.a, "10.1.1.1", "7", &again), STATUS_OK);
    drain(pair.loop);
    struct control_event event;
    CHECK(poll_control(&pair, pair.a, &event));
    CHECK_INT(event.kind, CONTROL_OPENED);
    next->ops->close(next, 0);
    late->ops->close(late, 0);
    close_pair(&pair);
}

static void test_partition_is_silent(void) {
    struct pair pair = open_pair(5);
    struct control_event event;
    CHECK_INT(send_number(pair.a, pair.at_a, 1), STATUS_OK);
    loop_cut(pair.loop, 1, true);
    CHECK_INT(send_number(pair.b, pair.at_b, 2), STATUS_OK);
    drain(pair.loop);
    CHECK(!poll_control(&pair, pair.a, &event));
    CHECK(!poll_control(&pair, pair.b, &event));
    pair.b->ops->hang_up(pair.b, pair.at_b);
    drain(pair.loop);
    check_closed(&pair, pair.b, STATUS_AGAIN, "hung up");
    CHECK(!poll_control(&pair, pair.a, &event));
    uint32_t again;
    CHECK_INT(pair.a->ops->dial(pair.a, "10.1.1.1", "7", &again), STATUS_OK);
    drain(pair.loop);
    check_closed(&pair, pair.a, STATUS_TIMEOUT, "connection timed out");
    close_pair(&pair);
}

static void test_buffer_is_bounded(void) {
    struct pair pair = open_pair(6);
    struct control_event event;
    static uint8_t packet[1 << 20];
    uint32_t taken = 0;
    while (pair.a->ops->send(pair.a, pair.at_a, packet, sizeof packet) == STATUS_OK) {
        CHECK(++taken < 100);
    }
    CHECK(taken >= 1);
    CHECK_INT(pair.a->ops->send(pair.a, pair.at_a, packet, sizeof packet), STATUS_AGAIN);
    drain(pair.loop);
    CHECK(poll_control(&pair, pair.b, &event));
    CHECK_INT(event.packet_bytes, sizeof packet);
    CHECK_INT(pair.a->ops->send(pair.a, pair.at_a, packet, sizeof packet), STATUS_OK);
    char ip[32];
    pair.a->ops->local_ip(pair.a, pair.at_a, ip, sizeof ip);
    CHECK_TEXT(ip, "127.0.0.1");
    CHECK_INT(pair.a->ops->wait_fd(pair.a), -1);
    close_pair(&pair);
}

/* A number that is used again must not get what was meant for its former connection. */
static void test_numbers_are_reused(void) {
    struct pair pair = open_pair(8);
    struct control_event event;
    CHECK_INT(send_number(pair.b, pair.at_b, 77), STATUS_OK);
    pair.a->ops->hang_up(pair.a, pair.at_a);
    check_closed(&pair, pair.a, STATUS_AGAIN, "hung up");
    uint32_t again;
    CHECK_INT(pair.a->ops->dial(pair.a, "10.1.1.1", "7", &again), STATUS_OK);
    CHECK_INT(again, pair.at_a);
    drain(pair.loop);
    CHECK(poll_control(&pair, pair.a, &event));
    CHECK_INT(event.kind, CONTROL_OPENED);
    CHECK(!poll_control(&pair, pair.a, &event));
    close_pair(&pair);
}

int main(void) {
    TEST_RUN(test_same_seed_same_run);
    TEST_RUN(test_faults_at_their_odds);
    TEST_RUN(test_frames_overtake);
    TEST_RUN(test_again_slots_and_refusal);
    TEST_RUN(test_cuts_of_data);
    TEST_RUN(test_data_breaks);
    TEST_RUN(test_closed_channel_is_lost);
    TEST_RUN(test_packets_stay_in_order);
    TEST_RUN(test_close_delivers_first);
    TEST_RUN(test_cut_of_control);
    TEST_RUN(test_partition_is_silent);
    TEST_RUN(test_buffer_is_bounded);
    TEST_RUN(test_numbers_are_reused);
    return 0;
}
