/* test_linear.c - the products of a layer with its weights.
 *
 * Proved: forward and both gradients of each backend that this chip has, in f32 and in bf16, are
 * the oracle's (double sums of operands rounded by another formula) within the error of f32 sums,
 * for sizes around the packing's tiles, strides, both orientations, with and without bias and add,
 * one row, all rows and row counts in between, more of them than primitives are kept for; what lies
 * between the rows is not touched; the same call gives the same bits. That rounded operands are
 * used again is invisible, also for other values at another address. The rounding and the packed
 * layout are compared bit by bit with closed forms, and with oneDNN's own reorder by the products.
 */
#include "kernels/linear.h"
#include "kernels/linear_backend.h"
#include "kernels/linear_convert.h"
#include "kernels/threads.h"
#include "tests/test.h"

static uint32_t state = 12345;

static float uniform(void) {
    state = state * 1664525U + 1013904223U;
    return (float)(state >> 8) / (float)(1 << 23) - 1.0F;
}

static float *filled(int64_t count) {
    float *values = memory_zeroed((size_t)count, sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = uniform();
    return values;
}

static float *copied(const float *values, int64_t count) {
    float *copy = memory_zeroed((size_t)count, sizeof *copy);
    memcpy(copy, values, (size_t)count * sizeof *copy);
    return copy;
}

/* [rows, stride] with `terms` products of values below 1 in each sum: an error of f32 sums, and
 * nothing at all outside the columns. */
static void compare(const float *actual, const float *expected, int64_t rows, int64_t cols,
                    int64_t stride, int64_t terms) {
    for (int64_t i = 0; i < rows * stride; i++) {
        if (i % stride < cols)
            CHECK_NEAR(actual[i], expected[i], 2e-7 * (double)(terms + 4));
        else
            CHECK(actual[i] == expected[i]);
    }
}

struct layer {
    struct linear_shape shape;
    int64_t x_count, y_count, weights_count;
    float *weights, *x, *bias, *y, *dy, *dx, *dweights, *dbias;
};

static struct layer layer_make(const struct linear_shape *shape) {
    struct layer layer = {.shape = *shape,
                          .x_count = shape->rows * shape->stride_x,
                          .y_count = shape->rows * shape->stride_y,
                          .weights_count = shape->in * shape->out};
    layer.weights = filled(layer.weights_count);
    layer.x = filled(layer.x_count);
    layer.bias = filled(shape->out);
    layer.y = filled(layer.y_count);
    layer.dy = filled(layer.y_count);
    layer.dx = filled(layer.x_count);
    layer.dweights = filled(layer.weights_count);
    layer.dbias = filled(shape->out);
    return layer;
}

static void layer_free(struct layer *layer) {
    float *all[] = {layer->weights, layer->x,  layer->bias,     layer->y,
                    layer->dy,      layer->dx, layer->dweights, layer->dbias};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

static void check_forward(struct linear *linear, const struct layer *layer, int64_t rows,
                          bool bias) {
    const struct linear_shape *shape = &layer->shape;
    float *expected = copied(layer->y, layer->y_count);
    float *actual = copied(layer->y, layer->y_count);
    float *again = copied(layer->y, layer->y_count);
    const float *given = bias ? layer->bias : NULL;
    linear_forward_ref(shape, layer->weights, layer->x, given, expected, rows);
    linear_forward(linear, layer->x, given, actual, rows);
    linear_forward(linear, layer->x, given, again, rows);
    compare(actual, expected, shape->rows, shape->out, shape->stride_y, shape->in);
    CHECK(memcmp(actual, again, (size_t)layer->y_count * sizeof *actual) == 0);
    free(expected);
    free(actual);
    free(again);
}

static void check_input(struct linear *linear, const struct layer *layer, int64_t rows, bool add) {
    const struct linear_shape *shape = &layer->shape;
    float *expected = copied(layer->dx, layer->x_count);
    float *actual = copied(layer->dx, layer->x_count);
    float *again = copied(layer->dx, layer->x_count);
    linear_backward_input_ref(shape, layer->weights, layer->dy, expected, add, rows);
    linear_backward_input(linear, layer->dy, actual, add, rows);
    linear_backward_input(linear, layer->dy, again, add, rows);
    compare(actual, expected, shape->rows, shape->in, shape->stride_x, shape->out);
    CHECK(memcmp(actual, again, (size_t)layer->x_count * sizeof *actual) == 0);
    free(expected);
    free(actual);
    free(again);
}

/* The first call may use operands that are held, the second has to round them. */
static void check_weights(struct linear *linear, const struct layer *layer, int64_t rows, bool add,
                          bool bias) {
    const struct linear_shape *shape = &layer->shape;
    float *expected = copied(layer->dweights, layer->weights_count);
    float *actual = copied(layer->dweights, layer->weights_count);
    float *again = copied(layer->dweights, layer->weights_count);
    float *expected_bias = copied(layer->dbias, shape->out);
    float *actual_bias = copied(layer->dbias, shape->out);
    linear_backward_weights_ref(shape, layer->x, layer->dy, expected, bias ? expected_bias : NULL,
                                add, rows);
    linear_backward_weights(linear, layer->x, layer->dy, actual, bias ? actual_bias : NULL, add,
                            rows);
    linear_backward_weights(linear, layer->x, layer->dy, again, NULL, add, rows);
    compare(actual, expected, 1, layer->weights_count, layer->weights_count, rows);
    compare(actual_bias, expected_bias, 1, shape->out, shape->out, rows);
    CHECK(memcmp(actual, again, (size_t)layer->weights_count * sizeof *actual) == 0);
    free(expected);
    free(actual);
    free(again);
    free(expected_bias);
    free(actual_bias);
}

static void check_rows(struct linear *linear, const struct layer *layer, int64_t rows, bool flag) {
    check_forward(linear, layer, rows, flag);
    check_input(linear, layer, rows, flag);
    check_weights(linear, layer, rows, flag, !flag);
}

/* False where the chip does not have the backend. */
static bool check_shape(const struct linear_shape *shape, const struct linear_backend *backend) {
    struct linear *linear = NULL;
    enum status status = linear_open_backend(&linear, shape, backend);
    if (status == STATUS_UNSUPPORTED) return false;
    CHECK_INT(status, STATUS_OK);
    struct layer layer = layer_make(shape);
    linear_load(linear, layer.weights);
    check_rows(linear, &layer, shape->rows, false);
    check_rows(linear, &layer, shape->rows, true);
    /* More numbers than a backend keeps primitives for, and one of them again. */
    const int64_t counts[] = {1, 2, shape->rows - 1, 3, shape->rows / 2, 1, 5, shape->rows};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        if (counts[i] >= 1 && counts[i] <= shape->rows)
            check_rows(linear, &layer, counts[i], i % 2);
    }
    check_weights(linear, &layer, 0, true, true);
    check_weights(linear, &layer, 0, false, true);
    layer_free(&layer);
    linear_close(linear);
    return true;
}

static const struct linear_backend *const backends[] = {&linear_sgemm, &linear_sgemm,
                                                        &linear_packed};
static const enum compute_type types[] = {COMPUTE_F32, COMPUTE_BF16, COMPUTE_BF16};
enum { KINDS = 3 };

static void shapes(void) {
    /* rows, in, out, what strides have more */
    const int64_t sizes[][4] = {{1, 1, 1, 0},     {7, 3, 5, 2},      {16, 32, 64, 0},
                                {9, 33, 65, 1},   {33, 64, 128, 16}, {12, 63, 31, 0},
                                {40, 100, 17, 3}, {64, 96, 200, 0},  {50, 129, 130, 7}};
    for (int kind = 0; kind < KINDS; kind++) {
        bool had = true;
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] * 2 && had; i++) {
            const int64_t *size = sizes[i / 2];
            struct linear_shape shape = {.rows = size[0],
                                         .in = size[1],
                                         .out = size[2],
                                         .stride_x = size[1] + size[3],
                                         .stride_y = size[2] + 2 * size[3],
                                         .out_in = i % 2,
                                         .type = types[kind],
                                         .training = true};
            had = check_shape(&shape, backends[kind]);
        }
        if (!had) printf("not on this chip: %s\n", backends[kind]->name);
    }
}

/* What linear_open chooses, and without a backward pass. */
static void inference(void) {
    for (int type = 0; type < 4; type++) {
        struct linear_shape shape = {.rows = 6,
                                     .in = 70,
                                     .out = 90,
                                     .stride_x = 70,
                                     .stride_y = 90,
                                     .out_in = type % 2,
                                     .type = type < 2 ? COMPUTE_F32 : COMPUTE_BF16};
        struct linear *linear = NULL;
        CHECK_INT(linear_open(&linear, &shape), STATUS_OK);
        bool packed = shape.type == COMPUTE_BF16 && linear_bf16_is_fast();
        CHECK_TEXT(linear->backend->name, packed ? "packed" : "sgemm");
        CHECK(linear_bytes(linear) > 0);
        struct layer layer = layer_make(&shape);
        linear_load(linear, layer.weights);
        check_forward(linear, &layer, 6, true);
        check_forward(linear, &layer, 1, false);
        /* A new load counts, and nothing of the old weights. */
        for (int64_t i = 0; i < layer.weights_count; i++)
            layer.weights[i] = uniform();
        linear_load(linear, layer.weights);
        check_forward(linear, &layer, 6, true);
        layer_free(&layer);
        linear_close(linear);
    }
    linear_close(NULL);
}

/* Two batches in turn, backward for both afterwards: what is held is of the second alone. Then a
 * pass whose input's gradient comes last, and one after it at the same addresses. */
static void held_operands(void) {
    for (int kind = 0; kind < KINDS; kind++) {
        struct linear_shape shape = {.rows = 20,
                                     .in = 40,
                                     .out = 50,
                                     .stride_x = 41,
                                     .stride_y = 50,
                                     .type = types[kind],
                                     .training = true};
        struct linear *linear = NULL;
        enum status status = linear_open_backend(&linear, &shape, backends[kind]);
        if (status == STATUS_UNSUPPORTED) continue;
        CHECK_INT(status, STATUS_OK);
        struct layer first = layer_make(&shape);
        struct layer second = layer_make(&shape);
        memcpy(second.weights, first.weights, (size_t)first.weights_count * sizeof(float));
        linear_load(linear, first.weights);
        check_forward(linear, &first, 20, true);
        check_forward(linear, &second, 20, true);
        check_weights(linear, &first, 20, false, true);
        check_weights(linear, &second, 20, true, true);
        check_input(linear, &first, 20, false);
        check_weights(linear, &first, 11, false, true);
        check_input(linear, &first, 20, false);
        check_forward(linear, &first, 20, true);
        for (int64_t i = 0; i < first.y_count; i++)
            first.dy[i] = uniform();
        check_weights(linear, &first, 20, false, true);
        layer_free(&first);
        layer_free(&second);
        linear_close(linear);
    }
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void rounding(void) {
    const uint32_t cases[][2] = {
        {0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, /* half way: to the even one below */
        {0x3f818000, 0x3f82},                       /* and above */
        {0x3f808001, 0x3f81}, {0x3f807fff, 0x3f80}, {0xbf818000, 0xbf82},
        {0x00000000, 0x0000}, {0x80000000, 0x8000}, {0x7f800000, 0x7f80}, /* infinity */
        {0x7f7fffff, 0x7f80},                                             /* largest, to infinity */
        {0x00000001, 0x0000}, {0x00018000, 0x0002}, {0x7fc00000, 0x7fc0}, /* a quiet NaN */
        {0x7f800001, 0x7fc0}, {0xffffffff, 0xffff}};
    enum { COUNT = sizeof cases / sizeof cases[0] };
    /* Each case at each place, of a vector and of the rest. */
    for (int64_t length = 1; length <= 40; length++) {
        float from[80];
        float to_f32[40];
        uint16_t to[40];
        for (int64_t i = 0; i < length; i++)
            from[2 * i] = from_bits(cases[(size_t)(i + length) % COUNT][0]);
        linear_to_bf16(from, 2, to, length, 1);
        linear_round_bf16(from, 2, to_f32, length, 1);
        for (int64_t i = 0; i < length; i++)
            CHECK_INT(to[i], cases[(size_t)(i + length) % COUNT][1]);
        for (int64_t i = 0; i < length; i++)
            from[i] = from_bits(cases[(size_t)(i + length) % COUNT][0]);
        linear_to_bf16(from, length, to, 1, length);
        linear_round_bf16(from, length, to_f32, 1, length);
        for (int64_t i = 0; i < length; i++) {
            CHECK_INT(to[i], cases[(size_t)(i + length) % COUNT][1]);
            CHECK_INT(bits_of(to_f32[i]), (int64_t)to[i] << 16);
        }
    }
}

/* Each value of the packed matrix, by the formula of the layout; zeros where there is no value. */
static void check_packed(const struct packed_matrix *packed, int64_t padded, const float *from,
                         int64_t inner_stride, int64_t cols_stride) {
    int64_t inner_tiles = (packed->inner + PACK_INNER - 1) / PACK_INNER;
    for (int64_t at = 0; at < padded; at++) {
        int64_t tile = at / (PACK_INNER * PACK_COLS);
        int64_t place = at % (PACK_INNER * PACK_COLS);
        int64_t inner = tile % inner_tiles * PACK_INNER + place / (2 * PACK_COLS) * 2 + place % 2;
        int64_t col = tile / inner_tiles * PACK_COLS + place / 2 % PACK_COLS;
        bool real = inner < packed->inner && col < packed->cols;
        uint16_t expected = 0;
        if (real)
            linear_to_bf16(&from[inner * inner_stride + col * cols_stride], 1, &expected, 1, 1);
        CHECK_INT(packed->values[at], expected);
    }
}

static int64_t padded_size(int64_t inner, int64_t cols) {
    return (inner + PACK_INNER - 1) / PACK_INNER * PACK_INNER *
           ((cols + PACK_COLS - 1) / PACK_COLS * PACK_COLS);
}

static struct packed_matrix packed_make(int64_t inner, int64_t cols) {
    struct packed_matrix packed = {.inner = inner, .cols = cols};
    int64_t count = padded_size(inner, cols);
    packed.inner_step = PACK_INNER * PACK_COLS;
    packed.cols_step = (inner + PACK_INNER - 1) / PACK_INNER * packed.inner_step;
    packed.values = memory_zeroed((size_t)count, sizeof *packed.values);
    /* Filling has to be written. */
    memset(packed.values, 0xff, (size_t)count * sizeof *packed.values);
    return packed;
}

static void packing(void) {
    const int64_t sizes[][2] = {{1, 1},   {2, 64},  {32, 64},  {33, 65},  {64, 64},
                                {31, 63}, {96, 32}, {130, 70}, {300, 257}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t rows = sizes[i][0];
        int64_t cols = sizes[i][1];
        float *from = filled(rows * cols);
        struct packed_matrix down = packed_make(rows, cols);
        struct packed_matrix across = packed_make(cols, rows);
        linear_pack(from, &down, &across);
        check_packed(&down, padded_size(rows, cols), from, cols, 1);
        check_packed(&across, padded_size(cols, rows), from, 1, cols);
        free(from);
        free(down.values);
        free(across.values);
    }
}

/* The host has no such products, and must not make others instead. */
static void no_tf32(void) {
    struct linear *linear = NULL;
    const struct linear_shape shape = {
        .rows = 2, .in = 3, .out = 4, .stride_x = 3, .stride_y = 4, .type = COMPUTE_TF32};
    CHECK_INT(linear_open(&linear, &shape), STATUS_UNSUPPORTED);
    CHECK(linear == NULL);
}

int main(void) {
    TEST_RUN(rounding);
    TEST_RUN(no_tf32);
    for (int threads = 1; threads <= 2; threads++) {
        threads_set(threads);
        TEST_RUN(packing);
        TEST_RUN(shapes);
        TEST_RUN(inference);
        TEST_RUN(held_operands);
    }
    return 0;
}
