/* codec_residual.h - what error feedback holds back of a block, in f32, bf16 or int8.
 *
 * f32 is exact; bf16 rounds; int8 is the codec int8's layout. Tiles begin at multiples of 128.
 */
#ifndef RUBATO_COMPRESSION_CODEC_RESIDUAL_H
#define RUBATO_COMPRESSION_CODEC_RESIDUAL_H

#include "compression/codec_loops.h"
#include "proto/codec_spec.h"

#include <stddef.h>
#include <stdint.h>

size_t codec_residual_bytes(enum codec_residual type, size_t count);

/* The residual of n values from `offset` on: in place for f32, else written to tile [n]. */
float *codec_residual_load(const struct codec_loops *loops, enum codec_residual type,
                           uint8_t *bytes, size_t offset, size_t n, float *tile);

/* Puts back what codec_residual_load() gave. */
void codec_residual_store(const struct codec_loops *loops, enum codec_residual type, uint8_t *bytes,
                          size_t offset, size_t n, const float *tile);

#endif
