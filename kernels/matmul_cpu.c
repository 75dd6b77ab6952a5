/* matmul_cpu.c - oneDNN's sgemm, which is row-major as we are. */
#include "base/assert.h"
#include "kernels/matmul.h"

#include <dnnl.h>
#include <string.h>

void matmul(const struct matmul *shape, const float *a, const float *b, float *c) {
    if (shape->rows == 0 || shape->cols == 0) return;
    if (shape->inner == 0) {
        if (shape->accumulate) return;
        for (int64_t i = 0; i < shape->rows; i++)
            memset(c + i * shape->stride_c, 0, (size_t)shape->cols * sizeof *c);
        return;
    }
    dnnl_status_t status =
        dnnl_sgemm(shape->transpose_a ? 'T' : 'N', shape->transpose_b ? 'T' : 'N', shape->rows,
                   shape->cols, shape->inner, 1.0F, a, shape->stride_a, b, shape->stride_b,
                   shape->accumulate ? 1.0F : 0.0F, c, shape->stride_c);
    ASSERT_OP(status, ==, dnnl_success);
}
