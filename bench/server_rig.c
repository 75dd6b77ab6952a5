#include "bench/server_rig.h"

#include "base/assert.h"
#include "base/checksum.h"
#include "base/random.h"
#include "bench/cpu_time.h"
#include "compression/encoder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 512, COLS = 512, COUNT = ROWS * COLS, JOB = 1, EPOCH = 1, FIRST_SESSION = 1000 };

/* ---- the channel ---- */

static void add_event(struct rig_channel *rig, const struct channel_event *event) {
    ASSERT_OP(rig->count, <, rig->capacity);
    rig->events[(rig->head + rig->count++) % rig->capacity] = *event;
}

static enum status rig_send(struct channel *channel, uint32_t peer, const uint8_t *header,
                            const uint8_t *payload, size_t bytes, uint64_t cookie) {
    struct rig_channel *rig = (struct rig_channel *)channel;
    (void)header, (void)payload, (void)bytes;
    rig->answers[peer]++;
    add_event(rig, &(struct channel_event){.kind = CHANNEL_SENT, .peer = peer, .cookie = cookie});
    return STATUS_OK;
}

static size_t rig_poll(struct channel *channel, struct channel_event *events, size_t capacity) {
    struct rig_channel *rig = (struct rig_channel *)channel;
    size_t count = 0;
    for (; count < capacity && rig->count > 0; rig->count--) {
        events[count++] = rig->events[rig->head];
        rig->head = (rig->head + 1) % rig->capacity;
    }
    return count;
}

static void rig_release(struct channel *channel, uint32_t slot) {
    struct rig_channel *rig = (struct rig_channel *)channel;
    rig->free_slots[rig->free_count++] = slot;
}

static void rig_close(struct channel *channel) {
    struct rig_channel *rig = (struct rig_channel *)channel;
    free(rig->events);
    free(rig->headers);
    free(rig->free_slots);
    free(rig->answers);
}

static const struct channel_ops rig_ops = {.name = "bench",
                                           .send = rig_send,
                                           .poll = rig_poll,
                                           .release = rig_release,
                                           .close = rig_close};

static void channel_open(struct rig_channel *rig, const struct channel_config *config) {
    *rig = (struct rig_channel){.channel = {.ops = &rig_ops},
                                .capacity = config->slots + config->sends_max,
                                .free_count = config->slots};
    rig->events = memory_zeroed(rig->capacity, sizeof *rig->events);
    rig->headers = memory_zeroed(config->slots, sizeof *rig->headers);
    rig->free_slots = memory_zeroed(config->slots, sizeof *rig->free_slots);
    rig->answers = memory_zeroed(config->peers_max, sizeof *rig->answers);
    for (uint32_t slot = 0; slot < config->slots; slot++) {
        rig->free_slots[slot] = slot;
    }
}

static void receive(struct rig_channel *rig, const struct frame *frame, const void *payload) {
    ASSERT_OP(rig->free_count, >, 0);
    uint32_t slot = rig->free_slots[--rig->free_count];
    frame_encode(frame, rig->headers[slot]);
    add_event(rig, &(struct channel_event){.kind = CHANNEL_RECEIVED,
                                           .slot = slot,
                                           .header = rig->headers[slot],
                                           .payload = payload,
                                           .payload_bytes = frame->payload_bytes});
}

/* ---- payloads ---- */

void rig_payloads_open(struct rig_payloads *payloads, uint64_t sets, uint64_t blocks) {
    const struct encoder_block block = {.rows = ROWS, .cols = COLS};
    const struct encoder_config config = {
        .spec = {.codec = CODEC_INT8}, .blocks = &block, .block_count = 1};
    struct encoder *encoder = encoder_open(&config);
    struct encoder_result result = {0};
    struct random_stream random;
    size_t bound = encoder_bound(encoder, 0);
    void *scratch = memory_zeroed(encoder_scratch_bytes(encoder), 1);
    float *values = memory_zeroed(COUNT, sizeof *values);
    uint8_t *wire = memory_zeroed(bound, 1);
    random_open(&random, 1, RANDOM_SIMULATOR, 0);
    for (size_t i = 0; i < COUNT; i++) {
        values[i] = 1e-3F * random_normal(&random);
    }
    encoder_encode(encoder, 0, 1, values, 1, wire, scratch, &result);
    ASSERT_OP(result.codec, ==, CODEC_INT8);
    *payloads = (struct rig_payloads){.sets = sets, .blocks = blocks, .bytes = result.bytes};
    payloads->wire = memory_zeroed(sets * blocks, result.bytes);
    payloads->xxh3 = memory_zeroed(sets * blocks, sizeof *payloads->xxh3);
    for (uint64_t i = 0; i < sets * blocks; i++) {
        memcpy(payloads->wire + i * result.bytes, wire, result.bytes);
        payloads->xxh3[i] = checksum_xxh3(wire, result.bytes);
    }
    free(wire);
    free(values);
    free(scratch);
    encoder_close(encoder);
}

void rig_payloads_close(struct rig_payloads *payloads) {
    free(payloads->wire);
    free(payloads->xxh3);
}

/* ---- the shard ---- */

static struct frame frame_of(enum frame_kind kind, uint32_t rank, uint64_t block) {
    return (struct frame){.kind = kind,
                          .codec = CODEC_F32,
                          .job = JOB,
                          .epoch = EPOCH,
                          .session = FIRST_SESSION + rank,
                          .block = block,
                          .value_count = COUNT,
                          .rank = (uint16_t)rank};
}

static void poll_all(struct server_rig *rig) {
    while (shard_poll(&rig->shard, 0)) {
    }
}

static void send_weights(struct server_rig *rig) {
    float *values = memory_zeroed(COUNT, sizeof *values);
    for (int i = 0; i < COUNT; i++) {
        values[i] = 0.01F * (float)(i % 201) - 1.0F;
    }
    for (uint64_t block = 0; block < rig->plan.block_count; block++) {
        struct frame frame = frame_of(FRAME_INIT, 0, block);
        frame.payload_bytes = COUNT * sizeof *values;
        frame.payload_xxh3 = checksum_xxh3(values, frame.payload_bytes);
        receive(&rig->channel, &frame, values);
    }
    poll_all(rig);
    free(values);
}

void server_rig_open(struct server_rig *rig, const char *mode, uint32_t workers,
                     const struct rig_payloads *payloads) {
    struct channel_config channel;
    uint64_t *sessions = memory_zeroed(workers, sizeof *sessions);
    const struct tensor tensor = {.name = "w", .dims = 2, .shape = {payloads->blocks * ROWS, COLS}};
    *rig = (struct server_rig){.payloads = payloads};
    options_init(&rig->options, job_table, job_table_count, &rig->job);
    (void)snprintf(rig->job.mode, sizeof rig->job.mode, "%s", mode);
    (void)snprintf(rig->job.push, sizeof rig->job.push, "int8");
    (void)snprintf(rig->job.optimizer, sizeof rig->job.optimizer, "adamw");
    rig->job.workers = workers;
    rig->job.sync_warmup = 0;
    rig->job.steps = 1000000;
    rig->job.delay_comp = 0;
    struct plan_options options = job_plan_options(&rig->job, 1);
    options.block_values = COUNT;
    ASSERT(plan_build(&rig->plan, &tensor, 1, &options) == STATUS_OK);
    ASSERT_OP(rig->plan.block_count, ==, payloads->blocks);
    shard_channel_config(&rig->job, &rig->plan, 0, &channel);
    channel_open(&rig->channel, &channel);
    for (uint32_t rank = 0; rank < workers; rank++) {
        sessions[rank] = FIRST_SESSION + rank;
    }
    const struct shard_config config = {.job = &rig->job,
                                        .plan = &rig->plan,
                                        .job_id = JOB,
                                        .epoch = EPOCH,
                                        .channel = &rig->channel.channel,
                                        .sessions = sessions};
    ASSERT(shard_init(&rig->shard, &config) == STATUS_OK);
    rig->seq = memory_zeroed(workers, sizeof *rig->seq);
    free(sessions);
    send_weights(rig);
}

void server_rig_close(struct server_rig *rig) {
    shard_free(&rig->shard);
    plan_free(&rig->plan);
    free(rig->seq);
}

bool server_rig_may_push(const struct server_rig *rig, uint32_t rank) {
    return rig->channel.answers[rank] == rig->seq[rank] * rig->plan.block_count;
}

double server_rig_report(struct server_rig *rig, uint32_t rank) {
    const struct rig_payloads *payloads = rig->payloads;
    uint64_t first = rig->reports++ % payloads->sets * payloads->blocks;
    uint64_t seq = ++rig->seq[rank];
    struct shard_note note;
    for (uint64_t block = 0; block < payloads->blocks; block++) {
        struct frame frame = frame_of(FRAME_PUSH, rank, block);
        frame.codec = CODEC_INT8;
        frame.seq = seq;
        frame.ticket = (uint32_t)seq;
        frame.block_version = rig->shard.blocks[block].version;
        frame.scalar = 1;
        frame.payload_bytes = (uint32_t)payloads->bytes;
        frame.payload_xxh3 = payloads->xxh3[first + block];
        receive(&rig->channel, &frame, payloads->wire + (first + block) * payloads->bytes);
    }
    if (!rig->shard.by_round) {
        struct frame frame = frame_of(FRAME_COMMIT, rank, 0);
        frame.seq = seq;
        frame.scalar = 1;
        frame.value_count = 0;
        frame.payload_xxh3 = checksum_xxh3(NULL, 0);
        receive(&rig->channel, &frame, NULL);
    }
    double start = cpu_seconds();
    poll_all(rig);
    while (ring_pop(&rig->shard.notes, &note) == STATUS_OK) {
        const struct shard_order order = {.kind = SHARD_VERDICT,
                                          .verdict = {.round = note.report.round, .scale = 1}};
        ASSERT(ring_push(&rig->shard.orders, &order) == STATUS_OK);
        poll_all(rig);
    }
    return cpu_seconds() - start;
}
