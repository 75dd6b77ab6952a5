/* launch_group.h - the launcher's children together: their output, their ends, and how they end.
 *
 * One poll loop over all pipes and a signalfd (SIGCHLD, and SIGINT, SIGTERM, SIGHUP, which are
 * blocked meanwhile). The first child that fails is remembered; one that fails within a second of
 * it takes its place if the first had only lost its peer. The others then have `grace_ns` to end by
 * themselves, since each of them learns of the loss and writes down what it knows; then they get
 * SIGTERM, and SIGKILL 5 s later. The same happens to servers that still run when all workers are
 * done. A child whose exit code says that its user must mend something leaves the others a second
 * only, since they may be waiting for it to join.
 * Where the job goes on without a worker, a worker's failure that is no such mistake is told and
 * nothing more: the servers decide when the job is over, and their exit codes count.
 * A signal to the launcher goes to all children as SIGTERM, SIGKILL follows after `grace_ns` and
 * 5 s; a second one kills them at once.
 * Invariant: when launch_group_run() returns, no child is left.
 * One thread owns it.
 */
#ifndef RUBATO_TOOLS_LAUNCH_GROUP_H
#define RUBATO_TOOLS_LAUNCH_GROUP_H

#include "tools/launch_child.h"
#include "tools/launch_output.h"

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct launch_group_config {
    int64_t servers, workers;
    int64_t grace_ns;
    const char *progress; /* the value of --progress */
    bool stay;            /* servers may outlive the workers */
    bool port_chosen;     /* by the launcher: a server 0 that cannot take it ends all at once */
    bool goes_on;         /* the job's mode does without a worker that is lost */
};

enum launch_phase {
    LAUNCH_RUNNING,
    LAUNCH_GRACE,       /* until the deadline, then SIGTERM */
    LAUNCH_TERMINATING, /* until the deadline, then SIGKILL */
    LAUNCH_KILLED
};

struct launch_group {
    struct launch_group_config config;
    struct launch_output output;
    struct launch_child *children; /* [servers + workers], servers first */
    struct pollfd *fds;            /* [1 + 2 * (servers + workers)] */
    int64_t count, alive;          /* started; of these, not ended */
    int signals;                   /* signalfd */
    sigset_t blocked_before;
    enum launch_phase phase;
    int64_t deadline_ns; /* of the phase; INT64_MAX for none */
    int64_t failed;      /* child that failed first; -1 for none */
    int64_t failed_ns;
    int64_t missed; /* worker that the job went on without, the first; -1 for none */
    int asked;      /* signal that asked the launcher to end; 0 for none */
};

/* IO, logged. */
enum status launch_group_open(struct launch_group *group,
                              const struct launch_group_config *config) WARN_UNUSED;

/* Adds a running child. On failure (logged) the caller ends the group and runs it to its end. */
enum status launch_group_start(struct launch_group *group, const struct launch_command *command,
                               enum job_role role, int64_t index) WARN_UNUSED;

/* SIGTERM to all now, SIGKILL 5 s later. */
void launch_group_end(struct launch_group *group, int64_t now_ns);

/* Until every child has ended. */
void launch_group_run(struct launch_group *group);

/* True when server 0 found its port taken. */
bool launch_group_port_taken(const struct launch_group *group);

/* The launcher's exit code: 128 + n after signal n, else that of the child that failed first (and
 * that the job did not go on without), which is named on standard error, else 0. After
 * launch_group_run(). */
int launch_group_report(struct launch_group *group);

/* After launch_group_run(). */
void launch_group_close(struct launch_group *group);

#endif
