#include "tools/bench_rig.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/wake.h"
#include "transport/channel_ucx.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define START_NS (INT64_C(60) * CLOCK_S) /* until all are connected; 256 processes take a while */
#define END_NS   (INT64_C(10) * CLOCK_S) /* until all have ended */
#define WARM_NS  (INT64_C(300) * CLOCK_MS)
#define STEP_NS  (INT64_C(1) * CLOCK_MS) /* of waits on the board */
#define REST_NS  (INT64_C(20) * CLOCK_MS)

/* The processes of one run. */
struct crew {
    pid_t *pids; /* the server, then the workers; 0: has ended */
    clockid_t *clocks;
    uint32_t count;
};

static void pause_ns(int64_t ns) {
    nanosleep(&(struct timespec){.tv_sec = ns / CLOCK_S, .tv_nsec = ns % CLOCK_S}, NULL);
}

static uint32_t seat_count(const struct bench_run *run) {
    return (uint32_t)(run->options->shards + run->options->workers);
}

static size_t board_bytes(const struct bench_run *run) {
    return sizeof(struct bench_board) + seat_count(run) * sizeof(struct bench_seat);
}

/* An option of ours -> the job's of that name, by its own check. */
static enum status hand_on(struct bench_run *run, const char *name, const char *text) {
    char why[OPTION_TEXT_MAX];
    int index = options_find(&run->job_options, name);
    ASSERT(index >= 0);
    enum status status = options_set(&run->job_options, index, text, ORIGIN_FLAG, why, sizeof why);
    if (status != STATUS_OK) log_error("--%s %s: %s", name, text, why);
    return status;
}

/* Both sides of a run have one key, which nobody else needs to know. */
static enum status make_key(struct endpoint *endpoint) {
    if (getrandom(endpoint->key, sizeof endpoint->key, 0) != (ssize_t)sizeof endpoint->key) {
        log_error("the system gives no random numbers: %s", strerror(errno));
        return STATUS_IO;
    }
    endpoint->has_key = true;
    return STATUS_OK;
}

enum status bench_rig_init(struct bench_run *run, const struct bench_options *options,
                           const char *direction, size_t bytes) {
    *run = (struct bench_run){.options = options, .direction = direction, .bytes = bytes};
    options_init(&run->job_options, job_table, job_table_count, &run->job);
    const char *const texts[][2] = {
        {"channel", options->channel},
        {"wire", options->wire},
        {"net-devices", options->net_devices},
        {"tls", options->tls},
        {"push", options->push},
        {"pull", options->pull},
        {"optimizer", options->optimizer},
        {"poll", options->poll},
        {"join", "127.0.0.1:29600"},
        {"schedule", "constant"},
        {"steps", "1000000000"},
        {"warmup", "0"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        TRY(hand_on(run, texts[i][0], texts[i][1]));
    }
    run->job.workers = options->workers;
    run->job.shards = options->shards;
    run->job.block_values = (int64_t)(bytes / sizeof(float));
    char why[OPTION_TEXT_MAX];
    if (job_check(&run->job, why, sizeof why) != STATUS_OK) {
        log_error("%s", why);
        return STATUS_INVALID;
    }
    TRY(endpoint_init(&run->endpoint, &run->job));
    if (run->endpoint.uses_tls && strcmp(run->job.wire, "plain") != 0) {
        TRY(make_key(&run->endpoint));
    }
    TRY(paced_link_init(&run->link, run->job.link));
    return endpoint_choose_device(&run->endpoint, &run->job, "127.0.0.1");
}

/* ---- the parts' side ---- */

enum status bench_rig_open(struct bench_run *run, uint32_t seat,
                           const struct channel_config *config, struct channel **channel) {
    struct bench_seat *own = &run->board->seats[seat];
    TRY(endpoint_open_channel(&run->endpoint, &run->link, config, channel));
    TRY((*channel)->ops->address(*channel, own->address, &own->address_bytes));
    atomic_fetch_add(&run->board->published, 1);
    return STATUS_OK;
}

bool bench_rig_is_over(const struct bench_run *run) {
    return atomic_load_explicit(&run->board->stop, memory_order_relaxed) ||
           clock_now_ns() > run->deadline_ns;
}

bool bench_rig_is_complete(const struct bench_run *run) {
    return atomic_load(&run->board->connected) == seat_count(run) || bench_rig_is_over(run);
}

enum status bench_rig_connect(struct bench_run *run, struct channel **channels,
                              uint32_t channel_count, uint32_t first, uint32_t count) {
    while (atomic_load(&run->board->published) < seat_count(run)) {
        if (bench_rig_is_over(run)) return STATUS_TIMEOUT;
        pause_ns(STEP_NS);
    }
    for (uint32_t i = 0; i < channel_count; i++) {
        for (uint32_t peer = 0; peer < count; peer++) {
            const struct bench_seat *seat = &run->board->seats[first + peer];
            TRY(channels[i]->ops->connect(channels[i], peer, seat->address, seat->address_bytes));
        }
    }
    atomic_fetch_add(&run->board->connected, channel_count);
    return STATUS_OK;
}

void bench_rig_rest(struct idle *idle, struct channel *channel, bool worked) {
    if (idle_looks_again(idle, worked, clock_now_ns())) return;
    if (channel->ops->arm(channel) != STATUS_OK) return;
    int fd = channel->ops->wait_fd(channel);
    wake_wait(&fd, 1, REST_NS);
}

void bench_rig_sample(struct bench_seat *seat, int64_t took_ns) {
    uint64_t at = atomic_load_explicit(&seat->sampled, memory_order_relaxed);
    seat->latency_us[at % BENCH_SAMPLES] = (float)took_ns / 1000;
    atomic_store_explicit(&seat->sampled, at + 1, memory_order_release);
}

/* ---- the parent's side ---- */

static int run_part(struct bench_run *run, bench_part_fn *part, uint32_t index) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    channel_ucx_setup();
    return (int)status_exit_code(part(run, index));
}

static enum status start_crew(struct bench_run *run, bench_part_fn *server, bench_part_fn *worker,
                              struct crew *crew) {
    channel_ucx_clear_environment(); /* else each process says so */
    (void)fflush(NULL);
    for (uint32_t i = 0; i < 1 + (uint32_t)run->options->workers; i++) {
        pid_t pid = fork();
        if (pid == 0) _exit(run_part(run, i == 0 ? server : worker, i == 0 ? 0 : i - 1));
        if (pid < 0 || clock_getcpuclockid(pid, &crew->clocks[i]) != 0) {
            log_error("cannot start process %u of the run: %s", i, strerror(errno));
            return STATUS_MEMORY;
        }
        crew->pids[crew->count++] = pid;
    }
    return STATUS_OK;
}

/* OK while none has failed; who has ended is taken off the list. */
static enum status look_after(struct bench_run *run, struct crew *crew, uint32_t *living) {
    *living = 0;
    for (uint32_t i = 0; i < crew->count; i++) {
        int state = 0;
        if (crew->pids[i] == 0) continue;
        if (waitpid(crew->pids[i], &state, WNOHANG) != crew->pids[i]) {
            *living += 1;
            continue;
        }
        crew->pids[i] = 0;
        int code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
        if (code != EXIT_CODE_OK && run->exit_code == EXIT_CODE_OK) {
            run->exit_code = code;
            log_error("the %s of the run ended with exit code %d", i == 0 ? "server" : "worker",
                      code);
        }
    }
    return run->exit_code == EXIT_CODE_OK ? STATUS_OK : STATUS_PEER_LOST;
}

/* Sleeps until the time, while none fails. */
static enum status watch_until(struct bench_run *run, struct crew *crew, int64_t until_ns) {
    uint32_t living;
    for (int64_t left = until_ns - clock_now_ns(); left > 0; left = until_ns - clock_now_ns()) {
        pause_ns(left < REST_NS ? left : REST_NS);
        TRY(look_after(run, crew, &living));
    }
    return STATUS_OK;
}

static enum status wait_for_all(struct bench_run *run, struct crew *crew) {
    uint32_t living;
    int64_t until_ns = clock_now_ns() + START_NS;
    while (!bench_rig_is_complete(run)) {
        TRY(look_after(run, crew, &living));
        if (clock_now_ns() > until_ns) {
            log_error("%u of %u channels were connected after %d s; the machine may be too busy, "
                      "or its limits too low (ulimit -n, -u)",
                      atomic_load(&run->board->connected), seat_count(run),
                      (int)(START_NS / CLOCK_S));
            return STATUS_TIMEOUT;
        }
        pause_ns(STEP_NS);
    }
    return STATUS_OK;
}

/* Counts and clocks of now, minus those of `since`. */
static void take_stock(const struct bench_run *run, const struct crew *crew,
                       const struct bench_result *since, struct bench_result *now) {
    struct bench_result stock = {.seconds = (double)clock_now_ns() / (double)CLOCK_S};
    for (uint32_t i = 0; i < seat_count(run); i++) {
        const struct bench_seat *seat = &run->board->seats[i];
        stock.payload_gb += (double)atomic_load(&seat->payload_bytes) / 1e9;
        stock.wire_gb += (double)atomic_load(&seat->wire_bytes) / 1e9;
        stock.messages += (double)atomic_load(&seat->messages);
    }
    for (uint32_t i = 0; i < crew->count; i++) {
        struct timespec used = {0};
        if (clock_gettime(crew->clocks[i], &used) != 0) continue;
        double seconds = (double)used.tv_sec + (double)used.tv_nsec / (double)CLOCK_S;
        *(i == 0 ? &stock.server_cpu : &stock.workers_cpu) += seconds;
    }
    stock.seconds -= since->seconds;
    stock.payload_gb -= since->payload_gb;
    stock.wire_gb -= since->wire_gb;
    stock.messages -= since->messages;
    stock.server_cpu -= since->server_cpu;
    stock.workers_cpu -= since->workers_cpu;
    *now = stock;
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void sum_up_latencies(const struct bench_run *run, struct bench_result *result) {
    size_t count = 0;
    float *all = memory_zeroed(seat_count(run) * (size_t)BENCH_SAMPLES, sizeof *all);
    for (uint32_t i = 0; i < seat_count(run); i++) {
        const struct bench_seat *seat = &run->board->seats[i];
        uint64_t sampled = atomic_load(&seat->sampled);
        size_t kept = sampled < BENCH_SAMPLES ? (size_t)sampled : BENCH_SAMPLES;
        memcpy(all + count, seat->latency_us, kept * sizeof *all);
        count += kept;
    }
    qsort(all, count, sizeof *all, ascending);
    result->latency_median_us = count > 0 ? (double)all[count / 2] : (double)NAN;
    result->latency_p99_us = count > 0 ? (double)all[count * 99 / 100] : (double)NAN;
    free(all);
}

static enum status measure(struct bench_run *run, struct crew *crew, struct bench_result *result) {
    const struct bench_result nothing = {0};
    struct bench_result before;
    TRY(wait_for_all(run, crew));
    TRY(watch_until(run, crew, clock_now_ns() + WARM_NS));
    take_stock(run, crew, &nothing, &before);
    TRY(watch_until(run, crew,
                    clock_now_ns() + (int64_t)(run->options->seconds * (double)CLOCK_S)));
    take_stock(run, crew, &before, result);
    sum_up_latencies(run, result);
    return STATUS_OK;
}

/* Ends them; who does not is killed. */
static enum status dismiss(struct bench_run *run, struct crew *crew) {
    uint32_t living;
    int64_t until_ns = clock_now_ns() + END_NS;
    atomic_store(&run->board->stop, true);
    enum status status = look_after(run, crew, &living);
    while (living > 0 && clock_now_ns() < until_ns) {
        pause_ns(STEP_NS);
        status = look_after(run, crew, &living);
    }
    if (living == 0) return status;
    log_error("%u processes of the run did not end in %d s: killed", living,
              (int)(END_NS / CLOCK_S));
    for (uint32_t i = 0; i < crew->count; i++) {
        if (crew->pids[i] == 0) continue;
        kill(crew->pids[i], SIGKILL);
        waitpid(crew->pids[i], NULL, 0);
    }
    return STATUS_TIMEOUT;
}

enum status bench_rig_run(struct bench_run *run, bench_part_fn *server, bench_part_fn *worker,
                          struct bench_result *result) {
    size_t processes = 1 + (size_t)run->options->workers;
    struct crew crew = {0};
    void *memory =
        mmap(NULL, board_bytes(run), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        log_error("no memory for a run with %zu processes", processes);
        return STATUS_MEMORY;
    }
    run->board = memory;
    run->deadline_ns =
        clock_now_ns() + START_NS + END_NS + (int64_t)(run->options->seconds * (double)CLOCK_S);
    crew.pids = memory_zeroed(processes, sizeof *crew.pids);
    crew.clocks = memory_zeroed(processes, sizeof *crew.clocks);
    enum status status = start_crew(run, server, worker, &crew);
    if (status == STATUS_OK) status = measure(run, &crew, result);
    enum status end = dismiss(run, &crew);
    free(crew.pids);
    free(crew.clocks);
    munmap(memory, board_bytes(run));
    run->board = NULL;
    return status != STATUS_OK ? status : end;
}
