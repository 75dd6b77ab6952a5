/* split.h - cuts text into the pieces that byte-pair merging works in, by a regular expression.
 *
 * Tokenizers publish their expression; the known ones are kept here, written for PCRE2 so that they
 * mean the same: \s as the White_Space property, and $ as the very end. Letters and numbers are
 * those of the installed PCRE2's Unicode version.
 *   gpt2     GPT-2, r50k, p50k; also Hugging Face's ByteLevel
 *   cl100k   tiktoken's cl100k_base
 *   llama3   Llama 3, and what else has that expression in its tokenizer.json
 *   o200k    tiktoken's o200k_base
 * Every character belongs to a piece: what the expression does not match is a piece of its own, and
 * so is each byte that is no UTF-8.
 */
#ifndef RUBATO_WORKER_SPLIT_H
#define RUBATO_WORKER_SPLIT_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct split {
    const char *name; /* of the expression; NULL when closed */
    void *code;       /* PCRE2's */
};

/* One thread's: where it is in its text. */
struct split_cursor {
    void *match, *context, *stack; /* PCRE2's */
    const uint8_t *text;
    size_t bytes;
    size_t at;
    size_t valid;       /* up to here the text is UTF-8 */
    size_t found_start; /* the next match, when found_end > at */
    size_t found_end;
};

/* "gpt2, cl100k, ...", for messages. */
#define SPLIT_NAMES "gpt2, cl100k, llama3, o200k"

/* The name of a known expression, from its name or from its text as tokenizers publish it; NULL for
 * another. */
const char *split_known(const char *name_or_text);

/* INVALID, logged: unknown name. MEMORY, logged. */
enum status split_open(struct split *split, const char *name) WARN_UNUSED;
void split_close(struct split *split);

/* MEMORY, logged. A cursor belongs to one thread, and to splits of any kind. */
enum status split_cursor_open(struct split_cursor *cursor) WARN_UNUSED;
void split_cursor_close(struct split_cursor *cursor);

/* Starts on text [bytes], which must outlive the walk. */
void split_begin(struct split_cursor *cursor, const uint8_t *text, size_t bytes);

/* The next piece -> *piece [*bytes >= 1]. AGAIN: the text is over. MEMORY, logged: the expression
 * ran out of its stack. */
enum status split_next(const struct split *split, struct split_cursor *cursor,
                       const uint8_t **piece, size_t *bytes) WARN_UNUSED;

#endif
