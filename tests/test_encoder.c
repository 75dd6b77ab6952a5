/* Proves of the encoder: what was sent plus the residual is the sum of the gradients, for every
 * codec with feedback and within the rounding of the residual's type; LoCo against its formula, and
 * its reset; the schedule's densities and codecs; saving and loading give the same bytes from then
 * on, and refuse what is damaged or another's; two threads' worth of scratch do not meet; a payload
 * that is packed apart is the encoder's own; the same payloads at every level of vector
 * instructions.
 */
#include "base/memory.h"
#include "base/random.h"
#include "tests/codec_rig.h"

#include <stdbool.h>

#define ROWS  24
#define COLS  200
#define COUNT ((size_t)ROWS * COLS)

/* Sum of gradients, less that of what was sent, is the residual: its norm is known, and one more
 * step with no gradient at all but for a hair in each row sends what it can of it. */
static void check_identity(const char *text, double tolerance) {
    struct codec_rig rig = codec_rig_open(text, ROWS, COLS);
    double *owed = memory_zeroed(COUNT, sizeof *owed);
    double squares = 0, total = 0;
    for (uint64_t step = 0; step < 12; step++) {
        float *values = codec_rig_values(100 + step, ROWS, COLS);
        codec_rig_pass(&rig, step, values, 2.0f);
        for (size_t i = 0; i < COUNT; i++)
            owed[i] += 2.0 * (double)values[i] - (double)rig.decoded[i];
        total += 4 * codec_rig_squares(values, COUNT);
        free(values);
    }
    for (size_t i = 0; i < COUNT; i++)
        squares += owed[i] * owed[i];
    CHECK_NEAR(sqrt(rig.result.residual_square_sum), sqrt(squares), tolerance * sqrt(total));
    free(owed);
    codec_rig_close(&rig);
}

static void test_identity(void) {
    static const char *const codecs[] = {
        "bf16",        "int8",       "fp8",       "int4",
        "int4:sr,had", "onebit",     "topk:0.05", "topk:0.05,global",
        "randk:0.1",   "powersgd:2", "qsgd",      "terngrad",
        "natural",     "signsgd",    "fp16"};
    char text[CODEC_TEXT_MAX];
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++) {
        snprintf(text, sizeof text, "%s,ef", codecs[i]);
        check_identity(text, 1e-5);
        snprintf(text, sizeof text, "%s,ef,residual=bf16", codecs[i]);
        if (strcmp(codecs[i], "signsgd") != 0) check_identity(text, 0.02);
        snprintf(text, sizeof text, "%s,ef,residual=int8+zstd", codecs[i]);
        if (strcmp(codecs[i], "signsgd") != 0) check_identity(text, 0.05);
    }
}

/* Value by value, with the exact residual read from the saved state. */
static void test_residual_values(void) {
    struct codec_rig rig = codec_rig_open("topk:0.02,ef", ROWS, COLS);
    double *owed = memory_zeroed(COUNT, sizeof *owed);
    uint8_t *saved = memory_zeroed(encoder_state_bytes(rig.encoder), 1);
    for (uint64_t step = 0; step < 5; step++) {
        float *values = codec_rig_values(step, ROWS, COLS);
        codec_rig_pass(&rig, step, values, 1.0f);
        for (size_t i = 0; i < COUNT; i++)
            owed[i] += (double)values[i] - (double)rig.decoded[i];
        free(values);
    }
    encoder_save(rig.encoder, saved);
    for (size_t i = 0; i < COUNT; i++) {
        float kept;
        memcpy(&kept, saved + 24 + i * sizeof kept, sizeof kept);
        CHECK_NEAR(kept, owed[i], 1e-6 * (fabs(owed[i]) + 1e-2));
    }
    free(saved);
    free(owed);
    codec_rig_close(&rig);
}

/* e <- 0.8 e + 0.2 (a - D(a)), a = g + e; and e = 0 before steps 1024, 2048. */
static void test_loco(void) {
    struct codec_rig rig = codec_rig_open("int4,ef=loco", ROWS, COLS);
    struct codec_rig plain = codec_rig_open("int4", ROWS, COLS);
    float *values = codec_rig_values(1, ROWS, COLS), *kept = memory_zeroed(COUNT, sizeof *kept);
    float *a = memory_zeroed(COUNT, sizeof *a);
    for (uint64_t step = 1021; step < 1027; step++) {
        if (step == 1024) memset(kept, 0, COUNT * sizeof *kept);
        for (size_t i = 0; i < COUNT; i++)
            a[i] = values[i] + kept[i];
        codec_rig_pass(&rig, step, values, 1.0f);
        codec_rig_pass(&plain, step, a, 1.0f);
        double squares = 0;
        for (size_t i = 0; i < COUNT; i++) {
            CHECK(rig.decoded[i] == plain.decoded[i]);
            kept[i] = 0.8f * kept[i] + (1.0f - 0.8f) * (a[i] - plain.decoded[i]);
            squares += (double)kept[i] * (double)kept[i];
        }
        CHECK_NEAR(rig.result.residual_square_sum, squares, 1e-5 * squares);
    }
    free(a);
    free(kept);
    free(values);
    codec_rig_close(&plain);
    codec_rig_close(&rig);
}

/* A row without gradient keeps its residual, to be sent when the row moves again. */
static void test_residual_waits(void) {
    struct codec_rig rig = codec_rig_open("onebit,ef", 2, 8);
    const float first[16] = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8};
    const float second[16] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
    codec_rig_pass(&rig, 0, first, 1.0f);
    for (int i = 0; i < 16; i++)
        CHECK(rig.decoded[i] == 4.5f);
    codec_rig_pass(&rig, 1, second, 1.0f);
    for (int i = 0; i < 8; i++)
        CHECK(rig.decoded[i] == 0.0f);
    codec_rig_pass(&rig, 2, first, 1.0f);
    double sum = 0;
    for (int i = 0; i < 8; i++)
        sum += (double)first[i] * 2 - 4.5;
    // The mean of |2 first - 4.5| over row 0 is part of the block's: the row was sent with it.
    CHECK(sum > 0 && rig.decoded[7] > 4.5f && rig.decoded[0] < 0.0f);
    codec_rig_close(&rig);
}

static void test_schedule(void) {
    CHECK_INT(encoder_default_dense(1000), 100);
    CHECK_INT(encoder_default_dense(10000), 200);
    CHECK(encoder_density(0.01f, 100, 90, 99) == 1.0f);
    CHECK(encoder_density(0.01f, 100, 90, 100) == 0.25f);
    CHECK(encoder_density(0.01f, 100, 90, 129) == 0.25f);
    CHECK(encoder_density(0.01f, 100, 90, 130) == 0.0625f);
    CHECK(encoder_density(0.01f, 100, 90, 160) == 0.015625f);
    CHECK(encoder_density(0.01f, 100, 90, 190) == 0.01f);
    CHECK(encoder_density(0.5f, 0, 90, 1) == 0.5f);
    CHECK(encoder_density(0.01f, 0, 0, 0) == 0.01f);

    const struct encoder_block block = {0, 4, 4096};
    const struct encoder_config config = {.spec = codec_rig_spec("topk:0.01,ef"),
                                          .blocks = &block,
                                          .block_count = 1,
                                          .dense_steps = 2,
                                          .ramp_steps = 3};
    const uint8_t codecs[] = {CODEC_BF16, CODEC_BF16, CODEC_TOPK,
                              CODEC_TOPK, CODEC_TOPK, CODEC_TOPK};
    const uint32_t kept[] = {0, 0, 1024, 256, 64, 41};
    struct encoder *encoder = encoder_open(&config);
    uint8_t *wire = memory_zeroed(encoder_bound(encoder, 0), 1);
    void *scratch = memory_zeroed(encoder_scratch_bytes(encoder), 1);
    float *values = codec_rig_values(1, 4, 4096);
    for (uint64_t step = 0; step < 6; step++) {
        struct encoder_result result;
        encoder_encode(encoder, 0, step, values, 1.0f, wire, scratch, &result);
        CHECK(result.bytes <= encoder_bound(encoder, 0));
        CHECK_INT(result.codec, codecs[step]);
        if (result.codec == CODEC_TOPK) CHECK_INT(scheme_get_u32(wire), kept[step]);
    }
    free(values);
    free(scratch);
    free(wire);
    encoder_close(encoder);
}

static void test_save(void) {
    for (int t = 0; t < CODEC_RIG_TEXTS; t++) {
        struct codec_rig rig = codec_rig_open(codec_rig_texts[t], ROWS, COLS);
        struct codec_rig twin = codec_rig_open(codec_rig_texts[t], ROWS, COLS);
        struct codec_rig other = codec_rig_open(codec_rig_texts[t], COLS, ROWS);
        float *values = codec_rig_values(1, ROWS, COLS);
        for (uint64_t step = 0; step < 3; step++)
            codec_rig_encode(&rig, step, values, 1.0f);
        size_t bytes = encoder_state_bytes(rig.encoder);
        uint8_t *saved = memory_zeroed(bytes, 1);
        encoder_save(rig.encoder, saved);
        CHECK_INT(encoder_load(other.encoder, saved, bytes), STATUS_MISMATCH);
        CHECK_INT(encoder_load(twin.encoder, saved, bytes - 1), STATUS_CORRUPT);
        CHECK_INT(encoder_load(twin.encoder, saved, 7), STATUS_CORRUPT);
        saved[bytes - 1] ^= 1;
        CHECK_INT(encoder_load(twin.encoder, saved, bytes), STATUS_CORRUPT);
        saved[bytes - 1] ^= 1;
        CHECK_INT(encoder_load(twin.encoder, saved, bytes), STATUS_OK);
        for (uint64_t step = 3; step < 5; step++) {
            codec_rig_encode(&rig, step, values, 1.0f);
            codec_rig_encode(&twin, step, values, 1.0f);
            CHECK_INT(rig.result.codec, twin.result.codec);
            CHECK_INT(rig.result.bytes, twin.result.bytes);
            CHECK(memcmp(rig.wire, twin.wire, rig.result.bytes) == 0);
        }
        free(saved);
        free(values);
        codec_rig_close(&other);
        codec_rig_close(&twin);
        codec_rig_close(&rig);
    }
}

static void test_levels(void) {
    for (int t = 0; t < CODEC_RIG_TEXTS; t++) {
        struct codec_rig plain =
            codec_rig_open_at(codec_rig_texts[t], ROWS, COLS, &codec_loops_plain);
        for (int level = 1; level < CODEC_LEVEL_COUNT; level++) {
            const struct codec_loops *loops = codec_loops_level((enum codec_level)level);
            if (loops == NULL) continue;
            struct codec_rig rig = codec_rig_open_at(codec_rig_texts[t], ROWS, COLS, loops);
            encoder_close(plain.encoder);
            struct codec_rig fresh =
                codec_rig_open_at(codec_rig_texts[t], ROWS, COLS, &codec_loops_plain);
            plain.encoder = fresh.encoder;
            fresh.encoder = NULL;
            codec_rig_close(&fresh);
            for (uint64_t step = 0; step < 4; step++) {
                float *values = codec_rig_values(step, ROWS, COLS);
                codec_rig_encode(&plain, step, values, 0.7f);
                codec_rig_encode(&rig, step, values, 0.7f);
                CHECK_INT(rig.result.bytes, plain.result.bytes);
                CHECK(memcmp(rig.wire, plain.wire, rig.result.bytes) == 0);
                CHECK(rig.result.square_sum == plain.result.square_sum);
                CHECK(rig.result.gradient_square_sum == plain.result.gradient_square_sum);
                CHECK(rig.result.residual_square_sum == plain.result.residual_square_sum);
                free(values);
            }
            codec_rig_close(&rig);
        }
        codec_rig_close(&plain);
    }
}

/* Several blocks of one encoder, in turns, are as each by itself. */
static void test_blocks_apart(void) {
    const struct encoder_block blocks[] = {{3, ROWS, COLS}, {4, 0, 0}, {5, 1, 77}, {6, 33, 64}};
    const struct encoder_config config = {.spec = codec_rig_spec("powersgd:2,ef,residual=bf16"),
                                          .blocks = blocks,
                                          .block_count = 4,
                                          .seed = 0x1234567890ULL,
                                          .lane = 1};
    struct encoder *encoder = encoder_open(&config);
    void *scratch = memory_zeroed(encoder_scratch_bytes(encoder), 1);
    struct codec_rig rig = codec_rig_open("powersgd:2,ef,residual=bf16", ROWS, COLS);
    for (uint64_t step = 0; step < 4; step++) {
        for (size_t b = 0; b < 4; b++) {
            struct encoder_result result;
            float *values = codec_rig_values(10 * step + b, blocks[b].rows, blocks[b].cols);
            uint8_t *wire = memory_zeroed(encoder_bound(encoder, b) + 1, 1);
            encoder_encode(encoder, b, step, values, 1.0f, wire, scratch, &result);
            if (b == 0) {
                codec_rig_encode(&rig, step, values, 1.0f);
                CHECK_INT(result.bytes, rig.result.bytes);
                CHECK(memcmp(wire, rig.wire, result.bytes) == 0);
            }
            if (b == 1) CHECK_INT(result.bytes, 0);
            free(wire);
            free(values);
        }
    }
    codec_rig_close(&rig);
    free(scratch);
    encoder_close(encoder);
}

/* What another encoded, packed as encoder_encode() does. */
static void check_packed(const char *text, const char *unpacked, const float *values) {
    struct codec_rig whole = codec_rig_open(text, ROWS, COLS);
    struct codec_rig inner = codec_rig_open(unpacked, ROWS, COLS);
    CHECK(inner.capacity <= whole.capacity);
    for (uint64_t step = 0; step < 2; step++) {
        codec_rig_encode(&whole, step, values, 1.0f);
        codec_rig_encode(&inner, step, values, 1.0f);
        uint8_t *wire = memory_zeroed(whole.capacity, 1);
        memcpy(wire, inner.wire, inner.result.bytes);
        encoder_pack(whole.encoder, wire, whole.encode_scratch, &inner.result);
        CHECK_INT(inner.result.codec, whole.result.codec);
        CHECK_INT(inner.result.bytes, whole.result.bytes);
        CHECK(memcmp(wire, whole.wire, whole.result.bytes) == 0);
        encoder_pack(inner.encoder, wire, inner.encode_scratch, &inner.result); // not its codec
        CHECK_INT(inner.result.bytes, whole.result.bytes);
        free(wire);
    }
    codec_rig_close(&inner);
    codec_rig_close(&whole);
}

static void test_packed_apart(void) {
    float *values = codec_rig_values(3, ROWS, COLS);
    check_packed("bf16+zstd", "bf16", values);
    check_packed("topk:0.05,global,ef+zstd", "topk:0.05,global,ef", values);
    check_packed("int8,ef+zstd", "int8,ef", values);
    values[77] = INFINITY;
    check_packed("topk:0.05,global+zstd", "topk:0.05,global", values);
    free(values);
}

int main(void) {
    TEST_RUN(test_identity);
    TEST_RUN(test_residual_values);
    TEST_RUN(test_loco);
    TEST_RUN(test_residual_waits);
    TEST_RUN(test_schedule);
    TEST_RUN(test_save);
    TEST_RUN(test_levels);
    TEST_RUN(test_blocks_apart);
    TEST_RUN(test_packed_apart);
    return 0;
}
