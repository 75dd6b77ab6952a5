/* codec_rig.h - one block, its encoder and its buffers, for the tests of codecs. */
#ifndef RUBATO_TESTS_CODEC_RIG_H
#define RUBATO_TESTS_CODEC_RIG_H

#include "compression/decoder.h"
#include "compression/encoder.h"
#include "compression/scheme.h"
#include "tests/test.h"

struct codec_rig {
    struct encoder *encoder;
    struct encoder_result result;
    size_t count, capacity;
    uint8_t *wire; /* [capacity], and a guard byte */
    float *decoded;
    void *encode_scratch, *decode_scratch;
};

enum { CODEC_RIG_TEXTS = 35 };

/* Every codec and every suffix at least once. */
extern const char *const codec_rig_texts[CODEC_RIG_TEXTS];

/* The spec of a text, which must be a good one; ",residual=TYPE" after its arguments is taken,
 * too. */
struct codec_spec codec_rig_spec(const char *text);

/* loops: NULL for the chip's best. */
struct codec_rig codec_rig_open_at(const char *text, size_t rows, size_t cols,
                                   const struct codec_loops *loops);
struct codec_rig codec_rig_open(const char *text, size_t rows, size_t cols);
void codec_rig_close(struct codec_rig *rig);

/* Encodes and checks the bound. */
void codec_rig_encode(struct codec_rig *rig, uint64_t step, const float *values, float scale);

/* Encodes, and decodes to rig->decoded. */
void codec_rig_pass(struct codec_rig *rig, uint64_t step, const float *values, float scale);

/* Like a gradient: normal, with a scale that differs by row; a few values far out. Freed by the
 * caller. */
float *codec_rig_values(uint64_t lane, size_t rows, size_t cols);

double codec_rig_squares(const float *values, size_t count);

#endif
