/* Proves what a shard does with frames in sync mode: sums in rank order, one report and one verdict
 * a round, each push exactly once, answers with the right ticket in the order of need, and no trace
 * of frames that are damaged, foreign or out of turn.
 *
 * One struct shard is driven through a channel made by hand (shard_rig.h). Weights are compared bit
 * for bit with a plain loop that adds the gradients in rank order; gradients are such that another
 * order gives other bits. That a frame left no trace is shown by a hash of all of the shard's
 * state, by the channel's slots and by its counters. Other modes are test_shard_modes.c's, random
 * orders test_shard_storm.c's.
 */
#include "base/checksum.h"
#include "base/log.h"
#include "tests/shard_rig.h"
#include "tests/test.h"

#include <math.h>

/* ---- first weights and pulls ---- */

static void test_first_weights(void) {
    static struct rig rig;
    struct twin twin;
    const float other[RIG_VALUES] = {9, 9, 9, 9};
    rig_prepare(&rig, "sync", 2);
    rig_open(&rig, 1, 0);
    twin_open(&twin, &rig);
    rig_pull(&rig, 1, 2, 1); /* before there are weights: waits */
    rig_poll(&rig);
    CHECK(rig_next(&rig) == NULL);
    rig_init(&rig, 2, twin.weights[2]);
    rig_poll(&rig);
    const struct fake_send *answer = rig_expect(&rig, 1, 2, 1, 0, 0);
    CHECK_INT(answer->frame.codec, CODEC_F32);
    CHECK_INT(answer->bytes, 4 * sizeof(float));
    CHECK(memcmp(answer->copy, twin.weights[2], answer->bytes) == 0);
    /* Only the first one counts, whoever's or whenever. */
    rig_init(&rig, 2, other);
    rig_poll(&rig);
    CHECK_INT(rig.shard.counters.duplicates, 1);
    CHECK(memcmp(rig_block(&rig, 2)->weights, twin.weights[2], answer->bytes) == 0);
    /* Block 3 has still none, and a gradient of it makes no sense. */
    rig_push(&rig, 0, 3, 1, 0, other);
    rig_pull(&rig, 0, 3, 1);
    rig_poll(&rig);
    CHECK_INT(rig.shard.counters.corrupt, 1);
    CHECK(rig_next(&rig) == NULL);
    rig_init(&rig, 3, twin.weights[3]);
    rig_poll(&rig);
    answer = rig_expect(&rig, 0, 3, 1, 0, 0);
    CHECK_INT(answer->bytes, 3 * sizeof(float));
    CHECK(rig_next(&rig) == NULL);
    CHECK_INT(fake_channel_taken(&rig.fake), 0);
    rig_close(&rig);
}

/* A repeated pull is answered again; one older than the last request is not. */
static void test_pulls(void) {
    static struct rig rig;
    struct twin twin;
    rig_prepare(&rig, "sync", 2);
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    rig_pull(&rig, 0, 1, 1);
    rig_poll(&rig);
    (void)rig_expect(&rig, 0, 1, 1, 0, 0);
    rig_pull(&rig, 0, 1, 3);
    rig_pull(&rig, 0, 1, 2);
    rig_pull(&rig, 0, 1, 1);
    rig_poll(&rig);
    (void)rig_expect(&rig, 0, 1, 3, 0, 0);
    rig_pull(&rig, 0, 1, 2);
    rig_poll(&rig);
    CHECK(rig_next(&rig) == NULL);
    rig_close(&rig);
}

/* Where the channel is full, what a forward pass needs first still overtakes. */
static void test_order_of_need(void) {
    static struct rig rig;
    struct twin twin;
    rig_prepare(&rig, "sync", 2);
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    rig.fake.room = 0;
    rig_pull(&rig, 0, 2, 2);
    rig_pull(&rig, 0, 1, 2);
    rig_pull(&rig, 1, 1, 2);
    rig_poll(&rig);
    CHECK(rig_next(&rig) == NULL);
    rig.fake.room = 1;
    rig_poll(&rig);
    (void)rig_expect(&rig, 0, 1, 2, 0, 0);
    CHECK(rig_next(&rig) == NULL);
    rig_pull(&rig, 0, 0, 2);
    rig_pull(&rig, 1, 3, 2);
    rig_poll(&rig);
    rig.fake.room = 3;
    rig_poll(&rig);
    (void)rig_expect(&rig, 1, 3, 2, 0, 0);
    (void)rig_expect(&rig, 0, 0, 2, 0, 0);
    (void)rig_expect(&rig, 1, 1, 2, 0, 0);
    CHECK(rig_next(&rig) == NULL);
    rig.fake.room = 1;
    rig_poll(&rig);
    (void)rig_expect(&rig, 0, 2, 2, 0, 0);
    CHECK(rig_next(&rig) == NULL);
    rig_close(&rig);
}

/* ---- one round ---- */

struct round {
    float grads[RIG_WORKERS][RIG_BLOCKS][RIG_VALUES];
    float sums[RIG_BLOCKS][RIG_VALUES]; /* in rank order */
};

static void round_make(struct round *round, const struct rig *rig, struct random_stream *random) {
    memset(round, 0, sizeof *round);
    for (uint32_t rank = 0; rank < rig->shard.workers; rank++) {
        for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
            rig_gradient(random, round->grads[rank][block]);
            for (uint32_t i = 0; i < rig_count(rig, block); i++) {
                round->sums[block][i] += round->grads[rank][block][i];
            }
        }
    }
}

/* The report of the round is there, alone, and says this. */
static void check_report(struct rig *rig, uint64_t number, const struct round *round) {
    struct vote_report report = rig_note(rig, SHARD_REPORT).report;
    CHECK_INT(report.round, number);
    CHECK(report.weight == (double)rig->shard.workers);
    CHECK_INT(report.shard, rig->shard.config.id);
    CHECK_INT(report.contributors, rig->shard.workers);
    CHECK_INT(report.block_count, rig->shard.block_count);
    bool nonfinite = false;
    for (uint64_t i = 0; i < report.block_count; i++) {
        uint64_t block = report.blocks[i];
        CHECK_INT(block, rig->shard.blocks[i].plan->id);
        double sum = optimizer_sum_of_squares_ref(round->sums[block], rig_count(rig, block));
        CHECK(memcmp(&report.sums_of_squares[i], &sum, sizeof sum) == 0 ||
              (!isfinite(sum) && !isfinite(report.sums_of_squares[i])));
        nonfinite = nonfinite || !isfinite(sum);
    }
    CHECK_INT(report.nonfinite, nonfinite);
    rig_expect_silence(rig);
}

/* All six orders in which three ranks can arrive at a block, with sums that tell them apart. */
static void test_rank_order(void) {
    static const uint32_t orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                          {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    /* (1e8 + 3) - 1e8 is 0 in f32, (1e8 - 1e8) + 3 is 3. */
    static const float grads[3][RIG_VALUES] = {
        {1e8F, 1, 1e-3F, -1e8F}, {3, 1e8F, 1e4F, 1e8F}, {-1e8F, -1e8F, -1e4F, 5}};
    for (int k = 0; k < 6; k++) {
        static struct rig rig;
        struct twin twin;
        struct round round = {0};
        rig_prepare(&rig, "sync", 3);
        rig_open(&rig, 1, 0);
        rig_start(&rig, &twin);
        for (uint32_t rank = 0; rank < 3; rank++) {
            for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
                memcpy(round.grads[rank][block], grads[rank], sizeof grads[rank]);
                for (uint32_t i = 0; i < rig_count(&rig, block); i++) {
                    round.sums[block][i] += grads[rank][i];
                }
            }
        }
        for (int i = 0; i < 3; i++) {
            for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
                rig_push(&rig, orders[k][i], block, 1, 0, round.grads[orders[k][i]][block]);
                rig_poll(&rig);
            }
        }
        check_report(&rig, 1, &round);
        rig_verdict(&rig, 1, false, 1);
        rig_poll(&rig);
        for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
            twin_step(&twin, &rig, block, round.sums[block], 1.0F / 3.0F);
        }
        twin_compare(&twin, &rig);
        CHECK_INT(fake_channel_taken(&rig.fake), 0);
        rig_close(&rig);
    }
}

/* The shard reports when the last push of the last block is in, and not before; answers wait for
 * the verdict; then each worker gets each block once. */
static void test_round(void) {
    static struct rig rig;
    struct twin twin;
    static struct round round;
    struct random_stream random;
    random_open(&random, 1, RANDOM_SIMULATOR, 0);
    rig_prepare(&rig, "sync", 3);
    rig.job.weight_decay = 0.01;
    rig.job.momentum = 0.9;
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    for (uint64_t number = 1; number <= 4; number++) {
        round_make(&round, &rig, &random);
        for (uint32_t i = 0; i < 3 * RIG_BLOCKS; i++) {
            rig_expect_silence(&rig);
            CHECK(rig_next(&rig) == NULL);
            twin_compare(&twin, &rig);
            rig_push(&rig, 2 - i % 3, i / 3, number, number - 1, round.grads[2 - i % 3][i / 3]);
            rig_poll(&rig);
        }
        check_report(&rig, number, &round);
        CHECK(rig_next(&rig) == NULL);
        rig_verdict(&rig, number, false, 0.25F);
        rig_poll(&rig);
        for (uint64_t i = 0; i < RIG_BLOCKS; i++) {
            uint64_t block = rig_need[i];
            twin_step(&twin, &rig, block, round.sums[block], 0.25F * (1.0F / 3.0F));
            for (uint32_t rank = 0; rank < 3; rank++) {
                const struct fake_send *answer =
                    rig_expect(&rig, rank, block, (uint32_t)number + 1, number, number);
                CHECK_INT(answer->frame.staleness, 0);
                CHECK(memcmp(answer->copy, twin.weights[block], answer->bytes) == 0);
            }
        }
        CHECK(rig_next(&rig) == NULL);
        twin_compare(&twin, &rig);
        CHECK_INT(fake_channel_taken(&rig.fake), 0);
        fake_channel_finish_all(&rig.fake);
    }
    CHECK_INT(rig.shard.counters.pushes, 4 * 3 * RIG_BLOCKS);
    CHECK_INT(rig.shard.counters.staleness_max, 0);
    rig_close(&rig);
}

static void push_all(struct rig *rig, uint64_t seq, uint64_t version, const struct round *round) {
    for (uint32_t rank = 0; rank < rig->shard.workers; rank++) {
        for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
            if (rig->shard.index[block] != UINT64_MAX) {
                rig_push(rig, rank, block, seq, version, round->grads[rank][block]);
            }
        }
    }
    rig_poll(rig);
}

/* Verdicts that are early, late, repeated, or of no round change nothing. A skip leaves weights and
 * moments as they are, and nothing of the bad sum behind. */
static void test_verdicts(void) {
    static struct rig rig;
    struct twin twin;
    static struct round round;
    struct random_stream random;
    random_open(&random, 2, RANDOM_SIMULATOR, 0);
    rig_prepare(&rig, "sync", 2);
    rig.job.momentum = 0.5;
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    rig_verdict(&rig, 1, false, 1); /* before the sums are complete */
    rig_poll(&rig);
    round_make(&round, &rig, &random);
    round.grads[1][2][3] = NAN;
    round.sums[2][3] = NAN;
    push_all(&rig, 1, 0, &round);
    check_report(&rig, 1, &round);
    uint64_t before = rig_state(&rig);
    rig_verdict(&rig, 0, false, 1);
    rig_verdict(&rig, 2, false, 1);
    rig_verdict(&rig, UINT64_MAX, true, 0);
    rig_poll(&rig);
    CHECK(rig_state(&rig) == before);
    CHECK(rig_next(&rig) == NULL);
    rig_verdict(&rig, 1, true, 0);
    rig_verdict(&rig, 1, true, 0); /* repeated: of a closed round */
    rig_poll(&rig);
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        twin_skip(&twin, block); /* the round counts, the weights are those of the start */
    }
    twin_compare(&twin, &rig);
    CHECK_INT(rig.shard.counters.skipped, 1);
    CHECK_INT(rig.shard.round, 2);
    for (uint64_t i = 0; i < RIG_BLOCKS; i++) {
        for (uint32_t rank = 0; rank < 2; rank++) {
            (void)rig_expect(&rig, rank, rig_need[i], 2, 1, 1);
        }
    }
    CHECK(rig_next(&rig) == NULL);
    round_make(&round, &rig, &random);
    push_all(&rig, 2, 1, &round);
    check_report(&rig, 2, &round);
    rig_verdict(&rig, 2, false, 1);
    rig_poll(&rig);
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        twin_step(&twin, &rig, block, round.sums[block], 0.5F);
    }
    twin_compare(&twin, &rig);
    rig_close(&rig);
}

/* ---- exactly once ---- */

/* Each frame three times, at each place where it can be repeated; a gap is a breach. */
static void test_repetitions(void) {
    static struct rig rig;
    struct twin twin;
    static struct round rounds[2];
    struct random_stream random;
    random_open(&random, 3, RANDOM_SIMULATOR, 0);
    rig_prepare(&rig, "sync", 2);
    rig_open(&rig, 1, 0);
    rig_start(&rig, &twin);
    round_make(&rounds[0], &rig, &random);
    round_make(&rounds[1], &rig, &random);
    push_all(&rig, 1, 0, &rounds[0]);
    push_all(&rig, 1, 0, &rounds[0]); /* held */
    rig_push(&rig, 1, 2, 3, 0, rounds[0].grads[0][0]);
    rig_push(&rig, 1, 2, 2, 0, rounds[0].grads[0][0]); /* and the last one is not done yet */
    rig_poll(&rig);
    CHECK_INT(rig.shard.counters.duplicates, 2 * RIG_BLOCKS);
    CHECK_INT(rig.shard.counters.breaches, 2);
    check_report(&rig, 1, &rounds[0]);
    rig_verdict(&rig, 1, false, 1);
    rig_poll(&rig);
    rig.seen += 2 * RIG_BLOCKS;
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        twin_step(&twin, &rig, block, rounds[0].sums[block], 0.5F);
    }
    rig_push(&rig, 1, 2, 1, 0, rounds[0].grads[1][2]); /* had its turn: answered again */
    rig_poll(&rig);
    (void)rig_expect(&rig, 1, 2, 2, 1, 1);
    CHECK(rig_next(&rig) == NULL);
    rig_push(&rig, 1, 2, 3, 0, rounds[1].grads[1][2]); /* a gap */
    rig_poll(&rig);
    CHECK_INT(rig.shard.counters.breaches, 3);
    /* A late repetition of an old push, or of the pull, must not answer the newer request. */
    rig_push(&rig, 1, 2, 2, 1, rounds[1].grads[1][2]);
    rig_push(&rig, 1, 2, 1, 0, rounds[0].grads[1][2]);
    rig_pull(&rig, 1, 2, 1);
    rig_poll(&rig);
    for (const struct fake_send *send = rig_next(&rig); send != NULL; send = rig_next(&rig)) {
        CHECK(send->frame.ticket < 3);
    }
    push_all(&rig, 2, 1, &rounds[1]);
    check_report(&rig, 2, &rounds[1]);
    rig_verdict(&rig, 2, false, 1);
    rig_poll(&rig);
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        twin_step(&twin, &rig, block, rounds[1].sums[block], 0.5F);
    }
    twin_compare(&twin, &rig);
    rig.seen = rig.fake.send_count;
    rig_push(&rig, 1, 2, 1, 0, rounds[0].grads[1][2]); /* answered long ago: not again */
    rig_poll(&rig);
    CHECK(rig_next(&rig) == NULL);
    CHECK_INT(rig.shard.counters.pushes, 2 * 2 * RIG_BLOCKS);
    CHECK_INT(fake_channel_taken(&rig.fake), 0);
    rig_close(&rig);
}

/* ---- frames that must leave no trace ---- */

static const struct shard_counters none;

/* The shard got one frame: its state is the same, nothing was sent, no slot kept, and exactly this
 * counter (by its place in the struct) went up by one. */
static void check_no_trace(struct rig *rig, uint64_t state, const char *what, size_t counter) {
    uint64_t *found = (uint64_t *)((uint8_t *)&rig->shard.counters + counter);
    uint32_t taken = fake_channel_taken(&rig->fake) - 1; /* the frame's own */
    rig_poll(rig);
    bool clean = rig_state(rig) == state && fake_channel_taken(&rig->fake) == taken &&
                 rig->seen == rig->fake.send_count && *found == 1;
    *found = 0;
    if (!clean || memcmp(&rig->shard.counters, &none, sizeof none) != 0) {
        fprintf(stderr, "%s: left a trace\n", what);
        exit(1);
    }
}

#define CORRUPT offsetof(struct shard_counters, corrupt)
#define STALE   offsetof(struct shard_counters, stale)

/* A rig in the middle of a round: rank 1's push is in the sum or held, rank 0's is to come. */
static void middle_of_round(struct rig *rig) {
    struct twin twin;
    const float grad[RIG_VALUES] = {1, 2, 3, 4};
    rig_prepare(rig, "sync", 2);
    rig_open(rig, 2, 0); /* owns blocks 0 and 2 */
    rig_start(rig, &twin);
    rig_push(rig, 1, 0, 1, 0, grad);
    rig_poll(rig);
    rig->shard.counters = none;
}

static void test_foreign_frames(void) {
    static struct rig rig;
    middle_of_round(&rig);
    const struct frame push = rig_frame(&rig, FRAME_PUSH, 0, 2);
    struct {
        const char *what;
        struct frame frame;
        size_t bytes, counter;
    } table[] = {
        {"session", push, 16, STALE},
        {"session of another rank", push, 16, STALE},
        {"job", push, 16, STALE},
        {"older epoch", push, 16, STALE},
        {"newer epoch", push, 16, STALE},
        {"rank", push, 16, STALE},
        {"rank far out", push, 16, STALE},
        {"another shard's block", push, 16, CORRUPT},
        {"no such block", push, 16, CORRUPT},
        {"block far out", push, 16, CORRUPT},
        {"count too small", push, 12, CORRUPT},
        {"count too large", push, 20, CORRUPT},
        {"count without its length", push, 16, CORRUPT},
        {"an answer", push, 16, CORRUPT},
        {"first weights of rank 1", push, 16, CORRUPT},
        {"pull of another shard's block", push, 0, CORRUPT},
        {"commit of another session", push, 0, STALE},
    };
    table[0].frame.session = 999;
    table[1].frame.session = 1001;
    table[2].frame.job++;
    table[3].frame.epoch--;
    table[4].frame.epoch++;
    table[5].frame.rank = 2;
    table[6].frame.rank = UINT16_MAX;
    table[7].frame.block = 1;
    table[8].frame.block = RIG_BLOCKS;
    table[9].frame.block = UINT64_MAX;
    table[10].frame.value_count = 3;
    table[11].frame.value_count = 5;
    table[12].frame.value_count = 3;
    table[13].frame.kind = FRAME_WEIGHTS;
    table[14].frame = rig_frame(&rig, FRAME_INIT, 1, 2);
    table[15].frame = rig_frame(&rig, FRAME_PULL, 0, 1);
    table[16].frame.kind = FRAME_COMMIT;
    table[16].frame.session = 1;
    const float payload[5] = {1, 2, 3, 4, 5};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        uint64_t state = rig_state(&rig);
        table[i].frame.seq = 1;
        table[i].frame.ticket = 2;
        fake_channel_receive(&rig.fake, &table[i].frame, payload, table[i].bytes);
        check_no_trace(&rig, state, table[i].what, table[i].counter);
    }
    rig_close(&rig);
}

/* Every byte of header and payload, damaged by itself, and every shorter payload. */
static void test_damaged_frames(void) {
    static struct rig rig;
    middle_of_round(&rig);
    const float payload[RIG_VALUES] = {1, 2, 3, 4};
    uint8_t header[FRAME_BYTES], damaged[sizeof payload];
    struct frame push = rig_frame(&rig, FRAME_PUSH, 0, 2);
    push.seq = 1;
    push.ticket = 2;
    push.payload_bytes = sizeof payload;
    push.payload_xxh3 = checksum_xxh3(payload, sizeof payload);
    frame_encode(&push, header);
    for (size_t i = 0; i < FRAME_BYTES; i++) {
        uint64_t state = rig_state(&rig);
        header[i] ^= 0x10;
        fake_channel_receive_raw(&rig.fake, header, payload, sizeof payload);
        header[i] ^= 0x10;
        check_no_trace(&rig, state, "a damaged header", CORRUPT);
    }
    for (size_t i = 0; i < sizeof payload; i++) {
        uint64_t state = rig_state(&rig);
        memcpy(damaged, payload, sizeof payload);
        damaged[i] ^= 0x01;
        fake_channel_receive_raw(&rig.fake, header, damaged, sizeof damaged);
        check_no_trace(&rig, state, "a damaged payload", CORRUPT);
        fake_channel_receive_raw(&rig.fake, header, payload, i);
        check_no_trace(&rig, state, "a short payload", CORRUPT);
    }
    fake_channel_receive_raw(&rig.fake, header, payload, sizeof payload);
    rig_poll(&rig);
    CHECK_INT(rig_block(&rig, 2)->lanes[0].record.held_seq, 1); /* undamaged, it counts */
    rig_close(&rig);
}

/* First weights that are not what they should be must not become the block's. */
static void test_wrong_first_weights(void) {
    static struct rig rig;
    const float payload[5] = {1, 2, 3, 4, 5};
    rig_prepare(&rig, "sync", 2);
    rig_open(&rig, 2, 0);
    struct frame init = rig_frame(&rig, FRAME_INIT, 0, 0);
    for (size_t bytes = 0; bytes <= sizeof payload; bytes++) {
        uint64_t state = rig_state(&rig);
        if (bytes != 16) {
            fake_channel_receive(&rig.fake, &init, payload, bytes);
            check_no_trace(&rig, state, "first weights of a wrong length", CORRUPT);
        }
    }
    uint64_t state = rig_state(&rig);
    init.codec = CODEC_INT8;
    fake_channel_receive(&rig.fake, &init, payload, 16);
    check_no_trace(&rig, state, "first weights in another codec", CORRUPT);
    init.codec = CODEC_F32;
    init.value_count = 3;
    fake_channel_receive(&rig.fake, &init, payload, 16);
    check_no_trace(&rig, state, "first weights of another count", CORRUPT);
    rig_close(&rig);
}

/* A shard that owns nothing stands by: whatever comes, it neither reports nor answers. */
static void test_shard_that_owns_nothing(void) {
    static struct rig rig;
    const float grad[RIG_VALUES] = {1, 2, 3, 4};
    rig_prepare(&rig, "sync", 2);
    rig_open(&rig, 6, 5);
    CHECK_INT(rig.shard.block_count, 0);
    for (uint64_t block = 0; block < RIG_BLOCKS; block++) {
        rig_init(&rig, block, grad);
        rig_pull(&rig, 1, block, 1);
        rig_push(&rig, 1, block, 1, 0, grad);
    }
    rig_verdict(&rig, 1, false, 1);
    rig_poll(&rig);
    CHECK_INT(rig.shard.counters.corrupt, 3 * RIG_BLOCKS);
    rig_expect_silence(&rig);
    CHECK(rig_next(&rig) == NULL);
    CHECK_INT(fake_channel_taken(&rig.fake), 0);
    rig_close(&rig);
}

int main(void) {
    log_set_level(LOG_ERROR); /* what is dropped is warned of */
    TEST_RUN(test_first_weights);
    TEST_RUN(test_pulls);
    TEST_RUN(test_order_of_need);
    TEST_RUN(test_rank_order);
    TEST_RUN(test_round);
    TEST_RUN(test_verdicts);
    TEST_RUN(test_repetitions);
    TEST_RUN(test_foreign_frames);
    TEST_RUN(test_damaged_frames);
    TEST_RUN(test_wrong_first_weights);
    TEST_RUN(test_shard_that_owns_nothing);
    return 0;
}
