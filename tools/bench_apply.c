#include "tools/bench_apply.h"

#include "base/checksum.h"
#include "base/clock.h"
#include "base/log.h"
#include "compression/push_codec.h"
#include "server/shard.h"
#include "server/vote.h"
#include "tools/bench_shard.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define JOB_ID        UINT64_C(0xa9)
#define EPOCH         UINT64_C(1)
#define FIRST_SESSION UINT64_C(1000)
#define WARM_ROUNDS   2
#define POLLS_MAX     1000000 /* of a round: more is a shard that does not go on */

/* One worker's push of one block. */
struct push {
    uint8_t *payload;
    size_t bytes;
    uint64_t xxh3;
    uint8_t codec;
    uint8_t header[FRAME_BYTES]; /* of the round under way */
};

/* The channel in front of the shard. A slot is a push's index: the shard holds one of each. */
struct feed {
    struct channel base;
    uint64_t workers, blocks;
    struct push *pushes; /* [blocks * workers], a block's together */
    uint64_t delivered;  /* of this round */
    uint64_t answered;   /* in this round */
    uint64_t *sent;      /* [blocks * workers] cookies that are to be told as sent */
    uint64_t sent_count;
    uint64_t wire_bytes; /* headers included */
};

struct apply {
    struct bench_run *run;
    struct plan plan;
    struct push_codec **codecs; /* [workers] */
    struct arena payloads;
    struct feed feed;
    struct vote vote;
    struct shard shard;
    bool has_shard, has_vote;
    uint64_t seq;
};

/* ---- the channel ---- */

static enum status feed_send(struct channel *channel, uint32_t peer, const uint8_t *header,
                             const uint8_t *payload, size_t payload_bytes, uint64_t cookie) {
    struct feed *feed = (struct feed *)channel;
    (void)peer;
    (void)header;
    (void)payload;
    if (feed->sent_count == feed->blocks * feed->workers) return STATUS_AGAIN;
    feed->sent[feed->sent_count++] = cookie;
    feed->answered++;
    feed->wire_bytes += FRAME_BYTES + payload_bytes;
    return STATUS_OK;
}

static size_t feed_poll(struct channel *channel, struct channel_event *events, size_t capacity) {
    struct feed *feed = (struct feed *)channel;
    size_t count = 0;
    while (count < capacity && feed->sent_count > 0) {
        events[count++] =
            (struct channel_event){.kind = CHANNEL_SENT, .cookie = feed->sent[--feed->sent_count]};
    }
    for (; count < capacity && feed->delivered < feed->blocks * feed->workers; feed->delivered++) {
        const struct push *push = &feed->pushes[feed->delivered];
        events[count++] = (struct channel_event){.kind = CHANNEL_RECEIVED,
                                                 .slot = (uint32_t)feed->delivered,
                                                 .header = push->header,
                                                 .payload = push->payload,
                                                 .payload_bytes = push->bytes};
        feed->wire_bytes += FRAME_BYTES + push->bytes;
    }
    return count;
}

static void feed_release(struct channel *channel, uint32_t slot) {
    (void)channel;
    (void)slot;
}

static void feed_close(struct channel *channel) {
    (void)channel;
}

static const struct channel_ops feed_ops = {.name = "feed",
                                            .send = feed_send,
                                            .poll = feed_poll,
                                            .release = feed_release,
                                            .close = feed_close};

/* ---- the pushes ---- */

static enum status open_codecs(struct apply *apply) {
    const struct plan *plan = &apply->plan;
    uint64_t workers = apply->feed.workers;
    size_t bytes = 0;
    apply->codecs = memory_zeroed(workers, sizeof(struct push_codec *));
    for (uint32_t rank = 0; rank < workers; rank++) {
        TRY(push_codec_open(&apply->run->job, plan, rank, PUSH_CODEC_ALL, &apply->codecs[rank]));
        for (uint64_t id = 0; id < plan->block_count; id++) {
            bytes += arena_need(push_codec_bound(apply->codecs[rank], id));
        }
    }
    return arena_init(&apply->payloads, bytes);
}

static enum status encode_pushes(struct apply *apply) {
    struct feed *feed = &apply->feed;
    TRY(open_codecs(apply));
    for (uint32_t rank = 0; rank < feed->workers; rank++) {
        float *values = bench_shard_values(&apply->plan, rank);
        for (uint64_t id = 0; id < feed->blocks; id++) {
            struct push *push = &feed->pushes[id * feed->workers + rank];
            struct encoder_result encoded;
            push->payload = arena_take(&apply->payloads, push_codec_bound(apply->codecs[rank], id));
            push_codec_encode(apply->codecs[rank], id, 1, values + apply->plan.blocks[id].offset,
                              push->payload, &encoded);
            push->bytes = encoded.bytes;
            push->codec = encoded.codec;
            push->xxh3 = checksum_xxh3(push->payload, push->bytes);
        }
        free(values);
    }
    return STATUS_OK;
}

static struct frame frame_of(const struct apply *apply, enum frame_kind kind, uint64_t block,
                             uint32_t rank) {
    return (struct frame){.kind = kind,
                          .job = JOB_ID,
                          .epoch = EPOCH,
                          .session = FIRST_SESSION + rank,
                          .block = block,
                          .value_count = (uint32_t)apply->plan.blocks[block].count,
                          .rank = (uint16_t)rank,
                          .codec = CODEC_F32};
}

/* ---- rounds ---- */

/* Until the shard has answered everyone. */
static enum status finish_round(struct apply *apply) {
    struct feed *feed = &apply->feed;
    struct shard_note note;
    for (int polls = 0; polls < POLLS_MAX; polls++) {
        bool worked = shard_poll(&apply->shard, 0);
        if (feed->answered == feed->blocks * feed->workers) return STATUS_OK;
        if (worked || ring_pop(&apply->shard.notes, &note) != STATUS_OK) continue;
        struct shard_order order = {.kind = SHARD_VERDICT};
        TRY(vote_add(&apply->vote, &note.report));
        vote_decide(&apply->vote, apply->run->job.clip, &order.verdict);
        TRY(ring_push(&apply->shard.orders, &order));
    }
    log_error("the shard did not answer round %llu", (unsigned long long)apply->seq);
    return STATUS_TIMEOUT;
}

static enum status push_round(struct apply *apply) {
    struct feed *feed = &apply->feed;
    apply->seq++;
    for (uint64_t i = 0; i < feed->blocks * feed->workers; i++) {
        struct push *push = &feed->pushes[i];
        struct frame frame =
            frame_of(apply, FRAME_PUSH, i / feed->workers, (uint32_t)(i % feed->workers));
        frame.codec = push->codec;
        frame.seq = apply->seq;
        frame.block_version = apply->seq - 1;
        frame.payload_bytes = (uint32_t)push->bytes;
        frame.payload_xxh3 = push->xxh3;
        frame.scalar = 1;
        frame.ticket = (uint32_t)apply->seq + 1;
        frame_encode(&frame, push->header);
    }
    feed->delivered = feed->answered = 0;
    return finish_round(apply);
}

/* The first weights, zeros: for a moment the feed has these frames in place of the pushes. */
static void give_weights(struct apply *apply) {
    struct feed *feed = &apply->feed;
    struct push *pushes = feed->pushes;
    uint64_t workers = feed->workers;
    size_t bytes = apply->run->bytes;
    uint8_t *zeros = memory_zeroed(bytes, 1);
    struct push *first = memory_zeroed(feed->blocks, sizeof *first);
    for (uint64_t id = 0; id < feed->blocks; id++) {
        struct frame frame = frame_of(apply, FRAME_INIT, id, 0);
        frame.payload_bytes = (uint32_t)bytes;
        frame.payload_xxh3 = checksum_xxh3(zeros, bytes);
        frame_encode(&frame, first[id].header);
        first[id].payload = zeros;
        first[id].bytes = bytes;
    }
    feed->pushes = first;
    feed->workers = 1;
    while (shard_poll(&apply->shard, 0)) {
    }
    feed->pushes = pushes;
    feed->workers = workers;
    feed->wire_bytes = 0;
    free(zeros);
    free(first);
}

static enum status open_shard(struct apply *apply) {
    uint64_t workers = apply->feed.workers;
    uint64_t *sessions = memory_zeroed(workers, sizeof *sessions);
    for (uint64_t rank = 0; rank < workers; rank++) {
        sessions[rank] = FIRST_SESSION + rank;
    }
    const struct shard_config config = {.job = &apply->run->job,
                                        .plan = &apply->plan,
                                        .job_id = JOB_ID,
                                        .epoch = EPOCH,
                                        .channel = &apply->feed.base,
                                        .sessions = sessions};
    enum status status = shard_init(&apply->shard, &config);
    apply->has_shard = status == STATUS_OK;
    free(sessions);
    return status;
}

static enum status open_apply(struct apply *apply, struct bench_run *run) {
    struct feed *feed = &apply->feed;
    apply->run = run;
    TRY(bench_shard_plan(run, &apply->plan));
    feed->base.ops = &feed_ops;
    feed->workers = (uint64_t)run->job.workers;
    feed->blocks = apply->plan.block_count;
    feed->pushes = memory_zeroed(feed->blocks * feed->workers, sizeof *feed->pushes);
    feed->sent = memory_zeroed(feed->blocks * feed->workers, sizeof *feed->sent);
    vote_init(&apply->vote, &apply->plan);
    apply->has_vote = true;
    TRY(encode_pushes(apply));
    TRY(open_shard(apply));
    give_weights(apply);
    return STATUS_OK;
}

static void close_apply(struct apply *apply) {
    if (apply->has_shard) shard_free(&apply->shard);
    if (apply->has_vote) vote_free(&apply->vote);
    for (uint64_t i = 0; apply->codecs && i < apply->feed.workers; i++) {
        push_codec_close(apply->codecs[i]);
    }
    free((void *)apply->codecs);
    free(apply->feed.pushes);
    free(apply->feed.sent);
    arena_free(&apply->payloads);
    if (apply->plan.blocks) plan_free(&apply->plan);
    free(apply);
}

static double thread_seconds(void) {
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (double)used.tv_sec + (double)used.tv_nsec / (double)CLOCK_S;
}

static enum status measure(struct apply *apply, struct bench_result *result) {
    const struct feed *feed = &apply->feed;
    double round_gb = (double)(apply->plan.value_count * feed->workers * sizeof(float)) / 1e9;
    for (int round = 0; round < WARM_ROUNDS; round++) {
        TRY(push_round(apply));
    }
    int64_t start_ns = clock_now_ns();
    int64_t end_ns = start_ns + (int64_t)(apply->run->options->seconds * (double)CLOCK_S);
    double cpu = thread_seconds();
    uint64_t wire_bytes = feed->wire_bytes;
    *result =
        (struct bench_result){.latency_median_us = (double)NAN, .latency_p99_us = (double)NAN};
    do {
        TRY(push_round(apply));
        result->payload_gb += round_gb;
        result->messages += (double)(feed->blocks * feed->workers);
    } while (clock_now_ns() < end_ns);
    result->server_cpu = thread_seconds() - cpu;
    result->seconds = (double)(clock_now_ns() - start_ns) / (double)CLOCK_S;
    result->wire_gb = (double)(feed->wire_bytes - wire_bytes) / 1e9;
    if (apply->shard.counters.skipped + apply->shard.counters.corrupt == 0) return STATUS_OK;
    log_error("--push %s: the same push cannot be repeated round after round; measure it with "
              "`rubato bench push`",
              apply->run->job.push);
    return STATUS_UNSUPPORTED;
}

enum status bench_apply_run(struct bench_run *run, struct bench_result *result) {
    struct apply *apply = memory_zeroed(1, sizeof *apply); /* a shard is large */
    enum status status = open_apply(apply, run);
    if (status == STATUS_OK) status = measure(apply, result);
    close_apply(apply);
    return status;
}
