/* channel_ucx.h - the data channel over UCX active messages.
 *
 * One UCP context and one worker a channel, driven by its owner's thread. Endpoints are made from worker
 * addresses that came over the control channel; there is no ucp_listener (512 zero bytes from a
 * stranger abort a process that has one, UCX 1.13). Everything UCX is told goes through its
 * configuration calls, so that exported UCX_* variables are not needed.
 * Large payloads come by rendezvous straight into a slot. UCX's error callback only queues an
 * event. UCX has no authentication: its ports are bound to the chosen interface and belong on a
 * trusted network.
 */
#ifndef RUBATO_TRANSPORT_CHANNEL_UCX_H
#define RUBATO_TRANSPORT_CHANNEL_UCX_H

#include "transport/channel.h"

/* net_devices: UCX's names, comma-separated, e.g. "lo" or "eth0". DEVICE or MEMORY, logged. */
enum status channel_ucx_open(struct channel **channel, const struct channel_config *config,
                             const char *net_devices) WARN_UNUSED;

/* Once a process, before the first open: UCX's signal handlers and log level. */
void channel_ucx_setup(void);

/* The interface that has this numeric IP address -> name; "" when none has. */
void channel_ucx_device_of(const char *ip, char *name, size_t bytes);

#endif
