/* prepare_batch.h - pieces of text become tokens on all cores, and come out in their order.
 *
 * Pieces are collected until there is work for every thread; then all are encoded side by side and
 * written one after the other. What is written does not depend on the count of threads.
 */
#ifndef RUBATO_TOOLS_PREPARE_BATCH_H
#define RUBATO_TOOLS_PREPARE_BATCH_H

#include "tools/token_shards.h"
#include "worker/tokenizer.h"

#define PREPARE_PIECES 256

struct prepare_piece {
    const uint8_t *text; /* [bytes], until the next flush */
    size_t bytes;
    bool starts, ends; /* a document */
    bool held;         /* for validation */
    uint32_t *ids;     /* [count], the batch's own */
    size_t count;
};

struct prepare_batch {
    const struct tokenizer *tokenizer; /* NULL: a token a byte */
    int64_t threads;
    struct tokenizer_encoder **encoders; /* [threads] */
    struct prepare_piece pieces[PREPARE_PIECES];
    size_t piece_count, bytes;
    struct token_shards *train, *held; /* the caller's */
    uint32_t eot;                      /* after each document; TOKENIZER_NONE: nothing */
    uint64_t documents, text_bytes;    /* so far */
};

/* The tokenizer must outlive the batch; threads >= 1. MEMORY, logged. */
enum status prepare_batch_open(struct prepare_batch *batch, const struct tokenizer *tokenizer,
                               int64_t threads) WARN_UNUSED;
void prepare_batch_close(struct prepare_batch *batch);

/* Takes a piece, and flushes when there is enough. IO, MEMORY, logged. */
enum status prepare_batch_add(struct prepare_batch *batch,
                              const struct prepare_piece *piece) WARN_UNUSED;

/* Encodes and writes what has been taken: the texts may go. IO, MEMORY, logged. */
enum status prepare_batch_flush(struct prepare_batch *batch) WARN_UNUSED;

#endif
