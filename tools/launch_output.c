/* launch_output.c - lines of the children: names before them, one live progress line. */
#include "tools/launch_output.h"

#include "base/clock.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

#define SPARSE_NS (5 * CLOCK_S)
#define READS_MAX 64 /* a call: one child that never stops writing must not starve the others */

/* A closed or full standard output must not end the job: errors are dropped. */
static void write_all(int fd, const char *text, size_t bytes) {
    while (bytes > 0) {
        ssize_t written = write(fd, text, bytes);
        if (written < 0) {
            if (errno == EINTR) continue;
            return;
        }
        text += written;
        bytes -= (size_t)written;
    }
}

/* Bytes of the progress line that fit the terminal's width, so that it never wraps: a wrapped line
 * cannot be drawn over. UTF-8 continuation bytes take no column. */
static size_t fitting_bytes(const char *text) {
    struct winsize size;
    size_t columns = 79;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1) {
        columns = (size_t)size.ws_col - 1;
    }
    size_t bytes = 0, used = 0;
    for (; text[bytes]; bytes++) {
        bool starts = ((unsigned char)text[bytes] & 0xc0) != 0x80;
        if (starts && used == columns) break;
        used += starts;
    }
    return bytes;
}

static void live_draw(struct launch_output *output) {
    if (output->progress != LAUNCH_PROGRESS_LIVE || !output->step[0]) return;
    char text[LAUNCH_STEP_MAX + 8];
    int bytes =
        snprintf(text, sizeof text, "\r%.*s\033[K", (int)fitting_bytes(output->step), output->step);
    write_all(STDERR_FILENO, text, (size_t)bytes);
    output->drawn = true;
}

static void live_erase(struct launch_output *output) {
    if (!output->drawn) return;
    write_all(STDERR_FILENO, "\r\033[K", 4);
    output->drawn = false;
}

static void step_print(const struct launch_output *output) {
    char text[LAUNCH_STEP_MAX + 2];
    int bytes = snprintf(text, sizeof text, "%s\n", output->step);
    write_all(STDERR_FILENO, text, (size_t)bytes);
}

static void take_step(struct launch_output *output, const char *line, size_t bytes,
                      int64_t now_ns) {
    if (bytes >= sizeof output->step) bytes = sizeof output->step - 1;
    memcpy(output->step, line, bytes);
    output->step[bytes] = 0;
    if (output->progress == LAUNCH_PROGRESS_LIVE) {
        live_draw(output);
        return;
    }
    output->unprinted = true;
    if (output->progress == LAUNCH_PROGRESS_ALL || output->printed_ns == 0 ||
        now_ns - output->printed_ns >= SPARSE_NS) {
        step_print(output);
        output->printed_ns = now_ns;
        output->unprinted = false;
    }
}

/* Name, line and newline by one call, so that lines of ours and of others do not mix. */
static void print_error_line(struct launch_output *output, const char *name, const char *line,
                             size_t bytes) {
    char prefix[LAUNCH_NAME_MAX + 4];
    char newline = '\n';
    int prefix_bytes = snprintf(prefix, sizeof prefix, "[%s] ", name);
    struct iovec parts[3] = {
        {.iov_base = prefix, .iov_len = (size_t)prefix_bytes},
        {.iov_base = (void *)line, .iov_len = bytes},
        {.iov_base = &newline, .iov_len = 1},
    };
    live_erase(output);
    while (writev(STDERR_FILENO, parts, 3) < 0 && errno == EINTR) {
    }
    live_draw(output);
}

/* A line of a child, without its newline. */
static void take_line(struct launch_output *output, const struct launch_stream *stream,
                      const char *line, size_t bytes, int64_t now_ns) {
    size_t mark = strlen(LAUNCH_STEP_MARK);
    if (bytes >= mark && memcmp(line, LAUNCH_STEP_MARK, mark) == 0) {
        take_step(output, line, bytes, now_ns);
    } else {
        print_error_line(output, stream->name, line, bytes);
    }
}

/* Hands on every whole line that the buffer holds; a line that fills all of it goes in pieces. */
static void take_lines(struct launch_output *output, struct launch_stream *stream, int64_t now_ns) {
    size_t begin = 0;
    for (;;) {
        char *newline = memchr(stream->line + begin, '\n', stream->used - begin);
        if (!newline) break;
        size_t end = (size_t)(newline - stream->line);
        if (!stream->is_stdout) {
            take_line(output, stream, stream->line + begin, end - begin, now_ns);
        }
        begin = end + 1;
    }
    if (begin == 0 && stream->used == sizeof stream->line) {
        if (!stream->is_stdout) take_line(output, stream, stream->line, stream->used, now_ns);
        begin = stream->used;
    }
    if (stream->is_stdout && begin > 0) {
        launch_output_settle(output);
        write_all(STDOUT_FILENO, stream->line, begin);
    }
    stream->used -= begin;
    memmove(stream->line, stream->line + begin, stream->used);
}

void launch_output_init(struct launch_output *output, const char *progress) {
    memset(output, 0, sizeof *output);
    output->progress = LAUNCH_PROGRESS_SPARSE;
    if (strcmp(progress, "line") == 0) {
        output->progress = LAUNCH_PROGRESS_ALL;
    } else if (isatty(STDERR_FILENO)) {
        output->progress = LAUNCH_PROGRESS_LIVE;
    }
}

void launch_output_note(struct launch_output *output, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    int bytes = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (bytes < 0) return;
    if ((size_t)bytes >= sizeof text) bytes = (int)sizeof text - 1;
    print_error_line(output, "launch", text, (size_t)bytes);
}

void launch_output_read(struct launch_output *output, struct launch_stream *stream,
                        int64_t now_ns) {
    for (int i = 0; i < READS_MAX && stream->fd >= 0; i++) {
        ssize_t bytes =
            read(stream->fd, stream->line + stream->used, sizeof stream->line - stream->used);
        if (bytes < 0 && errno == EINTR) continue;
        if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (bytes <= 0) {
            launch_output_close(output, stream, now_ns);
            return;
        }
        stream->used += (size_t)bytes;
        take_lines(output, stream, now_ns);
    }
}

void launch_output_close(struct launch_output *output, struct launch_stream *stream,
                         int64_t now_ns) {
    if (stream->fd < 0) return;
    close(stream->fd);
    stream->fd = -1;
    if (stream->used == 0) return;
    if (stream->is_stdout) {
        launch_output_settle(output);
        write_all(STDOUT_FILENO, stream->line, stream->used);
    } else {
        take_line(output, stream, stream->line, stream->used, now_ns);
    }
    stream->used = 0;
}

void launch_output_settle(struct launch_output *output) {
    if (output->drawn) {
        write_all(STDERR_FILENO, "\n", 1);
        output->drawn = false;
    } else if (output->unprinted) {
        step_print(output);
        output->unprinted = false;
    }
    output->step[0] = 0;
}
