/* ring.h - a fixed-size queue from one thread to one other (single producer, single consumer).
 *
 * Items are copied in and out. Full and empty are AGAIN, never a wait; whoever wants to sleep pairs
 * the ring with a `wake` (base/wake.h). Indices grow for ever and are masked on use; each side
 * writes only its own index, with release, and reads the other's with acquire.
 */
#ifndef RUBATO_BASE_RING_H
#define RUBATO_BASE_RING_H

#include "base/status.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct ring {
    uint8_t *items;
    size_t item_bytes;
    uint32_t capacity;                  /* a power of two */
    _Alignas(64) _Atomic uint32_t head; /* next to pop, written by the consumer */
    _Alignas(64) _Atomic uint32_t tail; /* next to push, written by the producer */
};

/* Takes memory for at least `capacity` items (1..2^30). MEMORY, in silence. */
enum status ring_init(struct ring *ring, size_t item_bytes, uint32_t capacity) WARN_UNUSED;
void ring_free(struct ring *ring);

/* AGAIN when full. Producer thread only. */
enum status ring_push(struct ring *ring, const void *item) WARN_UNUSED;

/* AGAIN when empty. Consumer thread only. */
enum status ring_pop(struct ring *ring, void *item) WARN_UNUSED;

/* Items in the ring now; exact only when the other side rests. */
uint32_t ring_count(const struct ring *ring);

#endif
