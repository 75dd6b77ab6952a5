/* Proves of --pull delta-* at the worker, against answers made by hand: requests say which replica
 * the worker has; steps from it are installed, bit-equal to what the encoder made of them; steps
 * from another replica, steps that lead elsewhere and malformed ones are refused, and the same
 * request leaves again at once, without a replica; every byte of an answer counts; an exact pull
 * brings values that are no replica.
 */
#include "base/checksum.h"
#include "compression/delta.h"
#include "tests/exchange_rig.h"
#include "tests/test.h"

enum { COUNT = 4, PAYLOAD = 64 };

/* The shard's side of block 1. */
static float master[COUNT], replica[COUNT];
static struct delta_place at;
static uint8_t payload[PAYLOAD];

static void receive_whole(struct rig *rig, uint32_t ticket, uint64_t seq) {
    struct frame frame = rig_answer_frame(rig, 1, ticket, seq, at.version);
    uint8_t halves[2 * COUNT];
    for (int i = 0; i < COUNT; i++) {
        memcpy(halves + 2 * i, (const uint8_t *)&replica[i] + 2, 2);
    }
    frame.codec = CODEC_BF16;
    fake_channel_receive(&rig->fake, &frame, halves, sizeof halves);
    rig_poll(rig);
}

/* The next version's step -> payload; returns its bytes. */
static size_t advance(uint8_t codec) {
    struct delta_place from = at;
    for (int i = 0; i < COUNT; i++) {
        master[i] += 0.01F * (float)(i - 2) + 0.003F;
    }
    CHECK(delta_encode_step(codec, master, replica, COUNT, payload + DELTA_HEAD));
    at = (struct delta_place){from.version + 1, delta_check(replica, COUNT)};
    delta_head_put(payload, &from, at.check, 1);
    return DELTA_HEAD + delta_step_bytes(codec, COUNT);
}

static void receive_steps(struct rig *rig, uint8_t codec, size_t bytes, uint32_t ticket,
                          uint64_t seq) {
    struct frame frame = rig_answer_frame(rig, 1, ticket, seq, at.version);
    frame.codec = codec;
    fake_channel_receive(&rig->fake, &frame, payload, bytes);
    rig_poll(rig);
}

static void check_installed(struct rig *rig) {
    const struct exchange_block *block = &rig->exchange.blocks[1];
    CHECK(!block->open);
    CHECK(memcmp(rig_weights(rig, 1), replica, sizeof replica) == 0);
    CHECK(block->version == at.version && block->check == at.check);
}

/* Block 1 pushed; the frame that left. */
static const struct fake_send *push(struct rig *rig, uint64_t seq) {
    const float grad[COUNT] = {1, 2, 3, 4};
    fake_channel_finish_all(&rig->fake);
    rig_poll(rig);
    CHECK_INT(rig_push(rig, 1, seq, grad), STATUS_OK);
    rig_poll(rig);
    return rig_expect(rig, FRAME_PUSH, 1, (uint32_t)seq + 1, seq);
}

static void start(struct rig *rig) {
    rig_open(rig, RANK, "none");
    rig->exchange.follows = true;
    for (int i = 0; i < COUNT; i++) {
        master[i] = 1.0F + 0.3F * (float)i;
    }
    delta_rebase(master, replica, COUNT);
    at = (struct delta_place){.version = 0, .check = delta_check(replica, COUNT)};
    exchange_pull_all(&rig->exchange, false);
    rig_poll(rig);
    for (uint64_t block = 0; block < BLOCKS; block++) {
        CHECK_INT(rig_expect(rig, FRAME_PULL, block, 1, 0)->frame.check, DELTA_NONE);
        if (block != 1) {
            rig_answer(rig, block, 1, 0, 0, 0);
        }
    }
    receive_whole(rig, 1, 0);
    check_installed(rig);
    CHECK(exchange_settled(&rig->exchange));
}

static void end(struct rig *rig) {
    fake_channel_finish_all(&rig->fake);
    rig_poll(rig);
    rig_close(rig);
}

static void steps_are_installed(void) {
    static const uint8_t codecs[] = {CODEC_DELTA_INT8, CODEC_DELTA_INT4};
    static struct rig rig;
    start(&rig);
    for (uint64_t seq = 1; seq <= 20; seq++) {
        const struct fake_send *sent = push(&rig, seq);
        CHECK(sent->frame.check == at.check && sent->frame.block_version == at.version);
        CHECK(!sent->frame.exact);
        uint8_t codec = codecs[seq % 2];
        receive_steps(&rig, codec, advance(codec), (uint32_t)seq + 1, seq);
        check_installed(&rig);
    }
    CHECK_INT(rig.exchange.counters.corrupt, 0);
    end(&rig);
}

/* The open push leaves again, the same but for its check, and is answered with a whole replica. */
static void expect_whole_is_asked_for(struct rig *rig, uint64_t seq) {
    const struct fake_send *again = rig_expect(rig, FRAME_PUSH, 1, (uint32_t)seq + 1, seq);
    CHECK_INT(again->frame.check, DELTA_NONE);
    CHECK_INT(again->bytes, COUNT * sizeof(float));
    CHECK(rig_next(rig) == NULL);
    CHECK(!exchange_settled(&rig->exchange));
    receive_whole(rig, (uint32_t)seq + 1, seq);
    check_installed(rig);
    CHECK(exchange_settled(&rig->exchange));
}

static void what_does_not_fit_is_asked_for_again(void) {
    static struct rig rig;
    uint64_t seq = 0;
    start(&rig);

    (void)push(&rig, ++seq); // a step was left out
    (void)advance(CODEC_DELTA_INT4);
    receive_steps(&rig, CODEC_DELTA_INT4, advance(CODEC_DELTA_INT4), (uint32_t)seq + 1, seq);
    expect_whole_is_asked_for(&rig, seq);

    (void)push(&rig, ++seq); // malformed: no steps after all
    receive_steps(&rig, CODEC_DELTA_INT4, advance(CODEC_DELTA_INT4) - 1, (uint32_t)seq + 1, seq);
    expect_whole_is_asked_for(&rig, seq);

    (void)push(&rig, ++seq); // somebody wrote into the weights
    rig_weights(&rig, 1)[2] += 1;
    receive_steps(&rig, CODEC_DELTA_INT8, advance(CODEC_DELTA_INT8), (uint32_t)seq + 1, seq);
    expect_whole_is_asked_for(&rig, seq);
    CHECK_INT(rig.exchange.counters.corrupt, 3);

    (void)push(&rig, ++seq); // and on it goes
    receive_steps(&rig, CODEC_DELTA_INT8, advance(CODEC_DELTA_INT8), (uint32_t)seq + 1, seq);
    check_installed(&rig);
    end(&rig);
}

static void old_answers_change_nothing(void) {
    static struct rig rig;
    start(&rig);
    (void)push(&rig, 1);
    size_t bytes = advance(CODEC_DELTA_INT4);
    receive_steps(&rig, CODEC_DELTA_INT4, bytes, 2, 1);
    check_installed(&rig);
    receive_steps(&rig, CODEC_DELTA_INT4, bytes, 2, 1); // repeated by the network
    check_installed(&rig);
    (void)push(&rig, 2);
    receive_steps(&rig, CODEC_DELTA_INT4, bytes, 2, 1); // and again
    CHECK(rig.exchange.blocks[1].open && rig_next(&rig) == NULL);
    CHECK_INT(rig.exchange.counters.ignored, 2);
    receive_steps(&rig, CODEC_DELTA_INT4, advance(CODEC_DELTA_INT4), 3, 2);
    check_installed(&rig);
    end(&rig);
}

/* Damaged on its way: dropped, without a word. */
static void every_byte_counts(void) {
    static struct rig rig;
    uint8_t header[FRAME_BYTES];
    start(&rig);
    (void)push(&rig, 1);
    size_t bytes = advance(CODEC_DELTA_INT4);
    struct frame frame = rig_answer_frame(&rig, 1, 2, 1, at.version);
    frame.codec = CODEC_DELTA_INT4;
    frame.payload_bytes = (uint32_t)bytes;
    frame.payload_xxh3 = checksum_xxh3(payload, bytes);
    frame_encode(&frame, header);
    for (size_t i = 0; i < FRAME_BYTES + bytes; i++) {
        uint8_t *byte = i < FRAME_BYTES ? &header[i] : &payload[i - FRAME_BYTES];
        *byte ^= 0x10;
        fake_channel_receive_raw(&rig.fake, header, payload, bytes);
        rig_poll(&rig);
        *byte ^= 0x10;
        CHECK(rig.exchange.blocks[1].open && rig_next(&rig) == NULL);
    }
    CHECK_INT(rig.exchange.counters.corrupt, FRAME_BYTES + bytes);
    fake_channel_receive_raw(&rig.fake, header, payload, bytes);
    rig_poll(&rig);
    check_installed(&rig);
    end(&rig);
}

static void exact_pulls(void) {
    static struct rig rig;
    start(&rig);
    exchange_pull_exact(&rig.exchange);
    rig_poll(&rig);
    for (uint64_t block = 0; block < BLOCKS; block++) {
        CHECK(rig_expect(&rig, FRAME_PULL, block, 2, 0)->frame.exact);
        rig_answer(&rig, block, 2, 0, 7, 0);
    }
    rig_poll(&rig);
    CHECK(exchange_settled(&rig.exchange));
    rig_check_installed(&rig, 1, 7);
    const float grad[COUNT] = {1, 2, 3, 4};
    fake_channel_finish_all(&rig.fake);
    rig_poll(&rig);
    CHECK_INT(rig_push(&rig, 1, 1, grad), STATUS_OK);
    rig_poll(&rig);
    CHECK_INT(rig_expect(&rig, FRAME_PUSH, 1, 3, 1)->frame.check, DELTA_NONE); // it is no replica
    at.version = 8;
    receive_whole(&rig, 2, 1); // of an older request
    CHECK(rig.exchange.blocks[1].open);
    receive_whole(&rig, 3, 1);
    check_installed(&rig);
    end(&rig);
}

int main(void) {
    TEST_RUN(steps_are_installed);
    TEST_RUN(what_does_not_fit_is_asked_for_again);
    TEST_RUN(old_answers_change_nothing);
    TEST_RUN(every_byte_counts);
    TEST_RUN(exact_pulls);
    return 0;
}
