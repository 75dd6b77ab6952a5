#include "compression/encoder_device.h"

#include "base/assert.h"
#include "base/checksum.h"
#include "base/memory.h"
#include "compression/cuda/codec_cuda.h"
#include "compression/scheme_powersgd.h"

#include <stdlib.h>

struct encoder_device {
    struct device *device;
    const struct codec_cuda_ops *ops;
    struct encoder *encoder;
    struct codec_cuda *codec;
    uint8_t *kept;                     /* the device's; NULL if no block keeps anything */
    size_t *kept_at;                   /* [blocks] each one's residual, then factor_bytes() */
    struct codec_cuda_result *results; /* [blocks] pinned */
    bool *stays;                       /* [blocks] is the payload on the device? */
    float *noise;                      /* [of the largest factor, at least] on its way there */
    bool *noisy;                       /* [blocks] has the block's factor its noise? */
    float *shared;                     /* pinned; NULL if no block shares a factor */
    size_t *shared_at;                 /* [blocks] each one's, in floats */
    uint8_t **wires;                   /* [blocks] where payloads are that the host packs */
};

static bool shares(const struct encoder *encoder) {
    return encoder_spec(encoder)->codec == CODEC_POWERSGD_SHARED;
}

/* A block's factor and the noise that it becomes where it is zeros; of one that is shared the
 * host has the state. */
static size_t factor_bytes(const struct encoder *encoder, const struct encoder_step *of) {
    return shares(encoder) ? 0 : 2 * of->state_values * sizeof(float);
}

/* Of the largest block, and bytes of what all keep. kept_at [blocks]: also says where; NULL: does
 * not. */
static struct codec_cuda_need measure(const struct encoder *encoder, const bool *owns,
                                      size_t *kept_at, size_t *kept) {
    struct codec_cuda_need need = {0};
    struct encoder_step of;
    *kept = 0;
    for (size_t i = 0; i < encoder_block_count(encoder); i++) {
        if (kept_at != NULL) kept_at[i] = *kept;
        if (!owns[i]) continue;
        encoder_step_of(encoder, i, 0, &of);
        size_t count = of.rows * of.cols, bytes = encoder_bound(encoder, i);
        size_t factors =
            of.state_values > 0 ? encoder_spec(encoder)->rank * (of.rows + of.cols) : 0;
        need.count = count > need.count ? count : need.count;
        need.rows = of.rows > need.rows ? of.rows : need.rows;
        need.bytes = bytes > need.bytes ? bytes : need.bytes;
        need.factors = factors > need.factors ? factors : need.factors;
        *kept += arena_need(of.residual_bytes) + arena_need(factor_bytes(encoder, &of));
    }
    return need;
}

static float *factor_of(const struct encoder_device *encoder, size_t block,
                        const struct encoder_step *of) {
    if (factor_bytes(encoder->encoder, of) == 0) return NULL;
    return (void *)(encoder->kept + encoder->kept_at[block] + arena_need(of->residual_bytes));
}

/* Behind the block's factor, ahead of its first use: of a large model's it takes seconds. */
static void put_noise(const struct encoder_device *encoder, size_t block,
                      const struct encoder_step *of) {
    for (size_t at = 0; at < of->state_values; at += of->cols)
        powersgd_noise(of->seed, of->id, at / of->cols, encoder->noise + at, of->cols);
    device_copy(encoder->device, DEVICE_CODEC, factor_of(encoder, block, of) + of->state_values,
                encoder->noise, of->state_values * sizeof *encoder->noise, DEVICE_TO);
    enum status status = device_wait(encoder->device, DEVICE_CODEC);
    (void)status; /* what failed is told by later waits, too */
    encoder->noisy[block] = true;
}

uint64_t encoder_device_bytes(const struct device *device, const struct encoder *encoder,
                              const bool *owns) {
    size_t kept;
    struct codec_cuda_need need = measure(encoder, owns, NULL, &kept);
    return kept + device->backend->codecs->memory(&need);
}

/* Where each block's factor that is shared is pinned; returns how many floats they are. */
static size_t place_shared(struct encoder_device *made, const bool *owns) {
    struct encoder_step of;
    size_t floats = 0;
    for (size_t i = 0; i < encoder_block_count(made->encoder) && shares(made->encoder); i++) {
        encoder_step_of(made->encoder, i, 0, &of);
        made->shared_at[i] = floats;
        if (owns[i]) floats += of.state_values;
    }
    return floats;
}

static bool take_memory(struct encoder_device *made, const struct codec_cuda_need *need,
                        size_t kept, size_t shared) {
    struct device *device = made->device;
    size_t blocks = encoder_block_count(made->encoder);
    made->codec = made->ops->open(device, need);
    if (made->codec != NULL)
        made->results = device_take_pinned(device, (blocks + 1) * sizeof *made->results);
    if (made->results == NULL) return false;
    if (kept > 0) made->kept = device_take(device, kept);
    if (kept > 0 && made->kept == NULL) return false;
    if (shared > 0) made->shared = device_take_pinned(device, shared * sizeof *made->shared);
    return shared == 0 || made->shared != NULL;
}

enum status encoder_device_open(struct encoder_device **opened, struct device *device,
                                struct encoder *encoder, const bool *owns) {
    size_t blocks = encoder_block_count(encoder);
    struct encoder_device *made = memory_zeroed(1, sizeof *made);
    *made = (struct encoder_device){
        .device = device, .ops = device->backend->codecs, .encoder = encoder};
    made->kept_at = memory_zeroed(blocks, sizeof *made->kept_at);
    made->shared_at = memory_zeroed(blocks, sizeof *made->shared_at);
    made->stays = memory_zeroed(blocks, sizeof *made->stays);
    made->wires = memory_zeroed(blocks, sizeof *made->wires);
    size_t kept;
    struct codec_cuda_need need = measure(encoder, owns, made->kept_at, &kept);
    if (!take_memory(made, &need, kept, place_shared(made, owns))) {
        encoder_device_close(made);
        return STATUS_MEMORY;
    }
    if (kept > 0) device_zero(device, DEVICE_CODEC, made->kept, kept);
    made->noisy = memory_zeroed(blocks, sizeof *made->noisy);
    made->noise = memory_zeroed(need.factors + 1, sizeof *made->noise);
    *opened = made;
    return STATUS_OK;
}

void encoder_device_close(struct encoder_device *encoder) {
    if (encoder == NULL) return;
    enum status status = device_wait(encoder->device, DEVICE_CODEC);
    (void)status; /* one that failed is idle, too */
    encoder->ops->close(encoder->codec);
    device_give(encoder->device, encoder->kept);
    device_give_pinned(encoder->device, encoder->results);
    device_give_pinned(encoder->device, encoder->shared);
    free(encoder->noise);
    free(encoder->noisy);
    free(encoder->kept_at);
    free(encoder->shared_at);
    free(encoder->stays);
    free(encoder->wires);
    free(encoder);
}

void encoder_device_encode(struct encoder_device *encoder, size_t block, uint64_t step,
                           const float *values, uint8_t *wire, bool wire_on_device) {
    const struct codec_cuda_ops *ops = encoder->ops;
    struct encoder_step of;
    encoder_step_of(encoder->encoder, block, step, &of);
    float *shared = NULL;
    bool on_rows = false;
    if (of.codec == CODEC_POWERSGD_SHARED) {
        shared = encoder->shared + encoder->shared_at[block];
        on_rows = encoder_share(encoder->encoder, block, shared);
    }
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
                                       .beta = of.beta,
                                       .on_rows = on_rows};
    struct codec_cuda_places places = {
        .values = values, .shared = shared, .wire_on_device = wire_on_device};
    places.wire = wire;
    if (of.residual_bytes > 0) places.residual = encoder->kept + encoder->kept_at[block];
    places.factor = factor_of(encoder, block, &of);
    if (of.codec == CODEC_POWERSGD && places.factor != NULL && !encoder->noisy[block])
        put_noise(encoder, block, &of);
    if (of.restarts) device_zero(encoder->device, DEVICE_CODEC, places.residual, of.residual_bytes);
    ASSERT_OP(ops->bound(&run), <=, encoder_bound(encoder->encoder, block));
    ASSERT(!(wire_on_device && run.spec->zstd));
    encoder->stays[block] = wire_on_device;
    encoder->wires[block] = wire;
    ops->encode(encoder->codec, &run, &places, &encoder->results[block]);
}

void encoder_device_result(const struct encoder_device *encoder, size_t block, void *scratch,
                           struct encoder_result *result) {
    const struct codec_cuda_result *found = &encoder->results[block];
    size_t bytes = (size_t)found->bytes;
    *result = (struct encoder_result){.codec = (uint8_t)found->codec,
                                      .bytes = bytes,
                                      .square_sum = found->square_sum,
                                      .gradient_square_sum = found->gradient_square_sum,
                                      .residual_square_sum = found->residual_square_sum};
    if (!encoder->stays[block]) {
        encoder_pack(encoder->encoder, encoder->wires[block], scratch, result);
        return;
    }
    bool is_short = bytes <= CODEC_CUDA_SHORT;
    result->xxh3 = is_short ? checksum_xxh3(found->short_payload, bytes) : found->xxh3;
}
