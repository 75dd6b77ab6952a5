/* The buffers of codec_rig.h. */
#include "tests/codec_rig.h"

#include "base/memory.h"
#include "base/random.h"

const char *const codec_rig_texts[CODEC_RIG_TEXTS] = {
    "none",
    "bf16",
    "fp16",
    "int8",
    "fp8",
    "fp8:e5m2",
    "int4",
    "int4:sr",
    "int4:had",
    "int4:sr,had",
    "onebit",
    "signsgd",
    "topk:0.01",
    "topk:0.3",
    "topk:0.05,global",
    "topk:1,global",
    "randk:0.05",
    "powersgd:2",
    "qsgd",
    "terngrad",
    "natural",
    "none+zstd",
    "bf16+zstd",
    "fp16+zstd",
    "int8,ef+zstd",
    "topk:0.02,ef+zstd",
    "topk:0.05,global,ef+zstd",
    "randk:0.1,ef+zstd",
    "powersgd:4,ef+zstd",
    "int4:sr,had,ef,residual=bf16",
    "onebit,ef,residual=int8",
    "int4,ef=loco,residual=int8",
    "onebit,ef=loco+zstd",
    "fp8,ef",
    "int8,ef",
};

/* Takes ",residual=TYPE", which is an option's and not part of a codec's text, out of the text. */
static void take_residual(char *text, enum codec_residual *residual) {
    static const char mark[] = ",residual=";
    char type[8] = "";
    char *at = strstr(text, mark);
    if (at == NULL) return;
    const char *from = at + sizeof mark - 1;
    size_t length = strcspn(from, "+");
    CHECK(length < sizeof type);
    memcpy(type, from, length);
    CHECK(codec_residual_find(type, residual));
    memmove(at, from + length, strlen(from + length) + 1);
}

struct codec_spec codec_rig_spec(const char *text) {
    struct codec_spec spec;
    enum codec_residual residual = RESIDUAL_F32;
    char why[256];
    char copy[256];
    (void)snprintf(copy, sizeof copy, "%s", text);
    take_residual(copy, &residual);
    if (!codec_parse(copy, &spec, why, sizeof why)) {
        fprintf(stderr, "%s: %s\n", text, why);
        exit(1);
    }
    spec.residual = residual;
    return spec;
}

struct codec_rig codec_rig_open_at(const char *text, size_t rows, size_t cols,
                                   const struct codec_loops *loops) {
    struct encoder_block block = {.id = 3, .rows = rows, .cols = cols};
    struct encoder_config config = {.spec = codec_rig_spec(text),
                                    .blocks = &block,
                                    .block_count = 1,
                                    .seed = 0x1234567890ULL,
                                    .lane = 1,
                                    .loops = loops};
    struct codec_rig rig = {.count = rows * cols};
    rig.encoder = encoder_open(&config);
    rig.capacity = encoder_bound(rig.encoder, 0);
    rig.wire = memory_zeroed(rig.capacity + 1, 1);
    rig.wire[rig.capacity] = 0xa5;
    rig.decoded = memory_zeroed(rig.count + 1, sizeof(float));
    rig.encode_scratch = memory_zeroed(encoder_scratch_bytes(rig.encoder) + 1, 1);
    rig.decode_scratch = memory_zeroed(decoder_scratch_bytes(rig.count), 1);
    return rig;
}

struct codec_rig codec_rig_open(const char *text, size_t rows, size_t cols) {
    return codec_rig_open_at(text, rows, cols, NULL);
}

void codec_rig_encode(struct codec_rig *rig, uint64_t step, const float *values, float scale) {
    encoder_encode(rig->encoder, 0, step, values, scale, rig->wire, rig->encode_scratch,
                   &rig->result);
    CHECK(rig->result.bytes <= rig->capacity);
    CHECK_INT(rig->wire[rig->capacity], 0xa5);
}

/* Encodes, and decodes to rig->decoded. */
void codec_rig_pass(struct codec_rig *rig, uint64_t step, const float *values, float scale) {
    codec_rig_encode(rig, step, values, scale);
    CHECK_INT(decoder_set(rig->result.codec, rig->wire, rig->result.bytes, rig->decoded, rig->count,
                          rig->decode_scratch),
              STATUS_OK);
}

void codec_rig_close(struct codec_rig *rig) {
    encoder_close(rig->encoder);
    free(rig->wire);
    free(rig->decoded);
    free(rig->encode_scratch);
    free(rig->decode_scratch);
}

/* Like a gradient: normal, with a scale that differs by row; a few values far out. */
float *codec_rig_values(uint64_t lane, size_t rows, size_t cols) {
    struct random_stream random;
    float *values = memory_zeroed(rows * cols + 1, sizeof *values);
    random_open(&random, 7, RANDOM_SIMULATOR, lane);
    for (size_t row = 0; row < rows; row++) {
        float scale = 1e-3f * expf(random_normal(&random));
        for (size_t col = 0; col < cols; col++) {
            float value = scale * random_normal(&random);
            values[row * cols + col] = random_unit(&random) < 0.01f ? 8 * value : value;
        }
    }
    return values;
}

double codec_rig_squares(const float *values, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (double)values[i] * (double)values[i];
    return sum;
}
