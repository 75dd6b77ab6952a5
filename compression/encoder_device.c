#include "compression/encoder_device.h"

#include "base/assert.h"
#include "base/checksum.h"
#include "base/memory.h"
#include "compression/cuda/codec_cuda.h"

#include <stdlib.h>

struct encoder_device {
    struct device *device;
    const struct codec_cuda_ops *ops;
    const struct encoder *encoder;
    struct codec_cuda *codec;
    uint8_t *residuals;                /* the device's; NULL without feedback */
    size_t *residual_at;               /* [blocks] where each block's begins */
    struct codec_cuda_result *results; /* [blocks] pinned */
    bool *stays;                       /* [blocks] is the payload on the device? */
};

bool encoder_device_can(const struct device *device, const struct codec_spec *spec) {
    const struct codec_cuda_ops *ops = device->backend->codecs;
    return ops != NULL && ops->encodes(spec);
}

/* Of the largest block, and the residuals of all. */
struct need {
    size_t count, rows, bytes, kept;
};

/* residual_at [blocks]: also lays out the residuals; NULL: does not. */
static struct need measure(const struct encoder *encoder, const bool *owns, size_t *residual_at) {
    struct need need = {0};
    struct encoder_step of;
    for (size_t i = 0; i < encoder_block_count(encoder); i++) {
        if (residual_at != NULL) residual_at[i] = need.kept;
        if (!owns[i]) continue;
        encoder_step_of(encoder, i, 0, &of);
        size_t count = of.rows * of.cols, bytes = encoder_bound(encoder, i);
        need.count = count > need.count ? count : need.count;
        need.rows = of.rows > need.rows ? of.rows : need.rows;
        need.bytes = bytes > need.bytes ? bytes : need.bytes;
        need.kept += arena_need(of.residual_bytes);
    }
    return need;
}

uint64_t encoder_device_bytes(const struct device *device, const struct encoder *encoder,
                              const bool *owns) {
    struct need need = measure(encoder, owns, NULL);
    return need.kept + device->backend->codecs->memory(need.count, need.rows, need.bytes);
}

enum status encoder_device_open(struct encoder_device **opened, struct device *device,
                                const struct encoder *encoder, const bool *owns) {
    size_t blocks = encoder_block_count(encoder);
    struct encoder_device *made = memory_zeroed(1, sizeof *made);
    *made = (struct encoder_device){
        .device = device, .ops = device->backend->codecs, .encoder = encoder};
    made->residual_at = memory_zeroed(blocks, sizeof *made->residual_at);
    made->stays = memory_zeroed(blocks, sizeof *made->stays);
    struct need need = measure(encoder, owns, made->residual_at);
    size_t kept = need.kept;
    made->codec = made->ops->open(device, need.count, need.rows, need.bytes);
    if (made->codec != NULL)
        made->results = device_take_pinned(device, (blocks + 1) * sizeof *made->results);
    if (made->results != NULL && kept > 0) made->residuals = device_take(device, kept);
    if (made->results == NULL || (kept > 0 && made->residuals == NULL)) {
        encoder_device_close(made);
        return STATUS_MEMORY;
    }
    if (kept > 0) device_zero(device, DEVICE_CODEC, made->residuals, kept);
    *opened = made;
    return STATUS_OK;
}

void encoder_device_close(struct encoder_device *encoder) {
    if (encoder == NULL) return;
    enum status status = device_wait(encoder->device, DEVICE_CODEC);
    (void)status; /* one that failed is idle, too */
    encoder->ops->close(encoder->codec);
    device_give(encoder->device, encoder->residuals);
    device_give_pinned(encoder->device, encoder->results);
    free(encoder->residual_at);
    free(encoder->stays);
    free(encoder);
}

void encoder_device_encode(struct encoder_device *encoder, size_t block, uint64_t step,
                           const float *values, uint8_t *wire, bool wire_on_device) {
    const struct codec_cuda_ops *ops = encoder->ops;
    struct encoder_step of;
    encoder_step_of(encoder->encoder, block, step, &of);
    const struct codec_cuda_run run = {.spec = encoder_spec(encoder->encoder),
                                       .codec = of.codec,
                                       .rows = of.rows,
                                       .cols = of.cols,
                                       .density = of.density,
                                       .seed = of.seed,
                                       .step = step,
                                       .block = of.id,
                                       .lane = of.lane,
                                       .scale = 1.0F,
                                       .beta = of.beta};
    struct codec_cuda_places places = {.values = values, .wire_on_device = wire_on_device};
    places.wire = wire;
    if (of.residual_bytes > 0) places.residual = encoder->residuals + encoder->residual_at[block];
    if (of.restarts) device_zero(encoder->device, DEVICE_CODEC, places.residual, of.residual_bytes);
    ASSERT_OP(ops->bound(&run), <=, encoder_bound(encoder->encoder, block));
    encoder->stays[block] = wire_on_device;
    ops->encode(encoder->codec, &run, &places, &encoder->results[block]);
}

void encoder_device_result(const struct encoder_device *encoder, size_t block,
                           struct encoder_result *result) {
    const struct codec_cuda_result *found = &encoder->results[block];
    size_t bytes = (size_t)found->bytes;
    *result = (struct encoder_result){.codec = (uint8_t)found->codec,
                                      .bytes = bytes,
                                      .square_sum = found->square_sum,
                                      .gradient_square_sum = found->gradient_square_sum,
                                      .residual_square_sum = found->residual_square_sum};
    if (!encoder->stays[block]) return;
    bool is_short = bytes <= CODEC_CUDA_SHORT;
    result->xxh3 = is_short ? checksum_xxh3(found->short_payload, bytes) : found->xxh3;
}
