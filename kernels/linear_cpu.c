/* linear_cpu.c - which backend multiplies, and what is the same for both: the bias's gradient. */
#include "base/assert.h"
#include "base/log.h"
#include "kernels/dispatch.h"
#include "kernels/linear_backend.h"

#include <dnnl.h>
#include <inttypes.h>
#include <string.h>

enum {
    COLUMNS = 64,          /* columns a thread sums at a time */
    PARALLEL_MIN = 1 << 15 /* values below which waking threads costs more than it saves */
};

bool linear_bf16_is_fast(void) {
    return ((unsigned)dnnl_get_effective_cpu_isa() & (unsigned)dnnl_cpu_isa_avx512_core_amx) ==
           (unsigned)dnnl_cpu_isa_avx512_core_amx;
}

/* In bfloat16 its operands, and its weights: packed, twice for training since backward has another
 * layout; or rounded in f32, once. In f32 it uses the caller's. */
uint64_t linear_need(const struct linear_shape *shape) {
    uint64_t weights = (uint64_t)shape->in * (uint64_t)shape->out;
    uint64_t operands = (uint64_t)shape->rows * (uint64_t)(shape->in + shape->out);
    if (shape->type != COMPUTE_BF16) return 0;
    if (!linear_bf16_is_fast()) return sizeof(float) * (operands + weights);
    return sizeof(uint16_t) * (operands + weights * (shape->training ? 2 : 1));
}

enum status linear_open_backend(struct linear **linear, const struct linear_shape *shape,
                                const struct linear_backend *backend) {
    ASSERT(shape->rows >= 1 && shape->in >= 1 && shape->out >= 1);
    ASSERT(shape->stride_x >= shape->in && shape->stride_y >= shape->out);
    return backend->open(linear, shape);
}

enum status linear_open(struct linear **linear, const struct linear_shape *shape) {
    if (shape->type == COMPUTE_TF32) {
        log_error("the host multiplies no matrices in TF32: it has f32 and bf16");
        return STATUS_UNSUPPORTED;
    }
    if (shape->type == COMPUTE_BF16 && linear_bf16_is_fast()) {
        enum status status = linear_open_backend(linear, shape, &linear_packed);
        if (status != STATUS_UNSUPPORTED) return status;
        log_debug("oneDNN has no bfloat16 product of %" PRId64 " x %" PRId64
                  " in the layout that we pack: by way of f32",
                  shape->in, shape->out);
    }
    return linear_open_backend(linear, shape, &linear_sgemm);
}

void linear_close(struct linear *linear) {
    if (linear) linear->backend->close(linear);
}

size_t linear_bytes(const struct linear *linear) {
    return linear->backend->bytes(linear);
}

void linear_load(struct linear *linear, const float *weights) {
    linear->backend->load(linear, weights);
}

static void check_rows(const struct linear *linear, int64_t rows) {
    ASSERT_OP(rows, >=, 0);
    ASSERT_OP(rows, <=, linear->shape.rows);
}

void linear_forward(struct linear *linear, const float *x, const float *bias, float *y,
                    int64_t rows) {
    check_rows(linear, rows);
    if (rows == 0) return;
    linear->dy = (struct linear_held){0};
    linear->backend->forward(linear, x, bias, y, rows);
    linear->x = (struct linear_held){.values = x, .rows = rows};
}

void linear_backward_input(struct linear *linear, const float *dy, float *dx, bool add,
                           int64_t rows) {
    check_rows(linear, rows);
    ASSERT(linear->shape.training);
    if (rows == 0) return;
    linear->backend->backward_input(linear, dy, dx, add, rows);
    linear->dy = (struct linear_held){.values = dy, .rows = rows};
}

bool linear_held_take(struct linear_held *held, const float *values, int64_t rows) {
    bool same = held->values == values && held->rows == rows;
    *held = (struct linear_held){0};
    return same;
}

KERNEL_CLONES static void column_sums(const float *restrict dy, int64_t stride,
                                      float *restrict dbias, bool add, int64_t rows,
                                      int64_t width) {
    float sums[COLUMNS] = {0};
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < width; c++)
            sums[c] += dy[r * stride + c];
    }
    for (int64_t c = 0; c < width; c++)
        dbias[c] = (add ? dbias[c] : 0.0F) + sums[c];
}

static void bias_gradient(const struct linear_shape *shape, const float *dy, float *dbias, bool add,
                          int64_t rows) {
#pragma omp parallel for if (rows * shape->out >= PARALLEL_MIN)
    for (int64_t c = 0; c < shape->out; c += COLUMNS) {
        int64_t width = shape->out - c < COLUMNS ? shape->out - c : COLUMNS;
        column_sums(dy + c, shape->stride_y, dbias + c, add, rows, width);
    }
}

void linear_backward_weights(struct linear *linear, const float *x, const float *dy,
                             float *dweights, float *dbias, bool add, int64_t rows) {
    const struct linear_shape *shape = &linear->shape;
    check_rows(linear, rows);
    ASSERT(shape->training);
    if (rows > 0)
        linear->backend->backward_weights(linear, x, dy, dweights, add, rows);
    else if (!add)
        memset(dweights, 0, (size_t)(shape->in * shape->out) * sizeof *dweights);
    if (dbias) bias_gradient(shape, dy, dbias, add, rows);
}
