/* The list of codecs. */
#include "compression/codec_kernels.h"

static const struct codec *const codecs[] = {
    &codec_none,
    &codec_bf16,
    &codec_int8,
};

#define CODEC_COUNT (sizeof codecs / sizeof codecs[0])

const struct codec *codec_find(const char *name) {
    for (size_t i = 0; i < CODEC_COUNT; i++) {
        if (strcmp(codecs[i]->name, name) == 0) return codecs[i];
    }
    return NULL;
}

const struct codec *codec_by_id(uint8_t id) {
    for (size_t i = 0; i < CODEC_COUNT; i++) {
        if ((uint8_t)codecs[i]->id == id) return codecs[i];
    }
    return NULL;
}

const struct codec *const *codec_all(size_t *count) {
    *count = CODEC_COUNT;
    return codecs;
}
