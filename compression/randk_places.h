/* randk_places.h - which values randk sends (scheme_randk.c): on the host and on a device.
 *
 * The block is cut into runs of 2^RUN_LOG2 values and the runs into groups of PERIOD; of each group
 * one run is sent, the next one each step, from a start that differs by group. The numbers are
 * those of the payload's head. Pure.
 */
#ifndef RUBATO_COMPRESSION_RANDK_PLACES_H
#define RUBATO_COMPRESSION_RANDK_PLACES_H

#include <stdint.h>

#ifdef __CUDACC__
#define RANDK_INLINE static __host__ __device__ inline
#else
#define RANDK_INLINE static inline
#endif

enum { RANDK_PERIOD, RANDK_RUN_LOG2, RANDK_KEY, RANDK_STEP, RANDK_NUMBERS };
enum { RANDK_RUN_LOG2_MAX = 6, RANDK_HEAD = 16 };

RANDK_INLINE uint32_t randk_mix(uint32_t value) {
    value = (value ^ value >> 16) * 0x7feb352dU;
    value = (value ^ value >> 15) * 0x846ca68bU;
    return value ^ value >> 16;
}

/* The numbers of a block of `count` values; a push's seed and step. */
RANDK_INLINE void randk_numbers(uint64_t count, uint32_t period, uint64_t seed, uint64_t block,
                                uint64_t step, uint32_t number[RANDK_NUMBERS]) {
    uint32_t log2 = RANDK_RUN_LOG2_MAX;
    while (log2 > 0 && ((uint64_t)period << log2) > count)
        log2--;
    number[RANDK_PERIOD] = period;
    number[RANDK_RUN_LOG2] = log2;
    number[RANDK_KEY] = randk_mix((uint32_t)seed ^ randk_mix((uint32_t)(seed >> 32)) ^
                                  randk_mix((uint32_t)block + 0x9e3779b9U));
    number[RANDK_STEP] = (uint32_t)step;
}

/* The run of the group that is sent; it may be past the block's last one. */
RANDK_INLINE uint64_t randk_run(const uint32_t number[RANDK_NUMBERS], uint64_t group) {
    uint64_t turn =
        (uint64_t)number[RANDK_STEP] + randk_mix(number[RANDK_KEY] ^ (uint32_t)group * 0x9e3779b9U);
    return group * number[RANDK_PERIOD] + turn % number[RANDK_PERIOD];
}

#endif
