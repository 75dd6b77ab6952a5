/* attention_cuda.h - attention of kernels/compute.h on a CUDA device: shapes and formulas are those
 * of kernels/attention.h. Queued on DEVICE_COMPUTE; no array of more than B * heads * T values is
 * needed beside the caller's. With shape->bf16 the products are the tensor cores'
 * (flash_bf16_cuda.h), but for heads that these kernels do not take; else they are f32's
 * (flash_cuda.h). There is how it goes and what it costs.
 */
#ifndef RUBATO_KERNELS_CUDA_ATTENTION_CUDA_H
#define RUBATO_KERNELS_CUDA_ATTENTION_CUDA_H

#include "kernels/attention.h"
#include "kernels/device.h"

/* Floats of scratch that the two calls need. */
int64_t attention_cuda_scratch(const struct attention_shape *shape);

void attention_cuda_forward(struct device *device, const struct attention_shape *shape,
                            const float *qkv, float *lse, float *y, float *scratch);
void attention_cuda_backward(struct device *device, const struct attention_shape *shape,
                             const struct attention_saved *saved, const float *dy, float *dqkv,
                             float *scratch);

#endif
