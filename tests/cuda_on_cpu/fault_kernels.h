/* fault_kernels.h - kernels with one fault each, and clean twins (fault_kernels.cu).
 *
 * Most sum up 256 values of x a block into y[block]. Only for tests/cuda_on_cpu.
 */
#ifndef RUBATO_TESTS_FAULT_KERNELS_H
#define RUBATO_TESTS_FAULT_KERNELS_H

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* a cudaStream_t points to it */

struct fault_launch {
    const char *kernel; /* its name without "_kernel" */
    const float *x;
    float *y;
    int count; /* of x and y */
    int blocks, threads, shared_bytes;
    struct CUstream_st *stream;
};

/* Queues the kernel; 0 or a cudaError_t, cudaErrorInvalidSymbol for an unknown name. */
int fault_kernel_launch(const struct fault_launch *launch);

#ifdef __cplusplus
}
#endif
#endif
