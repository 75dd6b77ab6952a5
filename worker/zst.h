/* zst.h - a whole .zst file into memory (RFC 8878), however hostile it is.
 *
 * The frames are walked once without decompressing, so that a file that is cut off or has something
 * behind its last frame is refused at its offset, and sizes are added up. Frames without a declared
 * size are counted by a first decompression, so that no memory is taken on a guess. Windows above
 * 2^ZST_WINDOW_LOG are refused: they are what a decoder must hold, and a few bytes can ask for any.
 */
#ifndef RUBATO_WORKER_ZST_H
#define RUBATO_WORKER_ZST_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

#define ZST_WINDOW_LOG 27

/* file [bytes] -> *content [*content_bytes], a mapping of its own (zst_free; NULL when empty), at
 * most `limit` bytes. CORRUPT, logged with path and offset: no zstd file, cut off, trailing bytes,
 * a checksum that is wrong, a window too large. MEMORY, logged: more than `limit`, or the system
 * has no such memory. Any thread. */
enum status zst_decode(const uint8_t *file, size_t bytes, const char *path, uint64_t limit,
                       uint8_t **content, uint64_t *content_bytes) WARN_UNUSED;

/* Unmaps; NULL is harmless. */
void zst_free(uint8_t *content, uint64_t content_bytes);

/* What a content may have by default: the machine's memory, in bytes. */
uint64_t zst_default_limit(void);

#endif
