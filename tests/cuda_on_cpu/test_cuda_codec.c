/* Proves that codecs on a CUDA device (compression/cuda) are those of the host: every codec that
 * the device has, with each kind of feedback and each type of residual, encodes eight steps in a
 * row, of the values that cuda_codec_rig.h has, in blocks of odd sizes. After each step the
 * payload, sums, residual and factor must be compression/encoder.c's, bit for bit, and the
 * payload's values those of compression/decoder.c, set and added. Likewise a replica's steps.
 *
 * The same program runs on the stand-in and on a GPU; where there is no device it skips.
 */
#include "base/checksum.h"
#include "compression/codec_residual.h"
#include "compression/cuda/codec_cuda.h"
#include "compression/delta.h"
#include "compression/scheme_powersgd.h"
#include "tests/cuda_on_cpu/cuda_codec_rig.h"

#include <stdbool.h>

static const struct codec_cuda_ops *codecs;

enum { STATE_HEAD = 24, LANE = 1, BLOCK = 3 };
static const float loco_beta = 0.8F;

/* ---- one block on both sides */

struct twin {
    const char *text; /* for messages */
    struct codec_spec spec;
    size_t rows, cols, count;
    struct codec_rig host;
    uint8_t *state; /* the host's, saved */
    struct codec_cuda *codec;
    struct codec_rig mine; /* has a factor that is shared, for the device */
    struct both values, residual, factor, shared, wire, result, decoded;
    float *before; /* [count] what is added to */
};

/* powersgd: zeros, and the noise that they become. */
static struct both take_factor(const struct twin *twin) {
    struct encoder_step of;
    encoder_step_of(twin->host.encoder, 0, 0, &of);
    if (twin->spec.codec != CODEC_POWERSGD) of.state_values = 0;
    struct both factor = take(2 * of.state_values * sizeof(float));
    for (size_t at = 0; at < of.state_values; at += of.cols)
        powersgd_noise(seed, BLOCK, at / of.cols, (float *)factor.pinned + of.state_values + at,
                       of.cols);
    send(&factor);
    return factor;
}

static struct twin twin_open(const char *text, size_t rows, size_t cols) {
    struct twin twin = {.text = text,
                        .spec = codec_rig_spec(text),
                        .rows = rows,
                        .cols = cols,
                        .count = rows * cols,
                        .host = codec_rig_open(text, rows, cols),
                        .mine = codec_rig_open(text, rows, cols)};
    size_t kept = codec_residual_bytes(twin.spec.residual, twin.count);
    twin.state = calloc(1, encoder_state_bytes(twin.host.encoder));
    twin.before = calloc(twin.count, sizeof(float));
    CHECK(twin.state != NULL && twin.before != NULL);
    const struct codec_cuda_need need = {.count = twin.count,
                                         .rows = rows,
                                         .bytes = twin.host.capacity,
                                         .factors = twin.spec.rank * (rows + cols)};
    twin.codec = codecs->open(device, &need);
    CHECK(twin.codec != NULL);
    twin.factor = take_factor(&twin);
    twin.shared = take(twin.spec.rank * (rows + cols) * sizeof(float));
    twin.values = take(twin.count * sizeof(float));
    twin.residual = take(kept);
    twin.wire = take(twin.host.capacity);
    twin.result = take(sizeof(struct codec_cuda_result));
    twin.decoded = take(twin.count * sizeof(float));
    send(&twin.residual);
    return twin;
}

static void twin_close(struct twin *twin) {
    wait();
    give(&twin->values);
    give(&twin->residual);
    give(&twin->factor);
    give(&twin->shared);
    give(&twin->wire);
    give(&twin->result);
    give(&twin->decoded);
    codecs->close(twin->codec);
    codec_rig_close(&twin->host);
    codec_rig_close(&twin->mine);
    free(twin->state);
    free(twin->before);
}

/* ---- what is compared */

static void complain(const struct twin *twin, uint64_t step, const char *what) {
    fprintf(stderr, "%s, %zu x %zu, step %llu: another %s than the host's\n", twin->text,
            twin->rows, twin->cols, (unsigned long long)step, what);
    exit(1);
}

static void check_bytes(const struct twin *twin, uint64_t step, const char *what, const void *a,
                        const void *b, size_t bytes) {
    const uint8_t *left = a, *right = b;
    for (size_t i = 0; i < bytes; i++) {
        if (left[i] == right[i]) continue;
        fprintf(stderr, "byte %zu of %zu is %02x, expected %02x\n", i, bytes, left[i], right[i]);
        complain(twin, step, what);
    }
}

/* The same bits, or both not a number. */
static void check_double(const struct twin *twin, uint64_t step, const char *what, double actual,
                         double expected) {
    if (isnan(actual) && isnan(expected)) return;
    if (memcmp(&actual, &expected, sizeof actual) == 0) return;
    fprintf(stderr, "%.17g, expected %.17g\n", actual, expected);
    complain(twin, step, what);
}

static void check_floats(const struct twin *twin, uint64_t step, const char *what,
                         const float *actual, const float *expected, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (isnan(actual[i]) && isnan(expected[i])) continue;
        if (memcmp(&actual[i], &expected[i], sizeof *actual) == 0) continue;
        fprintf(stderr, "[%zu] is %.9g, expected %.9g\n", i, (double)actual[i],
                (double)expected[i]);
        complain(twin, step, what);
    }
}

/* Sums over parts of rows are in another order for these. */
static bool sums_rows_otherwise(const struct twin *twin) {
    return twin->spec.codec == CODEC_TOPK || twin->spec.codec == CODEC_TOPK_GLOBAL ||
           twin->spec.codec == CODEC_RANDK || twin->spec.codec == CODEC_POWERSGD ||
           twin->spec.codec == CODEC_POWERSGD_SHARED;
}

static void check_result(const struct twin *twin, uint64_t step, bool zero_rows) {
    const struct encoder_result *host = &twin->host.result;
    const struct codec_cuda_result *here = twin->result.pinned;
    CHECK_INT(here->codec, host->codec);
    CHECK_INT(here->bytes, host->bytes);
    check_bytes(twin, step, "payload", twin->wire.pinned, twin->host.wire, host->bytes);
    check_double(twin, step, "sum of squares", here->square_sum, host->square_sum);
    check_double(twin, step, "sum of the gradient's squares", here->gradient_square_sum,
                 host->gradient_square_sum);
    if (zero_rows && sums_rows_otherwise(twin) && isfinite(host->residual_square_sum))
        CHECK_NEAR(here->residual_square_sum, host->residual_square_sum,
                   1e-5 * host->residual_square_sum);
    else
        check_double(twin, step, "sum of the residual's squares", here->residual_square_sum,
                     host->residual_square_sum);
    encoder_save(twin->host.encoder, twin->state);
    size_t factor_bytes = twin->factor.bytes / 2;
    const uint8_t *factor = twin->state + encoder_state_bytes(twin->host.encoder) - factor_bytes;
    check_floats(twin, step, "factor", twin->factor.pinned, (const void *)factor,
                 factor_bytes / sizeof(float));
    if (twin->spec.feedback == FEEDBACK_NONE) return;
    check_bytes(twin, step, "residual", twin->residual.pinned, twin->state + STATE_HEAD,
                twin->residual.bytes);
}

/* What is told of a payload that stays on the device. */
static void check_checksum(const struct twin *twin, uint64_t step) {
    const struct codec_cuda_result *here = twin->result.pinned;
    size_t bytes = twin->host.result.bytes;
    uint64_t expected = checksum_xxh3(twin->host.wire, bytes);
    if (bytes <= CODEC_CUDA_SHORT)
        check_bytes(twin, step, "short payload", here->short_payload, twin->host.wire, bytes);
    else if (here->xxh3 != expected)
        complain(twin, step, "checksum");
}

/* The payload's values, from the host's bytes and from those on the device. */
static void check_decoding(struct twin *twin, uint64_t step) {
    struct codec_cuda_payload payload = {.codec = twin->host.result.codec,
                                         .wire = twin->wire.pinned,
                                         .bytes = twin->host.result.bytes};
    float *expected = twin->host.decoded;
    CHECK(codecs->decodes(payload.codec));
    memcpy(twin->wire.pinned, twin->host.wire, payload.bytes);
    codecs->decode(twin->codec, &payload, twin->decoded.device, twin->count, false);
    fetch(&twin->decoded);
    wait();
    CHECK_INT(decoder_set(payload.codec, twin->host.wire, payload.bytes, expected, twin->count,
                          twin->host.decode_scratch),
              STATUS_OK);
    check_floats(twin, step, "decoded value", twin->decoded.pinned, expected, twin->count);

    memcpy(expected, twin->before, twin->count * sizeof(float));
    memcpy(twin->decoded.pinned, twin->before, twin->count * sizeof(float));
    send(&twin->decoded);
    send(&twin->wire);
    payload.wire = twin->wire.device;
    payload.on_device = true;
    codecs->decode(twin->codec, &payload, twin->decoded.device, twin->count, true);
    fetch(&twin->decoded);
    wait();
    CHECK_INT(decoder_add(payload.codec, twin->host.wire, payload.bytes, expected, twin->count,
                          twin->host.decode_scratch),
              STATUS_OK);
    check_floats(twin, step, "sum", twin->decoded.pinned, expected, twin->count);
}

/* The payload comes back as the mean of all. */
static void answer(struct twin *twin, uint64_t step) {
    struct codec_rig *rigs[] = {&twin->host, &twin->mine};
    const struct encoder_result *result = &twin->host.result;
    if (result->codec != CODEC_POWERSGD_SHARED) return;
    for (int i = 0; i < 2; i++) {
        CHECK_INT(decoder_set(result->codec, twin->host.wire, result->bytes, rigs[i]->decoded,
                              twin->count, NULL),
                  STATUS_OK);
        encoder_expand(rigs[i]->encoder, 0, rigs[i]->decoded, rigs[i]->encode_scratch);
    }
    check_floats(twin, step, "mean", twin->mine.decoded, twin->host.decoded, twin->count);
}

static bool any_zero_row(const struct twin *twin, const float *values) {
    for (size_t row = 0; row < twin->rows; row++) {
        bool zero = true;
        for (size_t col = 0; col < twin->cols; col++)
            zero = zero && values[row * twin->cols + col] == 0.0F;
        if (zero) return true;
    }
    return false;
}

static void check_step(struct twin *twin, uint64_t step, float scale) {
    const bool feedback = twin->spec.feedback != FEEDBACK_NONE;
    const float *values = twin->values.pinned;
    struct encoder_step of; /* powersgd leaves small blocks to another codec */
    encoder_step_of(twin->host.encoder, 0, step, &of);
    const bool shares = of.codec == CODEC_POWERSGD_SHARED;
    const struct codec_cuda_run run = {
        .spec = &twin->spec,
        .codec = of.codec,
        .rows = twin->rows,
        .cols = twin->cols,
        .density = twin->spec.density,
        .seed = seed,
        .step = step,
        .block = BLOCK,
        .lane = LANE,
        .scale = scale,
        .on_rows = shares && encoder_share(twin->mine.encoder, 0, twin->shared.pinned),
        .beta = twin->spec.feedback == FEEDBACK_LOCO ? loco_beta : 0};
    const bool direct = step % 3 == 2;
    const struct codec_cuda_places places = {.values = twin->values.device,
                                             .residual = feedback ? twin->residual.device : NULL,
                                             .factor = twin->factor.device,
                                             .shared = twin->shared.pinned,
                                             .wire = direct ? twin->wire.device : twin->wire.pinned,
                                             .wire_on_device = direct};
    CHECK(codecs->bound(&run) <= twin->host.capacity);
    send(&twin->values);
    codecs->encode(twin->codec, &run, &places, twin->result.pinned);
    if (direct) fetch(&twin->wire);
    fetch(&twin->residual);
    fetch(&twin->factor);
    wait();
    codec_rig_encode(&twin->host, step, values, scale);
    check_result(twin, step, any_zero_row(twin, values));
    if (direct) check_checksum(twin, step);
    check_decoding(twin, step);
    answer(twin, step);
    memcpy(twin->before, values, twin->count * sizeof(float));
}

/* ---- what is encoded */

static void set_kind(struct twin *twin, enum kind kind) {
    make_kind(kind, twin->rows, twin->cols, twin->values.pinned);
}

/* Feedback carries what one step leaves into the next ones. */
static void check_steps(const char *text, size_t rows, size_t cols) {
    struct twin twin = twin_open(text, rows, cols);
    for (uint64_t step = 0; step < KINDS; step++) {
        set_kind(&twin, (enum kind)step);
        check_step(&twin, step, step % 4 == 3 ? 0.37F : 1.0F);
    }
    twin_close(&twin);
}

static const char *const names[] = {
    "none",       "bf16",
    "fp16",       "int8",
    "fp8",        "fp8:e5m2",
    "int4",       "int4:sr",
    "int4:had",   "int4:sr,had",
    "qsgd",       "onebit",
    "signsgd",    "topk:0.01",
    "topk:0.3",   "terngrad",
    "natural",    "randk:0.05",
    "randk:0.4",  "topk:0.1,global",
    "powersgd:2", "powersgd:2,shared",
};
enum { NAMES = sizeof names / sizeof names[0] };

static void test_codecs(void) {
    static const size_t shapes[][2] = {{1, 1}, {1, 31}, {257, 1}, {1, 4099}, {5, 900}};
    for (size_t i = 0; i < NAMES; i++) {
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
            check_steps(names[i], shapes[s][0], shapes[s][1]);
    }
}

static void test_feedback(void) {
    static const char *const suffixes[] = {"ef", "ef,residual=bf16", "ef,residual=int8", "ef=loco",
                                           "ef=loco,residual=int8"};
    for (size_t i = 0; i < NAMES; i++) {
        for (size_t s = 0; s < sizeof suffixes / sizeof suffixes[0]; s++) {
            char text[CODEC_TEXT_MAX];
            (void)snprintf(text, sizeof text, "%s,%s", names[i], suffixes[s]);
            if (s == 0 || s == 1 + i % 4) check_steps(text, 9, 71);
            if (s == i % 5) check_steps(text, 60, 69);
        }
    }
}

/* More sums of tiles, and rounds of a checksum, than are brought near at once. */
static void test_many_tiles(void) {
    struct twin twin = twin_open("bf16,ef", 1, 513 * 512 + 3);
    set_kind(&twin, RANDOM);
    check_step(&twin, 2, 1.0F);
    twin_close(&twin);
}

/* topk of a whole block whose tiles lie in several groups, and several with one thread, where few
 * are above the k-th and many tiles have its equals; and where all are equals. */
static void test_equals(void) {
    static const char *const texts[] = {"topk:0.3,global", "topk:0.004,global,ef", "topk:1,global"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct twin twin = twin_open(texts[i], 1, i == 0 ? 300 * 512 + 3 : 40 * 512 + 11);
        float *values = twin.values.pinned;
        for (size_t at = 0; at < twin.count; at++) {
            uint32_t random = (uint32_t)(at + 1) * 2654435761U >> 8;
            values[at] = (random & 1) != 0 ? 1.5F : -1.5F;
            if (i != 1 && random % 61 == 2) values[at] *= 2.0F;
            if (i != 1 && random % 5 == 2) values[at] = 0.0F;
        }
        check_step(&twin, 2, 1.0F);
        twin_close(&twin);
    }
}

/* Gaps at which their bytes become one more. */
static void test_gaps(void) {
    static const size_t gaps[] = {129, 0, 127, 128, 600, 16383, 16384, 126, 15, 16, 0};
    enum { GAPS = sizeof gaps / sizeof gaps[0], VALUES = 37000 };
    char text[CODEC_TEXT_MAX];
    (void)snprintf(text, sizeof text, "topk:%.9f,global", (double)GAPS / VALUES);
    struct twin twin = twin_open(text, 1, VALUES);
    float *values = twin.values.pinned;
    size_t at = 0;
    for (size_t i = 0; i < GAPS; i++, at++) {
        at += gaps[i];
        values[at] = (float)i - 0.5F;
    }
    check_step(&twin, 2, 1.0F);
    CHECK_INT(twin.host.result.bytes, 4 + 3 * GAPS + 4 + 2); /* two for 4 of them, three for one */
    twin_close(&twin);
}

/* ---- powersgd */

/* Rows of fewer values than lanes, ranks that are not together or fill a block of threads, factors
 * that end within the lanes, in each type of residual. */
static void test_factors(void) {
    static const struct {
        const char *text;
        size_t rows, cols;
    } cases[] = {{"powersgd:1,ef", 800, 4},
                 {"powersgd:2", 100, 12},
                 {"powersgd:5,ef", 37, 80},
                 {"powersgd:7,ef=loco,residual=bf16", 64, 48},
                 {"powersgd:3,ef,residual=int8", 47, 31},
                 {"powersgd:9", 45, 601},
                 {"powersgd:5,shared,ef", 31, 700},
                 {"powersgd:4,shared,ef,residual=int8", 700, 33},
                 {"powersgd:1,shared,ef=loco,residual=bf16", 33, 15}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_steps(cases[i].text, cases[i].rows, cases[i].cols);
    struct twin twin = twin_open("powersgd:64,ef", 260, 263);
    for (uint64_t step = 0; step < 2; step++) {
        set_kind(&twin, RANDOM);
        check_step(&twin, step, 1.0F);
    }
    twin_close(&twin);
}

/* Of a block of rank 1 nothing but rounding noise is left of all vectors but the first. */
static void test_span(void) {
    struct twin twin = twin_open("powersgd:3,ef", 40, 37);
    float *values = twin.values.pinned;
    for (size_t i = 0; i < twin.count; i++) {
        size_t row = i / twin.cols, col = i % twin.cols;
        values[i] = sinf((float)row) * cosf((float)col);
    }
    for (uint64_t step = 0; step < 2; step++)
        check_step(&twin, step, 1.0F);
    twin_close(&twin);
}

/* What is finite, but too large: for factors, which then have NaNs; and for sums of squares alone,
 * behind a step of values so small that factors are not. */
static void check_overflow(const char *text, double first) {
    struct twin twin = twin_open(text, 40, 37);
    const struct encoder_result *host = &twin.host.result;
    const double sizes[] = {first, 1.0, 1e22};
    float *values = twin.values.pinned;
    for (uint64_t step = 0; step < 3; step++) {
        float *usual = codec_rig_values(step, twin.rows, twin.cols);
        for (size_t i = 0; i < twin.count; i++)
            values[i] = (float)fmax(fmin(sizes[step] * (double)usual[i], 3e38), -3e38);
        free(usual);
        check_step(&twin, step, 1.0F);
        CHECK_INT(host->codec, twin.spec.codec);
        CHECK((sizes[step] > 1e40) == isnan(host->square_sum));
    }
    CHECK(host->square_sum > 3.5e38 * (double)twin.count / 512); /* more than tiles' sums hold */
    twin_close(&twin);
}

static void test_overflow(void) {
    check_overflow("powersgd:3,ef", 1e41);
    check_overflow("powersgd:3,shared,ef", 1.0);
}

/* ---- replicas */

static void check_replica(uint8_t codec, size_t count) {
    enum { STEPS = 3 };
    struct both replica = take(count * sizeof(float));
    size_t step_bytes = delta_step_bytes(codec, count), bytes = DELTA_HEAD + STEPS * step_bytes;
    struct both wire = take(bytes);
    const struct codec_cuda_need need = {.count = count, .rows = 1, .bytes = bytes};
    struct codec_cuda *follower = codecs->open(device, &need);
    float *weights = codec_rig_values(1, 1, count), *host = calloc(count, sizeof *host);
    float *shard = calloc(count, sizeof *shard);
    CHECK(follower != NULL && host != NULL && shard != NULL);
    struct delta_place place = {.version = 1}, from;
    delta_rebase(weights, shard, count);
    memcpy(host, shard, count * sizeof *host);
    memcpy(replica.pinned, shard, count * sizeof *shard);
    send(&replica);
    place.check = delta_check(host, count);
    from = place;
    for (size_t step = 0; step < STEPS; step++) {
        for (size_t i = 0; i < count; i++)
            weights[i] += 0.01F * weights[(i * 7 + step) % count];
        CHECK(delta_encode_step(codec, weights, shard, count,
                                (uint8_t *)wire.pinned + DELTA_HEAD + step * step_bytes));
    }
    delta_head_put(wire.pinned, &from, delta_check(shard, count), STEPS);
    const struct codec_cuda_payload payload = {.codec = codec, .wire = wire.pinned, .bytes = bytes};
    CHECK(codecs->decodes(codec));
    codecs->follow(follower, &payload, replica.device, count);
    fetch(&replica);
    wait();
    CHECK_INT(delta_apply(codec, wire.pinned, bytes, 1 + STEPS, host, count, &place), STATUS_OK);
    CHECK(memcmp(replica.pinned, host, count * sizeof *host) == 0);
    codecs->close(follower);
    give(&replica);
    give(&wire);
    free(weights);
    free(host);
    free(shard);
}

static void test_replicas(void) {
    static const size_t counts[] = {1, 2, 31, 127, 128, 129, 255, 4099};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        check_replica(CODEC_DELTA_INT8, counts[i]);
        check_replica(CODEC_DELTA_INT4, counts[i]);
    }
}

/* All that the host's tests have. +zstd is the host's: what is encoded is packed there. */
static void test_has_all(void) {
    for (size_t i = 0; i < CODEC_RIG_TEXTS; i++) {
        char text[CODEC_TEXT_MAX];
        (void)snprintf(text, sizeof text, "%s", codec_rig_texts[i]);
        text[strcspn(text, "+")] = '\0';
        check_steps(text, 60, 69);
    }
    CHECK(!codecs->decodes(CODEC_ZSTD));
}

int main(void) {
    if (!open_device()) TEST_SKIP("no CUDA device");
    codecs = device->backend->codecs;
    CHECK(codecs != NULL);
    TEST_RUN(test_codecs);
    TEST_RUN(test_feedback);
    TEST_RUN(test_many_tiles);
    TEST_RUN(test_equals);
    TEST_RUN(test_gaps);
    TEST_RUN(test_factors);
    TEST_RUN(test_span);
    TEST_RUN(test_overflow);
    TEST_RUN(test_replicas);
    TEST_RUN(test_has_all);
    device->backend->close(device);
    return 0;
}
