/* ucx_devices.h - the memory of a CUDA device that a UCX channel sends payloads from.
 *
 * UCX must have been built with CUDA, and is asked at run time. It is used by RDMA alone: a card
 * can read a device's memory, but to a socket the host's is nearer. A context goes by the calling
 * thread's current device, so it is for one device; rails.h has one for each.
 * The channel's owner alone calls.
 */
#ifndef RUBATO_TRANSPORT_UCX_DEVICES_H
#define RUBATO_TRANSPORT_UCX_DEVICES_H

#include "base/options.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <ucp/api/ucp.h>

struct ucx_devices {
    bool wanted;
    const void *memory; /* [bytes] */
    size_t bytes;
};

/* Whether all of these transports are RDMA's. Pure. */
bool ucx_devices_possible(const char *tls);

/* UCX's transports with what it needs for devices, if they are wanted and possible: tls ->
 * transports. */
void ucx_devices_init(struct ucx_devices *devices, bool wanted, const char *tls,
                      char transports[OPTION_TEXT_MAX]);

/* One piece; of 0 bytes only to ask. UNSUPPORTED: not wanted, not by RDMA, or UCX does not know
 * CUDA. */
enum status ucx_devices_add(struct ucx_devices *devices, ucp_context_h context, const void *memory,
                            size_t bytes) WARN_UNUSED;

/* Where a payload lies, as UCX calls it. */
ucs_memory_type_t ucx_devices_type(const struct ucx_devices *devices, const void *payload);

#endif
