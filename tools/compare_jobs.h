/* compare_jobs.h - runs the arms of a comparison, each as `rubato launch` in a process of its own.
 *
 * One poll loop over the launchers' output, which goes to log.txt in the run's folder, and a
 * signalfd. A run that fails is noted and the rest go on. SIGINT, SIGTERM or SIGHUP end the running
 * launchers (SIGTERM; a second signal kills them) and start no more: their runs stay pending. When
 * a run is complete, a file in its folder says with which options, so that a later comparison with
 * the same ones need not run it again (--resume).
 * Progress is one live line on a terminal, else a line at each run's start and end; what failed is
 * said with --progress off too.
 * Invariant: when compare_jobs_run() returns, no launcher is left, and so no process of a job,
 * since those die with theirs.
 * One thread owns it.
 */
#ifndef RUBATO_TOOLS_COMPARE_JOBS_H
#define RUBATO_TOOLS_COMPARE_JOBS_H

#include "tools/compare_grid.h"
#include "tools/compare_read.h"
#include "tools/launch_child.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define COMPARE_LOG_NAME  "log.txt"
#define COMPARE_DONE_NAME "compare.done"

/* Adds to a launcher's command the flags of arm `arm`'s runs, but for its axes and the seed. */
typedef void compare_flags_fn(void *context, size_t arm, struct launch_command *command);

/* Called after each run's end. */
typedef void compare_ended_fn(void *context);

struct compare_jobs_config {
    const struct compare_arm *arms;
    struct compare_run *runs; /* [run_count] in order; folder, arm and seed are filled in */
    size_t run_count;
    int64_t jobs;    /* launchers at once */
    const char *bin; /* folder of the programs; "": beside this one */
    bool resume;
    const char *progress; /* as --progress: auto, line, off */
    compare_flags_fn *flags;
    compare_ended_fn *ended;
    void *context;
};

/* A running launcher. */
struct compare_slot {
    struct launch_child child;
    struct compare_run *run; /* NULL: free */
    struct launch_command *command;
    FILE *log;
    char line[512]; /* of its standard error, as far as it has come */
    size_t line_used;
    double done; /* part of its steps */
    int64_t start_ns;
};

struct compare_jobs {
    struct compare_jobs_config config;
    struct compare_slot *slots; /* [config.jobs] */
    size_t next;                /* run to look at */
    size_t to_run, ended, failed;
    int signals;
    sigset_t blocked_before;
    int asked; /* signal that ended it; 0: none */
    bool live, quiet, drawn;
    int64_t start_ns, drawn_ns;
};

/* All runs, to their end or to a signal. IO, logged: nothing could be started. */
enum status compare_jobs_run(struct compare_jobs *jobs,
                             const struct compare_jobs_config *config) WARN_UNUSED;

#endif
