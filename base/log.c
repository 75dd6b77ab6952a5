#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 2048

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};
static enum log_level level_now = LOG_INFO;

void log_set_level(enum log_level level) {
    level_now = level;
}

enum status log_level_parse(const char *text, enum log_level *level) {
    for (int i = LOG_ERROR; i <= LOG_TRACE; i++) {
        if (strcmp(text, level_names[i]) == 0) {
            *level = (enum log_level)i;
            return STATUS_OK;
        }
    }
    return STATUS_INVALID;
}

bool log_enabled(enum log_level level) {
    return level <= level_now;
}

static size_t write_prefix(char *line, size_t bytes, enum log_level level) {
    struct timespec now;
    struct tm day;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &day);
    int used = snprintf(line, bytes, "%02d:%02d:%02d.%03d %s ", day.tm_hour, day.tm_min, day.tm_sec,
                        (int)(now.tv_nsec / 1000000), level_names[level]);
    return (size_t)used;
}

void log_write(enum log_level level, const char *format, ...) {
    if (!log_enabled(level)) return;
    int saved_errno = errno; /* callers log first and look at errno afterwards, too */
    char line[LINE_MAX_BYTES];
    size_t start = write_prefix(line, sizeof line, level);
    size_t room = sizeof line - start; /* the line end takes the place of the 0 byte */
    va_list arguments;
    va_start(arguments, format);
    int wanted = vsnprintf(line + start, room, format, arguments);
    va_end(arguments);
    size_t end = start + (wanted < 0 ? 0 : (size_t)wanted);
    if (wanted >= 0 && (size_t)wanted >= room) {
        end = start + room - 1;
        snprintf(line + end - 3, 4, "...");
    }
    /* Text from users and peers must not be able to forge a second line or steer a terminal. */
    for (size_t i = start; i < end; i++) {
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f) line[i] = ' ';
    }
    line[end++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, end);
    (void)written; /* nowhere left to say that the log cannot be written */
    errno = saved_errno;
}
