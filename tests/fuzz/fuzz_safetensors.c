/* A stranger's safetensors header, behind its length and followed by `size` bytes of data: the
 * first two bytes of the input say how many. What is accepted must fill the file from the header's
 * end to its own, without holes, with names and dimensions within their bounds.
 */
#include "base/assert.h"
#include "worker/safetensors_read.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct safetensors_tensor *tensors = NULL;
    uint64_t count = 0;
    if (bytes < 2) return 0;
    size_t header_bytes = bytes - 2;
    uint64_t end = 8 + header_bytes, file_bytes = end + data[0] + ((uint64_t)data[1] << 8);
    char *text = malloc(header_bytes > 0 ? header_bytes : 1);
    if (text == NULL) return 0;
    memcpy(text, data + 2, header_bytes);
    enum status status =
        safetensors_parse_header("fuzz", text, header_bytes, file_bytes, &tensors, &count);
    ASSERT(status == STATUS_OK || status == STATUS_CORRUPT);
    for (uint64_t i = 0; i < count; i++) {
        ASSERT(tensors[i].begin == end && tensors[i].end >= end);
        ASSERT(tensors[i].dims <= SAFETENSORS_DIMS_MAX);
        ASSERT(strlen(tensors[i].name) <= SAFETENSORS_NAME_MAX);
        end = tensors[i].end;
    }
    if (status == STATUS_OK) ASSERT(end == file_bytes);
    free(tensors);
    free(text);
    return 0;
}
