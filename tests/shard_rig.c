#include "tests/shard_rig.h"

#include "base/checksum.h"
#include "tests/test.h"

#include <math.h>

void rig_prepare(struct rig *rig, const char *mode, int64_t workers) {
    options_init(&rig->options, job_table, job_table_count, &rig->job);
    (void)snprintf(rig->job.mode, sizeof rig->job.mode, "%s", mode);
    (void)snprintf(rig->job.optimizer, sizeof rig->job.optimizer, "sgd");
    (void)snprintf(rig->job.schedule, sizeof rig->job.schedule, "constant");
    (void)snprintf(rig->job.push, sizeof rig->job.push, "none");
    (void)snprintf(rig->job.pull, sizeof rig->job.pull, "none");
    rig->job.workers = workers;
    rig->job.lr = 0.5;
    rig->job.warmup = 0;
    rig->job.momentum = 0;
    rig->job.weight_decay = 0;
    rig->job.clip = 0;
    rig->job.sync_warmup = 0;
    rig->weight = 1;
}

void rig_open(struct rig *rig, uint64_t shards, uint64_t id) {
    static const struct tensor tensors[2] = {
        {.name = "w", .dims = 2, .shape = {6, 2}, .decay = true},
        {.name = "b", .dims = 1, .shape = {3}}};
    uint64_t sessions[RIG_WORKERS];
    /* What single pushes are stepped with, where a test does not say otherwise. */
    if (rig->job.push_momentum == 0) {
        rig->job.push_momentum =
            strcmp(rig->job.optimizer, "sgd") == 0 ? rig->job.momentum : rig->job.beta1;
    }
    rig->job.push_beta2 = rig->job.beta2;
    struct plan_options options = job_plan_options(&rig->job, shards);
    options.block_values = RIG_VALUES;
    CHECK_INT(plan_build(&rig->plan, tensors, 2, &options), STATUS_OK);
    CHECK_INT(rig->plan.block_count, RIG_BLOCKS);
    fake_channel_open(&rig->fake);
    for (uint64_t rank = 0; rank < RIG_WORKERS; rank++) {
        sessions[rank] = 1000 + rank;
    }
    const struct shard_config config = {.job = &rig->job,
                                        .plan = &rig->plan,
                                        .id = id,
                                        .job_id = RIG_JOB,
                                        .epoch = RIG_EPOCH,
                                        .channel = &rig->fake.channel,
                                        .addresses = fake_channel_addresses,
                                        .sessions = sessions};
    CHECK_INT(shard_init(&rig->shard, &config), STATUS_OK);
    memset(sessions, 0, sizeof sessions); /* the shard has a copy */
    rig->seen = 0;
}

void rig_close(struct rig *rig) {
    shard_free(&rig->shard);
    CHECK(rig->fake.closed);
    plan_free(&rig->plan);
}

void rig_poll(struct rig *rig) {
    while (shard_poll(&rig->shard, rig->now_ns)) {
    }
}

uint32_t rig_count(const struct rig *rig, uint64_t block) {
    return block < RIG_BLOCKS ? (uint32_t)rig->plan.blocks[block].count : 1;
}

struct frame rig_frame(const struct rig *rig, enum frame_kind kind, uint32_t rank, uint64_t block) {
    return (struct frame){.kind = kind,
                          .codec = CODEC_F32,
                          .job = RIG_JOB,
                          .epoch = RIG_EPOCH,
                          .session = 1000 + rank,
                          .block = block,
                          .value_count = rig_count(rig, block),
                          .rank = (uint16_t)rank};
}

void rig_init(struct rig *rig, uint64_t block, const float *weights) {
    struct frame frame = rig_frame(rig, FRAME_INIT, 0, block);
    fake_channel_receive(&rig->fake, &frame, weights, rig_count(rig, block) * sizeof(float));
}

void rig_pull(struct rig *rig, uint32_t rank, uint64_t block, uint32_t ticket) {
    struct frame frame = rig_frame(rig, FRAME_PULL, rank, block);
    frame.ticket = ticket;
    fake_channel_receive(&rig->fake, &frame, NULL, 0);
}

void rig_push(struct rig *rig, uint32_t rank, uint64_t block, uint64_t seq, uint64_t version,
              const float *grad) {
    struct frame frame = rig_frame(rig, FRAME_PUSH, rank, block);
    frame.seq = seq;
    frame.ticket = (uint32_t)seq + 1;
    frame.block_version = version;
    frame.scalar = rig->weight;
    fake_channel_receive(&rig->fake, &frame, grad, rig_count(rig, block) * sizeof(float));
}

void rig_commit(struct rig *rig, uint32_t rank, uint64_t seq, double sum) {
    struct frame frame = rig_frame(rig, FRAME_COMMIT, rank, 0);
    frame.seq = seq;
    frame.scalar = sum;
    frame.value_count = 0;
    fake_channel_receive(&rig->fake, &frame, NULL, 0);
}

void rig_order(struct rig *rig, const struct shard_order *order) {
    CHECK_INT(ring_push(&rig->shard.orders, order), STATUS_OK);
}

void rig_verdict(struct rig *rig, uint64_t round, bool skip, float scale) {
    rig_order(rig,
              &(struct shard_order){.kind = SHARD_VERDICT,
                                    .verdict = {.round = round, .skip = skip, .scale = scale}});
}

void rig_close_round(struct rig *rig, uint64_t round, uint32_t count, const uint32_t *ranks) {
    struct shard_order order = {.kind = SHARD_CLOSE, .close = {.round = round}};
    for (uint32_t i = 0; i < count; i++) {
        shard_ranks_add(&order.close.ranks, ranks[i]);
    }
    rig_order(rig, &order);
}

void rig_gone(struct rig *rig, uint32_t rank) {
    rig_order(rig, &(struct shard_order){.kind = SHARD_GONE, .gone = rank});
}

struct shard_note rig_note(struct rig *rig, enum shard_note_kind kind) {
    struct shard_note note;
    CHECK_INT(ring_pop(&rig->shard.notes, &note), STATUS_OK);
    CHECK_INT(note.kind, kind);
    return note;
}

void rig_expect_arrival(struct rig *rig, uint64_t round, uint32_t rank, uint64_t seq) {
    struct shard_note note = rig_note(rig, SHARD_ARRIVED);
    CHECK_INT(note.arrival.round, round);
    CHECK_INT(note.arrival.rank, rank);
    CHECK_INT(note.arrival.seq, seq);
}

void rig_expect_silence(struct rig *rig) {
    CHECK_INT(ring_count(&rig->shard.notes), 0);
}

const uint64_t rig_need[RIG_BLOCKS] = {3, 0, 1, 2};

const struct fake_send *rig_next(struct rig *rig) {
    return rig->seen < rig->fake.send_count ? &rig->fake.sends[rig->seen++] : NULL;
}

const struct fake_send *rig_expect(struct rig *rig, uint32_t rank, uint64_t block, uint32_t ticket,
                                   uint64_t seq, uint64_t version) {
    const struct fake_send *send = rig_next(rig);
    CHECK(send != NULL);
    const struct frame *frame = &send->frame;
    CHECK_INT(frame->kind, FRAME_WEIGHTS);
    CHECK(frame->job == RIG_JOB);
    CHECK_INT(frame->epoch, RIG_EPOCH);
    CHECK_INT(frame->session, 1000 + rank);
    CHECK_INT(frame->rank, rank);
    CHECK_INT(send->peer, rank);
    CHECK_INT(frame->block, block);
    CHECK_INT(frame->value_count, rig_count(rig, block));
    CHECK_INT(frame->ticket, ticket);
    CHECK_INT(frame->seq, seq);
    CHECK_INT(frame->block_version, version);
    return send;
}

const struct shard_block *rig_block(const struct rig *rig, uint64_t block) {
    CHECK(rig->shard.index[block] != UINT64_MAX);
    return &rig->shard.blocks[rig->shard.index[block]];
}

void twin_open(struct twin *twin, const struct rig *rig) {
    *twin = (struct twin){0};
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        for (uint32_t i = 0; i < rig_count(rig, block); i++) {
            twin->weights[block][i] = 0.3F * (float)(block * RIG_VALUES + i) - 1.1F;
        }
    }
}

void rig_start(struct rig *rig, struct twin *twin) {
    twin_open(twin, rig);
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        if (rig->shard.index[block] == UINT64_MAX) {
            continue;
        }
        rig_init(rig, block, twin->weights[block]);
        for (uint32_t rank = 0; rank < rig->shard.workers; rank++) {
            rig_pull(rig, rank, block, 1);
        }
    }
    rig_poll(rig);
    fake_channel_finish_all(&rig->fake);
    rig_poll(rig);
    CHECK_INT(rig->fake.send_count, rig->shard.block_count * rig->shard.workers);
    CHECK_INT(fake_channel_taken(&rig->fake), 0);
    rig->seen = rig->fake.send_count;
}

void twin_step(struct twin *twin, const struct rig *rig, uint64_t block, const float *grad,
               float scale) {
    const struct job *job = &rig->job;
    int64_t updates_a_step = rig->shard.by_round ? 1 : job->workers;
    double rate = job_learning_rate(job, (int64_t)twin->version[block] / updates_a_step);
    bool sgd_like = strcmp(job->optimizer, "sgd") == 0;
    double part = sgd_like ? 1.0 / (double)updates_a_step : 1 / sqrt((double)updates_a_step);
    float lr = (float)(rate * part);
    float decay = (float)(job->weight_decay * rig->plan.blocks[block].decay /
                          (part * (double)updates_a_step));
    int64_t step = (int64_t)++twin->updates[block];
    twin->version[block]++;
    if (sgd_like) {
        struct sgd sgd = {.lr = lr,
                          .momentum = (float)job->momentum,
                          .decay = decay,
                          .grad_scale = scale,
                          .step = step};
        optimizer_sgd_ref(&sgd, twin->weights[block], twin->moment1[block], grad,
                          rig_count(rig, block));
    } else {
        struct adamw adamw = {.lr = lr,
                              .beta1 = (float)job->beta1,
                              .beta2 = (float)job->beta2,
                              .eps = (float)job->eps,
                              .decay = decay,
                              .step = step,
                              .grad_scale = scale};
        optimizer_adamw_ref(&adamw, twin->weights[block], twin->moment1[block],
                            twin->moment2[block], grad, rig_count(rig, block));
    }
}

void twin_skip(struct twin *twin, uint64_t block) {
    twin->version[block]++;
}

void twin_compare(const struct twin *twin, const struct rig *rig) {
    for (uint64_t i = 0; i < rig->shard.block_count; i++) {
        const struct shard_block *block = &rig->shard.blocks[i];
        CHECK(memcmp(block->weights, twin->weights[block->plan->id],
                     block->plan->count * sizeof(float)) == 0);
        CHECK_INT(block->version, twin->version[block->plan->id]);
    }
}

void rig_gradient(struct random_stream *random, float *grad) {
    for (int i = 0; i < RIG_VALUES; i++) {
        grad[i] = ldexpf(random_normal(random), (int)random_below(random, 12) - 6);
    }
}

/* Worker `rank`'s gradient of any block. */
const float rig_grads[4][RIG_VALUES] = {
    {1e6F, 1, 1e-3F, -1e6F}, {3, 1e6F, 1e4F, 1e6F}, {-1e6F, -1e6F, -1e4F, 5}, {2, 2, 2, 2}};

/* Pushes report `seq` of a worker: the blocks of its fragment. */
void rig_push_report(struct rig *rig, uint32_t rank, uint64_t seq) {
    for (uint64_t i = 0; i < rig->shard.block_count; i++) {
        const struct shard_block *block = &rig->shard.blocks[i];
        if (block->plan->fragment == (seq - 1) % rig->plan.fragment_count) {
            rig_push(rig, rank, block->plan->id, seq, block->version, rig_grads[rank]);
        }
    }
    rig_poll(rig);
}

/* The twin's step on the sum of these workers' gradients, in this order. */
void twin_round(struct twin *twin, const struct rig *rig, uint64_t block, uint32_t count,
                const uint32_t *ranks, float scale) {
    float sum[RIG_VALUES] = {0};
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < rig_count(rig, block); k++) {
            sum[k] += rig_grads[ranks[i]][k];
        }
    }
    twin_step(twin, rig, block, sum, scale);
}

/* Each block's answer of the report goes to this worker, and counted with this weight. */
void rig_expect_answers(struct rig *rig, uint32_t rank, uint64_t seq, uint64_t version,
                        double weight) {
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        uint32_t found = 0;
        for (uint32_t i = rig->seen; i < rig->fake.send_count; i++) {
            const struct frame *frame = &rig->fake.sends[i].frame;
            if (frame->rank == rank && frame->block == block) {
                found++;
                CHECK_INT(frame->seq, seq);
                CHECK_INT(frame->ticket, seq + 1);
                CHECK_INT(frame->block_version, version);
                CHECK_NEAR(frame->scalar, weight, 0);
            }
        }
        CHECK_INT(found, 1);
    }
}

uint32_t rig_answers_to(const struct rig *rig, uint32_t rank) {
    uint32_t count = 0;
    for (uint32_t i = rig->seen; i < rig->fake.send_count; i++) {
        count += rig->fake.sends[i].frame.rank == rank ? 1 : 0;
    }
    return count;
}

void rig_see_all(struct rig *rig) {
    rig->seen = rig->fake.send_count;
    fake_channel_finish_all(&rig->fake);
    rig_poll(rig);
}

uint64_t rig_state(const struct rig *rig) {
    const struct shard *shard = &rig->shard;
    uint64_t words[16] = {shard->round,  shard->summed, shard->due,       shard->free_count,
                          shard->living, shard->untold, shard->is_closed, shard->released};
    uint64_t hash = checksum_xxh3(words, sizeof words);
    for (uint64_t i = 0; i < shard->block_count; i++) {
        const struct shard_block *block = &shard->blocks[i];
        size_t bytes = (size_t)block->plan->count * sizeof(float);
        for (uint32_t rank = 0; rank < shard->workers; rank++) {
            const struct shard_lane *lane = &block->lanes[rank];
            uint64_t lane_words[12] = {hash,
                                       lane->record.session,
                                       lane->record.applied_seq,
                                       lane->record.held_seq,
                                       lane->slot,
                                       lane->base_version,
                                       lane->held_ticket,
                                       lane->ticket,
                                       lane->staleness,
                                       shard_ranks_has(&block->waiting, rank),
                                       lane->summed,
                                       (uint64_t)(1000 * (lane->weight + 7 * lane->counted))};
            hash = checksum_xxh3(lane_words, sizeof lane_words);
        }
        struct optimizer_piece piece = update_piece(block->plan);
        size_t state = optimizer_state_bytes(&shard->optimizer, &piece);
        uint64_t block_words[9] = {hash,
                                   block->version,
                                   block->next_rank,
                                   block->ready,
                                   block->due,
                                   checksum_xxh3(block->weights, bytes),
                                   state > 0 ? checksum_xxh3(block->state, state) : 0,
                                   block->updates,
                                   checksum_xxh3(block->sum, bytes)};
        hash = checksum_xxh3(block_words, sizeof block_words);
    }
    for (uint32_t rank = 0; rank < shard->workers; rank++) {
        const struct shard_worker *worker = &shard->ranks[rank];
        uint64_t worker_words[8] = {hash,           worker->commit.seq,
                                    worker->gone,   worker->seq,
                                    worker->here,   worker->late,
                                    worker->untold, worker->counted + 7 * worker->dropped};
        hash = checksum_xxh3(worker_words, sizeof worker_words);
    }
    return hash;
}
