#include "worker/data.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/random.h"

#include <inttypes.h>
#include <string.h>

#define FEISTEL_ROUNDS 8
#define PIECE          ((uint64_t)65536) /* tokens that one pass of the check looks at */
#define GPT2_VOCAB     50257
#define LLAMA3_VOCAB   128256

static uint64_t token_bytes(enum data_format format) {
    if (format == DATA_BYTES) return 1;
    return format == DATA_LLMC32 ? 4 : 2;
}

static const struct data_part *part_of(const struct data *data, uint64_t index) {
    return data->parts != NULL ? &data->parts[index] : &data->one;
}

int64_t data_default_vocab(const struct data *data) {
    if (data->format == DATA_BYTES) return 256;
    return data->format == DATA_LLMC32 ? LLAMA3_VOCAB : GPT2_VOCAB;
}

/* Tokens first .. first + count - 1 of a part -> out [count]. */
static void copy_tokens(const struct data_part *part, enum data_format format, uint64_t first,
                        uint64_t count, int32_t *out) {
    const uint8_t *from = part->tokens + first * token_bytes(format);
    if (format == DATA_LLMC32) {
        memcpy(out, from, (size_t)count * sizeof(*out));
    } else if (format == DATA_BYTES) {
        for (uint64_t i = 0; i < count; i++)
            out[i] = from[i];
    } else {
        const uint16_t *tokens = (const void *)from;
        for (uint64_t i = 0; i < count; i++)
            out[i] = tokens[i];
    }
}

/* The greatest of tokens [count] from `first` on; three loops without branches, for the compiler
 * to vectorise. */
static uint32_t greatest(const struct data_part *part, enum data_format format, uint64_t first,
                         uint64_t count) {
    const uint8_t *from = part->tokens + first * token_bytes(format);
    if (format == DATA_BYTES) {
        uint8_t most = 0;
        for (uint64_t i = 0; i < count; i++)
            most = from[i] > most ? from[i] : most;
        return most;
    }
    if (format == DATA_LLMC32) {
        const uint32_t *tokens = (const void *)from;
        uint32_t most = 0;
        for (uint64_t i = 0; i < count; i++)
            most = tokens[i] > most ? tokens[i] : most;
        return most;
    }
    const uint16_t *tokens = (const void *)from;
    uint16_t most = 0;
    for (uint64_t i = 0; i < count; i++)
        most = tokens[i] > most ? tokens[i] : most;
    return most;
}

static enum status check_part(const struct data_part *part, enum data_format format,
                              int64_t vocab) {
    for (uint64_t first = 0; first < part->count; first += PIECE) {
        uint64_t count = part->count - first < PIECE ? part->count - first : PIECE;
        if (greatest(part, format, first, count) < vocab) continue;
        uint64_t index = first;
        while (greatest(part, format, index, 1) < vocab)
            index++;
        log_error("%s: token %" PRIu32 " at byte %" PRIu64
                  " is not below the vocabulary of %" PRId64,
                  part->path, greatest(part, format, index, 1),
                  part->offset + index * token_bytes(format), vocab);
        return STATUS_CORRUPT;
    }
    return STATUS_OK;
}

enum status data_check_vocab(const struct data *data, int64_t vocab) {
    for (uint64_t i = 0; i < data->part_count; i++)
        TRY(check_part(part_of(data, i), data->format, vocab));
    return STATUS_OK;
}

/* What a stream has of one part: its windows, and where in the part the first one starts. */
struct share {
    uint64_t first, windows;
};

/* `begin`: the first token of part `index`, counted over all parts. */
static struct share share_of(const struct data_stream *stream, uint64_t index, uint64_t begin) {
    uint64_t end = begin + part_of(stream->data, index)->count;
    uint64_t from = stream->first > begin ? stream->first : begin;
    uint64_t to = stream->first + stream->count < end ? stream->first + stream->count : end;
    struct share share = {0};
    if (to > from && to - from > (uint64_t)stream->T) {
        share.first = from - begin;
        share.windows = (to - from - 1) / (uint64_t)stream->T;
    }
    return share;
}

enum status data_stream_open(struct data_stream *stream, const struct data *data, uint64_t first,
                             uint64_t count, int64_t T, uint64_t seed) {
    ASSERT_OP(T, >=, 1);
    ASSERT(first <= data->count && count <= data->count - first);
    struct data_stream opened = {
        .data = data, .first = first, .count = count, .seed = seed, .T = T};
    uint64_t begin = 0;
    for (uint64_t i = 0; i < data->part_count; i++) {
        opened.windows += share_of(&opened, i, begin).windows;
        begin += part_of(data, i)->count;
    }
    if (opened.windows == 0) {
        log_error("%s%s: %" PRIu64 " tokens are too few for sequences of %" PRId64
                  " and one more%s",
                  part_of(data, 0)->path, data->part_count > 1 ? " and others" : "", count, T,
                  data->part_count > 1 ? " in one file" : "");
        return STATUS_IO;
    }
    *stream = opened;
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

/* Window `window` of the stream: tokens [T], targets [T]. A loop over the files is short beside
 * what a model does with a sequence. */
static void read_window(const struct data_stream *stream, uint64_t window, int32_t *tokens,
                        int32_t *targets) {
    const struct data *data = stream->data;
    uint64_t T = (uint64_t)stream->T, begin = 0, index = 0;
    struct share share = share_of(stream, 0, 0);
    while (window >= share.windows) {
        window -= share.windows;
        begin += part_of(data, index)->count;
        index++;
        share = share_of(stream, index, begin);
    }
    uint64_t first = share.first + window * T;
    copy_tokens(part_of(data, index), data->format, first, T, tokens);
    copy_tokens(part_of(data, index), data->format, first + 1, T, targets);
}

void data_stream_read(const struct data_stream *stream, uint64_t number, int64_t B, int32_t *tokens,
                      int32_t *targets) {
    uint64_t T = (uint64_t)stream->T;
    for (uint64_t b = 0; b < (uint64_t)B; b++) {
        uint64_t epoch = (number + b) / stream->windows;
        uint64_t window = permute(stream, epoch, (number + b) % stream->windows);
        read_window(stream, window, tokens + b * T, targets + b * T);
    }
}
