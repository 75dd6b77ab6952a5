/* channel_ucx.h - the data channel over UCX active messages.
 *
 * One UCP context and one worker a channel, driven by its owner's thread. Endpoints are made from
 * worker addresses that came over the control channel; there is no ucp_listener (512 zero bytes
 * from a stranger abort a process that has one, UCX 1.13). What UCX must be told is set here, over
 * any exported UCX_* variable.
 * Payloads over a threshold come by rendezvous straight into a slot; shorter ones come eagerly,
 * into memory of UCX that stands in for the slot. A message that finds all slots taken waits: a
 * rendezvous at its sender, an eager one in a bounded queue; when that is nearly full the channel
 * stops progressing until a slot is released, and TCP holds the senders back. So an owner must not
 * wait for its own sends to complete before it releases slots.
 * UCX's error callback only queues an event. UCX has no authentication: its ports are bound to the
 * chosen interface and belong on a trusted network.
 */
#ifndef RUBATO_TRANSPORT_CHANNEL_UCX_H
#define RUBATO_TRANSPORT_CHANNEL_UCX_H

#include "transport/channel.h"

/* net_devices: UCX's names, comma-separated: an interface ("lo", "eth0") is driven by TCP, a name
 * with a port ("mlx5_0:1") by verbs; "" means all interfaces. DEVICE or MEMORY, logged. */
enum status channel_ucx_open(struct channel **channel, const struct channel_config *config,
                             const char *net_devices) WARN_UNUSED;

/* Once a process, before its threads start and before the first open: UCX's signal handlers off,
 * its log silent, its TCP segments sized (by setenv). */
void channel_ucx_setup(void);

/* The interface that has this numeric IP address -> name; "" when none has. */
void channel_ucx_device_of(const char *ip, char *name, size_t bytes);

#endif
