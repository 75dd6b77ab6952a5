/* device_array.h - arrays on a device with a host's copy and an expected content, for tests of
 * kernels. The test makes `stream` and calls one case after the other.
 */
#ifndef RUBATO_TESTS_DEVICE_ARRAY_H
#define RUBATO_TESTS_DEVICE_ARRAY_H

#include "tests/cuda_on_cpu/cuda_check.h"
#include "tests/test.h"

#include <cuda_runtime_api.h>

static cudaStream_t stream;

/* What arrays begin behind a multiple of 256 bytes, in values: 1 makes kernels load one by one. */
static int64_t misalignment;

/* `expected` is for the host's twin, which may start from the same. */
struct array {
    int64_t count;
    void *base;
    float *device, *host, *expected;
};

static inline void push(const struct array *array) {
    CHECK_CUDA(cudaMemcpyAsync(array->device, array->host, (size_t)array->count * sizeof(float),
                               cudaMemcpyHostToDevice, stream));
}

/* Values in [-size, size], other ones for each seed. */
static inline struct array make(int64_t count, uint32_t seed, float size) {
    struct array array = {count, NULL, NULL, NULL, NULL};
    size_t bytes = (size_t)count * sizeof(float);
    uint32_t state = seed * 2654435761U + 12345U;
    CHECK_CUDA(cudaMalloc(&array.base, bytes + (size_t)misalignment * sizeof(float)));
    array.device = (float *)array.base + misalignment;
    array.host = (float *)calloc(1, bytes);
    array.expected = (float *)calloc(1, bytes);
    CHECK(array.host && array.expected);
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525U + 1013904223U;
        array.host[i] = size * ((float)(state >> 8) / 8388608.0F - 1.0F);
        array.expected[i] = array.host[i];
    }
    push(&array);
    return array;
}

/* Room for an output: what the kernel does not write stays NaN. */
static inline struct array make_output(int64_t count) {
    struct array array = make(count, 1, 0.0F);
    CHECK_CUDA(cudaMemsetAsync(array.device, 0xFF, (size_t)count * sizeof(float), stream));
    return array;
}

/* `count` values over and over. */
static inline struct array make_of(const float *values, int64_t count, int64_t times) {
    struct array array = make(count * times, 1, 0.0F);
    for (int64_t i = 0; i < array.count; i++)
        array.host[i] = array.expected[i] = values[i % count];
    push(&array);
    return array;
}

static inline void drop(struct array *array) {
    CHECK_CUDA(cudaFree(array->base));
    free(array->host);
    free(array->expected);
}

static inline void fetch(struct array *array) {
    CHECK_CUDA(cudaMemcpyAsync(array->host, array->device, (size_t)array->count * sizeof(float),
                               cudaMemcpyDeviceToHost, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
}

static inline int both_nan(float a, float b) {
    return isnan(a) && isnan(b);
}

/* Within tolerance * (1 + |expected|), infinities equal, NaN only where it is expected; frees the
 * array. */
static inline void check_near(const char *name, struct array array, double tolerance) {
    fetch(&array);
    for (int64_t i = 0; i < array.count; i++) {
        double expected = (double)array.expected[i], actual = (double)array.host[i];
        if (fabs(actual - expected) <= tolerance * (1.0 + fabs(expected)) && isfinite(expected))
            continue;
        if (both_nan(array.host[i], array.expected[i])) continue;
        if (isinf(expected) && isinf(actual) && (expected > 0.0) == (actual > 0.0)) continue;
        fprintf(stderr, "%s [%lld] is %.9g, expected %.9g\n", name, (long long)i, actual, expected);
        exit(1);
    }
    drop(&array);
}

/* Bit for bit, but any NaN is as good as another; frees the array. */
static inline void check_same(const char *name, struct array array) {
    fetch(&array);
    for (int64_t i = 0; i < array.count; i++) {
        if (memcmp(&array.host[i], &array.expected[i], sizeof(float)) == 0) continue;
        if (both_nan(array.host[i], array.expected[i])) continue;
        fprintf(stderr, "%s [%lld] is %a, expected %a\n", name, (long long)i, (double)array.host[i],
                (double)array.expected[i]);
        exit(1);
    }
    drop(&array);
}

/* The start of a test's main(): skips where there is no device. */
static inline void device_tests_begin(void) {
    const char *order = getenv("CUDA_ON_CPU_ORDER"), *seed = getenv("CUDA_ON_CPU_SEED");
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) TEST_SKIP("no CUDA device");
    printf("order %s, seed %s\n", order ? order : "-", seed ? seed : "-");
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
}

static inline void device_tests_end(void) {
    CHECK_CUDA(cudaDeviceSynchronize());
    CHECK_CUDA(cudaStreamDestroy(stream));
}

#endif
