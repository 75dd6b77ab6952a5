/* Any bytes as a vocabulary: the first one chooses the format. A whole vocabulary is more than a
 * fuzzer finds by itself, so both formats get a sound beginning, the 256 bytes' tokens, and the
 * input goes on from there. What is taken must encode any text and give it back. Built as the other
 * fuzzers are.
 */
#include "base/assert.h"
#include "base/log.h"
#include "worker/tokenizer_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_BYTES 16384

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes);

/* Lines of the single bytes. */
static size_t ranks_head(char *text) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t at = 0;
    for (int byte = 0; byte < 256; byte++)
        at += (size_t)snprintf(text + at, HEAD_BYTES - at, "%c%c== %d\n", digits[byte >> 2],
                               digits[(byte & 3) << 4], byte);
    return at;
}

/* A model whose vocabulary has the single bytes, up to where the input goes on. */
static size_t json_head(char *text) {
    size_t at = (size_t)snprintf(text, HEAD_BYTES,
                                 "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},"
                                 "\"model\":{\"type\":\"BPE\",\"vocab\":{");
    uint32_t others = 0;
    for (uint32_t byte = 0; byte < 256; byte++) {
        bool visible = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        at += (size_t)snprintf(text + at, HEAD_BYTES - at, "%s\"\\u%04x\":%u", byte > 0 ? "," : "",
                               visible ? byte : 256 + others, byte);
        others += !visible;
    }
    return at;
}

static void use(const struct tokenizer *tokenizer, const uint8_t *text, size_t bytes) {
    struct tokenizer_encoder *encoder = NULL;
    const uint32_t *ids = NULL;
    size_t count = 0;
    if (tokenizer_encoder_open(&encoder, tokenizer) != STATUS_OK) return;
    if (tokenizer_encode(encoder, text, bytes, false, &ids, &count) == STATUS_OK) {
        uint8_t *again = malloc(bytes + 1);
        ASSERT(again != NULL);
        for (size_t i = 0; i < count; i++)
            ASSERT_OP(ids[i], <, tokenizer_vocab(tokenizer));
        ASSERT_OP(tokenizer_decode_bound(tokenizer, (const int32_t *)ids, count), ==, bytes);
        ASSERT_OP(tokenizer_decode(tokenizer, (const int32_t *)ids, count, again), ==, bytes);
        ASSERT(memcmp(again, text, bytes) == 0);
        free(again);
    }
    tokenizer_encoder_close(encoder);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes) {
    struct tokenizer *tokenizer = NULL;
    log_set_level(LOG_ERROR);
    if (bytes < 1) return 0;
    char *text = calloc(HEAD_BYTES + bytes, 1);
    ASSERT(text != NULL);
    bool json = (input[0] & 1) != 0;
    size_t head = (input[0] & 2) != 0 ? 0 : json ? json_head(text) : ranks_head(text);
    memcpy(text + head, input + 1, bytes - 1);
    size_t all = head + bytes - 1;
    enum status status = json ? tokenizer_parse_json(&tokenizer, text, all, "fuzz")
                              : tokenizer_parse_tiktoken(&tokenizer, text, all, "cl100k", "fuzz");
    if (status == STATUS_OK) {
        use(tokenizer, input, bytes);
        tokenizer_close(tokenizer);
    }
    free(text);
    return 0;
}
