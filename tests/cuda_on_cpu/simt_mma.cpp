/* simt_mma.cpp - the lanes of a warp multiply matrices: see wmma_on_cpu.cuh.
 *
 * The lanes leave what they hold of a and b in a place of the warp, meet, and each makes its own
 * elements of the product. Two places take turns, so that a lane that is ahead does not overwrite
 * what the others still read: it can be one product ahead at most. This file is not seen by the
 * sanitizers, so the exchange orders nothing for them.
 */
#include "simt.cuh"

namespace cuda_on_cpu {

struct exchange {
    float a[MMA_PLACES], b[MMA_PLACES];
};
static struct exchange exchanges[WARPS_MAX][2];
static unsigned products[THREADS_MAX]; // so far; the lanes of a warp always have made as many

static const unsigned all_lanes = 0xffffffffU;

unsigned mma_meet(enum warp_kind kind, const void *memory, size_t pitch_bytes, struct location at) {
    if ((uintptr_t)memory % 32 != 0 || pitch_bytes % 16 != 0)
        die("%s at %s:%d: the address must be aligned to 32 bytes and rows to 16, not %p and %zu",
            warp_kind_name(kind), at.file, at.line, memory, pitch_bytes);
    warp_collective({kind, all_lanes, 0, 0, 32}, at);
    return block.current->lane;
}

void mma_product(struct mma_part *part, struct location at) {
    if (!in_kernel) die("mma_sync outside a kernel, %s:%d", at.file, at.line);
    const struct cuda_thread *self = block.current;
    struct exchange *exchange = &exchanges[self->warp][products[self->linear]++ % 2];
    for (int i = 0; i < MMA_HELD; i++) {
        exchange->a[mma_element(part->factor_a, self->lane, i)] = part->a[i];
        exchange->b[mma_element(part->factor_b, self->lane, i)] = part->b[i];
    }
    warp_collective({MMA_PRODUCT, all_lanes, 0, 0, 32}, at);
    for (int i = 0; i < MMA_HELD; i++) {
        int element = mma_element(part->factor_c, self->lane, i);
        const float *a = &exchange->a[element / MMA_SIDE * MMA_SIDE];
        const float *b = &exchange->b[element % MMA_SIDE];
        float sum = part->c[i];
        for (int k = 0; k < MMA_SIDE; k++)
            sum += a[k] * b[k * MMA_SIDE];
        part->d[i] = sum;
    }
}

} // namespace cuda_on_cpu
