#include "tools/bench_shard.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "base/wake.h"
#include "server/shard_thread.h"
#include "server/vote.h"
#include "worker/exchange.h"

#include <stdlib.h>
#include <string.h>

#define JOB_ID        UINT64_C(0xbe)
#define EPOCH         UINT64_C(1)
#define FIRST_SESSION UINT64_C(1000)
#define NOTES_WAIT_NS (INT64_C(20) * CLOCK_MS)
#define LIMIT_NS      (INT64_C(30) * CLOCK_S) /* of a round */

enum status bench_shard_plan(const struct bench_run *run, struct plan *plan) {
    struct tensor tensor = {.name = "weights",
                            .dims = 2,
                            .shape = {(uint64_t)run->options->blocks, run->bytes / sizeof(float)},
                            .decay = true};
    struct plan_options options = job_plan_options(&run->job, (uint64_t)run->job.shards);
    options.block_values = run->bytes / sizeof(float);
    return plan_build(plan, &tensor, 1, &options);
}

float *bench_shard_values(const struct plan *plan, uint32_t rank) {
    struct random_stream random;
    float *values = memory_zeroed((size_t)plan->value_count, sizeof *values);
    random_open(&random, rank + 1, RANDOM_INIT_WEIGHTS, rank);
    /* One block's worth is enough: what is measured does not depend on the blocks' differing. */
    uint64_t drawn = plan->blocks[0].count;
    for (uint64_t i = 0; i < plan->value_count; i++) {
        values[i] = i < drawn ? 0.01F * random_normal(&random) : values[i - drawn];
    }
    return values;
}

/* ---- the server ---- */

struct hall {
    struct bench_run *run;
    struct plan plan;
    struct vote vote;
    struct wake reported;
    uint32_t count, ready, running; /* shards: all, initialised, on their threads */
    struct channel **channels;
    struct shard *shards;
    struct shard_thread *threads;
};

static enum status open_hall(struct hall *hall, struct bench_run *run) {
    *hall = (struct hall){.run = run, .count = (uint32_t)run->job.shards, .reported = {.fd = -1}};
    hall->channels = memory_zeroed(hall->count, sizeof *hall->channels);
    hall->shards = memory_zeroed(hall->count, sizeof *hall->shards);
    hall->threads = memory_zeroed(hall->count, sizeof *hall->threads);
    TRY(bench_shard_plan(run, &hall->plan));
    vote_init(&hall->vote, &hall->plan);
    TRY(wake_init(&hall->reported));
    for (uint32_t i = 0; i < hall->count; i++) {
        struct channel_config config;
        shard_channel_config(&run->job, &hall->plan, i, &config);
        TRY(bench_rig_open(run, i, &config, &hall->channels[i]));
    }
    return bench_rig_connect(run, hall->channels, hall->count, hall->count,
                             (uint32_t)run->job.workers);
}

static enum status start_shards(struct hall *hall) {
    uint64_t workers = (uint64_t)hall->run->job.workers;
    uint64_t *sessions = memory_zeroed(workers, sizeof *sessions);
    enum status status = STATUS_OK;
    for (uint64_t rank = 0; rank < workers; rank++) {
        sessions[rank] = FIRST_SESSION + rank;
    }
    for (uint32_t i = 0; i < hall->count && status == STATUS_OK; i++) {
        const struct shard_config config = {.job = &hall->run->job,
                                            .plan = &hall->plan,
                                            .id = i,
                                            .job_id = JOB_ID,
                                            .epoch = EPOCH,
                                            .channel = hall->channels[i],
                                            .sessions = sessions,
                                            .reported = &hall->reported};
        status = shard_init(&hall->shards[i], &config);
        if (status != STATUS_OK) break;
        hall->channels[i] = NULL; /* the shard's now */
        hall->ready++;
        status = shard_thread_start(&hall->threads[i], &hall->shards[i]);
        if (status == STATUS_OK) hall->running++;
    }
    free(sessions);
    return status;
}

static void close_hall(struct hall *hall) {
    for (uint32_t i = 0; i < hall->running; i++) {
        shard_thread_stop(&hall->threads[i]);
    }
    for (uint32_t i = 0; i < hall->ready; i++) {
        shard_free(&hall->shards[i]);
    }
    for (uint32_t i = 0; i < hall->count; i++) {
        if (hall->channels[i]) hall->channels[i]->ops->close(hall->channels[i]);
    }
    if (hall->plan.blocks) {
        vote_free(&hall->vote);
        plan_free(&hall->plan);
    }
    if (hall->reported.fd >= 0) wake_free(&hall->reported);
    free(hall->channels);
    free(hall->shards);
    free(hall->threads);
}

/* All shards have summed the round: each is told how it is to step. */
static enum status give_verdict(struct hall *hall) {
    struct shard_order order = {.kind = SHARD_VERDICT};
    vote_decide(&hall->vote, hall->run->job.clip, &order.verdict);
    for (uint32_t i = 0; i < hall->count; i++) {
        if (shard_part(&hall->shards[i], order.verdict.round) == 0) continue;
        TRY(ring_push(&hall->shards[i].orders, &order));
        wake_signal(&hall->threads[i].wake);
    }
    return STATUS_OK;
}

static enum status take_notes(struct hall *hall) {
    struct shard_note note;
    for (uint32_t i = 0; i < hall->count; i++) {
        while (ring_pop(&hall->shards[i].notes, &note) == STATUS_OK) {
            enum status status = vote_add(&hall->vote, &note.report);
            if (status == STATUS_OK) status = give_verdict(hall);
            if (status != STATUS_OK && status != STATUS_AGAIN) return status;
        }
    }
    return STATUS_OK;
}

enum status bench_shard_server(struct bench_run *run, uint32_t index) {
    struct hall hall;
    (void)index;
    enum status status = open_hall(&hall, run);
    if (status == STATUS_OK) status = start_shards(&hall);
    while (status == STATUS_OK && !bench_rig_is_over(run)) {
        wake_clear(&hall.reported);
        status = take_notes(&hall);
        wake_wait(&hall.reported.fd, 1, NOTES_WAIT_NS);
    }
    close_hall(&hall);
    return status;
}

/* ---- a worker ---- */

struct guest {
    struct bench_run *run;
    struct bench_seat *seat;
    struct plan plan;
    struct channel *channel;
    struct exchange exchange;
    struct idle idle;
    float *weights, *values;
};

static enum status open_guest(struct guest *guest, struct bench_run *run, uint32_t rank) {
    struct channel_config config;
    uint32_t shards = (uint32_t)run->job.shards;
    *guest = (struct guest){.run = run, .seat = &run->board->seats[shards + rank]};
    TRY(idle_init(&guest->idle, run->job.poll, clock_now_ns()));
    TRY(bench_shard_plan(run, &guest->plan));
    exchange_channel_config(&guest->plan, &config);
    TRY(bench_rig_open(run, shards + rank, &config, &guest->channel));
    guest->weights = memory_zeroed((size_t)guest->plan.value_count, sizeof *guest->weights);
    guest->values = bench_shard_values(&guest->plan, rank);
    const struct exchange_config exchange = {.job = &run->job,
                                             .plan = &guest->plan,
                                             .channel = guest->channel,
                                             .job_id = JOB_ID,
                                             .epoch = EPOCH,
                                             .session = FIRST_SESSION + rank,
                                             .rank = rank,
                                             .weights = guest->weights};
    TRY(exchange_init(&guest->exchange, &exchange));
    return bench_rig_connect(run, &guest->channel, 1, 0, shards);
}

static void close_guest(struct guest *guest) {
    if (guest->channel) guest->channel->ops->close(guest->channel);
    if (guest->exchange.blocks) exchange_free(&guest->exchange);
    if (guest->plan.blocks) plan_free(&guest->plan);
    free(guest->weights);
    free(guest->values);
}

static enum status look(struct guest *guest) {
    bool worked = exchange_poll(&guest->exchange, clock_now_ns());
    int64_t lost_shard = redial_failed(&guest->exchange.redial);
    if (lost_shard >= 0 && !bench_rig_is_over(guest->run)) {
        log_error("the data channel to shard %lld broke", (long long)lost_shard);
        return STATUS_PEER_LOST;
    }
    bench_rig_rest(&guest->idle, guest->channel, worked);
    return STATUS_OK;
}

/* Until all is answered, or the run is over. */
static enum status settle(struct guest *guest) {
    int64_t until_ns = clock_now_ns() + LIMIT_NS;
    while (!exchange_settled(&guest->exchange) && !bench_rig_is_over(guest->run)) {
        TRY(look(guest));
        if (clock_now_ns() > until_ns) {
            log_error("a round was not answered in %d s", (int)(LIMIT_NS / CLOCK_S));
            return STATUS_TIMEOUT;
        }
    }
    return STATUS_OK;
}

static enum status push_all(struct guest *guest, uint64_t seq) {
    const struct exchange_report report = {.seq = seq, .weight = 1, .clip = 1};
    for (uint64_t id = guest->plan.block_count; id-- > 0;) { /* as backward finishes them */
        const float *values = guest->values + guest->plan.blocks[id].offset;
        while (exchange_push(&guest->exchange, &report, id, values) == STATUS_AGAIN) {
            if (bench_rig_is_over(guest->run)) return STATUS_OK;
            TRY(look(guest));
        }
        /* A worker's session looks at its channel between two blocks. */
        (void)exchange_poll(&guest->exchange, clock_now_ns());
    }
    return STATUS_OK;
}

static enum status work(struct guest *guest, uint32_t rank) {
    bool pushes = strcmp(guest->run->direction, "push") == 0;
    while (!bench_rig_is_complete(guest->run)) {
        wake_wait(NULL, 0, CLOCK_MS);
    }
    exchange_pull_all(&guest->exchange, rank == 0);
    TRY(settle(guest));
    for (uint64_t seq = 1; !bench_rig_is_over(guest->run); seq++) {
        const struct exchange_counters before = guest->exchange.counters;
        int64_t start_ns = clock_now_ns();
        if (pushes) {
            TRY(push_all(guest, seq));
        } else {
            exchange_pull_all(&guest->exchange, false);
        }
        TRY(settle(guest));
        const struct exchange_counters *now = &guest->exchange.counters;
        bench_rig_sample(guest->seat, clock_now_ns() - start_ns);
        atomic_fetch_add(&guest->seat->payload_bytes, guest->plan.value_count * sizeof(float));
        uint64_t answers = now->answers - before.answers;
        uint64_t requests =
            pushes ? now->pushed_bytes - before.pushed_bytes : answers * FRAME_BYTES;
        atomic_fetch_add(&guest->seat->messages, answers);
        atomic_fetch_add(&guest->seat->wire_bytes,
                         requests + now->pulled_bytes - before.pulled_bytes);
    }
    return STATUS_OK;
}

enum status bench_shard_worker(struct bench_run *run, uint32_t index) {
    struct guest guest;
    enum status status = open_guest(&guest, run, index);
    if (status == STATUS_OK) status = work(&guest, index);
    close_guest(&guest);
    return status;
}
