/* device_memory.cuh - allocations, and the gate that keeps host code out of device memory.
 *
 * Device memory cannot be accessed at all (mprotect) but in a device_section(): a host that
 * dereferences a device pointer, or hands it to a system call, fails as it does with a GPU. Each
 * allocation is new address space filled with 0xFF (NaNs), ends within 256 bytes of a range that is
 * never mapped, and is never reused, so that a stale pointer stays wrong. Pinned memory is plain
 * memory that is known by its range. Any thread may call.
 */
#ifndef RUBATO_TESTS_DEVICE_MEMORY_CUH
#define RUBATO_TESTS_DEVICE_MEMORY_CUH

#include <cuda_runtime.h>
#include <functional>
#include <stdint.h>

namespace cuda_on_cpu {

struct allocation {
    char *start; /* what the caller has */
    size_t bytes;
    char *map; /* device memory: the whole range, guard included */
    size_t map_bytes;
    int device;
    bool pinned, freed;
    uint64_t number; /* in order of allocation, from 1 */
};

/* Runs f, one caller at a time, with device memory open. f may not enter another section. */
void device_section(const std::function<void()> &f);

/* The allocation that holds the address, also a freed one. False: there is none. */
bool memory_find(const void *address, struct allocation *found);

enum memory_kind { MEMORY_PAGEABLE, MEMORY_PINNED, MEMORY_DEVICE };

/* What [start, bytes] is; a range that leaves its allocation, or a freed one, is reported with the
 * name of the call. */
enum memory_kind memory_check(const char *call, const void *start, size_t bytes);

/* A kernel's direct pointer argument: live memory of that device, or pinned. Else reported. */
void memory_check_argument(int index, const void *pointer, int device);

/* Reports a write into the last bytes before the guard, of every allocation of the device. */
void memory_check_tails(int device);

size_t memory_total(void);

} // namespace cuda_on_cpu

#endif
