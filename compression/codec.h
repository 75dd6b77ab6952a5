/* codec.h - turns values into bytes for the wire, and back.
 *
 * A codec is a constant table of functions; codec_find() returns it for the text of --push or
 * --pull, codec_by_id() for a frame's number.
 * Invariants: decoding depends on the bytes alone, so that every server, worker and rerun sees the
 * same values; each codec gives the same bits on every chip (a plain C twin is the oracle of each
 * vector version, chosen at run time; only the payload of a NaN made by adding two NaNs may
 * differ). decode_add() is one f32 addition a value, never fused. The caller owns every buffer, a
 * codec never allocates. Any thread may call any codec. To add one: a file here, a row in
 * registry.c, an id in proto/codec_id.h, a case in tests/test_codec.c.
 *
 * Wire layouts, little-endian, of `count` values (byte offsets):
 *
 *   none   offset 4i         f32 of value i, all its bits
 *          total 4 count
 *   bf16   offset 2i         upper half of the f32, rounded to nearest, ties to even; a NaN stays a
 *                            NaN, quiet, and a value above the largest bf16 becomes an infinity
 *          total 2 count
 *   int8   blocks of 128 values; block b holds values 128b .. 128b + n - 1, n = 128 except in a
 *          short last block
 *          offset 130b       f16 scale s: f32 max|a| / 127 of the block, rounded up to an f16
 *                            (at least 2^-24, the smallest, unless all values are zero: s = 0)
 *          offset 130b + 2   n codes, int8: q = a / s to nearest, ties to even, -127 .. 127; 0 if
 *                            s = 0
 *          total count + 2 ceil(count / 128)
 *          A value decodes to D = q s, which f32 holds exactly, and |a - D| <= s / 2.
 *          A block with a value that is not finite, or with max|a| / 127 > 65504, is sent as s =
 *          +infinity and codes 1: all its values decode to +infinity.
 */
#ifndef RUBATO_COMPRESSION_CODEC_H
#define RUBATO_COMPRESSION_CODEC_H

#include "base/status.h"
#include "proto/codec_id.h"

#include <stddef.h>
#include <stdint.h>

struct codec {
    const char *name; /* as users write it */
    enum codec_id id;

    /* Bytes that encode() writes for `count` values (all codecs here have a fixed size). */
    size_t (*bound)(size_t count);

    /* values [count] f32 -> wire [*wire_bytes]. INVALID if capacity < bound(count). Values that are
     * not finite come out as values that are not finite (the server's vote must see them). */
    enum status (*encode)(const float *values, size_t count, uint8_t *wire, size_t capacity,
                          size_t *wire_bytes);

    /* sum [count] += wire [wire_bytes]. CORRUPT, with sum unchanged, unless the length is the one
     * of `count` values. */
    enum status (*decode_add)(const uint8_t *wire, size_t wire_bytes, float *sum, size_t count);

    /* values [count] = wire [wire_bytes]; otherwise like decode_add. */
    enum status (*decode)(const uint8_t *wire, size_t wire_bytes, float *values, size_t count);
};

/* NULL when no codec has the name or id. */
const struct codec *codec_find(const char *name);
const struct codec *codec_by_id(uint8_t id);

/* All of them: for tests, benches and help. */
const struct codec *const *codec_all(size_t *count);

#endif
