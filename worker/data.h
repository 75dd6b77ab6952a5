/* data.h - training tokens from files, as a disjoint, seeded, resumable stream a worker.
 *
 * Formats, told apart by their content: llm.c / modded-nanogpt .bin (256 x int32 header: magic
 * 20240520, version 1, uint16 tokens, or magic 20240801, version 7, uint32 tokens; the third word
 * is the token count), nanoGPT .bin (no header, uint16; by the name's ending), JSONL (the texts of
 * its documents as bytes, with a newline between two; jsonl.h), and anything else as raw bytes,
 * vocabulary 256. All little-endian. Each may be compressed (.zst). Files are mapped and their
 * sizes checked at open; data_check_vocab() checks every token.
 * Several files of one format (a list, or a pattern such as train_*.bin) are one sequence of
 * tokens, the files' in their order; but no window reaches from one file into the next.
 * Order: each file's tokens are cut into windows of T + 1 (stride T); each epoch visits all windows
 * once, in an order that is a pure function of (seed, epoch): a Feistel network over the next power
 * of four, walked until it falls below the count of windows (Black, Rogaway, "Ciphers with
 * arbitrary finite domains", CT-RSA 2002), so it needs no memory.
 * Sequence number n of the whole job is window order(n); worker `rank` of `workers` takes at step s
 * the numbers (s * workers + rank) * B ... + B-1. So workers are disjoint, and a position is a
 * number: nothing but the step need be saved.
 */
#ifndef RUBATO_WORKER_DATA_H
#define RUBATO_WORKER_DATA_H

#include "base/status.h"
#include "worker/content.h"

#include <stddef.h>
#include <stdint.h>

enum data_format { DATA_BYTES, DATA_LLMC16, DATA_LLMC32, DATA_NANOGPT };

/* The tokens of one file. */
struct data_part {
    struct content content; /* closed after data_parse */
    const uint8_t *tokens;  /* aligned to what a token takes */
    uint64_t offset;        /* of the tokens in the content, in bytes */
    uint64_t count;
    char path[CONTENT_NAME_MAX]; /* for messages */
};

struct data {
    enum data_format format;
    uint64_t count;          /* tokens of all parts */
    struct data_part *parts; /* [part_count], this struct's own; NULL where there is but `one` */
    uint64_t part_count;
    struct data_part one;
};

/* `paths`: a file, or a list of files and patterns as content_list_open() takes it. IO, logged:
 * cannot be read, or empty. CORRUPT, logged with file and offset (or line): header and size
 * disagree, files of more than one format, malformed JSONL or zstd. MEMORY, logged: too large for
 * decompression. Set-up; any thread. */
enum status data_open(struct data *data, const char *paths) WARN_UNUSED;

/* Unmaps; harmless on a zeroed struct. */
void data_close(struct data *data);

/* What data_open does with the content of one file that is neither JSONL nor compressed: bytes
 * [byte_count], aligned to 4, stay the caller's and must outlive data. `name` is for messages and
 * for its ending. Same statuses. */
enum status data_parse(struct data *data, const void *bytes, uint64_t byte_count,
                       const char *name) WARN_UNUSED;

/* The vocabulary that the format implies: 256 for bytes, 50257 for GPT-2 tokens, 128256 for
 * Llama-3's. */
int64_t data_default_vocab(const struct data *data);

/* CORRUPT, logged with file, offset and token: a token >= vocab. Reads all tokens once. */
enum status data_check_vocab(const struct data *data, int64_t vocab) WARN_UNUSED;

/* A part of the data, as a stream: tokens first .. first + count - 1. */
struct data_stream {
    const struct data *data;
    uint64_t first, count;
    uint64_t seed;
    int64_t T;
    uint64_t windows; /* of T tokens and one more */
};

/* IO, logged: T + 1 tokens are nowhere in one file. ASSERTs that the part lies inside the data and
 * T >= 1. `data` must outlive the stream. */
enum status data_stream_open(struct data_stream *stream, const struct data *data, uint64_t first,
                             uint64_t count, int64_t T, uint64_t seed) WARN_UNUSED;

/* Sequences number, number + 1, ... -> tokens [B, T], targets [B, T] (the next token of each).
 * Any thread. */
void data_stream_read(const struct data_stream *stream, uint64_t number, int64_t B, int32_t *tokens,
                      int32_t *targets);

#endif
