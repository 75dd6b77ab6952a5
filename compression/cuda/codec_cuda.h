/* codec_cuda.h - a block's codec on a CUDA device: the bytes and sums of compression/encoder.h and
 * the values of compression/decoder.h, to the bit, without the host seeing a value. Needs no header
 * of CUDA.
 *
 * The library of the device exports its table through struct device_backend (kernels/device.h).
 * Which codec a step has, its density and where residuals lie is the caller's; a run says all of
 * it. Calls queue their work on DEVICE_CODEC, in order, and return nothing: errors are the
 * device's. None allocates, none waits.
 * No worker calls decode() or follow() so far: weights come in bf16 or become f32 on the host
 * (docs/DEVICES.md, "Where weights are decoded"). Tests and bench_kernels do.
 * What is left to the host: whether a payload that has come is sound; +zstd, which packs what was
 * encoded (encoder_device.h); and the factor that powersgd:R,shared does not send, which answers
 * move there.
 * Invariant: payload, residual, factor and sums are the host's, but for two things. What NaNs
 * decode to is some NaN, and those of a factor that stays are some, too. residual_square_sum of
 * topk, randk and powersgd, where rows are all zero, is added in another order: a metric alone.
 */
#ifndef RUBATO_COMPRESSION_CUDA_CODEC_CUDA_H
#define RUBATO_COMPRESSION_CUDA_CODEC_CUDA_H

#include "proto/codec_spec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct codec_cuda; /* memory on a device for one call after the other */
struct device;

/* One encoding; as in struct scheme_run and encoder_encode(). */
struct codec_cuda_run {
    const struct codec_spec *spec;
    uint8_t codec; /* enum codec_id: the spec's, or what the schedule starts with */
    size_t rows, cols;
    float density; /* topk, randk: of this step */
    uint64_t seed, step, block;
    uint32_t lane;
    float scale;
    float beta;   /* of LoCo's average; else 0 */
    bool on_rows; /* powersgd, shared: as encoder_share() said */
};

struct codec_cuda_places {
    const float *values; /* [rows * cols] f32 device */
    uint8_t *residual;   /* codec_residual_bytes() on the device, aligned to 4; NULL: no feedback */
    /* powersgd: [rank, cols] that stays from step to step, zeros at first, then as much of
     * powersgd_noise(); on the device. Else NULL. */
    float *factor;
    const float *shared; /* powersgd, shared: encoder_share()'s factor, pinned; else NULL */
    uint8_t *wire;       /* [bound()], pinned, aligned to 4, or on the device, aligned to 8 */
    bool wire_on_device;
};

/* A payload of so many bytes at most has no checksum, but is in the result. */
enum { CODEC_CUDA_SHORT = 240 };

/* Pinned; there when an event behind the call on DEVICE_CODEC is done. As struct encoder_result. */
struct codec_cuda_result {
    double square_sum, gradient_square_sum, residual_square_sum;
    uint64_t bytes;
    uint32_t codec; /* enum codec_id: the run's or CODEC_FILL */
    /* Of a payload on the device: base/checksum.h's XXH3, or the payload itself. */
    uint64_t xxh3;
    uint8_t short_payload[CODEC_CUDA_SHORT];
};

/* A payload that decoder_open() or delta_apply()'s checks found sound; never a packed one. */
struct codec_cuda_payload {
    uint8_t codec;
    const uint8_t *wire; /* [bytes], pinned or on the device; aligned to 4 there */
    size_t bytes;
    bool on_device;
};

/* What a codec on a device is to work on, at most. */
struct codec_cuda_need {
    size_t count, rows; /* of a block */
    size_t bytes;       /* of a payload */
    size_t factors;     /* values that both of powersgd's have, if it encodes so; else 0 */
};

struct codec_cuda_ops {
    /* Do decode() and follow() know such a payload? encode() knows each codec that a step of an
     * encoder can have (encoder_step_of()). */
    bool (*decodes)(uint8_t codec);

    /* NULL: the device has no memory, logged. For set-up alone; close() on NULL is harmless. */
    struct codec_cuda *(*open)(struct device *device, const struct codec_cuda_need *need);
    void (*close)(struct codec_cuda *codec);

    /* Bytes that open() would take of a device. Pure. */
    size_t (*memory)(const struct codec_cuda_need *need);

    /* Most bytes of a run's payload; what is copied to pinned memory. */
    size_t (*bound)(const struct codec_cuda_run *run);
    void (*encode)(struct codec_cuda *codec, const struct codec_cuda_run *run,
                   const struct codec_cuda_places *places, struct codec_cuda_result *result);

    /* values [count] f32 device = the payload, or += it. */
    void (*decode)(struct codec_cuda *codec, const struct codec_cuda_payload *payload,
                   float *values, size_t count, bool add);

    /* replica [count] f32 device moves by the payload's steps (compression/delta.h). */
    void (*follow)(struct codec_cuda *codec, const struct codec_cuda_payload *payload,
                   float *replica, size_t count);
};

#endif
