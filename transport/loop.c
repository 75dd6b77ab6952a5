#include "transport/loop.h"

#include "base/assert.h"
#include "base/memory.h"
#include "transport/loop_internal.h"

#include <stdlib.h>
#include <string.h>

#define ADDRESS_BYTES sizeof(uint64_t)
#define NO_CHANNEL    UINT64_MAX

/* A channel's view of one peer. Each connect() makes a new link. */
struct loop_peer {
    bool connected, lost;
    uint64_t channel; /* id */
    uint64_t link;
    uint64_t sent;    /* frames sent on the link */
    uint64_t highest; /* order of the latest that was delivered, counted from 1 */
};

struct loop_channel {
    struct channel base;
    struct channel_ops ops; /* the simulator's, with the lossiness of the faults */
    struct loop *loop;
    uint64_t id;
    uint32_t node;
    struct channel_config config;
    struct channel_stats stats;
    struct loop_peer *peers;
    uint32_t in_flight;             /* sends whose SENT the owner has not been given */
    struct loop_message **slots;    /* NULL: free */
    struct channel_event *events;   /* a queue: [event_head, event_count) */
    size_t event_head, event_count; /* entries before the head are spent */
    struct loop_message **waiting;  /* a queue of messages without a slot, likewise */
    size_t waiting_head, waiting_count;
};

/* ---- the heap ---- */

static bool is_before(const struct delivery *a, const struct delivery *b) {
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->sequence < b->sequence;
}

void *loop_grow(void *array, size_t count, size_t bytes) {
    /* Doubles at every power of two: the capacity need not be kept. */
    if ((count & (count - 1)) == 0) {
        void *larger = memory_zeroed(count ? 2 * count : 1, bytes);
        if (count) memcpy(larger, array, count * bytes);
        free(array);
        array = larger;
    }
    memset((uint8_t *)array + count * bytes, 0, bytes);
    return array;
}

void loop_schedule(struct loop *loop, const struct delivery *delivery) {
    if (loop->heap_count == loop->heap_capacity) {
        loop->heap_capacity = loop->heap_capacity ? 2 * loop->heap_capacity : 256;
        struct delivery *larger = memory_zeroed(loop->heap_capacity, sizeof *larger);
        if (loop->heap_count) memcpy(larger, loop->heap, loop->heap_count * sizeof *larger);
        free(loop->heap);
        loop->heap = larger;
    }
    struct delivery entry = *delivery;
    entry.sequence = loop->sequence++;
    size_t at = loop->heap_count++;
    for (; at > 0 && is_before(&entry, &loop->heap[(at - 1) / 2]); at = (at - 1) / 2) {
        loop->heap[at] = loop->heap[(at - 1) / 2];
    }
    loop->heap[at] = entry;
}

static struct delivery take_next(struct loop *loop) {
    struct delivery next = loop->heap[0];
    struct delivery last = loop->heap[--loop->heap_count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= loop->heap_count) break;
        if (child + 1 < loop->heap_count && is_before(&loop->heap[child + 1], &loop->heap[child])) {
            child++;
        }
        if (!is_before(&loop->heap[child], &last)) break;
        loop->heap[at] = loop->heap[child];
        at = child;
    }
    if (loop->heap_count > 0) loop->heap[at] = last;
    return next;
}

int64_t loop_delay_ns(struct loop *loop) {
    uint64_t span = (uint64_t)(loop->faults.delay_max_ns - loop->faults.delay_min_ns);
    return loop->faults.delay_min_ns + (int64_t)random_below(&loop->random, span + 1);
}

/* ---- data: what is delivered ---- */

static void drop_reference(struct loop_message *message) {
    ASSERT_OP(message->references, >, 0);
    if (--message->references == 0) free(message);
}

static struct loop_channel *find_channel(const struct loop *loop, uint64_t id) {
    return id < loop->channel_count ? loop->channels[id] : NULL;
}

static struct channel_event *queue_event(struct loop_channel *channel,
                                         enum channel_event_kind kind) {
    channel->events = loop_grow(channel->events, channel->event_count, sizeof *channel->events);
    struct channel_event *event = &channel->events[channel->event_count++];
    event->kind = kind;
    return event;
}

/* Puts a message into a free slot; false when there is none. Takes the reference. */
static bool fill_slot(struct loop_channel *channel, struct loop_message *message) {
    for (uint32_t i = 0; i < channel->config.slots; i++) {
        if (channel->slots[i]) continue;
        channel->slots[i] = message;
        struct channel_event *event = queue_event(channel, CHANNEL_RECEIVED);
        event->slot = i;
        event->header = message->header;
        event->payload = message->payload;
        event->payload_bytes = message->bytes;
        channel->stats.received_frames++;
        channel->stats.received_bytes += FRAME_BYTES + message->bytes;
        return true;
    }
    return false;
}

static void note_order(struct loop *loop, const struct delivery *delivery) {
    struct loop_channel *sender = find_channel(loop, delivery->from);
    if (!sender || delivery->again) return;
    struct loop_peer *peer = &sender->peers[delivery->message->peer];
    if (peer->link != delivery->message->link) return;
    if (delivery->message->order < peer->highest) {
        loop->counts.overtaken++;
    } else {
        peer->highest = delivery->message->order;
    }
}

static bool carries_data(const struct loop *loop, uint32_t node) {
    return loop->nodes[node] == LOOP_UP && loop->now_ns >= loop->data_ns[node];
}

static void deliver_frame(struct loop *loop, const struct delivery *delivery) {
    struct loop_message *message = delivery->message;
    struct loop_channel *channel = find_channel(loop, delivery->to);
    if (!channel || !carries_data(loop, channel->node) ||
        !carries_data(loop, delivery->from_node)) {
        loop->counts.dropped++;
        /* The analyzer loses count of the references; the sanitizers watch this in every test. */
        drop_reference(message); // NOLINT(clang-analyzer-unix.Malloc)
        return;
    }
    note_order(loop, delivery);
    if (message->bytes > channel->config.slot_bytes) {
        channel->stats.refused++;
        drop_reference(message);
        return;
    }
    if (channel->waiting_head == channel->waiting_count && fill_slot(channel, message)) return;
    channel->waiting = loop_grow(channel->waiting, channel->waiting_count, sizeof(void *));
    channel->waiting[channel->waiting_count++] = message;
}

static void deliver_sent(struct loop_channel *channel, const struct delivery *delivery) {
    struct channel_event *event = queue_event(channel, CHANNEL_SENT);
    event->peer = delivery->peer;
    event->cookie = delivery->cookie;
    const struct loop_peer *peer = &channel->peers[delivery->peer];
    bool left = peer->connected && !peer->lost && peer->link == delivery->link;
    event->status = left ? STATUS_OK : STATUS_PEER_LOST;
    if (!left) return;
    channel->stats.sent_frames++;
    channel->stats.sent_bytes += FRAME_BYTES + delivery->packet_bytes;
}

static void deliver_lost(struct loop_channel *channel, uint64_t gone) {
    for (uint32_t i = 0; i < channel->config.peers_max; i++) {
        struct loop_peer *peer = &channel->peers[i];
        if (!peer->connected || peer->lost || peer->channel != gone) continue;
        peer->lost = true;
        struct channel_event *event = queue_event(channel, CHANNEL_PEER_LOST);
        event->peer = i;
        event->status = STATUS_PEER_LOST;
    }
}

static void deliver(struct loop *loop, struct delivery *delivery) {
    struct loop_channel *channel = find_channel(loop, delivery->to);
    switch (delivery->kind) {
    case DELIVER_FRAME:
        deliver_frame(loop, delivery);
        break;
    case DELIVER_SENT:
        if (channel) deliver_sent(channel, delivery);
        break;
    case DELIVER_LOST:
        if (channel && loop->nodes[channel->node] == LOOP_UP) deliver_lost(channel, delivery->from);
        break;
    default:
        loop_control_deliver(loop, delivery);
    }
}

/* Everyone who is connected to a channel that is gone learns of it after a while, as UCX's error
 * callback would tell; across a partition nobody learns anything. */
static void tell_lost(struct loop *loop, const struct loop_channel *gone) {
    for (size_t id = 0; id < loop->channel_count; id++) {
        const struct loop_channel *other = loop->channels[id];
        if (!other || other == gone || loop->nodes[other->node] != LOOP_UP) continue;
        for (uint32_t i = 0; i < other->config.peers_max; i++) {
            const struct loop_peer *peer = &other->peers[i];
            if (!peer->connected || peer->lost || peer->channel != gone->id) continue;
            const struct delivery lost = {.at_ns = loop->now_ns + loop_delay_ns(loop),
                                          .kind = DELIVER_LOST,
                                          .from = gone->id,
                                          .to = id};
            loop_schedule(loop, &lost);
            break;
        }
    }
}

/* ---- data: the channel's operations ---- */

static enum status loop_address(struct channel *base, uint8_t *address, size_t *bytes) {
    const struct loop_channel *channel = (const struct loop_channel *)base;
    memcpy(address, &channel->id, ADDRESS_BYTES);
    *bytes = ADDRESS_BYTES;
    return STATUS_OK;
}

static enum status loop_connect(struct channel *base, uint32_t number, const uint8_t *address,
                                size_t bytes) {
    struct loop_channel *channel = (struct loop_channel *)base;
    ASSERT_OP(number, <, channel->config.peers_max);
    if (bytes != ADDRESS_BYTES) return STATUS_INVALID;
    uint64_t id;
    memcpy(&id, address, sizeof id);
    if (id >= channel->loop->channel_count) return STATUS_INVALID;
    const struct loop_channel *other = channel->loop->channels[id];
    if (!other || channel->loop->nodes[other->node] == LOOP_DEAD ||
        channel->loop->now_ns < channel->loop->data_ns[other->node] ||
        channel->loop->now_ns < channel->loop->data_ns[channel->node]) {
        return STATUS_PEER_LOST;
    }
    channel->peers[number] =
        (struct loop_peer){.connected = true, .channel = id, .link = ++channel->loop->serial};
    return STATUS_OK;
}

static struct loop_message *make_message(const uint8_t *header, const uint8_t *payload,
                                         size_t bytes) {
    size_t head_bytes = arena_need(sizeof(struct loop_message)); /* the payload is aligned, too */
    struct loop_message *message = memory_zeroed(1, head_bytes + bytes);
    message->payload = (uint8_t *)message + head_bytes;
    message->bytes = bytes;
    memcpy(message->header, header, FRAME_BYTES);
    if (bytes) memcpy(message->payload, payload, bytes);
    return message;
}

static enum status loop_send(struct channel *base, uint32_t number, const uint8_t *header,
                             const uint8_t *payload, size_t payload_bytes, uint64_t cookie) {
    struct loop_channel *channel = (struct loop_channel *)base;
    struct loop *loop = channel->loop;
    ASSERT_OP(number, <, channel->config.peers_max);
    struct loop_peer *peer = &channel->peers[number];
    if (!peer->connected || peer->lost) return STATUS_PEER_LOST;
    if (channel->in_flight == channel->config.sends_max) return STATUS_AGAIN;
    channel->in_flight++;
    loop->counts.frames++;
    bool dropped = (double)random_unit(&loop->random) < loop->faults.drop;
    bool twice = (double)random_unit(&loop->random) < loop->faults.duplicate;
    int64_t delays[3];
    for (int i = 0; i < 3; i++) {
        delays[i] = loop_delay_ns(loop); /* always drawn, so that odds do not shift the stream */
    }
    struct delivery delivery = {.kind = DELIVER_SENT,
                                .at_ns = loop->now_ns + delays[2],
                                .to = channel->id,
                                .peer = number,
                                .cookie = cookie,
                                .link = peer->link,
                                .packet_bytes = payload_bytes};
    loop_schedule(loop, &delivery);
    uint64_t order = ++peer->sent;
    if (dropped) {
        loop->counts.dropped++;
        return STATUS_OK;
    }
    struct loop_message *message = make_message(header, payload, payload_bytes);
    message->peer = number;
    message->link = peer->link;
    message->order = order;
    message->references = twice ? 2 : 1;
    loop->counts.duplicated += twice;
    for (uint32_t i = 0; i < (twice ? 2U : 1U); i++) {
        delivery = (struct delivery){.kind = DELIVER_FRAME,
                                     .at_ns = loop->now_ns + delays[i],
                                     .again = i == 1,
                                     .from = channel->id,
                                     .from_node = channel->node,
                                     .to = peer->channel,
                                     .message = message};
        loop_schedule(loop, &delivery);
    }
    return STATUS_OK;
}

static size_t loop_poll(struct channel *base, struct channel_event *events, size_t capacity) {
    struct loop_channel *channel = (struct loop_channel *)base;
    size_t count = 0;
    while (count < capacity && channel->event_head < channel->event_count) {
        const struct channel_event *event = &channel->events[channel->event_head++];
        if (event->kind == CHANNEL_SENT) channel->in_flight--;
        if (event->kind == CHANNEL_PEER_LOST && !channel->peers[event->peer].lost) continue;
        events[count++] = *event;
    }
    if (channel->event_head == channel->event_count) {
        free(channel->events);
        channel->events = NULL;
        channel->event_head = channel->event_count = 0;
    }
    return count;
}

static void loop_release(struct channel *base, uint32_t slot) {
    struct loop_channel *channel = (struct loop_channel *)base;
    ASSERT_OP(slot, <, channel->config.slots);
    ASSERT(channel->slots[slot]);
    drop_reference(channel->slots[slot]);
    channel->slots[slot] = NULL;
    if (channel->waiting_head == channel->waiting_count) return;
    bool filled = fill_slot(channel, channel->waiting[channel->waiting_head++]);
    ASSERT(filled);
    if (channel->waiting_head == channel->waiting_count) {
        free(channel->waiting);
        channel->waiting = NULL;
        channel->waiting_head = channel->waiting_count = 0;
    }
}

static int loop_wait_fd(struct channel *base) {
    (void)base;
    return -1;
}

static enum status loop_arm(struct channel *base) {
    const struct loop_channel *channel = (const struct loop_channel *)base;
    return channel->event_head < channel->event_count ? STATUS_AGAIN : STATUS_OK;
}

static void loop_stats(const struct channel *base, struct channel_stats *stats) {
    *stats = ((const struct loop_channel *)base)->stats;
}

static void loop_channel_close(struct channel *base) {
    struct loop_channel *channel = (struct loop_channel *)base;
    struct loop *loop = channel->loop;
    loop->channels[channel->id] = NULL;
    if (loop->nodes[channel->node] == LOOP_UP) tell_lost(loop, channel);
    for (uint32_t i = 0; i < channel->config.slots; i++) {
        if (channel->slots[i]) drop_reference(channel->slots[i]);
    }
    while (channel->waiting_head < channel->waiting_count) {
        drop_reference(channel->waiting[channel->waiting_head++]);
    }
    free(channel->waiting);
    free(channel->events);
    free(channel->slots);
    free(channel->peers);
    free(channel);
}

static const struct channel_ops loop_channel_ops = {
    .name = "loop",
    .address = loop_address,
    .connect = loop_connect,
    .send = loop_send,
    .poll = loop_poll,
    .release = loop_release,
    .wait_fd = loop_wait_fd,
    .arm = loop_arm,
    .stats = loop_stats,
    .close = loop_channel_close,
};

enum status loop_channel(struct loop *loop, uint32_t node, const struct channel_config *config,
                         struct channel **channel) {
    ASSERT_OP(node, <, LOOP_NODES);
    struct loop_channel *made = memory_zeroed(1, sizeof *made);
    made->ops = loop_channel_ops;
    made->ops.lossy = !loop->faults.reliable;
    made->base.ops = &made->ops;
    made->loop = loop;
    made->node = node;
    made->config = *config;
    made->peers = memory_zeroed(config->peers_max, sizeof *made->peers);
    made->slots = memory_zeroed(config->slots, sizeof(void *));
    made->id = loop->channel_count;
    loop->channels = loop_grow(loop->channels, loop->channel_count, sizeof(void *));
    loop->channels[loop->channel_count++] = made;
    *channel = &made->base;
    return STATUS_OK;
}

/* ---- the network ---- */

enum status loop_open(struct loop **loop, uint64_t seed, const struct loop_faults *faults) {
    ASSERT_OP(faults->delay_min_ns, >=, 0);
    ASSERT_OP(faults->delay_max_ns, >=, faults->delay_min_ns);
    struct loop *made = memory_zeroed(1, sizeof *made);
    made->faults = *faults;
    random_open(&made->random, seed, RANDOM_SIMULATOR, 0);
    *loop = made;
    return STATUS_OK;
}

void loop_close(struct loop *loop) {
    for (size_t i = 0; i < loop->channel_count; i++) {
        ASSERT(!loop->channels[i]);
    }
    for (size_t i = 0; i < loop->control_count; i++) {
        ASSERT(!loop->controls[i]);
    }
    for (size_t i = 0; i < loop->heap_count; i++) {
        if (loop->heap[i].message) drop_reference(loop->heap[i].message);
        free(loop->heap[i].packet);
    }
    free(loop->heap);
    free(loop->channels);
    free(loop->controls);
    free(loop);
}

int64_t loop_now_ns(const struct loop *loop) {
    return loop->now_ns;
}

int64_t loop_next_ns(const struct loop *loop) {
    return loop->heap_count > 0 ? loop->heap[0].at_ns : INT64_MAX;
}

void loop_advance(struct loop *loop, int64_t now_ns) {
    ASSERT_OP(now_ns, >=, loop->now_ns);
    while (loop->heap_count > 0 && loop->heap[0].at_ns <= now_ns) {
        struct delivery next = take_next(loop);
        loop->now_ns = next.at_ns; /* what this one schedules comes after it */
        deliver(loop, &next);
    }
    loop->now_ns = now_ns;
}

void loop_cut(struct loop *loop, uint32_t node, bool silent) {
    ASSERT_OP(node, <, LOOP_NODES);
    if (loop->nodes[node] != LOOP_UP) return;
    loop->nodes[node] = silent ? LOOP_PARTITIONED : LOOP_DEAD;
    if (silent) return;
    loop_control_cut(loop, node);
    for (size_t id = 0; id < loop->channel_count; id++) {
        const struct loop_channel *channel = loop->channels[id];
        if (channel && channel->node == node) tell_lost(loop, channel);
    }
}

/* Half of the frames that are under way from or to a channel do not come. */
static void lose_frames(struct loop *loop, uint64_t id) {
    for (size_t i = 0; i < loop->heap_count; i++) {
        struct delivery *delivery = &loop->heap[i];
        if (delivery->kind != DELIVER_FRAME || (delivery->from != id && delivery->to != id)) {
            continue;
        }
        if (random_below(&loop->random, 2) == 0) delivery->to = NO_CHANNEL;
    }
}

void loop_cut_data(struct loop *loop, uint32_t node, int64_t until_ns) {
    ASSERT_OP(node, <, LOOP_NODES);
    loop->data_ns[node] = until_ns;
    for (size_t id = 0; id < loop->channel_count; id++) {
        struct loop_channel *channel = loop->channels[id];
        if (!channel || channel->node != node) continue;
        lose_frames(loop, id);
        tell_lost(loop, channel);
        for (size_t other = 0; other < loop->channel_count; other++) {
            if (other != id && loop->channels[other]) deliver_lost(channel, other);
        }
    }
}

void loop_count(const struct loop *loop, struct loop_counts *counts) {
    *counts = loop->counts;
}
