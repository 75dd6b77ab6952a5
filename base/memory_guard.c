/* Debug builds: the linker sends each malloc of our own objects here (--wrap, base/CMakeLists.txt),
 * where it is counted for its thread. Calls from inside shared libraries are not seen: their
 * allocations are not ours to forbid. free() is not counted: it never takes memory.
 */
#include "base/assert.h"
#include "base/memory.h"

#include <stdlib.h>

static _Thread_local uint64_t allocation_count;
static _Thread_local bool is_forbidden;

uint64_t memory_allocations(void) {
    return allocation_count;
}

void memory_forbid(bool forbid) {
    is_forbidden = forbid;
}

static void count_allocation(void) {
    allocation_count++;
    if (!is_forbidden) return;
    is_forbidden = false; /* whatever runs on the way to abort() may allocate */
    ASSERT(!"allocation in a stretch where memory_forbid() rules it out");
}

/* The names are the linker's, not ours. NOLINTBEGIN(*-identifier*) */
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
int __real_posix_memalign(void **memory, size_t alignment, size_t bytes);

void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes);

void *__wrap_malloc(size_t bytes) {
    count_allocation();
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes) {
    count_allocation();
    return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes) {
    count_allocation();
    return __real_realloc(memory, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
    count_allocation();
    return __real_aligned_alloc(alignment, bytes);
}

int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes) {
    count_allocation();
    return __real_posix_memalign(memory, alignment, bytes);
}
/* NOLINTEND(*-identifier*) */
