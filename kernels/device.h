/* device.h - what computes: the host's processor, or a CUDA device.
 *
 * A device has memory, queues of work, events between queues, and the operations of a model
 * (kernels/compute.h). Work on one queue runs in order; queues run beside each other. On the host
 * each call has done its work when it returns, memory is the host's, and events are always done.
 * CUDA is a library of its own (librubato_cuda.so), loaded when a CUDA device is first opened: a
 * worker on a machine without CUDA runs, and says what is missing when asked for one.
 *
 * Errors: calls that queue work return nothing. What went wrong first is kept, and returned by
 * every later device_wait() and device_done(); after it, results are worth nothing.
 * One thread drives a device, with these exceptions: device_enter and device_bus_id; device_copy,
 * device_zero, device_event_record, device_event_wait, device_done and codecs on a queue that no
 * other thread uses; and while the one that drives it makes no call, another may take and give back
 * what it needs for that.
 * To add a kind: its table of struct device_backend, a row in device.c, and its name in
 * base/device_name.c.
 */
#ifndef RUBATO_KERNELS_DEVICE_H
#define RUBATO_KERNELS_DEVICE_H

#include "base/device_name.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct codec_cuda_ops;
struct compute_ops;
struct group_ops;

enum device_queue {
    DEVICE_COMPUTE,  /* the model's operations */
    DEVICE_COPY_IN,  /* weights to the device */
    DEVICE_COPY_OUT, /* gradients from it */
    DEVICE_CODEC,    /* encoders and decoders */
    DEVICE_QUEUES
};

enum device_direction { DEVICE_TO, DEVICE_FROM, DEVICE_WITHIN };

struct device;
struct device_event; /* a place in a queue */

struct device_memory {
    uint64_t total, used, most; /* bytes: of the device; taken here now, and at most so far */
};

/* What the driver tells. */
struct device_reading {
    uint64_t memory_total, memory_used; /* bytes, of all processes */
    int utilisation;                    /* percent of the time that it worked; -1: not told */
    int temperature;                    /* degrees Celsius; -1: not told */
};

struct device_backend {
    const char *name; /* "cpu", "cuda" */
    enum device_kind kind;
    const struct compute_ops *compute;
    const struct group_ops *group;       /* kernels/group.h */
    const struct codec_cuda_ops *codecs; /* compression/cuda/codec_cuda.h; NULL: the host has all */

    /* How many there are; 0 with the reason logged where the kind cannot be used. */
    int (*count)(void);

    enum status (*open)(struct device **device, int index); /* DEVICE or MEMORY, logged */
    void (*close)(struct device *device);

    void *(*take)(struct device *device, size_t bytes);
    void (*give)(struct device *device, void *memory);
    void *(*take_pinned)(struct device *device, size_t bytes);
    void (*give_pinned)(struct device *device, void *memory);
    bool (*pin)(struct device *device, void *memory, size_t bytes);
    void (*unpin)(struct device *device, void *memory);
    void (*memory)(const struct device *device, struct device_memory *memory);
    bool (*watch)(struct device *device, struct device_reading *reading);
    bool (*bus_id)(struct device *device, char *bus_id, size_t bytes);
    void (*enter)(struct device *device);
    void (*range_begin)(const char *name);
    void (*range_end)(void);
    bool (*record)(struct device *device, bool on);

    void (*copy)(struct device *device, enum device_queue queue, void *to, const void *from,
                 size_t bytes, enum device_direction direction);
    void (*zero)(struct device *device, enum device_queue queue, void *memory, size_t bytes);
    struct device_event *(*event_open)(struct device *device);
    void (*event_close)(struct device *device, struct device_event *event);
    void (*event_record)(struct device *device, struct device_event *event,
                         enum device_queue queue);
    void (*event_wait)(struct device *device, enum device_queue queue,
                       const struct device_event *event);
    enum status (*event_done)(struct device *device, const struct device_event *event);
    enum status (*event_sync)(struct device *device, const struct device_event *event);
    enum status (*wait)(struct device *device, enum device_queue queue);
};

extern const struct device_backend device_cpu; /* kernels/device_cpu.c */

/* What every kind's own struct begins with. */
struct device {
    const struct device_backend *backend;
    const struct compute_ops *compute; /* the backend's */
    int index;
    char name[96]; /* "NVIDIA H200", "cpu" */
};

/* Usable devices of a kind; 0 with the reason logged: CUDA's library, its runtime or a driver is
 * not here. */
int device_count(enum device_kind kind);

/* DEVICE: there is none with this number; MEMORY. Logged. */
enum status device_open(struct device **device, enum device_kind kind, int index) WARN_UNUSED;
void device_close(struct device *device); /* waits for its work; harmless on NULL */

/* A device that is not open, of a kind that need not have one here: for what is pure in its tables
 * (compute.scratch, compute.linear_need) and nothing else. False, logged: the kind's library is not
 * here. */
bool device_describe(struct device *device, enum device_kind kind);

/* The host as a device, always there; not to be closed. */
struct device *device_host(void);

/* Its memory is the host's: nothing is to be copied, and no work is ever under way. */
bool device_is_host(const struct device *device);

/* `bytes` >= 1 of the device's memory, aligned to 256 bytes, its content undefined; NULL when there
 * is not so much, logged. Of the host's that the device copies from and to without waiting
 * (`pinned`). Both for set-up alone. */
void *device_take(struct device *device, size_t bytes);
void device_give(struct device *device, void *memory);
void *device_take_pinned(struct device *device, size_t bytes);
void device_give_pinned(struct device *device, void *memory);

/* Makes memory that is there pinned, until device_unpin. False: it is as it was, and copies from
 * and to it make the caller wait. */
bool device_pin(struct device *device, void *memory, size_t bytes);
void device_unpin(struct device *device, void *memory);

void device_memory(const struct device *device, struct device_memory *memory);

/* Takes up to some ms. False: nothing is told; of the host always, of a GPU with the reason logged
 * at the first time. */
bool device_watch(struct device *device, struct device_reading *reading);

/* Where it is in the machine, as lspci writes it: "0000:65:00.0" -> bus_id [bytes]. False: not
 * told; of the host always. */
bool device_bus_id(struct device *device, char *bus_id, size_t bytes);

/* Makes it the calling thread's current CUDA device, for libraries that take that one (UCX).
 * Nothing on the host. */
void device_enter(struct device *device);

/* A phase of the calling thread, as profilers (Nsight Systems) show it, by an NVTX range; they
 * nest. `name` is a constant. Next to nothing without a profiler, and nothing on the host. */
void device_range_begin(const struct device *device, const char *name);
void device_range_end(const struct device *device);

/* Where a profiler that waits for it (nsys profile --capture-range cudaProfilerApi) starts and
 * stops to record. False: it cannot be told; on the host never, on a device with the reason
 * logged. */
bool device_record(struct device *device, bool on);

/* Queues a copy; the host's side must stay as it is until it is done. */
void device_copy(struct device *device, enum device_queue queue, void *to, const void *from,
                 size_t bytes, enum device_direction direction);
void device_zero(struct device *device, enum device_queue queue, void *memory, size_t bytes);

/* Never NULL: ends the process like memory_zeroed(). One that was never recorded is done. */
struct device_event *device_event_open(struct device *device);
void device_event_close(struct device *device, struct device_event *event);

/* The place behind all that is queued now. */
void device_event_record(struct device *device, struct device_event *event,
                         enum device_queue queue);

/* What is queued from now on starts when the event's place is reached. */
void device_event_wait(struct device *device, enum device_queue queue,
                       const struct device_event *event);

/* Whether the place is reached: OK, AGAIN; DEVICE: an error, logged once. device_sync() waits. */
enum status device_done(struct device *device, const struct device_event *event) WARN_UNUSED;
enum status device_sync(struct device *device, const struct device_event *event) WARN_UNUSED;

/* Until all that is queued is done. DEVICE: an error, logged once. */
enum status device_wait(struct device *device, enum device_queue queue) WARN_UNUSED;

#endif
