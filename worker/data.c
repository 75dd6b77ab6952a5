#include "worker/data.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/random.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LLMC_HEADER_BYTES ((uint64_t)1024)
#define LLMC_MAGIC16      20240520
#define LLMC_MAGIC32      20240801
#define LLMC_VERSION16    1
#define LLMC_VERSION32    7
#define FEISTEL_ROUNDS    8
#define PIECE             ((uint64_t)65536) /* tokens that one pass of the check looks at */
#define GPT2_VOCAB        50257
#define LLAMA3_VOCAB      128256

/* Files are little-endian and read in place. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "little-endian host");

static uint64_t token_bytes(enum data_format format) {
    if (format == DATA_BYTES) return 1;
    return format == DATA_LLMC32 ? 4 : 2;
}

static bool ends_with_bin(const char *name) {
    size_t bytes = strlen(name);
    return bytes >= 4 && strcmp(name + bytes - 4, ".bin") == 0;
}

/* A file that starts with llm.c's magic: header [3] is magic, version, token count. */
static enum status parse_llmc(struct data *data, const int32_t *header, uint64_t byte_count) {
    bool wide = header[0] == LLMC_MAGIC32;
    int32_t version = wide ? LLMC_VERSION32 : LLMC_VERSION16;
    if (byte_count < LLMC_HEADER_BYTES) {
        log_error("%s: ends at byte %" PRIu64 ", inside the llm.c header of %" PRIu64 " bytes",
                  data->path, byte_count, LLMC_HEADER_BYTES);
        return STATUS_CORRUPT;
    }
    if (header[1] != version) {
        log_error("%s: version %" PRId32 " at byte 4, expected %" PRId32
                  " for llm.c magic %" PRId32,
                  data->path, header[1], version, header[0]);
        return STATUS_CORRUPT;
    }
    if (header[2] < 1) {
        log_error("%s: token count %" PRId32 " at byte 8, expected at least 1", data->path,
                  header[2]);
        return STATUS_CORRUPT;
    }
    uint64_t count = (uint64_t)header[2];
    uint64_t expected = LLMC_HEADER_BYTES + count * (wide ? 4 : 2);
    if (byte_count != expected) {
        log_error("%s: token count %" PRIu64 " at byte 8 means %" PRIu64
                  " bytes, but the file has %" PRIu64,
                  data->path, count, expected, byte_count);
        return STATUS_CORRUPT;
    }
    data->format = wide ? DATA_LLMC32 : DATA_LLMC16;
    data->count = count;
    return STATUS_OK;
}

enum status data_parse(struct data *data, const void *bytes, uint64_t byte_count,
                       const char *name) {
    ASSERT_OP((uintptr_t)bytes % 4, ==, 0);
    struct data parsed = {.format = DATA_BYTES, .tokens = bytes, .count = byte_count};
    snprintf(parsed.path, sizeof(parsed.path), "%s", name);
    if (byte_count == 0) {
        log_error("%s: the file is empty", parsed.path);
        return STATUS_IO;
    }
    int32_t header[3] = {0};
    memcpy(header, bytes, byte_count < sizeof(header) ? (size_t)byte_count : sizeof(header));
    if (header[0] == LLMC_MAGIC16 || header[0] == LLMC_MAGIC32) {
        TRY(parse_llmc(&parsed, header, byte_count));
        parsed.tokens = (const uint8_t *)bytes + LLMC_HEADER_BYTES;
    } else if (ends_with_bin(name)) {
        if (byte_count % 2 != 0) {
            log_error("%s: a .bin without llm.c header holds uint16 tokens, but half a token is "
                      "left at byte %" PRIu64,
                      parsed.path, byte_count - 1);
            return STATUS_CORRUPT;
        }
        parsed.format = DATA_NANOGPT;
        parsed.count = byte_count / 2;
    }
    *data = parsed;
    return STATUS_OK;
}

enum status data_open(struct data *data, const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        log_error("cannot open %s: %s", path, strerror(errno));
        return STATUS_IO;
    }
    enum status status = STATUS_IO;
    struct stat about;
    if (fstat(fd, &about) != 0) {
        log_error("cannot read %s: %s", path, strerror(errno));
        goto close_file;
    }
    if (!S_ISREG(about.st_mode) || about.st_size == 0) {
        log_error("%s: %s", path, S_ISREG(about.st_mode) ? "the file is empty" : "is not a file");
        goto close_file;
    }
    uint64_t bytes = (uint64_t)about.st_size;
    void *map = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
        log_error("cannot map %s: %s", path, strerror(errno));
        goto close_file;
    }
    status = data_parse(data, map, bytes, path);
    if (status == STATUS_OK) {
        data->map = map;
        data->map_bytes = bytes;
    } else {
        munmap(map, (size_t)bytes);
    }
close_file:
    close(fd);
    return status;
}

void data_close(struct data *data) {
    if (data->map != NULL) munmap(data->map, (size_t)data->map_bytes);
    *data = (struct data){0};
}

int64_t data_default_vocab(const struct data *data) {
    if (data->format == DATA_BYTES) return 256;
    return data->format == DATA_LLMC32 ? LLAMA3_VOCAB : GPT2_VOCAB;
}

static uint32_t token_at(const struct data *data, uint64_t index) {
    if (data->format == DATA_BYTES) return ((const uint8_t *)data->tokens)[index];
    if (data->format == DATA_LLMC32) return ((const uint32_t *)data->tokens)[index];
    return ((const uint16_t *)data->tokens)[index];
}

/* The greatest of tokens [count] from `first` on; three loops without branches, for the compiler
 * to vectorise. */
static uint32_t greatest(const struct data *data, uint64_t first, uint64_t count) {
    if (data->format == DATA_BYTES) {
        const uint8_t *tokens = (const uint8_t *)data->tokens + first;
        uint8_t most = 0;
        for (uint64_t i = 0; i < count; i++)
            most = tokens[i] > most ? tokens[i] : most;
        return most;
    }
    if (data->format == DATA_LLMC32) {
        const uint32_t *tokens = (const uint32_t *)data->tokens + first;
        uint32_t most = 0;
        for (uint64_t i = 0; i < count; i++)
            most = tokens[i] > most ? tokens[i] : most;
        return most;
    }
    const uint16_t *tokens = (const uint16_t *)data->tokens + first;
    uint16_t most = 0;
    for (uint64_t i = 0; i < count; i++)
        most = tokens[i] > most ? tokens[i] : most;
    return most;
}

enum status data_check_vocab(const struct data *data, int64_t vocab) {
    for (uint64_t first = 0; first < data->count; first += PIECE) {
        uint64_t count = data->count - first < PIECE ? data->count - first : PIECE;
        if (greatest(data, first, count) < vocab) continue;
        uint64_t index = first;
        while (token_at(data, index) < vocab)
            index++;
        uint64_t header =
            data->format == DATA_LLMC16 || data->format == DATA_LLMC32 ? LLMC_HEADER_BYTES : 0;
        log_error(
            "%s: token %" PRIu32 " at byte %" PRIu64 " is not below the vocabulary of %" PRId64,
            data->path, token_at(data, index), header + index * token_bytes(data->format), vocab);
        return STATUS_CORRUPT;
    }
    return STATUS_OK;
}

enum status data_stream_open(struct data_stream *stream, const struct data *data, uint64_t first,
                             uint64_t count, int64_t T, uint64_t seed) {
    ASSERT_OP(T, >=, 1);
    ASSERT(first <= data->count && count <= data->count - first);
    if (count < (uint64_t)T + 1) {
        log_error("%s: %" PRIu64 " tokens are too few for sequences of %" PRId64 " and one more",
                  data->path, count, T);
        return STATUS_IO;
    }
    *stream = (struct data_stream){.data = data,
                                   .first = first,
                                   .count = count,
                                   .seed = seed,
                                   .T = T,
                                   .windows = (count - 1) / (uint64_t)T};
    return STATUS_OK;
}

/* A bijection on 0 .. 2^(2 half_bits) - 1: whatever the round function is, each round can be
 * undone. */
static uint64_t feistel(const uint32_t key[2], unsigned half_bits, uint64_t value) {
    uint64_t mask = (UINT64_C(1) << half_bits) - 1;
    uint64_t left = value >> half_bits, right = value & mask;
    for (uint32_t round = 0; round < FEISTEL_ROUNDS; round++) {
        uint32_t counter[4] = {(uint32_t)right, round, 0, 0}, out[4];
        random_philox(key, counter, out);
        uint64_t next = left ^ (out[0] & mask);
        left = right;
        right = next;
    }
    return left << half_bits | right;
}

/* Where `index` of an epoch lies: a bijection on 0 .. windows - 1. Values outside are walked on
 * from until one is inside; the walk is a cycle of the larger bijection, so it comes back. */
static uint64_t permute(const struct data_stream *stream, uint64_t epoch, uint64_t index) {
    struct random_stream keys;
    random_open(&keys, stream->seed, RANDOM_DATA_ORDER, epoch);
    uint32_t key[2];
    key[0] = random_u32(&keys);
    key[1] = random_u32(&keys);
    unsigned half_bits = 1;
    while (half_bits < 32 && (UINT64_C(1) << 2 * half_bits) < stream->windows)
        half_bits++;
    uint64_t value = feistel(key, half_bits, index);
    while (value >= stream->windows)
        value = feistel(key, half_bits, value);
    return value;
}

void data_stream_read(const struct data_stream *stream, uint64_t number, int64_t B, int32_t *tokens,
                      int32_t *targets) {
    uint64_t T = (uint64_t)stream->T;
    for (uint64_t b = 0; b < (uint64_t)B; b++) {
        uint64_t epoch = (number + b) / stream->windows;
        uint64_t window = permute(stream, epoch, (number + b) % stream->windows);
        uint64_t first = stream->first + window * T;
        for (uint64_t t = 0; t < T; t++) {
            tokens[b * T + t] = (int32_t)token_at(stream->data, first + t);
            targets[b * T + t] = (int32_t)token_at(stream->data, first + t + 1);
        }
    }
}
