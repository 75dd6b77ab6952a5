#include "kernels/cuda/attention_cuda.h"

#include "kernels/cuda/device_cuda.h"
#include "kernels/cuda/flash_bf16_cuda.h"
#include "kernels/cuda/flash_cuda.h"

/* The device is the calling thread's. */
static bool on_tensor_cores(const struct attention_shape *shape) {
    return shape->bf16 && flash_bf16_cuda_takes(shape);
}

int64_t attention_cuda_scratch(const struct attention_shape *shape) {
    return shape->B * shape->heads * shape->T;
}

/* As struct compute_ops has it. NOLINTBEGIN(readability-non-const-parameter) */
void attention_cuda_forward(struct device *device, const struct attention_shape *shape,
                            const float *qkv, float *lse, float *y, float *scratch) {
    /* NOLINTEND(readability-non-const-parameter) */
    (void)scratch;
    cudaStream_t stream = device_cuda_stream(device);
    int error = on_tensor_cores(shape) ? flash_bf16_cuda_forward(shape, qkv, lse, y, stream)
                                       : flash_cuda_forward(shape, qkv, lse, y, stream);
    device_cuda_note(device, error, "attention");
}

void attention_cuda_backward(struct device *device, const struct attention_shape *shape,
                             const struct attention_saved *saved, const float *dy, float *dqkv,
                             float *scratch) {
    cudaStream_t stream = device_cuda_stream(device);
    int error = on_tensor_cores(shape)
                    ? flash_bf16_cuda_backward(shape, saved, dy, dqkv, scratch, stream)
                    : flash_cuda_backward(shape, saved, dy, dqkv, scratch, stream);
    device_cuda_note(device, error, "gradients of attention");
}
