#include "kernels/device.h"

#include "base/assert.h"
#include "base/log.h"
#include "kernels/cuda/library_cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CUDA_LIBRARY "librubato_cuda.so"
#define CUDA_ENTRY   "rubato_cuda_library"

/* The folder of the running program with its last slash -> folder; false: not known. */
static bool program_folder(char *folder, size_t folder_bytes) {
    ssize_t length = readlink("/proc/self/exe", folder, folder_bytes - 1);
    if (length < 0) return false;
    folder[length] = 0;
    char *slash = strrchr(folder, '/');
    if (slash == NULL) return false;
    slash[1] = 0;
    return true;
}

/* Where the library is found, it is loaded or told why it cannot be. First by the loader's own
 * search, which LD_LIBRARY_PATH directs, then beside the program. NULL, logged. */
static void *load_cuda(void) {
    static const char *const places[] = {"../lib/", ""};
    char folder[1024], path[sizeof folder + 64];
    void *library = dlopen(CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library != NULL) return library;
    const char *why = dlerror();
    bool missing = why != NULL && strncmp(why, CUDA_LIBRARY ":", sizeof CUDA_LIBRARY) == 0 &&
                   strstr(why, "cannot open") != NULL;
    bool known = program_folder(folder, sizeof folder);
    for (size_t i = 0; known && missing && i < sizeof places / sizeof places[0]; i++) {
        (void)snprintf(path, sizeof path, "%s%s" CUDA_LIBRARY, folder, places[i]);
        if (access(path, F_OK) != 0) continue;
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library != NULL) return library;
        why = dlerror();
        missing = false;
    }
    if (missing) {
        log_error("no CUDA device can be used: there is no " CUDA_LIBRARY
                  " in ../lib or in the folder of this program, nor where the loader looks; build "
                  "with a CUDA toolkit (cmake -DRUBATO_CUDA=ON), or set LD_LIBRARY_PATH");
    } else {
        log_error("no CUDA device can be used: %s; " CUDA_LIBRARY " needs the CUDA runtime and "
                  "cuBLAS (NVIDIA's packages cuda-cudart and libcublas) of the version that it was "
                  "built with, or LD_LIBRARY_PATH set to where they are",
                  why != NULL ? why : "it cannot be loaded");
    }
    return NULL;
}

static const struct device_backend *find_cuda(void) {
    library_entry_fn *entry = NULL;
    void *library = load_cuda();
    if (library == NULL) return NULL;
    void *symbol = dlsym(library, CUDA_ENTRY);
    if (symbol == NULL) {
        log_error("no CUDA device can be used: the " CUDA_LIBRARY
                  " that was found has no " CUDA_ENTRY
                  "; it is of another build than this program: build both from the "
                  "same source, or set LD_LIBRARY_PATH to the right one");
        return NULL;
    }
    /* As POSIX has it: ISO C does not convert a pointer to data into one to a function. */
    memcpy(&entry, &symbol, sizeof entry);
    const struct library_abi abi = library_abi();
    return entry(&abi, log_write);
}

static const struct device_backend *find_cpu(void) {
    return &device_cpu;
}

/* The library stays loaded: what it made may be in use until the process ends. NULL where the kind
 * is not here, logged. */
static const struct device_backend *(*const find[DEVICE_KINDS])(void) = {
    [DEVICE_CPU] = find_cpu, [DEVICE_CUDA] = find_cuda};

int device_count(enum device_kind kind) {
    const struct device_backend *backend = find[kind]();
    return backend != NULL ? backend->count() : 0;
}

bool device_describe(struct device *device, enum device_kind kind) {
    const struct device_backend *backend = find[kind]();
    if (backend == NULL) return false;
    *device = (struct device){.backend = backend, .compute = backend->compute};
    return true;
}

enum status device_open(struct device **device, enum device_kind kind, int index) {
    const struct device_backend *backend = find[kind]();
    const char *name = device_kind_name(kind);
    int count = backend != NULL ? backend->count() : 0;
    if (count == 0) return STATUS_DEVICE;
    if (index < 0 || index >= count) {
        log_error("there is no %s:%d: this machine has %d, from %s:0 to %s:%d", name, index, count,
                  name, name, count - 1);
        return STATUS_DEVICE;
    }
    return backend->open(device, index);
}

void device_close(struct device *device) {
    if (device != NULL) device->backend->close(device);
}

bool device_is_host(const struct device *device) {
    return device->backend->kind == DEVICE_CPU;
}

void *device_take(struct device *device, size_t bytes) {
    ASSERT(bytes >= 1);
    return device->backend->take(device, bytes);
}

void device_give(struct device *device, void *memory) {
    if (memory != NULL) device->backend->give(device, memory);
}

void *device_take_pinned(struct device *device, size_t bytes) {
    ASSERT(bytes >= 1);
    return device->backend->take_pinned(device, bytes);
}

void device_give_pinned(struct device *device, void *memory) {
    if (memory != NULL) device->backend->give_pinned(device, memory);
}

bool device_pin(struct device *device, void *memory, size_t bytes) {
    return device->backend->pin(device, memory, bytes);
}

void device_unpin(struct device *device, void *memory) {
    device->backend->unpin(device, memory);
}

void device_memory(const struct device *device, struct device_memory *memory) {
    device->backend->memory(device, memory);
}

bool device_watch(struct device *device, struct device_reading *reading) {
    return device->backend->watch(device, reading);
}

bool device_bus_id(struct device *device, char *bus_id, size_t bytes) {
    return device->backend->bus_id(device, bus_id, bytes);
}

void device_enter(struct device *device) {
    device->backend->enter(device);
}

void device_range_begin(const struct device *device, const char *name) {
    device->backend->range_begin(name);
}

void device_range_end(const struct device *device) {
    device->backend->range_end();
}

bool device_record(struct device *device, bool on) {
    return device->backend->record(device, on);
}

void device_copy(struct device *device, enum device_queue queue, void *to, const void *from,
                 size_t bytes, enum device_direction direction) {
    device->backend->copy(device, queue, to, from, bytes, direction);
}

void device_zero(struct device *device, enum device_queue queue, void *memory, size_t bytes) {
    device->backend->zero(device, queue, memory, bytes);
}

struct device_event *device_event_open(struct device *device) {
    return device->backend->event_open(device);
}

void device_event_close(struct device *device, struct device_event *event) {
    if (event != NULL) device->backend->event_close(device, event);
}

void device_event_record(struct device *device, struct device_event *event,
                         enum device_queue queue) {
    device->backend->event_record(device, event, queue);
}

void device_event_wait(struct device *device, enum device_queue queue,
                       const struct device_event *event) {
    device->backend->event_wait(device, queue, event);
}

enum status device_done(struct device *device, const struct device_event *event) {
    return device->backend->event_done(device, event);
}

enum status device_sync(struct device *device, const struct device_event *event) {
    return device->backend->event_sync(device, event);
}

enum status device_wait(struct device *device, enum device_queue queue) {
    return device->backend->wait(device, queue);
}
