/* tokenizer_read.h - a vocabulary from a file: Hugging Face's tokenizer.json, or tiktoken's.
 *
 * tokenizer.json: byte-level BPE alone. model.type BPE with vocab and merges ("a b" or ["a","b"]);
 * pre_tokenizer ByteLevel, or a Sequence of Split by a known expression (split.h) and ByteLevel;
 * added_tokens that are special. What would change the tokens in another way (a normalizer, byte
 * fallback, dropout, prefixes, added tokens that are not special) is refused with its name; what
 * only adds tokens around a text (post_processor) is passed over.
 * .tiktoken: lines "BASE64 RANK", each rank from 0 on once; pairs merge by the rank of what they
 * become. Such a file does not say how text is split: known sizes are r50k_base, cl100k_base and
 * o200k_base, others need a pattern.
 */
#ifndef RUBATO_WORKER_TOKENIZER_READ_H
#define RUBATO_WORKER_TOKENIZER_READ_H

#include "worker/tokenizer.h"

#define TOKENIZER_FILE_MAX ((size_t)256 << 20) /* bytes */

/* The format is told by the content. `pattern`: a name of split.h; NULL or empty: the file's own.
 * `path` may also end in ",PATTERN". IO, CORRUPT, UNSUPPORTED (a tokenizer of another kind),
 * INVALID (no pattern, or one that contradicts), MEMORY: logged with path and reason. */
enum status tokenizer_open(struct tokenizer **tokenizer, const char *path,
                           const char *pattern) WARN_UNUSED;

/* The same from memory: text [bytes] has a 0 byte behind its end and is changed. */
enum status tokenizer_parse_json(struct tokenizer **tokenizer, char *text, size_t bytes,
                                 const char *path) WARN_UNUSED;
enum status tokenizer_parse_tiktoken(struct tokenizer **tokenizer, const char *text, size_t bytes,
                                     const char *pattern, const char *path) WARN_UNUSED;

#endif
