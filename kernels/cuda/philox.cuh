/* philox.cuh - one Philox4x32-10 block, base/random.h's random_philox(), in a kernel. */
#ifndef RUBATO_KERNELS_CUDA_PHILOX_CUH
#define RUBATO_KERNELS_CUDA_PHILOX_CUH

#include <cuda_runtime.h>
#include <stdint.h>

static __device__ __forceinline__ uint4 philox(uint32_t key0, uint32_t key1, uint4 counter) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xd2511f53U * counter.x;
        const uint64_t p1 = (uint64_t)0xcd9e8d57U * counter.z;
        counter = make_uint4((uint32_t)(p1 >> 32) ^ counter.y ^ key0, (uint32_t)p1,
                             (uint32_t)(p0 >> 32) ^ counter.w ^ key1, (uint32_t)p0);
        key0 += 0x9e3779b9U;
        key1 += 0xbb67ae85U;
    }
    return counter;
}

#endif
