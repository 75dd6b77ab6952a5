/* shm_box.h - a ring in shared memory from the process that owns the memory to one that reads it.
 *
 * The reader cannot write here, so it gives no index back: the owner of channel_shm's boxes knows
 * by other means that an item was read before it puts one in its place. What the reader takes is
 * unchecked but for the count, and taken once: later changes of the memory do not show in it.
 * Besides the items the owner says here whether it sleeps, and is to be told by a bell when there
 * is something for it elsewhere. Sleeping and ringing cannot miss each other: the owner of one box
 * says that it sleeps before it looks into the other, the owner of the other puts before it asks
 * who sleeps, and all four are sequentially consistent.
 * offset size field: 0 4 items put, modulo 2^32; 64 4 number of the sleep, 0: awake; 128 the items.
 */
#ifndef RUBATO_TRANSPORT_SHM_BOX_H
#define RUBATO_TRANSPORT_SHM_BOX_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shm_box {
    uint8_t *memory;     /* of shm_box_bytes(), the caller's; aligned to a cache line */
    uint32_t items;      /* a power of two */
    uint32_t item_words; /* of 8 bytes */
    uint32_t count;      /* items that were put (owner) or taken (reader) */
};

/* Items are 1..2^24, words 1..64. */
size_t shm_box_bytes(uint32_t items, uint32_t item_words);

/* item [item_words]. Owner only. */
void shm_box_put(struct shm_box *box, const uint64_t *item);

/* The next item. AGAIN: there is none; CORRUPT: more than fit. Reader only. */
enum status shm_box_take(struct shm_box *box, uint64_t *item) WARN_UNUSED;

/* Is there one? Reader only. */
bool shm_box_has(const struct shm_box *box);

/* Owner: from now on asleep (a number other than that of the last sleep), or awake (0). */
void shm_box_set_sleep(const struct shm_box *box, uint32_t number);

/* Reader: the owner's sleep, 0: it is awake. */
uint32_t shm_box_sleep(const struct shm_box *box);

#endif
