/* Any bytes as a payload of any codec, for any count: the decoder takes them or refuses them with
 * the sum unchanged, adds and sets alike, and never leaves its buffers. Any values through any
 * codec's encoder decode again, with what is not finite still not finite; but of randk without
 * feedback only what is sent counts.
 * Input: codec (1 byte), count (2 bytes), then payload and values.
 */
#include "base/assert.h"
#include "base/memory.h"
#include "compression/decoder.h"
#include "compression/encoder.h"
#include "compression/scheme.h"

#include <math.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char *const texts[] = {
    "none",
    "bf16",
    "fp16",
    "int8",
    "fp8:e5m2",
    "int4:sr,had",
    "onebit,ef",
    "topk:0.05,ef",
    "topk:0.05,global",
    "randk:0.1",
    "powersgd:3,ef",
    "powersgd:3,shared",
    "qsgd",
    "terngrad",
    "natural",
    "signsgd,ef",
    "topk:0.1,ef+zstd",
    "bf16+zstd",
    "none+zstd",
};
enum { TEXTS = sizeof texts / sizeof texts[0] };

static void fuzz_decode(uint8_t codec, const uint8_t *wire, size_t bytes, size_t count) {
    // Exact sizes on the heap, so that the address sanitizer sees one byte too many.
    float *sum = calloc(count + 1, sizeof *sum), *values = calloc(count + 1, sizeof *values);
    uint8_t *copy = malloc(bytes + 1);
    void *scratch = memory_zeroed(decoder_scratch_bytes(count), 1);
    ASSERT(sum != NULL && values != NULL && copy != NULL);
    if (bytes > 0) memcpy(copy + 1, wire, bytes);

    enum status status = decoder_add(codec, copy + 1, bytes, sum + 1, count, scratch);
    ASSERT(decoder_set(codec, copy + 1, bytes, values + 1, count, scratch) == status);
    for (size_t i = 0; i <= count; i++) {
        ASSERT(status == STATUS_OK || f32_bits(sum[i]) == 0);
        ASSERT(isnan(values[i]) ? isnan(sum[i]) : sum[i] == values[i]);
    }
    free(scratch);
    free(copy);
    free(values);
    free(sum);
}

static void check_values(const struct codec_spec *spec, const float *values, const float *decoded,
                         size_t count, const struct encoder_result *result) {
    bool picks = spec->codec == CODEC_RANDK && spec->feedback == FEEDBACK_NONE;
    bool finite = true, came_finite = true;
    for (size_t i = 0; i < count; i++) {
        bool counts = !picks || decoded[i] != 0;
        finite = finite && (!counts || isfinite(values[i]));
        came_finite = came_finite && isfinite(decoded[i]);
    }
    ASSERT(finite || !came_finite);
    ASSERT(result->bytes > 0 || count == 0);
}

static void fuzz_encode(const char *text, const uint8_t *data, size_t bytes) {
    size_t count = bytes / sizeof(float), cols = count % 3 == 0 ? count / 3 : count;
    const struct encoder_block block = {.id = bytes, .rows = count == cols ? 1 : 3, .cols = cols};
    struct encoder_config config = {.blocks = &block, .block_count = 1, .seed = bytes};
    char why[256];
    ASSERT(codec_parse(text, &config.spec, why, sizeof why));
    struct encoder *encoder = encoder_open(&config);
    float *values = malloc(count * sizeof *values + 1),
          *decoded = malloc(count * sizeof *decoded + 1);
    uint8_t *wire = malloc(encoder_bound(encoder, 0));
    void *scratch = memory_zeroed(encoder_scratch_bytes(encoder) + 1, 1);
    void *decode_scratch = memory_zeroed(decoder_scratch_bytes(count), 1);
    ASSERT(values != NULL && decoded != NULL && wire != NULL);
    memcpy(values, data, count * sizeof *values);
    for (uint64_t step = 0; step < 2; step++) {
        struct encoder_result result;
        encoder_encode(encoder, 0, step, values, 1.0f, wire, scratch, &result);
        ASSERT(result.bytes <= encoder_bound(encoder, 0));
        ASSERT(decoder_set(result.codec, wire, result.bytes, decoded, count, decode_scratch) ==
               STATUS_OK);
        check_values(&config.spec, values, decoded, count, &result);
    }
    free(decode_scratch);
    free(scratch);
    free(wire);
    free(decoded);
    free(values);
    encoder_close(encoder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes < 3) return 0;
    size_t count = (size_t)(data[1] | data[2] << 8) % 6000;
    fuzz_decode((uint8_t)(data[0] % (CODEC_ZSTD + 2)), data + 3, bytes - 3, count);
    fuzz_encode(texts[data[0] % TEXTS], data + 3, bytes - 3);
    return 0;
}
