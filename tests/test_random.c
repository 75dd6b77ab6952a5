/* Philox against the known answers that its authors publish (Random123, kat_vectors), and what is
 * built on it against its own definition: streams that are pure functions of (seed, purpose, lane),
 * uniform and normal numbers with the moments that theory gives, random_below() without bias.
 * All seeds are fixed, so a bound that holds once holds always.
 */
#include "base/random.h"
#include "tests/test.h"

static void test_known_answers(void) {
    static const struct {
        uint32_t counter[4], key[2], expected[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t out[4];
        random_philox(cases[i].key, cases[i].counter, out);
        for (int j = 0; j < 4; j++)
            CHECK_INT(out[j], cases[i].expected[j]);
    }
}

/* Other code, e.g. for a device, computes a stream from its key and counter: that is a promise. */
static void test_stream_layout(void) {
    const uint64_t seed = 0x1122334455667788, lane = 0x99aabbccddeeff00;
    const uint32_t key[2] = {0x55667788, RANDOM_CODEC};
    struct random_stream stream;
    random_open(&stream, seed, RANDOM_CODEC, lane);
    for (uint32_t block = 0; block < 5; block++) {
        const uint32_t counter[4] = {block, 0x11223344, 0xddeeff00, 0x99aabbcc};
        uint32_t out[4];
        random_philox(key, counter, out);
        for (int j = 0; j < 4; j++)
            CHECK_INT(random_u32(&stream), out[j]);
    }
}

static uint32_t first_of(uint64_t seed, enum random_purpose purpose, uint64_t lane) {
    struct random_stream stream;
    random_open(&stream, seed, purpose, lane);
    return random_u32(&stream);
}

static void test_streams_differ(void) {
    uint32_t numbers[] = {first_of(1, RANDOM_INIT_WEIGHTS, 0),
                          first_of(2, RANDOM_INIT_WEIGHTS, 0),
                          first_of(1, RANDOM_DATA_ORDER, 0),
                          first_of(1, RANDOM_INIT_WEIGHTS, 1),
                          first_of(1 | UINT64_C(1) << 32, RANDOM_INIT_WEIGHTS, 0),
                          first_of(1, RANDOM_INIT_WEIGHTS, UINT64_C(1) << 32)};
    for (int i = 0; i < 6; i++) {
        for (int j = 0; j < i; j++)
            CHECK(numbers[i] != numbers[j]);
    }
    CHECK_INT(first_of(1, RANDOM_INIT_WEIGHTS, 0), numbers[0]);
}

static void test_words_to_values(void) {
    struct random_stream words, values;
    random_open(&words, 7, RANDOM_SAMPLING, 3);
    random_open(&values, 7, RANDOM_SAMPLING, 3);
    uint64_t low = random_u32(&words), high = random_u32(&words);
    CHECK(random_u64(&values) == (high << 32 | low));
    for (int i = 0; i < 10000; i++) {
        float unit = random_unit(&values);
        CHECK(unit >= 0.0f && unit < 1.0f);
        CHECK(unit == (float)(random_u32(&words) >> 8) / 16777216.0f);
    }
}

/* With n = 200000 the mean of the k-th powers has a deviation below 0.003 (uniform) and 0.022
 * (normal, fourth power: sqrt(96 / n)); the tolerances are about four of them. */
static void test_moments(void) {
    const int count = 200000;
    double uniform[2] = {0}, normal[4] = {0};
    struct random_stream stream;
    random_open(&stream, 99, RANDOM_INIT_WEIGHTS, 0);
    for (int i = 0; i < count; i++) {
        double u = (double)random_unit(&stream), n = (double)random_normal(&stream);
        CHECK(isfinite(n));
        uniform[0] += u;
        uniform[1] += u * u;
        normal[0] += n;
        normal[1] += n * n;
        normal[2] += n * n * n;
        normal[3] += n * n * n * n;
    }
    CHECK_NEAR(uniform[0] / count, 0.5, 0.003);
    CHECK_NEAR(uniform[1] / count, 1.0 / 3.0, 0.003);
    CHECK_NEAR(normal[0] / count, 0.0, 0.009);
    CHECK_NEAR(normal[1] / count, 1.0, 0.013);
    CHECK_NEAR(normal[2] / count, 0.0, 0.035);
    CHECK_NEAR(normal[3] / count, 3.0, 0.09);
}

static void test_below(void) {
    struct random_stream stream;
    random_open(&stream, 5, RANDOM_BACKOFF, 0);
    int seen[7] = {0};
    for (int i = 0; i < 70000; i++) {
        uint64_t number = random_below(&stream, 7);
        CHECK(number < 7);
        seen[number]++;
    }
    for (int i = 0; i < 7; i++)
        CHECK_NEAR(seen[i], 10000, 400); /* deviation 93 */
    for (int i = 0; i < 10; i++)
        CHECK_INT(random_below(&stream, 1), 0);
    /* Of 3 * 2^62, a plain remainder would give the lowest third twice as often as each other. */
    const uint64_t bound = UINT64_C(3) << 62;
    int lowest = 0;
    for (int i = 0; i < 30000; i++) {
        uint64_t number = random_below(&stream, bound);
        CHECK(number < bound);
        lowest += number < bound / 3;
    }
    CHECK_NEAR(lowest, 10000, 400);
}

int main(void) {
    TEST_RUN(test_known_answers);
    TEST_RUN(test_stream_layout);
    TEST_RUN(test_streams_differ);
    TEST_RUN(test_words_to_values);
    TEST_RUN(test_moments);
    TEST_RUN(test_below);
    return 0;
}
