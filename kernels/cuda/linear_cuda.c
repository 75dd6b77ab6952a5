/* linear_cuda.c - cuBLAS's matrices are stored column by column: a matrix of ours is its transpose
 * there, so each product is asked for transposed, with the operands in the other order.
 */
#include "kernels/cuda/linear_cuda.h"

#include "base/assert.h"
#include "base/memory.h"
#include "kernels/cuda/cast_cuda.h"
#include "kernels/cuda/device_cuda.h"

#include <limits.h>
#include <stdlib.h>

/* Rows of rounded operands begin at multiples of 16 bytes, which tensor cores are fast with. */
enum { BF16_ALIGN = 8 };

/* x or dy, and its rounded copy, until the weights' gradient uses it again. */
struct operand {
    const float *values; /* that the copy is of; NULL: of none */
    int64_t rows;
    int64_t cols, stride; /* of the f32 values */
    uint16_t *rounded;    /* [rows, aligned(cols)]; NULL: not COMPUTE_BF16 */
};

/* linear.h's, on a device; the host's is in kernels/linear_backend.h. */
struct linear {
    struct device *device;
    struct linear_shape shape;
    const float *weights;
    uint16_t *rounded_weights; /* [in, aligned(out)], or transposed; NULL: not COMPUTE_BF16 */
    struct operand x, dy;
    float *scratch; /* of the bias's gradient */
};

/* A matrix as cuBLAS is to see it: our rows are its columns. */
struct matrix {
    const void *values;
    cudaDataType type;
    int64_t stride;
    cublasOperation_t op;
};

static int64_t aligned(int64_t cols) {
    return (cols + BF16_ALIGN - 1) / BF16_ALIGN * BF16_ALIGN;
}

/* Of the weights as they are stored. */
static int64_t weight_cols(const struct linear_shape *shape) {
    return shape->out_in ? shape->in : shape->out;
}

/* ---- memory */

static size_t rounded_bytes(int64_t rows, int64_t cols) {
    return (size_t)(rows * aligned(cols)) * sizeof(uint16_t);
}

static int64_t weight_rows(const struct linear_shape *shape) {
    return shape->out_in ? shape->out : shape->in;
}

static size_t scratch_bytes(const struct linear_shape *shape) {
    return (size_t)cast_cuda_scratch(shape->rows, shape->out) * sizeof(float);
}

uint64_t linear_cuda_need(const struct linear_shape *shape) {
    uint64_t bytes = shape->training ? scratch_bytes(shape) : 0;
    if (shape->type != COMPUTE_BF16) return bytes;
    bytes += rounded_bytes(weight_rows(shape), weight_cols(shape));
    bytes += rounded_bytes(shape->rows, shape->in);
    return bytes + (shape->training ? rounded_bytes(shape->rows, shape->out) : 0);
}

static uint16_t *take_rounded(struct device *device, int64_t rows, int64_t cols) {
    return device->backend->take(device, rounded_bytes(rows, cols));
}

static bool take_operands(struct linear *linear) {
    const struct linear_shape *shape = &linear->shape;
    struct device *device = linear->device;
    linear->rounded_weights = take_rounded(device, weight_rows(shape), weight_cols(shape));
    linear->x.rounded = take_rounded(device, shape->rows, shape->in);
    if (shape->training) linear->dy.rounded = take_rounded(device, shape->rows, shape->out);
    return linear->rounded_weights && linear->x.rounded && (linear->dy.rounded || !shape->training);
}

static bool take_scratch(struct linear *linear) {
    struct device *device = linear->device;
    linear->scratch = device->backend->take(device, scratch_bytes(&linear->shape));
    return linear->scratch != NULL;
}

enum status linear_cuda_open(struct device *device, struct linear **linear,
                             const struct linear_shape *shape) {
    ASSERT(shape->rows >= 1 && shape->in >= 1 && shape->out >= 1);
    ASSERT(shape->stride_x >= shape->in && shape->stride_y >= shape->out);
    ASSERT(shape->rows <= INT_MAX && shape->stride_x <= INT_MAX && shape->stride_y <= INT_MAX);
    struct linear *opened = memory_zeroed(1, sizeof *opened);
    opened->device = device;
    opened->shape = *shape;
    opened->x = (struct operand){.cols = shape->in, .stride = shape->stride_x};
    opened->dy = (struct operand){.cols = shape->out, .stride = shape->stride_y};
    if ((shape->type == COMPUTE_BF16 && !take_operands(opened)) ||
        (shape->training && !take_scratch(opened))) {
        linear_cuda_close(opened);
        return STATUS_MEMORY;
    }
    *linear = opened;
    return STATUS_OK;
}

void linear_cuda_close(struct linear *linear) {
    if (!linear) return;
    void *all[] = {linear->rounded_weights, linear->x.rounded, linear->dy.rounded, linear->scratch};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i]) linear->device->backend->give(linear->device, all[i]);
    }
    free(linear);
}

/* ---- operands */

static void to_bf16(struct linear *linear, const struct cast_cuda *cast, const float *from,
                    uint16_t *to) {
    device_cuda_note(linear->device, cast_cuda_to_bf16(cast, from, to, aligned(cast->cols)),
                     "rounding to bfloat16");
}

void linear_cuda_load(struct linear *linear, const float *weights) {
    const struct linear_shape *shape = &linear->shape;
    linear->weights = weights;
    if (shape->type != COMPUTE_BF16) return;
    const int64_t cols = weight_cols(shape);
    const struct cast_cuda cast = {.rows = weight_rows(shape),
                                   .cols = cols,
                                   .stride = cols,
                                   .stream = device_cuda_stream(linear->device)};
    to_bf16(linear, &cast, weights, linear->rounded_weights);
}

/* The values for a product, rounded if they are to be and are not yet. */
static struct matrix operand_matrix(struct linear *linear, struct operand *operand,
                                    const float *values, int64_t rows, cublasOperation_t op) {
    if (!operand->rounded) return (struct matrix){values, CUDA_R_32F, operand->stride, op};
    if (operand->values != values || operand->rows != rows) {
        const struct cast_cuda cast = {.rows = rows,
                                       .cols = operand->cols,
                                       .stride = operand->stride,
                                       .stream = device_cuda_stream(linear->device)};
        to_bf16(linear, &cast, values, operand->rounded);
        operand->values = values;
        operand->rows = rows;
    }
    return (struct matrix){operand->rounded, CUDA_R_16BF, aligned(operand->cols), op};
}

static struct matrix weights_matrix(const struct linear *linear, bool transposed) {
    const struct linear_shape *shape = &linear->shape;
    const int64_t cols = weight_cols(shape);
    const cublasOperation_t op = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    if (shape->type == COMPUTE_BF16)
        return (struct matrix){linear->rounded_weights, CUDA_R_16BF, aligned(cols), op};
    return (struct matrix){linear->weights, CUDA_R_32F, cols, op};
}

/* ---- products */

struct product {
    struct matrix a, b;
    int64_t m, n, k; /* a [m, k], b [k, n], as cuBLAS sees them */
    int64_t stride;  /* of the result */
    bool add;
};

static void multiply(struct linear *linear, const struct product *product, float *to,
                     const char *what) {
    const struct device_cuda *cuda = (const struct device_cuda *)(const void *)linear->device;
    const struct matrix *a = &product->a;
    const struct matrix *b = &product->b;
    const float alpha = 1.0F;
    const float beta = product->add ? 1.0F : 0.0F;
    const cublasComputeType_t type =
        linear->shape.type == COMPUTE_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    (void)device_cuda_stream(linear->device);
    cublasStatus_t status =
        cublasGemmEx(cuda->cublas, a->op, b->op, (int)product->m, (int)product->n, (int)product->k,
                     &alpha, a->values, a->type, (int)a->stride, b->values, b->type, (int)b->stride,
                     &beta, to, CUDA_R_32F, (int)product->stride, type, CUBLAS_GEMM_DEFAULT);
    device_cuda_note_cublas(linear->device, status, what);
}

static void check_rows(const struct linear *linear, int64_t rows) {
    ASSERT_OP(rows, >=, 0);
    ASSERT_OP(rows, <=, linear->shape.rows);
}

void linear_cuda_forward(struct linear *linear, const float *x, const float *bias, float *y,
                         int64_t rows) {
    const struct linear_shape *shape = &linear->shape;
    check_rows(linear, rows);
    if (rows == 0) return;
    linear->x.values = NULL;
    linear->dy.values = NULL;
    const struct product product = {.a = weights_matrix(linear, shape->out_in),
                                    .b = operand_matrix(linear, &linear->x, x, rows, CUBLAS_OP_N),
                                    .m = shape->out,
                                    .n = rows,
                                    .k = shape->in,
                                    .stride = shape->stride_y};
    multiply(linear, &product, y, "a linear layer");
    if (!bias) return;
    const struct cast_cuda cast = {.rows = rows,
                                   .cols = shape->out,
                                   .stride = shape->stride_y,
                                   .stream = device_cuda_stream(linear->device)};
    device_cuda_note(linear->device, cast_cuda_add_bias(&cast, bias, y), "adding a bias");
}

void linear_cuda_backward_input(struct linear *linear, const float *dy, float *dx, bool add,
                                int64_t rows) {
    const struct linear_shape *shape = &linear->shape;
    check_rows(linear, rows);
    ASSERT(shape->training);
    if (rows == 0) return;
    linear->dy.values = NULL;
    const struct product product = {.a = weights_matrix(linear, !shape->out_in),
                                    .b = operand_matrix(linear, &linear->dy, dy, rows, CUBLAS_OP_N),
                                    .m = shape->in,
                                    .n = rows,
                                    .k = shape->out,
                                    .stride = shape->stride_x,
                                    .add = add};
    multiply(linear, &product, dx, "a linear layer's gradient of its input");
}

static void weight_gradient(struct linear *linear, const float *x, const float *dy, float *dweights,
                            bool add, int64_t rows) {
    const struct linear_shape *shape = &linear->shape;
    const bool out_in = shape->out_in;
    const struct matrix x_matrix =
        operand_matrix(linear, &linear->x, x, rows, out_in ? CUBLAS_OP_N : CUBLAS_OP_T);
    const struct matrix dy_matrix =
        operand_matrix(linear, &linear->dy, dy, rows, out_in ? CUBLAS_OP_T : CUBLAS_OP_N);
    const int64_t cols = weight_cols(shape);
    const struct product product = {.a = out_in ? x_matrix : dy_matrix,
                                    .b = out_in ? dy_matrix : x_matrix,
                                    .m = cols,
                                    .n = out_in ? shape->out : shape->in,
                                    .k = rows,
                                    .stride = cols,
                                    .add = add};
    multiply(linear, &product, dweights, "a linear layer's gradient of its weights");
}

void linear_cuda_backward_weights(struct linear *linear, const float *x, const float *dy,
                                  float *dweights, float *dbias, bool add, int64_t rows) {
    const struct linear_shape *shape = &linear->shape;
    struct device *device = linear->device;
    check_rows(linear, rows);
    ASSERT(shape->training);
    if (rows > 0) {
        weight_gradient(linear, x, dy, dweights, add, rows);
    } else if (!add) {
        device->backend->zero(device, DEVICE_COMPUTE, dweights,
                              (size_t)(shape->in * shape->out) * sizeof *dweights);
        if (dbias)
            device->backend->zero(device, DEVICE_COMPUTE, dbias,
                                  (size_t)shape->out * sizeof *dbias);
    }
    linear->x.values = NULL; /* what was rounded counts once */
    linear->dy.values = NULL;
    if (!dbias || rows == 0) return;
    const struct cast_cuda cast = {.rows = rows,
                                   .cols = shape->out,
                                   .stride = shape->stride_y,
                                   .stream = device_cuda_stream(device)};
    device_cuda_note(device, cast_cuda_column_sums(&cast, dy, dbias, add, linear->scratch),
                     "a bias's gradient");
}
