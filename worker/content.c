#include "worker/content.h"

#include "base/log.h"
#include "base/memory.h"
#include "worker/jsonl.h"
#include "worker/zst.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool ends_with(const char *text, size_t bytes, const char *ending) {
    size_t ending_bytes = strlen(ending);
    return bytes >= ending_bytes && memcmp(text + bytes - ending_bytes, ending, ending_bytes) == 0;
}

/* kind = the ending of path [bytes], from its last point on. */
static void take_kind(struct content *content, const char *path, size_t bytes) {
    size_t at = bytes;
    while (at > 0 && path[at - 1] != '.' && path[at - 1] != '/')
        at--;
    size_t length = bytes - at + 1;
    if (at == 0 || path[at - 1] != '.' || length >= sizeof(content->kind)) return;
    memcpy(content->kind, path + at - 1, length);
}

/* The whole file, mapped. */
static enum status map_file(const char *path, uint8_t **bytes, uint64_t *count) {
    enum status status = STATUS_IO;
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        log_error("cannot open %s: %s", path, strerror(errno));
        return STATUS_IO;
    }
    if (fstat(fd, &about) != 0) {
        log_error("cannot read %s: %s", path, strerror(errno));
        goto close_file;
    }
    if (!S_ISREG(about.st_mode) || about.st_size == 0) {
        log_error("%s: %s", path, S_ISREG(about.st_mode) ? "the file is empty" : "is not a file");
        goto close_file;
    }
    /* Pages that are written to become the process's own; the rest stay the file's, which is why
     * no memory is reserved for a change of all of them. */
    void *map = mmap(NULL, (size_t)about.st_size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_NORESERVE, fd, 0);
    if (map == MAP_FAILED) {
        log_error("cannot map %s: %s", path, strerror(errno));
        goto close_file;
    }
    *bytes = map;
    *count = (uint64_t)about.st_size;
    status = STATUS_OK;
close_file:
    close(fd);
    return status;
}

enum status content_open(struct content *content, const char *path) {
    struct content opened = {0};
    size_t name_bytes = strlen(path);
    size_t cut = name_bytes < CONTENT_NAME_MAX ? 0 : name_bytes - CONTENT_NAME_MAX + 1;
    memcpy(opened.name, path + cut, name_bytes - cut);
    TRY(map_file(path, &opened.bytes, &opened.count));
    if (ends_with(path, name_bytes, ".zst")) {
        uint8_t *file = opened.bytes;
        uint64_t file_bytes = opened.count;
        name_bytes -= strlen(".zst");
        enum status status = zst_decode(file, (size_t)file_bytes, opened.name, zst_default_limit(),
                                        &opened.bytes, &opened.count);
        munmap(file, (size_t)file_bytes);
        if (status != STATUS_OK) return status;
        if (opened.count == 0) {
            log_error("%s: decompresses to nothing", opened.name);
            return STATUS_IO;
        }
    }
    take_kind(&opened, path, name_bytes);
    opened.jsonl =
        strcmp(opened.kind, ".jsonl") == 0 || jsonl_looks_like(opened.bytes, opened.count);
    /* Nothing but JSONL is decoded in place. */
    if (!opened.jsonl) (void)mprotect(opened.bytes, (size_t)opened.count, PROT_READ);
    *content = opened;
    return STATUS_OK;
}

void content_close(struct content *content) {
    if (content->bytes != NULL) munmap(content->bytes, (size_t)content->count);
    *content = (struct content){0};
}

static enum status add_path(struct content_list *list, const char *path) {
    if (list->count == CONTENT_FILES_MAX) {
        log_error("%s and %d files before it: too many", path, CONTENT_FILES_MAX);
        return STATUS_IO;
    }
    size_t bytes = strlen(path) + 1;
    list->paths[list->count] = memory_zeroed(bytes, 1);
    memcpy(list->paths[list->count], path, bytes);
    list->count++;
    return STATUS_OK;
}

/* One part of a list. */
static enum status add_matches(struct content_list *list, const char *part) {
    glob_t found = {0};
    if (access(part, F_OK) == 0) return add_path(list, part);
    int code = glob(part, 0, NULL, &found);
    enum status status = STATUS_OK;
    if (code != 0) {
        bool pattern = strpbrk(part, "*?[") != NULL;
        if (pattern && code == GLOB_NOMATCH) {
            log_error("no file matches '%s'", part);
        } else {
            log_error("cannot open %s: %s", part, strerror(pattern ? EIO : ENOENT));
        }
        status = STATUS_IO;
    }
    for (size_t i = 0; status == STATUS_OK && i < found.gl_pathc; i++)
        status = add_path(list, found.gl_pathv[i]);
    globfree(&found);
    return status;
}

enum status content_list_open(struct content_list *list, const char *text) {
    struct content_list opened = {.paths = memory_zeroed(CONTENT_FILES_MAX, sizeof(char *))};
    size_t bytes = strlen(text) + 1;
    char *parts = memory_zeroed(bytes, 1);
    enum status status = STATUS_OK;
    memcpy(parts, text, bytes);
    if (access(text, F_OK) == 0) {
        status = add_path(&opened, text);
    } else {
        char *rest = NULL;
        for (char *part = strtok_r(parts, ",", &rest); part != NULL && status == STATUS_OK;
             part = strtok_r(NULL, ",", &rest))
            status = add_matches(&opened, part);
        if (status == STATUS_OK && opened.count == 0) {
            log_error("'%s' names no file", text);
            status = STATUS_IO;
        }
    }
    free(parts);
    if (status == STATUS_OK) {
        *list = opened;
    } else {
        content_list_close(&opened);
    }
    return status;
}

void content_list_close(struct content_list *list) {
    for (uint64_t i = 0; i < list->count; i++)
        free(list->paths[i]);
    free(list->paths);
    *list = (struct content_list){0};
}
