/* vocabulary.h - what tokens are to people: a prompt's tokens, and the text of tokens.
 *
 * Where a token is a byte it speaks for itself; else the tokenizer of --tokenizer tells, and
 * without one nothing is known. Set-up and end of a run only: it allocates.
 */
#ifndef RUBATO_WORKER_VOCABULARY_H
#define RUBATO_WORKER_VOCABULARY_H

#include "worker/tokenizer.h"

struct vocabulary {
    bool bytes;                        /* a token is a byte */
    const struct tokenizer *tokenizer; /* the owner's; NULL: none */
};

/* Can tokens be read and written? */
bool vocabulary_known(const struct vocabulary *vocabulary);

/* text [bytes] -> *tokens [result], new memory; 0 tokens and NULL when nothing is known, the text
 * is empty or there is no memory. */
size_t vocabulary_encode(const struct vocabulary *vocabulary, const char *text, size_t bytes,
                         int32_t **tokens);

/* tokens [count] -> *text [result], new memory; 0 and NULL when nothing is known. */
size_t vocabulary_decode(const struct vocabulary *vocabulary, const int32_t *tokens, size_t count,
                         char **text);

/* Bytes of the text of tokens [count], of which negative ones count nothing; 0 when nothing is
 * known. Allocates nothing. */
uint64_t vocabulary_bytes(const struct vocabulary *vocabulary, const int32_t *tokens, size_t count);

#endif
