#include "compression/cast.h"

#include "base/assert.h"
#include "compression/codec_loops.h"

#include <string.h>

bool cast_find(const char *name, uint8_t *codec) {
    bool plain = strcmp(name, "none") == 0;
    if (!plain && strcmp(name, "bf16") != 0) return false;
    *codec = plain ? CODEC_F32 : CODEC_BF16;
    return true;
}

size_t cast_bytes(uint8_t codec, size_t count) {
    ASSERT(codec == CODEC_F32 || codec == CODEC_BF16);
    return codec == CODEC_F32 ? count * sizeof(float) : count * sizeof(uint16_t);
}

void cast_encode(uint8_t codec, const float *values, size_t count, uint8_t *wire) {
    ASSERT(codec == CODEC_F32 || codec == CODEC_BF16);
    if (codec == CODEC_F32)
        memcpy(wire, values, count * sizeof *values);
    else
        codec_loops_best()->bf16_encode(values, count, wire);
}
