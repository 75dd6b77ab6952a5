/* test_cuda_device.c - a CUDA device as kernels/device.h promises it, by the library's one entry.
 *
 * Proved: that the entry refuses a program of another build; what is counted of memory, by hand;
 * copies in each direction, of odd sizes and at odd offsets, to and from pinned, pinned later and
 * pageable memory; that queues wait for each other's events, by a chain through all of them whose
 * result is NaNs or old values when one wait is left out (the stand-in runs a queue only when it is
 * waited for); polling; the first error, told once and answered by each later wait, on its own
 * device alone; memory that is not there; a chip that is too old; two devices, each with its
 * memory, and two threads. The same program runs on a GPU; where there is no device it skips.
 */
#include "base/log.h"
#include "kernels/cuda/library_cuda.h"
#include "kernels/device.h"
#include "tests/test.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdarg.h>

static const struct device_backend *cuda;

/* The messages of the library. */
static struct {
    int lines;
    char last[1024];
} logged;

__attribute__((format(printf, 2, 3))) static void keep_line(enum log_level level,
                                                            const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    /* As in kernels/cuda/library_cuda.c. NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized) */
    vsnprintf(logged.last, sizeof logged.last, format, arguments);
    va_end(arguments);
    logged.lines++;
    log_write(level, "%s", logged.last);
}

static struct device *open_device(int index) {
    struct device *device = NULL;
    CHECK_INT(cuda->open(&device, index), STATUS_OK);
    CHECK(device->backend == cuda && device->compute == cuda->compute);
    CHECK_INT(device->index, index);
    CHECK(strlen(device->name) > 0);
    return device;
}

static float *take_floats(struct device *device, int64_t count) {
    float *memory = cuda->take(device, (size_t)count * sizeof *memory);
    CHECK(memory);
    CHECK_INT((uintptr_t)memory % 256, 0);
    return memory;
}

static float *take_pinned_floats(struct device *device, int64_t count) {
    float *memory = cuda->take_pinned(device, (size_t)count * sizeof *memory);
    CHECK(memory);
    return memory;
}

static void fill(float *values, int64_t count, float first) {
    for (int64_t i = 0; i < count; i++)
        values[i] = first + (float)i;
}

static void check_values(const float *values, int64_t count, float first) {
    for (int64_t i = 0; i < count; i++)
        CHECK_NEAR(values[i], first + (float)i, 0.0);
}

/* ---- the entry */

/* Any number of another build's ends it, with one line. */
static void other_build(void) {
    const struct library_abi own = library_abi();
    uint32_t numbers[sizeof own / sizeof(uint32_t)];
    const size_t count = sizeof numbers / sizeof numbers[0];
    struct library_abi other;
    for (size_t i = 0; i < count; i++) {
        memcpy(numbers, &own, sizeof numbers);
        CHECK(numbers[i] > 0);
        numbers[i]++;
        memcpy(&other, numbers, sizeof other);
        int lines = logged.lines;
        CHECK(rubato_cuda_library(&other, keep_line) == NULL);
        CHECK_INT(logged.lines, lines + 1);
        CHECK(strstr(logged.last, "another build") && strstr(logged.last, "build both"));
    }
    CHECK(rubato_cuda_library(&own, keep_line) == cuda);
}

/* ---- memory */

static void memory_counted(void) {
    struct device *device = open_device(0);
    struct device_memory before, now;
    cuda->memory(device, &before);
    CHECK(before.total > 0 && before.used <= before.total && before.most >= before.used);
    void *first = cuda->take(device, 1000);
    void *second = cuda->take(device, 1);
    void *third = cuda->take(device, 500);
    CHECK(first && second && third);
    cuda->memory(device, &now);
    CHECK_INT(now.used - before.used, 1501);
    CHECK_INT(now.most, now.used > before.most ? now.used : before.most);
    uint64_t most = now.most;
    cuda->give(device, second);
    cuda->give(device, first);
    cuda->memory(device, &now);
    CHECK_INT(now.used - before.used, 500);
    CHECK_INT(now.most, most);
    cuda->give(device, third);
    cuda->memory(device, &now);
    CHECK_INT(now.used, before.used);

    /* More than there is: told, and the device works on. */
    int lines = logged.lines;
    CHECK(cuda->take(device, (size_t)before.total + 1) == NULL);
    CHECK_INT(logged.lines, lines + 1);
    cuda->memory(device, &now);
    CHECK_INT(now.used, before.used);
    CHECK_INT(cuda->wait(device, DEVICE_COMPUTE), STATUS_OK);
    (void)take_floats(device, 10); /* what is not given back goes with the device */
    cuda->close(device);
}

/* ---- copies */

/* Host -> device -> another place there -> host. */
static void check_round(struct device *device, float *from, float *to, int64_t count) {
    float *first = take_floats(device, count + 3);
    float *second = take_floats(device, count + 3);
    size_t bytes = (size_t)count * sizeof *from;
    fill(from, count, 7.0F);
    memset(to, 0xff, bytes);
    cuda->copy(device, DEVICE_COMPUTE, first + 3, from, bytes, DEVICE_TO);
    cuda->copy(device, DEVICE_COMPUTE, second + 1, first + 3, bytes, DEVICE_WITHIN);
    cuda->zero(device, DEVICE_COMPUTE, second + count, sizeof *second);
    cuda->copy(device, DEVICE_COMPUTE, to, second + 1, bytes, DEVICE_FROM);
    CHECK_INT(cuda->wait(device, DEVICE_COMPUTE), STATUS_OK);
    check_values(to, count - 1, 7.0F);
    CHECK_NEAR(to[count - 1], 0.0, 0.0);
    cuda->give(device, first);
    cuda->give(device, second);
}

static void copies(void) {
    struct device *device = open_device(0);
    static const int64_t counts[] = {1, 2, 31, 257, 1001};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        int64_t count = counts[i];
        size_t bytes = (size_t)count * sizeof(float);
        float *pinned = take_pinned_floats(device, 2 * count);
        float *own = malloc(2 * bytes);
        CHECK(own);
        check_round(device, pinned, pinned + count, count);
        check_round(device, own, own + count, count);
        CHECK(cuda->pin(device, own, 2 * bytes));
        check_round(device, own, own + count, count);
        int lines = logged.lines;
        CHECK(!cuda->pin(device, own, 2 * bytes)); /* it is already; told, and no error */
        CHECK_INT(logged.lines, lines + 1);
        cuda->unpin(device, own);
        check_round(device, own, own + count, count);
        cuda->give_pinned(device, pinned);
        free(own);
    }
    cuda->copy(device, DEVICE_COPY_IN, NULL, NULL, 0, DEVICE_TO); /* nothing is no error */
    cuda->zero(device, DEVICE_COPY_IN, NULL, 0);
    CHECK_INT(cuda->wait(device, DEVICE_COPY_IN), STATUS_OK);
    cuda->close(device);
}

/* ---- events */

enum { COUNT = 777, ROUNDS = 5 };

/* From the host through all queues and back, each waiting for the one ahead. Twice the same memory:
 * the first copy of a round must wait for the last one of the round before. */
static void chain(void) {
    struct device *device = open_device(0);
    const size_t bytes = COUNT * sizeof(float);
    float *places[DEVICE_QUEUES];
    struct device_event *events[DEVICE_QUEUES];
    for (int i = 0; i < DEVICE_QUEUES; i++) {
        places[i] = take_floats(device, COUNT);
        events[i] = cuda->event_open(device);
        CHECK_INT(cuda->event_done(device, events[i]), STATUS_OK); /* never recorded */
        CHECK_INT(cuda->event_sync(device, events[i]), STATUS_OK);
    }
    float *from = take_pinned_floats(device, (int64_t)ROUNDS * COUNT);
    float *to = take_pinned_floats(device, (int64_t)ROUNDS * COUNT);
    const enum device_queue order[] = {DEVICE_COPY_IN, DEVICE_COMPUTE, DEVICE_CODEC,
                                       DEVICE_COPY_OUT};
    memset(to, 0xff, ROUNDS * bytes);
    fill(from, (int64_t)ROUNDS * COUNT, 1.0F);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < DEVICE_QUEUES; i++) {
            const struct device_event *ahead = events[i > 0 ? i - 1 : DEVICE_QUEUES - 1];
            const void *source = i > 0 ? places[i - 1] : from + (size_t)round * COUNT;
            cuda->event_wait(device, order[i], ahead);
            cuda->copy(device, order[i], places[i], source, bytes,
                       i > 0 ? DEVICE_WITHIN : DEVICE_TO);
            if (order[i] == DEVICE_COPY_OUT)
                cuda->copy(device, order[i], to + (size_t)round * COUNT, places[i], bytes,
                           DEVICE_FROM);
            cuda->event_record(device, events[i], order[i]);
        }
    }
    CHECK_INT(cuda->event_sync(device, events[DEVICE_QUEUES - 1]), STATUS_OK);
    check_values(to, (int64_t)ROUNDS * COUNT, 1.0F);
    for (int i = 0; i < DEVICE_QUEUES; i++) {
        CHECK_INT(cuda->event_done(device, events[i]), STATUS_OK);
        cuda->event_close(device, events[i]);
        cuda->give(device, places[i]);
    }
    cuda->give_pinned(device, from);
    cuda->give_pinned(device, to);
    cuda->close(device);
}

/* Asking is enough: no call waits, and the work is done at some time. */
static void polled(void) {
    struct device *device = open_device(0);
    float *memory = take_floats(device, COUNT);
    float *host = take_pinned_floats(device, COUNT);
    struct device_event *event = cuda->event_open(device);
    enum status status = STATUS_AGAIN;
    memset(host, 0xff, COUNT * sizeof *host);
    cuda->zero(device, DEVICE_COMPUTE, memory, COUNT * sizeof *memory);
    cuda->copy(device, DEVICE_COMPUTE, host, memory, COUNT * sizeof *host, DEVICE_FROM);
    cuda->event_record(device, event, DEVICE_COMPUTE);
    for (int64_t i = 0; status == STATUS_AGAIN; i++) {
        CHECK(i < 1000000000);
        status = cuda->event_done(device, event);
    }
    CHECK_INT(status, STATUS_OK);
    for (int i = 0; i < COUNT; i++)
        CHECK_NEAR(host[i], 0.0, 0.0);
    cuda->event_close(device, event);
    cuda->give_pinned(device, host);
    cuda->give(device, memory);
    cuda->close(device);
}

/* ---- errors */

static void errors_kept(void) {
    struct device *bad = open_device(0);
    struct device *good = open_device(0);
    struct device_event *event = cuda->event_open(bad);
    int lines = logged.lines;
    cuda->zero(bad, DEVICE_COMPUTE, NULL, 16);
    CHECK_INT(logged.lines, lines + 1);
    CHECK(strstr(logged.last, "cuda:0") && strstr(logged.last, bad->name) &&
          strstr(logged.last, "zeroing memory") && strstr(logged.last, "InvalidValue"));
    cuda->zero(bad, DEVICE_CODEC, NULL, 16);
    for (int queue = 0; queue < DEVICE_QUEUES; queue++)
        CHECK_INT(cuda->wait(bad, (enum device_queue)queue), STATUS_DEVICE);
    cuda->event_record(bad, event, DEVICE_COMPUTE);
    CHECK_INT(cuda->event_sync(bad, event), STATUS_DEVICE);
    CHECK_INT(cuda->event_done(bad, event), STATUS_DEVICE);
    CHECK_INT(logged.lines, lines + 1);
    CHECK_INT(cuda->wait(good, DEVICE_COMPUTE), STATUS_OK);
    cuda->event_close(bad, event);
    cuda->close(bad);
    cuda->close(good);
}

static void no_such_device(void) {
    struct device *device = NULL;
    int lines = logged.lines;
    CHECK_INT(cuda->open(&device, cuda->count()), STATUS_DEVICE);
    CHECK_INT(cuda->open(&device, -1), STATUS_DEVICE);
    CHECK(device == NULL);
    CHECK_INT(logged.lines, lines + 2);
}

/* ---- several devices, several threads */

/* Copies on a queue that is this thread's alone, of a device that another thread opened. */
struct lane {
    struct device *device;
    enum device_queue queue;
    float first;
};

static void *lane_main(void *argument) {
    const struct lane *lane = argument;
    struct device_event *event = cuda->event_open(lane->device);
    float from[COUNT], to[COUNT];
    float *memory = take_floats(lane->device, COUNT);
    for (int round = 0; round < ROUNDS; round++) {
        fill(from, COUNT, lane->first + (float)round);
        cuda->copy(lane->device, lane->queue, memory, from, sizeof from, DEVICE_TO);
        cuda->copy(lane->device, lane->queue, to, memory, sizeof to, DEVICE_FROM);
        cuda->event_record(lane->device, event, lane->queue);
        CHECK_INT(cuda->event_sync(lane->device, event), STATUS_OK);
        check_values(to, COUNT, lane->first + (float)round);
    }
    cuda->give(lane->device, memory);
    cuda->event_close(lane->device, event);
    return NULL;
}

/* Each thread another device where there are two; none is the current one of a new thread. */
static void threads(void) {
    int last = cuda->count() - 1;
    struct device *devices[] = {open_device(last), open_device(0)};
    struct lane lanes[2];
    pthread_t ids[2];
    for (int i = 0; i < 2; i++) {
        lanes[i] = (struct lane){devices[i], DEVICE_COPY_OUT, 1000.0F * (float)i};
        CHECK_INT(pthread_create(&ids[i], NULL, lane_main, &lanes[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        CHECK_INT(pthread_join(ids[i], NULL), 0);
        cuda->close(devices[i]);
    }
}

/* More than half of what a device has, of each of two; a queue of one device waits for an event of
 * the other; each is somewhere else in the machine, and becomes the current one when asked to. */
static void two_devices(void) {
    struct device_memory memory_of;
    if (cuda->count() < 2) {
        printf("only one device: left out\n");
        return;
    }
    struct device *first = open_device(0);
    struct device *second = open_device(1);
    cuda->memory(first, &memory_of);
    CHECK(cuda->take(first, (size_t)memory_of.total / 10 * 6));
    cuda->memory(second, &memory_of);
    CHECK(cuda->take(second, (size_t)memory_of.total / 10 * 6));
    float *there = take_floats(second, COUNT);
    float *host = take_pinned_floats(first, 2 * COUNT);
    float *memory = take_floats(first, COUNT);
    struct device_event *event = cuda->event_open(first);
    fill(host, COUNT, 5.0F);
    memset(host + COUNT, 0xff, COUNT * sizeof *host);
    cuda->copy(first, DEVICE_COPY_IN, memory, host, COUNT * sizeof *host, DEVICE_TO);
    cuda->copy(first, DEVICE_COPY_IN, host + COUNT, memory, COUNT * sizeof *host, DEVICE_FROM);
    cuda->event_record(first, event, DEVICE_COPY_IN);
    cuda->event_wait(second, DEVICE_COMPUTE, event);
    cuda->copy(second, DEVICE_COMPUTE, there, host + COUNT, COUNT * sizeof *host, DEVICE_TO);
    float back[COUNT];
    char buses[2][32];
    CHECK(cuda->bus_id(first, buses[0], sizeof buses[0]));
    CHECK(cuda->bus_id(second, buses[1], sizeof buses[1]));
    CHECK(strchr(buses[0], ':') && strcmp(buses[0], buses[1]) != 0);
    first->index = 99; /* a bus that is not told is no failure */
    CHECK(!cuda->bus_id(first, buses[0], sizeof buses[0]));
    first->index = 0;
    CHECK_INT(cudaGetLastError(), cudaSuccess);
    for (int i = 0; i < 2; i++) {
        int current = -1;
        cuda->enter(i == 0 ? second : first);
        CHECK_INT(cudaGetDevice(&current), cudaSuccess);
        CHECK_INT(current, i == 0);
    }
    cuda->copy(second, DEVICE_COMPUTE, back, there, sizeof back, DEVICE_FROM);
    CHECK_INT(cuda->wait(second, DEVICE_COMPUTE), STATUS_OK);
    check_values(back, COUNT, 5.0F);
    cuda->event_close(first, event);
    cuda->give_pinned(first, host);
    cuda->close(first);
    cuda->close(second);
}

/* Only the stand-in can be an older one than it is. */
static void old_chip(void) {
    struct device *device = open_device(0);
    bool stand_in = strcmp(device->name, "CUDA on CPU") == 0;
    cuda->close(device);
    if (!stand_in) return;
    CHECK(setenv("CUDA_ON_CPU_CAPABILITY", "7", 1) == 0);
    CHECK_INT(cuda->open(&device, 0), STATUS_DEVICE);
    CHECK(strstr(logged.last, "compute capability 7.0"));
    CHECK(unsetenv("CUDA_ON_CPU_CAPABILITY") == 0);
}

int main(void) {
    setenv("CUDA_ON_CPU_MEMORY_MB", "128", 0); /* the stand-in fills what is taken */
    const struct library_abi abi = library_abi();
    cuda = rubato_cuda_library(&abi, keep_line);
    if (cuda->count() == 0) TEST_SKIP("no CUDA device");
    CHECK_TEXT(cuda->name, "cuda");
    CHECK_INT(cuda->kind, DEVICE_CUDA);
    TEST_RUN(other_build);
    TEST_RUN(memory_counted);
    TEST_RUN(copies);
    TEST_RUN(chain);
    TEST_RUN(polled);
    TEST_RUN(errors_kept);
    TEST_RUN(no_such_device);
    TEST_RUN(old_chip);
    TEST_RUN(threads);
    TEST_RUN(two_devices);
    return 0;
}
