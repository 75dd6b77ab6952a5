/* ucx_memory.h - the memory of a UCX channel that is registered once: its slots, and what its owner
 * sends from.
 *
 * RDMA devices read and write registered memory only. Mapped here, it is registered from now until
 * the channel closes; each receive and each send names the handle, so that no message waits for a
 * registration. For TCP a handle says nothing and costs nothing. What else is sent UCX registers at
 * its first use and keeps in its cache, whose limits are set in ucx_setup.c: a device's memory, the
 * whole allocation at once.
 * UCX 1.13 does not take the handle of a receive that the receiver reads by RDMA (rndv.c has an
 * index for a mask there) but looks the memory up in that cache, where the mapping is.
 * The channel's owner alone calls.
 */
#ifndef RUBATO_TRANSPORT_UCX_MEMORY_H
#define RUBATO_TRANSPORT_UCX_MEMORY_H

#include "base/memory.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>
#include <ucp/api/ucp.h>

#define UCX_MEMORY_PIECES_MAX 8

struct ucx_memory_piece {
    struct arena arena; /* where it was taken; empty: somebody else's */
    const uint8_t *base;
    size_t bytes;
    ucp_mem_h handle;
};

struct ucx_memory {
    struct ucx_memory_piece pieces[UCX_MEMORY_PIECES_MAX];
    uint32_t count;
    uint64_t bytes; /* of all */
};

/* Maps base [bytes >= 1] host, the caller's, until ucx_memory_free(). UNSUPPORTED: there are too
 * many pieces; MEMORY, logged. */
enum status ucx_memory_map(struct ucx_memory *memory, ucp_context_h context, const void *base,
                           size_t bytes) WARN_UNUSED;

/* Zeroed, mapped memory -> *base [bytes >= 1]. UNSUPPORTED or MEMORY, likewise. */
enum status ucx_memory_take(struct ucx_memory *memory, ucp_context_h context, size_t bytes,
                            uint8_t **base) WARN_UNUSED;

/* The handle of the piece that a payload lies in; NULL when it lies in none. */
ucp_mem_h ucx_memory_handle(const struct ucx_memory *memory, const void *payload);

/* Unmaps and frees all; before the context is cleaned up. Harmless on a zeroed struct. */
void ucx_memory_free(struct ucx_memory *memory, ucp_context_h context);

#endif
