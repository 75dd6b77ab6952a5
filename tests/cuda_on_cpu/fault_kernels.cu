/* fault_kernels.cu - see fault_kernels.h. What is wrong with a kernel stands above it. */
#include "fault_kernels.h"
#include "kernels/cuda/launch.cuh"

#include <cuda_bf16.h>
#include <mma.h>
#include <string.h>

namespace wmma = nvcuda::wmma;

enum { THREADS = 256 };

// s [256] -> s[0], the sum.
static __device__ void tree_sum(float *s) {
    unsigned t = threadIdx.x;
    for (unsigned reach = THREADS / 2; reach > 0; reach /= 2) {
        if (t < reach) s[t] += s[t + reach];
        __syncthreads();
    }
}

static __global__ void clean_kernel(const float *x, float *y, int) {
    __shared__ float s[THREADS];
    s[threadIdx.x] = x[blockIdx.x * THREADS + threadIdx.x];
    __syncthreads();
    tree_sum(s);
    if (threadIdx.x == 0) y[blockIdx.x] = s[0];
}

// No barrier between the writes and the first reads.
static __global__ void missing_barrier_kernel(const float *x, float *y, int) {
    __shared__ float s[THREADS];
    s[threadIdx.x] = x[blockIdx.x * THREADS + threadIdx.x];
    tree_sum(s);
    if (threadIdx.x == 0) y[blockIdx.x] = s[0];
}

static __global__ void overwrite_clean_kernel(const float *x, float *y, int) {
    __shared__ float s;
    float sum = 0.0F;
    for (unsigned i = 0; i < THREADS; i++) {
        if (threadIdx.x == i) s = x[blockIdx.x * THREADS + i];
        __syncthreads();
        sum += s;
        __syncthreads();
    }
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

// The value is overwritten while slower threads still have to read it.
static __global__ void missing_barrier_before_overwrite_kernel(const float *x, float *y, int) {
    __shared__ float s;
    float sum = 0.0F;
    for (unsigned i = 0; i < THREADS; i++) {
        if (threadIdx.x == i) s = x[blockIdx.x * THREADS + i];
        __syncthreads();
        sum += s;
    }
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

static __device__ void warps_to_block(const float *s, float *y) {
    __syncthreads();
    if (threadIdx.x != 0) return;
    float sum = 0.0F;
    for (int warp = 0; warp < THREADS; warp += 32)
        sum += s[warp];
    y[blockIdx.x] = sum;
}

static __global__ void warp_step_clean_kernel(const float *x, float *y, int) {
    __shared__ float s[THREADS];
    unsigned t = threadIdx.x, lane = t % 32;
    s[t] = x[blockIdx.x * THREADS + t];
    for (unsigned reach = 16; reach > 0; reach /= 2) {
        __syncwarp(0xffffffffU);
        if (lane < reach) s[t] += s[t + reach];
    }
    warps_to_block(s, y);
}

// Counts on the lanes of a warp running in step.
static __global__ void warp_step_kernel(const float *x, float *y, int) {
    __shared__ float s[THREADS];
    unsigned t = threadIdx.x, lane = t % 32;
    volatile float *warp = s;
    s[t] = x[blockIdx.x * THREADS + t];
    for (unsigned reach = 16; reach > 0; reach /= 2) {
        if (lane < reach) warp[t] = warp[t] + warp[t + reach];
    }
    warps_to_block(s, y);
}

static __global__ void atomic_clean_kernel(const float *x, float *y, int) {
    atomicAdd(&y[0], x[blockIdx.x * THREADS + threadIdx.x]);
}

// All threads of all blocks add to one place.
static __global__ void race_in_block_kernel(const float *x, float *y, int) {
    y[0] += x[blockIdx.x * THREADS + threadIdx.x];
}

// One thread of each block adds to one place.
static __global__ void race_between_blocks_kernel(const float *x, float *y, int) {
    if (threadIdx.x != 0) return;
    for (int i = 0; i < THREADS; i++)
        y[0] += x[blockIdx.x * THREADS + i];
}

// Half of the threads come to the barrier inside the if.
static __global__ void divergent_barrier_kernel(const float *x, float *y, int) {
    __shared__ float s[THREADS];
    unsigned t = threadIdx.x;
    s[t] = x[blockIdx.x * THREADS + t];
    if (t < THREADS / 2) {
        __syncthreads();
        s[t] += s[t + THREADS / 2];
    }
    __syncthreads();
    y[blockIdx.x] = s[0];
}

// Some threads return ahead of a barrier.
static __global__ void early_return_kernel(const float *x, float *y, int) {
    __shared__ float s[THREADS];
    unsigned t = threadIdx.x;
    if (t >= 200) return;
    s[t] = x[blockIdx.x * THREADS + t];
    __syncthreads();
    if (t == 0) y[blockIdx.x] = s[199];
}

// Right in blocks of whole warps; a block of 48 threads lacks lanes that are read.
static __global__ void shuffle_clean_kernel(const float *x, float *y, int) {
    __shared__ float s[THREADS];
    float sum = x[blockIdx.x * THREADS + threadIdx.x];
    for (int distance = 16; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(0xffffffffU, sum, distance);
    s[threadIdx.x] = sum;
    warps_to_block(s, y);
}

// The mask names all lanes, half of them call.
static __global__ void divergent_shuffle_kernel(const float *x, float *y, int) {
    float sum = x[blockIdx.x * THREADS + threadIdx.x];
    if (threadIdx.x % 32 < 16) sum += __shfl_xor_sync(0xffffffffU, sum, 8);
    __syncthreads();
    y[blockIdx.x * THREADS + threadIdx.x] = sum;
}

// The mask is the lower reach's, the source in the upper.
static __global__ void shuffle_mask_kernel(const float *x, float *y, int) {
    float sum = x[blockIdx.x * THREADS + threadIdx.x];
    if (threadIdx.x % 32 < 16) sum += __shfl_down_sync(0x0000ffffU, sum, 16);
    y[blockIdx.x * THREADS + threadIdx.x] = sum;
}

using left = wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major>;
using right = wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::row_major>;
using sums = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;

// x [16, 16] a block times a matrix of ones: each row's sum, in each of its columns.
static __device__ __forceinline__ sums row_sums(const float *x) {
    __shared__ __align__(32) __nv_bfloat16 rows[THREADS], ones[THREADS];
    rows[threadIdx.x] = __float2bfloat16(x[blockIdx.x * THREADS + threadIdx.x]);
    ones[threadIdx.x] = __float2bfloat16(1.0F);
    __syncthreads();
    left a;
    right b;
    sums c;
    wmma::load_matrix_sync(a, rows, 16);
    wmma::load_matrix_sync(b, ones, 16);
    wmma::fill_fragment(c, 0.0F);
    wmma::mma_sync(c, a, b, c);
    return c;
}

static __device__ __forceinline__ void store_total(const float *sums_of_rows, float *y) {
    float total = 0.0F;
    for (int row = 0; row < 16; row++)
        total += sums_of_rows[row * 16];
    y[blockIdx.x] = total;
}

static __global__ void mma_clean_kernel(const float *x, float *y, int) {
    __shared__ __align__(32) float stored[THREADS];
    const sums c = row_sums(x);
    if (threadIdx.x >= 32) return;
    wmma::store_matrix_sync(stored, c, 16, wmma::mem_row_major);
    __syncwarp(0xffffffffU);
    if (threadIdx.x == 0) store_total(stored, y);
}

// A lane reads what others store, and does not wait.
static __global__ void mma_step_kernel(const float *x, float *y, int) {
    __shared__ __align__(32) float stored[THREADS];
    const sums c = row_sums(x);
    if (threadIdx.x >= 32) return;
    wmma::store_matrix_sync(stored, c, 16, wmma::mem_row_major);
    if (threadIdx.x == 16) store_total(stored, y); // in any order, some come later
}

// Relies on the place of an element in a fragment that many chips have.
static __global__ void mma_places_kernel(const float *x, float *y, int) {
    const sums c = row_sums(x);
    float sum = threadIdx.x % 4 == 0 ? c.x[0] + c.x[2] : 0.0F;
    for (int distance = 16; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(0xffffffffU, sum, distance);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

// Half of the lanes have returned.
static __global__ void mma_lanes_kernel(const float *x, float *y, int) {
    __shared__ __align__(32) float stored[THREADS];
    const sums c = row_sums(x);
    if (threadIdx.x >= 16) return;
    wmma::store_matrix_sync(stored, c, 16, wmma::mem_row_major);
    if (threadIdx.x == 0) y[blockIdx.x] = stored[0];
}

// Rows 18 values apart.
static __global__ void mma_pitch_kernel(const float *x, float *y, int) {
    __shared__ __align__(32) __nv_bfloat16 rows[16 * 18];
    if (threadIdx.x >= 32) return;
    for (int i = (int)threadIdx.x; i < 16 * 18; i += 32)
        rows[i] = __float2bfloat16(x[0]);
    __syncwarp(0xffffffffU);
    left a;
    wmma::load_matrix_sync(a, rows, 18);
    y[blockIdx.x] = __bfloat162float(a.x[0]);
}

// <= for <.
static __global__ void global_write_past_kernel(const float *x, float *y, int n) {
    int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (i <= n) y[i] = x[0];
}

// The last thread reads x[n].
static __global__ void global_read_past_kernel(const float *x, float *y, int n) {
    int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (i < n) y[i] = x[i + 1];
}

static __global__ void global_write_far_kernel(const float *x, float *y, int n) {
    y[(size_t)n * 16 + threadIdx.x] = x[0];
}

// Out of line, so that no compiler sees which array it is.
static __device__ __attribute__((noinline)) void store(float *s, unsigned i, float value) {
    s[i] = value;
}

// Thread 255 writes s[256].
static __global__ void shared_past_kernel(const float *x, float *y, int) {
    __shared__ float s[THREADS];
    unsigned t = threadIdx.x;
    if (t == 0) s[0] = 0.0F;
    store(s, t + 1, x[blockIdx.x * THREADS + t]);
    __syncthreads();
    y[blockIdx.x] = s[1];
}

template <int N> static __global__ void shared_past_template_kernel(const float *x, float *y, int) {
    __shared__ float s[N];
    s[threadIdx.x + 1] = x[threadIdx.x];
    __syncthreads();
    y[blockIdx.x] = s[1];
}

// As shared_past, where the launcher gives 256 floats.
static __global__ void dynamic_shared_past_kernel(const float *x, float *y, int) {
    DYNAMIC_SHARED unsigned char dynamic_shared[];
    float *s = (float *)dynamic_shared;
    s[threadIdx.x + 1] = x[threadIdx.x];
    __syncthreads();
    y[blockIdx.x] = s[1];
}

static __global__ void dynamic_shared_clean_kernel(const float *x, float *y, int) {
    DYNAMIC_SHARED unsigned char dynamic_shared[];
    float *s = (float *)dynamic_shared;
    s[threadIdx.x] = x[blockIdx.x * THREADS + threadIdx.x];
    __syncthreads();
    tree_sum(s);
    if (threadIdx.x == 0) y[blockIdx.x] = s[0];
}

// Adds to shared memory that nobody has written.
static __global__ void shared_uninitialised_kernel(const float *x, float *y, int) {
    __shared__ float s[THREADS];
    s[threadIdx.x] += x[blockIdx.x * THREADS + threadIdx.x];
    __syncthreads();
    tree_sum(s);
    if (threadIdx.x == 0) y[blockIdx.x] = s[0];
}

// x + 1 is aligned to 4 bytes only.
static __global__ void misaligned_kernel(const float *x, float *y, int) {
    float4 v = *(const float4 *)(x + 1);
    y[threadIdx.x] = v.x;
}

// Waits for another thread without a barrier.
static __global__ void spin_kernel(const float *x, float *y, int) {
    __shared__ volatile int go;
    if (threadIdx.x == 0) go = 0;
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1) go = 1;
    while (go == 0) {
    }
    y[0] = x[0];
}

int fault_kernel_launch(const struct fault_launch *launch) {
#define KERNEL(name)                                                                               \
    { #name, name##_kernel }
    static const struct {
        const char *name;
        void (*kernel)(const float *, float *, int);
    } kernels[] = {
        KERNEL(clean),
        KERNEL(missing_barrier),
        KERNEL(overwrite_clean),
        KERNEL(missing_barrier_before_overwrite),
        KERNEL(warp_step_clean),
        KERNEL(warp_step),
        KERNEL(atomic_clean),
        KERNEL(race_in_block),
        KERNEL(race_between_blocks),
        KERNEL(divergent_barrier),
        KERNEL(early_return),
        KERNEL(shuffle_clean),
        KERNEL(divergent_shuffle),
        KERNEL(shuffle_mask),
        KERNEL(mma_clean),
        KERNEL(mma_step),
        KERNEL(mma_places),
        KERNEL(mma_lanes),
        KERNEL(mma_pitch),
        KERNEL(global_write_past),
        KERNEL(global_read_past),
        KERNEL(global_write_far),
        KERNEL(shared_past),
        {"shared_past_template", shared_past_template_kernel<THREADS>},
        KERNEL(dynamic_shared_past),
        KERNEL(dynamic_shared_clean),
        KERNEL(shared_uninitialised),
        KERNEL(misaligned),
        KERNEL(spin),
    };
#undef KERNEL
    for (const auto &each : kernels) {
        if (strcmp(each.name, launch->kernel) != 0) continue;
        return kernel_launch(each.kernel, dim3((unsigned)launch->blocks),
                             dim3((unsigned)launch->threads), (size_t)launch->shared_bytes,
                             launch->stream, launch->x, launch->y, launch->count);
    }
    return cudaErrorInvalidSymbol;
}
