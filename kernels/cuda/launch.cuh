/* launch.cuh - how our .cu files start kernels and declare dynamic shared memory.
 *
 * A launch is a function call and its error a value, never <<<>>>, which only nvcc can read: the
 * same files build as C++ for the CPU (tests/cuda_on_cpu, whose README has the rules for kernels).
 */
#ifndef RUBATO_KERNELS_CUDA_LAUNCH_CUH
#define RUBATO_KERNELS_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/* In a kernel: DYNAMIC_SHARED unsigned char dynamic_shared[]; the one name for all. */
#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED extern __shared__ __align__(16)
#endif

/* The grid of a kernel that strides over the values beyond it: at most 64 Ki blocks. */
static inline dim3 kernel_blocks(int64_t count, int threads) {
    const int64_t blocks = (count + threads - 1) / threads, most = 1 << 16;
    return dim3((unsigned)(blocks < most ? blocks : most));
}

/* Threads of a block for `count` things side by side: whole warps, `most` threads at most. */
static inline dim3 kernel_threads(int64_t count, int most) {
    return dim3((unsigned)(count < most ? (count + 31) / 32 * 32 : most));
}

/* The grid of a kernel whose threads each take one of `columns` things of a row, and stride over
 * the rows beyond the grid. */
static inline dim3 kernel_rows(int64_t rows, int64_t columns, dim3 threads) {
    const int64_t across = (columns + threads.x - 1) / threads.x, most = 1 << 13;
    return dim3((unsigned)across, (unsigned)(rows < most ? rows : most));
}

/* Queues the kernel on the stream; the arguments are converted to its parameters' types. */
template <class... P, class... A>
static inline cudaError_t kernel_launch(void (*kernel)(P...), dim3 grid, dim3 block,
                                        size_t shared_bytes, cudaStream_t stream, A... arguments) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, static_cast<P>(arguments)...);
}

#endif
