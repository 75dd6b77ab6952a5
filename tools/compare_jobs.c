#include "tools/compare_jobs.h"

#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/memory.h"
#include "tools/compare_text.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define DRAW_MS      500
#define DRAW_LEAST   (CLOCK_S / 5)
#define OPTIONS_MOST ((size_t)1 << 20)

/* ---- what the user sees ---- */

static void erase(struct compare_jobs *jobs) {
    if (jobs->drawn) fputs("\r\033[K", stderr);
    jobs->drawn = false;
}

static void say(struct compare_jobs *jobs, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void say(struct compare_jobs *jobs, const char *format, ...) {
    va_list arguments;
    erase(jobs);
    va_start(arguments, format);
    (void)vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    (void)fflush(stderr);
}

/* The part of the work that is done, and from it when the rest will be. */
static double done_part(const struct compare_jobs *jobs) {
    double done = (double)jobs->ended;
    for (int64_t i = 0; i < jobs->config.jobs; i++) {
        if (jobs->slots[i].run != NULL) done += jobs->slots[i].done;
    }
    return jobs->to_run > 0 ? done / (double)jobs->to_run : 1;
}

static void eta_text(const struct compare_jobs *jobs, char *text, size_t bytes) {
    double part = done_part(jobs);
    double elapsed = (double)(clock_now_ns() - jobs->start_ns) / (double)CLOCK_S;
    (void)snprintf(text, bytes, "eta -");
    if (part <= 0) return;
    int64_t left = (int64_t)(elapsed * (1 - part) / part + 0.5);
    if (left >= 3600) {
        (void)snprintf(text, bytes, "eta %dh%02dm", (int)(left / 3600), (int)(left / 60 % 60));
    } else {
        (void)snprintf(text, bytes, "eta %d:%02d", (int)(left / 60), (int)(left % 60));
    }
}

static void draw(struct compare_jobs *jobs) {
    enum { CELLS = 20 };
    struct winsize size;
    char bar[CELLS + 1], eta[32], line[512];
    size_t columns = 79;
    int64_t now_ns = clock_now_ns();
    if (!jobs->live || (jobs->drawn && now_ns - jobs->drawn_ns < DRAW_LEAST)) return;
    jobs->drawn_ns = now_ns;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1) columns = size.ws_col;
    double part = done_part(jobs);
    for (int i = 0; i < CELLS; i++) {
        bar[i] = i < (int)(part * CELLS) ? '#' : '.';
    }
    bar[CELLS] = '\0';
    eta_text(jobs, eta, sizeof eta);
    int used = snprintf(line, sizeof line, "[%s] %3.0f%% %s | run %zu of %zu", bar, 100 * part, eta,
                        jobs->ended + 1, jobs->to_run);
    for (int64_t i = 0; i < jobs->config.jobs && used < (int)sizeof line; i++) {
        const struct compare_slot *slot = &jobs->slots[i];
        if (slot->run == NULL) continue;
        used += snprintf(line + used, sizeof line - (size_t)used, " | %s seed %lld %.0f%%",
                         jobs->config.arms[slot->run->arm].label, (long long)slot->run->seed,
                         100 * slot->done);
    }
    fprintf(stderr, "\r%.*s\033[K", (int)columns - 1, line);
    (void)fflush(stderr);
    jobs->drawn = true;
}

/* ---- one run ---- */

static const char *label(const struct compare_jobs *jobs, const struct compare_run *run) {
    return jobs->config.arms[run->arm].label;
}

static void run_flags(const struct compare_jobs *jobs, const struct compare_run *run,
                      struct launch_command *command) {
    const struct compare_arm *arm = &jobs->config.arms[run->arm];
    jobs->config.flags(jobs->config.context, run->arm, command);
    for (size_t i = 0; i < COMPARE_AXES; i++) {
        // Not to be told of it is what a link without a limit is.
        if (i == COMPARE_LINK && strcmp(arm->axis[i], "none") == 0) continue;
        launch_command_add(command, "--%s=%s", compare_axis_names[i], arm->axis[i]);
    }
    launch_command_add(command, "--seed=%lld", (long long)run->seed);
}

/* The options of a run, a line each: what COMPARE_DONE_NAME holds. */
static void options_of(const struct compare_jobs *jobs, const struct compare_run *run,
                       struct compare_text *text) {
    struct launch_command *command = memory_zeroed(1, sizeof *command);
    run_flags(jobs, run, command);
    for (int i = 0; i < command->argc; i++) {
        compare_text_add(text, "%s\n", command->argv[i]);
    }
    free(command);
}

/* Is the run there already, made with the same options? */
static bool is_complete(const struct compare_jobs *jobs, struct compare_run *run) {
    char path[4096];
    char *content = NULL;
    size_t bytes = 0;
    struct compare_text options = {0};
    if (files_join(path, sizeof path, run->folder, COMPARE_DONE_NAME) != STATUS_OK ||
        access(path, R_OK) != 0 || files_read(path, OPTIONS_MOST, &content, &bytes) != STATUS_OK) {
        return false;
    }
    options_of(jobs, run, &options);
    bool same = options.bytes != NULL && bytes == options.used &&
                memcmp(content, options.bytes, bytes) == 0;
    int64_t seed = run->seed;
    same = same && compare_read(run) == STATUS_OK && run->seed == seed;
    run->seed = seed;
    compare_text_free(&options);
    free(content);
    return same;
}

static void mark_complete(const struct compare_jobs *jobs, const struct compare_run *run) {
    char path[4096];
    struct compare_text options = {0};
    options_of(jobs, run, &options);
    if (files_join(path, sizeof path, run->folder, COMPARE_DONE_NAME) != STATUS_OK ||
        compare_text_write(&options, path) != STATUS_OK) {
        log_warn("%s: --resume will run it again", run->folder);
    }
    compare_text_free(&options);
}

/* What an earlier comparison left there must not be taken for this run's. */
static enum status prepare_folder(const struct compare_run *run) {
    static const char *const names[] = {COMPARE_DONE_NAME, "metrics.jsonl", "options.conf",
                                        "model.safetensors"};
    char path[4096];
    TRY(files_make_folder(run->folder));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        TRY(files_join(path, sizeof path, run->folder, names[i]));
        (void)unlink(path);
    }
    return STATUS_OK;
}

static enum status start(struct compare_jobs *jobs, struct compare_slot *slot,
                         struct compare_run *run) {
    char path[4096];
    struct launch_command *command = slot->command;
    TRY(prepare_folder(run));
    TRY(files_join(path, sizeof path, run->folder, COMPARE_LOG_NAME));
    TRY(launch_command_begin(command, "", "rubato"));
    launch_command_add(command, "launch");
    if (jobs->config.bin[0] != '\0') launch_command_add(command, "--bin=%s", jobs->config.bin);
    run_flags(jobs, run, command);
    launch_command_add(command, "--run-dir=%s", run->folder);
    launch_command_add(command, "--progress=line");
    slot->log = fopen(path, "w");
    if (slot->log == NULL) {
        log_error("cannot write %s: %s", path, strerror(errno));
        return STATUS_IO;
    }
    for (int i = 0; i < command->argc; i++) {
        fprintf(slot->log, "%s%s", command->argv[i], i + 1 < command->argc ? " " : "\n");
    }
    enum status status = launch_child_start(&slot->child, command, JOB_LAUNCH, 0);
    if (status != STATUS_OK) {
        (void)fclose(slot->log);
        return status;
    }
    slot->run = run;
    slot->line_used = 0;
    slot->done = 0;
    slot->start_ns = clock_now_ns();
    run->state = COMPARE_RUNNING;
    if (!jobs->live && !jobs->quiet) {
        say(jobs, "run %zu of %zu: %s seed %lld ...", jobs->ended + 1, jobs->to_run,
            label(jobs, run), (long long)run->seed);
    }
    return STATUS_OK;
}

/* A worker's progress line says how far it is: "step 12/400 ...". */
static void take_line(struct compare_slot *slot) {
    double step = 0, steps = 0;
    slot->line[slot->line_used] = '\0';
    slot->line_used = 0;
    if (sscanf(slot->line, LAUNCH_STEP_MARK "%lf/%lf", &step, &steps) == 2 && steps > 0) {
        slot->done = step / steps;
    }
}

static void read_stream(struct compare_slot *slot, struct launch_stream *stream) {
    char bytes[4096];
    while (stream->fd >= 0) {
        ssize_t count = read(stream->fd, bytes, sizeof bytes);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (count <= 0) {
            close(stream->fd);
            stream->fd = -1;
            return;
        }
        (void)fwrite(bytes, 1, (size_t)count, slot->log);
        for (ssize_t i = 0; i < count && !stream->is_stdout; i++) {
            if (bytes[i] == '\n') {
                take_line(slot);
            } else if (slot->line_used + 1 < sizeof slot->line) {
                slot->line[slot->line_used++] = bytes[i];
            }
        }
    }
}

static void note_end(struct compare_jobs *jobs, const struct compare_slot *slot) {
    const struct compare_run *run = slot->run;
    double seconds = (double)(clock_now_ns() - slot->start_ns) / (double)CLOCK_S;
    char eta[32];
    if (jobs->quiet && run->state == COMPARE_OK) return;
    eta_text(jobs, eta, sizeof eta);
    if (run->state == COMPARE_OK) {
        say(jobs, "run %zu of %zu: %s seed %lld: val_loss %.4f in %.0f s, %s", jobs->ended,
            jobs->to_run, label(jobs, run), (long long)run->seed,
            run->validations[run->validation_count - 1].loss, seconds, eta);
    } else {
        say(jobs, "run %zu of %zu: %s seed %lld FAILED: %s; log: %s/%s", jobs->ended, jobs->to_run,
            label(jobs, run), (long long)run->seed, run->why, run->folder, COMPARE_LOG_NAME);
    }
}

static void end(struct compare_jobs *jobs, struct compare_slot *slot) {
    struct compare_run *run = slot->run;
    read_stream(slot, &slot->child.err);
    read_stream(slot, &slot->child.out);
    if (slot->child.err.fd >= 0) close(slot->child.err.fd);
    if (slot->child.out.fd >= 0) close(slot->child.out.fd);
    bool written = fclose(slot->log) == 0;
    bool good = launch_child_code(&slot->child) == 0;
    if (!good && jobs->asked) {
        run->state = COMPARE_PENDING;
        slot->run = NULL;
        return;
    }
    run->state = COMPARE_FAILED;
    if (!good) {
        char how[128];
        launch_child_describe(&slot->child, how, sizeof how);
        (void)snprintf(run->why, sizeof run->why, "%s", how);
    } else if (!written) {
        (void)snprintf(run->why, sizeof run->why, "its log cannot be written");
    } else {
        int64_t seed = run->seed;
        if (compare_read(run) == STATUS_OK) run->state = COMPARE_OK;
        run->seed = seed;
    }
    if (run->state == COMPARE_OK) mark_complete(jobs, run);
    jobs->failed += run->state == COMPARE_FAILED ? 1 : 0;
    jobs->ended++;
    slot->done = 0;
    note_end(jobs, slot);
    slot->run = NULL;
    jobs->config.ended(jobs->config.context);
}

/* ---- all of them ---- */

static void take_signals(struct compare_jobs *jobs) {
    struct signalfd_siginfo info;
    while (read(jobs->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD) continue;
        int number = jobs->asked ? SIGKILL : SIGTERM;
        if (!jobs->asked) {
            jobs->asked = (int)info.ssi_signo;
            say(jobs, "%s: ending the running jobs; once more to kill them",
                strsignal(jobs->asked));
        }
        for (int64_t i = 0; i < jobs->config.jobs; i++) {
            if (jobs->slots[i].run != NULL) launch_child_signal(&jobs->slots[i].child, number);
        }
    }
}

static void wait_for_events(const struct compare_jobs *jobs, struct pollfd *fds) {
    nfds_t count = 0;
    fds[count++] = (struct pollfd){.fd = jobs->signals, .events = POLLIN};
    for (int64_t i = 0; i < jobs->config.jobs; i++) {
        const struct compare_slot *slot = &jobs->slots[i];
        if (slot->run == NULL) continue;
        fds[count++] = (struct pollfd){.fd = slot->child.out.fd, .events = POLLIN};
        fds[count++] = (struct pollfd){.fd = slot->child.err.fd, .events = POLLIN};
    }
    poll(fds, count, DRAW_MS);
}

/* Fills the free slots. False when all runs are started and ended. */
static bool start_some(struct compare_jobs *jobs) {
    bool any = false;
    for (int64_t i = 0; i < jobs->config.jobs; i++) {
        struct compare_slot *slot = &jobs->slots[i];
        while (slot->run == NULL && jobs->next < jobs->config.run_count && !jobs->asked) {
            struct compare_run *run = &jobs->config.runs[jobs->next++];
            if (run->state != COMPARE_PENDING || start(jobs, slot, run) == STATUS_OK) continue;
            run->state = COMPARE_FAILED;
            (void)snprintf(run->why, sizeof run->why, "it could not be started");
            jobs->failed++;
            jobs->ended++;
        }
        any = any || slot->run != NULL;
    }
    return any;
}

static enum status open_signals(struct compare_jobs *jobs) {
    static const int asking[] = {SIGINT, SIGTERM, SIGHUP};
    sigset_t ours;
    sigemptyset(&ours);
    sigaddset(&ours, SIGCHLD);
    for (size_t i = 0; i < sizeof asking / sizeof asking[0]; i++) {
        struct sigaction action;
        // What our starter ignores (nohup) stays ignored.
        if (sigaction(asking[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN) {
            sigaddset(&ours, asking[i]);
        }
    }
    jobs->signals = signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK);
    if (jobs->signals < 0) {
        log_error("cannot open a signalfd: %s", strerror(errno));
        return STATUS_IO;
    }
    sigprocmask(SIG_BLOCK, &ours, &jobs->blocked_before);
    return STATUS_OK;
}

static void find_complete(struct compare_jobs *jobs) {
    size_t found = 0;
    for (size_t i = 0; i < jobs->config.run_count; i++) {
        struct compare_run *run = &jobs->config.runs[i];
        if (jobs->config.resume && is_complete(jobs, run)) {
            run->state = COMPARE_OK;
            found++;
        }
    }
    jobs->to_run = jobs->config.run_count - found;
    if (found == 0 || jobs->quiet) return;
    say(jobs, "%zu of %zu runs are there already", found, jobs->config.run_count);
}

enum status compare_jobs_run(struct compare_jobs *jobs, const struct compare_jobs_config *config) {
    size_t slots = (size_t)config->jobs;
    *jobs = (struct compare_jobs){.config = *config};
    jobs->live = strcmp(config->progress, "auto") == 0 && isatty(STDERR_FILENO) == 1;
    jobs->quiet = strcmp(config->progress, "off") == 0;
    find_complete(jobs);
    TRY(open_signals(jobs));
    jobs->slots = memory_zeroed(slots, sizeof *jobs->slots);
    struct pollfd *fds = memory_zeroed(1 + 2 * slots, sizeof *fds);
    for (size_t i = 0; i < slots; i++) {
        jobs->slots[i].command = memory_zeroed(1, sizeof *jobs->slots[i].command);
    }
    jobs->start_ns = clock_now_ns();
    while (start_some(jobs)) {
        draw(jobs);
        wait_for_events(jobs, fds);
        take_signals(jobs);
        for (size_t i = 0; i < slots; i++) {
            struct compare_slot *slot = &jobs->slots[i];
            if (slot->run == NULL) continue;
            read_stream(slot, &slot->child.err);
            read_stream(slot, &slot->child.out);
            if (launch_child_reap(&slot->child)) end(jobs, slot);
        }
    }
    erase(jobs);
    close(jobs->signals);
    sigprocmask(SIG_SETMASK, &jobs->blocked_before, NULL);
    for (size_t i = 0; i < slots; i++) {
        free(jobs->slots[i].command);
    }
    free(jobs->slots);
    free(fds);
    jobs->slots = NULL;
    return STATUS_OK;
}
