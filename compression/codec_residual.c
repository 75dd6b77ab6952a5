#include "compression/codec_residual.h"

#include "base/assert.h"

static size_t int8_bytes(size_t n) {
    return n + 2 * ((n + LOOP_BLOCK - 1) / LOOP_BLOCK);
}

size_t codec_residual_bytes(enum codec_residual type, size_t count) {
    if (type == RESIDUAL_F32) return count * sizeof(float);
    return type == RESIDUAL_BF16 ? count * 2 : int8_bytes(count);
}

float *codec_residual_load(const struct codec_loops *loops, enum codec_residual type,
                           uint8_t *bytes, size_t offset, size_t n, float *tile) {
    ASSERT_OP(offset % LOOP_BLOCK, ==, 0);
    bytes += codec_residual_bytes(type, offset);
    if (type == RESIDUAL_F32) return (float *)(void *)bytes; // taken with the alignment of floats
    if (type == RESIDUAL_BF16)
        loops->bf16_decode(bytes, n, tile, false);
    else
        loops->int8_decode(bytes, n, tile, false);
    return tile;
}

void codec_residual_store(const struct codec_loops *loops, enum codec_residual type, uint8_t *bytes,
                          size_t offset, size_t n, const float *tile) {
    double squares = 0;
    bytes += codec_residual_bytes(type, offset);
    if (type == RESIDUAL_BF16) loops->bf16_encode(tile, n, bytes);
    if (type == RESIDUAL_INT8) loops->int8_encode(tile, n, bytes, &squares);
}
