/* shm_bounce.h - a ring of pieces in a channel's shared memory, for payloads that lie elsewhere.
 *
 * Pieces are taken one after the other and may be given back in any order; memory is free again
 * when all pieces before it are back. A piece is whole, so the rest of the ring before its end is
 * skipped when the piece does not fit there.
 */
#ifndef RUBATO_TRANSPORT_SHM_BOUNCE_H
#define RUBATO_TRANSPORT_SHM_BOUNCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHM_BOUNCE_NONE UINT32_MAX

struct shm_bounce_piece {
    size_t end; /* offset after it */
    bool back;  /* it was given back */
};

struct shm_bounce {
    size_t bytes;                    /* of the ring */
    size_t first;                    /* offset of the oldest byte in use */
    size_t next;                     /* offset after the newest */
    struct shm_bounce_piece *pieces; /* [pieces_max] the caller's; a circle, oldest first */
    uint32_t pieces_max, head, count;
};

/* `bytes` (>= 1) in a row -> *offset, aligned to MEMORY_ALIGN; returns the piece's number, or
 * SHM_BOUNCE_NONE when there is no room now. */
uint32_t shm_bounce_take(struct shm_bounce *bounce, size_t bytes, size_t *offset);

void shm_bounce_give(struct shm_bounce *bounce, uint32_t piece);

#endif
