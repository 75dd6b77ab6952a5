/* matmul_ref.c - the oracle: three loops, sums in double. */
#include "kernels/matmul.h"

void matmul_ref(const struct matmul *shape, const float *a, const float *b, float *c) {
    for (int64_t i = 0; i < shape->rows; i++) {
        for (int64_t j = 0; j < shape->cols; j++) {
            float *to = &c[i * shape->stride_c + j];
            double sum = shape->accumulate ? (double)*to : 0.0;
            for (int64_t k = 0; k < shape->inner; k++) {
                int64_t from_a =
                    shape->transpose_a ? k * shape->stride_a + i : i * shape->stride_a + k;
                int64_t from_b =
                    shape->transpose_b ? j * shape->stride_b + k : k * shape->stride_b + j;
                sum += (double)a[from_a] * (double)b[from_b];
            }
            *to = (float)sum;
        }
    }
}
