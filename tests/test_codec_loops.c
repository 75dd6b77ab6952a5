/* Proves of the inner loops: every level of vector instructions that this chip has gives the bits
 * of the plain one, for values of all kinds, odd sizes and unaligned addresses; and the plain one
 * gives what scalar code written here from the layouts in compression/scheme.h says: fp16 and
 * bf16 against their definition in double, fp8 against a search for the nearest of all codes,
 * int8's decoding against its layout, the noise against base/random.h,
 * the rotation against Hadamard's matrix.
 */
#include "base/random.h"
#include "compression/codec_loops.h"
#include "compression/top_select.h"
#include "tests/test.h"

#include <float.h>

#define MOST 2304

static const size_t sizes[] = {0,  1,  2,   3,   7,   8,   15,  16,  17,  31,  33,   63,
                               64, 65, 127, 128, 129, 200, 255, 511, 512, 513, 2048, MOST};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

enum kind { KIND_UNIT, KIND_ZERO, KIND_TINY, KIND_HUGE, KIND_BITS, KIND_STEPS, KINDS };

static void fill(struct random_stream *random, enum kind kind, float *values, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float unit = 2.0f * random_unit(random) - 1.0f;
        uint32_t bits = random_u32(random);
        values[i] = unit;
        if (kind == KIND_ZERO) values[i] = bits & 1 ? -0.0f : 0.0f;
        if (kind == KIND_TINY) values[i] = f32_from_bits(bits & 0x80ffffffU);
        if (kind == KIND_HUGE) values[i] = unit * FLT_MAX;
        if (kind == KIND_BITS) values[i] = f32_from_bits(bits);
        if (kind == KIND_STEPS) values[i] = 0.5f * (float)(int)(bits % 31) - 7.0f;
    }
}

static void check_same(const float *actual, const float *expected, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (isnan(expected[i]))
            CHECK(isnan(actual[i]));
        else
            CHECK_INT(f32_bits(actual[i]), f32_bits(expected[i]));
    }
}

static void check_same_sum(double actual, double expected) {
    CHECK(isnan(expected) ? isnan(actual) : actual == expected);
}

struct buffers {
    float a[MOST + 1], residual[MOST + 1], x[MOST + 1], y[MOST + 1];
    uint8_t wire[4 * MOST + 64], other[4 * MOST + 64];
    uint32_t indices[MOST + LOOP_LIST_PAD], others[MOST];
};
static struct buffers at;

static void decode_int8(const uint8_t *wire, size_t n, float *values) {
    for (size_t i = 0; i < n; i++) {
        const uint8_t *block = wire + i / LOOP_BLOCK * (LOOP_BLOCK + 2);
        float scale = f16_to_f32((uint16_t)(block[0] | block[1] << 8));
        values[i] = scale * (float)(int8_t)block[2 + i % LOOP_BLOCK];
    }
}

static void check_decoding(void (*decode)(const uint8_t *, size_t, float *, bool),
                           void (*expected)(const uint8_t *, size_t, float *, bool), size_t n) {
    for (int add = 0; add < 2; add++) {
        memcpy(at.x + 1, at.residual, n * sizeof *at.x);
        memcpy(at.y + 1, at.residual, n * sizeof *at.y);
        decode(at.wire + 1, n, at.x + 1, add != 0);
        expected(at.wire + 1, n, at.y + 1, add != 0);
        check_same(at.x + 1, at.y + 1, n);
    }
}

static void check_sums(const struct codec_loops *loops, size_t n, float scale) {
    const struct codec_loops *plain = &codec_loops_plain;
    uint32_t max = 0, expected_max = 0;
    double sum = loops->load(at.x + 1, at.a + 1, at.residual, n, scale, &max);
    check_same_sum(sum, plain->load(at.y + 1, at.a + 1, at.residual, n, scale, &expected_max));
    check_same(at.x + 1, at.y + 1, n);
    // The bits of a NaN made by adding two may differ.
    CHECK(max == expected_max || (max > F32_INFINITY && expected_max > F32_INFINITY));
    for (int loco = 0; loco < 2; loco++) {
        float beta = loco ? 0.8f : 0.0f;
        memcpy(at.x + 1, at.residual, n * sizeof *at.x);
        memcpy(at.y + 1, at.residual, n * sizeof *at.y);
        sum = loops->settle(at.x + 1, at.a + 1, at.residual + 1, n, beta);
        check_same_sum(sum, plain->settle(at.y + 1, at.a + 1, at.residual + 1, n, beta));
        check_same(at.x + 1, at.y + 1, n);
    }
    check_same_sum(loops->squares(at.a + 1, n), plain->squares(at.a + 1, n));
    check_same_sum((double)loops->dot(at.a + 1, at.residual, n),
                   (double)plain->dot(at.a + 1, at.residual, n));
    loops->axpy(at.x + 1, scale, at.a + 1, n);
    plain->axpy(at.y + 1, scale, at.a + 1, n);
    check_same(at.x + 1, at.y + 1, n);
}

/* Each product rounded by itself. */
static void check_scaled(const struct codec_loops *loops, size_t n, float scale) {
    uint32_t max = 3, expected_max = 3;
    const float factor = 20.0f;
    memset(&at.wire, 0xa5, sizeof at.wire);
    loops->bf16_scaled(at.a + 1, n, scale, factor, at.wire + 1, &max);
    for (size_t i = 0; i < n; i++) {
        float scaled = at.a[1 + i] * scale;
        uint32_t bits = f32_bits(scaled) & F32_MAGNITUDE;
        at.x[i] = bf16_to_f32((uint16_t)(at.wire[1 + 2 * i] | at.wire[2 + 2 * i] << 8));
        at.y[i] = bf16_to_f32(bf16_from_float(factor * scaled));
        if (bits > expected_max) expected_max = bits;
    }
    check_same(at.x, at.y, n);
    CHECK(max == expected_max || (max > F32_INFINITY && expected_max > F32_INFINITY));
    CHECK(at.wire[0] == 0xa5 && at.wire[1 + 2 * n] == 0xa5);
}

static void check_codes(const struct codec_loops *loops, size_t n) {
    const struct codec_loops *plain = &codec_loops_plain;
    double sum = 0, expected = 0;
    memset(&at.wire, 0xa5, sizeof at.wire);
    memset(&at.other, 0xa5, sizeof at.other);
    loops->bf16_encode(at.a + 1, n, at.wire + 1);
    plain->bf16_encode(at.a + 1, n, at.other + 1);
    CHECK(memcmp(at.wire, at.other, sizeof at.wire) == 0);
    check_decoding(loops->bf16_decode, plain->bf16_decode, n);
    loops->fp16_encode(at.a + 1, n, at.wire + 1);
    plain->fp16_encode(at.a + 1, n, at.other + 1);
    CHECK(memcmp(at.wire, at.other, sizeof at.wire) == 0);
    check_decoding(loops->fp16_decode, plain->fp16_decode, n);
    loops->int8_encode(at.a + 1, n, at.wire + 1, &sum);
    plain->int8_encode(at.a + 1, n, at.other + 1, &expected);
    check_same_sum(sum, expected);
    CHECK(memcmp(at.wire, at.other, sizeof at.wire) == 0);
    check_decoding(loops->int8_decode, plain->int8_decode, n);
    decode_int8(at.wire + 1, n, at.y + 1);
    loops->int8_decode(at.wire + 1, n, at.x + 1, false);
    check_same(at.x + 1, at.y + 1, n);
}

/* What blocks that are not finite hold depends on conversions that C leaves open: encoder.c sends
 * CODEC_FILL instead, so here values are finite. */
static void check_blocks(const struct codec_loops *loops, size_t n) {
    const struct codec_loops *plain = &codec_loops_plain;
    const struct loop_noise noise = {{1, 2}, {3, 4, 5}, 6 * 128};
    for (int flags = 0; flags < 8; flags++) {
        for (int add = 0; add < 2; add++) {
            memset(&at.wire, 0xa5, sizeof at.wire);
            memset(&at.other, 0xa5, sizeof at.other);
            memcpy(at.x, at.residual, sizeof at.x);
            memcpy(at.y, at.residual, sizeof at.y);
            double sum = 0, expected = 0;
            loops->int4_encode(at.a + 1, n, at.wire + 1, flags, &noise, &sum);
            plain->int4_encode(at.a + 1, n, at.other + 1, flags, &noise, &expected);
            CHECK(memcmp(at.wire, at.other, sizeof at.wire) == 0);
            loops->int4_decode(at.wire + 1, n, at.x + 1, add != 0, (flags & INT4_HAD) != 0);
            plain->int4_decode(at.wire + 1, n, at.y + 1, add != 0, (flags & INT4_HAD) != 0);
            check_same(at.x, at.y, MOST + 1);
            loops->fp8_encode(at.a + 1, n, at.wire + 1, flags % 2 == 1, &sum);
            plain->fp8_encode(at.a + 1, n, at.other + 1, flags % 2 == 1, &expected);
            check_same_sum(sum, expected);
            CHECK(memcmp(at.wire, at.other, sizeof at.wire) == 0);
            loops->fp8_decode(at.wire + 1, n, at.x + 1, add != 0, flags % 2 == 1);
            plain->fp8_decode(at.wire + 1, n, at.y + 1, add != 0, flags % 2 == 1);
            check_same(at.x, at.y, MOST + 1);
        }
    }
}

static void check_bits(const struct codec_loops *loops, size_t n) {
    const struct codec_loops *plain = &codec_loops_plain;
    size_t block = n < ONEBIT_BLOCK ? n : ONEBIT_BLOCK;
    memset(&at.wire, 0xa5, sizeof at.wire);
    memset(&at.other, 0xa5, sizeof at.other);
    check_same_sum((double)loops->signs_encode(at.a + 1, block, at.wire + 1),
                   (double)plain->signs_encode(at.a + 1, block, at.other + 1));
    CHECK(memcmp(at.wire, at.other, sizeof at.wire) == 0);
    for (size_t i = 0; i < block; i++)
        CHECK_INT(at.wire[1 + i / 8] >> (i % 8) & 1, signbit(at.a[1 + i]) != 0);
    for (int add = 0; add < 2; add++) {
        memcpy(at.x, at.residual, sizeof at.x);
        loops->signs_decode(at.wire + 1, block, 0.75f, at.x + 1, add != 0);
        for (size_t i = 0; i < block; i++) {
            float value = signbit(at.a[1 + i]) ? -0.75f : 0.75f;
            at.y[1 + i] = add ? at.residual[1 + i] + value : value;
        }
        check_same(at.x + 1, at.y + 1, block);
    }
    const uint32_t thresholds[] = {1, 0x3f000000, 0x3f7fffff, F32_INFINITY, INT32_MAX};
    for (int t = 0; t < 5; t++) {
        size_t count = 0;
        for (size_t i = 0; i < n; i++) {
            if ((f32_bits(at.a[1 + i]) & F32_MAGNITUDE) >= thresholds[t])
                at.others[count++] = (uint32_t)i;
        }
        CHECK_INT(loops->count_above(at.a + 1, n, thresholds[t]), count);
        CHECK_INT(loops->list_above(at.a + 1, n, thresholds[t], at.indices), count);
        CHECK(memcmp(at.indices, at.others, count * sizeof *at.others) == 0);
    }
}

static void test_levels(void) {
    struct random_stream random;
    random_open(&random, 3, RANDOM_SIMULATOR, 1);
    for (int level = 0; level < CODEC_LEVEL_COUNT; level++) {
        const struct codec_loops *loops = codec_loops_level((enum codec_level)level);
        if (loops == NULL) continue;
        printf("  %s\n", loops->name);
        for (int kind = 0; kind < KINDS; kind++) {
            for (int s = 0; s < SIZES; s++) {
                fill(&random, (enum kind)kind, at.a, MOST + 1);
                fill(&random, KIND_UNIT, at.residual, MOST + 1);
                check_sums(loops, sizes[s], kind == KIND_HUGE ? 2.0f : 0.3f);
                check_scaled(loops, sizes[s], kind == KIND_HUGE ? 2.0f : 0.3f);
                check_codes(loops, sizes[s]);
                check_bits(loops, sizes[s]);
                if (kind != KIND_BITS) check_blocks(loops, sizes[s]);
            }
        }
    }
}

static double fp16_value(unsigned half) {
    int exponent = half >> 10 & 31, fraction = half & 0x3ff;
    return exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
}

/* Around each fp16, each middle between two, and near them: the nearest, the even one of equals. */
static void test_fp16(void) {
    for (unsigned half = 0; half < 0x7c00; half++) {
        float value = (float)fp16_value(half), back;
        float next = half == 0x7bff ? 65536.0f : (float)fp16_value(half + 1);
        float middle = value + (next - value) / 2;
        const float tried[] = {value, nextafterf(middle, 0), middle, nextafterf(middle, FLT_MAX)};
        const unsigned expected[] = {half, half, half + (half & 1), half + 1};
        for (int i = 0; i < 4; i++) {
            uint8_t wire[2];
            codec_loops_plain.fp16_encode(&tried[i], 1, wire);
            CHECK_INT(wire[0] | wire[1] << 8, expected[i]);
            codec_loops_plain.fp16_decode(wire, 1, &back, false);
            if (expected[i] < 0x7c00) CHECK(back == (float)fp16_value(expected[i]));
        }
    }
}

/* The value of a code by its format's definition (Micikevicius et al., 2022). */
static double fp8_value(unsigned code, bool e5m2) {
    int bits = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
    int exponent = (int)(code & 0x7f) >> bits, fraction = (int)code & ((1 << bits) - 1);
    if (exponent == 0) return ldexp(fraction, 1 - bias - bits);
    return ldexp((1 << bits) + fraction, exponent - bias - bits);
}

static void test_fp8(void) {
    struct random_stream random;
    random_open(&random, 3, RANDOM_SIMULATOR, 2);
    for (int format = 0; format < 2; format++) {
        unsigned last = format ? 0x7b : 0x7e; // the largest finite code
        float values[128] = {0}, most = format ? 57344.0f : 448.0f;
        for (int round = 0; round < 2000; round++) {
            uint8_t wire[130];
            values[0] = most; // the scale is 1
            for (int i = 1; i < 128; i++)
                values[i] =
                    ldexpf(2 * random_unit(&random) - 1, (int)random_below(&random, 26) - 17);
            double squares = 0;
            codec_loops_plain.fp8_encode(values, 128, wire, format == 1, &squares);
            CHECK_INT(wire[0] | wire[1] << 8, 0x3f80);
            for (int i = 0; i < 128; i++) {
                double distance = INFINITY, mine, got = fp8_value(wire[2 + i], format == 1);
                for (unsigned code = 0; code <= last; code++) {
                    mine = fabs(fp8_value(code, format == 1) - fabs((double)values[i]));
                    distance = fmin(distance, mine);
                }
                CHECK(fabs(got - fabs((double)values[i])) == distance);
                CHECK_INT(wire[2 + i] >> 7, signbit(values[i]) != 0);
            }
            float back[128];
            codec_loops_plain.fp8_decode(wire, 128, back, false, format == 1);
            for (int i = 0; i < 128; i++)
                CHECK(fabs((double)back[i]) == fp8_value(wire[2 + i], format == 1));
        }
    }
}

static void test_noise(void) {
    const struct loop_noise noise = {{0xdeadbeef, 4}, {7, 8, 9}, 64 * 11};
    for (int level = 0; level < CODEC_LEVEL_COUNT; level++) {
        const struct codec_loops *loops = codec_loops_level((enum codec_level)level);
        uint32_t numbers[32], expected[4];
        if (loops == NULL) continue;
        loops->noise(&noise, numbers);
        for (uint32_t call = 0; call < 8; call++) {
            const uint32_t counter[4] = {8 * 11 + call, 7, 8, 9};
            random_philox(noise.key, counter, expected);
            for (uint32_t word = 0; word < 4; word++)
                CHECK_INT(numbers[word / 2 * 16 + 2 * call + word % 2], expected[word]);
        }
    }
}

/* A unit vector comes out as a row of Hadamard's matrix: signs by the parity of i & j. */
static void test_rotation(void) {
    const struct loop_noise noise = {{0}, {0}, 0};
    for (size_t i = 0; i < 128; i++) {
        float values[128] = {0}, back[128];
        uint8_t wire[66];
        values[i] = 1.0f;
        double squares = 0;
        codec_loops_plain.int4_encode(values, 128, wire, INT4_HAD, &noise, &squares);
        codec_loops_plain.int4_decode(wire, 128, back, false, false);
        for (size_t j = 0; j < 128; j++) {
            double expected = j / 32 == i / 32 ? 1 / sqrt(32) : 0;
            if (__builtin_parity((unsigned)(i % 32 & j % 32))) expected = -expected;
            CHECK_NEAR(back[j], expected, 0x1p-7);
        }
    }
}

static void test_select(void) {
    struct random_stream random;
    uint32_t keys[MOST];
    random_open(&random, 3, RANDOM_SIMULATOR, 3);
    for (int round = 0; round < 300; round++) {
        size_t n = 1 + random_below(&random, 200), k = 1 + random_below(&random, n);
        uint32_t range = round % 2 ? 5 : 1000000, above = 0, reached = 0;
        for (size_t i = 0; i < n; i++)
            keys[i] = (uint32_t)random_below(&random, range);
        uint32_t found = top_select_key(keys, n, k);
        for (size_t i = 0; i < n; i++) {
            above += keys[i] > found;
            reached += keys[i] >= found;
        }
        CHECK(above < k && reached >= k);
    }
}

int main(void) {
    TEST_RUN(test_levels);
    TEST_RUN(test_fp16);
    TEST_RUN(test_fp8);
    TEST_RUN(test_noise);
    TEST_RUN(test_rotation);
    TEST_RUN(test_select);
    return 0;
}
