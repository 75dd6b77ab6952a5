/* tokenizer.h - text to tokens and back, by byte-level byte-pair encoding.
 *
 * Text is cut into pieces by the vocabulary's expression (split.h), each piece is merged by itself
 * (bpe.h), and pieces that came before are looked up. Any bytes can be encoded, and decoding gives
 * them back. Texts are data: what looks like a special token in them (<|endoftext|>) is encoded as
 * the letters it is; only the caller adds special tokens. tokenizer_read.h has the file formats.
 */
#ifndef RUBATO_WORKER_TOKENIZER_H
#define RUBATO_WORKER_TOKENIZER_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TOKENIZER_NONE UINT32_MAX

struct tokenizer;

/* NULL is harmless. No encoder may be open. */
void tokenizer_close(struct tokenizer *tokenizer);

/* Ids are 0 .. vocab - 1; some may mean nothing. */
int64_t tokenizer_vocab(const struct tokenizer *tokenizer);

/* What ends a document, or TOKENIZER_NONE. */
uint32_t tokenizer_eot(const struct tokenizer *tokenizer);

/* The name of its split pattern (split.h). */
const char *tokenizer_pattern(const struct tokenizer *tokenizer);

/* XXH3-64 of the file it came from. */
uint64_t tokenizer_digest(const struct tokenizer *tokenizer);

/* The bytes of a token, 0 where the id means nothing or is >= vocab; *text lives as long as the
 * tokenizer. Any thread. */
size_t tokenizer_token(const struct tokenizer *tokenizer, uint32_t id, const uint8_t **text);

/* ids [count] -> text [capacity >= tokenizer_decode_bound()]; returns the bytes. Any thread. */
size_t tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t count,
                        uint8_t *text);

/* The bytes that these ids decode to. */
size_t tokenizer_decode_bound(const struct tokenizer *tokenizer, const int32_t *ids, size_t count);

/* One thread's working memory: pieces that were merged before, and the result. */
struct tokenizer_encoder;

#define TOKENIZER_TEXT_MAX ((size_t)1 << 28) /* bytes of one text */

/* The tokenizer must outlive the encoder. MEMORY, logged. */
enum status tokenizer_encoder_open(struct tokenizer_encoder **encoder,
                                   const struct tokenizer *tokenizer) WARN_UNUSED;
void tokenizer_encoder_close(struct tokenizer_encoder *encoder);

/* text [bytes <= TOKENIZER_TEXT_MAX] -> *ids [*count], the encoder's until its next call. `starts`:
 * the text begins a document, where some vocabularies add a space. MEMORY, logged. */
enum status tokenizer_encode(struct tokenizer_encoder *encoder, const uint8_t *text, size_t bytes,
                             bool starts, const uint32_t **ids, size_t *count) WARN_UNUSED;

/* Where text [bytes] can be cut so that the two sides encode to what the whole does: the first such
 * place in from .. bytes, with bytes itself always one. */
size_t tokenizer_cut(const uint8_t *text, size_t bytes, size_t from);

#endif
