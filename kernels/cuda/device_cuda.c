#include "kernels/cuda/device_cuda.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/memory.h"
#include "kernels/compute.h"
#include "kernels/cuda/group_nccl.h"
#include "kernels/cuda/nvml.h"

#include <cuda_profiler_api.h>
#include <inttypes.h>
#include <nvtx3/nvToolsExt.h>
#include <stdlib.h>
#include <string.h>

struct device_event {
    cudaEvent_t event;
};

/* What NVIDIA recommends as cuBLAS's workspace: from Hopper on, and ahead of it. */
enum { WORKSPACE_MIB = 32, WORKSPACE_OLD_MIB = 8 };

/* Compute capabilities. Kernels are compiled from AMPERE's on (CMakeLists.txt). */
enum { AMPERE = 8, HOPPER = 9 };

/* The current device is a thread's, and the threads that call are not ours. */
static struct device_cuda *enter(struct device *device) {
    struct device_cuda *cuda = (struct device_cuda *)(void *)device;
    device_cuda_note(device, (int)cudaSetDevice(device->index), "choosing the device");
    return cuda;
}

/* ---- errors */

static void note(struct device *device, const char *what, const char *name, const char *text) {
    struct device_cuda *cuda = (struct device_cuda *)(void *)device;
    pthread_mutex_lock(&cuda->lock);
    bool first = !cuda->failed;
    cuda->failed = true;
    pthread_mutex_unlock(&cuda->lock);
    if (!first) return;
    log_error("cuda:%d (%s): %s failed: %s (%s); what it computes is worth nothing from now on",
              device->index, device->name, what, text, name);
}

void device_cuda_note(struct device *device, int error, const char *what) {
    if (error == (int)cudaSuccess) return;
    note(device, what, cudaGetErrorName((cudaError_t)error),
         cudaGetErrorString((cudaError_t)error));
    (void)cudaGetLastError(); /* or the next launch would be taken for what failed */
}

void device_cuda_note_cublas(struct device *device, cublasStatus_t status, const char *what) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    note(device, what, cublasGetStatusName(status), "an error of cuBLAS");
}

static enum status outcome(struct device_cuda *cuda) {
    pthread_mutex_lock(&cuda->lock);
    bool failed = cuda->failed;
    pthread_mutex_unlock(&cuda->lock);
    return failed ? STATUS_DEVICE : STATUS_OK;
}

static void make_current(struct device *device) {
    (void)enter(device);
}

cudaStream_t device_cuda_stream(struct device *device) {
    return device_cuda_stream_of(device, DEVICE_COMPUTE);
}

cudaStream_t device_cuda_stream_of(struct device *device, enum device_queue queue) {
    return enter(device)->queues[queue];
}

/* ---- memory */

static void *take(struct device *device, size_t bytes) {
    struct device_cuda *cuda = enter(device);
    void *memory = NULL;
    cudaError_t error = cudaMalloc(&memory, bytes);
    if (error != cudaSuccess) {
        size_t unused = 0;
        size_t total = 0;
        (void)cudaGetLastError(); /* this call's alone: the device goes on */
        (void)cudaMemGetInfo(&unused, &total);
        log_error("cuda:%d (%s): no memory for %zu bytes: %s; %" PRIu64
                  " are taken already, and %zu of %zu are free",
                  device->index, device->name, bytes, cudaGetErrorString(error), cuda->memory.used,
                  unused, total);
        return NULL;
    }
    struct device_cuda_taken *taken = memory_zeroed(1, sizeof *taken);
    *taken = (struct device_cuda_taken){.memory = memory, .bytes = bytes, .next = cuda->taken};
    cuda->taken = taken;
    cuda->memory.used += bytes;
    if (cuda->memory.used > cuda->memory.most) cuda->memory.most = cuda->memory.used;
    return memory;
}

static void give(struct device *device, void *memory) {
    struct device_cuda *cuda = enter(device);
    struct device_cuda_taken **at = &cuda->taken;
    while (*at && (*at)->memory != memory)
        at = &(*at)->next;
    struct device_cuda_taken *taken = *at;
    ASSERT(taken);
    *at = taken->next;
    cuda->memory.used -= taken->bytes;
    free(taken);
    device_cuda_note(device, (int)cudaFree(memory), "giving memory back");
}

/* Portable: pinned for every device, since those of a node share the host's weights. */
static void *take_pinned(struct device *device, size_t bytes) {
    void *memory = NULL;
    enter(device);
    cudaError_t error = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
    if (error == cudaSuccess) return memory;
    (void)cudaGetLastError();
    log_error("cuda:%d (%s): no pinned memory of %zu bytes: %s", device->index, device->name, bytes,
              cudaGetErrorString(error));
    return NULL;
}

static void give_pinned(struct device *device, void *memory) {
    enter(device);
    device_cuda_note(device, (int)cudaFreeHost(memory), "giving pinned memory back");
}

static bool pin(struct device *device, void *memory, size_t bytes) {
    enter(device);
    cudaError_t error = cudaHostRegister(memory, bytes, cudaHostRegisterPortable);
    if (error == cudaSuccess) return true;
    (void)cudaGetLastError();
    log_warn("cuda:%d (%s): %zu bytes of memory cannot be pinned: %s; copies from and to them take "
             "longer",
             device->index, device->name, bytes, cudaGetErrorString(error));
    return false;
}

static void unpin(struct device *device, void *memory) {
    enter(device);
    device_cuda_note(device, (int)cudaHostUnregister(memory), "making memory pageable again");
}

static void memory_now(const struct device *device, struct device_memory *memory) {
    *memory = ((const struct device_cuda *)(const void *)device)->memory;
}

static bool bus_id(struct device *device, char *text, size_t bytes) {
    cudaError_t error = cudaDeviceGetPCIBusId(text, (int)bytes, device->index);
    if (error == cudaSuccess) return true;
    (void)cudaGetLastError();
    log_warn("cuda:%d (%s): where it is on the bus is not known: %s", device->index, device->name,
             cudaGetErrorString(error));
    return false;
}

static bool watch(struct device *device, struct device_reading *reading) {
    struct device_cuda *cuda = enter(device);
    char bus[32];
    if (!cuda->nvml_asked) {
        cuda->nvml_asked = true;
        if (!bus_id(device, bus, sizeof bus) ||
            nvml_open(&cuda->nvml, NVML_LIBRARY, bus) != STATUS_OK)
            cuda->nvml = NULL;
    }
    return cuda->nvml && nvml_read(cuda->nvml, reading) == STATUS_OK;
}

/* ---- profilers */

static void range_begin(const char *name) {
    (void)nvtxRangePushA(name);
}

static void range_end(void) {
    (void)nvtxRangePop();
}

static bool record(struct device *device, bool on) {
    enter(device);
    cudaError_t error = on ? cudaProfilerStart() : cudaProfilerStop();
    if (error == cudaSuccess) return true;
    (void)cudaGetLastError(); /* this call's alone */
    log_error("cuda:%d (%s): a profiler cannot be told to %s: %s", device->index, device->name,
              on ? "start" : "stop", cudaGetErrorString(error));
    return false;
}

/* ---- queues */

static void copy(struct device *device, enum device_queue queue, void *to, const void *from,
                 size_t bytes, enum device_direction direction) {
    static const struct {
        enum cudaMemcpyKind kind;
        const char *what;
    } directions[] = {[DEVICE_TO] = {cudaMemcpyHostToDevice, "a copy to the device"},
                      [DEVICE_FROM] = {cudaMemcpyDeviceToHost, "a copy from the device"},
                      [DEVICE_WITHIN] = {cudaMemcpyDeviceToDevice, "a copy within the device"}};
    struct device_cuda *cuda = enter(device);
    if (bytes == 0) return;
    cudaError_t error =
        cudaMemcpyAsync(to, from, bytes, directions[direction].kind, cuda->queues[queue]);
    device_cuda_note(device, (int)error, directions[direction].what);
}

static void zero(struct device *device, enum device_queue queue, void *memory, size_t bytes) {
    struct device_cuda *cuda = enter(device);
    if (bytes == 0) return;
    device_cuda_note(device, (int)cudaMemsetAsync(memory, 0, bytes, cuda->queues[queue]),
                     "zeroing memory");
}

/* One that cannot be made leaves an error, which its users see. */
static struct device_event *event_open(struct device *device) {
    struct device_event *event = memory_zeroed(1, sizeof *event);
    enter(device);
    device_cuda_note(device, (int)cudaEventCreateWithFlags(&event->event, cudaEventDisableTiming),
                     "making an event");
    return event;
}

static void event_close(struct device *device, struct device_event *event) {
    enter(device);
    if (event->event)
        device_cuda_note(device, (int)cudaEventDestroy(event->event), "closing an event");
    free(event);
}

static void event_record(struct device *device, struct device_event *event,
                         enum device_queue queue) {
    struct device_cuda *cuda = enter(device);
    if (!event->event) return;
    device_cuda_note(device, (int)cudaEventRecord(event->event, cuda->queues[queue]),
                     "recording an event");
}

static void event_wait(struct device *device, enum device_queue queue,
                       const struct device_event *event) {
    struct device_cuda *cuda = enter(device);
    if (!event->event) return;
    device_cuda_note(device, (int)cudaStreamWaitEvent(cuda->queues[queue], event->event, 0),
                     "waiting for an event");
}

static enum status event_done(struct device *device, const struct device_event *event) {
    struct device_cuda *cuda = enter(device);
    cudaError_t error = event->event ? cudaEventQuery(event->event) : cudaSuccess;
    bool early = error == cudaErrorNotReady;
    if (!early) device_cuda_note(device, (int)error, "work on the device");
    enum status status = outcome(cuda);
    return status == STATUS_OK && early ? STATUS_AGAIN : status;
}

static enum status event_sync(struct device *device, const struct device_event *event) {
    struct device_cuda *cuda = enter(device);
    if (event->event)
        device_cuda_note(device, (int)cudaEventSynchronize(event->event), "work on the device");
    return outcome(cuda);
}

static enum status wait(struct device *device, enum device_queue queue) {
    struct device_cuda *cuda = enter(device);
    device_cuda_note(device, (int)cudaStreamSynchronize(cuda->queues[queue]), "work on the device");
    return outcome(cuda);
}

/* ---- devices */

static int count(void) {
    int devices = 0;
    cudaError_t error = cudaGetDeviceCount(&devices);
    if (error == cudaSuccess && devices > 0) return devices;
    (void)cudaGetLastError();
    log_error("no CUDA device can be used: %s; it needs a GPU and NVIDIA's driver for CUDA %d.%d "
              "or later",
              error == cudaSuccess ? "there is none" : cudaGetErrorString(error),
              CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    return 0;
}

/* Copies and codecs come first where the device is full: others wait for what they make. */
static void open_queues(struct device_cuda *cuda) {
    struct device *device = &cuda->device;
    int least = 0;
    int greatest = 0;
    device_cuda_note(device, (int)cudaDeviceGetStreamPriorityRange(&least, &greatest),
                     "asking for priorities");
    for (int i = 0; i < DEVICE_QUEUES; i++) {
        int priority = i == DEVICE_COMPUTE ? least : greatest;
        device_cuda_note(
            device,
            (int)cudaStreamCreateWithPriority(&cuda->queues[i], cudaStreamNonBlocking, priority),
            "making a stream");
    }
}

/* A workspace of its own, since what cuBLAS takes by itself may differ from run to run, and the
 * bits with it. Sums of bfloat16 products stay f32 throughout. */
static enum status open_cublas(struct device_cuda *cuda, int major) {
    struct device *device = &cuda->device;
    const size_t bytes = (size_t)(major >= HOPPER ? WORKSPACE_MIB : WORKSPACE_OLD_MIB) << 20;
    cublasStatus_t status = cublasCreate(&cuda->cublas);
    if (status != CUBLAS_STATUS_SUCCESS) {
        device_cuda_note_cublas(device, status, "opening cuBLAS");
        return STATUS_DEVICE;
    }
    void *workspace = take(device, bytes);
    if (!workspace) return STATUS_MEMORY;
    const unsigned mode =
        (unsigned)CUBLAS_DEFAULT_MATH | (unsigned)CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    /* The stream first: it puts cuBLAS's own workspace back. */
    status = cublasSetStream(cuda->cublas, cuda->queues[DEVICE_COMPUTE]);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasSetWorkspace(cuda->cublas, workspace, bytes);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasSetMathMode(cuda->cublas, (cublasMath_t)mode);
    device_cuda_note_cublas(device, status, "setting cuBLAS up");
    return outcome(cuda);
}

static void close_device(struct device *device) {
    struct device_cuda *cuda = enter(device);
    for (int i = 0; i < DEVICE_QUEUES; i++) {
        if (cuda->queues[i]) (void)cudaStreamSynchronize(cuda->queues[i]);
    }
    if (cuda->cublas) (void)cublasDestroy(cuda->cublas);
    while (cuda->taken)
        give(device, cuda->taken->memory);
    for (int i = 0; i < DEVICE_QUEUES; i++) {
        if (cuda->queues[i]) (void)cudaStreamDestroy(cuda->queues[i]);
    }
    nvml_close(cuda->nvml);
    pthread_mutex_destroy(&cuda->lock);
    free(cuda);
}

static enum status open_device(struct device **device, int index) {
    struct cudaDeviceProp properties;
    cudaError_t error = cudaGetDeviceProperties(&properties, index);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        log_error("cuda:%d cannot be used: %s", index, cudaGetErrorString(error));
        return STATUS_DEVICE;
    }
    if (properties.major < AMPERE) {
        log_error("cuda:%d, %s, cannot be used: it has compute capability %d.%d, and the kernels "
                  "are for %d.0 and above; use another device, or --device cpu",
                  index, properties.name, properties.major, properties.minor, AMPERE);
        return STATUS_DEVICE;
    }
    struct device_cuda *cuda = memory_zeroed(1, sizeof *cuda);
    cuda->device = (struct device){
        .backend = &device_cuda, .compute = &compute_cuda, .index = index, .name = ""};
    memcpy(cuda->device.name, properties.name, sizeof cuda->device.name - 1);
    cuda->memory.total = properties.totalGlobalMem;
    pthread_mutex_init(&cuda->lock, NULL);
    enter(&cuda->device);
    open_queues(cuda);
    enum status status = outcome(cuda);
    if (status == STATUS_OK) status = open_cublas(cuda, properties.major);
    if (status != STATUS_OK) {
        close_device(&cuda->device);
        return status;
    }
    *device = &cuda->device;
    return STATUS_OK;
}

const struct device_backend device_cuda = {.name = "cuda",
                                           .kind = DEVICE_CUDA,
                                           .compute = &compute_cuda,
                                           .group = &group_nccl,
                                           .codecs = &codec_cuda,
                                           .count = count,
                                           .open = open_device,
                                           .close = close_device,
                                           .take = take,
                                           .give = give,
                                           .take_pinned = take_pinned,
                                           .give_pinned = give_pinned,
                                           .pin = pin,
                                           .unpin = unpin,
                                           .memory = memory_now,
                                           .watch = watch,
                                           .bus_id = bus_id,
                                           .enter = make_current,
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
                                           .event_sync = event_sync,
                                           .wait = wait};
