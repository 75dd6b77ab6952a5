/* call_kernels.cu - see call_kernels.h. */
#include "call_kernels.h"
#include "kernels/cuda/launch.cuh"

#include <cuda_bf16.h>
#include <mma.h>

namespace wmma = nvcuda::wmma;

static __global__ void indices_kernel(unsigned *out) {
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned place = block * (blockDim.x * blockDim.y * blockDim.z) + thread;
    out[place] += 1 + place;
}

static __global__ void warp_kernel(int call, int argument, int width, const int *in, int *out) {
    const unsigned all = 0xffffffffU;
    int value = in[threadIdx.x], result = 0;
    if (call == CALLS_SHUFFLE) result = __shfl_sync(all, value, argument, width);
    if (call == CALLS_SHUFFLE_UP) result = __shfl_up_sync(all, value, (unsigned)argument, width);
    if (call == CALLS_SHUFFLE_DOWN)
        result = __shfl_down_sync(all, value, (unsigned)argument, width);
    if (call == CALLS_SHUFFLE_XOR) result = __shfl_xor_sync(all, value, argument, width);
    if (call == CALLS_BALLOT) result = (int)__ballot_sync(all, value);
    if (call == CALLS_ALL) result = __all_sync(all, value) != 0;
    if (call == CALLS_ANY) result = __any_sync(all, value) != 0;
    if (call == CALLS_MATCH) result = (int)__match_any_sync(all, value);
    if (call == CALLS_ADD) result = __reduce_add_sync(all, value);
    if (call == CALLS_MIN) result = __reduce_min_sync(all, value);
    if (call == CALLS_MAX) result = __reduce_max_sync(all, value);
    out[threadIdx.x] = result;
}

static __global__ void block_kernel(unsigned divisor, int *out) {
    int multiple = threadIdx.x % divisor == 0;
    int count = __syncthreads_count(multiple);
    int all = __syncthreads_and(multiple);
    int any = __syncthreads_or(threadIdx.x != 0 && multiple);
    if (threadIdx.x != blockDim.x - 1) return;
    out[0] = count;
    out[1] = all != 0;
    out[2] = any != 0;
}

static __global__ void atomics_kernel(unsigned *out) {
    unsigned t = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&out[0], t + 1);
    atomicMax(&out[1], t);
    atomicMin(&out[2], t);
    atomicInc(&out[3], 7);
    atomicOr(&out[4], 1U << t % 32);
    atomicXor(&out[5], t);
    unsigned seen = atomicAdd(&out[6], 0), before;
    do {
        before = seen;
        seen = atomicCAS(&out[6], before, before + 2);
    } while (seen != before);
    atomicAdd((float *)&out[7], 0.5F);
}

template <class LAYOUT>
static __global__ void mma_kernel(bool sums_changed, const unsigned short *a,
                                  const unsigned short *b, const float *c, float *d) {
    const wmma::layout_t layout = sums_changed ? wmma::mem_col_major : wmma::mem_row_major;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, LAYOUT> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, LAYOUT> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums;
    wmma::load_matrix_sync(left, (const __nv_bfloat16 *)a, CALLS_MMA_PITCH);
    wmma::load_matrix_sync(right, (const __nv_bfloat16 *)b, CALLS_MMA_PITCH);
    wmma::load_matrix_sync(sums, c, CALLS_MMA_PITCH, layout);
    wmma::mma_sync(sums, left, right, sums);
    wmma::store_matrix_sync(d, sums, CALLS_MMA_PITCH, layout);
}

int calls_indices(unsigned *out, cudaStream_t stream) {
    return kernel_launch(indices_kernel, dim3(2, 3, 2), dim3(4, 5, 3), 0, stream, out);
}

int calls_warp(enum calls_warp call, int argument, int width, const int *in, int *out,
               cudaStream_t stream) {
    return kernel_launch(warp_kernel, dim3(1), dim3(32), 0, stream, (int)call, argument, width, in,
                         out);
}

int calls_block(unsigned divisor, int *out, cudaStream_t stream) {
    return kernel_launch(block_kernel, dim3(1), dim3(96), 0, stream, divisor, out);
}

int calls_atomics(unsigned *out, cudaStream_t stream) {
    return kernel_launch(atomics_kernel, dim3(4), dim3(64), 0, stream, out);
}

int calls_mma(int changed, const unsigned short *a, const unsigned short *b, const float *c,
              float *d, cudaStream_t stream) {
    void (*kernel)(bool, const unsigned short *, const unsigned short *, const float *, float *) =
        (changed & 1) != 0 ? mma_kernel<wmma::col_major> : mma_kernel<wmma::row_major>;
    return kernel_launch(kernel, dim3(1), dim3(32), 0, stream, (changed & 2) != 0, a, b, c, d);
}
