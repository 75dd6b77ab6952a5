/* exchange_send.c - what a worker hands to the channel, and again: see exchange_parts.h. */
#include "base/assert.h"
#include "base/checksum.h"
#include "worker/exchange_parts.h"

#include <string.h>

/* What a send's cookie says: a commit, or a block's id, with a mark when the payload is the block's
 * weights themselves. */
#define COOKIE_COMMIT  UINT64_MAX
#define COOKIE_WEIGHTS (UINT64_C(1) << 63)

void exchange_make_unsent(struct exchange *exchange, struct exchange_block *block) {
    block->unsent = true;
    exchange->unsent++;
}

void exchange_make_commits_due(struct exchange *exchange) {
    uint64_t shard_count = exchange->config.plan->shard_count;
    exchange->commits_unsent = 0;
    for (uint64_t shard = 0; shard < shard_count; shard++) {
        exchange->commit_due[shard] = exchange->commit_shards[shard];
        exchange->commits_unsent += exchange->commit_due[shard] ? 1 : 0;
    }
}

static enum status send_frame(struct exchange *exchange, struct frame *frame, uint64_t shard,
                              const uint8_t *payload, uint64_t cookie) {
    struct channel *channel = exchange->config.channel;
    uint8_t header[FRAME_BYTES];
    frame->job = exchange->config.job_id;
    frame->epoch = exchange->config.epoch;
    frame->session = exchange->config.session;
    frame->rank = (uint16_t)exchange->config.rank;
    frame_encode(frame, header);
    return channel->ops->send(channel, (uint32_t)shard, header, payload, frame->payload_bytes,
                              cookie);
}

/* Worker 0: the block's first weights, straight from the vector; also those of a block that has had
 * an answer, and stays at its first version. */
static enum status send_first(struct exchange *exchange, uint64_t id) {
    const struct plan_block *planned = &exchange->config.plan->blocks[id];
    const uint8_t *payload = (const uint8_t *)(exchange->config.weights + planned->offset);
    raw_weights_decode(&exchange->raw, id);
    struct frame frame = {.kind = FRAME_INIT,
                          .codec = CODEC_F32,
                          .block = id,
                          .value_count = (uint32_t)planned->count,
                          .payload_bytes = (uint32_t)(planned->count * sizeof(float))};
    frame.payload_xxh3 = checksum_xxh3(payload, frame.payload_bytes);
    return send_frame(exchange, &frame, planned->shard, payload, id | COOKIE_WEIGHTS);
}

static enum status send_request(struct exchange *exchange, uint64_t id) {
    const struct plan_block *planned = &exchange->config.plan->blocks[id];
    struct exchange_block *block = &exchange->blocks[id];
    struct frame frame = {.kind = block->kind,
                          .codec = block->codec,
                          .seq = block->seq,
                          .block_version = block->version,
                          .block = id,
                          .value_count = (uint32_t)planned->count,
                          .check = block->check,
                          .exact = block->exact,
                          .ticket = block->ticket};
    const uint8_t *payload = NULL;
    if (block->kind == FRAME_PUSH) {
        payload = block->wire;
        frame.payload_bytes = (uint32_t)block->wire_bytes;
        frame.payload_xxh3 = block->wire_xxh3;
        frame.scalar = block->weight;
    } else {
        frame.payload_xxh3 = checksum_xxh3(NULL, 0);
    }
    enum status status = send_frame(exchange, &frame, planned->shard, payload, id);
    if (status == STATUS_OK && block->kind == FRAME_PUSH) {
        exchange->counters.pushed_bytes += FRAME_BYTES + frame.payload_bytes;
    }
    return status;
}

/* Hands one block's request to the channel. False: the channel is full. A lost shard swallows it;
 * the control channel decides what the loss means. */
static bool hand_over(struct exchange *exchange, uint64_t id, int64_t now_ns) {
    struct exchange_block *block = &exchange->blocks[id];
    if (block->lent) {
        /* The pull follows when the first weights have left: its answer overwrites them. */
        return true;
    }
    if (block->first) {
        enum status status = send_first(exchange, id);
        block->lent = status == STATUS_OK;
        block->first = status == STATUS_AGAIN;
        return status != STATUS_AGAIN;
    }
    enum status status = send_request(exchange, id);
    if (status == STATUS_AGAIN) {
        return false;
    }
    block->sends += status == STATUS_OK ? 1 : 0;
    block->unsent = false;
    block->asked_ns = now_ns;
    exchange->unsent--;
    return true;
}

static void send_unsent(struct exchange *exchange, int64_t now_ns) {
    for (uint64_t id = 0; id < exchange->config.plan->block_count && exchange->unsent > 0; id++) {
        if (exchange->blocks[id].unsent && !hand_over(exchange, id, now_ns)) {
            return;
        }
    }
}

static void send_commits(struct exchange *exchange, int64_t now_ns) {
    for (uint64_t shard = 0;
         shard < exchange->config.plan->shard_count && exchange->commits_unsent > 0; shard++) {
        struct frame frame = {.kind = FRAME_COMMIT,
                              .seq = exchange->commit_seq,
                              .scalar = exchange->commit_sum,
                              .payload_xxh3 = checksum_xxh3(NULL, 0)};
        if (!exchange->commit_due[shard]) {
            continue;
        }
        if (send_frame(exchange, &frame, shard, NULL, COOKIE_COMMIT) == STATUS_AGAIN) {
            return;
        }
        exchange->counters.pushed_bytes += FRAME_BYTES;
        exchange->commit_due[shard] = false;
        exchange->commits_unsent--;
        exchange->commit_ns = now_ns;
    }
}

/* ---- again ---- */

/* The block's request is to be sent again, the same bytes, after its first weights, in case these
 * were lost. */
static void ask_again(struct exchange *exchange, struct exchange_block *block) {
    if (!block->unsent) {
        exchange_make_unsent(exchange, block);
        exchange->counters.resent++;
    }
    block->first = block->kind == FRAME_PULL && exchange->config.rank == 0 && block->version == 0 &&
                   block->seq == 0;
}

/* Nothing of the open request is the channel's. */
static bool is_idle(const struct exchange_block *block) {
    return block->open && !block->encoding && !block->lent && block->sends == 0;
}

/* Sends again what was not answered for too long: the same bytes. */
static void resend(struct exchange *exchange, int64_t now_ns) {
    const struct plan *plan = exchange->config.plan;
    bool again = false;
    for (uint64_t id = 0; id < plan->block_count && exchange->open > 0; id++) {
        struct exchange_block *block = &exchange->blocks[id];
        if (!is_idle(block) || block->unsent || now_ns - block->asked_ns < exchange->resend_ns) {
            continue;
        }
        ask_again(exchange, block);
        again = true;
    }
    if (again && exchange->commit_seq != 0 && !exchange->commit_waits &&
        exchange->commits_unsent == 0 && now_ns - exchange->commit_ns >= exchange->resend_ns) {
        exchange_make_commits_due(exchange);
    }
}

/* A new connection: what the shard has not answered may be lost, also what had left. What is still
 * in flight by the old one will end, and then goes again. */
static void tell_again(struct exchange *exchange, uint64_t shard) {
    const struct plan *plan = exchange->config.plan;
    for (uint64_t id = 0; id < plan->block_count && exchange->open > 0; id++) {
        if (plan->blocks[id].shard == shard && is_idle(&exchange->blocks[id])) {
            ask_again(exchange, &exchange->blocks[id]);
        }
    }
    if (exchange->commit_seq != 0 && !exchange->commit_waits && exchange->commit_shards[shard] &&
        !exchange->commit_due[shard]) {
        exchange->commit_due[shard] = true;
        exchange->commits_unsent++;
    }
}

/* A commit of no report. */
static enum status send_greeting(struct exchange *exchange, uint64_t shard) {
    struct frame frame = {.kind = FRAME_COMMIT, .payload_xxh3 = checksum_xxh3(NULL, 0)};
    return send_frame(exchange, &frame, shard, NULL, COOKIE_COMMIT);
}

static void greet_again(struct exchange *exchange, int64_t now_ns) {
    uint32_t shard;
    while (redial_next(&exchange->redial, now_ns, &shard)) {
        enum status status = send_greeting(exchange, shard);
        redial_greeted(&exchange->redial, shard, status, now_ns);
        if (status == STATUS_AGAIN) {
            return;
        }
        if (status == STATUS_OK) {
            tell_again(exchange, shard);
        }
    }
}

void exchange_sent(struct exchange *exchange, const struct channel_event *event, int64_t now_ns) {
    bool left = event->status == STATUS_OK;
    if (left) {
        redial_sent(&exchange->redial, event->peer, now_ns);
    }
    if (event->cookie == COOKIE_COMMIT) {
        return;
    }
    struct exchange_block *block = &exchange->blocks[event->cookie & ~COOKIE_WEIGHTS];
    if ((event->cookie & COOKIE_WEIGHTS) != 0) {
        block->lent = false;
    } else {
        ASSERT_OP(block->sends, >, 0);
        block->sends--;
    }
    if (!left && is_idle(block) && !redial_is_down(&exchange->redial, event->peer)) {
        ask_again(exchange, block);
    }
}

void exchange_send(struct exchange *exchange, int64_t now_ns) {
    greet_again(exchange, now_ns);
    resend(exchange, now_ns);
    send_unsent(exchange, now_ns);
    send_commits(exchange, now_ns);
}
