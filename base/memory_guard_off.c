/* Builds without the allocation counter (memory_guard.c has it). */
#include "base/memory.h"

uint64_t memory_allocations(void) {
    return 0;
}

void memory_forbid(bool forbid) {
    (void)forbid;
}
