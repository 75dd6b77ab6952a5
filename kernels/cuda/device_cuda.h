/* device_cuda.h - a CUDA device as kernels/device.h has it: its queues are CUDA streams. For the
 * library's own files; others use kernels/device.h. These cannot call the device_*() of
 * kernels/device.c, which are the program's: device->backend has all of them.
 *
 * Calls that queue work return nothing: device_cuda_note() logs their first error, and keeps it for
 * each later wait. Any thread may note one.
 */
#ifndef RUBATO_KERNELS_CUDA_DEVICE_CUDA_H
#define RUBATO_KERNELS_CUDA_DEVICE_CUDA_H

#include "kernels/cuda/library_cuda.h"
#include "kernels/device.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

/* Memory that was taken and not given back. */
struct device_cuda_taken {
    void *memory;
    size_t bytes;
    struct device_cuda_taken *next;
};

struct device_cuda {
    struct device device;
    cudaStream_t queues[DEVICE_QUEUES];
    cublasHandle_t cublas; /* on DEVICE_COMPUTE, with workspace of its own, f32 sums */
    struct device_memory memory;
    struct device_cuda_taken *taken;
    struct nvml *nvml; /* opened when it is first asked */
    bool nvml_asked;
    pthread_mutex_t lock; /* of `failed` */
    bool failed;          /* there was an error, and it was logged */
};

/* A CUDA error, or a launcher's answer; 0 is none. `what` is what failed: "layer norm". */
void device_cuda_note(struct device *device, int error, const char *what);

/* Likewise cuBLAS's. */
void device_cuda_note_cublas(struct device *device, cublasStatus_t status, const char *what);

/* Of DEVICE_COMPUTE, or of any queue; makes the device the calling thread's, as a launch on its
 * streams needs. */
cudaStream_t device_cuda_stream(struct device *device);
cudaStream_t device_cuda_stream_of(struct device *device, enum device_queue queue);

/* kernels/cuda/compute_cuda.c; compression/cuda/codec_cuda.c; kernels/cuda/device_cuda.c. */
extern const struct compute_ops compute_cuda;
extern const struct codec_cuda_ops codec_cuda;
extern const struct device_backend device_cuda;

#endif
