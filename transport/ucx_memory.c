#include "transport/ucx_memory.h"

#include "base/log.h"

enum status ucx_memory_map(struct ucx_memory *memory, ucp_context_h context, const void *base,
                           size_t bytes) {
    if (memory->count == UCX_MEMORY_PIECES_MAX) return STATUS_UNSUPPORTED;
    struct ucx_memory_piece *piece = &memory->pieces[memory->count];
    const ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = (void *)base,
        .length = bytes,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    ucs_status_t code = ucp_mem_map(context, &params, &piece->handle);
    if (code != UCS_OK) {
        log_error("ucx: cannot register %zu bytes: %s (is `ulimit -l` too low?)", bytes,
                  ucs_status_string(code));
        return STATUS_MEMORY;
    }
    piece->base = base;
    piece->bytes = bytes;
    memory->count++;
    memory->bytes += bytes;
    return STATUS_OK;
}

enum status ucx_memory_take(struct ucx_memory *memory, ucp_context_h context, size_t bytes,
                            uint8_t **base) {
    struct arena arena = {0};
    TRY(arena_init(&arena, bytes));
    uint8_t *taken = arena_take(&arena, bytes);
    enum status status = ucx_memory_map(memory, context, taken, bytes);
    if (status != STATUS_OK) {
        arena_free(&arena);
        return status;
    }
    memory->pieces[memory->count - 1].arena = arena;
    *base = taken;
    return STATUS_OK;
}

ucp_mem_h ucx_memory_handle(const struct ucx_memory *memory, const void *payload) {
    for (uint32_t i = 0; i < memory->count; i++) {
        const struct ucx_memory_piece *piece = &memory->pieces[i];
        if ((uintptr_t)payload - (uintptr_t)piece->base < piece->bytes) return piece->handle;
    }
    return NULL;
}

void ucx_memory_free(struct ucx_memory *memory, ucp_context_h context) {
    for (uint32_t i = 0; i < memory->count; i++) {
        struct ucx_memory_piece *piece = &memory->pieces[i];
        ucs_status_t code = ucp_mem_unmap(context, piece->handle);
        if (code != UCS_OK) log_warn("ucx: cannot unmap: %s", ucs_status_string(code));
        arena_free(&piece->arena);
    }
    *memory = (struct ucx_memory){0};
}
