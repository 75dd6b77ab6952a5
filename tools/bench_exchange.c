#include "tools/bench_exchange.h"

#include "base/assert.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/wake.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { EVENTS_A_POLL = 64, SPARE_SLOTS = 16 };

/* One message under way at a time: from a worker to a shard, or its answer. */
struct lane {
    uint32_t pending; /* worker: events that its message still waits for */
    int64_t sent_ns;
};

/* One end: a worker's or a shard's. */
struct flow {
    struct bench_run *run;
    struct bench_seat *seat;
    struct channel *channel;
    struct idle idle;
    bool serves;    /* it is a shard */
    bool outgoing;  /* its messages have payloads */
    bool answered;  /* worker: its messages have answers */
    uint32_t index; /* of the shard, or rank of the worker: the peer's number for this end */
    uint32_t peers, depth;
    struct lane *lanes; /* [peers * depth] */
    uint32_t *ready;    /* a circle of lanes whose message is to be sent */
    uint32_t ready_head, ready_count;
    struct arena own;
    uint8_t *payloads; /* [buffers] of run->bytes; a shard sends the same to all workers */
    enum status status;
};

static uint32_t lane_count(const struct flow *flow) {
    return flow->peers * flow->depth;
}

static void make_ready(struct flow *flow, uint32_t lane) {
    ASSERT_OP(flow->ready_count, <, lane_count(flow)); /* a lane is in it once at most */
    flow->ready[(flow->ready_head + flow->ready_count++) % lane_count(flow)] = lane;
}

static void flow_config(const struct flow *flow, struct channel_config *config) {
    uint32_t lanes = lane_count(flow);
    *config = (struct channel_config){.peers_max = flow->peers,
                                      .slots = lanes + SPARE_SLOTS,
                                      .slot_bytes = flow->run->bytes,
                                      .sends_max = 2 * lanes + SPARE_SLOTS};
}

static enum status flow_open(struct flow *flow, struct bench_run *run, bool serves,
                             uint32_t index) {
    uint32_t seat = serves ? index : (uint32_t)run->job.shards + index;
    bool push = strcmp(run->direction, "push") == 0, pull = strcmp(run->direction, "pull") == 0;
    struct channel_config config;
    *flow = (struct flow){.run = run,
                          .seat = &run->board->seats[seat],
                          .serves = serves,
                          .outgoing = serves ? !push : !pull,
                          .answered = !push,
                          .index = index,
                          .peers = (uint32_t)(serves ? run->job.workers : run->job.shards),
                          .depth = (uint32_t)run->options->depth};
    flow->lanes = memory_zeroed(lane_count(flow), sizeof *flow->lanes);
    flow->ready = memory_zeroed(lane_count(flow), sizeof *flow->ready);
    flow_config(flow, &config);
    TRY(idle_init(&flow->idle, run->job.poll, clock_now_ns()));
    TRY(bench_rig_open(run, seat, &config, &flow->channel));
    if (!flow->outgoing) return STATUS_OK;
    size_t bytes = run->bytes * (serves ? flow->depth : lane_count(flow));
    TRY(channel_memory(flow->channel, bytes, &flow->own, &flow->payloads));
    memset(flow->payloads, 0x5a, bytes); /* pages that nobody wrote to would be one page of zeros */
    return STATUS_OK;
}

static void flow_close(struct flow *flow) {
    if (flow->channel) flow->channel->ops->close(flow->channel);
    arena_free(&flow->own);
    free(flow->lanes);
    free(flow->ready);
}

static const uint8_t *payload_of(const struct flow *flow, uint32_t lane) {
    if (!flow->outgoing) return NULL;
    return flow->payloads + (flow->serves ? lane % flow->depth : lane) * flow->run->bytes;
}

/* Its ticket is the lane as the receiver counts. AGAIN: the channel takes no more now. */
static enum status send_message(struct flow *flow, uint32_t lane) {
    const uint8_t *payload = payload_of(flow, lane);
    enum frame_kind request = payload ? FRAME_PUSH : FRAME_PULL;
    struct frame frame = {.kind = flow->serves ? FRAME_WEIGHTS : request,
                          .ticket = flow->index * flow->depth + lane % flow->depth,
                          .payload_bytes = payload ? (uint32_t)flow->run->bytes : 0};
    uint8_t header[FRAME_BYTES];
    if (flow->run->options->checksum) {
        frame.payload_xxh3 = checksum_xxh3(payload, frame.payload_bytes);
    }
    frame_encode(&frame, header);
    return flow->channel->ops->send(flow->channel, lane / flow->depth, header, payload,
                                    frame.payload_bytes, lane);
}

static enum status send_ready(struct flow *flow) {
    while (flow->ready_count > 0) {
        ASSERT_OP(flow->ready_head, <, lane_count(flow));
        uint32_t lane = flow->ready[flow->ready_head];
        enum status status = send_message(flow, lane);
        if (status == STATUS_AGAIN) return STATUS_OK;
        TRY(status);
        flow->ready_head = (flow->ready_head + 1) % lane_count(flow);
        flow->ready_count--;
        if (flow->serves) continue;
        flow->lanes[lane].pending = flow->answered ? 2 : 1;
        flow->lanes[lane].sent_ns = clock_now_ns();
    }
    return STATUS_OK;
}

/* Worker: one more of the events that a message waits for; after the last, the next one. */
static void advance(struct flow *flow, uint32_t lane) {
    if (--flow->lanes[lane].pending > 0) return;
    bench_rig_sample(flow->seat, clock_now_ns() - flow->lanes[lane].sent_ns);
    atomic_fetch_add_explicit(&flow->seat->messages, 1, memory_order_relaxed);
    make_ready(flow, lane);
}

static enum status take_received(struct flow *flow, const struct channel_event *event) {
    struct frame frame;
    TRY(frame_decode(event->header, &frame));
    if (frame.ticket >= lane_count(flow)) return STATUS_CORRUPT;
    if (flow->run->options->checksum) {
        TRY(frame_check_payload(&frame, event->payload, event->payload_bytes));
    }
    flow->channel->ops->release(flow->channel, event->slot);
    atomic_fetch_add_explicit(&flow->seat->payload_bytes, event->payload_bytes,
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&flow->seat->wire_bytes, FRAME_BYTES + event->payload_bytes,
                              memory_order_relaxed);
    if (!flow->serves) {
        advance(flow, frame.ticket);
    } else if (flow->outgoing) {
        make_ready(flow, frame.ticket);
    }
    return STATUS_OK;
}

static enum status take_event(struct flow *flow, const struct channel_event *event) {
    if (event->kind == CHANNEL_RECEIVED) return take_received(flow, event);
    if (event->kind == CHANNEL_PEER_LOST) return STATUS_PEER_LOST;
    if (!flow->serves && event->status == STATUS_OK) advance(flow, (uint32_t)event->cookie);
    return event->status;
}

/* When the run is over, the others may have gone before. */
static enum status explain(const struct flow *flow, enum status status) {
    if (bench_rig_is_over(flow->run)) return STATUS_OK;
    log_error("%s %u: %s", flow->serves ? "shard" : "worker", flow->index, status_text(status));
    return status;
}

/* Until the run is over. */
static enum status flow_run(struct flow *flow) {
    struct channel_event events[EVENTS_A_POLL];
    while (!bench_rig_is_complete(flow->run)) {
        wake_wait(NULL, 0, CLOCK_MS);
    }
    for (uint32_t lane = 0; lane < lane_count(flow) && !flow->serves; lane++) {
        make_ready(flow, lane);
    }
    while (!bench_rig_is_over(flow->run)) {
        size_t count = flow->channel->ops->poll(flow->channel, events, EVENTS_A_POLL);
        enum status status = STATUS_OK;
        for (size_t i = 0; i < count && status == STATUS_OK; i++) {
            status = take_event(flow, &events[i]);
        }
        if (status == STATUS_OK) status = send_ready(flow);
        if (status != STATUS_OK) return explain(flow, status);
        bench_rig_rest(&flow->idle, flow->channel, count > 0);
    }
    return STATUS_OK;
}

static void *run_shard(void *argument) {
    struct flow *flow = argument;
    flow->status = flow_run(flow);
    return NULL;
}

enum status bench_exchange_server(struct bench_run *run, uint32_t index) {
    uint32_t count = (uint32_t)run->job.shards, started = 0;
    struct flow *flows = memory_zeroed(count, sizeof *flows);
    struct channel **channels = memory_zeroed(count, sizeof *channels);
    pthread_t *threads = memory_zeroed(count, sizeof *threads);
    enum status status = STATUS_OK;
    (void)index;
    for (uint32_t i = 0; i < count && status == STATUS_OK; i++) {
        status = flow_open(&flows[i], run, true, i);
        channels[i] = flows[i].channel;
    }
    if (status == STATUS_OK) {
        status = bench_rig_connect(run, channels, count, count, (uint32_t)run->job.workers);
    }
    while (status == STATUS_OK && started < count) {
        if (pthread_create(&threads[started], NULL, run_shard, &flows[started]) == 0) {
            started++;
        } else {
            log_error("no thread for shard %u", started);
            status = STATUS_MEMORY;
        }
    }
    for (uint32_t i = 0; i < started; i++) {
        (void)pthread_join(threads[i], NULL);
        if (status == STATUS_OK) status = flows[i].status;
    }
    for (uint32_t i = 0; i < count; i++) {
        flow_close(&flows[i]);
    }
    free(flows);
    free(channels);
    free(threads);
    return status;
}

enum status bench_exchange_worker(struct bench_run *run, uint32_t index) {
    struct flow flow = {0};
    enum status status = flow_open(&flow, run, false, index);
    if (status == STATUS_OK) {
        status = bench_rig_connect(run, &flow.channel, 1, 0, (uint32_t)run->job.shards);
    }
    if (status == STATUS_OK) status = flow_run(&flow);
    flow_close(&flow);
    return status;
}
