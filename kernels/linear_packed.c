/* linear_packed.c - bfloat16 products by oneDNN's matmul primitives, weights in packed layout.
 *
 * A primitive is made for fixed shapes, so there is a set of them for each number of rows: one for
 * the most, made at open, and the last few others. Making one again is cheap, since oneDNN caches
 * the code. All take their operands from our arena as [rows, .] bfloat16, dense, or as packed
 * weights, and write f32 to the caller; where the caller's rows have gaps, which oneDNN's fast
 * kernels cannot write, by way of `dense`. Scratch of the primitives is ours, too, one for all.
 */
#include "base/assert.h"
#include "base/log.h"
#include "kernels/dispatch.h"
#include "kernels/linear_backend.h"
#include "kernels/linear_convert.h"

#include <dnnl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum product { FORWARD, INPUT, INPUT_ADD, WEIGHTS, WEIGHTS_ADD, PRODUCTS };
enum { ROW_SETS = 5 }; /* the first is for the most rows */
enum {
    ARGUMENTS_MAX = 5,
    PARALLEL_MIN = 1 << 15 /* values below which waking threads costs more than it saves */
};

struct primitive {
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, bias, y, scratch;
};

struct row_set {
    int64_t rows; /* 0: none */
    struct primitive primitives[PRODUCTS];
};

struct packed {
    struct linear base;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_attr_t plain, add;
    struct row_set sets[ROW_SETS];
    int next; /* set to give up when a new number of rows comes, 1..ROW_SETS - 1 */
    dnnl_memory_desc_t weights_desc[2];       /* [in, out] for FORWARD, [out, in] for INPUT */
    struct packed_matrix forward, transposed; /* the same two */
    struct arena arena;
    uint16_t *x, *dy; /* [rows, in], [rows, out] */
    float *zero_bias; /* [out] */
    float *dense;     /* [rows, .]: y or dx, where theirs has gaps; or NULL */
    struct arena scratch;
};

/* What a primitive is made of: y [m, n] = a [m, k] b [k, n]. */
struct operands {
    dnnl_memory_desc_t a, b, bias, y;
    bool has_bias;
};

static dnnl_memory_desc_t matrix(int64_t rows, int64_t cols, dnnl_data_type_t type,
                                 int64_t row_stride, int64_t col_stride) {
    dnnl_memory_desc_t desc;
    const dnnl_dims_t dims = {rows, cols};
    const dnnl_dims_t strides = {row_stride, col_stride};
    dnnl_status_t status = dnnl_memory_desc_init_by_strides(&desc, 2, dims, type, strides);
    ASSERT_OP(status, ==, dnnl_success);
    return desc;
}

static dnnl_memory_desc_t any_layout(int64_t rows, int64_t cols) {
    dnnl_memory_desc_t desc;
    const dnnl_dims_t dims = {rows, cols};
    dnnl_status_t status =
        dnnl_memory_desc_init_by_tag(&desc, 2, dims, dnnl_bf16, dnnl_format_tag_any);
    ASSERT_OP(status, ==, dnnl_success);
    return desc;
}

static struct operands operands_of(const struct packed *packed, enum product product,
                                   int64_t rows) {
    const struct linear_shape *shape = &packed->base.shape;
    const int64_t in = shape->in;
    const int64_t out = shape->out;
    struct operands operands = {.has_bias = product == FORWARD};
    switch (product) {
    case FORWARD:
        operands.a = matrix(rows, in, dnnl_bf16, in, 1);
        operands.b = packed->weights_desc[0];
        operands.bias = matrix(1, out, dnnl_f32, out, 1);
        operands.y = matrix(rows, out, dnnl_f32, out, 1);
        break;
    case INPUT:
    case INPUT_ADD:
        operands.a = matrix(rows, out, dnnl_bf16, out, 1);
        operands.b = packed->weights_desc[1];
        operands.y = matrix(rows, in, dnnl_f32, in, 1);
        break;
    default: /* x^T dy, or dy^T x */
        operands.a = shape->out_in ? matrix(out, rows, dnnl_bf16, 1, out)
                                   : matrix(in, rows, dnnl_bf16, 1, in);
        operands.b = shape->out_in ? matrix(rows, in, dnnl_bf16, in, 1)
                                   : matrix(rows, out, dnnl_bf16, out, 1);
        operands.y =
            shape->out_in ? matrix(out, in, dnnl_f32, in, 1) : matrix(in, out, dnnl_f32, out, 1);
        break;
    }
    return operands;
}

static enum status describe(const struct packed *packed, const struct operands *operands, bool add,
                            dnnl_primitive_desc_t *desc) {
    dnnl_matmul_desc_t matmul;
    dnnl_status_t status =
        dnnl_matmul_desc_init(&matmul, &operands->a, &operands->b,
                              operands->has_bias ? &operands->bias : NULL, &operands->y);
    if (status == dnnl_success)
        status = dnnl_primitive_desc_create(desc, &matmul, add ? packed->add : packed->plain,
                                            packed->engine, NULL);
    if (status == dnnl_success) return STATUS_OK;
    return status == dnnl_unimplemented ? STATUS_UNSUPPORTED : STATUS_DEVICE;
}

static bool is_add(enum product product) {
    return product == INPUT_ADD || product == WEIGHTS_ADD;
}

/* Room for a primitive's scratch; the ones that were made before take the new place, too. */
static enum status reserve_scratch(struct packed *packed, size_t bytes) {
    if (bytes <= packed->scratch.bytes) return STATUS_OK;
    arena_free(&packed->scratch);
    return arena_init(&packed->scratch, bytes);
}

static enum status make_memory(const struct packed *packed, const dnnl_memory_desc_t *desc,
                               dnnl_memory_t *memory) {
    dnnl_status_t status = dnnl_memory_create(memory, desc, packed->engine, DNNL_MEMORY_NONE);
    return status == dnnl_success ? STATUS_OK : STATUS_DEVICE;
}

static enum status make_primitive(struct packed *packed, enum product product, int64_t rows,
                                  struct primitive *made) {
    struct operands operands = operands_of(packed, product, rows);
    dnnl_primitive_desc_t desc = NULL;
    TRY(describe(packed, &operands, is_add(product), &desc));
    const dnnl_memory_desc_t *scratch =
        dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    size_t scratch_bytes = scratch ? dnnl_memory_desc_get_size(scratch) : 0;
    enum status status = reserve_scratch(packed, scratch_bytes);
    if (status == STATUS_OK && dnnl_primitive_create(&made->primitive, desc) != dnnl_success)
        status = STATUS_DEVICE;
    if (status == STATUS_OK) status = make_memory(packed, &operands.a, &made->a);
    if (status == STATUS_OK) status = make_memory(packed, &operands.b, &made->b);
    if (status == STATUS_OK) status = make_memory(packed, &operands.y, &made->y);
    if (status == STATUS_OK && operands.has_bias)
        status = make_memory(packed, &operands.bias, &made->bias);
    if (status == STATUS_OK && scratch_bytes > 0)
        status = make_memory(packed, scratch, &made->scratch);
    (void)dnnl_primitive_desc_destroy(desc);
    return status;
}

static void forget_set(struct row_set *set) {
    for (int i = 0; i < PRODUCTS; i++) {
        struct primitive *primitive = &set->primitives[i];
        if (primitive->primitive) (void)dnnl_primitive_destroy(primitive->primitive);
        const dnnl_memory_t memories[] = {primitive->a, primitive->b, primitive->bias, primitive->y,
                                          primitive->scratch};
        for (size_t j = 0; j < sizeof memories / sizeof memories[0]; j++) {
            if (memories[j]) (void)dnnl_memory_destroy(memories[j]);
        }
    }
    *set = (struct row_set){0};
}

static enum status make_set(struct packed *packed, int64_t rows, struct row_set *set) {
    int count = packed->base.shape.training ? PRODUCTS : FORWARD + 1;
    set->rows = rows;
    for (int i = 0; i < count; i++)
        TRY(make_primitive(packed, (enum product)i, rows, &set->primitives[i]));
    return STATUS_OK;
}

static struct row_set *set_for(struct packed *packed, int64_t rows) {
    for (int i = 0; i < ROW_SETS; i++) {
        if (packed->sets[i].rows == rows) return &packed->sets[i];
    }
    struct row_set *set = &packed->sets[packed->next];
    packed->next = packed->next % (ROW_SETS - 1) + 1;
    forget_set(set);
    /* What oneDNN did for the most rows it does for fewer, if there is memory at all. */
    ASSERT_OP(make_set(packed, rows, set), ==, STATUS_OK);
    return set;
}

/* The layout that oneDNN wants for b [inner, cols]: UNSUPPORTED unless it is linear_pack()'s. */
static enum status choose_layout(struct packed *packed, enum product product,
                                 struct packed_matrix *matrix_of, size_t *bytes) {
    int side = product == FORWARD ? 0 : 1;
    const struct linear_shape *shape = &packed->base.shape;
    matrix_of->inner = side == 0 ? shape->in : shape->out;
    matrix_of->cols = side == 0 ? shape->out : shape->in;
    packed->weights_desc[side] = any_layout(matrix_of->inner, matrix_of->cols);
    struct operands operands = operands_of(packed, product, shape->rows);
    dnnl_primitive_desc_t desc = NULL;
    TRY(describe(packed, &operands, false, &desc));
    const dnnl_memory_desc_t *weights =
        dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0);
    const dnnl_blocking_desc_t *blocks = &weights->format_desc.blocking;
    bool known =
        weights->format_kind == dnnl_blocked && weights->data_type == dnnl_bf16 &&
        weights->offset0 == 0 && weights->extra.flags == 0 && blocks->inner_nblks == 3 &&
        blocks->inner_idxs[0] == 0 && blocks->inner_blks[0] == PACK_INNER / 2 &&
        blocks->inner_idxs[1] == 1 && blocks->inner_blks[1] == PACK_COLS &&
        blocks->inner_idxs[2] == 0 && blocks->inner_blks[2] == 2 &&
        weights->padded_dims[0] == (matrix_of->inner + PACK_INNER - 1) / PACK_INNER * PACK_INNER &&
        weights->padded_dims[1] == (matrix_of->cols + PACK_COLS - 1) / PACK_COLS * PACK_COLS;
    if (known) {
        matrix_of->inner_step = blocks->strides[0];
        matrix_of->cols_step = blocks->strides[1];
        packed->weights_desc[side] = *weights;
        *bytes = dnnl_memory_desc_get_size(weights);
    }
    (void)dnnl_primitive_desc_destroy(desc);
    return known ? STATUS_OK : STATUS_UNSUPPORTED;
}

static enum status make_attributes(struct packed *packed) {
    dnnl_post_ops_t sum = NULL;
    bool ok = dnnl_primitive_attr_create(&packed->plain) == dnnl_success &&
              dnnl_primitive_attr_create(&packed->add) == dnnl_success &&
              dnnl_primitive_attr_set_scratchpad_mode(packed->plain, dnnl_scratchpad_mode_user) ==
                  dnnl_success &&
              dnnl_primitive_attr_set_scratchpad_mode(packed->add, dnnl_scratchpad_mode_user) ==
                  dnnl_success &&
              dnnl_post_ops_create(&sum) == dnnl_success &&
              dnnl_post_ops_append_sum(sum, 1.0F) == dnnl_success &&
              dnnl_primitive_attr_set_post_ops(packed->add, sum) == dnnl_success;
    if (sum) (void)dnnl_post_ops_destroy(sum);
    return ok ? STATUS_OK : STATUS_DEVICE;
}

static size_t dense_columns(const struct linear_shape *shape) {
    int64_t y = shape->stride_y > shape->out ? shape->out : 0;
    int64_t dx = shape->training && shape->stride_x > shape->in ? shape->in : 0;
    return (size_t)(y > dx ? y : dx);
}

static enum status prepare(struct packed *packed) {
    const struct linear_shape *shape = &packed->base.shape;
    size_t forward_bytes = 0;
    size_t transposed_bytes = 0;
    size_t x_bytes = (size_t)shape->rows * (size_t)shape->in * sizeof(uint16_t);
    size_t dy_bytes = (size_t)shape->rows * (size_t)shape->out * sizeof(uint16_t);
    size_t bias_bytes = (size_t)shape->out * sizeof(float);
    size_t dense_bytes = (size_t)shape->rows * dense_columns(shape) * sizeof(float);
    if (dnnl_engine_create(&packed->engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&packed->stream, packed->engine, dnnl_stream_default_flags) !=
            dnnl_success)
        return STATUS_DEVICE;
    TRY(make_attributes(packed));
    TRY(choose_layout(packed, FORWARD, &packed->forward, &forward_bytes));
    if (shape->training) {
        TRY(choose_layout(packed, INPUT, &packed->transposed, &transposed_bytes));
    }
    TRY(arena_init(&packed->arena, arena_need(forward_bytes) + arena_need(transposed_bytes) +
                                       arena_need(x_bytes) + arena_need(dy_bytes) +
                                       arena_need(bias_bytes) + arena_need(dense_bytes)));
    packed->forward.values = arena_take(&packed->arena, forward_bytes);
    if (shape->training) {
        packed->transposed.values = arena_take(&packed->arena, transposed_bytes);
        packed->dy = arena_take(&packed->arena, dy_bytes);
    }
    packed->x = arena_take(&packed->arena, x_bytes);
    packed->zero_bias = arena_take(&packed->arena, bias_bytes);
    if (dense_bytes > 0) packed->dense = arena_take(&packed->arena, dense_bytes);
    packed->next = 1;
    return make_set(packed, shape->rows, &packed->sets[0]);
}

static void packed_close(struct linear *linear) {
    struct packed *packed = (struct packed *)linear;
    for (int i = 0; i < ROW_SETS; i++)
        forget_set(&packed->sets[i]);
    if (packed->plain) (void)dnnl_primitive_attr_destroy(packed->plain);
    if (packed->add) (void)dnnl_primitive_attr_destroy(packed->add);
    if (packed->stream) (void)dnnl_stream_destroy(packed->stream);
    if (packed->engine) (void)dnnl_engine_destroy(packed->engine);
    arena_free(&packed->arena);
    arena_free(&packed->scratch);
    free(packed);
}

static enum status packed_open(struct linear **linear, const struct linear_shape *shape) {
    if (shape->type != COMPUTE_BF16) return STATUS_UNSUPPORTED;
    struct packed *packed = memory_zeroed(1, sizeof *packed);
    packed->base.backend = &linear_packed;
    packed->base.shape = *shape;
    enum status status = prepare(packed);
    if (status != STATUS_OK) {
        if (status == STATUS_DEVICE)
            log_error("oneDNN failed to prepare a product of %" PRId64 " x %" PRId64, shape->in,
                      shape->out);
        packed_close(&packed->base);
        return status;
    }
    *linear = &packed->base;
    return STATUS_OK;
}

static size_t packed_bytes(const struct linear *linear) {
    const struct packed *packed = (const struct packed *)linear;
    return sizeof *packed + packed->arena.bytes + packed->scratch.bytes;
}

static void packed_load(struct linear *linear, const float *weights) {
    struct packed *packed = (struct packed *)linear;
    const struct linear_shape *shape = &linear->shape;
    struct packed_matrix transposed = packed->transposed;
    transposed.inner = shape->out;
    transposed.cols = shape->in;
    if (shape->out_in)
        linear_pack(weights, &transposed, &packed->forward);
    else
        linear_pack(weights, &packed->forward, &transposed);
}

static void give(dnnl_memory_t memory, void *bytes) {
    dnnl_status_t status = dnnl_memory_set_data_handle(memory, bytes);
    ASSERT_OP(status, ==, dnnl_success);
}

/* y = a b, + bias where the primitive has one. */
static void execute(struct packed *packed, const struct primitive *primitive, uint16_t *a,
                    uint16_t *b, const float *bias, float *y) {
    dnnl_exec_arg_t arguments[ARGUMENTS_MAX];
    int count = 0;
    give(primitive->a, a);
    give(primitive->b, b);
    give(primitive->y, y);
    arguments[count++] = (dnnl_exec_arg_t){DNNL_ARG_SRC, primitive->a};
    arguments[count++] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, primitive->b};
    arguments[count++] = (dnnl_exec_arg_t){DNNL_ARG_DST, primitive->y};
    if (primitive->bias) {
        give(primitive->bias, (void *)bias); /* oneDNN only reads it */
        arguments[count++] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, primitive->bias};
    }
    if (primitive->scratch) {
        give(primitive->scratch, packed->scratch.base);
        arguments[count++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, primitive->scratch};
    }
    dnnl_status_t status =
        dnnl_primitive_execute(primitive->primitive, packed->stream, count, arguments);
    if (status == dnnl_success) status = dnnl_stream_wait(packed->stream);
    ASSERT_OP(status, ==, dnnl_success);
}

/* from [rows, cols], dense -> to [rows, cols], `stride` values a row. */
KERNEL_CLONES static void spread_row(const float *restrict from, float *restrict to, bool add,
                                     int64_t cols) {
    if (!add) {
        memcpy(to, from, (size_t)cols * sizeof *to);
        return;
    }
    for (int64_t c = 0; c < cols; c++)
        to[c] += from[c];
}

static void spread(const float *from, float *to, int64_t stride, bool add, int64_t rows,
                   int64_t cols) {
#pragma omp parallel for if (rows * cols >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++)
        spread_row(from + r * cols, to + r * stride, add, cols);
}

static void packed_forward(struct linear *linear, const float *x, const float *bias, float *y,
                           int64_t rows) {
    struct packed *packed = (struct packed *)linear;
    const struct linear_shape *shape = &linear->shape;
    const struct row_set *set = set_for(packed, rows);
    const bool gaps = shape->stride_y > shape->out;
    linear_to_bf16(x, shape->stride_x, packed->x, rows, shape->in);
    execute(packed, &set->primitives[FORWARD], packed->x, packed->forward.values,
            bias ? bias : packed->zero_bias, gaps ? packed->dense : y);
    if (gaps) spread(packed->dense, y, shape->stride_y, false, rows, shape->out);
}

static void packed_backward_input(struct linear *linear, const float *dy, float *dx, bool add,
                                  int64_t rows) {
    struct packed *packed = (struct packed *)linear;
    const struct linear_shape *shape = &linear->shape;
    const struct row_set *set = set_for(packed, rows);
    const bool gaps = shape->stride_x > shape->in;
    linear_to_bf16(dy, shape->stride_y, packed->dy, rows, shape->out);
    execute(packed, &set->primitives[add && !gaps ? INPUT_ADD : INPUT], packed->dy,
            packed->transposed.values, NULL, gaps ? packed->dense : dx);
    if (gaps) spread(packed->dense, dx, shape->stride_x, add, rows, shape->in);
}

static void packed_backward_weights(struct linear *linear, const float *x, const float *dy,
                                    float *dweights, bool add, int64_t rows) {
    struct packed *packed = (struct packed *)linear;
    const struct linear_shape *shape = &linear->shape;
    const struct row_set *set = set_for(packed, rows);
    if (!linear_held_take(&linear->x, x, rows))
        linear_to_bf16(x, shape->stride_x, packed->x, rows, shape->in);
    if (!linear_held_take(&linear->dy, dy, rows))
        linear_to_bf16(dy, shape->stride_y, packed->dy, rows, shape->out);
    execute(packed, &set->primitives[add ? WEIGHTS_ADD : WEIGHTS],
            shape->out_in ? packed->dy : packed->x, shape->out_in ? packed->x : packed->dy, NULL,
            dweights);
}

const struct linear_backend linear_packed = {
    .name = "packed",
    .open = packed_open,
    .close = packed_close,
    .bytes = packed_bytes,
    .load = packed_load,
    .forward = packed_forward,
    .backward_input = packed_backward_input,
    .backward_weights = packed_backward_weights,
};
