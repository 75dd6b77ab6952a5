/* matmul.h - C = A B, row-major f32 on the host, through oneDNN.
 *
 * Threads: those of OpenMP (kernels/threads.h); one when called within a parallel region. Results
 * are repeatable for a given shape, thread count and chip. matmul_ref() is the oracle: sums in
 * double. Arrays are the caller's and C overlaps neither A nor B. Any thread may call.
 */
#ifndef RUBATO_KERNELS_MATMUL_H
#define RUBATO_KERNELS_MATMUL_H

#include <stdbool.h>
#include <stdint.h>

/* A [rows, inner], or [inner, rows] if transposed; B [inner, cols], or [cols, inner] if transposed;
 * C [rows, cols]. Leading dimensions are the row lengths as stored, and no less than the stored
 * rows. C = A B + (accumulate ? C : 0). Any of rows, cols and inner may be 0; a sum over nothing
 * is 0. */
struct matmul {
    int64_t rows, cols, inner;
    bool transpose_a, transpose_b;
    int64_t stride_a, stride_b, stride_c; /* values from a stored row to the next */
    bool accumulate;
};

void matmul(const struct matmul *shape, const float *a, const float *b, float *c);
void matmul_ref(const struct matmul *shape, const float *a, const float *b, float *c);

#endif
