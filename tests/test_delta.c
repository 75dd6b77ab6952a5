/* Proves of the steps of a replica (compression/delta.h): the encoder's bytes and the replica after
 * them are those of a scalar oracle written here from the header's layout, at every level of vector
 * instructions that this chip has, for odd sizes and values of all sizes; the error of a step keeps
 * its bound, and does not grow over many steps; a worker that applies steps has the encoder's bits;
 * steps of another replica, damaged ones, and ones of another length are refused, whichever byte is
 * wrong; a difference that is not finite is refused; the wire is as short as promised, headers
 * included.
 */
#include "base/random.h"
#include "compression/codec_loops.h"
#include "compression/delta.h"
#include "proto/frame.h"
#include "tests/test.h"

enum { MOST = 1200, STEP_MOST = 2 * MOST };

static const uint8_t codecs[] = {CODEC_DELTA_INT8, CODEC_DELTA_INT4};
static const size_t sizes[] = {1, 2, 15, 16, 17, 63, 64, 65, 100, 127, 128, 129, 200, 513, MOST};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

static float weights[MOST], replica[MOST], other[MOST], before[MOST];
static uint8_t step[STEP_MOST], expected[STEP_MOST];
static uint8_t payload[DELTA_HEAD + DELTA_STEPS_TOP * STEP_MOST];

static float to_bf16(float value) {
    return bf16_to_f32(bf16_from_float(value));
}

/* Weights near a bf16 replica, at a distance of `size`, some with none. */
static void fill(struct random_stream *random, size_t n, float size) {
    for (size_t i = 0; i < n; i++) {
        replica[i] = to_bf16(random_normal(random));
        float away = random_below(random, 5) == 0 ? 0 : size * random_normal(random);
        weights[i] = replica[i] + away;
    }
}

/* ---- the oracle ---- */

/* ties to even, by definition */
static int nearest(double value) {
    double down = floor(value);
    double rest = value - down;
    if (rest != 0.5) return (int)(rest < 0.5 ? down : down + 1);
    return (int)(fmod(down, 2) == 0 ? down : down + 1);
}

static void put_code(uint8_t *codes, size_t at, int code, bool int4) {
    if (!int4)
        codes[at] = (uint8_t)code;
    else if (at < 64)
        codes[at] = (uint8_t)((codes[at] & 0xf0) | (code & 15));
    else
        codes[at - 64] = (uint8_t)((codes[at - 64] & 15) | (code & 15) << 4);
}

static size_t oracle_block(const float *w, float *r, size_t n, uint8_t *wire, bool int4) {
    float max = 0;
    for (size_t i = 0; i < n; i++) {
        float size = fabsf(w[i] - r[i]);
        max = size > max ? size : max;
    }
    float scale = 0;
    if (max > 0) {
        float least = fmaxf(max / (int4 ? 7.0f : 127.0f), 0x1p-100f);
        scale = f32_from_bits(f32_bits(least) & 0xffff0000U);
        if (scale < least) scale = f32_from_bits(f32_bits(scale) + 0x10000U);
    }
    size_t bytes = int4 ? (n < 64 ? n : 64) : n;
    memset(wire, 0, 2 + bytes);
    wire[0] = (uint8_t)(f32_bits(scale) >> 16);
    wire[1] = (uint8_t)(f32_bits(scale) >> 24);
    for (size_t i = 0; i < n; i++) {
        float quotient = scale > 0 ? (w[i] - r[i]) * (1.0f / scale) : 0;
        int code = nearest((double)quotient);
        put_code(wire + 2, i, code, int4);
        r[i] = to_bf16(r[i] + (float)code * scale);
    }
    return 2 + bytes;
}

static size_t oracle(const float *w, float *r, size_t n, uint8_t *wire, bool int4) {
    size_t bytes = 0;
    for (size_t i = 0; i < n; i += 128)
        bytes += oracle_block(w + i, r + i, n - i < 128 ? n - i : 128, wire + bytes, int4);
    return bytes;
}

static void levels_are_the_oracle(void) {
    struct random_stream random;
    random_open(&random, 1, RANDOM_SIMULATOR, 0);
    for (size_t s = 0; s < SIZES; s++) {
        for (int exponent = -40; exponent <= 20; exponent += 6) {
            size_t n = sizes[s];
            bool int4 = random_below(&random, 2) == 1;
            uint8_t codec = int4 ? CODEC_DELTA_INT4 : CODEC_DELTA_INT8;
            fill(&random, n, ldexpf(1, exponent));
            memcpy(before, replica, sizeof before);
            memcpy(other, replica, sizeof other);
            CHECK_INT(oracle(weights, other, n, expected, int4), delta_step_bytes(codec, n));
            for (int level = CODEC_PLAIN; level < CODEC_LEVEL_COUNT; level++) {
                const struct codec_loops *loops = codec_loops_level((enum codec_level)level);
                if (loops == NULL) continue;
                memcpy(replica, before, sizeof replica);
                memset(step, 0xee, sizeof step);
                CHECK(loops->delta_encode(weights, replica, n, step, int4));
                CHECK(memcmp(step, expected, delta_step_bytes(codec, n)) == 0);
                CHECK_INT(step[delta_step_bytes(codec, n)], 0xee);
                CHECK(memcmp(replica, other, n * sizeof *other) == 0);
                memcpy(replica, before, sizeof replica);
                loops->delta_decode(step, n, replica, int4);
                CHECK(memcmp(replica, other, n * sizeof *other) == 0);
                CHECK(memcmp(replica + n, before + n, (MOST - n) * sizeof *other) == 0);
            }
        }
    }
}

/* ---- the error ---- */

/* By how much a replica may be off after a step from a greatest difference of `most`. */
static double bound_of(bool int4, double most, double value) {
    double scale = most / (int4 ? 7 : 127) * (1 + 0x1p-7);
    return 0.5 * scale + 0x1p-8 * fabs(value) + 1e-30;
}

static void errors_keep_their_bound(void) {
    struct random_stream random;
    random_open(&random, 2, RANDOM_SIMULATOR, 0);
    for (size_t c = 0; c < 2; c++) {
        bool int4 = codecs[c] == CODEC_DELTA_INT4;
        double last = 0;
        fill(&random, MOST, 0.1f);
        for (int round = 0; round < 300; round++) {
            memcpy(before, replica, sizeof before);
            CHECK(delta_encode_step(codecs[c], weights, replica, MOST, step));
            last = 0;
            for (size_t i = 0; i < MOST; i++) {
                double most = 0;
                for (size_t k = i / 128 * 128; k < MOST && k < i / 128 * 128 + 128; k++)
                    most = fmax(most, fabs((double)weights[k] - (double)before[k]));
                double error = fabs((double)weights[i] - (double)replica[i]);
                CHECK(error <= bound_of(int4, most, fabs((double)replica[i])));
                last = fmax(last, error / (1 + fabs((double)replica[i])));
            }
            for (size_t i = 0; i < MOST; i++)
                weights[i] += 0.001f * random_normal(&random);
        }
        CHECK(last < 0.004); // steps of 0.001 in units of bf16's 2^-8: nothing has piled up
    }
}

/* Where weights stand still, so does the replica, as close as bf16 allows. */
static void replicas_arrive(void) {
    struct random_stream random;
    random_open(&random, 3, RANDOM_SIMULATOR, 0);
    for (size_t c = 0; c < 2; c++) {
        fill(&random, MOST, 1.0f);
        for (int round = 0; round < 20; round++)
            CHECK(delta_encode_step(codecs[c], weights, replica, MOST, step));
        for (size_t i = 0; i < MOST; i++)
            CHECK_NEAR(replica[i], weights[i], 0x1p-7 * fabs((double)weights[i]) + 1e-3);
    }
}

/* ---- payloads ---- */

/* `steps` steps of `n` values, from `before` (a random replica) to `replica` -> payload; returns
 * its bytes. */
static size_t make_payload(struct random_stream *random, uint8_t codec, size_t n, uint32_t steps,
                           struct delta_place *from) {
    size_t bytes = delta_step_bytes(codec, n);
    fill(random, n, 0.01f);
    memcpy(before, replica, sizeof before);
    *from = (struct delta_place){.version = 70, .check = delta_check(before, n)};
    for (uint32_t i = 0; i < steps; i++) {
        CHECK(delta_encode_step(codec, weights, replica, n, payload + DELTA_HEAD + i * bytes));
        for (size_t k = 0; k < n; k++)
            weights[k] += 0.02f * random_normal(random);
    }
    delta_head_put(payload, from, delta_check(replica, n), steps);
    return DELTA_HEAD + steps * bytes;
}

static void workers_have_the_bits(void) {
    struct random_stream random;
    random_open(&random, 4, RANDOM_SIMULATOR, 0);
    for (size_t s = 0; s < SIZES; s++) {
        for (uint32_t steps = 0; steps <= DELTA_STEPS_TOP; steps++) {
            struct delta_place place;
            uint8_t codec = codecs[steps % 2];
            size_t n = sizes[s], bytes = make_payload(&random, codec, n, steps, &place);
            memcpy(other, before, sizeof other);
            CHECK_INT(delta_apply(codec, payload, bytes, 75, other, n, &place), STATUS_OK);
            CHECK(memcmp(other, replica, n * sizeof *other) == 0);
            CHECK(place.version == 75 && place.check == delta_check(replica, n));
        }
    }
}

/* The payload must not lead anywhere: refused, or, where a wrong byte has no effect on any value,
 * to the right bits. */
static void refuse(uint8_t codec, size_t bytes, size_t n, const struct delta_place *from) {
    struct delta_place place = *from;
    memcpy(other, before, sizeof other);
    enum status status = delta_apply(codec, payload, bytes, 75, other, n, &place);
    if (status == STATUS_OK) {
        CHECK(memcmp(other, replica, n * sizeof *other) == 0);
    } else if (status == STATUS_MISMATCH) {
        CHECK_INT(place.check, DELTA_NONE);
    } else {
        CHECK(status == STATUS_CORRUPT || status == STATUS_STALE);
        CHECK(memcmp(other, before, sizeof other) == 0);
        CHECK(place.version == from->version && place.check == from->check);
    }
}

static void wrong_bytes_are_refused(void) {
    struct random_stream random;
    random_open(&random, 5, RANDOM_SIMULATOR, 0);
    for (size_t c = 0; c < 2; c++) {
        struct delta_place from;
        size_t n = 200, bytes = make_payload(&random, codecs[c], n, 2, &from);
        for (size_t bit = 0; bit < 8 * bytes; bit++) {
            payload[bit / 8] ^= (uint8_t)(1U << bit % 8);
            refuse(codecs[c], bytes, n, &from);
            if (bit / 8 < DELTA_HEAD) {
                struct delta_place place = from;
                memcpy(other, before, sizeof other);
                CHECK(delta_apply(codecs[c], payload, bytes, 75, other, n, &place) != STATUS_OK);
            }
            payload[bit / 8] ^= (uint8_t)(1U << bit % 8);
        }
        for (size_t length = 0; length < bytes; length++) {
            struct delta_place place = from;
            uint8_t *copy = malloc(length + 1); // the sanitizer sees a byte too many
            CHECK(copy != NULL);
            memcpy(copy, payload, length);
            memcpy(other, before, sizeof other);
            CHECK_INT(delta_apply(codecs[c], copy, length, 75, other, n, &place), STATUS_CORRUPT);
            free(copy);
        }
        CHECK_INT(delta_apply(codecs[c], payload, bytes + 1, 75, other, n, &from), STATUS_CORRUPT);
        CHECK_INT(delta_apply(CODEC_INT8, payload, bytes, 75, other, n, &from), STATUS_CORRUPT);
        CHECK(delta_apply(codecs[c], payload, bytes, 75, other, n + 1, &from) != STATUS_OK);
    }
}

static void other_replicas_are_refused(void) {
    struct random_stream random;
    struct delta_place from;
    random_open(&random, 6, RANDOM_SIMULATOR, 0);
    size_t n = 300, bytes = make_payload(&random, CODEC_DELTA_INT4, n, 1, &from);
    struct delta_place places[] = {
        {from.version + 1, from.check}, {from.version, from.check + 1}, {from.version, DELTA_NONE}};
    for (size_t i = 0; i < 3; i++) {
        memcpy(other, before, sizeof other);
        CHECK_INT(delta_apply(CODEC_DELTA_INT4, payload, bytes, 75, other, n, &places[i]),
                  STATUS_STALE);
        CHECK(memcmp(other, before, sizeof other) == 0);
    }
    // The right name, but other values: found out when it is done.
    other[17] = 3;
    CHECK_INT(delta_apply(CODEC_DELTA_INT4, payload, bytes, 75, other, n, &from), STATUS_MISMATCH);
    CHECK_INT(from.check, DELTA_NONE);
}

static void what_is_not_finite_is_no_step(void) {
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    struct random_stream random;
    random_open(&random, 7, RANDOM_SIMULATOR, 0);
    for (size_t i = 0; i < 3; i++) {
        for (size_t at = 0; at < 300; at += 37) {
            fill(&random, 300, 0.1f);
            weights[at] = bad[i];
            CHECK(!delta_encode_step(codecs[at % 2], weights, replica, 300, step));
            delta_rebase(weights, replica, 300);
            CHECK(!isfinite(replica[at]));
            CHECK(replica[at + 1] == to_bf16(weights[at + 1]));
        }
    }
    fill(&random, 2, 0);
    weights[0] = 3e38f;
    replica[0] = -3e38f; // the difference overflows
    CHECK(!delta_encode_step(CODEC_DELTA_INT8, weights, replica, 2, step));
}

/* ---- sizes ---- */

static void wire_is_short(void) {
    static const size_t counts[] = {16384, 65536, 262144};
    for (size_t i = 0; i < 3; i++) {
        double plain = 4.0 * (double)counts[i] + (double)FRAME_BYTES;
        double int8 = (double)(DELTA_HEAD + delta_step_bytes(CODEC_DELTA_INT8, counts[i]));
        double int4 = (double)(DELTA_HEAD + delta_step_bytes(CODEC_DELTA_INT4, counts[i]));
        CHECK(plain / (int8 + (double)FRAME_BYTES) >= 3.9);
        CHECK(plain / (int4 + (double)FRAME_BYTES) >= 7.6);
        CHECK_INT(delta_steps_max(CODEC_DELTA_INT8, counts[i]), 1);
        CHECK_INT(delta_steps_max(CODEC_DELTA_INT4, counts[i]), 3);
    }
    for (size_t n = 0; n < 3000; n++) {
        for (size_t c = 0; c < 2; c++) {
            size_t steps = delta_steps_max(codecs[c], n), bytes = delta_step_bytes(codecs[c], n);
            CHECK(steps <= DELTA_STEPS_TOP);
            CHECK(steps == 0 || DELTA_HEAD + steps * bytes < 2 * n);
            CHECK(n == 0 || DELTA_HEAD + (steps + 1) * bytes >= 2 * n);
        }
    }
}

static void names(void) {
    uint8_t codec = 99;
    CHECK(!delta_find("bf16", &codec) && !delta_find("delta-int", &codec));
    CHECK_INT(codec, 99);
    CHECK(delta_find("delta-int8", &codec) && codec == CODEC_DELTA_INT8 && delta_is(codec));
    CHECK(delta_find("delta-int4", &codec) && codec == CODEC_DELTA_INT4 && delta_is(codec));
    CHECK(!delta_is(CODEC_BF16));
}

int main(void) {
    TEST_RUN(names);
    TEST_RUN(levels_are_the_oracle);
    TEST_RUN(errors_keep_their_bound);
    TEST_RUN(replicas_arrive);
    TEST_RUN(workers_have_the_bits);
    TEST_RUN(wrong_bytes_are_refused);
    TEST_RUN(other_replicas_are_refused);
    TEST_RUN(what_is_not_finite_is_no_step);
    TEST_RUN(wire_is_short);
    return 0;
}
