/* cast.h - weights on the wire as plain numbers: f32 (`none`) or bf16, with the payloads of the
 * codecs of that name (compression/scheme.h). decoder_set() reads them back.
 */
#ifndef RUBATO_COMPRESSION_CAST_H
#define RUBATO_COMPRESSION_CAST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "none" -> CODEC_F32, "bf16" -> CODEC_BF16; false for another name, and then *codec is left. */
bool cast_find(const char *name, uint8_t *codec);

/* What `count` values take. codec: one that cast_find() gives. Any thread. */
size_t cast_bytes(uint8_t codec, size_t count);

/* values [count] f32 host -> wire [cast_bytes]. Any thread. */
void cast_encode(uint8_t codec, const float *values, size_t count, uint8_t *wire);

#endif
