/* test_cuda_linear.c - the products of a layer with its weights on a CUDA device, by the library's
 * table of operations, against the oracle of kernels/linear.h (double sums of operands rounded by
 * another formula).
 *
 * Proved: forward and both gradients within the error of f32 sums, in f32, bf16 and TF32, of sizes
 * that are no multiple of a warp, a block or bf16's alignment, strides, both orientations of the
 * weights, with and without bias and add, fewer rows than opened and none, more rows than a piece
 * of the bias's gradient has; what lies between the rows is not touched; the same call gives the
 * same bits. That rounded operands are used again is invisible, also for other values elsewhere
 * and for new ones at the same address in the next pass. The rounding, bit by bit, by products
 * with the unit matrix; that TF32 reads 10 bits of a mantissa and no more. The same program runs on
 * a GPU; where there is no device it skips.
 */
#include "base/log.h"
#include "base/memory.h"
#include "kernels/compute.h"
#include "kernels/cuda/library_cuda.h"
#include "tests/test.h"

static const struct device_backend *cuda;
static const struct compute_ops *compute;
static struct device *device;

static uint32_t state = 12345;

static float uniform(void) {
    state = state * 1664525U + 1013904223U;
    return (float)(state >> 8) / (float)(1 << 23) - 1.0F;
}

/* ---- arrays on both sides */

struct array {
    int64_t count;
    float *host, *device;
};

static void upload(struct array *array) {
    cuda->copy(device, DEVICE_COMPUTE, array->device, array->host,
               (size_t)array->count * sizeof(float), DEVICE_TO);
}

/* Other values, at the same addresses. */
static void renew(struct array *array) {
    for (int64_t i = 0; i < array->count; i++)
        array->host[i] = uniform();
    upload(array);
}

static struct array make(int64_t count) {
    struct array array = {count, memory_zeroed((size_t)count, sizeof(float)), NULL};
    array.device = cuda->take(device, (size_t)count * sizeof(float));
    CHECK(array.device);
    renew(&array);
    return array;
}

static void drop(struct array *array) {
    cuda->give(device, array->device);
    free(array->host);
}

static float *fetch(const struct array *array) {
    size_t bytes = (size_t)array->count * sizeof(float);
    float *values = memory_zeroed((size_t)array->count, sizeof(float));
    cuda->copy(device, DEVICE_COMPUTE, values, array->device, bytes, DEVICE_FROM);
    CHECK_INT(cuda->wait(device, DEVICE_COMPUTE), STATUS_OK);
    return values;
}

/* How far a product of values below 1 with TF32 operands may be from the oracle's, which a GPU's
 * truncation or f32 instead is. */
#define TF32_ERROR 0x1p-9

/* [rows, stride] with `terms` products of values below 1 in each sum: an error of f32 sums, and
 * nothing at all outside the columns. The array is as it was before, on the device too. */
static void compare(struct array *array, const float *expected, int64_t cols, int64_t stride,
                    int64_t terms, enum compute_type type) {
    float *actual = fetch(array);
    const double tolerance =
        2e-7 * (double)(terms + 4) + (type == COMPUTE_TF32 ? TF32_ERROR : 0) * (double)terms;
    for (int64_t i = 0; i < array->count; i++) {
        if (i % stride < cols)
            CHECK_NEAR(actual[i], expected[i], tolerance);
        else
            CHECK(actual[i] == array->host[i]);
    }
    free(actual);
    upload(array);
}

static float *copied(const struct array *array) {
    float *copy = memory_zeroed((size_t)array->count, sizeof *copy);
    memcpy(copy, array->host, (size_t)array->count * sizeof *copy);
    return copy;
}

/* ---- a layer */

struct layer {
    struct linear_shape shape;
    struct linear *linear;
    struct array weights, x, bias, y, dy, dx, dweights, dbias;
};

static struct layer layer_make(const struct linear_shape *shape) {
    struct layer layer = {.shape = *shape};
    layer.weights = make(shape->in * shape->out);
    layer.x = make(shape->rows * shape->stride_x);
    layer.bias = make(shape->out);
    layer.y = make(shape->rows * shape->stride_y);
    layer.dy = make(shape->rows * shape->stride_y);
    layer.dx = make(shape->rows * shape->stride_x);
    layer.dweights = make(shape->in * shape->out);
    layer.dbias = make(shape->out);
    return layer;
}

static struct layer layer_open(const struct linear_shape *shape) {
    struct layer layer = layer_make(shape);
    CHECK_INT(compute->linear_open(device, &layer.linear, shape), STATUS_OK);
    compute->linear_load(layer.linear, layer.weights.device);
    return layer;
}

static void layer_drop(struct layer *layer) {
    struct array *all[] = {&layer->weights, &layer->x,  &layer->bias,     &layer->y,
                           &layer->dy,      &layer->dx, &layer->dweights, &layer->dbias};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        drop(all[i]);
    compute->linear_close(layer->linear);
}

static void check_forward(struct layer *layer, int64_t rows, bool with_bias) {
    const struct linear_shape *shape = &layer->shape;
    float *expected = copied(&layer->y);
    linear_forward_ref(shape, layer->weights.host, layer->x.host,
                       with_bias ? layer->bias.host : NULL, expected, rows);
    compute->linear_forward(layer->linear, layer->x.device, with_bias ? layer->bias.device : NULL,
                            layer->y.device, rows);
    compare(&layer->y, expected, shape->out, shape->stride_y, shape->in, shape->type);
    free(expected);
}

static void check_input(struct layer *layer, int64_t rows, bool add) {
    const struct linear_shape *shape = &layer->shape;
    float *expected = copied(&layer->dx);
    linear_backward_input_ref(shape, layer->weights.host, layer->dy.host, expected, add, rows);
    compute->linear_backward_input(layer->linear, layer->dy.device, layer->dx.device, add, rows);
    compare(&layer->dx, expected, shape->in, shape->stride_x, shape->out, shape->type);
    free(expected);
}

/* Twice: the first call may use operands that are held, the second has to round them. */
static void check_weights(struct layer *layer, int64_t rows, bool add, bool with_bias) {
    const struct linear_shape *shape = &layer->shape;
    float *expected = copied(&layer->dweights);
    float *expected_bias = copied(&layer->dbias);
    float *results[2];
    linear_backward_weights_ref(shape, layer->x.host, layer->dy.host, expected,
                                with_bias ? expected_bias : NULL, add, rows);
    for (int i = 0; i < 2; i++) {
        compute->linear_backward_weights(layer->linear, layer->x.device, layer->dy.device,
                                         layer->dweights.device,
                                         with_bias ? layer->dbias.device : NULL, add, rows);
        results[i] = fetch(&layer->dweights);
        compare(&layer->dweights, expected, layer->dweights.count, layer->dweights.count, rows,
                shape->type);
        compare(&layer->dbias, expected_bias, shape->out, shape->out, rows, COMPUTE_F32);
    }
    CHECK(memcmp(results[0], results[1], (size_t)layer->dweights.count * sizeof(float)) == 0);
    free(expected);
    free(expected_bias);
    free(results[0]);
    free(results[1]);
}

static void check_rows(struct layer *layer, int64_t rows, bool flag) {
    check_forward(layer, rows, flag);
    check_input(layer, rows, flag);
    check_weights(layer, rows, flag, true);
}

/* ---- tests */

static void shapes(void) {
    /* rows, in, out, what strides have more */
    static const enum compute_type types[] = {COMPUTE_F32, COMPUTE_BF16, COMPUTE_TF32};
    static const int64_t sizes[][4] = {{1, 1, 1, 0},   {9, 33, 65, 1}, {20, 12, 24, 4},
                                       {70, 5, 17, 3}, {129, 8, 3, 0}, {3, 7, 300, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] * 6; i++) {
        const int64_t *size = sizes[i / 6];
        const struct linear_shape shape = {.rows = size[0],
                                           .in = size[1],
                                           .out = size[2],
                                           .stride_x = size[1] + size[3],
                                           .stride_y = size[2] + 2 * size[3],
                                           .out_in = i % 2,
                                           .type = types[i / 2 % 3],
                                           .training = true};
        struct layer layer = layer_open(&shape);
        check_rows(&layer, shape.rows, true);
        check_rows(&layer, (shape.rows + 1) / 2, false);
        check_forward(&layer, 0, true);
        check_input(&layer, 0, false);
        check_weights(&layer, 0, true, true);
        check_weights(&layer, 0, false, true);
        layer_drop(&layer);
    }
}

/* Without a backward pass; a new load counts, and nothing of the old weights. */
static void inference(void) {
    for (int i = 0; i < 4; i++) {
        const struct linear_shape shape = {.rows = 6,
                                           .in = 20,
                                           .out = 30,
                                           .stride_x = 20,
                                           .stride_y = 30,
                                           .out_in = i % 2,
                                           .type = i < 2 ? COMPUTE_F32 : COMPUTE_BF16};
        struct layer layer = layer_open(&shape);
        check_forward(&layer, 6, true);
        check_forward(&layer, 1, false);
        renew(&layer.weights);
        compute->linear_load(layer.linear, layer.weights.device);
        check_forward(&layer, 6, true);
        layer_drop(&layer);
    }
    compute->linear_close(NULL);
}

/* Two batches in turn, backward for both afterwards: what is held is of the second alone. Then the
 * input's gradient last, and new values at the same addresses in the next pass. */
static void held_operands(void) {
    const struct linear_shape shape = {.rows = 20,
                                       .in = 17,
                                       .out = 25,
                                       .stride_x = 18,
                                       .stride_y = 25,
                                       .type = COMPUTE_BF16,
                                       .training = true};
    struct layer first = layer_open(&shape);
    struct layer second = layer_make(&shape);
    second.linear = first.linear;
    memcpy(second.weights.host, first.weights.host, (size_t)first.weights.count * sizeof(float));
    check_forward(&first, 20, true);
    check_forward(&second, 20, true);
    check_weights(&first, 20, false, true);
    check_weights(&second, 20, true, false);
    check_input(&first, 20, false);
    check_weights(&first, 11, false, true);
    check_input(&first, 20, false);
    renew(&first.x);
    check_forward(&first, 20, true);
    renew(&first.dy);
    check_weights(&first, 20, false, true);
    renew(&first.x);
    check_weights(&first, 20, false, true); /* what was held was used: x is rounded anew */
    renew(&first.x);
    check_forward(&first, 11, true);
    check_weights(&first, 20, false, true); /* more rows than are held */
    second.linear = NULL;
    layer_drop(&second);
    layer_drop(&first);
}

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* x of one column times the weight 1 is x as it is rounded. Also 4 values at a time. */
static void rounding(void) {
    static const uint32_t cases[][2] = {
        {0x3f800000, 0x3f800000}, {0x3f808000, 0x3f800000}, /* half way: to the even one below */
        {0x3f818000, 0x3f820000},                           /* and above */
        {0x3f808001, 0x3f810000}, {0x3f807fff, 0x3f800000}, {0xbf818000, 0xbf820000},
        {0x00000000, 0x00000000}, {0x7f800000, 0x7f800000}, /* infinity */
        {0x7f7fffff, 0x7f800000},                           /* the largest, to infinity */
        {0x7fc00000, 0x7fc00000}, {0x7f800001, 0x7fc00000}, /* NaNs stay NaNs */
        {0xffffffff, 0xffff0000}};
    enum { CASES = sizeof cases / sizeof cases[0] };
    const struct linear_shape shape = {
        .rows = CASES, .in = 1, .out = 1, .stride_x = 1, .stride_y = 1, .type = COMPUTE_BF16};
    struct layer layer = layer_open(&shape);
    layer.weights.host[0] = 1.0F;
    for (int i = 0; i < CASES; i++)
        layer.x.host[i] = from_bits(cases[i][0]);
    upload(&layer.weights);
    upload(&layer.x);
    compute->linear_load(layer.linear, layer.weights.device);
    compute->linear_forward(layer.linear, layer.x.device, NULL, layer.y.device, CASES);
    float *actual = fetch(&layer.y);
    for (int i = 0; i < CASES; i++) {
        const float expected = from_bits(cases[i][1]);
        CHECK(isnan(expected) ? isnan(actual[i]) : actual[i] == expected);
    }
    free(actual);
    layer_drop(&layer);
}

/* The sum of 64 equal products is exact in f32, and TF32 has not all bits of x: what differs is
 * lost by rounding or by truncation. The weights are f32 no more than x is. */
static void tf32(void) {
    enum { SIZE = 64 };
    static const struct {
        float x, weight, least, most;
    } cases[] = {{1 + 0x1p-10F, 1, 1 + 0x1p-10F, 1 + 0x1p-10F}, /* TF32 has it */
                 {1 + 0x1p-12F, 1, 1, 1},
                 {1, 1 + 0x1p-12F, 1, 1},
                 {1 + 0x1p-11F, 1, 1, 1 + 0x1p-10F}}; /* half way */
    const struct linear_shape shape = {.rows = SIZE,
                                       .in = SIZE,
                                       .out = SIZE,
                                       .stride_x = SIZE,
                                       .stride_y = SIZE,
                                       .type = COMPUTE_TF32};
    struct layer layer = layer_open(&shape);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int64_t k = 0; k < layer.x.count; k++) {
            layer.x.host[k] = cases[i].x;
            layer.weights.host[k] = cases[i].weight;
        }
        upload(&layer.x);
        upload(&layer.weights);
        compute->linear_load(layer.linear, layer.weights.device);
        compute->linear_forward(layer.linear, layer.x.device, NULL, layer.y.device, SIZE);
        float *actual = fetch(&layer.y);
        for (int64_t k = 0; k < layer.y.count; k++)
            CHECK(actual[k] >= SIZE * cases[i].least && actual[k] <= SIZE * cases[i].most);
        free(actual);
    }
    layer_drop(&layer);
}

static void memory_given_back(void) {
    struct device_memory before, after;
    const struct linear_shape shape = {.rows = 40,
                                       .in = 30,
                                       .out = 20,
                                       .stride_x = 30,
                                       .stride_y = 20,
                                       .type = COMPUTE_BF16,
                                       .training = true};
    struct linear_shape large = shape;
    struct linear *linear = NULL;
    cuda->memory(device, &before);
    CHECK_INT(compute->linear_open(device, &linear, &shape), STATUS_OK);
    compute->linear_close(linear);
    large.in = large.stride_x = large.out = large.stride_y = 1 << 24; /* weights of 512 TB */
    CHECK_INT(compute->linear_open(device, &linear, &large), STATUS_MEMORY);
    cuda->memory(device, &after);
    CHECK_INT(after.used, before.used);
}

int main(void) {
    const struct library_abi abi = library_abi();
    cuda = rubato_cuda_library(&abi, log_write);
    compute = cuda->compute;
    if (cuda->count() == 0) TEST_SKIP("no CUDA device");
    CHECK_INT(cuda->open(&device, 0), STATUS_OK);
    TEST_RUN(rounding);
    TEST_RUN(tf32);
    TEST_RUN(shapes);
    TEST_RUN(inference);
    TEST_RUN(held_operands);
    TEST_RUN(memory_given_back);
    cuda->close(device);
    return 0;
}
