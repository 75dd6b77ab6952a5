#include "base/files.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_READ_BYTES ((size_t)4096)

static enum status io_error(const char *what, const char *path) {
    log_error("cannot %s %s: %s", what, path, strerror(errno));
    return STATUS_IO;
}

static enum status too_long(const char *path, size_t limit) {
    log_error("%s is longer than %zu bytes, the most that is read of it", path, limit);
    return STATUS_INVALID;
}

/* Reads to the end, at most limit + 1 bytes, into *buffer, which is the caller's to free whatever
 * comes back. The size that stat tells is a first guess only: files grow, and those of /proc claim
 * to be empty. */
static enum status read_all(int fd, const char *path, size_t limit, size_t guess, char **buffer,
                            size_t *bytes) {
    size_t capacity = guess < FIRST_READ_BYTES ? FIRST_READ_BYTES : guess + 1;
    size_t used = 0;
    *buffer = NULL;
    for (;;) {
        if (capacity > limit + 1) capacity = limit + 1;
        char *larger = realloc(*buffer, capacity + 1);
        if (!larger) {
            log_error("cannot read %s: out of memory for %zu bytes", path, capacity);
            return STATUS_MEMORY;
        }
        *buffer = larger;
        while (used < capacity) {
            ssize_t got = read(fd, *buffer + used, capacity - used);
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) return io_error("read", path);
            if (got == 0) {
                (*buffer)[used] = 0;
                *bytes = used;
                return STATUS_OK;
            }
            used += (size_t)got;
        }
        if (used > limit) return too_long(path, limit);
        capacity *= 2;
    }
}

enum status files_read(const char *path, size_t limit, char **content, size_t *bytes) {
    if (limit > PTRDIFF_MAX / 4) limit = PTRDIFF_MAX / 4;
    /* Not blocking, or a pipe without a writer would hang the open. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return io_error("open", path);
    enum status status = STATUS_OK;
    char *buffer = NULL;
    size_t used = 0;
    struct stat info;
    if (fstat(fd, &info) < 0) {
        status = io_error("read", path);
    } else if (!S_ISREG(info.st_mode)) {
        log_error("%s is not a regular file", path);
        status = STATUS_INVALID;
    } else if ((uint64_t)info.st_size > limit) {
        status = too_long(path, limit);
    } else {
        status = read_all(fd, path, limit, (size_t)info.st_size, &buffer, &used);
    }
    close(fd);
    if (status != STATUS_OK) {
        free(buffer);
        return status;
    }
    *content = buffer;
    *bytes = used;
    return STATUS_OK;
}

enum status files_create(struct files_writer *writer, const char *path) {
    writer->fd = -1;
    writer->temporary[0] = 0;
    int path_bytes = snprintf(writer->path, sizeof writer->path, "%s", path);
    char temporary[sizeof writer->temporary];
    int bytes = snprintf(temporary, sizeof temporary, "%s.tmp-%ld", path, (long)getpid());
    if (path_bytes < 0 || bytes < 0 || (size_t)bytes >= sizeof temporary) {
        errno = ENAMETOOLONG;
        return io_error("create", path);
    }
    /* One that a killed process of the same id left behind is overwritten, but never a link. */
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0) return io_error("create", temporary);
    memcpy(writer->temporary, temporary, (size_t)bytes + 1);
    writer->fd = fd;
    return STATUS_OK;
}

enum status files_write(struct files_writer *writer, const void *data, size_t bytes) {
    const char *next = data;
    if (writer->fd < 0) return STATUS_IO; /* an earlier write failed, and was logged */
    while (bytes > 0) {
        ssize_t written = write(writer->fd, next, bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) {
            io_error("write", writer->temporary);
            files_abandon(writer);
            return STATUS_IO;
        }
        next += written;
        bytes -= (size_t)written;
    }
    return STATUS_OK;
}

/* A rename is on the disk when the folder is. */
static enum status sync_folder_of(const char *path) {
    char folder[sizeof((struct files_writer *)0)->path];
    const char *slash = strrchr(path, '/');
    if (!slash) {
        snprintf(folder, sizeof folder, ".");
    } else {
        int length = slash == path ? 1 : (int)(slash - path);
        snprintf(folder, sizeof folder, "%.*s", length, path);
    }
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return io_error("open", folder);
    int failed = fsync(fd);
    /* EINVAL: a file system that has no such thing, where nothing better can be done. */
    enum status status = failed && errno != EINVAL ? io_error("sync", folder) : STATUS_OK;
    close(fd);
    return status;
}

enum status files_commit(struct files_writer *writer) {
    if (writer->fd < 0) return STATUS_IO; /* an earlier write failed, and was logged */
    int failed = fsync(writer->fd);
    if (close(writer->fd) < 0) failed = -1;
    writer->fd = -1;
    if (failed) {
        io_error("sync", writer->temporary);
        files_abandon(writer);
        return STATUS_IO;
    }
    if (rename(writer->temporary, writer->path) < 0) {
        io_error("rename the temporary file to", writer->path);
        files_abandon(writer);
        return STATUS_IO;
    }
    writer->temporary[0] = 0;
    return sync_folder_of(writer->path);
}

void files_abandon(struct files_writer *writer) {
    if (writer->fd >= 0) close(writer->fd);
    writer->fd = -1;
    if (writer->temporary[0]) unlink(writer->temporary);
    writer->temporary[0] = 0;
}

/* mkdir of one folder; one that is there already is fine, whatever error mkdir prefers to give. */
static enum status make_one(const char *path) {
    if (mkdir(path, 0777) == 0) return STATUS_OK;
    int mkdir_errno = errno;
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) return STATUS_OK;
    errno = mkdir_errno;
    return io_error("make the folder", path);
}

enum status files_make_folder(const char *path) {
    char partial[sizeof((struct files_writer *)0)->path];
    size_t bytes = strlen(path);
    if (bytes == 0 || bytes >= sizeof partial) {
        errno = bytes == 0 ? ENOENT : ENAMETOOLONG;
        return io_error("make the folder", path);
    }
    memcpy(partial, path, bytes + 1);
    for (char *slash = strchr(partial + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        TRY(make_one(partial));
        *slash = '/';
    }
    return make_one(partial);
}

enum status files_join(char *path, size_t bytes, const char *folder, const char *name) {
    int wanted = snprintf(path, bytes, "%s/%s", folder, name);
    if (wanted >= 0 && (size_t)wanted < bytes) return STATUS_OK;
    log_error("path too long: %s/%s", folder, name);
    return STATUS_INVALID;
}
