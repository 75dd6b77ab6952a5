/* Any bytes as a JSONL file: what the reader takes must come out as it says: no longer than what
 * went in, valid UTF-8, and the same again when read by documents. Built as the other fuzzers are.
 */
#include "base/assert.h"
#include "base/log.h"
#include "worker/jsonl.h"
#include "worker/utf8.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes);

/* A copy of just the right size, so that a sanitizer sees each byte beyond. */
static uint8_t *copy_of(const uint8_t *input, size_t bytes) {
    uint8_t *copy = malloc(bytes + (bytes == 0));
    ASSERT(copy != NULL);
    if (bytes > 0) memcpy(copy, input, bytes);
    return copy;
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes) {
    log_set_level(LOG_ERROR);
    uint8_t *joined = copy_of(input, bytes), *content = copy_of(input, bytes), *text = NULL;
    uint64_t joined_bytes = 0, text_bytes = 0, at = 0;
    struct jsonl jsonl;
    bool looks_like = jsonl_looks_like(content, bytes);
    ASSERT(bytes == 0 || memcmp(content, input, bytes) == 0);
    enum status whole = jsonl_join(joined, bytes, "fuzz", &joined_bytes);
    jsonl_init(&jsonl, content, bytes, "fuzz");
    enum status status = jsonl_next(&jsonl, &text, &text_bytes);
    ASSERT(!looks_like || status == STATUS_OK);
    for (bool first = true; status == STATUS_OK; first = false) {
        ASSERT(text >= content && text + text_bytes <= content + bytes);
        ASSERT_OP(utf8_valid(text, (size_t)text_bytes), ==, text_bytes);
        if (whole == STATUS_OK) {
            if (!first) ASSERT(joined[at++] == '\n');
            ASSERT(at + text_bytes <= joined_bytes);
            ASSERT(memcmp(joined + at, text, (size_t)text_bytes) == 0);
        }
        at += text_bytes;
        status = jsonl_next(&jsonl, &text, &text_bytes);
    }
    ASSERT((status == STATUS_AGAIN) == (whole == STATUS_OK));
    if (whole == STATUS_OK) ASSERT_OP(at, ==, joined_bytes);
    free(joined);
    free(content);
    return 0;
}
