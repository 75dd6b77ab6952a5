/* codec_int8.cuh - 128 values as int8 with an f16 scale, the codec's and a residual's; and a tile's
 * residual in its three types (compression/codec_residual.h).
 */
#ifndef RUBATO_COMPRESSION_CUDA_CODEC_INT8_CUH
#define RUBATO_COMPRESSION_CUDA_CODEC_INT8_CUH

#include "compression/cuda/codec_tile.cuh"
#include "proto/codec_spec.h"

enum { INT8_BYTES = 2 + SCALED };

/* a[first ...]: the lane's 8 values of 128, of which `left` are in the block -> at; decoded: what
 * they decode to. Returns the sum of the squares of that. */
static __device__ __forceinline__ double int8_encode(const struct tile &tile, const float *a,
                                                     int left, uint8_t *at, float *decoded) {
    uint32_t most = 0;
#pragma unroll
    for (int j = 0; j < SCALED_EACH; j++)
        most = max(most, magnitude(a[j]));
    const uint32_t short_bits = int8_scale(lanes_max(most));
    const float scale = f16_widen(short_bits), inverse = __fdiv_rn(1.0F, scale);
    int total = 0;
#pragma unroll
    for (int j = 0; j < SCALED_EACH; j++) {
        int code = round_near(__fmul_rn(a[j], inverse));
        if (short_bits == 0) code = 0;
        if (short_bits == F16_INFINITE) code = 1;
        total += code * code;
        decoded[j] = __fmul_rn((float)code, scale);
        if (place_of(tile, j) < left) at[2 + place_of(tile, j)] = (uint8_t)code;
    }
    if (tile.lane == 0 && left > 0) put_half(at, short_bits);
    total = lanes_total(total);
    if (short_bits == F16_INFINITE) return (double)infinity();
    return __dmul_rn((double)total, __dmul_rn((double)scale, (double)scale));
}

static __device__ __forceinline__ void int8_decode(const struct tile &tile, const uint8_t *at,
                                                   int left, float *out) {
    const float scale = left > 0 ? f16_widen(get_half(at)) : 0.0F;
#pragma unroll
    for (int j = 0; j < SCALED_EACH; j++) {
        const int place = place_of(tile, j);
        out[j] = place < left ? __fmul_rn((float)(int8_t)at[2 + place], scale) : 0.0F;
    }
}

/* ---- residuals */

static __device__ __forceinline__ void residual_load(uint32_t type, const uint8_t *residual,
                                                     const struct tile &tile, float (&kept)[EACH]) {
    if (type == RESIDUAL_INT8) {
        const uint8_t *at = residual + tile.offset / SCALED * INT8_BYTES;
#pragma unroll
        for (int b = 0; b < TILE / SCALED; b++)
            int8_decode(tile, at + b * INT8_BYTES, tile.n - b * SCALED, kept + b * SCALED_EACH);
        return;
    }
    const float *whole = (const float *)residual + tile.offset;
    const uint16_t *halves = (const uint16_t *)residual + tile.offset;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int place = place_of(tile, j);
        kept[j] = 0.0F;
        if (place < tile.n)
            kept[j] = type == RESIDUAL_F32 ? whole[place] : bf16_widen(halves[place]);
    }
}

/* All but the values in `masked`, which stay as they are; as int8 they are in kept, too. */
static __device__ __forceinline__ void residual_store(uint32_t type, uint8_t *residual,
                                                      const struct tile &tile,
                                                      const float (&kept)[EACH], uint32_t masked) {
    if (type == RESIDUAL_INT8) {
        uint8_t *at = residual + tile.offset / SCALED * INT8_BYTES;
        float decoded[SCALED_EACH];
        __syncwarp(WARP); // all lanes have read the scales that one writes now
#pragma unroll
        for (int b = 0; b < TILE / SCALED; b++)
            int8_encode(tile, kept + b * SCALED_EACH, tile.n - b * SCALED, at + b * INT8_BYTES,
                        decoded);
        return;
    }
    float *whole = (float *)residual + tile.offset;
    uint16_t *halves = (uint16_t *)residual + tile.offset;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int place = place_of(tile, j);
        if (place >= tile.n || (masked >> j & 1)) continue;
        if (type == RESIDUAL_F32)
            whole[place] = kept[j];
        else
            halves[place] = (uint16_t)bf16_round(kept[j]);
    }
}

#endif
