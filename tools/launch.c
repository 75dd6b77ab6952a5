/* launch.c - `rubato launch`: a whole job on this machine, as one command.
 *
 * Finds a port, divides the cores, starts the servers and workers with the flags of their role, and
 * leaves the rest to the group (launch_group.h). The port is bound, but not listened at, for as
 * long as the job lives: two launchers on one machine cannot choose the same one (else the workers
 * of one might join the other's coordinator), and our coordinator can still listen there, since
 * both say SO_REUSEADDR.
 */
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/options.h"
#include "kernels/threads.h"
#include "proto/discipline.h"
#include "proto/job.h"
#include "tools/launch_group.h"
#include "tools/subcommand.h"
#include "transport/channel_ucx.h"
#include "transport/limits.h"
#include "worker/content.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PORT_FIRST   29600
#define ATTEMPTS_MAX 3

static const char usage[] =
    "usage: rubato launch [--servers N] [--workers N] --data FILE [--flag VALUE ...]\n"
    "\n"
    "Runs a whole job on this machine: starts the servers and workers, shows what they print with\n"
    "their names before it, names the process that failed first, and leaves none behind.\n"
    "Every option below goes to the processes it concerns. Ctrl-C ends the job, twice kills it.\n"
    "Exit code: 0, or that of the process that failed first, or 128 + n after signal n. Where the\n"
    "job goes on without a worker that fails (a quorum, ssp:S, async), the servers' alone count.\n"
    "\n"
    "examples:\n"
    "  rubato launch --servers 2 --workers 2 --data corpus.txt --steps 400\n"
    "  rubato launch --workers 4 --data corpus.txt --mode async --push int8\n"
    "  rubato launch --workers 2 --data train.bin --val-data val.bin --run-dir runs/first\n";

/* The job's options and the launcher's own, in one table. */
struct launch_config {
    struct job job; // first: the offsets of job_table hold
    char bin[OPTION_TEXT_MAX];
    bool pin;
};

static const struct option own_table[] = {
    {
        .name = "bin",
        .type = OPTION_TEXT,
        .default_text = "",
        .unit = "",
        .help = "folder of rubato-server and rubato-worker; empty: beside rubato, then PATH",
        .roles = JOB_LAUNCH,
        .offset = offsetof(struct launch_config, bin),
    },
    {
        .name = "pin",
        .type = OPTION_FLAG,
        .default_text = "no",
        .unit = "",
        .help = "give each worker cores of its own (its --cpus), --threads of them",
        .roles = JOB_LAUNCH,
        .offset = offsetof(struct launch_config, pin),
    },
};
#define OWN_COUNT (sizeof own_table / sizeof own_table[0])

struct launch {
    struct option table[OPTIONS_MAX];
    struct launch_config config;
    struct options options;
    char address[OPTION_TEXT_MAX + 16]; /* of the coordinator */
    bool port_chosen;
    int64_t threads; /* of each worker */
};

static void options_open(struct launch *launch) {
    ASSERT_OP(job_table_count + OWN_COUNT, <=, OPTIONS_MAX);
    memcpy(launch->table, job_table, job_table_count * sizeof *job_table);
    memcpy(launch->table + job_table_count, own_table, sizeof own_table);
    options_init(&launch->options, launch->table, job_table_count + OWN_COUNT, &launch->config);
}

/* Binds `port` (0: any free one) of 127.0.0.1 and keeps it without listening; see the head of the
 * file. Returns the socket, or -1 when the port is in use. */
static int port_reserve(uint16_t port, uint16_t *reserved) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) return -1;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    int on = 1;
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &bytes) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) {
        close(fd);
        return -1;
    }
    *reserved = ntohs(address.sin_port);
    return fd;
}

/* Chooses the coordinator's address: as given, or a port of 127.0.0.1. `*reserved` gets a socket
 * that keeps the port, or -1. */
static enum status choose_address(struct launch *launch, int attempt, int *reserved) {
    const char *given = launch->config.job.listen;
    uint16_t port = 0;
    *reserved = -1;
    launch->port_chosen = given[0] == '\0';
    if (!launch->port_chosen) {
        snprintf(launch->address, sizeof launch->address, "%s", given);
        return STATUS_OK;
    }
    if (attempt == 0) *reserved = port_reserve(PORT_FIRST, &port);
    if (*reserved < 0) *reserved = port_reserve(0, &port);
    if (*reserved < 0) {
        log_error("no free port on 127.0.0.1: %s", strerror(errno));
        return STATUS_IO;
    }
    if (attempt > 0) { // perhaps the reservation itself is what stood in the way
        close(*reserved);
        *reserved = -1;
    }
    snprintf(launch->address, sizeof launch->address, "127.0.0.1:%u", port);
    return STATUS_OK;
}

/* Options whose values the launcher makes itself. */
static bool is_ours(const char *name) {
    static const char *const ours[] = {"listen", "threads", "progress"};
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++) {
        if (strcmp(name, ours[i]) == 0) return true;
    }
    return false;
}

static void add_given(struct launch_command *command, const struct launch *launch,
                      enum job_role role) {
    for (size_t i = 0; i < job_table_count; i++) {
        const struct option *option = &job_table[i];
        if (launch->options.origins[i] == ORIGIN_DEFAULT || !(option->roles & role) ||
            is_ours(option->name)) {
            continue;
        }
        char value[OPTION_TEXT_MAX];
        options_text(&launch->options, (int)i, value, sizeof value);
        if (option->type == OPTION_FLAG) {
            bool on = *(const bool *)((const char *)&launch->config + option->offset);
            launch_command_add(command, "--%s%s", on ? "" : "no-", option->name);
        } else {
            launch_command_add(command, "--%s=%s", option->name, value);
        }
    }
}

static enum status start_one(struct launch *launch, struct launch_group *group, enum job_role role,
                             int64_t index) {
    const char *program = role == JOB_SERVER ? "rubato-server" : "rubato-worker";
    struct launch_command *command = memory_zeroed(1, sizeof *command);
    enum status status = launch_command_begin(command, launch->config.bin, program);
    if (status != STATUS_OK) goto free_command;
    bool coordinator = role == JOB_SERVER && index == 0;
    launch_command_add(command, "--%s=%s", coordinator ? "listen" : "join", launch->address);
    launch_command_add(command, "--index=%lld", (long long)index);
    add_given(command, launch, role);
    if (role == JOB_WORKER) {
        bool off = strcmp(launch->config.job.progress, "off") == 0;
        launch_command_add(command, "--progress=%s", off ? "off" : "line");
        launch_command_add(command, "--threads=%lld", (long long)launch->threads);
        char cores[OPTION_TEXT_MAX];
        int threads = (int)launch->threads;
        if (launch->config.pin && threads_cores((int)index * threads, threads, cores, sizeof cores))
            launch_command_add(command, "--cpus=%s", cores);
    }
    status = launch_group_start(group, command, role, index);

free_command:
    free(command);
    return status;
}

static enum status start_all(struct launch *launch, struct launch_group *group) {
    for (int64_t i = 0; i < launch->config.job.servers; i++) {
        TRY(start_one(launch, group, JOB_SERVER, i));
    }
    for (int64_t i = 0; i < launch->config.job.workers; i++) {
        TRY(start_one(launch, group, JOB_WORKER, i));
    }
    return STATUS_OK;
}

/* Does the job, as it starts, do without a worker that is lost? */
static bool job_goes_on(const struct job *job) {
    struct discipline discipline;
    char why[256];
    return job_discipline(job, &discipline, why, sizeof why) == STATUS_OK &&
           !discipline_needs_all(&discipline, job->workers);
}

/* One try at running the job. True when its port was taken meanwhile, and another try makes sense;
 * else `*code` is the exit code. */
static bool run_once(struct launch *launch, int attempt, int *code) {
    const struct job *job = &launch->config.job;
    int reserved;
    *code = EXIT_CODE_CREATE;
    if (choose_address(launch, attempt, &reserved) != STATUS_OK) return false;
    struct launch_group_config config = {
        .servers = job->servers,
        .workers = job->workers,
        .grace_ns = job_lease_ns(job) + 2 * CLOCK_S,
        .progress = job->progress,
        .stay = job->stay,
        .port_chosen = launch->port_chosen,
        .goes_on = job_goes_on(job),
    };
    struct launch_group group;
    bool again = false;
    *code = EXIT_CODE_INTERNAL;
    if (launch_group_open(&group, &config) != STATUS_OK) goto release_port;
    launch_output_note(&group.output, "%lld server%s and %lld worker%s (%lld thread%s each) at %s",
                       (long long)job->servers, job->servers == 1 ? "" : "s",
                       (long long)job->workers, job->workers == 1 ? "" : "s",
                       (long long)launch->threads, launch->threads == 1 ? "" : "s",
                       launch->address);
    bool started = start_all(launch, &group) == STATUS_OK;
    if (!started) launch_group_end(&group, clock_now_ns());
    launch_group_run(&group);
    if (started) {
        again = attempt + 1 < ATTEMPTS_MAX && launch_group_port_taken(&group);
        if (again) {
            launch_output_note(&group.output, "%s was taken meanwhile: trying another port",
                               launch->address);
        } else {
            *code = launch_group_report(&group);
        }
    }
    launch_group_close(&group);

release_port:
    if (reserved >= 0) close(reserved);
    return again;
}

static bool programs_found(const struct launch *launch) {
    struct launch_command *command = memory_zeroed(1, sizeof *command);
    const char *folder = launch->config.bin;
    bool found = launch_command_begin(command, folder, "rubato-server") == STATUS_OK &&
                 launch_command_begin(command, folder, "rubato-worker") == STATUS_OK;
    free(command);
    return found;
}

/* Found here at once, rather than by workers while the servers wait for them. */
static bool data_readable(const char *flag, const char *path) {
    struct content_list list = {0};
    if (!path[0] || access(path, R_OK) == 0) return true;
    if (strpbrk(path, ",*?[") != NULL) {
        bool found = content_list_open(&list, path) == STATUS_OK;
        content_list_close(&list);
        return found;
    }
    log_error("%s '%s': %s", flag, path, strerror(errno));
    return false;
}

/* A child's pipes must not land on the numbers 0 to 2. */
static void open_standard_files(void) {
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO) close(fd);
}

static int launch_checked(struct launch *launch, int argc, char **argv) {
    const struct job *job = &launch->config.job;
    if (options_parse(&launch->options, JOB_LAUNCH, argc, argv) != STATUS_OK) {
        return EXIT_CODE_USAGE;
    }
    if (options_wants(argc, argv, "--print-config")) {
        options_print_config(&launch->options, JOB_LAUNCH, stdout);
        return EXIT_CODE_OK;
    }
    enum log_level level;
    if (log_level_parse(job->log_level, &level) == STATUS_OK) log_set_level(level);
    if (!job->data[0]) {
        log_error("--data is missing: give the file to train on");
        return EXIT_CODE_USAGE;
    }
    if (!data_readable("--data", job->data) || !data_readable("--val-data", job->val_data)) {
        return EXIT_CODE_NO_INPUT;
    }
    char why[256];
    (void)job_expand_preset(&launch->options, NULL, why,
                            sizeof why); /* the coordinator will tell */
    if (job_check(job, why, sizeof why) != STATUS_OK) {
        log_error("%s", why);
        return EXIT_CODE_USAGE;
    }
    if (!programs_found(launch)) return EXIT_CODE_USAGE;
    launch->threads = job->threads;
    if (launch->threads == 0) {
        launch->threads = threads_available() / job->workers;
        if (launch->threads < 1) launch->threads = 1;
    }
    if (launch->config.pin && launch->threads * job->workers > threads_available()) {
        log_error("--pin: %lld workers of %lld threads need more cores than the %d that there are",
                  (long long)job->workers, (long long)launch->threads, threads_available());
        return EXIT_CODE_USAGE;
    }
    /* Two pipes a child, and what the process itself has open. */
    uint64_t children = (uint64_t)(job->servers + job->workers);
    if (limits_files(2 * children + 64, LOG_ERROR) != STATUS_OK) return EXIT_CODE_IO;
    channel_ucx_clear_environment(); /* else each process says so */
    open_standard_files();
    signal(SIGPIPE, SIG_IGN); // a reader that went away must not end the job
    int code;
    for (int attempt = 0; run_once(launch, attempt, &code); attempt++) {
    }
    return code;
}

static int launch_run(int argc, char **argv) {
    struct launch *launch = memory_zeroed(1, sizeof *launch);
    int code = EXIT_CODE_OK;
    options_open(launch);
    if (options_wants(argc, argv, "--help")) {
        options_print_help(&launch->options, JOB_LAUNCH, usage, stdout);
    } else if (options_wants(argc, argv, "--version")) {
        printf("rubato %s\n", RUBATO_VERSION);
    } else {
        code = launch_checked(launch, argc, argv);
    }
    free(launch);
    return code;
}

const struct subcommand launch_subcommand = {
    .name = "launch",
    .summary = "run servers and workers on this machine",
    .run = launch_run,
};
