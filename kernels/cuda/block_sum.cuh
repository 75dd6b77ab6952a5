/* block_sum.cuh - sums over the lanes of a warp and the threads of a block, in one fixed order, so
 * that the bits are the same in every run. T is float or double.
 */
#ifndef RUBATO_KERNELS_CUDA_BLOCK_SUM_CUH
#define RUBATO_KERNELS_CUDA_BLOCK_SUM_CUH

#include <cuda_runtime.h>

enum { BLOCK_WARPS_MAX = 32 }; // as many values of shared memory has each block_sum()

/* The sum, in every lane. All 32 lanes call. */
template <class T> static __device__ __forceinline__ T warp_sum(T value) {
    for (int distance = 16; distance > 0; distance /= 2)
        value += __shfl_xor_sync(0xffffffffU, value, distance);
    return value;
}

template <class T> static __device__ __forceinline__ T block_sum_with(T *warps, T value) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    value = warp_sum(value);
    __syncthreads(); // others may still read what the last call left
    if (lane == 0) warps[warp] = value;
    __syncthreads();
    return warp_sum(lane < blockDim.x / 32 ? warps[lane] : (T)0);
}

/* The sum, in every thread. All threads call, of a 1-D block of whole warps. */
static __device__ __forceinline__ float block_sum(float value) {
    __shared__ float warps[BLOCK_WARPS_MAX];
    return block_sum_with(warps, value);
}
static __device__ __forceinline__ double block_sum(double value) {
    __shared__ double warps[BLOCK_WARPS_MAX];
    return block_sum_with(warps, value);
}

#endif
