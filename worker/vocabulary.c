#include "worker/vocabulary.h"

#include "base/memory.h"

#include <string.h>

bool vocabulary_known(const struct vocabulary *vocabulary) {
    return vocabulary->bytes || vocabulary->tokenizer != NULL;
}

size_t vocabulary_encode(const struct vocabulary *vocabulary, const char *text, size_t bytes,
                         int32_t **tokens) {
    struct tokenizer_encoder *encoder = NULL;
    const uint32_t *ids = NULL;
    size_t count = 0;
    *tokens = NULL;
    if (!vocabulary_known(vocabulary) || bytes == 0) return 0;
    if (vocabulary->bytes) {
        *tokens = memory_zeroed(bytes, sizeof(**tokens));
        for (size_t i = 0; i < bytes; i++)
            (*tokens)[i] = (unsigned char)text[i];
        return bytes;
    }
    if (tokenizer_encoder_open(&encoder, vocabulary->tokenizer) != STATUS_OK) return 0;
    if (tokenizer_encode(encoder, (const uint8_t *)text, bytes, true, &ids, &count) == STATUS_OK) {
        *tokens = memory_zeroed(count, sizeof(**tokens));
        memcpy(*tokens, ids, count * sizeof(**tokens));
    }
    tokenizer_encoder_close(encoder);
    return *tokens != NULL ? count : 0;
}

size_t vocabulary_decode(const struct vocabulary *vocabulary, const int32_t *tokens, size_t count,
                         char **text) {
    *text = NULL;
    if (!vocabulary_known(vocabulary)) return 0;
    if (!vocabulary->bytes) {
        const struct tokenizer *tokenizer = vocabulary->tokenizer;
        *text = memory_zeroed(tokenizer_decode_bound(tokenizer, tokens, count) + 1, 1);
        return tokenizer_decode(tokenizer, tokens, count, (uint8_t *)*text);
    }
    *text = memory_zeroed(count + 1, 1);
    for (size_t i = 0; i < count; i++)
        (*text)[i] = (char)tokens[i];
    return count;
}

uint64_t vocabulary_bytes(const struct vocabulary *vocabulary, const int32_t *tokens,
                          size_t count) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] < 0) continue;
        const uint8_t *text = NULL;
        if (vocabulary->bytes) {
            bytes++;
        } else if (vocabulary->tokenizer != NULL) {
            bytes += tokenizer_token(vocabulary->tokenizer, (uint32_t)tokens[i], &text);
        }
    }
    return bytes;
}
