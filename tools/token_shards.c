#include "tools/token_shards.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEADER_BYTES 1024
#define BUFFER_BYTES ((size_t)1 << 20)

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tokens are written as they lie");

void token_shards_init(struct token_shards *shards, const char *prefix, bool wide, uint64_t each) {
    ASSERT(each >= 1 && each <= (uint64_t)TOKEN_SHARD_MAX);
    ASSERT(strlen(prefix) < 3900);
    *shards = (struct token_shards){.wide = wide, .each = each};
    snprintf(shards->prefix, sizeof shards->prefix, "%s", prefix);
    shards->buffer = memory_zeroed(BUFFER_BYTES, 1);
}

static enum status begin_shard(struct token_shards *shards) {
    static const uint8_t nothing[HEADER_BYTES];
    char path[4096];
    snprintf(path, sizeof path, "%s_%06" PRIu64 ".bin", shards->prefix, shards->shards);
    TRY(files_create(&shards->writer, path));
    shards->open = true;
    shards->in_shard = 0;
    return files_write(&shards->writer, nothing, sizeof nothing);
}

static enum status flush(struct token_shards *shards) {
    size_t bytes = shards->buffered;
    shards->buffered = 0;
    return bytes > 0 ? files_write(&shards->writer, shards->buffer, bytes) : STATUS_OK;
}

/* Now that the count is known. */
static enum status end_shard(struct token_shards *shards) {
    int32_t header[HEADER_BYTES / 4] = {shards->wide ? 20240801 : 20240520, shards->wide ? 7 : 1,
                                        (int32_t)shards->in_shard};
    TRY(flush(shards));
    if (pwrite(shards->writer.fd, header, sizeof header, 0) != (ssize_t)sizeof header) {
        log_error("cannot write %s: %s", shards->writer.path, strerror(errno));
        return STATUS_IO;
    }
    TRY(files_commit(&shards->writer));
    shards->open = false;
    shards->shards++;
    return STATUS_OK;
}

static void put(struct token_shards *shards, const uint32_t *ids, size_t count) {
    uint8_t *to = shards->buffer + shards->buffered;
    if (shards->wide) {
        memcpy(to, ids, count * sizeof *ids);
    } else {
        for (size_t i = 0; i < count; i++) {
            uint16_t token = (uint16_t)ids[i];
            memcpy(to + 2 * i, &token, sizeof token);
        }
    }
    shards->buffered += count * (shards->wide ? 4 : 2);
    shards->in_shard += count;
    shards->tokens += count;
}

enum status token_shards_write(struct token_shards *shards, const uint32_t *ids, size_t count) {
    const size_t most = BUFFER_BYTES / 4;
    while (count > 0) {
        if (!shards->open) TRY(begin_shard(shards));
        uint64_t left = shards->each - shards->in_shard;
        size_t piece = count < most ? count : most;
        piece = piece < left ? piece : (size_t)left;
        if (shards->buffered + 4 * piece > BUFFER_BYTES) TRY(flush(shards));
        put(shards, ids, piece);
        ids += piece;
        count -= piece;
        if (shards->in_shard == shards->each) TRY(end_shard(shards));
    }
    return STATUS_OK;
}

enum status token_shards_finish(struct token_shards *shards) {
    return shards->open ? end_shard(shards) : STATUS_OK;
}

void token_shards_free(struct token_shards *shards) {
    if (shards->open) files_abandon(&shards->writer);
    free(shards->buffer);
    *shards = (struct token_shards){0};
}
