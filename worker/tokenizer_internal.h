/* tokenizer_internal.h - the parts of a tokenizer, and how readers of files put one together.
 *
 * tokenizer_new(), then tokenizer_add() for each token, bpe_add() for the merges, and
 * tokenizer_complete(). Nothing changes afterwards, so any thread may use it.
 */
#ifndef RUBATO_WORKER_TOKENIZER_INTERNAL_H
#define RUBATO_WORKER_TOKENIZER_INTERNAL_H

#include "worker/bpe.h"
#include "worker/split.h"
#include "worker/tokenizer.h"

#define TOKENIZER_VOCAB_MAX 16777216

struct tokenizer {
    uint8_t *text; /* [text_bytes] the tokens' bytes, one after the other */
    size_t text_bytes, text_used;
    size_t *offsets;   /* [vocab] */
    uint32_t *lengths; /* [vocab] 0: the id means nothing */
    uint32_t vocab;
    uint32_t eot;
    uint64_t digest;
    uint32_t *index; /* [slots] ids of ordinary tokens by their bytes; a hash table */
    uint64_t slots;
    struct bpe bpe;
    struct split split;
    bool whole_first;  /* a piece that is a token is that token, whatever its merges give */
    bool prefix_space; /* a document that starts without a space gets one */
};

/* Room for ids 0 .. vocab - 1 (at most TOKENIZER_VOCAB_MAX) of together text_bytes. */
struct tokenizer *tokenizer_new(uint32_t vocab, size_t text_bytes);

/* The token `id`, which must have no bytes yet; `special` ones are never found in texts. False, and
 * no change: there is an ordinary token of the same bytes. */
bool tokenizer_add(struct tokenizer *tokenizer, uint32_t id, const uint8_t *text, size_t bytes,
                   bool special);

/* The ordinary token of these bytes, or TOKENIZER_NONE. */
uint32_t tokenizer_find(const struct tokenizer *tokenizer, const uint8_t *text, size_t bytes);

/* Takes the bytes' own tokens and opens the split pattern. CORRUPT, logged with `path`: a byte has
 * no token. INVALID, MEMORY, logged: see split_open(). */
enum status tokenizer_complete(struct tokenizer *tokenizer, const char *pattern,
                               const char *path) WARN_UNUSED;

#endif
