/* memory.h - arenas: memory taken at start-up, never in the step loop.
 *
 * An arena is one mapping, carved from its start; pieces are not given back one by one, the whole
 * is. Sizes come from the plan. In debug builds every malloc of our own objects is counted a
 * thread (the linker wraps malloc, calloc, realloc and friends), and memory_forbid() makes the
 * next one an assertion failure: that is how "nothing is allocated in the step loop" is checked.
 */
#ifndef RUBATO_BASE_MEMORY_H
#define RUBATO_BASE_MEMORY_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MEMORY_ALIGN ((size_t)64)

struct arena {
    uint8_t *base;
    size_t bytes;
    size_t used;
};

/* Maps `bytes` (>= 1) of zeroed memory, huge pages where the system gives them. MEMORY, logged. */
enum status arena_init(struct arena *arena, size_t bytes) WARN_UNUSED;

/* The next `bytes` of the arena, aligned to MEMORY_ALIGN, zeroed. ASSERTs that they are there: the
 * caller sized the arena with arena_need(). */
void *arena_take(struct arena *arena, size_t bytes);

/* What `bytes` takes of an arena: rounded up to MEMORY_ALIGN. */
size_t arena_need(size_t bytes);

/* Unmaps; harmless on a zeroed struct. */
void arena_free(struct arena *arena);

/* malloc of zeroed memory, aligned to MEMORY_ALIGN, for set-up code: never returns NULL for want of
 * memory but ends the process with exit code 71 and a line that says how much was wanted. Freed by
 * free(). */
void *memory_zeroed(size_t count, size_t bytes);

/* a * b, or false when it does not fit. */
bool memory_multiply(uint64_t a, uint64_t b, uint64_t *product);

/* Allocations that this thread has made through our own objects; 0 in release builds. */
uint64_t memory_allocations(void);

/* From now on an allocation by this thread is a failed assertion (debug builds); false lifts it. */
void memory_forbid(bool forbid);

#endif
