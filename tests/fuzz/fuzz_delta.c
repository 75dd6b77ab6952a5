/* Any bytes as steps of a replica, for any count: they are refused with the replica unchanged, or
 * found to lead elsewhere, or lead to where they say; no byte outside the buffers is touched. And
 * any weights and replica make a step that leads a second replica to the same bits.
 * Input: codec (1 byte), count (2 bytes), then payload and values.
 */
#include "base/assert.h"
#include "compression/delta.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void fuzz_apply(uint8_t codec, const uint8_t *data, size_t bytes, size_t count) {
    // Exact sizes on the heap, so that the address sanitizer sees one byte too many.
    uint8_t *payload = malloc(bytes + 1);
    float *replica = calloc(count + 1, sizeof *replica);
    float *before = calloc(count + 1, sizeof *before);
    struct delta_place place = {.version = 1, .check = 1};
    ASSERT(payload != NULL && replica != NULL && before != NULL);
    if (bytes > 0) memcpy(payload + 1, data, bytes);
    for (size_t i = 0; i < count; i++)
        replica[i + 1] = (float)i;
    memcpy(before, replica, (count + 1) * sizeof *before);
    if (bytes >= DELTA_HEAD) { // it is of our replica, as it says
        memcpy(&place.version, payload + 1, sizeof place.version);
        memcpy(&place.check, payload + 1 + 8, sizeof place.check);
    }
    enum status status =
        delta_apply(codec, payload + 1, bytes, UINT64_MAX, replica + 1, count, &place);
    if (status == STATUS_OK) {
        ASSERT(place.check == delta_check(replica + 1, count) && place.version == UINT64_MAX);
    } else if (status == STATUS_MISMATCH) {
        ASSERT(place.check == DELTA_NONE);
    } else {
        ASSERT(memcmp(before, replica, (count + 1) * sizeof *before) == 0);
    }
    free(before);
    free(replica);
    free(payload);
}

static void fuzz_encode(uint8_t codec, const uint8_t *data, size_t bytes) {
    size_t count = bytes / (2 * sizeof(float));
    size_t length = delta_step_bytes(codec, count);
    float *weights = calloc(count + 1, sizeof *weights);
    float *replica = calloc(count + 1, sizeof *replica);
    float *other = calloc(count + 1, sizeof *other);
    uint8_t *payload = malloc(DELTA_HEAD + length);
    ASSERT(weights != NULL && replica != NULL && other != NULL && payload != NULL);
    if (count > 0) {
        memcpy(weights, data, count * sizeof *weights);
        memcpy(replica, data + count * sizeof *replica, count * sizeof *replica);
        delta_rebase(replica, other, count);
        memcpy(replica, other, count * sizeof *replica);
    }
    struct delta_place place = {.version = 3, .check = delta_check(replica, count)};
    const struct delta_place from = place;
    if (delta_encode_step(codec, weights, replica, count, payload + DELTA_HEAD)) {
        delta_head_put(payload, &from, delta_check(replica, count), 1);
        ASSERT(delta_apply(codec, payload, DELTA_HEAD + length, 4, other, count, &place) ==
               STATUS_OK);
        ASSERT(memcmp(other, replica, count * sizeof *other) == 0);
    }
    free(payload);
    free(other);
    free(replica);
    free(weights);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes < 3) return 0;
    uint8_t codec = data[0] % 2 == 0 ? CODEC_DELTA_INT8 : CODEC_DELTA_INT4;
    size_t count = (size_t)(data[1] | data[2] << 8) % 1024;
    data += 3;
    bytes -= 3;
    fuzz_apply(codec, data, bytes, count);
    // Lengths that fit, which random ones would seldom be.
    for (size_t steps = 0; steps <= DELTA_STEPS_TOP; steps++) {
        size_t right = DELTA_HEAD + steps * delta_step_bytes(codec, count);
        uint32_t number = (uint32_t)steps;
        uint8_t *copy = malloc(right);
        ASSERT(copy != NULL);
        if (right <= bytes) {
            memcpy(copy, data, right);
            memcpy(copy + 16, &number, sizeof number);
            fuzz_apply(codec, copy, right, count);
        }
        free(copy);
    }
    fuzz_encode(codec, data, bytes);
    return 0;
}
