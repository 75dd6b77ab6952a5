#include "worker/safetensors_read.h"

#include "base/assert.h"
#include "base/json_read.h"
#include "base/log.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SINGLE_NAME   "model.safetensors"
#define INDEX_NAME    "model.safetensors.index.json"
#define INDEX_MAX     ((uint64_t)16 << 20)
#define INDEX_NODES   (64u + 2 * SAFETENSORS_TENSORS_MAX)
#define PIECE_BYTES   ((size_t)64 << 10)
#define FILE_NAME_MAX ((size_t)255)

static enum status io_error(const char *name, const char *what) {
    log_error("cannot %s %s: %s", what, name, strerror(errno));
    return STATUS_IO;
}

/* `folder` AT_FDCWD: a path of the user's own, whose links are followed. */
static enum status open_regular(int folder, const char *name, const char *path, int *fd,
                                uint64_t *bytes) {
    struct stat info;
    /* Not blocking, or a pipe without a writer would hang the open. */
    int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | (folder == AT_FDCWD ? 0 : O_NOFOLLOW);
    int opened = openat(folder, name, flags);
    if (opened < 0 && errno == ELOOP && folder != AT_FDCWD) {
        log_error("%s is a symbolic link, which is not followed inside a model's folder; give the "
                  "file itself, or a folder with a copy of it",
                  path);
        return STATUS_IO;
    }
    if (opened < 0) return io_error(path, "open");
    if (fstat(opened, &info) < 0 || !S_ISREG(info.st_mode)) {
        log_error("%s is not a regular file", path);
        close(opened);
        return STATUS_IO;
    }
    *fd = opened;
    *bytes = (uint64_t)info.st_size;
    return STATUS_OK;
}

static enum status read_at(const char *name, int fd, uint64_t offset, void *data, size_t bytes) {
    uint8_t *next = data;
    while (bytes > 0) {
        ssize_t got = pread(fd, next, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return io_error(name, "read");
        if (got == 0) {
            log_error("%s has become shorter while it was read", name);
            return STATUS_IO;
        }
        next += got;
        offset += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return STATUS_OK;
}

/* The header of the file -> its `header`, and its tensors behind those the model has. */
static enum status read_header(struct safetensors *model, uint32_t index, uint64_t file_bytes) {
    struct safetensors_file *file = &model->files[index];
    uint64_t header_bytes = 0, count = 0;
    struct safetensors_tensor *tensors = NULL;
    if (file_bytes < sizeof header_bytes) {
        log_error("%s: %" PRIu64 " bytes are no safetensors file", file->path, file_bytes);
        return STATUS_CORRUPT;
    }
    TRY(read_at(file->path, file->fd, 0, &header_bytes, sizeof header_bytes));
    if (header_bytes > SAFETENSORS_HEADER_MAX || header_bytes > file_bytes - sizeof header_bytes) {
        log_error("%s: a header of %" PRIu64 " bytes is longer than 16 MiB or than the file",
                  file->path, header_bytes);
        return STATUS_CORRUPT;
    }
    file->header = memory_zeroed((size_t)header_bytes + 1, 1);
    TRY(read_at(file->path, file->fd, sizeof header_bytes, file->header, (size_t)header_bytes));
    TRY(safetensors_parse_header(file->path, file->header, header_bytes, file_bytes, &tensors,
                                 &count));
    if (model->count + count > SAFETENSORS_TENSORS_MAX) {
        log_error("%s: with its tensors the model has more than %d", file->path,
                  SAFETENSORS_TENSORS_MAX);
        free(tensors);
        return STATUS_CORRUPT;
    }
    struct safetensors_tensor *all = memory_zeroed((size_t)(model->count + count) + 1, sizeof *all);
    for (uint64_t i = 0; i < model->count; i++)
        all[i] = model->tensors[i];
    for (uint64_t i = 0; i < count; i++) {
        all[model->count + i] = tensors[i];
        all[model->count + i].file = index;
    }
    free(tensors);
    free(model->tensors);
    model->tensors = all;
    model->count += count;
    return STATUS_OK;
}

static enum status add_file(struct safetensors *model, int folder, const char *name) {
    uint32_t index = model->file_count;
    struct safetensors_file *file = &model->files[index];
    uint64_t bytes = 0;
    if (folder != AT_FDCWD) snprintf(file->name, sizeof file->name, "%s", name);
    snprintf(file->path, sizeof file->path, "%s%s", model->folder, name);
    TRY(open_regular(folder, name, file->path, &file->fd, &bytes));
    model->file_count++;
    return read_header(model, index, bytes);
}

static int compare_names(const void *left, const void *right) {
    const struct safetensors_tensor *a = left, *b = right;
    return strcmp(a->name, b->name);
}

/* In order of name, each once. */
static enum status sort_tensors(struct safetensors *model) {
    if (model->count < 2) return STATUS_OK;
    qsort(model->tensors, (size_t)model->count, sizeof *model->tensors, compare_names);
    for (uint64_t i = 1; i < model->count; i++) {
        const struct safetensors_tensor *a = &model->tensors[i - 1], *b = &model->tensors[i];
        if (strcmp(a->name, b->name) != 0) continue;
        log_error("tensor %.128s is in %s and in %s", a->name, model->files[a->file].path,
                  model->files[b->file].path);
        return STATUS_CORRUPT;
    }
    return STATUS_OK;
}

static bool is_file_name(const char *name) {
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t length = strlen(name);
    if (length == 0 || length > FILE_NAME_MAX || strspn(name, allowed) < length) return false;
    return strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* Opens each file that the map names, once. */
static enum status add_files(struct safetensors *model, int folder, const struct json_tree *tree,
                             uint32_t map) {
    const struct json_node *nodes = tree->nodes;
    for (uint32_t key = map + 1; key < nodes[map].next; key = nodes[key + 1].next) {
        const char *tensor = json_read_text(tree, key);
        if (nodes[key + 1].kind != JSON_TEXT || !is_file_name(json_read_text(tree, key + 1))) {
            log_error("%s" INDEX_NAME
                      ": tensor %.128s: its file is not named by letters, digits and "
                      ". _ - alone",
                      model->folder, tensor);
            return STATUS_CORRUPT;
        }
        const char *name = json_read_text(tree, key + 1);
        uint32_t known = 0;
        while (known < model->file_count && strcmp(model->files[known].name, name) != 0)
            known++;
        if (known < model->file_count) continue;
        if (known == SAFETENSORS_FILES_MAX) {
            log_error("%s" INDEX_NAME ": more than %d files", model->folder, SAFETENSORS_FILES_MAX);
            return STATUS_CORRUPT;
        }
        TRY(add_file(model, folder, name));
    }
    return STATUS_OK;
}

/* Each tensor of the map is in the file that it says, and the files have no others. */
static enum status check_map(const struct safetensors *model, const struct json_tree *tree,
                             uint32_t map) {
    const struct json_node *nodes = tree->nodes;
    for (uint32_t key = map + 1; key < nodes[map].next; key = nodes[key + 1].next) {
        const char *name = json_read_text(tree, key), *file = json_read_text(tree, key + 1);
        const struct safetensors_tensor *tensor = safetensors_find(model, name);
        if (tensor != NULL && strcmp(model->files[tensor->file].name, file) == 0) continue;
        log_error("%s" INDEX_NAME ": tensor %.128s is not in %s", model->folder, name, file);
        return STATUS_CORRUPT;
    }
    if (nodes[map].length == model->count) return STATUS_OK;
    log_error("%s" INDEX_NAME ": it lists %" PRIu32 " tensors, its files have %" PRIu64,
              model->folder, nodes[map].length, model->count);
    return STATUS_CORRUPT;
}

static enum status read_index(struct safetensors *model, int folder, const struct json_tree *tree) {
    uint32_t map = json_read_member(tree, 0, "weight_map");
    if (map == JSON_NONE || tree->nodes[map].kind != JSON_OBJECT) {
        log_error("%s" INDEX_NAME " has no weight_map", model->folder);
        return STATUS_CORRUPT;
    }
    TRY(add_files(model, folder, tree, map));
    TRY(sort_tensors(model));
    return check_map(model, tree, map);
}

static enum status open_index(struct safetensors *model, int folder) {
    char why[256], path[512];
    int fd = -1;
    uint64_t bytes = 0;
    struct json_tree tree = {0};
    snprintf(path, sizeof path, "%s" INDEX_NAME, model->folder);
    TRY(open_regular(folder, INDEX_NAME, path, &fd, &bytes));
    if (bytes > INDEX_MAX) {
        log_error("%s" INDEX_NAME " is longer than 16 MiB", model->folder);
        close(fd);
        return STATUS_CORRUPT;
    }
    char *text = memory_zeroed((size_t)bytes + 1, 1);
    enum status status = read_at(path, fd, 0, text, (size_t)bytes);
    close(fd);
    if (status == STATUS_OK) {
        status = json_read_parse(&tree, text, (size_t)bytes, INDEX_NODES, why, sizeof why);
        if (status != STATUS_OK) log_error("%s" INDEX_NAME ": %s", model->folder, why);
    }
    if (status == STATUS_OK) status = read_index(model, folder, &tree);
    json_read_free(&tree);
    free(text);
    return status;
}

static enum status open_folder(struct safetensors *model, const char *path, bool index_given) {
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enum status status = STATUS_OK;
    if (folder < 0) return io_error(path, "open");
    snprintf(model->folder, sizeof model->folder, "%s%s", path,
             path[strlen(path) - 1] == '/' ? "" : "/");
    if (!index_given && faccessat(folder, SINGLE_NAME, F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
        status = add_file(model, folder, SINGLE_NAME);
        if (status == STATUS_OK) status = sort_tensors(model);
    } else if (index_given || faccessat(folder, INDEX_NAME, F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
        status = open_index(model, folder);
    } else {
        log_error("%s has neither " SINGLE_NAME " nor " INDEX_NAME, path);
        status = STATUS_IO;
    }
    close(folder);
    return status;
}

/* The folder of the index that the user gave. */
static enum status open_index_of(struct safetensors *model, const char *path) {
    char folder[4096];
    const char *slash = strrchr(path, '/');
    int length = slash == NULL ? 1 : (int)(slash - path + 1);
    if (strlen(path) >= sizeof folder) {
        errno = ENAMETOOLONG;
        return io_error(path, "open");
    }
    snprintf(folder, sizeof folder, "%.*s", length, slash == NULL ? "." : path);
    return open_folder(model, folder, true);
}

enum status safetensors_open(struct safetensors *model, const char *path) {
    struct stat info;
    struct safetensors made = {0};
    enum status status;
    if (stat(path, &info) < 0) return io_error(path, "open");
    made.files = memory_zeroed(SAFETENSORS_FILES_MAX, sizeof *made.files);
    const char *slash = strrchr(path, '/');
    if (S_ISDIR(info.st_mode)) {
        status = open_folder(&made, path, false);
    } else if (strcmp(slash == NULL ? path : slash + 1, INDEX_NAME) == 0) {
        status = open_index_of(&made, path);
    } else {
        status = add_file(&made, AT_FDCWD, path);
        if (status == STATUS_OK) status = sort_tensors(&made);
    }
    if (status != STATUS_OK) {
        safetensors_close(&made);
        return status;
    }
    *model = made;
    return STATUS_OK;
}

void safetensors_close(struct safetensors *model) {
    for (uint32_t i = 0; i < model->file_count; i++) {
        close(model->files[i].fd);
        free(model->files[i].header);
    }
    free(model->files);
    free(model->tensors);
    *model = (struct safetensors){0};
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *model,
                                                  const char *name) {
    struct safetensors_tensor key = {.name = name};
    if (model->count == 0) return NULL;
    return bsearch(&key, model->tensors, (size_t)model->count, sizeof key, compare_names);
}

enum status safetensors_read(const struct safetensors *model,
                             const struct safetensors_tensor *tensor, uint64_t first,
                             uint64_t count, float *values) {
    const struct safetensors_file *file = &model->files[tensor->file];
    uint8_t piece[PIECE_BYTES];
    ASSERT(first <= tensor->count && count <= tensor->count - first);
    if (!dtype_is_weight(tensor->dtype)) {
        log_error("%s: tensor %.128s: weights are F32, BF16 or F16, not %s", file->path,
                  tensor->name, dtype_name(tensor->dtype));
        return STATUS_UNSUPPORTED;
    }
    uint64_t value_bytes = dtype_bits(tensor->dtype) / 8;
    uint64_t offset = tensor->begin + first * value_bytes;
    while (count > 0) {
        size_t part = PIECE_BYTES / (size_t)value_bytes;
        if (count < part) part = (size_t)count;
        size_t bytes = part * (size_t)value_bytes;
        TRY(read_at(file->path, file->fd, offset, piece, bytes));
        dtype_decode(tensor->dtype, piece, part, values);
        values += part;
        offset += bytes;
        count -= part;
    }
    return STATUS_OK;
}
