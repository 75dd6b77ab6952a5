/* codec.h - turns values into bytes for the wire, and back.
 *
 * A codec is a constant table of functions; codec_find() returns it for the text of --push or
 * --pull, codec_by_id() for a frame's number.
 * Invariants: decoding depends on the bytes alone, so that every server, worker and rerun sees the same
 * values; each codec gives the same bits on every chip (a plain C twin is the oracle of each vector
 * version, chosen at run time). The caller owns every buffer, a codec never allocates. Any thread
 * may call any codec. To add one: a file here, a row in registry.c, an id in proto/codec_id.h, a
 * case in tests/test_codec.c.
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
