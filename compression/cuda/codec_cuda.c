#include "compression/cuda/codec_cuda.h"

#include "base/assert.h"
#include "base/memory.h"
#include "base/random.h"
#include "compression/cuda/codec_launch.h"
#include "compression/randk_places.h"
#include "kernels/cuda/device_cuda.h"

#include <math.h>
#include <stdlib.h>

enum { TILE = 512, SCALED = 128, CHUNK = 4096, RANDK_TILE = 2048, ROTATED = 32, DELTA_HEAD = 20 };

struct codec_cuda {
    struct device *device;
    uint8_t *wire; /* [bytes] payloads that come from or go to the host */
    uint32_t *rows;
    double *sums;
    uint64_t *round_sums;        /* of checksums */
    uint32_t *scratch;           /* struct codec_arrays */
    float *block;                /* powersgd: its a, then factors; NULL without */
    struct codec_cuda_need most; /* what there is room for */
};

/* ---- the codecs */

typedef int encode_fn(const struct codec_launch *launch, const struct codec_arrays *arrays,
                      struct CUstream_st *stream);
typedef int decode_fn(const struct codec_launch *launch, const uint8_t *wire, float *out, bool add,
                      struct CUstream_st *stream);

static int fill(const struct codec_launch *launch, const uint8_t *wire, float *out, bool add,
                struct CUstream_st *stream) {
    return codec_launch_fill(wire, out, add, launch->count, stream);
}

/* encode NULL: no user asks for it. */
static const struct row {
    uint8_t codec;
    uint32_t flags;       /* of its payloads */
    uint32_t square_part; /* values that one sum of squares is of */
    encode_fn *encode;
    decode_fn *decode;
} rows[] = {
    {CODEC_F32, CODEC_LAUNCH_SPECIALS, TILE, codec_launch_cast, codec_launch_cast_decode},
    {CODEC_BF16, CODEC_LAUNCH_SPECIALS, TILE, codec_launch_cast, codec_launch_cast_decode},
    {CODEC_FP16, CODEC_LAUNCH_SPECIALS, TILE, codec_launch_cast, codec_launch_cast_decode},
    {CODEC_INT8, CODEC_LAUNCH_SPECIALS, TILE, codec_launch_scaled, codec_launch_scaled_decode},
    {CODEC_FP8, 0, TILE, codec_launch_scaled, codec_launch_scaled_decode},
    {CODEC_INT4, CODEC_LAUNCH_SHOWS, TILE, codec_launch_int4, codec_launch_int4_decode},
    {CODEC_QSGD, CODEC_LAUNCH_SHOWS, TILE, codec_launch_int4, codec_launch_int4_decode},
    {CODEC_ONEBIT, CODEC_LAUNCH_SHOWS, TILE, codec_launch_signs, codec_launch_signs_decode},
    {CODEC_SIGNSGD, CODEC_LAUNCH_SHOWS, TILE, codec_launch_signs, codec_launch_signs_decode},
    {CODEC_TOPK, 0, CHUNK, codec_launch_topk, codec_launch_topk_decode},
    {CODEC_TOPK_GLOBAL, 0, TILE, codec_launch_topk_global, codec_launch_topk_global_decode},
    {CODEC_RANDK, 0, RANDK_TILE, codec_launch_randk, codec_launch_randk_decode},
    {CODEC_POWERSGD, 0, TILE, codec_launch_powersgd, codec_launch_powersgd_decode},
    {CODEC_POWERSGD_SHARED, 0, TILE, codec_launch_shared, codec_launch_shared_decode},
    {CODEC_TERNGRAD, 0, TILE, codec_launch_reference, codec_launch_reference_decode},
    {CODEC_NATURAL, 0, TILE, codec_launch_reference, codec_launch_reference_decode},
    {CODEC_FILL, 0, TILE, NULL, fill},
};

static const struct row *find(uint8_t codec) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].codec == codec) return &rows[i];
    }
    return NULL;
}

static bool decodes(uint8_t codec) {
    return find(codec) != NULL || codec == CODEC_DELTA_INT8 || codec == CODEC_DELTA_INT4;
}

/* ---- sizes */

static size_t parts(size_t count, size_t of) {
    return (count + of - 1) / of;
}

/* Blocks of 128 values with a scale each, of 8 or 4 bits a value. */
static size_t scaled_bytes(size_t count, bool four_bits) {
    size_t block = four_bits ? SCALED / 2 : SCALED, rest = count % SCALED;
    size_t last = rest < block ? rest : block;
    return count / SCALED * (2 + block) + (rest > 0 ? 2 + last : 0);
}

static size_t topk_bytes(size_t k) {
    return (12 * k + 7) / 8 + 2 * k;
}

/* What randk sends: a run of each group, which the last may lack or have a part of. */
static size_t randk_bytes(size_t count, const uint32_t number[RANDK_NUMBERS]) {
    size_t size = (size_t)1 << number[RANDK_RUN_LOG2];
    size_t last = parts(parts(count, size), number[RANDK_PERIOD]) - 1;
    size_t from = (size_t)randk_run(number, last) << number[RANDK_RUN_LOG2];
    size_t left = from < count ? count - from : 0;
    return 2 * (last * size + (left < size ? left : size));
}

static void set_sizes(struct codec_launch *launch) {
    size_t count = (size_t)launch->count;
    switch (launch->codec) {
    case CODEC_F32:
        launch->body = (int64_t)(count * sizeof(float));
        break;
    case CODEC_BF16:
    case CODEC_FP16:
        launch->body = (int64_t)(2 * count);
        break;
    case CODEC_INT8:
    case CODEC_FP8:
        launch->head = launch->codec == CODEC_FP8;
        launch->body = (int64_t)scaled_bytes(count, false);
        break;
    case CODEC_INT4:
    case CODEC_QSGD:
        launch->head = 2;
        launch->body = (int64_t)scaled_bytes(count, true);
        break;
    case CODEC_ONEBIT:
    case CODEC_SIGNSGD:
        launch->head = 1;
        launch->body = (int64_t)(parts(count, 8));
        if (launch->codec == CODEC_ONEBIT) launch->body += (int64_t)(2 * parts(count, TILE));
        break;
    case CODEC_TOPK:
        launch->head = 4;
        launch->body = (int64_t)(count / CHUNK * topk_bytes(launch->number[0]) +
                                 topk_bytes(parts(launch->number[0] * (count % CHUNK), CHUNK)));
        break;
    case CODEC_TOPK_GLOBAL:
    case CODEC_POWERSGD_SHARED:
        launch->head = 4;
        launch->body = (int64_t)(2 * (size_t)launch->number[0]);
        break;
    case CODEC_POWERSGD:
        launch->head = 8;
        launch->body = 2 * (int64_t)launch->number[1] * (launch->rows + launch->cols);
        break;
    case CODEC_TERNGRAD:
        launch->body = (int64_t)(parts(count, 4) + 2 * parts(count, TILE));
        break;
    case CODEC_NATURAL:
        launch->body = (int64_t)count;
        break;
    default:
        ASSERT_OP(launch->codec, ==, CODEC_RANDK);
        launch->head = RANDK_HEAD;
        launch->body = (int64_t)randk_bytes(count, launch->number);
    }
}

/* ---- what is launched */

static uint32_t flags_of(const struct codec_cuda_run *run, const struct row *row, bool feedback) {
    const struct codec_spec *spec = run->spec;
    uint32_t flags = row->flags | (feedback ? CODEC_LAUNCH_FEEDBACK : 0);
    if (run->codec == CODEC_FP8 && spec->e5m2) flags |= CODEC_LAUNCH_E5M2;
    if (run->codec == CODEC_QSGD) flags |= CODEC_LAUNCH_SR | CODEC_LAUNCH_L2;
    if (run->codec == CODEC_POWERSGD_SHARED && run->on_rows) flags |= CODEC_LAUNCH_ON_ROWS;
    if (run->codec == CODEC_INT4)
        flags |= (spec->sr ? CODEC_LAUNCH_SR : 0) | (spec->had ? CODEC_LAUNCH_HAD : 0);
    /* Zeros stay zeros, so that masked rows matter only where a rotation mixes rows. */
    bool mixes = (flags & CODEC_LAUNCH_HAD) != 0 && run->cols % ROTATED != 0;
    if (!mixes && (run->codec == CODEC_INT4 || run->codec == CODEC_QSGD))
        flags &= ~(uint32_t)CODEC_LAUNCH_SHOWS;
    if (feedback || (flags & CODEC_LAUNCH_SHOWS) != 0) flags |= CODEC_LAUNCH_ROWS;
    return flags;
}

static uint32_t share(float density, size_t n) {
    size_t k = (size_t)lrint((double)density * (double)n);
    return (uint32_t)(k > n ? n : k > 0 ? k : 1);
}

static size_t rank_of(const struct codec_cuda_run *run) {
    size_t rank = run->spec->rank;
    if (rank > run->rows) rank = run->rows;
    return rank < run->cols ? rank : run->cols;
}

static bool low_rank(const struct codec_cuda_run *run) {
    return run->codec == CODEC_POWERSGD || run->codec == CODEC_POWERSGD_SHARED;
}

static void set_factors(const struct codec_cuda_run *run, struct codec_launch *launch) {
    launch->number[0] = (uint32_t)run->rows;
    launch->number[1] = (uint32_t)rank_of(run);
    if (run->codec == CODEC_POWERSGD) return;
    launch->number[0] = launch->number[1] * (uint32_t)(run->on_rows ? run->cols : run->rows);
    launch->square_parts = (int64_t)parts(launch->number[0], TILE); /* of what is sent */
}

static struct codec_launch launch_of(const struct codec_cuda_run *run, bool feedback) {
    const struct row *row = find(run->codec);
    ASSERT(row != NULL && row->encode != NULL);
    size_t count = run->rows * run->cols;
    struct codec_launch launch = {
        .count = (int64_t)count,
        .rows = (int64_t)run->rows,
        .cols = (int64_t)run->cols,
        .square_parts = (int64_t)parts(count, row->square_part),
        .fold_parts = row->square_part / TILE,
        .codec = run->codec,
        .flags = flags_of(run, row, feedback),
        .residual_type = (uint32_t)run->spec->residual,
        .noise_key = {(uint32_t)run->seed, RANDOM_CODEC},
        .noise_counter = {(uint32_t)run->step, (uint32_t)run->block,
                          run->lane ^ (uint32_t)(run->seed >> 32)},
        .scale = run->scale,
        .beta = run->beta,
    };
    if (run->codec == CODEC_TOPK) launch.number[0] = share(run->density, CHUNK);
    if (run->codec == CODEC_TOPK_GLOBAL) {
        launch.number[0] = share(run->density, count);
        launch.square_parts = (int64_t)parts(launch.number[0], TILE); /* of what is sent */
    }
    if (run->codec == CODEC_RANDK) {
        randk_numbers(count, (uint32_t)lrint(1.0 / (double)run->density), run->seed, run->block,
                      run->step, launch.number);
    }
    if (low_rank(run)) set_factors(run, &launch);
    set_sizes(&launch);
    return launch;
}

static size_t most_bytes(const struct codec_launch *launch) {
    size_t mask =
        (launch->flags & CODEC_LAUNCH_SHOWS) != 0 ? 4 + parts((size_t)launch->rows, 8) : 0;
    size_t gaps = /* a byte each, and one more for each 128 places that are skipped */
        launch->codec == CODEC_TOPK_GLOBAL ? launch->number[0] + (size_t)launch->count / 128 : 0;
    size_t bytes = (size_t)(launch->head + launch->body) + mask + gaps;
    return bytes > sizeof(float) ? bytes : sizeof(float); /* CODEC_FILL */
}

static size_t bound(const struct codec_cuda_run *run) {
    if (run->rows * run->cols == 0) return 0;
    struct codec_launch launch = launch_of(run, false);
    return most_bytes(&launch);
}

/* ---- the calls */

static size_t rows_bytes(size_t row_count) {
    return (CODEC_ROWS_HEAD + parts(row_count, 32)) * sizeof(uint32_t);
}

static size_t sums_bytes(size_t count) {
    return 3 * parts(count + 1, TILE) * sizeof(double);
}

static size_t round_sums_bytes(size_t bytes) {
    return (bytes / 128 + 1) * sizeof(uint64_t);
}

static size_t scratch_bytes(size_t count) {
    return (CODEC_GLOBAL_HEAD + CODEC_GLOBAL_TILE * parts(count, TILE)) * sizeof(uint32_t);
}

static size_t block_bytes(const struct codec_cuda_need *need) {
    return need->factors > 0 ? (need->count + need->factors) * sizeof(float) : 0;
}

static size_t memory_bytes(const struct codec_cuda_need *need) {
    return need->bytes + 1 + rows_bytes(need->rows) + sums_bytes(need->count) +
           round_sums_bytes(need->bytes) + scratch_bytes(need->count) + block_bytes(need);
}

static void close_codec(struct codec_cuda *codec) {
    if (codec == NULL) return;
    const struct device_backend *backend = codec->device->backend;
    if (codec->wire != NULL) backend->give(codec->device, codec->wire);
    if (codec->rows != NULL) backend->give(codec->device, codec->rows);
    if (codec->sums != NULL) backend->give(codec->device, codec->sums);
    if (codec->round_sums != NULL) backend->give(codec->device, codec->round_sums);
    if (codec->scratch != NULL) backend->give(codec->device, codec->scratch);
    if (codec->block != NULL) backend->give(codec->device, codec->block);
    free(codec);
}

static struct codec_cuda *open_codec(struct device *device, const struct codec_cuda_need *need) {
    const struct device_backend *backend = device->backend;
    const size_t bytes = need->bytes, whole = block_bytes(need);
    struct codec_cuda *codec = memory_zeroed(1, sizeof *codec);
    *codec = (struct codec_cuda){.device = device, .most = *need};
    codec->wire = backend->take(device, bytes + 1);
    if (codec->wire != NULL) codec->rows = backend->take(device, rows_bytes(need->rows));
    if (codec->rows != NULL) codec->sums = backend->take(device, sums_bytes(need->count));
    if (codec->sums != NULL) codec->round_sums = backend->take(device, round_sums_bytes(bytes));
    if (codec->round_sums != NULL)
        codec->scratch = backend->take(device, scratch_bytes(need->count));
    if (codec->scratch != NULL && whole > 0) codec->block = backend->take(device, whole);
    if (codec->scratch != NULL && (whole == 0 || codec->block != NULL)) return codec;
    close_codec(codec);
    return NULL;
}

/* The queue, its device the calling thread's. */
static cudaStream_t enter(struct device *device) {
    (void)device_cuda_stream(device);
    return ((struct device_cuda *)(void *)device)->queues[DEVICE_CODEC];
}

/* Where a and the factors are; one that is shared is brought there. */
static void place_factors(struct codec_cuda *codec, const struct codec_cuda_run *run,
                          const struct codec_cuda_places *places, struct codec_arrays *arrays) {
    const size_t rank = rank_of(run), of_rows = rank * run->rows, of_cols = rank * run->cols;
    ASSERT_OP(of_rows + of_cols, <=, codec->most.factors);
    arrays->a = codec->block;
    arrays->x = codec->block + codec->most.count;
    if (run->codec == CODEC_POWERSGD) {
        ASSERT(places->factor != NULL);
        arrays->y = places->factor;
        arrays->noise = places->factor + of_cols;
        return;
    }
    ASSERT(places->shared != NULL);
    arrays->y = arrays->x + of_rows;
    codec->device->backend->copy(codec->device, DEVICE_CODEC, run->on_rows ? arrays->x : arrays->y,
                                 places->shared, (run->on_rows ? of_rows : of_cols) * sizeof(float),
                                 DEVICE_TO);
}

static void encode(struct codec_cuda *codec, const struct codec_cuda_run *run,
                   const struct codec_cuda_places *places, struct codec_cuda_result *result) {
    struct device *device = codec->device;
    *result = (struct codec_cuda_result){.codec = CODEC_F32};
    if (run->rows * run->cols == 0) return;
    cudaStream_t stream = enter(device);
    struct codec_launch launch = launch_of(run, places->residual != NULL);
    size_t bytes = most_bytes(&launch);
    ASSERT(run->rows * run->cols <= codec->most.count && run->rows <= codec->most.rows);
    ASSERT_OP(bytes, <=, codec->most.bytes);
    struct codec_arrays arrays = {
        .values = places->values,
        .residual = places->residual,
        .wire = places->wire_on_device ? places->wire : codec->wire,
        .rows = codec->rows,
        .sums = codec->sums,
        .scratch = codec->scratch,
        .result = result,
    };
    if (low_rank(run)) place_factors(codec, run, places, &arrays);
    device->backend->zero(device, DEVICE_CODEC, codec->rows, rows_bytes(run->rows));
    if ((launch.flags & CODEC_LAUNCH_ROWS) != 0)
        device_cuda_note(device, codec_launch_rows(&launch, &arrays, stream), "an encoder's rows");
    device_cuda_note(device, find(run->codec)->encode(&launch, &arrays, stream), "an encoder");
    device_cuda_note(device, codec_launch_finish(&launch, &arrays, stream), "an encoder's sums");
    if (places->wire_on_device) {
        int error = codec_launch_checksum((int64_t)bytes, &arrays, codec->round_sums, stream);
        device_cuda_note(device, error, "a payload's checksum");
    } else {
        device->backend->copy(device, DEVICE_CODEC, places->wire, codec->wire, bytes, DEVICE_FROM);
    }
}

/* The payload where kernels read it. */
static const uint8_t *brought(struct codec_cuda *codec, const struct codec_cuda_payload *payload) {
    struct device *device = codec->device;
    if (payload->on_device) return payload->wire;
    ASSERT_OP(payload->bytes, <=, codec->most.bytes);
    device->backend->copy(device, DEVICE_CODEC, codec->wire, payload->wire, payload->bytes,
                          DEVICE_TO);
    return codec->wire;
}

static void decode(struct codec_cuda *codec, const struct codec_cuda_payload *payload,
                   float *values, size_t count, bool add) {
    const struct row *row = find(payload->codec);
    ASSERT(row != NULL);
    if (count == 0) return;
    cudaStream_t stream = enter(codec->device);
    const struct codec_launch launch = {.count = (int64_t)count,
                                        .body = (int64_t)payload->bytes,
                                        .codec = payload->codec,
                                        .flags = row->flags};
    int error = row->decode(&launch, brought(codec, payload), values, add, stream);
    device_cuda_note(codec->device, error, "a decoder");
}

static void follow(struct codec_cuda *codec, const struct codec_cuda_payload *payload,
                   float *replica, size_t count) {
    const bool four_bits = payload->codec == CODEC_DELTA_INT4;
    ASSERT(four_bits || payload->codec == CODEC_DELTA_INT8);
    if (count == 0) return;
    cudaStream_t stream = enter(codec->device);
    const size_t step_bytes = scaled_bytes(count, four_bits);
    const struct codec_steps steps = {.count = (int64_t)count,
                                      .step_bytes = (int64_t)step_bytes,
                                      .steps =
                                          (uint32_t)((payload->bytes - DELTA_HEAD) / step_bytes),
                                      .four_bits = four_bits};
    const uint8_t *wire = brought(codec, payload) + DELTA_HEAD;
    device_cuda_note(codec->device, codec_launch_delta(&steps, wire, replica, stream),
                     "a replica's steps");
}

const struct codec_cuda_ops codec_cuda = {
    .decodes = decodes,
    .open = open_codec,
    .close = close_codec,
    .memory = memory_bytes,
    .bound = bound,
    .encode = encode,
    .decode = decode,
    .follow = follow,
};
