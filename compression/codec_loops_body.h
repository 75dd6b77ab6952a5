/* codec_loops_body.h - all loops of codec_loops.h at the width that lanes.h has in this file.
 *
 * Included by each codec_loops_<level>.c, which makes its table of them with CODEC_LOOPS.
 */
#ifndef RUBATO_COMPRESSION_CODEC_LOOPS_BODY_H
#define RUBATO_COMPRESSION_CODEC_LOOPS_BODY_H

#include "compression/codec_loops_bits.h"
#include "compression/codec_loops_delta.h"
#include "compression/codec_loops_fp8.h"
#include "compression/codec_loops_half.h"
#include "compression/codec_loops_int4.h"

#define CODEC_LOOPS(level)                                                                         \
    {                                                                                              \
        .name = (level), .load = load, .settle = settle, .squares = squares, .add = add_all,       \
        .bf16_encode = bf16_encode, .bf16_decode = bf16_decode, .bf16_scaled = bf16_scaled,        \
        .fp16_encode = fp16_encode, .fp16_decode = fp16_decode, .int8_encode = int8_encode,        \
        .int8_decode = int8_decode, .int4_encode = int4_encode, .int4_decode = int4_decode,        \
        .delta_encode = delta_encode, .delta_decode = delta_decode, .fp8_encode = fp8_encode,      \
        .fp8_decode = fp8_decode, .signs_encode = signs_encode, .signs_decode = signs_decode,      \
        .count_above = count_above, .list_above = list_above, .noise = noise_one, .dot = dot,      \
        .axpy = axpy,                                                                              \
    }

#endif
