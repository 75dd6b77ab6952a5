/* Frame headers from a stranger: decode, then check the rest as payload. The CRC keeps a fuzzer
 * out of the later checks, so each input is tried as it is and with its CRC mended. What decodes
 * must encode to the same bytes.
 */
#include "base/assert.h"
#include "base/checksum.h"
#include "proto/frame.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void try_header(const uint8_t header[FRAME_BYTES], const uint8_t *payload,
                       size_t payload_bytes) {
    struct frame frame;
    uint8_t again[FRAME_BYTES];
    if (frame_decode(header, &frame) != STATUS_OK) return;
    frame_encode(&frame, again);
    ASSERT(memcmp(again, header, FRAME_BYTES) == 0);
    enum status status = frame_check_payload(&frame, payload, payload_bytes);
    ASSERT(status == STATUS_OK || status == STATUS_CORRUPT);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    uint8_t header[FRAME_BYTES];
    if (bytes < FRAME_BYTES) return 0;
    memcpy(header, data, FRAME_BYTES);
    try_header(header, data + FRAME_BYTES, bytes - FRAME_BYTES);
    uint32_t crc = checksum_crc32c(header, FRAME_BYTES - 4);
    for (size_t i = 0; i < 4; i++)
        header[FRAME_BYTES - 4 + i] = (uint8_t)(crc >> (8 * i));
    try_header(header, data + FRAME_BYTES, bytes - FRAME_BYTES);
    return 0;
}
