#include "base/log.h"
#include "transport/control_tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEY_FILE_BYTES (2 * CONTROL_KEY_BYTES + 1)

bool control_tcp_is_loopback(const char *host) {
    struct in_addr v4;
    struct in6_addr v6;
    if (strcmp(host, "localhost") == 0) return true;
    if (inet_pton(AF_INET, host, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, host, &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6) != 0;
    return false;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

static bool parse_key(const char *text, size_t bytes, uint8_t key[CONTROL_KEY_BYTES]) {
    if (bytes != KEY_FILE_BYTES || text[bytes - 1] != '\n') return false;
    for (size_t i = 0; i < 2 * CONTROL_KEY_BYTES; i++) {
        if (hex_digit(text[i]) < 0) return false;
    }
    for (size_t i = 0; i < CONTROL_KEY_BYTES; i++) {
        key[i] = (uint8_t)(hex_digit(text[2 * i]) << 4 | hex_digit(text[2 * i + 1]));
    }
    return true;
}

/* One byte more than a key file has, so that a longer one is seen. */
static ssize_t read_whole(int fd, char *text, size_t capacity) {
    size_t used = 0;
    while (used < capacity) {
        ssize_t got = read(fd, text + used, capacity - used);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        used += (size_t)got;
    }
    return (ssize_t)used;
}

enum status control_tcp_read_key(const char *path, uint8_t key[CONTROL_KEY_BYTES]) {
    char text[KEY_FILE_BYTES + 1];
    struct stat info;
    enum status status = STATUS_DENIED;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        log_error("cannot read key file %s: %s", path, strerror(errno));
        return STATUS_DENIED;
    }
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        log_error("key file %s is not a regular file", path);
        goto close_file;
    }
    if ((info.st_mode & 07777) != 0600 && (info.st_mode & 07777) != 0400) {
        log_error("key file %s has mode %04o, it must be 0600 or 0400 (chmod 600 %s)", path,
                  (unsigned)(info.st_mode & 07777), path);
        goto close_file;
    }
    ssize_t bytes = read_whole(fd, text, sizeof(text));
    if (bytes < 0) {
        log_error("cannot read key file %s: %s", path, strerror(errno));
    } else if (!parse_key(text, (size_t)bytes, key)) {
        log_error("key file %s is malformed: 64 hexadecimal digits and a newline are expected "
                  "(rubato keygen writes one)",
                  path);
    } else {
        status = STATUS_OK;
    }
close_file:
    close(fd);
    return status;
}

static bool write_whole(int fd, const char *text, size_t bytes) {
    size_t done = 0;
    while (done < bytes) {
        ssize_t put = write(fd, text + done, bytes - done);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return false;
        done += (size_t)put;
    }
    return fsync(fd) == 0;
}

enum status control_tcp_write_key(const char *path) {
    static const char digits[] = "0123456789abcdef";
    uint8_t key[CONTROL_KEY_BYTES];
    char text[KEY_FILE_BYTES];
    if (getrandom(key, sizeof(key), 0) != (ssize_t)sizeof(key)) {
        log_error("cannot get random bytes: %s", strerror(errno));
        return STATUS_IO;
    }
    for (size_t i = 0; i < CONTROL_KEY_BYTES; i++) {
        text[2 * i] = digits[key[i] >> 4];
        text[2 * i + 1] = digits[key[i] & 15];
    }
    text[KEY_FILE_BYTES - 1] = '\n';
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        log_error("cannot write key file %s: %s", path, strerror(errno));
        return STATUS_IO;
    }
    bool written = write_whole(fd, text, sizeof(text));
    int error = errno;
    if (close(fd) != 0 && written) {
        written = false;
        error = errno;
    }
    if (!written) {
        log_error("cannot write key file %s: %s", path, strerror(error));
        unlink(path);
        return STATUS_IO;
    }
    return STATUS_OK;
}
