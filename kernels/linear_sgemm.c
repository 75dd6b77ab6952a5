/* linear_sgemm.c - products by oneDNN's sgemm, which takes any orientation, stride and row count.
 *
 * With COMPUTE_BF16 the operands are copies with bfloat16's values. A product of two such values
 * is exact in f32, so this computes what a bfloat16 unit does, but for the order of the sums.
 */
#include "base/assert.h"
#include "kernels/linear_backend.h"
#include "kernels/linear_convert.h"
#include "kernels/matmul.h"

#include <stdlib.h>
#include <string.h>

enum { PARALLEL_MIN = 1 << 15 }; /* values below which waking threads costs more than it saves */

struct sgemm {
    struct linear base;
    const float *weights; /* the caller's, or `rounded` */
    struct arena arena;   /* with COMPUTE_BF16: the rounded operands */
    float *rounded;       /* weights, as stored */
    float *x, *dy;        /* [rows, in], [rows, out], dense */
};

static size_t floats(int64_t rows, int64_t cols) {
    return arena_need((size_t)rows * (size_t)cols * sizeof(float));
}

static enum status sgemm_open(struct linear **linear, const struct linear_shape *shape) {
    struct sgemm *sgemm = memory_zeroed(1, sizeof *sgemm);
    sgemm->base.backend = &linear_sgemm;
    sgemm->base.shape = *shape;
    if (shape->type == COMPUTE_BF16) {
        size_t bytes = floats(shape->in, shape->out) + floats(shape->rows, shape->in) +
                       (shape->training ? floats(shape->rows, shape->out) : 0);
        enum status status = arena_init(&sgemm->arena, bytes);
        if (status != STATUS_OK) {
            free(sgemm);
            return status;
        }
        sgemm->rounded = arena_take(&sgemm->arena, floats(shape->in, shape->out));
        sgemm->x = arena_take(&sgemm->arena, floats(shape->rows, shape->in));
        if (shape->training) sgemm->dy = arena_take(&sgemm->arena, floats(shape->rows, shape->out));
    }
    *linear = &sgemm->base;
    return STATUS_OK;
}

static void sgemm_close(struct linear *linear) {
    struct sgemm *sgemm = (struct sgemm *)linear;
    arena_free(&sgemm->arena);
    free(sgemm);
}

static size_t sgemm_bytes(const struct linear *linear) {
    const struct sgemm *sgemm = (const struct sgemm *)linear;
    return sizeof *sgemm + sgemm->arena.bytes;
}

static void sgemm_load(struct linear *linear, const float *weights) {
    struct sgemm *sgemm = (struct sgemm *)linear;
    const struct linear_shape *shape = &linear->shape;
    sgemm->weights = weights;
    if (shape->type == COMPUTE_F32) return;
    int64_t rows = shape->out_in ? shape->out : shape->in;
    int64_t cols = shape->out_in ? shape->in : shape->out;
    linear_round_bf16(weights, cols, sgemm->rounded, rows, cols);
    sgemm->weights = sgemm->rounded;
}

static const float *rounded_x(struct sgemm *sgemm, const float *x, int64_t rows, int64_t *stride) {
    const struct linear_shape *shape = &sgemm->base.shape;
    *stride = shape->stride_x;
    if (shape->type == COMPUTE_F32) return x;
    *stride = shape->in;
    if (!linear_held_take(&sgemm->base.x, x, rows))
        linear_round_bf16(x, shape->stride_x, sgemm->x, rows, shape->in);
    return sgemm->x;
}

static const float *rounded_dy(struct sgemm *sgemm, const float *dy, int64_t rows,
                               int64_t *stride) {
    const struct linear_shape *shape = &sgemm->base.shape;
    *stride = shape->stride_y;
    if (shape->type == COMPUTE_F32) return dy;
    *stride = shape->out;
    if (!linear_held_take(&sgemm->base.dy, dy, rows))
        linear_round_bf16(dy, shape->stride_y, sgemm->dy, rows, shape->out);
    return sgemm->dy;
}

static int64_t weights_stride(const struct linear_shape *shape) {
    return shape->out_in ? shape->in : shape->out;
}

static void sgemm_forward(struct linear *linear, const float *x, const float *bias, float *y,
                          int64_t rows) {
    struct sgemm *sgemm = (struct sgemm *)linear;
    const struct linear_shape *shape = &linear->shape;
    struct matmul product = {.rows = rows,
                             .cols = shape->out,
                             .inner = shape->in,
                             .transpose_b = shape->out_in,
                             .stride_b = weights_stride(shape),
                             .stride_c = shape->stride_y,
                             .accumulate = bias != NULL};
    ASSERT(sgemm->weights);
    linear->x = (struct linear_held){0};
    x = rounded_x(sgemm, x, rows, &product.stride_a);
    if (bias) {
        /* Added to by the product: one pass over y less than a sum afterwards. */
#pragma omp parallel for if (rows * shape->out >= PARALLEL_MIN)
        for (int64_t r = 0; r < rows; r++)
            memcpy(y + r * shape->stride_y, bias, (size_t)shape->out * sizeof *y);
    }
    matmul(&product, x, sgemm->weights, y);
}

static void sgemm_backward_input(struct linear *linear, const float *dy, float *dx, bool add,
                                 int64_t rows) {
    struct sgemm *sgemm = (struct sgemm *)linear;
    const struct linear_shape *shape = &linear->shape;
    struct matmul product = {.rows = rows,
                             .cols = shape->in,
                             .inner = shape->out,
                             .transpose_b = !shape->out_in,
                             .stride_b = weights_stride(shape),
                             .stride_c = shape->stride_x,
                             .accumulate = add};
    ASSERT(sgemm->weights);
    linear->dy = (struct linear_held){0};
    dy = rounded_dy(sgemm, dy, rows, &product.stride_a);
    matmul(&product, dy, sgemm->weights, dx);
}

/* dW = x^T dy, or its transpose dy^T x where weights are stored so. */
static void sgemm_backward_weights(struct linear *linear, const float *x, const float *dy,
                                   float *dweights, bool add, int64_t rows) {
    struct sgemm *sgemm = (struct sgemm *)linear;
    const struct linear_shape *shape = &linear->shape;
    int64_t stride_x;
    int64_t stride_y;
    x = rounded_x(sgemm, x, rows, &stride_x);
    dy = rounded_dy(sgemm, dy, rows, &stride_y);
    struct matmul product = {.rows = shape->out_in ? shape->out : shape->in,
                             .cols = shape->out_in ? shape->in : shape->out,
                             .inner = rows,
                             .transpose_a = true,
                             .stride_a = shape->out_in ? stride_y : stride_x,
                             .stride_b = shape->out_in ? stride_x : stride_y,
                             .stride_c = weights_stride(shape),
                             .accumulate = add};
    matmul(&product, shape->out_in ? dy : x, shape->out_in ? x : dy, dweights);
}

const struct linear_backend linear_sgemm = {
    .name = "sgemm",
    .open = sgemm_open,
    .close = sgemm_close,
    .bytes = sgemm_bytes,
    .load = sgemm_load,
    .forward = sgemm_forward,
    .backward_input = sgemm_backward_input,
    .backward_weights = sgemm_backward_weights,
};
