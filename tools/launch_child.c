/* launch_child.c - fork, exec, signal, reap. */
#include "tools/launch_child.h"

#include "base/assert.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum status launch_command_begin(struct launch_command *command, const char *folder,
                                 const char *program) {
    memset(command, 0, sizeof *command);
    if (folder[0]) {
        launch_command_add(command, "%s/%s", folder, program);
        if (access(command->argv[0], X_OK) == 0) return STATUS_OK;
        log_error("--bin '%s': no program %s there: %s", folder, program, strerror(errno));
        return STATUS_IO;
    }
    char self[4096];
    ssize_t bytes = readlink("/proc/self/exe", self, sizeof self - 1);
    if (bytes > 0) {
        self[bytes] = 0;
        *strrchr(self, '/') = 0;
        launch_command_add(command, "%s/%s", self, program);
        if (access(command->argv[0], X_OK) == 0) return STATUS_OK;
        memset(command, 0, sizeof *command);
    }
    launch_command_add(command, "%s", program);
    return STATUS_OK;
}

void launch_command_add(struct launch_command *command, const char *format, ...) {
    size_t room = sizeof command->text - command->used;
    va_list arguments;
    va_start(arguments, format);
    int bytes = vsnprintf(command->text + command->used, room, format, arguments);
    va_end(arguments);
    // The memory is sized for every option of the table at its longest.
    ASSERT(bytes >= 0 && (size_t)bytes < room);
    ASSERT((size_t)command->argc + 1 < sizeof command->argv / sizeof command->argv[0]);
    command->argv[command->argc++] = command->text + command->used;
    command->used += (size_t)bytes + 1;
}

static void drop_our_variables(void) {
    for (char **entry = environ; *entry;) {
        char name[128];
        size_t length = strcspn(*entry, "=");
        if (strncmp(*entry, "RUBATO_", 7) != 0 || length >= sizeof name) {
            entry++;
            continue;
        }
        memcpy(name, *entry, length);
        name[length] = 0;
        unsetenv(name); // moves the rest down, so that `entry` is already the next
    }
}

/* The child's side of the fork; never returns. */
static _Noreturn void become(const struct launch_command *command, pid_t parent, int out, int err) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(EXIT_CODE_INTERNAL); // it died before prctl
    int null = open("/dev/null", O_RDONLY);
    if (null >= 0) dup2(null, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    drop_our_variables();
    execvp(command->argv[0], command->argv);
    log_error("cannot run %s: %s", command->argv[0], strerror(errno));
    _exit(EXIT_CODE_INTERNAL);
}

/* ends[0] is ours, and never waits. */
static bool pipe_open(int ends[2]) {
    if (pipe(ends) != 0) return false;
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    return true;
}

static void stream_init(struct launch_stream *stream, const struct launch_child *child, int fd,
                        bool is_stdout) {
    stream->fd = fd;
    stream->is_stdout = is_stdout;
    stream->used = 0;
    snprintf(stream->name, sizeof stream->name, "%s %lld",
             child->role == JOB_SERVER ? "server" : "worker", (long long)child->index);
}

enum status launch_child_start(struct launch_child *child, const struct launch_command *command,
                               enum job_role role, int64_t index) {
    int out[2], err[2];
    child->role = role;
    child->index = index;
    child->running = false;
    child->out.fd = child->err.fd = -1;
    if (!pipe_open(out)) {
        log_error("cannot open a pipe: %s", strerror(errno));
        return STATUS_IO;
    }
    if (!pipe_open(err)) {
        log_error("cannot open a pipe: %s", strerror(errno));
        goto close_out;
    }
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0) become(command, parent, out[1], err[1]);
    if (pid < 0) {
        log_error("cannot start %s: %s", command->argv[0], strerror(errno));
        goto close_err;
    }
    setpgid(pid, pid); // as the child does: whoever comes first
    close(out[1]);
    close(err[1]);
    child->pid = pid;
    child->running = true;
    stream_init(&child->out, child, out[0], true);
    stream_init(&child->err, child, err[0], false);
    return STATUS_OK;

close_err:
    close(err[0]);
    close(err[1]);
close_out:
    close(out[0]);
    close(out[1]);
    return STATUS_IO;
}

void launch_child_signal(const struct launch_child *child, int signal_number) {
    if (!child->running) return;
    if (kill(-child->pid, signal_number) != 0) kill(child->pid, signal_number);
    kill(-child->pid, SIGCONT); // a stopped process takes no signal but SIGKILL
}

bool launch_child_reap(struct launch_child *child) {
    if (!child->running) return false;
    pid_t pid;
    while ((pid = waitpid(child->pid, &child->wait_status, WNOHANG)) < 0 && errno == EINTR) {
    }
    if (pid != child->pid) return false;
    child->running = false;
    return true;
}

int launch_child_code(const struct launch_child *child) {
    if (WIFSIGNALED(child->wait_status)) return 128 + WTERMSIG(child->wait_status);
    return WEXITSTATUS(child->wait_status);
}

static const char *exit_text(int code) {
    static const struct {
        int code;
        const char *text;
    } texts[] = {
        {EXIT_CODE_OK, "ok"},
        {EXIT_CODE_TRAINING, "training failed"},
        {EXIT_CODE_USAGE, "usage"},
        {EXIT_CODE_DATA, "bad data"},
        {EXIT_CODE_NO_INPUT, "input cannot be read"},
        {EXIT_CODE_UNREACHABLE, "a peer did not come or was lost"},
        {EXIT_CODE_INTERNAL, "internal error"},
        {EXIT_CODE_MEMORY, "out of memory"},
        {EXIT_CODE_DEVICE, "a device failed"},
        {EXIT_CODE_CREATE, "a port or a file cannot be taken"},
        {EXIT_CODE_IO, "input or output error"},
        {EXIT_CODE_PROTOCOL, "a peer broke the protocol"},
        {EXIT_CODE_DENIED, "key wrong or missing"},
        {EXIT_CODE_MISMATCH, "options disagree"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (texts[i].code == code) return texts[i].text;
    }
    return "unknown";
}

void launch_child_describe(const struct launch_child *child, char *text, size_t bytes) {
    if (WIFSIGNALED(child->wait_status)) {
        int number = WTERMSIG(child->wait_status);
        snprintf(text, bytes, "signal %d (%s)", number, strsignal(number));
    } else {
        int code = WEXITSTATUS(child->wait_status);
        snprintf(text, bytes, "exit %d (%s)", code, exit_text(code));
    }
}
