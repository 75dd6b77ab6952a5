/* launch_output.h - what the launcher's children print, as one readable stream.
 *
 * Each child has two pipes, read in whole lines. Standard output passes through as it is. Standard
 * error gets the child's name before each line, "[worker 1] ". A worker's error line that begins
 * with "step " is its progress: on a terminal it is one live line at the bottom, drawn again after
 * whatever else is printed; elsewhere a new one is printed every 5 s at most, and always the last.
 * A line of standard output closes the live line: the report that follows training stands below it.
 * Invariant: a line is written by one write(2) unless it is longer than LAUNCH_LINE_MAX.
 * One thread; nothing here blocks on a child (the pipes' read ends are O_NONBLOCK).
 */
#ifndef RUBATO_TOOLS_LAUNCH_OUTPUT_H
#define RUBATO_TOOLS_LAUNCH_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LAUNCH_LINE_MAX  ((size_t)16384)
#define LAUNCH_STEP_MAX  ((size_t)512)
#define LAUNCH_NAME_MAX  ((size_t)32)
#define LAUNCH_STEP_MARK "step "

enum launch_progress {
    LAUNCH_PROGRESS_LIVE,   /* one line, drawn over and over */
    LAUNCH_PROGRESS_SPARSE, /* a line every 5 s at most, and the last */
    LAUNCH_PROGRESS_ALL     /* each line */
};

struct launch_output {
    enum launch_progress progress;
    char step[LAUNCH_STEP_MAX]; /* the newest progress line; "" for none */
    bool drawn;                 /* LIVE: it is on the screen, without a newline */
    bool unprinted;             /* SPARSE: it has not been printed */
    int64_t printed_ns;         /* SPARSE: when the last one was; 0 for never */
};

/* One pipe of one child. */
struct launch_stream {
    int fd;                     /* our end; -1 once closed */
    bool is_stdout;             /* of the child */
    char name[LAUNCH_NAME_MAX]; /* "worker 1" */
    size_t used;
    char line[LAUNCH_LINE_MAX];
};

/* `progress` is the value of --progress: "line" is ALL; else LIVE on a terminal, SPARSE elsewhere.
 */
void launch_output_init(struct launch_output *output, const char *progress);

/* A line of the launcher's own, "[launch] ...", on standard error. */
void launch_output_note(struct launch_output *output, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Prints what the stream has by now (64 reads at most); at its end it is closed, and fd is -1. */
void launch_output_read(struct launch_output *output, struct launch_stream *stream, int64_t now_ns);

/* Prints what is left of a line without its newline, and closes the stream. */
void launch_output_close(struct launch_output *output, struct launch_stream *stream,
                         int64_t now_ns);

/* Leaves the live line, or the last unprinted progress line, behind as an ordinary line. */
void launch_output_settle(struct launch_output *output);

#endif
