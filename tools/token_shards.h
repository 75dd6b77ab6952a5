/* token_shards.h - writes tokens as a row of llm.c .bin files, PREFIX_000000.bin and so on.
 *
 *   offset  size        meaning
 *   0       4           magic: 20240520 (uint16 tokens) or 20240801 (uint32 tokens)
 *   4       4           version: 1, or 7 for uint32
 *   8       4           count of tokens in this file
 *   12      1012        zeros
 *   1024    count x 2|4 tokens
 * All little-endian. A file appears under its name when it is complete (files_writer); its header
 * is written last. One thread.
 */
#ifndef RUBATO_TOOLS_TOKEN_SHARDS_H
#define RUBATO_TOOLS_TOKEN_SHARDS_H

#include "base/files.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TOKEN_SHARD_MAX INT64_C(2147483647) /* tokens in a file: its count is an int32 */

struct token_shards {
    char prefix[4000];
    bool wide;         /* uint32 */
    uint64_t each;     /* tokens a file, 1..TOKEN_SHARD_MAX */
    uint64_t in_shard; /* tokens in the file that is open */
    uint64_t tokens, shards;
    struct files_writer writer;
    bool open;
    uint8_t *buffer;
    size_t buffered; /* bytes */
};

/* Writes nothing yet. `prefix` is shorter than 3900 bytes (ASSERT). */
void token_shards_init(struct token_shards *shards, const char *prefix, bool wide, uint64_t each);

/* ids [count], each below 65536 unless `wide`. IO, logged. */
enum status token_shards_write(struct token_shards *shards, const uint32_t *ids,
                               size_t count) WARN_UNUSED;

/* Completes the last file. IO, logged. */
enum status token_shards_finish(struct token_shards *shards) WARN_UNUSED;

/* Removes a file that is not complete; harmless after token_shards_finish() or on a zeroed struct.
 */
void token_shards_free(struct token_shards *shards);

#endif
