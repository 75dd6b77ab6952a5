/* decoder.h - what a shard does with a push: adds a payload of any codec to its sum.
 *
 * Decoders have no state: a payload's bytes and the block's count say all, so that any server can
 * decode any worker's frame. A payload is checked as a whole before the first value is written.
 */
#ifndef RUBATO_COMPRESSION_DECODER_H
#define RUBATO_COMPRESSION_DECODER_H

#include "base/status.h"
#include "compression/scheme.h"

#include <stddef.h>
#include <stdint.h>

/* No encoder's payload of so many values is longer: what a buffer for any of them must hold. */
size_t decoder_payload_max(size_t count);

/* The codec of the values in a payload that was found sound: also of a packed one. */
uint8_t decoder_inner_codec(uint8_t codec, const uint8_t *wire);

/* Bytes of the scratch for blocks of at most `most_values`; aligned to 64, of one thread at a
 * time. */
size_t decoder_scratch_bytes(size_t most_values);

/* A payload on its way into values, tile by tile. */
struct decoder {
    const struct scheme *scheme;
    struct scheme_view view;
    size_t at, used; /* the next value, and where its bytes are */
};

/* CORRUPT as decoder_add. wire and scratch are the decoder's until the last value. */
enum status decoder_open(struct decoder *decoder, uint8_t codec, const uint8_t *wire, size_t bytes,
                         size_t count, void *scratch) WARN_UNUSED;

/* Values of its tiles; 0: all must be asked for at once. */
size_t decoder_tile(const struct decoder *decoder);

/* out [n] = the next n values, or += them: all that are left, or a multiple of decoder_tile(). */
void decoder_next(struct decoder *decoder, float *out, size_t n, bool add);

/* sum [count] f32 += wire [bytes], one f32 addition a value. CORRUPT, with sum unchanged, if the
 * payload is malformed, holds another count, or `codec` is unknown. scratch was made for `count`
 * values or more; NULL: packed payloads are refused. Any thread. */
enum status decoder_add(uint8_t codec, const uint8_t *wire, size_t bytes, float *sum, size_t count,
                        void *scratch) WARN_UNUSED;

/* values [count] = wire [bytes]; otherwise like decoder_add. */
enum status decoder_set(uint8_t codec, const uint8_t *wire, size_t bytes, float *values,
                        size_t count, void *scratch) WARN_UNUSED;

#endif
