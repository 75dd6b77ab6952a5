/* shm_memory.h - a piece of memory that one process writes and others read: a sealed memfd.
 *
 * The owner makes it and hands over its descriptor. The seals let nobody change its size, and
 * nobody but the owner map it for writing; who receives one checks them first, since reading a
 * mapping whose file has shrunk is a SIGBUS. It has no name in any file system: when the last
 * process that maps it ends, however that happens, the memory is gone.
 */
#ifndef RUBATO_TRANSPORT_SHM_MEMORY_H
#define RUBATO_TRANSPORT_SHM_MEMORY_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct shm_memory {
    uint8_t *base; /* NULL: there is none */
    size_t bytes;  /* a multiple of the page size */
    int fd;        /* of our own, to be handed over; -1 of a peer's, or when that is done */
};

/* At least `bytes` (>= 1), zeroed, ours to write. MEMORY, logged. */
enum status shm_memory_create(struct shm_memory *memory, size_t bytes) WARN_UNUSED;

/* Maps a peer's for reading and closes `fd` in any case. CORRUPT: it is no memfd of exactly this
 * size, or is not sealed; MEMORY. Not logged. */
enum status shm_memory_map(struct shm_memory *memory, int fd, uint64_t bytes) WARN_UNUSED;

/* Unmaps; harmless on a zeroed struct. */
void shm_memory_free(struct shm_memory *memory);

#endif
