/* linear_cuda.h - kernels/linear.h on a CUDA device, through cuBLAS: the linear_* entries of struct
 * compute_ops (kernels/compute.h), which have the same shapes and promises.
 *
 * Operands are f32, or rounded to bfloat16 (COMPUTE_BF16) into memory that the object takes when it
 * is opened: the weights at linear_load, x and dy at the first product with them in a pass. Sums
 * are f32, and products are TF32 with COMPUTE_TF32 alone: their operands stay f32 in memory. The
 * same bits in every run, of a shape, a type and a kind of device.
 */
#ifndef RUBATO_KERNELS_CUDA_LINEAR_CUDA_H
#define RUBATO_KERNELS_CUDA_LINEAR_CUDA_H

#include "kernels/linear.h"

struct device;

uint64_t linear_cuda_need(const struct linear_shape *shape);
enum status linear_cuda_open(struct device *device, struct linear **linear,
                             const struct linear_shape *shape) WARN_UNUSED;
void linear_cuda_close(struct linear *linear);
void linear_cuda_load(struct linear *linear, const float *weights);
void linear_cuda_forward(struct linear *linear, const float *x, const float *bias, float *y,
                         int64_t rows);
void linear_cuda_backward_input(struct linear *linear, const float *dy, float *dx, bool add,
                                int64_t rows);
void linear_cuda_backward_weights(struct linear *linear, const float *x, const float *dy,
                                  float *dweights, float *dbias, bool add, int64_t rows);

#endif
