/* The codec "bf16": half the bytes, round to nearest. Layout in codec.h. */
#include "compression/codec_kernels.h"

static size_t bound(size_t count) {
    return count * 2;
}

static enum status encode(const float *values, size_t count, uint8_t *wire, size_t capacity,
                          size_t *wire_bytes) {
    if (capacity < bound(count)) return STATUS_INVALID;
    codec_kernels_best()->bf16_encode(values, count, wire);
    *wire_bytes = bound(count);
    return STATUS_OK;
}

static enum status decode_add(const uint8_t *wire, size_t wire_bytes, float *sum, size_t count) {
    if (wire_bytes != bound(count)) return STATUS_CORRUPT;
    codec_kernels_best()->bf16_decode_add(wire, sum, count);
    return STATUS_OK;
}

static enum status decode(const uint8_t *wire, size_t wire_bytes, float *values, size_t count) {
    if (wire_bytes != bound(count)) return STATUS_CORRUPT;
    codec_kernels_best()->bf16_decode(wire, values, count);
    return STATUS_OK;
}

const struct codec codec_bf16 = {
    .name = "bf16",
    .id = CODEC_BF16,
    .bound = bound,
    .encode = encode,
    .decode_add = decode_add,
    .decode = decode,
};
