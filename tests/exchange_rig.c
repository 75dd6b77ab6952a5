#include "tests/exchange_rig.h"

#include "base/checksum.h"
#include "tests/test.h"

void rig_open(struct rig *rig, uint32_t rank, const char *push) {
    static const struct tensor tensors[2] = {
        {.name = "w", .dims = 2, .shape = {6, 2}, .decay = true},
        {.name = "b", .dims = 1, .shape = {3}}};
    options_init(&rig->options, job_table, job_table_count, &rig->job);
    (void)snprintf(rig->job.push, sizeof rig->job.push, "%s", push);
    (void)snprintf(rig->job.pull, sizeof rig->job.pull, "none");
    (void)snprintf(rig->job.mode, sizeof rig->job.mode, "async");
    rig->job.lease = 10;
    CHECK_INT(plan_build(&rig->plan, tensors, 2,
                         &(struct plan_options){.shards = SHARDS, .block_values = 4}),
              STATUS_OK);
    CHECK_INT(rig->plan.block_count, BLOCKS);
    for (int i = 0; i <= VALUES; i++) {
        rig->weights[i] = 100.5F + (float)i;
    }
    fake_channel_open(&rig->fake);
    rig_exchange(rig, rank, NULL);
    rig->now_ns = 1000 * CLOCK_S;
    rig->seen = 0;
}

void rig_exchange(struct rig *rig, uint32_t rank, const struct exchange_devices *devices) {
    struct exchange_config config = {.job = &rig->job,
                                     .plan = &rig->plan,
                                     .channel = &rig->fake.channel,
                                     .addresses = fake_channel_addresses,
                                     .job_id = JOB,
                                     .epoch = EPOCH,
                                     .session = SESSION,
                                     .rank = rank,
                                     .weights = rig->weights,
                                     .codecs = rig->keeps ? rig->codecs : NULL};
    if (devices != NULL) config.devices = *devices;
    CHECK_INT(exchange_init(&rig->exchange, &config), STATUS_OK);
}

void rig_close(struct rig *rig) {
    CHECK_INT(fake_channel_taken(&rig->fake), 0); /* every slot went back */
    CHECK(memcmp(&rig->weights[VALUES], &(float){100.5F + VALUES}, sizeof(float)) == 0);
    exchange_free(&rig->exchange);
    CHECK(!rig->fake.closed); /* the channel is the caller's */
    rig->fake.channel.ops->close(&rig->fake.channel);
    plan_free(&rig->plan);
}

void rig_poll(struct rig *rig) {
    while (exchange_poll(&rig->exchange, rig->now_ns)) {
    }
}

uint32_t rig_count(const struct rig *rig, uint64_t block) {
    return (uint32_t)rig->plan.blocks[block].count;
}

float *rig_weights(struct rig *rig, uint64_t block) {
    return rig->weights + rig->plan.blocks[block].offset;
}

const struct fake_send *rig_next(struct rig *rig) {
    return rig->seen < rig->fake.send_count ? &rig->fake.sends[rig->seen++] : NULL;
}

const struct fake_send *rig_expect(struct rig *rig, enum frame_kind kind, uint64_t block,
                                   uint32_t ticket, uint64_t seq) {
    const struct fake_send *send = rig_next(rig);
    CHECK(send != NULL);
    CHECK_INT(send->frame.kind, kind);
    CHECK_INT(send->frame.block, block);
    CHECK_INT(send->frame.ticket, ticket);
    CHECK_INT(send->frame.seq, seq);
    CHECK_INT(send->frame.value_count, rig_count(rig, block));
    CHECK_INT(send->peer, rig->plan.blocks[block].shard);
    CHECK(send->frame.job == JOB && send->frame.session == SESSION);
    CHECK_INT(send->frame.epoch, EPOCH);
    CHECK_INT(send->frame.rank, rig->exchange.config.rank);
    return send;
}

void rig_version(uint64_t block, uint64_t version, float *weights) {
    for (int i = 0; i < 4; i++) {
        weights[i] = (float)(1000 * (version + 1) + 10 * block) + (float)i;
    }
}

struct frame rig_answer_frame(const struct rig *rig, uint64_t block, uint32_t ticket, uint64_t seq,
                              uint64_t version) {
    return (struct frame){.kind = FRAME_WEIGHTS,
                          .codec = CODEC_F32,
                          .job = JOB,
                          .epoch = EPOCH,
                          .session = SESSION,
                          .seq = seq,
                          .block_version = version,
                          .block = block,
                          .value_count = rig_count(rig, block),
                          .scalar = 1,
                          .rank = (uint16_t)rig->exchange.config.rank,
                          .ticket = ticket};
}

void rig_answer(struct rig *rig, uint64_t block, uint32_t ticket, uint64_t seq, uint64_t version,
                uint32_t staleness) {
    float weights[4];
    struct frame frame = rig_answer_frame(rig, block, ticket, seq, version);
    frame.staleness = staleness;
    rig_version(block, version, weights);
    fake_channel_receive(&rig->fake, &frame, weights, rig_count(rig, block) * sizeof(float));
}

void rig_check_installed(struct rig *rig, uint64_t block, uint64_t version) {
    float weights[4];
    rig_version(block, version, weights);
    CHECK(memcmp(rig_weights(rig, block), weights, rig_count(rig, block) * sizeof(float)) == 0);
}

void rig_start(struct rig *rig) {
    exchange_pull_all(&rig->exchange, false);
    rig_poll(rig);
    for (uint64_t block = 0; block < BLOCKS; block++) {
        (void)rig_expect(rig, FRAME_PULL, block, 1, 0);
        rig_answer(rig, block, 1, 0, 0, 0);
    }
    fake_channel_finish_all(&rig->fake);
    rig_poll(rig);
    CHECK(exchange_settled(&rig->exchange));
    CHECK(rig_next(rig) == NULL);
}

enum status rig_push(struct rig *rig, uint64_t block, uint64_t seq, const float *grad) {
    const struct exchange_report report = {.seq = seq, .weight = 1, .commits = true};
    return exchange_push(&rig->exchange, &report, block, grad);
}

void rig_push_all(struct rig *rig, uint64_t seq) {
    for (uint64_t block = 0; block < BLOCKS; block++) {
        const float grad[4] = {1, 2, 3, (float)seq};
        CHECK_INT(rig_push(rig, block, seq, grad), STATUS_OK);
    }
}
