/* files.h - whole files: read with a limit, written so that they are complete or absent. */
#ifndef RUBATO_BASE_FILES_H
#define RUBATO_BASE_FILES_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Reads a regular file of at most `limit` bytes into new memory (free() it), with a 0 byte after
 * its end that is not counted. IO: cannot be read (logged with the reason); INVALID: longer than
 * the limit, or not a regular file; MEMORY: none for its content (all logged). */
enum status files_read(const char *path, size_t limit, char **content, size_t *bytes) WARN_UNUSED;

/* A file that appears under its name only when all of it is on the disk: written as
 * `path`.tmp-<pid>, then fsync, rename, fsync of the folder. */
struct files_writer {
    int fd;
    char path[4096];
    char temporary[4096];
};

/* IO, logged with path and reason; so are those of write and commit. After a failure the temporary
 * file is gone and the calls that follow are IO, too, in silence. */
enum status files_create(struct files_writer *writer, const char *path) WARN_UNUSED;
enum status files_write(struct files_writer *writer, const void *data, size_t bytes) WARN_UNUSED;
enum status files_commit(struct files_writer *writer) WARN_UNUSED;

/* Removes the temporary file; harmless after a commit. */
void files_abandon(struct files_writer *writer);

/* mkdir -p. IO, logged. */
enum status files_make_folder(const char *path) WARN_UNUSED;

/* path = folder + "/" + name; INVALID when it does not fit `bytes` (logged). */
enum status files_join(char *path, size_t bytes, const char *folder, const char *name) WARN_UNUSED;

#endif
