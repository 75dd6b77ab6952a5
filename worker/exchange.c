#include "worker/exchange.h"

#include "base/assert.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/log.h"
#include "compression/decoder.h"
#include "compression/delta.h"
#include "worker/exchange_parts.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { EVENTS_A_POLL = 64 };

/* Until what a device encodes is taken to hang; and on channels that lose nothing, until what is
 * not answered is sent again. */
enum { LONG_LEASES = 12 };

void exchange_channel_config(const struct plan *plan, struct channel_config *config) {
    uint64_t blocks = plan->block_count;
    *config = (struct channel_config){
        .peers_max = (uint32_t)plan->shard_count,
        .slots = (uint32_t)(blocks < 64 ? blocks + 16 : 80),
        /* Weights of any --pull, the last ones in f32, or a mean by --push's codec. */
        .slot_bytes = decoder_payload_max((size_t)plan->largest_block),
        .sends_max = (uint32_t)(2 * blocks + plan->shard_count + 16),
    };
}

/* Where devices put the payloads. */
static void place_wires(struct exchange *exchange, size_t bytes) {
    struct exchange_device *encoding = &exchange->encoding;
    exchange_device_place(encoding, exchange->config.channel, exchange->blocks[0].wire, bytes);
    for (uint64_t id = 0; id < exchange->config.plan->block_count; id++) {
        struct exchange_block *block = &exchange->blocks[id];
        block->wire = exchange_device_wire(encoding, id, block->wire);
    }
}

enum status exchange_init(struct exchange *exchange, const struct exchange_config *config) {
    const struct plan *plan = config->plan;
    uint8_t codec;
    *exchange =
        (struct exchange){.config = *config, .follows = delta_find(config->job->pull, &codec)};
    exchange->steps = job_workers_step(config->job);
    exchange->raw =
        (struct raw_weights){.plan = plan, .values = config->weights, .codecs = config->codecs};
    ASSERT(config->codecs == NULL || !(exchange->follows || exchange->steps));
    TRY(push_codec_open(config->job, plan, config->rank, PUSH_CODEC_ALL, &exchange->push));
    exchange->counters.codec_bytes = push_codec_memory(exchange->push);
    /* Where frames cannot be lost, a late answer is a slow peer's; repeating whole pushes would
     * only load the link. The rare repetition is for a frame that was found damaged. */
    int64_t lease_ns = job_lease_ns(config->job);
    exchange->resend_ns = config->channel->ops->lossy ? lease_ns / 2 : LONG_LEASES * lease_ns;
    redial_init(&exchange->redial, &(struct redial_config){.channel = config->channel,
                                                           .addresses = config->addresses,
                                                           .count = (uint32_t)plan->shard_count,
                                                           .kind = "shard",
                                                           .lease_ns = lease_ns});
    size_t bytes = arena_need((size_t)plan->block_count * sizeof(struct exchange_block)) +
                   2 * arena_need((size_t)plan->shard_count * sizeof(bool));
    size_t wire_bytes = 0;
    for (uint64_t id = 0; id < plan->block_count; id++) {
        wire_bytes += arena_need(push_codec_bound(exchange->push, id));
    }
    uint8_t *wire = NULL;
    enum status status = arena_init(&exchange->arena, bytes);
    if (status == STATUS_OK) {
        status = channel_memory(config->channel, wire_bytes, &exchange->wires, &wire);
    }
    if (status == STATUS_OK && exchange->steps) {
        status = stepper_init(&exchange->stepper, config->job, plan, exchange->push);
    }
    if (status != STATUS_OK) {
        exchange_free(exchange);
        return status;
    }
    exchange->blocks =
        arena_take(&exchange->arena, (size_t)plan->block_count * sizeof(struct exchange_block));
    exchange->commit_due = arena_take(&exchange->arena, (size_t)plan->shard_count * sizeof(bool));
    exchange->commit_shards =
        arena_take(&exchange->arena, (size_t)plan->shard_count * sizeof(bool));
    for (uint64_t id = 0; id < plan->block_count; id++) {
        exchange->blocks[id].wire = wire;
        wire += arena_need(push_codec_bound(exchange->push, id));
    }
    if (config->devices.count > 0) {
        exchange_device_open(&exchange->encoding, &config->devices, exchange->push, plan,
                             LONG_LEASES * lease_ns);
    }
    if (exchange_on_device(exchange)) {
        place_wires(exchange, wire_bytes);
    }
    return STATUS_OK;
}

void exchange_leave_device(struct exchange *exchange) {
    exchange_device_close(&exchange->encoding);
}

void exchange_free(struct exchange *exchange) {
    exchange_leave_device(exchange);
    exchange_device_free(&exchange->encoding);
    push_codec_close(exchange->push);
    stepper_free(&exchange->stepper);
    redial_free(&exchange->redial);
    arena_free(&exchange->arena);
    arena_free(&exchange->wires);
    *exchange = (struct exchange){0};
}

static void open_request(struct exchange *exchange, struct exchange_block *block,
                         enum frame_kind kind) {
    ASSERT(!block->open);
    block->kind = kind;
    block->ticket++;
    block->open = true;
    block->exact = false;
    exchange->open++;
    if (!block->encoding) exchange_make_unsent(exchange, block);
}

void exchange_pull_all(struct exchange *exchange, bool first) {
    for (uint64_t id = 0; id < exchange->config.plan->block_count; id++) {
        exchange->blocks[id].first = first;
        open_request(exchange, &exchange->blocks[id], FRAME_PULL);
        exchange->blocks[id].exact = exchange->steps;
    }
}

void exchange_pull_exact(struct exchange *exchange) {
    for (uint64_t id = 0; id < exchange->config.plan->block_count; id++) {
        open_request(exchange, &exchange->blocks[id], FRAME_PULL);
        exchange->blocks[id].exact = true;
    }
}

void exchange_versions(const struct exchange *exchange, uint64_t *least, uint64_t *most) {
    *least = UINT64_MAX;
    *most = 0;
    for (uint64_t id = 0; id < exchange->config.plan->block_count; id++) {
        uint64_t version = exchange->blocks[id].version;
        if (exchange->config.plan->blocks[id].fragment != PLAN_FROZEN) {
            *least = version < *least ? version : *least;
            *most = version > *most ? version : *most;
        }
    }
}

void exchange_pull_behind(struct exchange *exchange) {
    const struct plan *plan = exchange->config.plan;
    uint64_t least;
    uint64_t most;
    exchange_versions(exchange, &least, &most);
    for (uint64_t id = 0; id < plan->block_count; id++) {
        if (plan->blocks[id].fragment != PLAN_FROZEN && exchange->blocks[id].version < most) {
            open_request(exchange, &exchange->blocks[id], FRAME_PULL);
        }
    }
}

/* What is not finite must not stay in the sums for ever. */
static void count_encoded(struct exchange *exchange, const struct encoder_result *result,
                          size_t count) {
    struct exchange_counters *counters = &exchange->counters;
    counters->pushed_values += count;
    if (isfinite(result->gradient_square_sum) && isfinite(result->residual_square_sum)) {
        counters->gradient_square_sum += result->gradient_square_sum;
        counters->residual_square_sum += result->residual_square_sum;
    }
}

/* The payload of block `id`'s push is there. */
static void take_payload(struct exchange *exchange, uint64_t id,
                         const struct encoder_result *result) {
    struct exchange_block *block = &exchange->blocks[id];
    block->codec = result->codec;
    block->wire_bytes = result->bytes;
    block->wire_xxh3 =
        exchange->encoding.stays ? result->xxh3 : checksum_xxh3(block->wire, block->wire_bytes);
    /* Of what the shard will apply: the codec may have made an infinity of a finite value, and then
     * the commit must say so. */
    block->sum_of_squares = result->square_sum;
    count_encoded(exchange, result, (size_t)exchange->config.plan->blocks[id].count);
}

static void open_push(struct exchange *exchange, struct exchange_block *block,
                      const struct exchange_report *report) {
    block->seq = report->seq;
    block->weight = report->weight;
    open_request(exchange, block, FRAME_PUSH);
}

enum status exchange_push(struct exchange *exchange, const struct exchange_report *report,
                          uint64_t id, const float *values) {
    struct exchange_block *block = &exchange->blocks[id];
    if (block->sends > 0) {
        return STATUS_AGAIN;
    }
    int64_t start_ns = clock_now_ns();
    struct encoder_result result;
    if (exchange->steps) {
        values =
            stepper_push(&exchange->stepper, id, report->seq, report->weight, report->clip, values);
    }
    push_codec_encode(exchange->push, id, report->seq, values, block->wire, &result);
    take_payload(exchange, id, &result);
    exchange->counters.codec_ns += clock_now_ns() - start_ns;
    open_push(exchange, block, report);
    return STATUS_OK;
}

bool exchange_on_device(const struct exchange *exchange) {
    return exchange->encoding.push != NULL;
}

enum status exchange_push_device(struct exchange *exchange, const struct exchange_report *report,
                                 uint64_t id, const float *values,
                                 const struct device_event *ready) {
    struct exchange_block *block = &exchange->blocks[id];
    if (block->sends > 0) {
        return STATUS_AGAIN;
    }
    int64_t start_ns = clock_now_ns();
    exchange_device_push(&exchange->encoding, id, report->seq, values, ready, block->wire);
    exchange->counters.codec_ns += clock_now_ns() - start_ns;
    block->encoding = true;
    open_push(exchange, block, report);
    return STATUS_OK;
}

/* All payloads of the report are there. */
static void sum_commit(struct exchange *exchange) {
    const struct plan *plan = exchange->config.plan;
    exchange->commit_waits = false;
    exchange->commit_sum = 0;
    memset(exchange->commit_shards, false, (size_t)plan->shard_count * sizeof(bool));
    for (uint64_t id = 0; id < plan->block_count; id++) {
        if (exchange->blocks[id].seq == exchange->commit_seq) {
            exchange->commit_sum += exchange->blocks[id].sum_of_squares;
            exchange->commit_shards[plan->blocks[id].shard] = true;
        }
    }
    exchange->nonfinite_in_row =
        isfinite(exchange->commit_sum) ? 0 : exchange->nonfinite_in_row + 1;
    exchange_make_commits_due(exchange);
}

void exchange_commit(struct exchange *exchange, uint64_t seq) {
    exchange->commit_seq = seq;
    exchange->commit_waits = exchange_encodes(exchange);
    exchange->commits_unsent = 0; /* of the report before */
    if (!exchange->commit_waits) {
        sum_commit(exchange);
    }
}

bool exchange_encodes(const struct exchange *exchange) {
    return exchange->encoding.count > 0 && exchange->device_status == STATUS_OK;
}

/* What the device has encoded since; of what is packed here a few blocks, so that nothing else
 * waits until a whole report is. */
static bool take_encoded(struct exchange *exchange, int64_t now_ns) {
    const bool packs = push_codec_packs(exchange->push);
    struct encoder_result result;
    uint64_t id = 0;
    int took = 0;
    while (exchange_encodes(exchange) && !(packs && took == EXCHANGE_PUSHES_A_POLL)) {
        int64_t start_ns = clock_now_ns();
        enum status status = exchange_device_next(&exchange->encoding, now_ns, &id, &result);
        if (status == STATUS_AGAIN) {
            break;
        }
        exchange->device_status = status;
        if (status == STATUS_OK) {
            exchange->blocks[id].encoding = false;
            take_payload(exchange, id, &result);
            exchange_make_unsent(exchange, &exchange->blocks[id]);
            exchange->counters.codec_ns += clock_now_ns() - start_ns;
            took++;
        }
    }
    if (exchange->commit_waits && exchange->encoding.count == 0) {
        sum_commit(exchange);
    }
    return took > 0;
}

static void count_answer(struct exchange *exchange, const struct exchange_block *block,
                         const struct frame *frame) {
    struct exchange_counters *counters = &exchange->counters;
    counters->pushes_answered++;
    counters->staleness_sum += frame->staleness;
    counters->staleness_max =
        frame->staleness > counters->staleness_max ? frame->staleness : counters->staleness_max;
    /* A report without tokens has no weight that could be dropped. */
    if (frame->scalar == 0 && block->weight > 0 && exchange->dropped_seq != block->seq) {
        exchange->dropped_seq = block->seq;
        counters->dropped++;
    }
}

/* The mean gradient of the round of our push moves the weights. */
static bool step(struct exchange *exchange, const struct frame *frame,
                 const struct channel_event *event) {
    const struct plan_block *planned = &exchange->config.plan->blocks[frame->block];
    struct exchange_block *block = &exchange->blocks[frame->block];
    float *weights = exchange->config.weights + planned->offset;
    if (!exchange->steps || block->kind != FRAME_PUSH || frame->seq != block->seq ||
        frame->block_version != block->version + 1 ||
        stepper_apply(&exchange->stepper, frame->block, block->seq, frame->codec, event->payload,
                      event->payload_bytes, weights) != STATUS_OK) {
        return false;
    }
    block->check = delta_check(weights, (size_t)planned->count);
    return true;
}

/* The payload -> the block's weights. What is no answer to our replica is asked for again, whole,
 * at once: the shard thinks that we have another. */
static bool decode(struct exchange *exchange, const struct frame *frame,
                   const struct channel_event *event) {
    const struct plan_block *planned = &exchange->config.plan->blocks[frame->block];
    struct exchange_block *block = &exchange->blocks[frame->block];
    float *weights = exchange->config.weights + planned->offset;
    size_t count = (size_t)planned->count;
    if (frame->value_count != planned->count) {
        return false;
    }
    if (frame->kind == FRAME_MEAN) {
        return step(exchange, frame, event);
    }
    if (exchange->raw.codecs != NULL) {
        return raw_weights_install(&exchange->raw, frame->block, frame->codec, event->payload,
                                   event->payload_bytes) == STATUS_OK;
    }
    if (delta_is(frame->codec)) {
        struct delta_place place = {.version = block->version, .check = block->check};
        enum status status = delta_apply(frame->codec, event->payload, event->payload_bytes,
                                         frame->block_version, weights, count, &place);
        block->check = status == STATUS_OK ? place.check : DELTA_NONE;
        if (status != STATUS_OK && !block->unsent) {
            exchange_make_unsent(exchange, block);
        }
        return status == STATUS_OK;
    }
    if ((frame->codec != CODEC_F32 && frame->codec != CODEC_BF16) ||
        decoder_set(frame->codec, event->payload, event->payload_bytes, weights, count, NULL) !=
            STATUS_OK) {
        return false;
    }
    bool replica = exchange->steps || (exchange->follows && frame->codec == CODEC_BF16);
    block->check = replica ? delta_check(weights, count) : DELTA_NONE;
    return true;
}

static void install(struct exchange *exchange, const struct frame *frame,
                    const struct channel_event *event) {
    struct exchange_block *block = &exchange->blocks[frame->block];
    struct exchange_counters *counters = &exchange->counters;
    /* Lent: a repeated first frame is in flight, and the weights are the channel's; what comes now
     * is asked for again later. */
    if (!block->open || frame->ticket != block->ticket || block->lent) {
        counters->ignored++;
        return;
    }
    if (!decode(exchange, frame, event)) {
        counters->corrupt++;
        return;
    }
    block->version = frame->block_version;
    block->first = false;
    block->open = false;
    exchange->open--;
    if (block->unsent) {
        block->unsent = false;
        exchange->unsent--;
    }
    counters->answers++;
    counters->pulled_bytes += FRAME_BYTES + event->payload_bytes;
    if (block->kind == FRAME_PUSH) {
        count_answer(exchange, block, frame);
        atomic_store_explicit(&block->answered, block->seq, memory_order_release);
    }
}

static void take_received(struct exchange *exchange, const struct channel_event *event) {
    struct frame frame;
    if (frame_decode(event->header, &frame) != STATUS_OK ||
        frame_check_payload(&frame, event->payload, event->payload_bytes) != STATUS_OK) {
        exchange->counters.corrupt++;
        log_debug("a damaged frame was dropped");
        return;
    }
    bool answers = frame.kind == FRAME_WEIGHTS || frame.kind == FRAME_MEAN;
    if (!answers || frame.job != exchange->config.job_id || frame.epoch != exchange->config.epoch ||
        frame.session != exchange->config.session || frame.rank != exchange->config.rank ||
        frame.block >= exchange->config.plan->block_count) {
        exchange->counters.ignored++;
        return;
    }
    install(exchange, &frame, event);
}

bool exchange_poll(struct exchange *exchange, int64_t now_ns) {
    struct channel *channel = exchange->config.channel;
    struct channel_event events[EVENTS_A_POLL];
    size_t count = channel->ops->poll(channel, events, EVENTS_A_POLL);
    for (size_t i = 0; i < count; i++) {
        const struct channel_event *event = &events[i];
        if (event->kind == CHANNEL_RECEIVED) {
            take_received(exchange, event);
            channel->ops->release(channel, event->slot);
        } else if (event->kind == CHANNEL_SENT) {
            exchange_sent(exchange, event, now_ns);
        } else if (event->kind == CHANNEL_PEER_LOST) {
            redial_lost(&exchange->redial, event->peer, now_ns);
        }
    }
    bool encoded = take_encoded(exchange, now_ns);
    exchange_send(exchange, now_ns);
    return count > 0 || encoded;
}

int64_t exchange_deadline_ns(const struct exchange *exchange) {
    return redial_deadline_ns(&exchange->redial);
}

uint64_t exchange_answered(const struct exchange *exchange, uint64_t id) {
    return atomic_load_explicit(&exchange->blocks[id].answered, memory_order_acquire);
}

bool exchange_settled(const struct exchange *exchange) {
    return exchange->open == 0;
}
