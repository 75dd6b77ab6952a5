/* Any bytes as a .zst file, at a limit of a mebibyte: refused, or a content within the limit. Built
 * as the other fuzzers are. Without a frame's magic nothing interesting happens, so it is given.
 */
#include "base/assert.h"
#include "base/log.h"
#include "worker/zst.h"

#include <stdlib.h>
#include <string.h>

#define LIMIT ((uint64_t)1 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes) {
    static const uint8_t magic[4] = {0x28, 0xb5, 0x2f, 0xfd};
    uint8_t *content = NULL;
    uint64_t content_bytes = 0, sum = 0;
    log_set_level(LOG_ERROR);
    uint8_t *file = malloc(bytes + sizeof magic);
    ASSERT(file != NULL);
    memcpy(file, magic, sizeof magic);
    if (bytes > 0) memcpy(file + sizeof magic, input, bytes);
    if (zst_decode(file, bytes + sizeof magic, "fuzz", LIMIT, &content, &content_bytes) ==
        STATUS_OK) {
        ASSERT(content_bytes <= LIMIT);
        for (uint64_t i = 0; i < content_bytes; i++)
            sum += content[i];
        ASSERT(sum <= 255 * LIMIT);
        zst_free(content, content_bytes);
    }
    free(file);
    return 0;
}
