/* device_memory.cpp - see device_memory.cuh. */
#include "device_memory.cuh"

#include "sanitizer_hooks.cuh"
#include "simt.cuh"
#include "streams.cuh"

#include <algorithm>
#include <map>
#include <mutex>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

namespace cuda_on_cpu {

static const size_t GUARD_BYTES = 256 << 10;
static const size_t PAGE_BYTES = 64 << 10; // of the system, at most

struct memory_table {
    std::mutex lock; // of what follows
    std::map<char *, struct allocation> all;
    size_t used[DEVICES_MAX] = {};
    uint64_t count = 0;
    std::mutex gate; // held in a device_section()
    size_t total = (size_t)setting_number("CUDA_ON_CPU_MEMORY_MB", 1024.0) << 20;
};
// Made when the library is loaded, ahead of all threads; never freed, since threads may still run
// when the process ends.
static struct memory_table *const memory = new struct memory_table;

// ---- the gate

static size_t body_bytes(const struct allocation &a) {
    return a.map_bytes - GUARD_BYTES;
}

static void set_access(int protection) {
    std::lock_guard<std::mutex> hold(memory->lock);
    for (const auto &entry : memory->all) {
        const struct allocation &a = entry.second;
        if (!a.pinned && !a.freed) mprotect(a.map, body_bytes(a), protection);
    }
}

void device_section(const std::function<void()> &f) {
    std::lock_guard<std::mutex> hold(memory->gate);
    set_access(PROT_READ | PROT_WRITE);
    f();
    set_access(PROT_NONE);
}

// Reports who touched what, then dies of the signal. Only the plain flavour: sanitizers have their
// own. Nothing here is safe in a handler in general; the process ends either way.
static void on_fault(int signal_number, siginfo_t *info, void *) {
    char *address = (char *)info->si_addr;
    struct allocation a;
    bool known = memory_find(address, &a);
    if (in_kernel)
        fprintf(stderr, "cuda-on-cpu: illegal memory access at %p in %s\n", (void *)address,
                running_place().c_str());
    else
        fprintf(stderr, "cuda-on-cpu: host code touched %s at %p\n",
                known ? "device memory" : "unmapped memory", (void *)address);
    if (known)
        fprintf(stderr, "  at +%td of cudaMalloc number %llu of %zu bytes%s\n", address - a.start,
                (unsigned long long)a.number, a.bytes, a.freed ? ", freed" : "");
    fflush(nullptr);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void watch_faults() {
    static char stack[64 << 10];
    stack_t alternate = {};
    alternate.ss_sp = stack;
    alternate.ss_size = sizeof stack;
    sigaltstack(&alternate, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
}

// ---- finding and checking

// Device allocations are found by their guards too, for reports. lock is held.
static bool find_locked(const void *address, struct allocation *found) {
    char *at = (char *)address;
    auto next = memory->all.upper_bound(at);
    if (next == memory->all.begin()) return false;
    const struct allocation &a = std::prev(next)->second;
    char *end = a.pinned ? a.start + a.bytes : a.map + a.map_bytes;
    if (at >= end) return false;
    *found = a;
    return true;
}

bool memory_find(const void *address, struct allocation *found) {
    std::lock_guard<std::mutex> hold(memory->lock);
    return find_locked(address, found);
}

enum memory_kind memory_check(const char *call, const void *start, size_t bytes) {
    struct allocation a;
    if (!memory_find(start, &a)) return MEMORY_PAGEABLE;
    size_t offset = (size_t)((const char *)start - a.start);
    if (a.freed || offset + bytes > a.bytes)
        die("%s: %zu bytes at +%zu of %s number %llu, which has %zu bytes%s", call, bytes, offset,
            a.pinned ? "cudaHostAlloc" : "cudaMalloc", (unsigned long long)a.number, a.bytes,
            a.freed ? " and is freed" : "");
    return a.pinned ? MEMORY_PINNED : MEMORY_DEVICE;
}

void memory_check_argument(int index, const void *pointer, int device) {
    if (pointer == nullptr) return;
    struct allocation a;
    if (!memory_find(pointer, &a))
        die("launch: pointer argument %d (%p) is host memory", index, pointer);
    if (a.freed) die("launch: pointer argument %d (%p) is freed device memory", index, pointer);
    if (!a.pinned && a.device != device)
        die("launch on device %d: pointer argument %d (%p) belongs to device %d", device, index,
            pointer, a.device);
}

static void check_tail(const struct allocation &a) {
    const char *end = a.map + body_bytes(a);
    for (const char *at = a.start + a.bytes; at < end; at++) {
        if (*at != (char)0xFF)
            die("write behind the end of cudaMalloc number %llu of %zu bytes, at +%td",
                (unsigned long long)a.number, a.bytes, at - a.start);
    }
}

void memory_check_tails(int device) {
    if (WITH_ASAN) return; // it reports the write itself, and the tail is fenced off
    device_section([device] {
        std::lock_guard<std::mutex> hold(memory->lock);
        for (const auto &entry : memory->all) {
            const struct allocation &a = entry.second;
            if (!a.pinned && !a.freed && a.device == device) check_tail(a);
        }
    });
}

size_t memory_total() {
    return memory->total;
}

// ---- allocating

static bool map_device(size_t bytes, struct allocation *a) {
    size_t body = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    size_t rounded = (bytes + 255) / 256 * 256;
    char *map = (char *)mmap(nullptr, body + GUARD_BYTES, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return false;
    madvise(map, body, MADV_HUGEPAGE); // of a large one, the gate has fewer pages to change
    memset(map, 0xFF, body);
    mprotect(map, body + GUARD_BYTES, PROT_NONE);
    *a = {};
    a->start = map + body - rounded; // aligned to 256 bytes, as cudaMalloc's
    a->bytes = bytes;
    a->map = map;
    a->map_bytes = body + GUARD_BYTES;
    fence_off(map, (size_t)(a->start - map));
    fence_off(a->start + bytes, (size_t)(map + a->map_bytes - (a->start + bytes)));
    return true;
}

static cudaError_t allocate(void **pointer, size_t bytes) {
    static std::once_flag once;
    if (!WITH_ASAN && !WITH_TSAN) std::call_once(once, watch_faults);
    struct allocation a;
    int device = device_current();
    std::lock_guard<std::mutex> hold(memory->lock);
    if (memory->used[device] + bytes > memory->total || !map_device(bytes, &a))
        return cudaErrorMemoryAllocation;
    a.device = device;
    a.number = ++memory->count;
    memory->all[a.start] = a;
    memory->used[device] += bytes;
    *pointer = a.start;
    return cudaSuccess;
}

static cudaError_t release(void *pointer) {
    struct allocation a;
    if (!memory_find(pointer, &a) || a.start != pointer || a.pinned || a.freed)
        return cudaErrorInvalidValue;
    streams_drain_device(a.device);
    memory_check_tails(a.device);
    std::lock_guard<std::mutex> gate(memory->gate);
    std::lock_guard<std::mutex> hold(memory->lock);
    memory->all[a.start].freed = true;
    memory->used[a.device] -= a.bytes;
    mprotect(a.map, a.map_bytes, PROT_NONE);
    madvise(a.map, a.map_bytes, MADV_DONTNEED);
    return cudaSuccess;
}

static void note_pinned(void *pointer, size_t bytes) {
    struct allocation a = {};
    a.start = (char *)pointer;
    a.bytes = bytes;
    a.pinned = true;
    std::lock_guard<std::mutex> hold(memory->lock);
    a.number = ++memory->count;
    memory->all[a.start] = a;
}

// Queued work may still use the memory.
static bool forget_pinned(void *pointer) {
    struct allocation a;
    if (!memory_find(pointer, &a) || a.start != pointer || !a.pinned) return false;
    for (int device = 0; device < DEVICES_MAX; device++)
        streams_drain_device(device);
    std::lock_guard<std::mutex> hold(memory->lock);
    return memory->all.erase(a.start) > 0;
}

} // namespace cuda_on_cpu

using namespace cuda_on_cpu;

extern "C" {

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    *pointer = nullptr;
    return bytes == 0 ? cudaSuccess : note_error(allocate(pointer, bytes));
}

cudaError_t cudaFree(void *pointer) {
    return pointer == nullptr ? cudaSuccess : note_error(release(pointer));
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned) {
    *pointer = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (posix_memalign(pointer, 4096, bytes) != 0) return note_error(cudaErrorMemoryAllocation);
    memset(*pointer, 0xFF, bytes);
    note_pinned(*pointer, bytes);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *pointer) {
    if (pointer == nullptr) return cudaSuccess;
    if (!forget_pinned(pointer)) return note_error(cudaErrorInvalidValue);
    free(pointer);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned) {
    struct allocation a;
    if (memory_find(pointer, &a)) return note_error(cudaErrorHostMemoryAlreadyRegistered);
    note_pinned(pointer, bytes);
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *pointer) {
    return forget_pinned(pointer) ? cudaSuccess : note_error(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    std::lock_guard<std::mutex> hold(memory->lock);
    *total_bytes = memory->total;
    *free_bytes = memory->total - memory->used[device_current()];
    return cudaSuccess;
}

} // extern "C"
