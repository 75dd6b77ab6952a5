#include "transport/channel.h"

enum status channel_memory(struct channel *channel, size_t bytes, struct arena *own,
                           uint8_t **memory) {
    enum status status = STATUS_UNSUPPORTED;
    if (channel->ops->memory) status = channel->ops->memory(channel, bytes, memory);
    if (status != STATUS_UNSUPPORTED) return status;
    TRY(arena_init(own, bytes));
    *memory = arena_take(own, bytes);
    return STATUS_OK;
}
