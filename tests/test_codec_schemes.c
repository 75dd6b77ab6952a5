/* Proves of every codec, through the encoder and the decoder that training uses: the payload
 * decodes for empty, single and odd sizes; the bound holds; set and add agree; the sum of squares
 * is that of what was decoded; every shortened or lengthened payload is refused and every damaged
 * byte is either refused or decoded, with the sum untouched when refused (buffers are exact, so
 * that the address sanitizer sees one byte too many); errors keep to their closed forms; random
 * rounding has no bias; top-k is that of a sort; rows without gradient stay zero; what is not
 * finite stays so, and randk notices it when it sends it; tiles decode as the whole; sizes on the
 * wire reach the ratios that docs promise.
 */
#include "base/memory.h"
#include "base/random.h"
#include "tests/codec_rig.h"

#include <stdbool.h>

#define FRAME_BYTES 64 /* the header that a push has before its payload, rounded up */

static const size_t shapes[][2] = {{0, 0},  {1, 1},    {1, 2},   {1, 31},   {3, 11},   {1, 64},
                                   {1, 65}, {2, 64},   {1, 129}, {7, 73},   {4, 128},  {27, 19},
                                   {9, 64}, {1, 2047}, {3, 683}, {1, 4095}, {17, 241}, {70, 96}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* Does the codec read what it sends, and nothing else? */
static bool picks(const char *text) {
    const struct codec_spec spec = codec_rig_spec(text);
    return spec.codec == CODEC_RANDK && spec.feedback == FEEDBACK_NONE;
}

/* What randk without feedback takes for the sum of the squares of scale * values. */
static double picked_squares(const struct codec_rig *rig, const float *values, float scale) {
    double squares = 0;
    for (size_t i = 0; i < rig->count; i++)
        squares += rig->decoded[i] == 0 ? 0 : pow((double)(scale * values[i]), 2);
    return squares * scheme_get_u32(rig->wire);
}

static void check_round_trip(const char *text, size_t rows, size_t cols) {
    struct codec_rig rig = codec_rig_open(text, rows, cols);
    float *values = codec_rig_values(rows * 1000 + cols, rows, cols);
    float *sum = memory_zeroed(rig.count + 1, sizeof *sum);
    for (uint64_t step = 0; step < 3; step++) {
        codec_rig_pass(&rig, step, values, 0.5f);
        double squares = codec_rig_squares(rig.decoded, rig.count);
        CHECK_NEAR(rig.result.square_sum, squares, 2e-6 * squares);
        double gradient = 0.25 * codec_rig_squares(values, rig.count), slack = 2e-6;
        if (picks(text)) {
            gradient = picked_squares(&rig, values, 0.5f);
            slack = 0x1p-7; // it is taken from what was rounded to bf16
        }
        CHECK_NEAR(rig.result.gradient_square_sum, gradient, slack * gradient);
        for (size_t i = 0; i < rig.count; i++)
            sum[i] = 0.25f * (float)i;
        CHECK_INT(decoder_add(rig.result.codec, rig.wire, rig.result.bytes, sum, rig.count,
                              rig.decode_scratch),
                  STATUS_OK);
        for (size_t i = 0; i < rig.count; i++)
            CHECK(sum[i] == 0.25f * (float)i + rig.decoded[i]);
    }
    free(sum);
    free(values);
    codec_rig_close(&rig);
}

static void test_round_trip(void) {
    for (int t = 0; t < CODEC_RIG_TEXTS; t++) {
        for (int s = 0; s < SHAPES; s++)
            check_round_trip(codec_rig_texts[t], shapes[s][0], shapes[s][1]);
    }
}

/* Decodes a copy of exactly these bytes; the sum must change only with OK. */
static enum status decode_exactly(const struct codec_rig *rig, const uint8_t *wire, size_t bytes) {
    uint8_t *copy = malloc(bytes + 1);
    float *sum = malloc((rig->count + 1) * sizeof *sum);
    CHECK(copy != NULL && sum != NULL);
    memcpy(copy + 1, wire, bytes);
    for (size_t i = 0; i < rig->count; i++)
        sum[i] = 1.5f;
    enum status status =
        decoder_add(rig->result.codec, copy + 1, bytes, sum, rig->count, rig->decode_scratch);
    for (size_t i = 0; i < rig->count && status != STATUS_OK; i++)
        CHECK(sum[i] == 1.5f);
    CHECK(status == STATUS_OK || status == STATUS_CORRUPT);
    free(sum);
    free(copy);
    return status;
}

static void check_damage(const char *text, size_t rows, size_t cols) {
    struct codec_rig rig = codec_rig_open(text, rows, cols);
    float *values = codec_rig_values(5, rows, cols);
    memset(values + cols, 0, cols * sizeof *values); // a row for the masks
    codec_rig_encode(&rig, 4, values, 1.0f);
    size_t bytes = rig.result.bytes;
    uint8_t *wire = malloc(bytes + 8);
    CHECK(wire != NULL);
    memcpy(wire, rig.wire, bytes);
    memset(wire + bytes, 0, 8);
    CHECK_INT(decode_exactly(&rig, wire, bytes), STATUS_OK);
    CHECK_INT(decode_exactly(&rig, wire, bytes + 1), STATUS_CORRUPT);
    CHECK_INT(decode_exactly(&rig, wire, bytes + 8), STATUS_CORRUPT);
    for (size_t length = 0; length < bytes; length++)
        CHECK_INT(decode_exactly(&rig, wire, length), STATUS_CORRUPT);
    for (size_t i = 0; i < bytes; i++) {
        static const uint8_t flips[] = {0x01, 0x80, 0xff};
        for (size_t f = 0; f < sizeof flips; f++) {
            wire[i] ^= flips[f];
            (void)decode_exactly(&rig, wire, bytes);
            wire[i] ^= flips[f];
        }
    }
    free(wire);
    free(values);
    codec_rig_close(&rig);
}

static void test_damage(void) {
    for (int t = 0; t < CODEC_RIG_TEXTS; t++)
        check_damage(codec_rig_texts[t], 6, 53);
}

static void test_unknown_codec(void) {
    struct codec_rig rig = codec_rig_open("bf16", 1, 3);
    float sum[3] = {1, 2, 3};
    const uint8_t wire[16] = {0};
    for (unsigned codec = CODEC_ZSTD + 1; codec < 256; codec++)
        CHECK_INT(decoder_add((uint8_t)codec, wire, 6, sum, 3, rig.decode_scratch), STATUS_CORRUPT);
    CHECK(sum[0] == 1 && sum[1] == 2 && sum[2] == 3);
    codec_rig_close(&rig);
}

static float block_max(const float *values, size_t n) {
    float max = 0;
    for (size_t i = 0; i < n; i++)
        max = fmaxf(max, fabsf(values[i]));
    return max;
}

/* |a - D| of every value, where it has a bound of its own: `of_value` times |a| plus `of_max` times
 * the largest |a| of its block, plus `floor`. */
struct error_form {
    const char *text;
    double of_value, of_max, floor;
};

static void test_closed_form(void) {
    const double up = 1 + 0x1p-7; // rounding of a scale to 8 bits, and f32's of a / scale
    const struct error_form forms[] = {
        {"none", 0, 0, 0},
        {"bf16", 0x1p-8, 0, 0},
        {"fp16", 0x1p-11, 0, 0x1p-25},
        {"int8", 0, (1 + 0x1p-4) / 254, 0x1p-25}, // f16 scales are coarse where they are subnormal
        {"int4", 0, up / 14, 0},
        {"int4:sr", 0, up / 7, 0},
        {"fp8", 0x1p-4, up * 0x1p-10 / 448, 0},
        {"fp8:e5m2", 0x1p-3, up * 0x1p-17 / 57344, 0},
        {"natural", 1, 0, 0},
        {"topk:1,global", 0x1p-8, 0, 0},
        {"randk:1", 0x1p-8, 0, 0},
    };
    const size_t rows = 20, cols = 193, count = rows * cols;
    float *values = codec_rig_values(11, rows, cols);
    for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
        struct codec_rig rig = codec_rig_open(forms[f].text, rows, cols);
        codec_rig_pass(&rig, 9, values, 1.0f);
        for (size_t i = 0; i < count; i++) {
            size_t start = i / LOOP_BLOCK * LOOP_BLOCK;
            size_t n = count - start < LOOP_BLOCK ? count - start : LOOP_BLOCK;
            double bound = forms[f].of_value * (double)fabsf(values[i]) +
                           forms[f].of_max * (double)block_max(values + start, n) + forms[f].floor;
            CHECK_NEAR(rig.decoded[i], values[i], bound);
        }
        codec_rig_close(&rig);
    }
    free(values);
}

/* A rotation keeps the error's norm: at most s / 2, or s, for each value. */
static void test_rotated_error(void) {
    const char *const texts[] = {"int4:had", "int4:sr,had"};
    const size_t count = 4096;
    float *values = codec_rig_values(12, 1, count);
    for (int t = 0; t < 2; t++) {
        struct codec_rig rig = codec_rig_open(texts[t], 1, count);
        codec_rig_pass(&rig, 9, values, 1.0f);
        for (size_t start = 0; start < count; start += LOOP_BLOCK) {
            double error = 0, most = sqrt(32.0) * (double)block_max(values + start, LOOP_BLOCK);
            for (size_t i = start; i < start + LOOP_BLOCK; i++)
                error += pow((double)rig.decoded[i] - (double)values[i], 2);
            double scale = most / 7 * (1 + 0x1p-6);
            CHECK(sqrt(error) <= scale * sqrt((double)LOOP_BLOCK) * (t == 0 ? 0.5 : 1.0));
        }
        codec_rig_close(&rig);
    }
    // A lone value: its group of 32 holds it in equal parts, and the rest of the block is zero.
    struct codec_rig rig = codec_rig_open("int4:had", 1, 128);
    memset(values, 0, 128 * sizeof *values);
    values[40] = 3.0f;
    codec_rig_pass(&rig, 0, values, 1.0f);
    for (size_t i = 0; i < 128; i++)
        CHECK_NEAR(rig.decoded[i], values[i], 3 * 0x1p-7);
    codec_rig_close(&rig);
    free(values);
}

/* The mean over many steps comes near the value: within 6 standard errors of the widest noise. */
static void test_no_bias(void) {
    const char *const texts[] = {"int4:sr", "int4:sr,had", "qsgd", "natural", "randk:0.25"};
    enum { STEPS = 4000, COUNT = 200 };
    float *values = codec_rig_values(13, 1, COUNT);
    for (int t = 0; t < 5; t++) {
        struct codec_rig rig = codec_rig_open(texts[t], 1, COUNT);
        double mean[COUNT] = {0}, squares[COUNT] = {0};
        for (uint64_t step = 0; step < STEPS; step++) {
            codec_rig_pass(&rig, step, values, 1.0f);
            for (int i = 0; i < COUNT; i++) {
                mean[i] += (double)rig.decoded[i] / STEPS;
                squares[i] += pow((double)rig.decoded[i], 2) / STEPS;
            }
        }
        for (int i = 0; i < COUNT; i++) {
            double deviation = sqrt(fmax(squares[i] - mean[i] * mean[i], 0));
            // 2^-16: random numbers have 16 bits; 2^-8: randk rounds to bf16.
            double slack = fabs((double)values[i]) * (t == 4 ? 0x1p-8 : 0x1p-14) + 1e-7;
            CHECK_NEAR(mean[i], values[i], 6 * deviation / sqrt(STEPS) + slack);
        }
        codec_rig_close(&rig);
    }
    free(values);
}

static void test_onebit(void) {
    const size_t count = 1300;
    float *values = codec_rig_values(14, 1, count);
    struct codec_rig rig = codec_rig_open("onebit", 1, count);
    codec_rig_pass(&rig, 0, values, 1.0f);
    for (size_t start = 0; start < count; start += ONEBIT_BLOCK) {
        size_t n = count - start < ONEBIT_BLOCK ? count - start : ONEBIT_BLOCK;
        double mean = 0;
        for (size_t i = start; i < start + n; i++)
            mean += fabs((double)values[i]) / (double)n;
        for (size_t i = start; i < start + n; i++)
            CHECK_NEAR(rig.decoded[i], signbit(values[i]) ? -mean : mean, mean * 0x1p-8);
    }
    codec_rig_close(&rig);
    free(values);
}

/* The k-th largest by a sort of its own. */
static bool is_among_top(const float *values, size_t n, size_t k, size_t index) {
    size_t before = 0;
    for (size_t i = 0; i < n; i++) {
        float other = fabsf(values[i]), mine = fabsf(values[index]);
        before += other > mine || (other == mine && i < index);
    }
    return before < k;
}

static void check_topk(const char *text, const float *values, size_t count, size_t chunk,
                       double density) {
    struct codec_rig rig = codec_rig_open(text, 1, count);
    codec_rig_pass(&rig, 0, values, 1.0f);
    for (size_t start = 0; start < count; start += chunk) {
        size_t n = count - start < chunk ? count - start : chunk;
        size_t k = (size_t)lrint(density * (double)chunk);
        k = (k * n + chunk - 1) / chunk;
        for (size_t i = 0; i < n; i++) {
            float value = values[start + i];
            if (!is_among_top(values + start, n, k, i))
                CHECK(rig.decoded[start + i] == 0.0f);
            else
                CHECK_NEAR(rig.decoded[start + i], value, fabsf(value) * 0x1p-8f);
        }
    }
    codec_rig_close(&rig);
}

static void test_topk(void) {
    const size_t count = 6000;
    float *values = codec_rig_values(15, 1, count);
    for (int kind = 0; kind < 3; kind++) {
        for (size_t i = 0; i < count && kind > 0; i++)
            values[i] = kind == 1 ? (float)(i % 5) - 2.0f : 0.0f; // ties, and nothing at all
        check_topk("topk:0.01", values, count, 4096, 0.01);
        check_topk("topk:0.25", values, count, 4096, 0.25);
        check_topk("topk:0.01+zstd", values, count, count, 0.01);
        check_topk("topk:0.02,global", values, count, count, 0.02);
    }
    free(values);
}

/* Each value is sent once in `period` steps, and both workers of a job send the same places. */
static void test_randk_rolls(void) {
    enum { COUNT = 5000, PERIOD = 20 };
    float *values = codec_rig_values(16, 1, COUNT);
    int sent[COUNT] = {0};
    for (size_t i = 0; i < COUNT; i++)
        values[i] = 1.0f;
    struct codec_rig rig = codec_rig_open("randk:0.05,ef", 1, COUNT);
    struct codec_rig plain = codec_rig_open("randk:0.05", 1, COUNT);
    for (uint64_t step = 0; step < PERIOD; step++) {
        codec_rig_pass(&rig, step, values, step == 0 ? 1.0f : 0.0f);
        codec_rig_pass(&plain, step, values, 1.0f);
        for (size_t i = 0; i < COUNT; i++) {
            sent[i] += rig.decoded[i] != 0.0f;
            CHECK(plain.decoded[i] == 0.0f || plain.decoded[i] == (float)PERIOD);
        }
    }
    for (size_t i = 0; i < COUNT; i++)
        CHECK_INT(sent[i], 1);
    codec_rig_close(&plain);
    codec_rig_close(&rig);
    free(values);
}

/* Without feedback what is not finite is noticed where it is sent, which each place is once in
 * `period` steps; elsewhere it changes nothing. Infinite only once it is multiplied by the period,
 * it travels as it is. */
static void test_randk_specials(void) {
    enum { ROWS = 3, COLS = 231, COUNT = ROWS * COLS, PERIOD = 5 };
    const float specials[] = {NAN, INFINITY, -INFINITY, 2.5e38f, 1e38f};
    float *values = codec_rig_values(16, ROWS, COLS);
    int flagged[COUNT] = {0};
    struct codec_rig clean = codec_rig_open("randk:0.2", ROWS, COLS);
    struct codec_rig rig = codec_rig_open("randk:0.2", ROWS, COLS);
    for (uint64_t step = 0; step < PERIOD; step++) {
        codec_rig_pass(&clean, step, values, 2.0f);
        CHECK_INT(clean.result.codec, CODEC_RANDK);
        for (size_t i = 0; i < COUNT; i++) {
            float kept = values[i], special = specials[i % 5];
            bool sent = clean.decoded[i] != 0.0f, overflows = special == 1e38f;
            values[i] = special;
            codec_rig_pass(&rig, step, values, 2.0f);
            values[i] = kept;
            flagged[i] += rig.result.codec == CODEC_FILL || isinf(rig.decoded[i]);
            CHECK_INT(rig.result.codec, sent && !overflows ? CODEC_FILL : CODEC_RANDK);
            CHECK(isfinite(rig.result.square_sum) == !sent);
            CHECK(sent || memcmp(rig.wire, clean.wire, clean.result.bytes) == 0);
        }
    }
    for (size_t i = 0; i < COUNT; i++)
        CHECK_INT(flagged[i], 1);
    codec_rig_close(&rig);
    codec_rig_close(&clean);
    free(values);
}

/* A matrix of rank 2 comes back from a warm powersgd:2, but for its factors' rounding to bf16. */
static void test_powersgd(void) {
    enum { ROWS = 40, COLS = 150 };
    float *left = codec_rig_values(17, 2, ROWS), *right = codec_rig_values(18, 2, COLS);
    float *values = memory_zeroed((size_t)ROWS * COLS, sizeof *values);
    double error = 0;
    for (size_t i = 0; i < (size_t)ROWS * COLS; i++)
        values[i] = 1e3f * (left[i / COLS] * right[i % COLS] +
                            left[ROWS + i / COLS] * right[COLS + i % COLS]);
    struct codec_rig rig = codec_rig_open("powersgd:2", ROWS, COLS);
    for (uint64_t step = 0; step < 4; step++)
        codec_rig_pass(&rig, step, values, 1.0f);
    CHECK_INT(rig.result.codec, CODEC_POWERSGD);
    CHECK_INT(rig.result.bytes, 8 + 2 * 2 * (ROWS + COLS));
    for (size_t i = 0; i < (size_t)ROWS * COLS; i++)
        error += pow((double)values[i] - (double)rig.decoded[i], 2);
    CHECK(sqrt(error / codec_rig_squares(values, (size_t)ROWS * COLS)) < 0x1p-7);
    codec_rig_close(&rig);
    rig = codec_rig_open("powersgd:4", 1, COLS); // nothing to gain
    codec_rig_pass(&rig, 0, values, 1.0f);
    CHECK_INT(rig.result.codec, CODEC_BF16);
    codec_rig_close(&rig);
    free(values);
    free(right);
    free(left);
}

/* With and without residuals of earlier steps; 37 and 64 columns: groups of 32 straddle rows or
 * not.
 */
static void test_zero_rows(void) {
    const size_t rows = 21;
    for (int t = 0; t < CODEC_RIG_TEXTS; t++) {
        for (size_t cols = 37; cols <= 64; cols += 27) {
            struct codec_rig rig = codec_rig_open(codec_rig_texts[t], rows, cols);
            float *values = codec_rig_values(19, rows, cols);
            codec_rig_pass(&rig, 0, values, 1.0f);
            for (size_t row = 0; row < rows; row += 3)
                memset(values + row * cols, 0, cols * sizeof *values);
            codec_rig_pass(&rig, 1, values, 1.0f);
            for (size_t i = 0; i < rig.count; i++)
                CHECK(i / cols % 3 != 0 || rig.decoded[i] == 0.0f);
            free(values);
            codec_rig_close(&rig);
        }
    }
}

/* One NaN or infinity anywhere: the payload decodes to something that is not finite, and the next
 * step is sound again. What randk does not read is not noticed: test_randk_specials. */
static void test_specials(void) {
    const size_t rows = 9, cols = 500;
    const float specials[] = {NAN, INFINITY, -INFINITY};
    for (int t = 0; t < CODEC_RIG_TEXTS; t++) {
        if (picks(codec_rig_texts[t])) continue;
        struct codec_rig rig = codec_rig_open(codec_rig_texts[t], rows, cols);
        float *values = codec_rig_values(20, rows, cols);
        for (uint64_t i = 0; i < 3; i++) {
            size_t at = (size_t)(i * 1999 + 17), bad = 0;
            float kept = values[at];
            values[at] = specials[i];
            codec_rig_pass(&rig, 2 * i, values, 1.0f);
            for (size_t j = 0; j < rig.count; j++)
                bad += isfinite(rig.decoded[j]) ? 0 : 1;
            CHECK(bad > 0);
            values[at] = kept;
            codec_rig_pass(&rig, 2 * i + 1, values, 1.0f);
            for (size_t j = 0; j < rig.count; j++)
                CHECK(isfinite(rig.decoded[j]));
            CHECK(isfinite(rig.result.square_sum) && isfinite(rig.result.residual_square_sum));
        }
        free(values);
        codec_rig_close(&rig);
    }
}

/* Gradients whose large values sit together, as those of real models do: some rows are far above
 * the rest. */
static float *clustered(size_t rows, size_t cols) {
    struct random_stream random;
    float *values = codec_rig_values(21, rows, cols);
    random_open(&random, 8, RANDOM_SIMULATOR, 0);
    for (size_t row = 0; row < rows; row++) {
        float scale = expf(2 * random_normal(&random));
        for (size_t col = 0; col < cols; col++)
            values[row * cols + col] *= scale;
    }
    return values;
}

static void test_ratios(void) {
    const struct {
        const char *text;
        double least;
        bool clustered;
    } goals[] = {
        {"int8", 3.9, false},          {"int4", 7.6, false},      {"int4:sr,had", 7.6, false},
        {"fp8", 3.9, false},           {"onebit,ef", 30, false},  {"topk:0.01,ef", 110, false},
        {"randk:0.01,ef", 190, false}, {"bf16+zstd", 2.8, false}, {"topk:0.01,ef+zstd", 200, true}};
    const size_t rows = 512, cols = 512;
    for (size_t g = 0; g < sizeof goals / sizeof goals[0]; g++) {
        float *values =
            goals[g].clustered ? clustered(rows, cols) : codec_rig_values(22, rows, cols);
        struct codec_rig rig = codec_rig_open(goals[g].text, rows, cols);
        codec_rig_pass(&rig, 0, values, 1.0f);
        double ratio = 4.0 * (double)rig.count / (double)(rig.result.bytes + FRAME_BYTES);
        printf("  %s: %.4g times fewer bytes than f32\n", goals[g].text, ratio);
        CHECK(ratio >= goals[g].least);
        codec_rig_close(&rig);
        free(values);
    }
}

static void test_texts(void) {
    static const char *const bad[] = {
        "",          "int9",       "int4:rs",      "topk:",    "topk:0",     "topk:1.5",
        "topk:0.1x", "powersgd:0", "powersgd:65",  "bf16:ef2", "bf16,ef=lo", "bf16+zip",
        "int4,,ef",  "randk:nan",  "bf16+zstd,ef", "fp8:e3m4"};
    char why[256], printed[CODEC_TEXT_MAX], again[CODEC_TEXT_MAX];
    struct codec_spec spec;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        why[0] = '\0';
        CHECK(!codec_parse(bad[i], &spec, why, sizeof why));
        CHECK(why[0] != '\0');
    }
    for (int t = 0; t < CODEC_RIG_TEXTS; t++) {
        spec = codec_rig_spec(codec_rig_texts[t]);
        codec_print(&spec, printed);
        spec = codec_rig_spec(printed);
        codec_print(&spec, again);
        CHECK_TEXT(again, printed);
    }
    spec = codec_rig_spec("topk:0.01,global,ef=loco,residual=int8+zstd");
    CHECK(spec.codec == CODEC_TOPK_GLOBAL && spec.zstd);
    CHECK(spec.feedback == FEEDBACK_LOCO && spec.residual == RESIDUAL_INT8);
    codec_print(&spec, printed);
    CHECK_TEXT(printed, "topk:0.00999999978,global,ef=loco+zstd");
}

/* Tile by tile, of every size that a decoder allows, as all at once; added, too. */
static void check_tiles(const struct codec_rig *rig, bool add) {
    float *whole = memory_zeroed(rig->count + 1, sizeof *whole);
    float *tiled = memory_zeroed(rig->count + 1, sizeof *tiled);
    struct decoder decoder;
    for (size_t i = 0; i < rig->count; i++) {
        whole[i] = tiled[i] = 0.25F * (float)(i % 7);
    }
    enum status (*decode)(uint8_t, const uint8_t *, size_t, float *, size_t, void *) =
        add ? decoder_add : decoder_set;
    CHECK_INT(decode(rig->result.codec, rig->wire, rig->result.bytes, whole, rig->count,
                     rig->decode_scratch),
              STATUS_OK);
    CHECK_INT(decoder_open(&decoder, rig->result.codec, rig->wire, rig->result.bytes, rig->count,
                           rig->decode_scratch),
              STATUS_OK);
    size_t tile = decoder_tile(&decoder) > 0 ? decoder_tile(&decoder) : rig->count;
    for (size_t at = 0, turn = 1, n; at < rig->count; at += n, turn++) {
        n = turn * tile < rig->count - at ? turn * tile : rig->count - at;
        decoder_next(&decoder, tiled + at, n, add);
    }
    CHECK(memcmp(whole, tiled, rig->count * sizeof *whole) == 0);
    free(whole);
    free(tiled);
}

static void test_tiles(void) {
    static const size_t sizes[][2] = {{1, 1}, {3, 700}, {40, 512}, {5, 4099}};
    for (int t = 0; t < CODEC_RIG_TEXTS; t++) {
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            float *values = codec_rig_values(3, sizes[s][0], sizes[s][1]);
            struct codec_rig rig = codec_rig_open(codec_rig_texts[t], sizes[s][0], sizes[s][1]);
            codec_rig_pass(&rig, 1, values, 1.0F);
            check_tiles(&rig, false);
            check_tiles(&rig, true);
            codec_rig_close(&rig);
            free(values);
        }
    }
}

int main(void) {
    TEST_RUN(test_texts);
    TEST_RUN(test_round_trip);
    TEST_RUN(test_tiles);
    TEST_RUN(test_damage);
    TEST_RUN(test_unknown_codec);
    TEST_RUN(test_closed_form);
    TEST_RUN(test_rotated_error);
    TEST_RUN(test_no_bias);
    TEST_RUN(test_onebit);
    TEST_RUN(test_topk);
    TEST_RUN(test_randk_rolls);
    TEST_RUN(test_randk_specials);
    TEST_RUN(test_powersgd);
    TEST_RUN(test_zero_rows);
    TEST_RUN(test_specials);
    TEST_RUN(test_ratios);
    return 0;
}
