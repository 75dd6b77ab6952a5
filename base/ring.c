#include "base/ring.h"

#include "base/assert.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum status ring_init(struct ring *ring, size_t item_bytes, uint32_t capacity) {
    ASSERT(item_bytes >= 1);
    ASSERT(capacity >= 1 && capacity <= UINT32_C(1) << 30);
    uint32_t rounded = 1;
    while (rounded < capacity)
        rounded *= 2;
    uint64_t bytes;
    if (!memory_multiply(rounded, item_bytes, &bytes) || bytes > PTRDIFF_MAX) return STATUS_MEMORY;
    uint8_t *items = malloc(bytes);
    if (!items) return STATUS_MEMORY;
    ring->items = items;
    ring->item_bytes = item_bytes;
    ring->capacity = rounded;
    atomic_init(&ring->head, 0);
    atomic_init(&ring->tail, 0);
    return STATUS_OK;
}

void ring_free(struct ring *ring) {
    free(ring->items);
    ring->items = NULL;
    ring->capacity = 0;
}

static uint8_t *slot_of(const struct ring *ring, uint32_t index) {
    return ring->items + (size_t)(index & (ring->capacity - 1)) * ring->item_bytes;
}

enum status ring_push(struct ring *ring, const void *item) {
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    uint32_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
    if (tail - head == ring->capacity) return STATUS_AGAIN;
    memcpy(slot_of(ring, tail), item, ring->item_bytes);
    atomic_store_explicit(&ring->tail, tail + 1, memory_order_release);
    return STATUS_OK;
}

enum status ring_pop(struct ring *ring, void *item) {
    uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
    if (tail == head) return STATUS_AGAIN;
    memcpy(item, slot_of(ring, head), ring->item_bytes);
    atomic_store_explicit(&ring->head, head + 1, memory_order_release);
    return STATUS_OK;
}

/* The head is read first: the tail can then only be as far or further, so the difference is never
 * negative. A third thread may see more than the capacity in between, which is cut off. */
uint32_t ring_count(const struct ring *ring) {
    uint32_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
    uint32_t count = tail - head;
    return count < ring->capacity ? count : ring->capacity;
}
