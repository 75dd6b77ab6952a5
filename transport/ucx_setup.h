/* ucx_setup.h - what channel_ucx tells UCX before the first frame: settings and addresses.
 *
 * UCX would read UCX_* variables: they are taken out of the environment (channel_ucx.h), and the
 * settings that the channel relies on are made here. UCX's parser of worker addresses believes what
 * it is given, so an address travels wrapped (layout in ucx_setup.c) and nothing damaged, foreign,
 * or of another UCX release reaches the parser.
 */
#ifndef RUBATO_TRANSPORT_UCX_SETUP_H
#define RUBATO_TRANSPORT_UCX_SETUP_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>
#include <ucp/api/ucp.h>

/* A context for these net devices and transports (channel_ucx.h). DEVICE or MEMORY, logged. */
enum status ucx_setup_context(const char *net_devices, const char *tls,
                              ucp_context_h *context) WARN_UNUSED;

/* The transports and devices that carry an endpoint's frames, such as "rc_verbs/rxe0:1" ->
 * lanes [bytes]; "" when UCX does not say. Allocates. */
void ucx_setup_lanes(ucp_ep_h endpoint, char *lanes, size_t bytes);

/* The worker's wrapped address -> address [*bytes], capacity CHANNEL_ADDRESS_MAX. DEVICE,
 * logged. */
enum status ucx_setup_wrap(ucp_worker_h worker, uint8_t *address, size_t *bytes) WARN_UNUSED;

/* The address within; it lives as long as `address` [bytes]. INVALID, logged with the peer's
 * number. */
enum status ucx_setup_unwrap(uint32_t peer, const uint8_t *address, size_t bytes,
                             const ucp_address_t **unwrapped) WARN_UNUSED;

#endif
