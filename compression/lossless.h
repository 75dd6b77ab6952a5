/* lossless.h - packs a payload without loss: planes of bytes, each by zstd's Huffman stage alone.
 *
 * Numbers are split in planes, one a byte of a value, after the sign went to the lowest bit: the
 * top plane is then the exponent, which packs well; the low ones are noise and travel as they
 * are. Match search is off: on such bytes it is slower and packs worse.
 * Source: measured in the project's tests; the split follows DietGPU (Johnson, 2022) and ZipNN.
 *
 *   0    1  codec id of the payload inside
 *   1    1  planes: 1 (bytes as they are), 3 or 5: the bytes before the values, then 2 or 4 planes
 *           of bytes, highest first
 *   2    2  0
 *   4    4  bytes of the payload inside
 *   8   8p  of each plane: its bytes u32, and its bytes here u32; equal: as it is; else a zstd
 *   frame then the planes
 */
#ifndef RUBATO_COMPRESSION_LOSSLESS_H
#define RUBATO_COMPRESSION_LOSSLESS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum { LOSSLESS_HEAD_MAX = 8 + 8 * 5 };

/* Working memory for payloads of at most `inner_bytes`. */
size_t lossless_pack_scratch(size_t inner_bytes);
size_t lossless_unpack_scratch(size_t inner_bytes);

/* inner [inner_bytes], a valid payload of `codec` -> wire [LOSSLESS_HEAD_MAX + inner_bytes].
 * Returns the bytes, or 0 if packing does not save 3 %. scratch is aligned to 64. Any thread. */
size_t lossless_pack(uint8_t codec, const uint8_t *inner, size_t inner_bytes, uint8_t *wire,
                     void *scratch);

/* wire [bytes] -> *inner [*inner_bytes] in scratch, made for `most` bytes, and *codec. CORRUPT if
 * it is malformed, or longer than that. Any thread. */
enum status lossless_unpack(const uint8_t *wire, size_t bytes, size_t most, void *scratch,
                            uint8_t *codec, const uint8_t **inner, size_t *inner_bytes) WARN_UNUSED;

#endif
