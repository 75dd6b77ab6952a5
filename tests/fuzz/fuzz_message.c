/* Control messages from a stranger: unpack within a scratch that is too small for the greedy ones.
 * What was understood can be packed again. It unpacks from that to the same body, or not at all:
 * protobuf-c takes an unknown field of number 0 where its tag is written in two bytes, and refuses
 * the one byte that it packs it to.
 */
#include "base/assert.h"
#include "proto/message.h"

#include <stdint.h>
#include <stdlib.h>

#define SCRATCH_BYTES ((size_t)65536)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct message_scratch scratch;
    struct message_scratch other = {0};
    const Rubato__Message *message = NULL;
    const Rubato__Message *back = NULL;
    size_t count = 0;
    uint8_t *packed = NULL;
    if (message_scratch_init(&scratch, SCRATCH_BYTES) != STATUS_OK) return 0;
    if (message_unpack(&scratch, data, bytes, &message) != STATUS_OK) goto free_scratch;
    packed = malloc(MESSAGE_MAX);
    if (packed == NULL) goto free_scratch;
    if (message_scratch_init(&other, 2 * SCRATCH_BYTES) != STATUS_OK) goto free_scratch;
    /* A repeated number outside a packed field grows by a byte, so a full message may not fit. */
    if (message_pack(message, packed, MESSAGE_MAX, &count) != STATUS_OK) goto free_scratch;
    if (message_unpack(&other, packed, count, &back) != STATUS_OK) goto free_scratch;
    ASSERT_OP(back->body_case, ==, message->body_case);
free_scratch:
    free(packed);
    message_scratch_free(&other);
    message_scratch_free(&scratch);
    return 0;
}
