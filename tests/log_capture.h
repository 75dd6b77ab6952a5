/* log_capture.h - what the code under test logs, for the test to read.
 *
 * Standard error goes to a file without a name from log_capture() on; at exit the file is shown on
 * the real one, so that a failed CHECK is seen. For one translation unit.
 */
#ifndef RUBATO_TESTS_LOG_CAPTURE_H
#define RUBATO_TESTS_LOG_CAPTURE_H

#include "test.h"

#include <fcntl.h>
#include <unistd.h>

static int log_fd = -1, error_fd = -1;

/* What a failed CHECK wrote would otherwise be lost with the file. */
static inline void log_show(void) {
    char content[4096];
    off_t at = 0;
    ssize_t bytes;
    while ((bytes = pread(log_fd, content, sizeof(content), at)) > 0) {
        if (write(error_fd, content, (size_t)bytes) != bytes) return;
        at += bytes;
    }
}

static inline void log_capture(void) {
    char path[] = "/tmp/rubato-test-XXXXXX";
    log_fd = mkstemp(path);
    CHECK(log_fd >= 0);
    unlink(path);
    CHECK_INT(fcntl(log_fd, F_SETFL, O_APPEND), 0);
    error_fd = dup(2);
    CHECK_INT(atexit(log_show), 0);
    CHECK_INT(dup2(log_fd, 2), 2);
}

static inline void log_restart(void) {
    CHECK_INT(ftruncate(log_fd, 0), 0);
}

/* How often `text` is in the log since the restart. */
static inline int log_count(const char *text) {
    static char content[65536];
    ssize_t bytes = pread(log_fd, content, sizeof(content) - 1, 0);
    int count = 0;
    CHECK(bytes >= 0);
    content[bytes] = 0;
    for (const char *at = strstr(content, text); at != NULL; at = strstr(at + 1, text)) {
        count++;
    }
    return count;
}

#define EXPECT_LOG(text, times)                                                                    \
    do {                                                                                           \
        int times_ = log_count(text);                                                              \
        if (times_ != (times)) {                                                                   \
            dprintf(error_fd, "%s:%d: \"%s\" is %d times in the log, expected %d\n", __FILE__,     \
                    __LINE__, text, times_, (times));                                              \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#endif
