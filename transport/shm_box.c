#include "transport/shm_box.h"

#include <stdatomic.h>

struct shm_box_head {
    _Alignas(64) _Atomic uint32_t count;
    _Alignas(64) _Atomic uint32_t sleep;
};
_Static_assert(sizeof(struct shm_box_head) == 128 && sizeof(_Atomic uint64_t) == 8,
               "a layout that two processes share");

static struct shm_box_head *head_of(const struct shm_box *box) {
    return (struct shm_box_head *)box->memory;
}

static _Atomic uint64_t *item_at(const struct shm_box *box, uint32_t number) {
    _Atomic uint64_t *words = (_Atomic uint64_t *)(box->memory + sizeof(struct shm_box_head));
    return words + (size_t)(number & (box->items - 1)) * box->item_words;
}

size_t shm_box_bytes(uint32_t items, uint32_t item_words) {
    return sizeof(struct shm_box_head) + (size_t)items * item_words * sizeof(uint64_t);
}

void shm_box_put(struct shm_box *box, const uint64_t *item) {
    _Atomic uint64_t *words = item_at(box, box->count);
    for (uint32_t i = 0; i < box->item_words; i++) {
        atomic_store_explicit(&words[i], item[i], memory_order_relaxed);
    }
    box->count++;
    atomic_store(&head_of(box)->count, box->count);
}

enum status shm_box_take(struct shm_box *box, uint64_t *item) {
    uint32_t waiting =
        atomic_load_explicit(&head_of(box)->count, memory_order_acquire) - box->count;
    if (waiting == 0) return STATUS_AGAIN;
    if (waiting > box->items) return STATUS_CORRUPT;
    const _Atomic uint64_t *words = item_at(box, box->count);
    for (uint32_t i = 0; i < box->item_words; i++) {
        item[i] = atomic_load_explicit(&words[i], memory_order_relaxed);
    }
    box->count++;
    return STATUS_OK;
}

bool shm_box_has(const struct shm_box *box) {
    return atomic_load(&head_of(box)->count) != box->count;
}

void shm_box_set_sleep(const struct shm_box *box, uint32_t number) {
    atomic_store(&head_of(box)->sleep, number);
}

uint32_t shm_box_sleep(const struct shm_box *box) {
    return atomic_load(&head_of(box)->sleep);
}
