/* jsonl.h - the documents of a JSONL file: a JSON object a line, its member "text" is the document.
 *
 * Lines end in \n (or \r\n); empty ones are passed over. Each other line must be one JSON object
 * (RFC 8259) with one string member "text"; other members may be anything, nested at most
 * JSONL_DEPTH_MAX deep. Escapes are resolved (\uXXXX, with surrogate pairs); what is not UTF-8, a
 * lone surrogate, a second "text" and anything malformed is refused with line and column.
 * A document is decoded in place, over its own line: it is never longer than its line.
 */
#ifndef RUBATO_WORKER_JSONL_H
#define RUBATO_WORKER_JSONL_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define JSONL_DEPTH_MAX 64

struct jsonl {
    uint8_t *content; /* [bytes], the caller's, written to */
    uint64_t bytes;
    uint64_t at;   /* start of the next line */
    uint64_t line; /* that has been read, from 1 */
    const char *path;
};

/* `path` is for messages; both must outlive the reader. */
void jsonl_init(struct jsonl *jsonl, uint8_t *content, uint64_t bytes, const char *path);

/* The next document -> *text [*bytes], inside the content. AGAIN: there is no more. CORRUPT, logged
 * with file, line and column. */
enum status jsonl_next(struct jsonl *jsonl, uint8_t **text, uint64_t *bytes) WARN_UNUSED;

/* Whether content [bytes] looks like JSONL: starts with { and its first line is an object with a
 * string "text". In silence; the content stays as it is. */
bool jsonl_looks_like(const uint8_t *content, uint64_t bytes);

/* All documents, one after the other with a newline between two, to the content's beginning;
 * *joined is their bytes. CORRUPT, logged. */
enum status jsonl_join(uint8_t *content, uint64_t bytes, const char *path,
                       uint64_t *joined) WARN_UNUSED;

#endif
