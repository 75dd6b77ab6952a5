/* The codec "int8": 8 bits a value and a scale for each 128. Layout in codec.h. */
#include "compression/codec_kernels.h"

static size_t bound(size_t count) {
    return count + 2 * (count / INT8_BLOCK + (count % INT8_BLOCK != 0));
}

static enum status encode(const float *values, size_t count, uint8_t *wire, size_t capacity,
                          size_t *wire_bytes) {
    if (capacity < bound(count)) return STATUS_INVALID;
    codec_kernels_best()->int8_encode(values, count, wire);
    *wire_bytes = bound(count);
    return STATUS_OK;
}

static enum status decode_add(const uint8_t *wire, size_t wire_bytes, float *sum, size_t count) {
    if (wire_bytes != bound(count)) return STATUS_CORRUPT;
    codec_kernels_best()->int8_decode_add(wire, sum, count);
    return STATUS_OK;
}

static enum status decode(const uint8_t *wire, size_t wire_bytes, float *values, size_t count) {
    if (wire_bytes != bound(count)) return STATUS_CORRUPT;
    codec_kernels_best()->int8_decode(wire, values, count);
    return STATUS_OK;
}

const struct codec codec_int8 = {
    .name = "int8",
    .id = CODEC_INT8,
    .bound = bound,
    .encode = encode,
    .decode_add = decode_add,
    .decode = decode,
};
