/* cast_cuda.h - what a matrix product needs around it on a CUDA device: operands rounded to
 * bfloat16, a bias added to each row, and its gradient, the sums of the columns. And weights that
 * came as bfloat16.
 *
 * Matrices are f32, row by row, `stride` >= cols values from a row to the next; the caller's, none
 * overlapping another; rows, cols >= 1. Rounding is to nearest even, a NaN stays one: the bits of
 * kernels/linear_convert.h. Sums run in f32 in one fixed order, pieces of 64 rows, then the pieces:
 * the same bits in every run. Each call queues its work on the stream and returns 0, or the
 * cudaError_t of a launch that failed. Any thread may call.
 */
#ifndef RUBATO_KERNELS_CUDA_CAST_CUDA_H
#define RUBATO_KERNELS_CUDA_CAST_CUDA_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* a cudaStream_t points to it */

struct cast_cuda {
    int64_t rows, cols, stride;
    struct CUstream_st *stream;
};

/* from [rows, cols] -> to [rows, cols] bfloat16, to_stride values a row. */
int cast_cuda_to_bf16(const struct cast_cuda *cast, const float *from, uint16_t *to,
                      int64_t to_stride);

/* from [count] bfloat16 -> to [count] f32, exactly; count >= 1. */
int cast_cuda_from_bf16(const uint16_t *from, float *to, int64_t count, struct CUstream_st *stream);

/* bias [cols] -> y [rows, cols] +=. */
int cast_cuda_add_bias(const struct cast_cuda *cast, const float *bias, float *y);

/* dy [rows, cols] -> dbias [cols] =, or += with `add`. scratch [cast_cuda_scratch()] f32. */
int cast_cuda_column_sums(const struct cast_cuda *cast, const float *dy, float *dbias, bool add,
                          float *scratch);

/* In values. */
int64_t cast_cuda_scratch(int64_t rows, int64_t cols);

#ifdef __cplusplus
}
#endif
#endif
