/* cudart.cpp - the rest of the runtime API: launches, copies, devices and errors.
 *
 * Only what the project calls. What is called and missing fails when the program is linked.
 */
#include "device_memory.cuh"
#include "simt.cuh"
#include "streams.cuh"

#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace cuda_on_cpu {

static thread_local int current_device;
static thread_local cudaError_t last_error;

int device_current() {
    return current_device;
}
int device_count() {
    static const int count = (int)setting_number("CUDA_ON_CPU_DEVICES", 2.0);
    return count <= DEVICES_MAX ? count : DEVICES_MAX;
}
cudaError_t note_error(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
}

// cudaFuncAttributeMaxDynamicSharedMemorySize of each kernel that has it.
struct shared_limits {
    std::mutex lock;
    std::map<const void *, size_t> bytes;
};
static struct shared_limits *const limits = new struct shared_limits; // as streams.cpp's

// Dynamic shared memory that a block may ask for. Read anew each time: a test may be several chips.
static int shared_most() {
    const double kib = setting_number("CUDA_ON_CPU_SHARED_KB", SHARED_MAX >> 10);
    if (kib > SHARED_MAX >> 10) die("CUDA_ON_CPU_SHARED_KB=%g; up to 227 is allowed", kib);
    return (int)kib << 10;
}

static int capability() {
    return (int)setting_number("CUDA_ON_CPU_CAPABILITY", 9);
}

static size_t shared_limit(const void *function) {
    std::lock_guard<std::mutex> hold(limits->lock);
    auto found = limits->bytes.find(function);
    return found == limits->bytes.end() ? (size_t)SHARED_DEFAULT : found->second;
}

static bool shape_allowed(const dim3 &grid, const dim3 &shape) {
    uint64_t threads = (uint64_t)shape.x * shape.y * shape.z;
    return grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x <= 2147483647U && grid.y <= 65535 &&
           grid.z <= 65535 && threads > 0 && threads <= THREADS_MAX && shape.z <= 64;
}

cudaError_t enqueue_kernel(const struct launch &launch, cudaStream_t stream,
                           const void *const *pointers, int count) {
    if (!shape_allowed(launch.grid, launch.block)) return note_error(cudaErrorInvalidConfiguration);
    if (launch.shared_bytes > shared_limit(launch.function))
        return note_error(cudaErrorInvalidValue);
    int device = stream_device(stream);
    if (device != current_device) return note_error(cudaErrorInvalidResourceHandle);
    for (int i = 0; i < count; i++)
        memory_check_argument(i, pointers[i], device);
    return enqueue_work(stream, true, [launch] { run_grid(launch); });
}

static bool direction_fits(enum cudaMemcpyKind kind, enum memory_kind to, enum memory_kind from) {
    bool to_device = to == MEMORY_DEVICE, from_device = from == MEMORY_DEVICE;
    switch (kind) {
    case cudaMemcpyDefault:
        return true;
    case cudaMemcpyHostToDevice:
        return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
        return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
        return to_device && from_device;
    default:
        return !to_device && !from_device;
    }
}

// The thread sanitizer must see the accesses, which memcpy()'s interceptor shows it.
static void copy_rows(char *to, size_t to_pitch, const char *from, size_t from_pitch, size_t width,
                      size_t height) {
    for (size_t row = 0; row < height; row++)
        memcpy(to + row * to_pitch, from + row * from_pitch, width);
}

} // namespace cuda_on_cpu

using namespace cuda_on_cpu;

extern "C" {

// From pageable memory CUDA returns when the source is copied, to it when all is done; only pinned
// memory is accessed later, when the stream comes to it.
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
    if (width == 0 || height == 0) return cudaSuccess;
    if (width > to_pitch || width > from_pitch) return note_error(cudaErrorInvalidPitchValue);
    enum memory_kind to_kind = memory_check("copy to", to, to_pitch * (height - 1) + width);
    enum memory_kind from_kind = memory_check("copy from", from, from_pitch * (height - 1) + width);
    if (!direction_fits(kind, to_kind, from_kind))
        die("cudaMemcpyAsync: the direction %d does not fit the pointers", (int)kind);
    if (from_kind == MEMORY_PAGEABLE) {
        auto staged = std::make_shared<std::vector<char>>(width * height);
        copy_rows(staged->data(), width, (const char *)from, from_pitch, width, height);
        return enqueue_work(stream, true, [=] {
            copy_rows((char *)to, to_pitch, staged->data(), width, width, height);
        });
    }
    cudaError_t error = enqueue_work(stream, true, [=] {
        copy_rows((char *)to, to_pitch, (const char *)from, from_pitch, width, height);
    });
    if (error != cudaSuccess || to_kind != MEMORY_PAGEABLE) return error;
    return cudaStreamSynchronize(stream);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}

cudaError_t cudaMemsetAsync(void *start, int value, size_t bytes, cudaStream_t stream) {
    if (bytes == 0) return cudaSuccess;
    if (memory_check("cudaMemsetAsync", start, bytes) != MEMORY_DEVICE)
        return note_error(cudaErrorInvalidValue);
    return enqueue_work(stream, true, [=] { memset(start, value, bytes); });
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = device_count();
    return *count > 0 ? cudaSuccess : note_error(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= device_count()) return note_error(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    streams_drain_device(current_device);
    memory_check_tails(current_device);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    if (device < 0 || device >= device_count()) return note_error(cudaErrorInvalidDevice);
    *properties = {};
    strcpy(properties->name, "CUDA on CPU");
    properties->totalGlobalMem = memory_total();
    properties->sharedMemPerBlock = SHARED_DEFAULT;
    properties->sharedMemPerBlockOptin = (size_t)shared_most();
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = THREADS_MAX;
    properties->major = capability();
    properties->multiProcessorCount = 4;
    properties->unifiedAddressing = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *bus_id, int bytes, int device) {
    if (device < 0 || device >= device_count()) return note_error(cudaErrorInvalidDevice);
    snprintf(bus_id, (size_t)bytes, "0000:%02x:00.0", (unsigned)device + 1);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *pointer) {
    struct allocation a;
    *attributes = {};
    attributes->device = current_device;
    if (!memory_find(pointer, &a) || a.freed) return cudaSuccess;
    attributes->type = a.pinned ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    if (!a.pinned) attributes->device = a.device;
    attributes->devicePointer = const_cast<void *>(pointer);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    if (device < 0 || device >= device_count()) return note_error(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
        *value = capability();
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = 4;
        break;
    case cudaDevAttrMaxThreadsPerBlock:
        *value = THREADS_MAX;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = shared_most();
        break;
    case cudaDevAttrWarpSize:
        *value = 32;
        break;
    default:
        die("cudaDeviceGetAttribute: attribute %d is not in the stand-in", (int)attribute);
    }
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *function, cudaFuncAttribute attribute, int value) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
        die("cudaFuncSetAttribute: attribute %d is not in the stand-in", (int)attribute);
    if (value < 0 || value > shared_most()) return note_error(cudaErrorInvalidValue);
    std::lock_guard<std::mutex> hold(limits->lock);
    limits->bytes[function] = (size_t)value;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void) {
    return last_error;
}

const char *cudaGetErrorName(cudaError_t error) {
#define NAME(code)                                                                                 \
    case code:                                                                                     \
        return #code
    switch (error) {
        NAME(cudaSuccess);
        NAME(cudaErrorInvalidValue);
        NAME(cudaErrorMemoryAllocation);
        NAME(cudaErrorInvalidConfiguration);
        NAME(cudaErrorInvalidPitchValue);
        NAME(cudaErrorInvalidDevice);
        NAME(cudaErrorNoDevice);
        NAME(cudaErrorInvalidResourceHandle);
        NAME(cudaErrorNotReady);
        NAME(cudaErrorLaunchFailure);
        NAME(cudaErrorHostMemoryAlreadyRegistered);
        NAME(cudaErrorHostMemoryNotRegistered);
    default:
        return "an error that the stand-in never makes";
    }
#undef NAME
}

const char *cudaGetErrorString(cudaError_t error) {
    return cudaGetErrorName(error);
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

} // extern "C"
