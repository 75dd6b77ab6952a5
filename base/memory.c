#include "base/memory.h"

#include "base/assert.h"
#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

enum status arena_init(struct arena *arena, size_t bytes) {
    ASSERT(bytes >= 1);
    size_t mapped_bytes = arena_need(bytes);
    void *base =
        mmap(NULL, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        log_error("cannot map %zu bytes of memory: %s", mapped_bytes, strerror(errno));
        return STATUS_MEMORY;
    }
    /* Only advice: where huge pages are off, ordinary ones do. */
    if (mapped_bytes >= HUGE_PAGE_BYTES) (void)madvise(base, mapped_bytes, MADV_HUGEPAGE);
    arena->base = base;
    arena->bytes = mapped_bytes;
    arena->used = 0;
    return STATUS_OK;
}

void *arena_take(struct arena *arena, size_t bytes) {
    size_t need = arena_need(bytes);
    ASSERT_OP(need, <=, arena->bytes - arena->used);
    void *piece = arena->base + arena->used;
    arena->used += need;
    return piece;
}

size_t arena_need(size_t bytes) {
    ASSERT(bytes <= PTRDIFF_MAX - MEMORY_ALIGN);
    return (bytes + MEMORY_ALIGN - 1) & ~(MEMORY_ALIGN - 1);
}

void arena_free(struct arena *arena) {
    if (arena->base) munmap(arena->base, arena->bytes);
    *arena = (struct arena){0};
}

void *memory_zeroed(size_t count, size_t bytes) {
    uint64_t total;
    void *memory = NULL;
    if (memory_multiply(count, bytes, &total) && total <= PTRDIFF_MAX - MEMORY_ALIGN) {
        total = arena_need(total > 0 ? (size_t)total : 1);
        memory = aligned_alloc(MEMORY_ALIGN, total);
    }
    if (!memory) {
        log_error("out of memory: wanted %zu times %zu bytes", count, bytes);
        exit(EXIT_CODE_MEMORY);
    }
    return memset(memory, 0, total);
}

bool memory_multiply(uint64_t a, uint64_t b, uint64_t *product) {
    uint64_t result;
    if (__builtin_mul_overflow(a, b, &result)) return false;
    *product = result;
    return true;
}
