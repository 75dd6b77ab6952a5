#include "base/assert.h"
#include "base/log.h"
#include "base/memory.h"
#include "worker/data.h"
#include "worker/jsonl.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LLMC_HEADER_BYTES ((uint64_t)1024)
#define LLMC_MAGIC16      20240520
#define LLMC_MAGIC32      20240801
#define LLMC_VERSION16    1
#define LLMC_VERSION32    7

/* Files are little-endian and read in place. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "little-endian host");

/* A file that starts with llm.c's magic: header [3] is magic, version, token count. */
static enum status parse_llmc(struct data_part *part, const int32_t *header, uint64_t byte_count) {
    bool wide = header[0] == LLMC_MAGIC32;
    int32_t version = wide ? LLMC_VERSION32 : LLMC_VERSION16;
    if (byte_count < LLMC_HEADER_BYTES) {
        log_error("%s: ends at byte %" PRIu64 ", inside the llm.c header of %" PRIu64 " bytes",
                  part->path, byte_count, LLMC_HEADER_BYTES);
        return STATUS_CORRUPT;
    }
    if (header[1] != version) {
        log_error("%s: version %" PRId32 " at byte 4, expected %" PRId32
                  " for llm.c magic %" PRId32,
                  part->path, header[1], version, header[0]);
        return STATUS_CORRUPT;
    }
    if (header[2] < 1) {
        log_error("%s: token count %" PRId32 " at byte 8, expected at least 1", part->path,
                  header[2]);
        return STATUS_CORRUPT;
    }
    uint64_t count = (uint64_t)header[2];
    uint64_t expected = LLMC_HEADER_BYTES + count * (wide ? 4 : 2);
    if (byte_count != expected) {
        log_error("%s: token count %" PRIu64 " at byte 8 means %" PRIu64
                  " bytes, but the file has %" PRIu64,
                  part->path, count, expected, byte_count);
        return STATUS_CORRUPT;
    }
    part->count = count;
    part->offset = LLMC_HEADER_BYTES;
    return STATUS_OK;
}

/* bytes [byte_count] of the file part->path -> part and its format. `bin`: its name says .bin. */
static enum status parse_part(struct data_part *part, const uint8_t *bytes, uint64_t byte_count,
                              bool bin, enum data_format *format) {
    int32_t header[3] = {0};
    ASSERT_OP((uintptr_t)bytes % 4, ==, 0);
    if (byte_count == 0) {
        log_error("%s: the file is empty", part->path);
        return STATUS_IO;
    }
    part->count = byte_count;
    part->offset = 0;
    *format = DATA_BYTES;
    memcpy(header, bytes, byte_count < sizeof(header) ? (size_t)byte_count : sizeof(header));
    if (header[0] == LLMC_MAGIC16 || header[0] == LLMC_MAGIC32) {
        TRY(parse_llmc(part, header, byte_count));
        *format = header[0] == LLMC_MAGIC32 ? DATA_LLMC32 : DATA_LLMC16;
    } else if (bin) {
        if (byte_count % 2 != 0) {
            log_error("%s: a .bin without llm.c header holds uint16 tokens, but half a token is "
                      "left at byte %" PRIu64,
                      part->path, byte_count - 1);
            return STATUS_CORRUPT;
        }
        *format = DATA_NANOGPT;
        part->count = byte_count / 2;
    }
    part->tokens = bytes + part->offset;
    return STATUS_OK;
}

enum status data_parse(struct data *data, const void *bytes, uint64_t byte_count,
                       const char *name) {
    struct data parsed = {.part_count = 1};
    size_t length = strlen(name);
    bool bin = length >= 4 && strcmp(name + length - 4, ".bin") == 0;
    snprintf(parsed.one.path, sizeof(parsed.one.path), "%s", name);
    TRY(parse_part(&parsed.one, bytes, byte_count, bin, &parsed.format));
    parsed.count = parsed.one.count;
    *data = parsed;
    return STATUS_OK;
}

static enum status open_part(struct data_part *part, const char *path, enum data_format *format) {
    struct content *content = &part->content;
    TRY(content_open(content, path));
    memcpy(part->path, content->name, sizeof(part->path));
    uint64_t bytes = content->count;
    enum status status = STATUS_OK;
    if (content->jsonl) status = jsonl_join(content->bytes, bytes, part->path, &bytes);
    bool bin = strcmp(content->kind, ".bin") == 0;
    if (status == STATUS_OK && content->jsonl && bytes == 0) {
        log_error("%s: holds no text", part->path);
        status = STATUS_IO;
    }
    if (status == STATUS_OK && content->jsonl) {
        /* Text, whatever it begins with. */
        *format = DATA_BYTES;
        part->tokens = content->bytes;
        part->count = bytes;
    } else if (status == STATUS_OK) {
        status = parse_part(part, content->bytes, bytes, bin, format);
    }
    if (status != STATUS_OK) content_close(content);
    return status;
}

static enum status open_parts(struct data *data, const struct content_list *list) {
    static const char *const names[] = {"bytes or text", "llm.c tokens of 16 bits",
                                        "llm.c tokens of 32 bits", "nanoGPT tokens"};
    for (uint64_t i = 0; i < list->count; i++) {
        struct data_part *part = data->parts != NULL ? &data->parts[i] : &data->one;
        enum data_format format = DATA_BYTES;
        TRY(open_part(part, list->paths[i], &format));
        data->part_count++;
        data->count += part->count;
        if (i == 0) data->format = format;
        if (format != data->format) {
            log_error("%s: holds %s, but %s holds %s", part->path, names[format],
                      data->parts[0].path, names[data->format]);
            return STATUS_CORRUPT;
        }
    }
    return STATUS_OK;
}

enum status data_open(struct data *data, const char *paths) {
    struct content_list list = {0};
    struct data opened = {0};
    TRY(content_list_open(&list, paths));
    if (list.count > 1) opened.parts = memory_zeroed((size_t)list.count, sizeof(*opened.parts));
    enum status status = open_parts(&opened, &list);
    content_list_close(&list);
    if (status == STATUS_OK) {
        *data = opened;
    } else {
        data_close(&opened);
    }
    return status;
}

void data_close(struct data *data) {
    for (uint64_t i = 0; data->parts != NULL && i < data->part_count; i++)
        content_close(&data->parts[i].content);
    content_close(&data->one.content);
    free(data->parts);
    *data = (struct data){0};
}
