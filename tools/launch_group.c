/* launch_group.c - the poll loop over all children, and the phases of their end. */
#include "tools/launch_group.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define TERMINATE_NS (5 * CLOCK_S)

/* A process that only lost its peer may end before the one that caused it, which still tidies up:
 * for this long after the first failure a better explanation replaces it. */
#define CULPRIT_NS (1 * CLOCK_S)

/* After a user's mistake was found. Who can learn of it from the job has ended by then. */
#define MISTAKE_NS (1 * CLOCK_S)

/* What our starter ignores (SIGHUP under nohup, SIGINT in a script's background) stays ignored. */
static void watched_signals(sigset_t *set) {
    static const int asking[] = {SIGINT, SIGTERM, SIGHUP};
    sigemptyset(set);
    sigaddset(set, SIGCHLD);
    for (size_t i = 0; i < sizeof asking / sizeof asking[0]; i++) {
        struct sigaction action;
        if (sigaction(asking[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN) {
            sigaddset(set, asking[i]);
        }
    }
}

enum status launch_group_open(struct launch_group *group,
                              const struct launch_group_config *config) {
    memset(group, 0, sizeof *group);
    group->config = *config;
    group->deadline_ns = INT64_MAX;
    group->failed = -1;
    group->missed = -1;
    launch_output_init(&group->output, config->progress);
    sigset_t ours;
    watched_signals(&ours);
    group->signals = signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK);
    if (group->signals < 0) {
        log_error("cannot open a signalfd: %s", strerror(errno));
        return STATUS_IO;
    }
    sigprocmask(SIG_BLOCK, &ours, &group->blocked_before);
    size_t most = (size_t)(config->servers + config->workers);
    group->children = memory_zeroed(most, sizeof *group->children);
    group->fds = memory_zeroed(1 + 2 * most, sizeof *group->fds);
    return STATUS_OK;
}

enum status launch_group_start(struct launch_group *group, const struct launch_command *command,
                               enum job_role role, int64_t index) {
    TRY(launch_child_start(&group->children[group->count], command, role, index));
    group->count++;
    group->alive++;
    return STATUS_OK;
}

static void signal_all(struct launch_group *group, int signal_number) {
    for (int64_t i = 0; i < group->count; i++) {
        launch_child_signal(&group->children[i], signal_number);
    }
}

static void enter(struct launch_group *group, enum launch_phase phase, int64_t deadline_ns) {
    group->phase = phase;
    group->deadline_ns = deadline_ns;
}

void launch_group_end(struct launch_group *group, int64_t now_ns) {
    signal_all(group, SIGTERM);
    enter(group, LAUNCH_TERMINATING, now_ns + TERMINATE_NS);
}

static void kill_all(struct launch_group *group) {
    signal_all(group, SIGKILL);
    enter(group, LAUNCH_KILLED, INT64_MAX);
}

static void take_signals(struct launch_group *group, int64_t now_ns) {
    struct signalfd_siginfo info;
    while (read(group->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD) continue; // reap_all() looks at every child anyway
        if (group->asked) {
            launch_output_note(&group->output, "second signal: killing all processes");
            kill_all(group);
            continue;
        }
        group->asked = (int)info.ssi_signo;
        launch_output_note(&group->output, "%s: ending all processes; once more to kill them",
                           strsignal(group->asked));
        signal_all(group, SIGTERM);
        enter(group, LAUNCH_TERMINATING, now_ns + group->config.grace_ns + TERMINATE_NS);
    }
}

/* Failures that other processes cause come second. */
static bool is_consequence(const struct launch_child *child) {
    return launch_child_code(child) == EXIT_CODE_UNREACHABLE;
}

/* Failures that the child's user must mend: all workers have the same flags. */
static bool is_mistake(const struct launch_child *child) {
    switch (launch_child_code(child)) {
    case EXIT_CODE_USAGE:
    case EXIT_CODE_DATA:
    case EXIT_CODE_NO_INPUT:
    case EXIT_CODE_CREATE:
    case EXIT_CODE_DENIED:
    case EXIT_CODE_MISMATCH:
        return true;
    default:
        return false;
    }
}

static bool is_missed(const struct launch_group *group, const struct launch_child *child) {
    return group->config.goes_on && child->role == JOB_WORKER && !is_mistake(child);
}

static void tell_end(struct launch_group *group, const struct launch_child *child,
                     const char *what_now) {
    char how[128];
    launch_child_describe(child, how, sizeof how);
    launch_output_note(&group->output, "%s (pid %lld) ended: %s%s", child->err.name,
                       (long long)child->pid, how, group->alive > 0 ? what_now : "");
}

static void wait_for_others(struct launch_group *group, const struct launch_child *child,
                            int64_t now_ns) {
    int64_t wait_ns = is_mistake(child) ? MISTAKE_NS : group->config.grace_ns;
    if (group->phase == LAUNCH_RUNNING ||
        (group->phase == LAUNCH_GRACE && now_ns + wait_ns < group->deadline_ns)) {
        enter(group, LAUNCH_GRACE, now_ns + wait_ns);
    }
}

static void take_first_failure(struct launch_group *group, int64_t index, int64_t now_ns) {
    const struct launch_child *child = &group->children[index];
    // A server that we have stopped, because no worker is left, is not what went wrong.
    bool stopped = group->phase > LAUNCH_GRACE && group->missed >= 0;
    group->failed = stopped ? group->missed : index;
    group->failed_ns = now_ns;
    if (launch_group_port_taken(group)) {
        launch_group_end(group, now_ns);
        return;
    }
    tell_end(group, child, "; waiting for the others");
    wait_for_others(group, child, now_ns);
}

static void take_failure(struct launch_group *group, int64_t index, int64_t now_ns) {
    const struct launch_child *child = &group->children[index];
    if (is_missed(group, child)) {
        if (group->missed < 0) group->missed = index;
        if (group->failed < 0) tell_end(group, child, "; the job may go on without it");
        return;
    }
    if (group->failed < 0) {
        take_first_failure(group, index, now_ns);
        return;
    }
    bool better = is_consequence(&group->children[group->failed]) && !is_consequence(child) &&
                  now_ns - group->failed_ns < CULPRIT_NS && group->phase == LAUNCH_GRACE;
    if (better) group->failed = index;
    if (better) wait_for_others(group, child, now_ns);
}

static void take_end(struct launch_group *group, int64_t index, int64_t now_ns) {
    struct launch_child *child = &group->children[index];
    if (!launch_child_reap(child)) return;
    group->alive--;
    // Its last words stand above what we say about its end.
    launch_output_read(&group->output, &child->out, now_ns);
    launch_output_read(&group->output, &child->err, now_ns);
    if (launch_child_code(child) != 0 && !group->asked) take_failure(group, index, now_ns);
}

static bool workers_alive(const struct launch_group *group) {
    for (int64_t i = group->config.servers; i < group->count; i++) {
        if (group->children[i].running) return true;
    }
    return false;
}

/* Workers first: when a worker and a server are found ended together, the worker is the likelier
 * cause, because servers end with the job. */
static void reap_all(struct launch_group *group, int64_t now_ns) {
    for (int64_t i = group->config.servers; i < group->count; i++) {
        take_end(group, i, now_ns);
    }
    for (int64_t i = 0; i < group->config.servers && i < group->count; i++) {
        take_end(group, i, now_ns);
    }
    if (group->phase == LAUNCH_RUNNING && group->alive > 0 && !group->config.stay &&
        !workers_alive(group)) {
        enter(group, LAUNCH_GRACE, now_ns + group->config.grace_ns);
    }
}

static void name_the_living(struct launch_group *group) {
    for (int64_t i = 0; i < group->count; i++) {
        if (!group->children[i].running) continue;
        launch_output_note(&group->output, "%s has not ended by itself: stopping it",
                           group->children[i].err.name);
    }
}

static void check_deadline(struct launch_group *group, int64_t now_ns) {
    if (group->alive == 0 || now_ns < group->deadline_ns) return;
    if (group->phase == LAUNCH_GRACE) {
        name_the_living(group);
        launch_group_end(group, now_ns);
    } else if (group->phase == LAUNCH_TERMINATING) {
        kill_all(group);
    }
}

static void wait_for_events(struct launch_group *group) {
    nfds_t count = 0;
    group->fds[count++] = (struct pollfd){.fd = group->signals, .events = POLLIN};
    for (int64_t i = 0; i < group->count; i++) {
        // poll() skips the -1 of a closed stream.
        group->fds[count++] = (struct pollfd){.fd = group->children[i].out.fd, .events = POLLIN};
        group->fds[count++] = (struct pollfd){.fd = group->children[i].err.fd, .events = POLLIN};
    }
    int timeout_ms = -1;
    if (group->deadline_ns != INT64_MAX) {
        int64_t left_ns = group->deadline_ns - clock_now_ns();
        timeout_ms = left_ns <= 0 ? 0 : (int)(left_ns / CLOCK_MS) + 1;
    }
    poll(group->fds, count, timeout_ms);
}

void launch_group_run(struct launch_group *group) {
    while (group->alive > 0) {
        wait_for_events(group);
        int64_t now_ns = clock_now_ns();
        for (int64_t i = 0; i < group->count; i++) {
            launch_output_read(&group->output, &group->children[i].err, now_ns);
            launch_output_read(&group->output, &group->children[i].out, now_ns);
        }
        take_signals(group, now_ns);
        reap_all(group, now_ns);
        check_deadline(group, now_ns);
    }
    int64_t now_ns = clock_now_ns();
    for (int64_t i = 0; i < group->count; i++) {
        launch_output_read(&group->output, &group->children[i].err, now_ns);
        launch_output_close(&group->output, &group->children[i].err, now_ns);
        launch_output_read(&group->output, &group->children[i].out, now_ns);
        launch_output_close(&group->output, &group->children[i].out, now_ns);
    }
    launch_output_settle(&group->output);
}

bool launch_group_port_taken(const struct launch_group *group) {
    return group->config.port_chosen && group->failed == 0 && !group->asked &&
           launch_child_code(&group->children[0]) == EXIT_CODE_CREATE;
}

int launch_group_report(struct launch_group *group) {
    if (group->asked) return 128 + group->asked;
    if (group->failed < 0) return EXIT_CODE_OK;
    const struct launch_child *child = &group->children[group->failed];
    char how[128];
    launch_child_describe(child, how, sizeof how);
    launch_output_note(&group->output, "%s failed first: %s", child->err.name, how);
    return launch_child_code(child);
}

void launch_group_close(struct launch_group *group) {
    close(group->signals);
    sigprocmask(SIG_SETMASK, &group->blocked_before, NULL);
    free(group->children);
    free(group->fds);
}
