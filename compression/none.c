/* The codec "none": values as they are. */
#include "compression/codec_kernels.h"

static size_t bound(size_t count) {
    return count * sizeof(float);
}

static enum status encode(const float *values, size_t count, uint8_t *wire, size_t capacity,
                          size_t *wire_bytes) {
    if (capacity < bound(count)) return STATUS_INVALID;
    if (count > 0) memcpy(wire, values, bound(count)); // the pointers may be NULL when it is 0
    *wire_bytes = bound(count);
    return STATUS_OK;
}

static enum status decode_add(const uint8_t *wire, size_t wire_bytes, float *sum, size_t count) {
    if (wire_bytes != bound(count)) return STATUS_CORRUPT;
    for (size_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, wire + sizeof value * i, sizeof value);
        sum[i] += value;
    }
    return STATUS_OK;
}

static enum status decode(const uint8_t *wire, size_t wire_bytes, float *values, size_t count) {
    if (wire_bytes != bound(count)) return STATUS_CORRUPT;
    if (count > 0) memcpy(values, wire, wire_bytes);
    return STATUS_OK;
}

const struct codec codec_none = {
    .name = "none",
    .id = CODEC_F32,
    .bound = bound,
    .encode = encode,
    .decode_add = decode_add,
    .decode = decode,
};
