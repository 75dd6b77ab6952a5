/* device_cpu.c - the host as a device: calls have done their work when they return, and what is
 * taken here is not counted. */
#include "base/log.h"
#include "kernels/compute.h"
#include "kernels/group.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ALIGN ((size_t)256)

/* All events are this one: their places are reached. */
struct device_event {
    bool reached;
};

static int count(void) {
    return 1;
}

static enum status open_host(struct device **device, int index) {
    (void)index;
    *device = device_host();
    return STATUS_OK;
}

static void close_host(struct device *device) {
    (void)device;
}

static void *take(struct device *device, size_t bytes) {
    (void)device;
    void *memory = bytes <= PTRDIFF_MAX - ALIGN
                       ? aligned_alloc(ALIGN, (bytes + ALIGN - 1) & ~(ALIGN - 1))
                       : NULL;
    if (memory == NULL) log_error("out of memory: wanted %zu bytes", bytes);
    return memory;
}

static void give(struct device *device, void *memory) {
    (void)device;
    free(memory);
}

static bool pin(struct device *device, void *memory, size_t bytes) {
    (void)device;
    (void)memory;
    (void)bytes;
    return true;
}

static void unpin(struct device *device, void *memory) {
    (void)device;
    (void)memory;
}

static void count_memory(const struct device *device, struct device_memory *memory) {
    (void)device;
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    *memory = (struct device_memory){0};
    if (pages > 0 && page_bytes > 0) memory->total = (uint64_t)pages * (uint64_t)page_bytes;
}

static bool watch(struct device *device, struct device_reading *reading) {
    (void)device;
    (void)reading;
    return false;
}

static bool bus_id(struct device *device, char *text, size_t bytes) {
    (void)device;
    if (bytes > 0) text[0] = '\0';
    return false;
}

static void enter(struct device *device) {
    (void)device;
}

static void range_begin(const char *name) {
    (void)name;
}

static void range_end(void) {
}

static bool record(struct device *device, bool on) {
    (void)device;
    (void)on;
    return false;
}

static void copy(struct device *device, enum device_queue queue, void *to, const void *from,
                 size_t bytes, enum device_direction direction) {
    (void)device;
    (void)queue;
    (void)direction;
    memmove(to, from, bytes);
}

static void zero(struct device *device, enum device_queue queue, void *memory, size_t bytes) {
    (void)device;
    (void)queue;
    memset(memory, 0, bytes);
}

static struct device_event *event_open(struct device *device) {
    static struct device_event event = {.reached = true};
    (void)device;
    return &event;
}

static void event_close(struct device *device, struct device_event *event) {
    (void)device;
    (void)event;
}

static void event_record(struct device *device, struct device_event *event,
                         enum device_queue queue) {
    (void)device;
    (void)event;
    (void)queue;
}

static void event_wait(struct device *device, enum device_queue queue,
                       const struct device_event *event) {
    (void)device;
    (void)queue;
    (void)event;
}

static enum status event_done(struct device *device, const struct device_event *event) {
    (void)device;
    (void)event;
    return STATUS_OK;
}

static enum status wait_queue(struct device *device, enum device_queue queue) {
    (void)device;
    (void)queue;
    return STATUS_OK;
}

const struct device_backend device_cpu = {
    .name = "cpu",
    .kind = DEVICE_CPU,
    .compute = &compute_cpu,
    .group = &group_cpu,
    .count = count,
    .open = open_host,
    .close = close_host,
    .take = take,
    .give = give,
    .take_pinned = take,
    .give_pinned = give,
    .pin = pin,
    .unpin = unpin,
    .memory = count_memory,
    .watch = watch,
    .bus_id = bus_id,
    .enter = enter,
    .range_begin = range_begin,
    .range_end = range_end,
    .record = record,
    .copy = copy,
    .zero = zero,
    .event_open = event_open,
    .event_close = event_close,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_done = event_done,
    .event_sync = event_done,
    .wait = wait_queue,
};

struct device *device_host(void) {
    static struct device host = {.backend = &device_cpu, .compute = &compute_cpu, .name = "cpu"};
    return &host;
}
