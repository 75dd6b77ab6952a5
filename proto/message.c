#include "proto/message.h"

#include <stdlib.h>

#define SCRATCH_ALIGN ((size_t)16)

/* protobuf-c's allocator over the scratch: pieces are cut from its front and given back all at
 * once, by the next unpack. NULL makes the unpack fail, cleanly. */
static void *scratch_alloc(void *context, size_t bytes) {
    struct message_scratch *scratch = context;
    if (bytes > scratch->capacity - scratch->used) return NULL;
    uint8_t *piece = scratch->memory + scratch->used;
    size_t left = scratch->capacity - scratch->used;
    size_t rounded = (bytes + SCRATCH_ALIGN - 1) & ~(SCRATCH_ALIGN - 1);
    scratch->used += rounded < left ? rounded : left;
    return piece;
}

static void scratch_release(void *context, void *piece) {
    (void)context;
    (void)piece;
}

enum status message_scratch_init(struct message_scratch *scratch, size_t capacity) {
    uint8_t *memory = malloc(capacity);
    if (memory == NULL) return STATUS_MEMORY;
    *scratch = (struct message_scratch){.memory = memory, .capacity = capacity};
    return STATUS_OK;
}

void message_scratch_free(struct message_scratch *scratch) {
    free(scratch->memory);
    *scratch = (struct message_scratch){0};
}

enum status message_unpack(struct message_scratch *scratch, const uint8_t *bytes, size_t count,
                           const Rubato__Message **message) {
    if (count > MESSAGE_MAX) return STATUS_CORRUPT;
    scratch->used = 0;
    ProtobufCAllocator allocator = {
        .alloc = scratch_alloc, .free = scratch_release, .allocator_data = scratch};
    const Rubato__Message *unpacked = rubato__message__unpack(&allocator, count, bytes);
    if (unpacked == NULL) return STATUS_CORRUPT;
    /* A body that this build does not know is skipped by protobuf-c and leaves the oneof unset. */
    if (unpacked->body_case == RUBATO__MESSAGE__BODY__NOT_SET) return STATUS_CORRUPT;
    *message = unpacked;
    return STATUS_OK;
}

enum status message_pack(const Rubato__Message *message, uint8_t *bytes, size_t capacity,
                         size_t *count) {
    if (message->body_case == RUBATO__MESSAGE__BODY__NOT_SET) return STATUS_INVALID;
    size_t needed = rubato__message__get_packed_size(message);
    if (needed > capacity || needed > MESSAGE_MAX) return STATUS_INVALID;
    *count = rubato__message__pack(message, bytes);
    return STATUS_OK;
}

const char *message_name(const Rubato__Message *message) {
    const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field(
        &rubato__message__descriptor, (unsigned)message->body_case);
    return field == NULL ? "none" : field->name;
}
