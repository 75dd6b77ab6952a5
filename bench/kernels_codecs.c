#include "bench/kernels_codecs.h"

#include "base/assert.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/random.h"
#include "bench/kernels_timed.h"
#include "compression/cuda/codec_cuda.h"
#include "compression/decoder.h"
#include "compression/encoder_device.h"

#include <stdlib.h>

/* As --push has them. +zstd is the host's alone: bench_codec has it. */
static const char *const codecs[] = {
    "none",
    "bf16",
    "fp16",
    "int8",
    "int8,ef",
    "fp8",
    "fp8:e5m2",
    "int4",
    "int4:sr",
    "int4:sr,had",
    "int4,ef",
    "int4:sr,had,ef",
    "onebit",
    "onebit,ef",
    "topk:0.01",
    "topk:0.01,ef",
    "topk:0.01,global",
    "topk:0.01,global,ef",
    "randk:0.01",
    "randk:0.01,ef",
    "powersgd:4",
    "powersgd:4,ef",
    "powersgd:4,shared,ef",
    "qsgd",
    "terngrad",
    "natural",
    "signsgd",
};

/* A codec at work. What is [..] lies on the device. */
struct kernels_codec {
    size_t rows, cols, count; /* of a block */
    size_t blocks, capacity;  /* bytes between payloads */
    float *values, *sum;      /* [blocks * count] */
    uint8_t *wire;            /* [blocks * capacity] */
    uint64_t step;
    struct encoder *encoder;
    struct encoder_result *results;   /* of each block's last encoding */
    struct encoder_device *on_device; /* NULL on the host */
    struct codec_cuda *decoder;       /* likewise */
    void *scratch, *decode_scratch;   /* the host's; NULL on a device */
};

/* ---- the operations ---- */

/* What failed is told by later waits, too. */
static void wait_codecs(const struct rig *rig) {
    enum status status = device_wait(rig->device, DEVICE_CODEC);
    (void)status;
}

/* A step of all blocks. It is waited for, as a push is before the next one. */
static void run_encode(const struct rig *rig) {
    struct kernels_codec *codec = rig->codec;
    for (size_t b = 0; b < codec->blocks; b++) {
        const float *values = codec->values + b * codec->count;
        uint8_t *wire = codec->wire + b * codec->capacity;
        if (codec->on_device != NULL)
            encoder_device_encode(codec->on_device, b, codec->step, values, wire, true);
        else
            encoder_encode(codec->encoder, b, codec->step, values, 1.0F, wire, codec->scratch,
                           &codec->results[b]);
    }
    codec->step++;
    if (codec->on_device == NULL) return;
    wait_codecs(rig);
    for (size_t b = 0; b < codec->blocks; b++)
        encoder_device_result(codec->on_device, b, codec->scratch, &codec->results[b]);
}

/* Behind an encoding. */
static void run_add(const struct rig *rig) {
    struct kernels_codec *codec = rig->codec;
    for (size_t b = 0; b < codec->blocks; b++) {
        const struct encoder_result *result = &codec->results[b];
        const uint8_t *wire = codec->wire + b * codec->capacity;
        float *sum = codec->sum + b * codec->count;
        if (codec->decoder == NULL) {
            ASSERT(decoder_add(result->codec, wire, result->bytes, sum, codec->count,
                               codec->decode_scratch) == STATUS_OK);
            continue;
        }
        const struct codec_cuda_payload payload = {
            .codec = result->codec, .wire = wire, .bytes = result->bytes, .on_device = true};
        rig->device->backend->codecs->decode(codec->decoder, &payload, sum, codec->count, true);
    }
    if (codec->decoder != NULL) wait_codecs(rig);
}

/* ---- what they work on ---- */

/* The same block again and again is as good as one of each its own. */
static void fill_values(const struct rig *rig, struct kernels_codec *codec) {
    float *block = memory_zeroed(codec->count, sizeof *block);
    struct random_stream random;
    random_open(&random, 1, RANDOM_SIMULATOR, 0);
    for (size_t i = 0; i < codec->count; i++)
        block[i] = 1e-3F * (float)(1 + i / codec->cols % 8) * random_normal(&random);
    for (size_t b = 0; b < codec->blocks; b++)
        device_copy(rig->device, DEVICE_COMPUTE, codec->values + b * codec->count, block,
                    codec->count * sizeof *block, DEVICE_TO);
    device_zero(rig->device, DEVICE_COMPUTE, codec->sum,
                codec->blocks * codec->count * sizeof *codec->sum);
    enum status status = device_wait(rig->device, DEVICE_COMPUTE);
    (void)status; /* as above */
    free(block);
}

static enum status open_stream(const struct rig *rig, struct kernels_codec *codec) {
    *codec = (struct kernels_codec){.rows = (size_t)rig->block_rows,
                                    .cols = (size_t)rig->I,
                                    .count = (size_t)kernels_rig_block(rig),
                                    .blocks = (size_t)rig->blocks};
    codec->values = device_take(rig->device, codec->blocks * codec->count * sizeof(float));
    codec->sum = device_take(rig->device, codec->blocks * codec->count * sizeof(float));
    if (codec->values == NULL || codec->sum == NULL) return STATUS_MEMORY;
    fill_values(rig, codec);
    return STATUS_OK;
}

static struct encoder *make_encoder(const struct kernels_codec *codec,
                                    const struct codec_spec *spec) {
    struct encoder_block *blocks = memory_zeroed(codec->blocks, sizeof *blocks);
    for (size_t b = 0; b < codec->blocks; b++)
        blocks[b] = (struct encoder_block){.id = b, .rows = codec->rows, .cols = codec->cols};
    const struct encoder_config config = {
        .spec = *spec, .blocks = blocks, .block_count = codec->blocks, .seed = 1};
    struct encoder *encoder = encoder_open(&config);
    free(blocks);
    return encoder;
}

static enum status open_on_device(const struct rig *rig, struct kernels_codec *codec) {
    const struct codec_cuda_need need = {
        .count = codec->count, .rows = codec->rows, .bytes = codec->capacity};
    bool *owns = memory_zeroed(codec->blocks, sizeof *owns);
    for (size_t b = 0; b < codec->blocks; b++)
        owns[b] = true;
    enum status status = encoder_device_open(&codec->on_device, rig->device, codec->encoder, owns);
    free(owns);
    TRY(status);
    codec->decoder = rig->device->backend->codecs->open(rig->device, &need);
    return codec->decoder != NULL ? STATUS_OK : STATUS_MEMORY;
}

static enum status open_codec(const struct rig *rig, struct kernels_codec *codec,
                              const struct codec_spec *spec) {
    codec->encoder = make_encoder(codec, spec);
    codec->capacity = arena_need(encoder_bound(codec->encoder, 0));
    codec->results = memory_zeroed(codec->blocks, sizeof *codec->results);
    codec->wire = device_take(rig->device, codec->blocks * codec->capacity);
    if (codec->wire == NULL) return STATUS_MEMORY;
    if (!device_is_host(rig->device)) return open_on_device(rig, codec);
    codec->scratch = memory_zeroed(encoder_scratch_bytes(codec->encoder), 1);
    codec->decode_scratch = memory_zeroed(decoder_scratch_bytes(codec->count), 1);
    return STATUS_OK;
}

static void close_codec(const struct rig *rig, struct kernels_codec *codec) {
    encoder_device_close(codec->on_device);
    if (codec->decoder != NULL) rig->device->backend->codecs->close(codec->decoder);
    device_give(rig->device, codec->wire);
    encoder_close(codec->encoder);
    free(codec->results);
    free(codec->scratch);
    free(codec->decode_scratch);
}

/* ---- measuring ---- */

struct figures {
    double encode_gb_s, encode_of_copy, add_gb_s, add_of_copy;
    double block_bytes; /* of a block's payload, the mean */
};

static struct figures figures_of(const struct rig *rig, const struct timed *copy,
                                 const struct timed *encode, const struct timed *add) {
    const struct kernels_codec *codec = rig->codec;
    double bytes = 0, copied = (double)(rig->N * rig->I) / copy->seconds;
    double values = (double)(codec->blocks * codec->count);
    for (size_t b = 0; b < codec->blocks; b++)
        bytes += (double)codec->results[b].bytes / (double)codec->blocks;
    return (struct figures){.encode_gb_s = sizeof(float) * values / encode->seconds / 1e9,
                            .encode_of_copy = values / encode->seconds / copied,
                            .add_gb_s = sizeof(float) * values / add->seconds / 1e9,
                            .add_of_copy = values / add->seconds / copied,
                            .block_bytes = bytes};
}

static void print_figures(const struct rig *rig, const char *name, const struct figures *figures,
                          FILE *json) {
    char line[1024];
    size_t used;
    struct json object;
    const size_t count = rig->codec->count;
    printf("%-22s %10.4g %8.2f %10.4g %8.2f %12.1f\n", name, figures->encode_gb_s,
           figures->encode_of_copy, figures->add_gb_s, figures->add_of_copy,
           (double)(count * sizeof(float)) / figures->block_bytes);
    if (json == NULL) return;
    json_begin(&object, line, sizeof line);
    json_text(&object, "bench", "codecs");
    json_text(&object, "device", rig->device->name);
    json_text(&object, "codec", name);
    json_int(&object, "block_values", (int64_t)count);
    json_real(&object, "block_bytes", figures->block_bytes, 15);
    json_real(&object, "encode_gb_s", figures->encode_gb_s, 6);
    json_real(&object, "encode_of_copy", figures->encode_of_copy, 4);
    json_real(&object, "add_gb_s", figures->add_gb_s, 6);
    json_real(&object, "add_of_copy", figures->add_of_copy, 4);
    if (json_end(&object, &used) == STATUS_OK) (void)fprintf(json, "%s\n", line);
}

/* stream: what of all codecs is the same. */
static enum status measure_codec(struct rig *rig, const struct kernels_codec *stream,
                                 const char *name, FILE *json) {
    struct kernels_codec codec = *stream;
    struct codec_spec spec;
    struct timed list[] = {
        kernels_copy(rig),
        {.name = "encode", .run = run_encode},
        {.name = "decode and add", .run = run_add},
    };
    char why[256];
    ASSERT(codec_parse(name, &spec, why, sizeof why));
    rig->codec = &codec;
    enum status status = open_codec(rig, &codec, &spec);
    if (status == STATUS_OK) status = kernels_measure(rig, list, sizeof list / sizeof list[0]);
    if (status == STATUS_OK) {
        const struct figures figures = figures_of(rig, &list[0], &list[1], &list[2]);
        print_figures(rig, name, &figures, json);
    }
    close_codec(rig, &codec);
    rig->codec = NULL;
    return status;
}

enum status kernels_codecs(struct rig *rig, FILE *json) {
    struct kernels_codec stream;
    enum status status = open_stream(rig, &stream);
    if (status == STATUS_OK)
        printf("\n%-22s %10s %8s %10s %8s %12s\n", "GB/s of f32 values", "encode", "of copy", "add",
               "of copy", "f32/bytes");
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0] && status == STATUS_OK; i++)
        status = measure_codec(rig, &stream, codecs[i], json);
    device_give(rig->device, stream.values);
    device_give(rig->device, stream.sum);
    return status;
}
