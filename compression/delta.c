#include "compression/delta.h"

#include "base/assert.h"
#include "base/checksum.h"
#include "compression/codec_loops.h"

#include <string.h>

enum { AT_VERSION = 0, AT_FROM = 8, AT_TO = 12, AT_STEPS = 16 };

enum { REBASE_TILE = 1024 };

_Static_assert(AT_STEPS + sizeof(uint32_t) == 20, "the steps follow the head");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are copied to the wire");

bool delta_find(const char *name, uint8_t *codec) {
    if (strcmp(name, "delta-int8") != 0 && strcmp(name, "delta-int4") != 0) return false;
    *codec = strcmp(name, "delta-int8") == 0 ? CODEC_DELTA_INT8 : CODEC_DELTA_INT4;
    return true;
}

bool delta_is(uint8_t codec) {
    return codec == CODEC_DELTA_INT8 || codec == CODEC_DELTA_INT4;
}

size_t delta_step_bytes(uint8_t codec, size_t count) {
    size_t blocks = count / LOOP_BLOCK, rest = count % LOOP_BLOCK;
    size_t half = rest < LOOP_BLOCK / 2 ? rest : LOOP_BLOCK / 2;
    ASSERT(delta_is(codec));
    bool int4 = codec == CODEC_DELTA_INT4;
    return blocks * (2 + (int4 ? LOOP_BLOCK / 2 : LOOP_BLOCK)) +
           (rest > 0 ? 2 + (int4 ? half : rest) : 0);
}

size_t delta_steps_max(uint8_t codec, size_t count) {
    size_t step = delta_step_bytes(codec, count), whole = 2 * count;
    return whole > DELTA_HEAD ? (whole - DELTA_HEAD - 1) / step : 0;
}

bool delta_encode_step(uint8_t codec, const float *weights, float *replica, size_t count,
                       uint8_t *step) {
    ASSERT(delta_is(codec));
    return codec_loops_best()->delta_encode(weights, replica, count, step,
                                            codec == CODEC_DELTA_INT4);
}

void delta_rebase(const float *weights, float *replica, size_t count) {
    const struct codec_loops *loops = codec_loops_best();
    uint8_t halves[2 * REBASE_TILE];
    for (size_t i = 0; i < count; i += REBASE_TILE) {
        size_t n = count - i < REBASE_TILE ? count - i : REBASE_TILE;
        loops->bf16_encode(weights + i, n, halves);
        loops->bf16_decode(halves, n, replica + i, false);
    }
}

uint32_t delta_check(const float *replica, size_t count) {
    uint32_t check = (uint32_t)checksum_xxh3(replica, count * sizeof *replica);
    return check != DELTA_NONE ? check : 1;
}

static uint32_t word_at(const uint8_t *payload, size_t at) {
    uint32_t word;
    memcpy(&word, payload + at, sizeof word);
    return word;
}

void delta_head_put(uint8_t *payload, const struct delta_place *from, uint32_t check,
                    uint32_t steps) {
    memcpy(payload + AT_VERSION, &from->version, sizeof from->version);
    memcpy(payload + AT_FROM, &from->check, sizeof from->check);
    memcpy(payload + AT_TO, &check, sizeof check);
    memcpy(payload + AT_STEPS, &steps, sizeof steps);
}

/* Scales are those of some magnitude: finite, and not negative. */
static bool scales_are_sound(const uint8_t *step, size_t count, size_t block_bytes) {
    for (size_t i = 0; i < count; i += LOOP_BLOCK) {
        if ((uint32_t)(step[0] | step[1] << 8) >= BF16_INFINITY) return false;
        step += block_bytes;
    }
    return true;
}

/* The length is that of the steps, and all their scales are sound. */
static bool is_sound(uint8_t codec, const uint8_t *payload, size_t bytes, size_t count) {
    if (bytes < DELTA_HEAD) return false;
    size_t step_bytes = delta_step_bytes(codec, count), steps = word_at(payload, AT_STEPS);
    if (steps > DELTA_STEPS_TOP || bytes != DELTA_HEAD + steps * step_bytes) return false;
    for (size_t i = 0; i < steps; i++) {
        if (!scales_are_sound(payload + DELTA_HEAD + i * step_bytes, count,
                              delta_step_bytes(codec, LOOP_BLOCK)))
            return false;
    }
    return true;
}

enum status delta_apply(uint8_t codec, const uint8_t *payload, size_t bytes, uint64_t version,
                        float *replica, size_t count, struct delta_place *place) {
    uint64_t from;
    if (!delta_is(codec) || !is_sound(codec, payload, bytes, count)) return STATUS_CORRUPT;
    memcpy(&from, payload + AT_VERSION, sizeof from);
    if (place->check == DELTA_NONE || place->version != from ||
        place->check != word_at(payload, AT_FROM) || version < from)
        return STATUS_STALE;
    size_t step_bytes = delta_step_bytes(codec, count), steps = word_at(payload, AT_STEPS);
    for (size_t i = 0; i < steps; i++) {
        codec_loops_best()->delta_decode(payload + DELTA_HEAD + i * step_bytes, count, replica,
                                         codec == CODEC_DELTA_INT4);
    }
    *place = (struct delta_place){.version = version, .check = delta_check(replica, count)};
    if (place->check == word_at(payload, AT_TO)) return STATUS_OK;
    place->check = DELTA_NONE;
    return STATUS_MISMATCH;
}
