/* Proves of the codecs none, bf16 and int8, which the others build on: the wire's bytes (worked out
 * by hand from compression/scheme.h), exactness of "none", rounding of "bf16" against its
 * definition in double, the closed-form error |a - D| <= s / 2 of "int8" with the scale against a
 * search over all f16 numbers, and that what is not finite stays so; on values of all kinds, with
 * sizes around the block and vector lengths. What holds for every codec is test_codec_schemes.c's,
 * that all levels of vector instructions give the same bits test_codec_loops.c's.
 */
#include "base/random.h"
#include "tests/codec_rig.h"

#include <float.h>
#include <stdbool.h>

#define MOST 5000

static const size_t sizes[] = {0,  1,   2,   7,   8,   9,   15,  16,  17,   31,
                               33, 127, 128, 129, 143, 255, 256, 257, 1000, MOST};
#define SIZE_COUNT (sizeof sizes / sizeof sizes[0])

enum kind {
    KIND_UNIT,      /* in (-1, 1) */
    KIND_ZERO,      /* and -0 */
    KIND_SUBNORMAL, /* f32 subnormals */
    KIND_TINY,      /* around the smallest f16 scale */
    KIND_HUGE,      /* up to the largest f32 */
    KIND_BITS,      /* any bits at all */
    KIND_TIES,      /* halves, with 127 in each block: scale 1 */
    KIND_ONE_NAN,
    KIND_ONE_INFINITY,
    KIND_COUNT
};

static float make_value(struct random_stream *random, enum kind kind, size_t i) {
    float unit = 2.0f * random_unit(random) - 1.0f;
    uint32_t bits = random_u32(random);
    if (kind == KIND_ZERO) return bits & 1 ? -0.0f : 0.0f;
    if (kind == KIND_SUBNORMAL) return f32_from_bits(bits & 0x807fffffU);
    if (kind == KIND_TINY) return unit * 0x1p-16f;
    if (kind == KIND_HUGE) return unit * FLT_MAX;
    if (kind == KIND_BITS) return f32_from_bits(bits);
    if (kind == KIND_TIES)
        return i % LOOP_BLOCK == 0 ? 127.0f : 0.5f * (float)(int)(bits % 509) - 127.0f;
    return unit;
}

static void make_values(struct random_stream *random, enum kind kind, float *values, size_t count) {
    for (size_t i = 0; i < count; i++)
        values[i] = make_value(random, kind, i);
    if (count == 0) return;
    if (kind == KIND_ONE_NAN) values[random_below(random, count)] = f32_from_bits(0xff800001U);
    if (kind == KIND_ONE_INFINITY) values[random_below(random, count)] = -INFINITY;
}

/* The value of an f16 by its definition (IEEE 754, binary16). */
static double f16_value(uint16_t half) {
    int exponent = half >> 10 & 31, fraction = half & 0x3ff;
    double magnitude = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    return half & 0x8000 ? -magnitude : magnitude;
}

static void test_f16(void) {
    for (uint32_t half = 0; half <= 0xffff; half++) {
        float value = f16_to_f32((uint16_t)half);
        if ((half & 0x7fff) > 0x7c00) {
            CHECK(isnan(value) && f32_bits(value) & 0x400000); // quiet
        } else if ((half & 0x7fff) == 0x7c00) {
            CHECK(isinf(value));
        } else {
            CHECK(value == (float)f16_value((uint16_t)half));
        }
        CHECK_INT(signbit(value) != 0, half >> 15);
    }
}

/* The smallest f16 that is not below the quotient, and not 0 for a value that is not. */
static void check_scale(float max) {
    double quotient = (double)(max / 127.0f);
    uint16_t half = int8_scale(f32_bits(max));
    if (quotient > 65504.0) {
        CHECK_INT(half, F16_INFINITY);
        return;
    }
    CHECK(half < F16_INFINITY);
    CHECK(f16_value(half) >= quotient);
    if (max == 0.0f)
        CHECK_INT(half, 0);
    else if (half > 1)
        CHECK(f16_value((uint16_t)(half - 1)) < quotient);
    else
        CHECK_INT(half, 1);
}

static void test_scale(void) {
    struct random_stream random;
    random_open(&random, 1, RANDOM_CODEC, 1);
    check_scale(0.0f);
    check_scale(0x1p-149f);
    check_scale(FLT_MAX);
    check_scale(65504.0f * 127.0f);
    check_scale(nextafterf(65504.0f * 127.0f, FLT_MAX));
    for (uint32_t half = 1; half < F16_INFINITY; half++) {
        float exact = 127.0f * (float)f16_value((uint16_t)half);
        check_scale(nextafterf(exact, 0.0f));
        check_scale(exact);
        check_scale(nextafterf(exact, FLT_MAX));
    }
    for (int i = 0; i < 200000; i++)
        check_scale(f32_from_bits(random_u32(&random) % F32_INFINITY));
    CHECK_INT(int8_scale(F32_INFINITY), F16_INFINITY);
    CHECK_INT(int8_scale(0x7fc00000U), F16_INFINITY);
}

static void check_golden(const char *name, const float *values, size_t count,
                         const uint8_t *expected, size_t expected_bytes) {
    struct codec_rig rig = codec_rig_open(name, 1, count);
    codec_rig_encode(&rig, 0, values, 1.0f);
    CHECK_INT(rig.result.bytes, expected_bytes);
    for (size_t i = 0; i < expected_bytes; i++)
        CHECK_INT(rig.wire[i], expected[i]);
    codec_rig_close(&rig);
}

static void test_golden(void) {
    const float plain[] = {1.0f, -2.5f};
    const uint8_t plain_wire[] = {0, 0, 0x80, 0x3f, 0, 0, 0x20, 0xc0};
    check_golden("none", plain, 2, plain_wire, sizeof plain_wire);

    // One; a tie down to even; a tie up to even; a signaling NaN; minus infinity; the largest f32.
    const uint32_t bits[] = {0x3f800000, 0x3f808000, 0x3f818000,
                             0x7f800001, 0xff800000, 0x7f7fffff};
    const uint8_t bf16_wire[] = {0x80, 0x3f, 0x80, 0x3f, 0x82, 0x3f,
                                 0xc0, 0x7f, 0x80, 0xff, 0x80, 0x7f};
    float bf16[6];
    memcpy(bf16, bits, sizeof bf16);
    check_golden("bf16", bf16, 6, bf16_wire, sizeof bf16_wire);

    // Scale 1 (f16 0x3c00); ties go to even.
    const float int8[] = {127.0f, -127.0f, 63.5f, 1.5f, 2.5f, -0.4f};
    const uint8_t int8_wire[] = {0x00, 0x3c, 127, 0x81, 64, 2, 2, 0};
    check_golden("int8", int8, 6, int8_wire, sizeof int8_wire);

    const float zero[] = {0.0f, -0.0f}, bad[] = {1.0f, NAN},
                tiny[] = {0x1p-24f, 0x1p-25f, -0x1p-149f};
    const uint8_t zero_wire[] = {0, 0, 0, 0}, bad_wire[] = {0x00, 0x7c, 1, 1};
    const uint8_t tiny_wire[] = {0x01, 0x00, 1, 0, 0};
    check_golden("int8", zero, 2, zero_wire, sizeof zero_wire);
    check_golden("int8", bad, 2, bad_wire, sizeof bad_wire);
    check_golden("int8", tiny, 3, tiny_wire, sizeof tiny_wire);
}

static void check_none(const float *values, const float *decoded, size_t count) {
    if (count > 0) CHECK_INT(memcmp(values, decoded, count * sizeof *values), 0);
}

static void check_bf16(const float *values, const float *decoded, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(values[i]) || !isfinite(decoded[i])) {
            CHECK_INT(isnan(decoded[i]) != 0, isnan(values[i]) != 0);
            // Only what is above the largest bf16 and half a step becomes an infinity.
            if (isfinite(values[i])) CHECK(fabsf(values[i]) >= 0x1.ffp127f);
            continue;
        }
        // Half a unit in the last of 8 bits; below the normal numbers the unit is 2^-133.
        int exponent = 0;
        (void)frexp((double)values[i], &exponent);
        double unit = ldexp(1.0, exponent - 8 > -133 ? exponent - 8 : -133);
        CHECK_NEAR(decoded[i], values[i], 0.5 * unit);
        CHECK_INT(f32_bits(decoded[i]) & 0xffff, 0);
    }
}

static void check_int8(const float *values, const float *decoded, size_t count) {
    for (size_t from = 0; from < count; from += LOOP_BLOCK) {
        size_t until = from + LOOP_BLOCK < count ? from + LOOP_BLOCK : count;
        float max = 0.0f;
        bool finite = true;
        for (size_t i = from; i < until; i++) {
            finite = finite && isfinite(values[i]);
            max = fmaxf(max, fabsf(values[i]));
        }
        finite = finite && max / 127.0f <= 65504.0f;
        double scale = finite ? f16_value(int8_scale(f32_bits(max))) : 0.0;
        for (size_t i = from; i < until; i++) {
            CHECK_INT(isfinite(decoded[i]) != 0, finite);
            // No tolerance beyond the closed form: the difference is exact in double.
            if (finite) CHECK(fabs((double)values[i] - (double)decoded[i]) <= scale / 2);
        }
    }
}

static void check_values(enum codec_id id, const float *values, const float *decoded,
                         size_t count) {
    if (id == CODEC_F32) check_none(values, decoded, count);
    if (id == CODEC_BF16) check_bf16(values, decoded, count);
    if (id == CODEC_INT8) check_int8(values, decoded, count);
}

static void test_round_trip(void) {
    static const struct {
        const char *name;
        enum codec_id id;
    } codecs[] = {{"none", CODEC_F32}, {"bf16", CODEC_BF16}, {"int8", CODEC_INT8}};
    static float values[MOST];
    struct random_stream random;
    random_open(&random, 2, RANDOM_CODEC, 2);
    for (size_t c = 0; c < sizeof codecs / sizeof codecs[0]; c++) {
        for (size_t s = 0; s < SIZE_COUNT; s++) {
            struct codec_rig rig = codec_rig_open(codecs[c].name, 1, sizes[s]);
            for (int kind = 0; kind < KIND_COUNT; kind++) {
                make_values(&random, (enum kind)kind, values, sizes[s]);
                codec_rig_pass(&rig, 0, values, 1.0f);
                check_values(codecs[c].id, values, rig.decoded, sizes[s]);
            }
            codec_rig_close(&rig);
        }
    }
}

int main(void) {
    TEST_RUN(test_f16);
    TEST_RUN(test_scale);
    TEST_RUN(test_golden);
    TEST_RUN(test_round_trip);
    return 0;
}
