/* content.h - a file's content in memory: mapped, decompressed, and told what it is.
 *
 * A plain file is mapped private and writable, so that JSONL can be decoded in place without
 * touching the file. A name that ends in .zst is decompressed into memory (zst.h); what it holds is
 * told by the rest of the name. JSONL is what ends in .jsonl, or looks like it (jsonl.h).
 */
#ifndef RUBATO_WORKER_CONTENT_H
#define RUBATO_WORKER_CONTENT_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define CONTENT_NAME_MAX 256

struct content {
    uint8_t *bytes; /* [count], the mapping, written to only if it is JSONL; NULL when closed */
    uint64_t count;
    char name[CONTENT_NAME_MAX]; /* the path, for messages; its beginning is cut if longer */
    char kind[8];                /* the name's ending without .zst: ".bin", ".jsonl", ... or "" */
    bool jsonl;
};

/* IO, logged: cannot be read, is no file, or empty. CORRUPT, MEMORY, logged: see zst_decode(). */
enum status content_open(struct content *content, const char *path) WARN_UNUSED;

/* Harmless on a zeroed struct. */
void content_close(struct content *content);

/* The files that a list means: parts divided by commas, each a file's name or a pattern of glob(7),
 * whose matches come in order of name. A file of just that name goes before any such reading. */
struct content_list {
    char **paths; /* [count] */
    uint64_t count;
};

#define CONTENT_FILES_MAX 65536

/* IO, logged: a part matches nothing, or more than CONTENT_FILES_MAX files. Takes memory. */
enum status content_list_open(struct content_list *list, const char *text) WARN_UNUSED;

/* Harmless on a zeroed struct. */
void content_list_close(struct content_list *list);

#endif
