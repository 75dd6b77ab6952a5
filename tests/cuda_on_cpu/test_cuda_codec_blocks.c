/* Proves that an encoder on a CUDA device (compression/encoder_device.c) makes of several blocks
 * the payloads and sums of compression/encoder.c, bit for bit, step after step: what each block
 * keeps is its own, through a dense start; one block is another device's, and one not worth the
 * codec. A factor that workers share moves as on the host. What has +zstd is packed as there. It
 * takes the memory that it tells.
 *
 * The same program runs on the stand-in and on a GPU; where there is no device it skips.
 */
#include "compression/encoder_device.h"
#include "tests/cuda_on_cpu/cuda_codec_rig.h"

enum { ENCODER_BLOCKS = 4 };
static const bool owns[ENCODER_BLOCKS] = {true, true, false, true};

/* One that encodes on the host, and one that says to the device what steps are. */
struct pair {
    struct encoder *host, *mine;
    struct encoder_device *there;
    void *scratch;
};

static void check_payload(const struct encoder_result *result, const struct encoder_result *wanted,
                          const uint8_t *wire, const uint8_t *expected, bool zero_rows) {
    CHECK_INT(result->codec, wanted->codec);
    CHECK_INT(result->bytes, wanted->bytes);
    CHECK(memcmp(wire, expected, wanted->bytes) == 0);
    CHECK(result->square_sum == wanted->square_sum || isnan(wanted->square_sum));
    CHECK(isnan(result->square_sum) == isnan(wanted->square_sum));
    CHECK(result->gradient_square_sum == wanted->gradient_square_sum ||
          isnan(wanted->gradient_square_sum));
    if (!isfinite(wanted->residual_square_sum)) return;
    CHECK_NEAR(result->residual_square_sum, wanted->residual_square_sum,
               zero_rows ? 1e-5 * wanted->residual_square_sum : 0);
}

/* What it decodes to comes back as the mean of all. */
static void check_answer(const struct pair *pair, size_t block, const struct encoder_result *result,
                         const uint8_t *wire, size_t count) {
    if (result->codec != CODEC_POWERSGD_SHARED) return;
    float *means[2];
    for (int i = 0; i < 2; i++) {
        means[i] = calloc(count, sizeof(float));
        CHECK(means[i] != NULL);
        CHECK_INT(decoder_set(result->codec, wire, result->bytes, means[i], count, NULL),
                  STATUS_OK);
        encoder_expand(i == 0 ? pair->host : pair->mine, block, means[i], pair->scratch);
    }
    CHECK(memcmp(means[0], means[1], count * sizeof(float)) == 0);
    free(means[0]);
    free(means[1]);
}

/* What the host packs comes to it. */
static bool stays(const struct pair *pair, uint64_t step) {
    return step % 2 == 1 && !encoder_spec(pair->host)->zstd;
}

/* A block's step that is under way. */
struct encoding {
    struct both values, wire;
};

static struct encoding start_block(const struct pair *pair, size_t block, uint64_t step) {
    struct encoder_step of;
    encoder_step_of(pair->host, block, step, &of);
    struct encoding started = {take(of.rows * of.cols * sizeof(float)),
                               take(encoder_bound(pair->host, block))};
    make_kind((enum kind)(step % KINDS), of.rows, of.cols, started.values.pinned);
    send(&started.values);
    encoder_device_encode(pair->there, block, step, started.values.device,
                          stays(pair, step) ? started.wire.device : started.wire.pinned,
                          stays(pair, step));
    if (stays(pair, step)) fetch(&started.wire);
    return started;
}

/* Returns the payload's codec. */
static uint8_t check_block(const struct pair *pair, size_t block, uint64_t step,
                           struct encoding *done) {
    const enum kind kind = (enum kind)(step % KINDS);
    uint8_t *expected = calloc(1, encoder_bound(pair->host, block) + 1);
    struct encoder_result result, wanted;
    CHECK(expected != NULL);
    encoder_device_result(pair->there, block, pair->scratch, &result);
    encoder_encode(pair->host, block, step, done->values.pinned, 1.0F, expected, pair->scratch,
                   &wanted);
    check_payload(&result, &wanted, done->wire.pinned, expected,
                  kind == ZERO_ROWS || kind == MIXED);
    check_answer(pair, block, &wanted, expected, done->values.bytes / sizeof(float));
    give(&done->values);
    give(&done->wire);
    free(expected);
    return wanted.codec;
}

/* All blocks are under way at once. Returns how many have the spec's codec, or are packed. */
static size_t check_step(const struct pair *pair, uint64_t step) {
    const struct codec_spec *spec = encoder_spec(pair->host);
    struct encoding started[ENCODER_BLOCKS];
    size_t used = 0;
    for (size_t block = 0; block < ENCODER_BLOCKS; block++)
        if (owns[block]) started[block] = start_block(pair, block, step);
    wait();
    for (size_t block = 0; block < ENCODER_BLOCKS; block++)
        used += owns[block] && check_block(pair, block, step, &started[block]) ==
                                   (spec->zstd ? CODEC_ZSTD : spec->codec);
    return used;
}

static uint64_t used_now(void) {
    struct device_memory memory;
    device_memory(device, &memory);
    return memory.used;
}

static void check_encoder(const char *text) {
    static const struct encoder_block blocks[ENCODER_BLOCKS] = {{.id = 5, .rows = 31, .cols = 40},
                                                                {.id = 6, .rows = 1, .cols = 77},
                                                                {.id = 7, .rows = 40, .cols = 31},
                                                                {.id = 9, .rows = 240, .cols = 13}};
    const struct encoder_config config = {.spec = codec_rig_spec(text),
                                          .blocks = blocks,
                                          .block_count = ENCODER_BLOCKS,
                                          .seed = seed,
                                          .dense_steps = 2};
    struct pair pair = {.host = encoder_open(&config), .mine = encoder_open(&config)};
    uint64_t before = used_now(), told = encoder_device_bytes(device, pair.mine, owns);
    pair.scratch = aligned_alloc(64, (encoder_scratch_bytes(pair.host) + 127) / 64 * 64);
    CHECK(pair.scratch != NULL);
    CHECK_INT(encoder_device_open(&pair.there, device, pair.mine, owns), STATUS_OK);
    CHECK(used_now() - before >= told);
    size_t used = 0;
    for (uint64_t step = 0; step < 2 * KINDS; step++)
        used += check_step(&pair, step);
    CHECK(used >= KINDS);
    encoder_device_close(pair.there);
    encoder_close(pair.host);
    encoder_close(pair.mine);
    free(pair.scratch);
    CHECK_INT(used_now(), before);
}

static void test_encoders(void) {
    static const char *const texts[] = {"powersgd:2,ef",
                                        "powersgd:3",
                                        "powersgd:3,shared",
                                        "powersgd:3,shared,ef",
                                        "powersgd:1,shared,ef",
                                        "powersgd:2,shared,ef,residual=int8",
                                        "powersgd:2,shared,ef,residual=bf16",
                                        "powersgd:5,shared,ef=loco",
                                        "int8,ef",
                                        "bf16+zstd",
                                        "int8,ef+zstd"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        check_encoder(texts[i]);
}

int main(void) {
    if (!open_device()) TEST_SKIP("no CUDA device");
    TEST_RUN(test_encoders);
    device->backend->close(device);
    return 0;
}
