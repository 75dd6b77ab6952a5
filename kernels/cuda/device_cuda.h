/* device_cuda.h - a CUDA device as kernels/device.h has it: its queues are CUDA streams. For
 * kernels/cuda alone; others use kernels/device.h.
 *
 * Calls that queue work return nothing: device_cuda_note() keeps their first error for the next
 * wait.
 */
#ifndef RUBATO_KERNELS_CUDA_DEVICE_CUDA_H
#define RUBATO_KERNELS_CUDA_DEVICE_CUDA_H

#include "kernels/device.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

struct device_cuda {
    struct device device;
    cudaStream_t queues[DEVICE_QUEUES];
    cublasHandle_t cublas; /* on DEVICE_COMPUTE, with workspace of its own */
    int error;             /* the first cudaError_t or cublasStatus_t; 0: none */
    const char *failed;    /* what it came of: a constant */
    bool error_told;
    struct device_memory memory;
};

/* `code` 0 is no error. `what` is a constant: "layer norm". */
void device_cuda_note(struct device *device, int code, const char *what);

/* Of DEVICE_COMPUTE. */
cudaStream_t device_cuda_stream(struct device *device);

/* kernels/cuda/compute_cuda.c; kernels/cuda/device_cuda.c. */
extern const struct compute_ops compute_cuda;
extern const struct device_backend device_cuda;

/* The library's one entry: kernels/device.c finds it by name when librubato_cuda.so is loaded. */
const struct device_backend *rubato_cuda_backend(void);

#endif
