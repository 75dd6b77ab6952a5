/* squares.h - sums of squares of a vector's blocks, where the vector is: for norms, and to see
 * whether all values are finite, which they are if their sum is.
 *
 * Sums are f64, and a norm adds those of blocks in order of id. So its bits do not depend on the
 * number of threads or devices; each kind of device adds within a block in an order of its own.
 * One thread, which drives the device.
 */
#ifndef RUBATO_WORKER_SQUARES_H
#define RUBATO_WORKER_SQUARES_H

#include "kernels/device.h"
#include "worker/owner.h"

/* The blocks of all fragments, without frozen ones. */
#define SQUARES_ALL (UINT64_MAX - 1)

struct squares {
    const struct plan *plan;
    struct device *device;
    const uint8_t *owners; /* [plan.block_count] sums are made of those of `rank`; NULL: of all */
    int rank;
    int threads;     /* of the host */
    double *sums;    /* [plan.block_count] the host's, pinned */
    double *made;    /* [plan.block_count] the device's, and behind them its scratch; on the host
                      * sums itself */
    double *scratch; /* NULL on the host */
};

/* Bytes that it takes of a device that is not the host. */
uint64_t squares_device_bytes(const struct plan *plan);

/* For vectors of this device, of blocks that are `rank`'s; owners NULL: of all. plan, device and
 * owners must outlive it. MEMORY, logged. */
enum status squares_init(struct squares *squares, const struct plan *plan, struct device *device,
                         const uint8_t *owners, int rank) WARN_UNUSED;
void squares_free(struct squares *squares); /* harmless on a zeroed struct */

/* Of values [plan.value_count] on the device -> sums of the fragment's own blocks, which are there
 * behind DEVICE_COMPUTE; the other ones are left open. */
void squares_queue(struct squares *squares, const float *values, uint64_t fragment);

/* Of all blocks: the norm of values, frozen blocks left out. Waits for the device. DEVICE: it
 * failed. */
enum status squares_norm(struct squares *squares, const float *values, double *norm) WARN_UNUSED;

#endif
