#include "transport/shm_bounce.h"

#include "base/assert.h"
#include "base/memory.h"

uint32_t shm_bounce_take(struct shm_bounce *bounce, size_t bytes, size_t *offset) {
    size_t need = arena_need(bytes);
    if (bounce->count == bounce->pieces_max) return SHM_BOUNCE_NONE;
    if (bounce->count == 0) bounce->first = bounce->next = 0;
    size_t at = bounce->next;
    bool wrapped = bounce->count > 0 && bounce->next <= bounce->first;
    if (!wrapped && need > bounce->bytes - at) {
        at = 0;
        wrapped = true;
    }
    if (wrapped && need > bounce->first - at) return SHM_BOUNCE_NONE;
    uint32_t piece = (bounce->head + bounce->count++) % bounce->pieces_max;
    bounce->pieces[piece] = (struct shm_bounce_piece){.end = at + need};
    bounce->next = at + need;
    *offset = at;
    return piece;
}

void shm_bounce_give(struct shm_bounce *bounce, uint32_t piece) {
    ASSERT(bounce->count > 0 && !bounce->pieces[piece].back);
    bounce->pieces[piece].back = true;
    while (bounce->count > 0 && bounce->pieces[bounce->head].back) {
        bounce->first = bounce->pieces[bounce->head].end;
        bounce->head = (bounce->head + 1) % bounce->pieces_max;
        bounce->count--;
    }
}
