/* launch_child.h - one process that the launcher started: its command line, its life, its end.
 *
 * A child has its own process group, standard input from /dev/null, two pipes to the launcher, and
 * dies with it (PR_SET_PDEATHSIG). It gets what it must know as flags; RUBATO_* variables, which
 * the launcher has already read, are taken out of its environment.
 * The launcher owns the struct; one thread.
 */
#ifndef RUBATO_TOOLS_LAUNCH_CHILD_H
#define RUBATO_TOOLS_LAUNCH_CHILD_H

#include "base/status.h"
#include "proto/job.h"
#include "tools/launch_output.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* An argument vector and the memory of its words. */
struct launch_command {
    int argc;
    char *argv[OPTIONS_MAX + 16]; /* NULL at its end */
    size_t used;
    char text[OPTIONS_MAX * (OPTION_TEXT_MAX + 32)];
};

struct launch_child {
    enum job_role role;
    int64_t index; /* as launched: a worker's rank may be another */
    pid_t pid;     /* also after its end: logs of the job name it */
    bool running;  /* started, and not reaped */
    int wait_status;
    struct launch_stream out, err;
};

/* Starts a command line with the program, which is looked for in `folder`, or, where folder is
 * empty, beside the launcher's own binary and then on PATH. IO, logged: not in `folder`. */
enum status launch_command_begin(struct launch_command *command, const char *folder,
                                 const char *program) WARN_UNUSED;

/* Adds one word, "--name=value". */
void launch_command_add(struct launch_command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Forks and runs the command. IO or MEMORY, logged: no process, no pipe. A program that cannot be
 * run ends with 70 and says so on its standard error. */
enum status launch_child_start(struct launch_child *child, const struct launch_command *command,
                               enum job_role role, int64_t index) WARN_UNUSED;

/* Sends the signal to the child's whole group; nothing when it has ended. */
void launch_child_signal(const struct launch_child *child, int signal_number);

/* True, once, when the child has ended; wait_status says how. */
bool launch_child_reap(struct launch_child *child);

/* The exit code that stands for the child's end: its own, or 128 + n. */
int launch_child_code(const struct launch_child *child);

/* "exit 65 (bad data)", "signal 9 (Killed)" -> text [bytes]. */
void launch_child_describe(const struct launch_child *child, char *text, size_t bytes);

#endif
