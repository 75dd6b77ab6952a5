/* pack.cuh - N neighbouring floats that a thread loads and stores at once.
 *
 * A kernel is a template of N, 4 or 1. Its launcher takes 4 where packable() finds that rows and
 * arrays let it: each access is then one of 16 bytes. Sums over a row may round otherwise by 4 than
 * by 1.
 */
#ifndef RUBATO_KERNELS_CUDA_PACK_CUH
#define RUBATO_KERNELS_CUDA_PACK_CUH

#include <cuda_runtime.h>
#include <stdint.h>

template <int N> struct __align__(4 * N) pack {
    float lane[N];
};

template <int N> static __device__ __forceinline__ pack<N> pack_load(const float *from) {
    return *(const pack<N> *)from;
}
template <int N> static __device__ __forceinline__ void pack_store(float *to, pack<N> value) {
    *(pack<N> *)to = value;
}

/* The column where a thread's pack begins, of a grid of kernel_rows(). */
template <int N> static __device__ __forceinline__ int64_t pack_column() {
    return ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
}

/* Whether rows of C values of these arrays are whole packs of 4; NULL is no array. */
template <class... P> static inline bool packable(int64_t C, P... arrays) {
    return (((uintptr_t)arrays | ...) | ((uintptr_t)C * sizeof(float))) % 16 == 0;
}

#endif
