/* Any bytes as a frame's payload, for any count: a decoder accepts exactly the length it wants,
 * refuses the rest with the sum unchanged, and never reads or writes outside its buffers. Any
 * values encode to `bound` bytes and come back, with what is not finite still not finite.
 * Input: codec (1 byte), count (2 bytes), then payload and values.
 */
#include "base/assert.h"
#include "compression/codec_kernels.h"

#include <math.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void fuzz_decode(const struct codec *codec, const uint8_t *wire, size_t bytes,
                        size_t count) {
    // Exact sizes on the heap, so that the address sanitizer sees one byte too many.
    float *sum = calloc(count + 1, sizeof *sum), *values = calloc(count + 1, sizeof *values);
    uint8_t *copy = malloc(bytes + 1);
    ASSERT(sum != NULL && values != NULL && copy != NULL);
    if (bytes > 0) memcpy(copy + 1, wire, bytes);

    enum status status = codec->decode_add(copy + 1, bytes, sum + 1, count);
    ASSERT(status == (bytes == codec->bound(count) ? STATUS_OK : STATUS_CORRUPT));
    ASSERT(codec->decode(copy + 1, bytes, values + 1, count) == status);
    for (size_t i = 0; i <= count; i++) {
        ASSERT(status == STATUS_OK || f32_bits(sum[i]) == 0);
        ASSERT(isnan(values[i]) ? isnan(sum[i]) : sum[i] == values[i]);
    }
    free(copy);
    free(values);
    free(sum);
}

static void fuzz_encode(const struct codec *codec, const uint8_t *data, size_t bytes) {
    size_t count = bytes / sizeof(float), wire_bytes = 0;
    float *values = malloc((count + 1) * sizeof *values);
    float *decoded = malloc((count + 1) * sizeof *decoded);
    uint8_t *wire = malloc(codec->bound(count) + 1);
    ASSERT(values != NULL && decoded != NULL && wire != NULL);
    if (count > 0) memcpy(values + 1, data, count * sizeof *values);

    size_t capacity = codec->bound(count);
    ASSERT(codec->encode(values + 1, count, wire + 1, capacity, &wire_bytes) == STATUS_OK);
    ASSERT_OP(wire_bytes, ==, capacity);
    ASSERT(codec->decode(wire + 1, wire_bytes, decoded + 1, count) == STATUS_OK);
    for (size_t i = 1; i <= count; i++)
        ASSERT(isfinite(values[i]) || !isfinite(decoded[i]));
    free(wire);
    free(decoded);
    free(values);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes < 3) return 0;
    const struct codec *codec = codec_by_id((uint8_t)(data[0] % 3));
    size_t count = (size_t)(data[1] | data[2] << 8) % 2048;
    ASSERT(codec != NULL);
    data += 3;
    bytes -= 3;
    fuzz_decode(codec, data, bytes, count);
    // A payload of the right length too, which random lengths would seldom be.
    size_t right = codec->bound(count);
    if (right < bytes) fuzz_decode(codec, data, right, count);
    fuzz_encode(codec, data, bytes);
    return 0;
}
