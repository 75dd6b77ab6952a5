/* Proves a worker's side of the exchange: what it asks and pushes, when and how often, and what it
 * installs.
 *
 * One struct exchange is driven through a channel made by hand (exchange_rig.h), which also checks
 * that nothing of a payload changes while it is in flight: neither an encoded push nor worker 0's
 * weights, which are the payload of its first frames. Time is a variable. Commits, back-pressure
 * and random networks are test_exchange_network.c's.
 */
#include "base/checksum.h"
#include "base/log.h"
#include "tests/exchange_rig.h"
#include "tests/test.h"

/* ---- pulls ---- */

static void test_pull(void) {
    static struct rig rig;
    static const uint64_t order[BLOCKS] = {2, 0, 3, 1};
    rig_open(&rig, RANK, "none");
    CHECK(exchange_settled(&rig.exchange));
    exchange_pull_all(&rig.exchange, false);
    CHECK(!exchange_settled(&rig.exchange));
    rig_poll(&rig);
    for (uint64_t block = 0; block < BLOCKS; block++) {
        CHECK_INT(rig_expect(&rig, FRAME_PULL, block, 1, 0)->bytes, 0);
    }
    CHECK(rig_next(&rig) == NULL);
    for (int i = 0; i < BLOCKS; i++) {
        float before[VALUES + 1];
        CHECK(!exchange_settled(&rig.exchange));
        memcpy(before, rig.weights, sizeof before);
        rig_answer(&rig, order[i], 1, 0, 7, 5);
        rig_poll(&rig);
        rig_check_installed(&rig, order[i], 7);
        /* Only the block's own values. */
        rig_version(order[i], 7, before + rig.plan.blocks[order[i]].offset);
        if (order[i] != 3) {
            CHECK(memcmp(before, rig.weights, sizeof before) == 0);
        }
    }
    CHECK(exchange_settled(&rig.exchange));
    CHECK_INT(rig.exchange.counters.answers, BLOCKS);
    CHECK_INT(rig.exchange.counters.pulled_bytes, BLOCKS * FRAME_BYTES + VALUES * sizeof(float));
    CHECK_INT(rig.exchange.counters.pushes_answered, 0); /* a pull's staleness is nobody's */
    CHECK_INT(rig.exchange.counters.staleness_sum, 0);
    rig_close(&rig);
}

/* Worker 0: the first weights go before the pull, and the pull waits until they have left, since
 * its answer overwrites them. */
static void test_first_weights(void) {
    static struct rig rig;
    static const uint32_t order[BLOCKS] = {2, 0, 3, 1};
    rig_open(&rig, 0, "none");
    exchange_pull_all(&rig.exchange, true);
    rig_poll(&rig);
    for (uint64_t block = 0; block < BLOCKS; block++) {
        const struct fake_send *init = rig_expect(&rig, FRAME_INIT, block, 0, 0);
        CHECK_INT(init->frame.codec, CODEC_F32);
        CHECK(init->payload == (const uint8_t *)rig_weights(&rig, block));
        CHECK_INT(init->bytes, rig_count(&rig, block) * sizeof(float));
        rig_answer(&rig, block, 1, 0, 4, 0); /* too early: the weights are the channel's */
    }
    rig_poll(&rig);
    CHECK(rig_next(&rig) == NULL);
    CHECK_INT(rig.exchange.counters.ignored, BLOCKS);
    for (int i = 0; i < BLOCKS; i++) {
        fake_channel_finish(&rig.fake, order[i], STATUS_OK); /* checks that they are unchanged */
        rig_poll(&rig);
        (void)rig_expect(&rig, FRAME_PULL, order[i], 1, 0);
        CHECK(rig_next(&rig) == NULL);
        rig_answer(&rig, order[i], 1, 0, 0, 0);
        rig_poll(&rig);
        rig_check_installed(&rig, order[i], 0);
    }
    CHECK(exchange_settled(&rig.exchange));
    rig_close(&rig);
}

/* Unanswered pulls of worker 0 go again with the first weights, in case those were lost. */
static void test_first_weights_again(void) {
    static struct rig rig;
    rig_open(&rig, 0, "none");
    exchange_pull_all(&rig.exchange, true);
    rig_poll(&rig);
    fake_channel_finish_all(&rig.fake);
    rig_poll(&rig);
    CHECK_INT(rig.fake.send_count, 2 * BLOCKS);
    fake_channel_finish_all(&rig.fake);
    rig_poll(&rig);
    rig.seen = rig.fake.send_count;
    rig_answer(&rig, 1, 1, 0, 0, 0);
    rig.now_ns += 5 * CLOCK_S;
    rig_poll(&rig);
    for (uint64_t block = 0; block < BLOCKS; block++) {
        if (block != 1) {
            (void)rig_expect(&rig, FRAME_INIT, block, 0, 0);
        }
    }
    CHECK(rig_next(&rig) == NULL);
    rig_answer(&rig, 0, 1, 0, 0, 0); /* late, while the weights are lent again: not installed */
    fake_channel_finish_all(&rig.fake);
    rig_poll(&rig);
    (void)rig_expect(&rig, FRAME_PULL, 0, 1, 0);
    (void)rig_expect(&rig, FRAME_PULL, 2, 1, 0);
    (void)rig_expect(&rig, FRAME_PULL, 3, 1, 0);
    rig_close(&rig);
}

/* ---- weights that are installed as they come ---- */

static void keep(struct rig *rig, uint32_t rank) {
    rig_open(rig, rank, "none");
    exchange_free(&rig->exchange);
    memset(rig->codecs, CODEC_F32, sizeof rig->codecs);
    rig->keeps = true;
    rig_exchange(rig, rank, NULL);
}

/* The answer in bfloat16: the upper halves of what rig_version() has. -> the payload. */
static void answer_bf16(struct rig *rig, uint64_t block, uint32_t ticket, uint64_t seq,
                        uint64_t version, uint16_t halves[4]) {
    float weights[4];
    struct frame frame = rig_answer_frame(rig, block, ticket, seq, version);
    rig_version(block, version, weights);
    for (int i = 0; i < 4; i++) {
        memcpy(&halves[i], (const uint8_t *)&weights[i] + 2, sizeof halves[i]);
    }
    frame.codec = CODEC_BF16;
    fake_channel_receive(&rig->fake, &frame, halves, rig_count(rig, block) * sizeof halves[0]);
}

static void check_kept(struct rig *rig, uint64_t block, const uint16_t halves[4]) {
    CHECK_INT(rig->codecs[block], CODEC_BF16);
    CHECK(memcmp(rig_weights(rig, block), halves, rig_count(rig, block) * sizeof halves[0]) == 0);
}

static void check_decoded(struct rig *rig, uint64_t block, const uint16_t halves[4]) {
    CHECK_INT(rig->codecs[block], CODEC_F32);
    for (uint32_t i = 0; i < rig_count(rig, block); i++) {
        const uint32_t bits = (uint32_t)halves[i] << 16;
        CHECK(memcmp(rig_weights(rig, block) + i, &bits, sizeof bits) == 0);
    }
}

/* What is not the block's is refused, and leaves all as it was. */
static void refuse(struct rig *rig, uint8_t codec, size_t bytes) {
    uint64_t corrupt = rig->exchange.counters.corrupt;
    float before[VALUES + 1];
    static const uint8_t payload[64];
    struct frame frame = rig_answer_frame(rig, 0, 1, 0, 7);
    frame.codec = codec;
    memcpy(before, rig->weights, sizeof before);
    fake_channel_receive(&rig->fake, &frame, payload, bytes);
    rig_poll(rig);
    CHECK_INT(rig->exchange.counters.corrupt, corrupt + 1);
    CHECK_INT(rig->codecs[0], CODEC_F32);
    CHECK(memcmp(before, rig->weights, sizeof before) == 0);
}

/* Also when they come twice, or late; in the form in which the last one came. */
static void test_kept(void) {
    static struct rig rig;
    uint16_t first[BLOCKS][4], late[4], next[4];
    const float grad[4] = {1, 2, 3, 4};
    keep(&rig, RANK);
    exchange_pull_all(&rig.exchange, false);
    rig_poll(&rig);
    refuse(&rig, CODEC_BF16, 7);
    refuse(&rig, CODEC_BF16, 16);
    refuse(&rig, CODEC_F32, 8);
    refuse(&rig, CODEC_FP16, 8);
    refuse(&rig, CODEC_DELTA_INT8, 26);
    for (uint64_t block = 0; block < BLOCKS; block++) {
        answer_bf16(&rig, block, 1, 0, 7, first[block]);
        rig_poll(&rig);
        check_kept(&rig, block, first[block]);
        answer_bf16(&rig, block, 1, 0, 8, late); /* again, and other ones */
        rig_poll(&rig);
        check_kept(&rig, block, first[block]);
    }
    CHECK(exchange_settled(&rig.exchange));
    CHECK_INT(rig.exchange.counters.ignored, BLOCKS);
    fake_channel_finish_all(&rig.fake);
    rig_poll(&rig);
    for (uint64_t block = 0; block < 2; block++) {
        CHECK_INT(rig_push(&rig, block, 1, grad), STATUS_OK);
        answer_bf16(&rig, block, 1, 0, 8, late); /* to the pull */
        rig_poll(&rig);
        check_kept(&rig, block, first[block]);
        CHECK_INT(exchange_answered(&rig.exchange, block), 0);
    }
    rig_answer(&rig, 0, 2, 1, 9, 0);
    answer_bf16(&rig, 1, 2, 1, 9, next);
    rig_poll(&rig);
    CHECK_INT(rig.codecs[0], CODEC_F32);
    rig_check_installed(&rig, 0, 9);
    check_kept(&rig, 1, next);
    raw_weights_decode_all(&rig.exchange.raw);
    rig_check_installed(&rig, 0, 9);
    check_decoded(&rig, 1, next);
    check_decoded(&rig, 2, first[2]);
    check_decoded(&rig, 3, first[3]);
    rig_close(&rig);
}

/* The first weights of a block that stays as it is, sent again, are f32. */
static void test_kept_first_again(void) {
    static struct rig rig;
    uint16_t halves[4];
    keep(&rig, 0);
    exchange_pull_all(&rig.exchange, true);
    rig_poll(&rig);
    fake_channel_finish_all(&rig.fake);
    rig_poll(&rig);
    for (uint64_t block = 0; block < BLOCKS; block++) {
        answer_bf16(&rig, block, 1, 0, 0, halves);
    }
    fake_channel_finish_all(&rig.fake);
    rig_poll(&rig);
    exchange_pull_exact(&rig.exchange);
    rig_poll(&rig);
    fake_channel_finish_all(&rig.fake);
    rig_poll(&rig);
    rig.seen = rig.fake.send_count;
    rig.now_ns += 5 * CLOCK_S;
    rig_poll(&rig);
    for (uint64_t block = 0; block < BLOCKS; block++) {
        const struct fake_send *init = rig_expect(&rig, FRAME_INIT, block, 0, 0);
        float weights[4];
        rig_version(block, 0, weights);
        for (uint32_t i = 0; i < rig_count(&rig, block); i++) {
            memcpy(&halves[i], (const uint8_t *)&weights[i] + 2, sizeof halves[i]);
        }
        CHECK_INT(init->bytes, rig_count(&rig, block) * sizeof(float));
        check_decoded(&rig, block, halves);
    }
    fake_channel_finish_all(&rig.fake);
    rig_poll(&rig);
    rig_close(&rig);
}

/* ---- pushes ---- */

static void test_push(void) {
    static struct rig rig;
    struct push_codec *codec = NULL;
    struct encoder_result result;
    uint8_t wire[64];
    rig_open(&rig, RANK, "int8");
    CHECK_INT(push_codec_open(&rig.job, &rig.plan, RANK, PUSH_CODEC_ALL, &codec), STATUS_OK);
    rig_start(&rig);
    for (uint64_t seq = 1; seq <= 3; seq++) {
        for (uint64_t block = 0; block < BLOCKS; block++) {
            float grad[4] = {1.7F * (float)seq, -2, 3.14F, (float)block};
            push_codec_encode(codec, block, seq, grad, wire, &result);
            CHECK_INT(rig_push(&rig, block, seq, grad), STATUS_OK);
            memset(grad, 0, sizeof grad); /* free again on return */
            rig_poll(&rig);
            const struct fake_send *push =
                rig_expect(&rig, FRAME_PUSH, block, (uint32_t)seq + 1, seq);
            CHECK_INT(push->frame.codec, CODEC_INT8);
            CHECK_INT(push->frame.block_version, 5 * (seq - 1));
            CHECK_INT(push->bytes, result.bytes);
            CHECK(memcmp(push->copy, wire, result.bytes) == 0);
        }
        fake_channel_finish_all(&rig.fake);
        for (uint64_t block = 0; block < BLOCKS; block++) {
            CHECK(!exchange_settled(&rig.exchange));
            CHECK_INT(exchange_answered(&rig.exchange, block), seq - 1);
            rig_answer(&rig, block, (uint32_t)seq + 1, seq, 5 * seq, (uint32_t)(seq + block));
            rig_poll(&rig);
            rig_check_installed(&rig, block, 5 * seq);
            CHECK_INT(exchange_answered(&rig.exchange, block), seq);
        }
        CHECK(exchange_settled(&rig.exchange));
    }
    const struct exchange_counters *counters = &rig.exchange.counters;
    CHECK_INT(counters->pushed_values, 3 * VALUES);
    CHECK_INT(counters->pushed_bytes, 3 * (4 * FRAME_BYTES + 3 * 6 + 5));
    CHECK_INT(counters->pushes_answered, 3 * BLOCKS);
    CHECK_INT(counters->staleness_sum, BLOCKS * (1 + 2 + 3) + 3 * (0 + 1 + 2 + 3));
    CHECK_INT(counters->staleness_max, 3 + 3);
    CHECK_INT(counters->resent + counters->ignored + counters->corrupt, 0);
    push_codec_close(codec);
    rig_close(&rig);
}

/* The answer may come before the send is over; the next push must wait for the buffer then. */
static void test_push_waits_for_its_buffer(void) {
    static struct rig rig;
    const float grad[4] = {1, 2, 3, 4};
    const float other[4] = {5, 6, 7, 8};
    rig_open(&rig, RANK, "none");
    rig_start(&rig);
    CHECK_INT(rig_push(&rig, 0, 1, grad), STATUS_OK);
    rig_poll(&rig);
    uint32_t sent = rig.fake.send_count - 1;
    rig_answer(&rig, 0, 2, 1, 1, 0);
    rig_poll(&rig);
    rig_check_installed(&rig, 0, 1);
    CHECK(exchange_settled(&rig.exchange));
    for (int i = 0; i < 3; i++) {
        CHECK_INT(rig_push(&rig, 0, 2, other), STATUS_AGAIN);
        rig_poll(&rig);
        CHECK(exchange_settled(&rig.exchange)); /* nothing was begun */
    }
    CHECK_INT(rig_push(&rig, 1, 2, other), STATUS_OK); /* another block may */
    fake_channel_finish(&rig.fake, sent, STATUS_OK); /* checks that the bytes are the first ones */
    rig_poll(&rig);
    CHECK_INT(rig_push(&rig, 0, 2, other), STATUS_OK);
    rig_poll(&rig);
    rig.seen = rig.fake.send_count - 1;
    CHECK(memcmp(rig_expect(&rig, FRAME_PUSH, 0, 3, 2)->copy, other, sizeof other) == 0);
    CHECK_INT(rig.exchange.counters.pushed_values, 12); /* those of AGAIN do not count */
    rig_close(&rig);
}

/* A report's weight is in its pushes; one that did not count in some block is counted once, and one
 * that weighs nothing cannot be dropped. */
static void test_weights(void) {
    static struct rig rig;
    static const struct {
        double weight, counted[BLOCKS];
        uint64_t dropped; /* in all, afterwards */
    } table[] = {{1, {1, 1, 1, 1}, 0},
                 {0.375, {0.375, 0.375, 0.375, 0.375}, 0},
                 {0.5, {0.5, 0, 0, 0.5}, 1},
                 {0, {0, 0, 0, 0}, 1},
                 {2, {0, 0, 0, 0}, 2}};
    rig_open(&rig, RANK, "none");
    rig_start(&rig);
    for (uint64_t seq = 1; seq <= sizeof table / sizeof table[0]; seq++) {
        const struct exchange_report report = {.seq = seq, .weight = table[seq - 1].weight};
        const float values[4] = {1, 2, 3, 4};
        for (uint64_t block = 0; block < BLOCKS; block++) {
            CHECK_INT(exchange_push(&rig.exchange, &report, block, values), STATUS_OK);
            rig_poll(&rig);
            const struct fake_send *push =
                rig_expect(&rig, FRAME_PUSH, block, (uint32_t)seq + 1, seq);
            CHECK(push->frame.scalar == report.weight);
        }
        fake_channel_finish_all(&rig.fake);
        for (uint64_t block = 0; block < BLOCKS; block++) {
            float weights[4] = {0};
            struct frame frame = rig_answer_frame(&rig, block, (uint32_t)seq + 1, seq, seq);
            frame.scalar = table[seq - 1].counted[block];
            fake_channel_receive(&rig.fake, &frame, weights,
                                 rig_count(&rig, block) * sizeof(float));
        }
        rig_poll(&rig);
        CHECK(exchange_settled(&rig.exchange));
        CHECK_INT(rig.exchange.counters.dropped, table[seq - 1].dropped);
    }
    rig_close(&rig);
}

/* Blocks of lower versions than others' are asked for, and no others. */
static void test_pull_behind(void) {
    static struct rig rig;
    uint64_t least = 0;
    uint64_t most = 0;
    rig_open(&rig, RANK, "none");
    rig_start(&rig);
    rig_push_all(&rig, 1);
    rig_poll(&rig);
    rig.seen = rig.fake.send_count;
    fake_channel_finish_all(&rig.fake);
    for (uint64_t block = 0; block < BLOCKS; block++) {
        rig_answer(&rig, block, 2, 1, block < 2 ? 6 : 7, 0);
    }
    rig_poll(&rig);
    exchange_versions(&rig.exchange, &least, &most);
    CHECK_INT(least, 6);
    CHECK_INT(most, 7);
    exchange_pull_behind(&rig.exchange);
    rig_poll(&rig);
    (void)rig_expect(&rig, FRAME_PULL, 0, 3, 1);
    (void)rig_expect(&rig, FRAME_PULL, 1, 3, 1);
    CHECK(rig_next(&rig) == NULL);
    fake_channel_finish_all(&rig.fake);
    rig_answer(&rig, 0, 3, 1, 7, 0);
    rig_answer(&rig, 1, 3, 1, 7, 0);
    rig_poll(&rig);
    exchange_versions(&rig.exchange, &least, &most);
    CHECK_INT(least, 7);
    CHECK(exchange_settled(&rig.exchange));
    exchange_pull_behind(&rig.exchange);
    CHECK(exchange_settled(&rig.exchange)); /* nothing is behind */
    rig_close(&rig);
}

/* ---- repetition ---- */

/* What is not answered within half a lease goes again, the same bytes, header and all; not earlier,
 * not what is answered, not what is still in flight. */
static void test_resend(void) {
    static struct rig rig;
    rig_open(&rig, RANK, "bf16");
    rig_start(&rig);
    rig_push_all(&rig, 1);
    rig_poll(&rig);
    uint32_t first = rig.seen;
    rig.seen = rig.fake.send_count;
    for (uint32_t i = 0; i < 3; i++) {
        fake_channel_finish(&rig.fake, first + i, STATUS_OK); /* block 3 stays in flight */
    }
    rig_answer(&rig, 1, 2, 1, 1, 0);
    rig.now_ns += 5 * CLOCK_S - 1;
    rig_poll(&rig);
    CHECK(rig_next(&rig) == NULL);
    for (uint64_t times = 1; times <= 3; times++) {
        rig.now_ns += times == 1 ? 1 : 5 * CLOCK_S;
        rig_poll(&rig);
        for (uint64_t block = 0; block <= 2; block += 2) {
            const struct fake_send *again = rig_expect(&rig, FRAME_PUSH, block, 2, 1);
            const struct fake_send *once = &rig.fake.sends[first + block];
            CHECK(memcmp(again->header, once->header, FRAME_BYTES) == 0);
            CHECK(again->bytes == once->bytes && memcmp(again->copy, once->copy, once->bytes) == 0);
            fake_channel_finish(&rig.fake, rig.seen - 1, STATUS_OK);
        }
        CHECK(rig_next(&rig) == NULL);
        CHECK_INT(rig.exchange.counters.resent, 2 * times);
        rig_poll(&rig);
    }
    fake_channel_finish(&rig.fake, first + 3, STATUS_PEER_LOST); /* it never left: then it may */
    rig.now_ns += 1;
    rig_poll(&rig);
    (void)rig_expect(&rig, FRAME_PUSH, 3, 2, 1);
    rig_answer(&rig, 0, 2, 1, 1, 0);
    rig_answer(&rig, 2, 2, 1, 1, 0);
    rig_answer(&rig, 3, 2, 1, 1, 0);
    fake_channel_finish_all(&rig.fake);
    rig.now_ns += 100 * CLOCK_S;
    rig_poll(&rig);
    CHECK(rig_next(&rig) == NULL); /* nothing is open */
    CHECK(exchange_settled(&rig.exchange));
    rig_close(&rig);
}

/* An answer that comes while the repetition still waits for the channel makes it needless. */
static void test_answer_before_resend(void) {
    static struct rig rig;
    rig_open(&rig, RANK, "none");
    rig_start(&rig);
    rig_push_all(&rig, 1);
    rig_poll(&rig);
    fake_channel_finish_all(&rig.fake);
    rig.seen = rig.fake.send_count;
    rig.fake.room = 0;
    rig.now_ns += 6 * CLOCK_S;
    rig_poll(&rig);
    for (uint64_t block = 0; block < 3; block++) {
        rig_answer(&rig, block, 2, 1, 1, 0);
    }
    rig_poll(&rig);
    rig.fake.room = UINT32_MAX;
    rig_poll(&rig);
    (void)rig_expect(&rig, FRAME_PUSH, 3, 2, 1);
    CHECK(rig_next(&rig) == NULL);
    CHECK_INT(rig.exchange.unsent, 0);
    rig_close(&rig);
}

static void test_old_answers(void) {
    static struct rig rig;
    rig_open(&rig, RANK, "none");
    rig_start(&rig);
    rig_answer(&rig, 0, 1, 0, 3, 0); /* nothing is open */
    rig_poll(&rig);
    rig_check_installed(&rig, 0, 0);
    rig_push_all(&rig, 1);
    rig_poll(&rig);
    rig_answer(&rig, 0, 1, 0, 4, 9); /* to the pull, again: also if its weights are newer */
    rig_answer(&rig, 0, 3, 1, 5, 9); /* to nothing that was asked */
    rig_answer(&rig, 0, 0, 1, 6, 9);
    rig_poll(&rig);
    rig_check_installed(&rig, 0, 0);
    CHECK_INT(rig.exchange.counters.ignored, 4);
    CHECK_INT(rig.exchange.counters.staleness_sum, 0);
    rig_answer(&rig, 0, 2, 1, 7, 2);
    rig_answer(&rig, 0, 2, 1, 8, 2); /* the same answer twice: the first one counts */
    rig_poll(&rig);
    rig_check_installed(&rig, 0, 7);
    CHECK_INT(rig.exchange.counters.ignored, 5);
    CHECK_INT(rig.exchange.counters.staleness_sum, 2);
    CHECK_INT(rig.exchange.open, BLOCKS - 1);
    rig_close(&rig);
}

/* ---- frames that must leave no trace ---- */

static void check_no_trace(struct rig *rig, const char *what, bool corrupt) {
    float before[VALUES + 1];
    struct exchange_block blocks[BLOCKS];
    struct exchange_counters counters = rig->exchange.counters;
    memcpy(before, rig->weights, sizeof before);
    memcpy(blocks, rig->exchange.blocks, sizeof blocks);
    counters.corrupt += corrupt ? 1 : 0;
    counters.ignored += corrupt ? 0 : 1;
    rig_poll(rig);
    if (memcmp(before, rig->weights, sizeof before) != 0 || rig_next(rig) != NULL ||
        memcmp(blocks, rig->exchange.blocks, sizeof blocks) != 0 ||
        memcmp(&counters, &rig->exchange.counters, sizeof counters) != 0) {
        fprintf(stderr, "%s: left a trace\n", what);
        exit(1);
    }
}

static void test_foreign_frames(void) {
    static struct rig rig;
    rig_open(&rig, RANK, "none");
    rig_start(&rig);
    rig_push_all(&rig, 1);
    rig_poll(&rig);
    rig.seen = rig.fake.send_count;
    const struct frame sound = rig_answer_frame(&rig, 2, 2, 1, 1);
    struct {
        const char *what;
        struct frame frame;
        size_t bytes;
        bool corrupt;
    } table[] = {
        {"job", sound, 16, false},           {"session", sound, 16, false},
        {"older epoch", sound, 16, false},   {"newer epoch", sound, 16, false},
        {"rank", sound, 16, false},          {"kind", sound, 16, false},
        {"no such block", sound, 16, false}, {"block far out", sound, 16, false},
        {"count", sound, 12, true},          {"length", sound, 12, true},
        {"no payload", sound, 0, true},      {"unknown codec", sound, 16, true},
        {"another codec", sound, 16, true},
    };
    table[0].frame.job++;
    table[1].frame.session++;
    table[2].frame.epoch--;
    table[3].frame.epoch++;
    table[4].frame.rank--;
    table[5].frame.kind = FRAME_PUSH;
    table[6].frame.block = BLOCKS;
    table[7].frame.block = UINT64_MAX;
    table[8].frame.value_count = 3;
    table[11].frame.codec = 77;
    table[12].frame.codec = CODEC_BF16;
    const float payload[4] = {9, 9, 9, 9};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        fake_channel_receive(&rig.fake, &table[i].frame, payload, table[i].bytes);
        check_no_trace(&rig, table[i].what, table[i].corrupt);
    }
    uint8_t header[FRAME_BYTES];
    struct frame frame = sound;
    frame.payload_bytes = sizeof payload;
    frame.payload_xxh3 = checksum_xxh3(payload, sizeof payload);
    frame_encode(&frame, header);
    for (size_t i = 0; i < FRAME_BYTES; i++) {
        header[i] ^= 0x04;
        fake_channel_receive_raw(&rig.fake, header, payload, sizeof payload);
        header[i] ^= 0x04;
        check_no_trace(&rig, "a damaged header", true);
    }
    for (size_t i = 0; i < sizeof payload; i++) {
        uint8_t damaged[sizeof payload];
        memcpy(damaged, payload, sizeof payload);
        damaged[i] ^= 0x80;
        fake_channel_receive_raw(&rig.fake, header, damaged, sizeof damaged);
        check_no_trace(&rig, "a damaged payload", true);
        fake_channel_receive_raw(&rig.fake, header, payload, i);
        check_no_trace(&rig, "a short payload", true);
    }
    fake_channel_receive_raw(&rig.fake, header, payload, sizeof payload);
    rig_poll(&rig);
    CHECK(memcmp(rig_weights(&rig, 2), payload, sizeof payload) == 0); /* undamaged, it counts */
    rig_close(&rig);
}

int main(void) {
    log_set_level(LOG_ERROR); /* what is dropped is warned of */
    TEST_RUN(test_pull);
    TEST_RUN(test_first_weights);
    TEST_RUN(test_first_weights_again);
    TEST_RUN(test_kept);
    TEST_RUN(test_kept_first_again);
    TEST_RUN(test_push);
    TEST_RUN(test_push_waits_for_its_buffer);
    TEST_RUN(test_weights);
    TEST_RUN(test_pull_behind);
    TEST_RUN(test_resend);
    TEST_RUN(test_answer_before_resend);
    TEST_RUN(test_old_answers);
    TEST_RUN(test_foreign_frames);
    return 0;
}
