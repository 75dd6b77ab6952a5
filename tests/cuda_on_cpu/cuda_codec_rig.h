/* cuda_codec_rig.h - the first device, memory on both sides of it, and values that codecs get
 * wrong, for the tests of codecs on a device, each of which includes it once.
 */
#ifndef RUBATO_TESTS_CUDA_CODEC_RIG_H
#define RUBATO_TESTS_CUDA_CODEC_RIG_H

#include "kernels/cuda/library_cuda.h"
#include "kernels/device.h"
#include "tests/codec_rig.h"

#include <stdbool.h>

static struct device *device;
static const uint64_t seed = 0x1234567890ULL; /* codec_rig's */

/* False: there is none. */
static bool open_device(void) {
    const struct library_abi abi = library_abi();
    const struct device_backend *backend = rubato_cuda_library(&abi, log_write);
    CHECK(backend != NULL);
    if (backend->count() == 0) return false;
    CHECK_INT(backend->open(&device, 0), STATUS_OK);
    return true;
}

/* Memory on both sides of the device. */
struct both {
    void *device, *pinned;
    size_t bytes;
};

static struct both take(size_t bytes) {
    struct both both = {device->backend->take(device, bytes + 1),
                        device->backend->take_pinned(device, bytes + 1), bytes};
    CHECK(both.device != NULL && both.pinned != NULL);
    memset(both.pinned, 0, bytes + 1);
    return both;
}

static void give(struct both *both) {
    device->backend->give(device, both->device);
    device->backend->give_pinned(device, both->pinned);
}

static void send(const struct both *both) {
    device->backend->copy(device, DEVICE_CODEC, both->device, both->pinned, both->bytes, DEVICE_TO);
}

static void fetch(const struct both *both) {
    device->backend->copy(device, DEVICE_CODEC, both->pinned, both->device, both->bytes,
                          DEVICE_FROM);
}

static void wait(void) {
    CHECK_INT(device->backend->wait(device, DEVICE_CODEC), STATUS_OK);
}

/* ---- what is encoded: random values, rows of zeros, denormal numbers, NaN, values whose squares
 * f32 does not hold, zeros and -0, infinity, equals */

enum kind { RANDOM, ZERO_ROWS, TINY, NOT_NUMBERS, HUGE_ONE, ZEROS, INFINITE, MIXED, KINDS };

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void zero_some_rows(float *values, size_t rows, size_t cols) {
    for (size_t row = 0; row < rows; row++) {
        if (row % 3 == 1) continue;
        for (size_t col = 0; col < cols; col++)
            values[row * cols + col] = col % 2 == 0 ? 0.0F : -0.0F;
    }
}

static float odd_value(enum kind kind, size_t i, size_t count, const float *values) {
    switch (kind) {
    case ZEROS:
        return i % 5 == 2 ? -0.0F : 0.0F;
    case TINY:
        return from_bits((uint32_t)(i * 2654435761U) & 0x800fffffU);
    case HUGE_ONE:
        if (i == count / 2) return -3.2e38F;
        return i % 130 == 7 ? 1.5e30F : values[i];
    case MIXED:
        if (i % 16 == 0) return values[i / 2]; /* equals, for topk */
        return i % 16 == 5 ? -0.0F : values[i];
    default:
        return values[i];
    }
}

static float special_value(enum kind kind, size_t i, size_t count, float usual) {
    if (kind == NOT_NUMBERS && i % 97 == 3) return from_bits(0xffc12345U);
    if (kind == NOT_NUMBERS && i % 97 == 7) return from_bits(0x7fa54321U);
    if (kind == INFINITE && i + 1 == count) return NAN;
    if (kind == INFINITE && i % 301 == 1) return i % 2 == 0 ? INFINITY : -INFINITY;
    return usual;
}

static void make_kind(enum kind kind, size_t rows, size_t cols, float *values) {
    size_t count = rows * cols;
    float *usual = codec_rig_values((uint64_t)kind, rows, cols);
    for (size_t i = 0; i < count; i++)
        values[i] = special_value(kind, i, count, odd_value(kind, i, count, usual));
    free(usual);
    if (kind == ZERO_ROWS || kind == MIXED) zero_some_rows(values, rows, cols);
}

#endif
