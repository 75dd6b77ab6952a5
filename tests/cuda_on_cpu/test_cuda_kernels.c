/* test_cuda_kernels.c - the CUDA kernels against their plain twins on the host, at sizes that are
 * no multiple of a warp, a block or a piece of rows: norms and activations within a few f32
 * roundings, AdamW to the bit.
 *
 * The same program runs on the stand-in and on a GPU; where there is no device it skips.
 */
#include "cuda_check.h"
#include "kernels/activation.h"
#include "kernels/cuda/activation_cuda.h"
#include "kernels/cuda/norm_cuda.h"
#include "kernels/cuda/optimizer_cuda.h"
#include "kernels/norm.h"
#include "kernels/optimizer.h"
#include "kernels/rms_norm.h"
#include "tests/test.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>

static cudaStream_t stream;

/* An array on both sides; `expected` is for the host's twin, which may start from the same. */
struct array {
    int64_t count;
    float *device, *host, *expected;
};

/* Values in [-size, size], other ones for each seed. */
static struct array make(int64_t count, uint32_t seed, float size) {
    struct array array = {count, NULL, NULL, NULL};
    size_t bytes = (size_t)count * sizeof(float);
    uint32_t state = seed * 2654435761U + 12345U;
    CHECK_CUDA(cudaMalloc((void **)&array.device, bytes));
    array.host = malloc(bytes);
    array.expected = malloc(bytes);
    CHECK(array.host && array.expected);
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525U + 1013904223U;
        array.host[i] = size * ((float)(state >> 8) / 8388608.0F - 1.0F);
        array.expected[i] = array.host[i];
    }
    CHECK_CUDA(cudaMemcpyAsync(array.device, array.host, bytes, cudaMemcpyHostToDevice, stream));
    return array;
}

/* Room for an output: what the kernel does not write stays NaN. */
static struct array make_output(int64_t count) {
    struct array array = make(count, 1, 0.0F);
    CHECK_CUDA(cudaMemsetAsync(array.device, 0xFF, (size_t)count * sizeof(float), stream));
    return array;
}

static void drop(struct array *array) {
    CHECK_CUDA(cudaFree(array->device));
    free(array->host);
    free(array->expected);
}

static void fetch(struct array *array) {
    CHECK_CUDA(cudaMemcpyAsync(array->host, array->device, (size_t)array->count * sizeof(float),
                               cudaMemcpyDeviceToHost, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
}

/* Within tolerance * (1 + |expected|); frees the array. */
static void check_near(const char *name, struct array array, double tolerance) {
    fetch(&array);
    for (int64_t i = 0; i < array.count; i++) {
        double expected = (double)array.expected[i], actual = (double)array.host[i];
        if (fabs(actual - expected) <= tolerance * (1.0 + fabs(expected))) continue;
        fprintf(stderr, "%s [%lld] is %.9g, expected %.9g\n", name, (long long)i, actual, expected);
        exit(1);
    }
    drop(&array);
}

static void check_same(const char *name, struct array array) {
    fetch(&array);
    if (memcmp(array.host, array.expected, (size_t)array.count * sizeof(float)) != 0)
        fprintf(stderr, "%s: other bits than the host's\n", name);
    CHECK(memcmp(array.host, array.expected, (size_t)array.count * sizeof(float)) == 0);
    drop(&array);
}

struct shape {
    int64_t R, C;
};
static const struct shape shapes[] = {{1, 1}, {3, 5}, {2, 257}, {65, 33}, {131, 64}, {5, 1023}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static const float eps = 1e-5F;

static void check_norm(struct shape shape, bool centred) {
    const int64_t R = shape.R, C = shape.C;
    const struct norm_cuda norm = {R, C, eps, stream};
    struct array x = make(R * C, 1, 3.0F), gain = make(C, 2, 1.5F), bias = make(C, 3, 1.0F);
    struct array y = make_output(R * C), mean = make_output(R), rstd = make_output(R);
    struct array dy = make(R * C, 4, 1.0F), dx = make(R * C, 5, 1.0F);
    struct array dgain = make(C, 6, 1.0F), dbias = make(C, 7, 1.0F);
    struct array scratch = make_output(norm_cuda_scratch(R, C));
    struct norm_cuda_saved saved = {x.device, centred ? mean.device : NULL, rstd.device,
                                    gain.device};
    struct norm_cuda_gradients gradients = {dx.device, dgain.device, centred ? dbias.device : NULL,
                                            scratch.device};
    if (centred) {
        struct norm_saved had = {x.host, mean.expected, rstd.expected, gain.host};
        CHECK_INT(norm_cuda_forward(&norm, x.device, gain.device, bias.device, y.device,
                                    mean.device, rstd.device),
                  0);
        norm_forward_ref(x.host, gain.host, bias.host, y.expected, mean.expected, rstd.expected, R,
                         C, eps);
        norm_backward_add_ref(&had, dy.host, dx.expected, dgain.expected, dbias.expected, R, C);
    } else {
        struct rms_norm_saved had = {x.host, rstd.expected, gain.host};
        CHECK_INT(norm_cuda_rms_forward(&norm, x.device, gain.device, y.device, rstd.device), 0);
        rms_norm_forward_ref(x.host, gain.host, y.expected, rstd.expected, R, C, eps);
        rms_norm_backward_add_ref(&had, dy.host, dx.expected, dgain.expected, R, C);
    }
    CHECK_INT(norm_cuda_backward_add(&norm, &saved, dy.device, &gradients), 0);
    // One channel: the variance is 0 and rstd 316, so roundings weigh more.
    const double tolerance = C == 1 ? 1e-3 : 2e-5;
    check_near("y", y, tolerance);
    check_near("rstd", rstd, tolerance);
    check_near("dx", dx, tolerance);
    check_near("dgain", dgain, tolerance);
    check_near("dbias", dbias, tolerance); /* untouched where there is none */
    if (centred)
        check_near("mean", mean, tolerance);
    else
        drop(&mean);
    struct array *inputs[] = {&x, &gain, &bias, &dy, &scratch};
    for (int i = 0; i < 5; i++)
        drop(inputs[i]);
}

static void test_layer_norm(void) {
    for (int i = 0; i < SHAPES; i++)
        check_norm(shapes[i], true);
}

static void test_rms_norm(void) {
    for (int i = 0; i < SHAPES; i++)
        check_norm(shapes[i], false);
}

static void test_gelu_bias(void) {
    for (int i = 0; i < SHAPES; i++) {
        const int64_t R = shapes[i].R, F = shapes[i].C;
        struct array x = make(R * F, 8, 6.0F), bias = make(F, 9, 1.0F), y = make_output(R * F);
        struct array dy = make(R * F, 10, 1.0F); /* dx in its place */
        CHECK_INT(activation_cuda_gelu_bias_forward(x.device, bias.device, y.device, R, F, stream),
                  0);
        CHECK_INT(activation_cuda_gelu_bias_backward(x.device, bias.device, dy.device, dy.device, R,
                                                     F, stream),
                  0);
        gelu_bias_forward_ref(x.host, bias.host, y.expected, R, F);
        gelu_bias_backward_ref(x.host, bias.host, dy.host, dy.expected, R, F);
        check_near("gelu", y, 2e-6);
        check_near("gelu's gradient", dy, 5e-6);
        drop(&x);
        drop(&bias);
    }
}

static void test_adamw(void) {
    const int64_t sizes[] = {1, 31, 256, 1000, 4099};
    for (int i = 0; i < 5; i++) {
        const int64_t N = sizes[i];
        struct array weights = make(N, 11, 1.0F), grad = make(N, 12, 10.0F);
        struct array m = make(N, 13, 0.0F), v = make(N, 14, 0.0F);
        for (int64_t step = 1; step <= 3; step++) {
            const struct adamw adamw = {3e-4F, 0.9F, 0.95F, 1e-8F, 0.1F, step, 0.25F};
            CHECK_INT(optimizer_cuda_adamw(&adamw, weights.device, m.device, v.device, grad.device,
                                           N, stream),
                      0);
            optimizer_adamw_ref(&adamw, weights.expected, m.expected, v.expected, grad.host, N);
        }
        check_same("weights", weights);
        check_same("m", m);
        check_same("v", v);
        drop(&grad);
    }
}

int main(void) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) TEST_SKIP("no CUDA device");
    printf("order %s, seed %s\n", getenv("CUDA_ON_CPU_ORDER") ? getenv("CUDA_ON_CPU_ORDER") : "-",
           getenv("CUDA_ON_CPU_SEED") ? getenv("CUDA_ON_CPU_SEED") : "-");
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    TEST_RUN(test_layer_norm);
    TEST_RUN(test_rms_norm);
    TEST_RUN(test_gelu_bias);
    TEST_RUN(test_adamw);
    CHECK_CUDA(cudaDeviceSynchronize());
    CHECK_CUDA(cudaStreamDestroy(stream));
    return 0;
}
