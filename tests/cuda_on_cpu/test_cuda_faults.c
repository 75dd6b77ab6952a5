/* test_cuda_faults.c - that the stand-in notices faults: each planted one is seen in the flavours
 * that can see it, by the report or the wrong result that is expected there, and the clean twins
 * pass in all.
 *
 * Each scenario runs in a process of its own, since most end it. `seen` says what must be among its
 * last words: a report, or "wrong result" where the fault only changes the numbers, as a test that
 * compares with a reference notices.
 *
 *   test_cuda_faults FLAVOUR          plain, random, asan or tsan; all scenarios
 *   test_cuda_faults FLAVOUR NAME     one of them, in this process
 */
#include "cuda_check.h"
#include "fault_kernels.h"
#include "tests/test.h"

#include <cuda_runtime_api.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 4, THREADS = 256, COUNT = BLOCKS * THREADS, BYTES = COUNT * (int)sizeof(float) };

struct rig {
    float *x, *y;   /* pinned [COUNT] */
    float *dx, *dy; /* device [COUNT]: dx is a copy of x, dy is 0 */
    cudaStream_t stream, other;
};

static float input(int i) {
    return (float)(i % 17 + 1);
}

static void rig_open(struct rig *rig) {
    CHECK_CUDA(cudaStreamCreateWithFlags(&rig->stream, cudaStreamNonBlocking));
    CHECK_CUDA(cudaStreamCreateWithFlags(&rig->other, cudaStreamNonBlocking));
    CHECK_CUDA(cudaHostAlloc((void **)&rig->x, BYTES, cudaHostAllocDefault));
    CHECK_CUDA(cudaHostAlloc((void **)&rig->y, BYTES, cudaHostAllocDefault));
    CHECK_CUDA(cudaMalloc((void **)&rig->dx, BYTES));
    CHECK_CUDA(cudaMalloc((void **)&rig->dy, BYTES));
    for (int i = 0; i < COUNT; i++)
        rig->x[i] = input(i);
    CHECK_CUDA(cudaMemcpyAsync(rig->dx, rig->x, BYTES, cudaMemcpyHostToDevice, rig->stream));
    CHECK_CUDA(cudaMemsetAsync(rig->dy, 0, BYTES, rig->stream));
    CHECK_CUDA(cudaStreamSynchronize(rig->stream));
}

static void start(const struct rig *rig, const char *kernel) {
    struct fault_launch launch = {kernel, rig->dx, rig->dy, COUNT, BLOCKS, THREADS, 0, rig->stream};
    CHECK_CUDA(fault_kernel_launch(&launch));
}

static void start_shaped(const struct rig *rig, const char *kernel, int blocks, int threads,
                         int shared_bytes) {
    struct fault_launch launch = {kernel, rig->dx, rig->dy,      COUNT,
                                  blocks, threads, shared_bytes, rig->stream};
    CHECK_CUDA(fault_kernel_launch(&launch));
}

static void copy_back(const struct rig *rig, cudaStream_t stream) {
    CHECK_CUDA(cudaMemcpyAsync(rig->y, rig->dy, BYTES, cudaMemcpyDeviceToHost, stream));
}

static void finish(const struct rig *rig) {
    copy_back(rig, rig->stream);
    CHECK_CUDA(cudaStreamSynchronize(rig->stream));
    CHECK_CUDA(cudaDeviceSynchronize());
}

static void check_value(float actual, float expected) {
    if (fabsf(actual - expected) < 0.5F) return; /* false for NaN */
    fprintf(stderr, "wrong result: %g, not %g\n", (double)actual, (double)expected);
    exit(4);
}

static void check_sums(const struct rig *rig) {
    for (int b = 0; b < BLOCKS; b++) {
        float sum = 0.0F;
        for (int i = 0; i < THREADS; i++)
            sum += input(b * THREADS + i);
        check_value(rig->y[b], sum);
    }
}

/* ---- scenarios: `kernel` is the row's name up to a colon */

static void run_sums(struct rig *rig, const char *kernel) {
    start(rig, kernel);
    finish(rig);
    check_sums(rig);
}

static void run_total(struct rig *rig, const char *kernel) {
    float sum = 0.0F;
    for (int i = 0; i < COUNT; i++)
        sum += input(i);
    start(rig, kernel);
    finish(rig);
    check_value(rig->y[0], sum);
}

static void run_only(struct rig *rig, const char *kernel) {
    start(rig, kernel);
    finish(rig);
}

static void run_block_more(struct rig *rig, const char *kernel) {
    start_shaped(rig, kernel, BLOCKS + 1, THREADS, 0);
    finish(rig);
}

static void run_dynamic(struct rig *rig, const char *kernel) {
    start_shaped(rig, kernel, BLOCKS, THREADS, THREADS * (int)sizeof(float));
    finish(rig);
    if (strcmp(kernel, "dynamic_shared_clean") == 0) check_sums(rig);
}

static void run_block_48(struct rig *rig, const char *kernel) {
    (void)kernel;
    start_shaped(rig, "shuffle_clean", 1, 48, 0);
    finish(rig);
}

static void run_block_large(struct rig *rig, const char *kernel) {
    (void)kernel;
    start_shaped(rig, "clean", 1, 2048, 0);
}

static void run_shared_large(struct rig *rig, const char *kernel) {
    (void)kernel;
    start_shaped(rig, "clean", 1, THREADS, 64 << 10);
}

static void run_spin(struct rig *rig, const char *kernel) {
    setenv("CUDA_ON_CPU_TIMEOUT", "0.3", 1);
    run_only(rig, kernel);
}

static void run_default_stream(struct rig *rig, const char *kernel) {
    (void)kernel;
    rig->stream = NULL;
    run_only(rig, "clean");
}

static void run_device_uninitialised(struct rig *rig, const char *kernel) {
    (void)kernel;
    CHECK_CUDA(cudaMalloc((void **)&rig->dx, BYTES));
    run_sums(rig, "clean");
}

static void run_device_pointer_on_host(struct rig *rig, const char *kernel) {
    (void)kernel;
    *(volatile float *)rig->dy = 1.0F;
}

static void run_device_pointer_to_write(struct rig *rig, const char *kernel) {
    (void)kernel;
    int ends[2];
    CHECK_INT(pipe(ends), 0);
    if (write(ends[1], rig->dx, 64) == 64) return;
    perror("write() of device memory");
    exit(3);
}

static void run_host_pointer(struct rig *rig, const char *kernel) {
    (void)kernel;
    static float host[COUNT];
    rig->dx = host;
    run_only(rig, "clean");
}

static void run_use_after_free(struct rig *rig, const char *kernel) {
    (void)kernel;
    CHECK_CUDA(cudaFree(rig->dx));
    run_only(rig, "clean");
}

static void run_double_free(struct rig *rig, const char *kernel) {
    (void)kernel;
    CHECK_CUDA(cudaFree(rig->dx));
    CHECK_CUDA(cudaFree(rig->dx));
}

static void run_copy_too_long(struct rig *rig, const char *kernel) {
    (void)kernel;
    CHECK_CUDA(cudaMemcpyAsync(rig->y, rig->dy + 1, BYTES, cudaMemcpyDeviceToHost, rig->stream));
}

static void run_copy_direction(struct rig *rig, const char *kernel) {
    (void)kernel;
    CHECK_CUDA(cudaMemcpyAsync(rig->y, rig->dy, BYTES, cudaMemcpyHostToDevice, rig->stream));
}

static void run_no_stream_sync(struct rig *rig, const char *kernel) {
    (void)kernel;
    start(rig, "clean");
    copy_back(rig, rig->stream);
    check_sums(rig);
}

static void run_no_event_wait(struct rig *rig, const char *kernel) {
    (void)kernel;
    start(rig, "clean");
    copy_back(rig, rig->other);
    CHECK_CUDA(cudaStreamSynchronize(rig->other));
    check_sums(rig);
}

static void run_event_wait_clean(struct rig *rig, const char *kernel) {
    (void)kernel;
    cudaEvent_t event;
    CHECK_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    start(rig, "clean");
    CHECK_CUDA(cudaEventRecord(event, rig->stream));
    CHECK_CUDA(cudaStreamWaitEvent(rig->other, event, 0));
    copy_back(rig, rig->other);
    CHECK_CUDA(cudaStreamSynchronize(rig->other));
    check_sums(rig);
    CHECK_CUDA(cudaEventDestroy(event));
}

static void run_pinned_reused(struct rig *rig, const char *kernel) {
    (void)kernel;
    CHECK_CUDA(cudaMemcpyAsync(rig->dx, rig->x, BYTES, cudaMemcpyHostToDevice, rig->stream));
    memset(rig->x, 0, BYTES);
    run_sums(rig, "clean");
}

enum flavour { PLAIN, RANDOM, ASAN, TSAN, FLAVOURS };
static const char *const flavour_names[FLAVOURS] = {"plain", "random", "asan", "tsan"};

/* Beside a text: the scenario passes there; or this flavour may or may not see the fault. */
static const char passes[] = "passes", unseen[] = "unseen";
#define ALL(text)                                                                                  \
    { text, text, text, text }

static const char wrong[] = "wrong result", divergent[] = "divergent barrier";
static const char race[] = "ThreadSanitizer: data race", address[] = "AddressSanitizer";
static const char illegal[] = "illegal memory access", fault[] = "ThreadSanitizer: SEGV";

struct scenario {
    const char *name;
    void (*run)(struct rig *rig, const char *kernel);
    const char *seen[FLAVOURS];
};

static const struct scenario scenarios[] = {
    {"clean", run_sums, ALL(passes)},
    {"missing_barrier", run_sums, {wrong, wrong, wrong, race}},
    {"overwrite_clean", run_sums, ALL(passes)},
    {"missing_barrier_before_overwrite", run_sums, {unseen, wrong, unseen, race}},
    {"warp_step_clean", run_sums, ALL(passes)},
    {"warp_step", run_sums, {wrong, wrong, wrong, race}},
    {"atomic_clean", run_total, ALL(passes)},
    {"race_in_block", run_total, {unseen, unseen, unseen, race}},
    {"race_between_blocks", run_total, {unseen, unseen, unseen, race}},
    {"divergent_barrier", run_only, ALL(divergent)},
    {"early_return", run_only, ALL(divergent)},
    {"shuffle_clean", run_sums, ALL(passes)},
    {"divergent_shuffle", run_only, ALL(divergent)},
    {"shuffle_mask", run_only, ALL("does not take part")},
    {"block_48", run_block_48, ALL("does not take part")},
    {"mma_clean", run_sums, ALL(passes)},
    {"mma_step", run_sums, {wrong, wrong, wrong, race}},
    {"mma_places", run_sums, ALL(wrong)},
    {"mma_lanes", run_only, ALL("not all lanes take part")},
    {"mma_pitch", run_only, ALL("must be aligned to 32 bytes and rows to 16")},
    {"global_write_past", run_block_more, {illegal, illegal, address, fault}},
    {"global_read_past", run_only, {illegal, illegal, address, fault}},
    {"global_write_far", run_only, {illegal, illegal, address, fault}},
    {"shared_past", run_only, {unseen, unseen, address, unseen}},
    {"shared_past_template", run_only, {unseen, unseen, "index 256 out of bounds", unseen}},
    {"dynamic_shared_clean", run_dynamic, ALL(passes)},
    {"dynamic_shared_past",
     run_dynamic,
     {"dynamic shared memory", "dynamic shared memory", address, race}},
    {"shared_uninitialised", run_sums, ALL(wrong)},
    {"device_uninitialised", run_device_uninitialised, ALL(wrong)},
    {"misaligned", run_only, {unseen, unseen, "misaligned address", unseen}},
    {"spin", run_spin, ALL("no end after")},
    {"device_pointer_on_host",
     run_device_pointer_on_host,
     {"host code touched device memory", "host code touched device memory", address, fault}},
    {"device_pointer_to_write", run_device_pointer_to_write, ALL("Bad address")},
    {"host_pointer", run_host_pointer, ALL("is host memory")},
    {"use_after_free", run_use_after_free, ALL("freed device memory")},
    {"double_free", run_double_free, ALL("cudaErrorInvalidValue")},
    {"copy_too_long", run_copy_too_long, ALL("4096 bytes at +4 of cudaMalloc")},
    {"copy_direction", run_copy_direction, ALL("does not fit the pointers")},
    {"block_large", run_block_large, ALL("cudaErrorInvalidConfiguration")},
    {"shared_large", run_shared_large, ALL("cudaErrorInvalidValue")},
    {"default_stream", run_default_stream, ALL("the default stream")},
    {"no_stream_sync", run_no_stream_sync, ALL(wrong)},
    {"no_event_wait", run_no_event_wait, ALL(wrong)},
    {"event_wait_clean", run_event_wait_clean, ALL(passes)},
    {"pinned_reused", run_pinned_reused, ALL(wrong)},
};

static int run_one(const struct scenario *scenario) {
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    alarm(60);
    struct rig rig;
    rig_open(&rig);
    scenario->run(&rig, scenario->name);
    return 0;
}

/* Runs the scenario in a process of its own; what it printed goes to text. Its wait status. */
static int run_child(const char *flavour, const char *name, char *text, size_t capacity) {
    int ends[2];
    CHECK_INT(pipe(ends), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        execl("/proc/self/exe", "test_cuda_faults", flavour, name, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    size_t length = 0;
    char rest[4096];
    for (;;) {
        bool full = length + 1 >= capacity;
        ssize_t got =
            read(ends[0], full ? rest : text + length, full ? sizeof rest : capacity - 1 - length);
        if (got <= 0) break;
        if (!full) length += (size_t)got;
    }
    text[length] = '\0';
    close(ends[0]);
    int status = 0;
    CHECK_INT(waitpid(child, &status, 0), child);
    return status;
}

static bool as_expected(const struct scenario *scenario, enum flavour flavour) {
    static char text[1 << 16];
    const char *seen = scenario->seen[flavour];
    int status = run_child(flavour_names[flavour], scenario->name, text, sizeof text);
    bool passed = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    bool right = seen == unseen || (seen == passes ? passed : !passed && strstr(text, seen));
    printf("%-34s %-10s %s\n", scenario->name, passed ? "passed" : "seen",
           right ? "" : "NOT AS EXPECTED");
    if (!right) printf("expected: %s\n%s\n", seen, text);
    fflush(stdout);
    return right;
}

int main(int argc, char **argv) {
    enum flavour flavour = PLAIN;
    CHECK(argc == 2 || argc == 3);
    while (flavour < FLAVOURS && strcmp(flavour_names[flavour], argv[1]) != 0)
        flavour++;
    CHECK(flavour < FLAVOURS);
    setenv("CUDA_ON_CPU_ORDER", flavour == RANDOM ? "random" : "forward", 1);

    const int count = (int)(sizeof scenarios / sizeof scenarios[0]);
    int failed = 0;
    for (int i = 0; i < count; i++) {
        if (argc == 2)
            failed += !as_expected(&scenarios[i], flavour);
        else if (strcmp(scenarios[i].name, argv[2]) == 0)
            return run_one(&scenarios[i]);
    }
    CHECK_INT(argc, 2);
    printf("%d scenarios, %d not as expected\n", count, failed);
    return failed > 0;
}
