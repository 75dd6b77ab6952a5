#include "transport/channel.h"

#include <string.h>

enum status channel_address_keep(struct channel_address *address, const uint8_t *data,
                                 size_t bytes) {
    if (bytes > sizeof address->data) return STATUS_INVALID;
    address->bytes = bytes;
    memcpy(address->data, data, bytes);
    return STATUS_OK;
}

enum status channel_memory(struct channel *channel, size_t bytes, struct arena *own,
                           uint8_t **memory) {
    enum status status = STATUS_UNSUPPORTED;
    if (channel->ops->memory) status = channel->ops->memory(channel, bytes, memory);
    if (status != STATUS_UNSUPPORTED) return status;
    TRY(arena_init(own, bytes));
    *memory = arena_take(own, bytes);
    return STATUS_OK;
}
