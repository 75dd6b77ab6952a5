/* channel_ucx.h - the data channel over UCX active messages.
 *
 * One UCP context and one worker a channel, driven by its owner's thread. Endpoints are made from
 * worker addresses that came over the control channel; there is no ucp_listener (512 zero bytes
 * from a stranger abort a process that has one, UCX 1.13). What UCX must be told is set here, and
 * exported UCX_* variables are taken out of the environment before UCX reads them. What its library
 * constructors do with them before main() stays (UCX 1.13): UCX_LOG_FILE, UCX_PROFILE_MODE and
 * UCX_MEMTRACK_DEST write their files, and end a process that cannot write its log; UCX_CONFIG_DIR
 * is one more folder where a ucx.conf counts, as it does in the user's home and the working folder.
 * Payloads over a threshold come by rendezvous straight into a slot; shorter ones come eagerly,
 * into memory of UCX that stands in for the slot. A message that finds all slots taken waits: a
 * rendezvous at its sender, an eager one in a bounded queue; when that is nearly full the channel
 * stops progressing until a slot is released, and TCP holds the senders back. So an owner must not
 * wait for its own sends to complete before it releases slots.
 * Payloads may lie on a single CUDA device where UCX knows them and goes by RDMA (ucx_devices.h):
 * on the calling thread's current one, in all calls.
 * A peer that was lost can be connected again over TCP, not over RDMA.
 * UCX's error callback only queues an event. UCX has no authentication: its ports are bound to the
 * chosen interface and belong on a trusted network.
 */
#ifndef RUBATO_TRANSPORT_CHANNEL_UCX_H
#define RUBATO_TRANSPORT_CHANNEL_UCX_H

#include "transport/channel.h"

/* What UCX itself locks for a channel over RDMA, beside its slots and what is sent from: some 4096
 * receives of 8 KiB, and as much for the rest. */
#define CHANNEL_UCX_LOCKED_BYTES ((uint64_t)64 << 20)

/* net_devices: UCX's names, comma-separated: an interface ("lo", "eth0") is driven by TCP, a name
 * with a port ("mlx5_0:1") by verbs; "" means all interfaces. tls: UCX's names of transports;
 * "": as channel_ucx_tls says. DEVICE or MEMORY, logged. */
enum status channel_ucx_open(struct channel **channel, const struct channel_config *config,
                             const char *net_devices, const char *tls) WARN_UNUSED;

/* Ends a channel's connection to a peer, if there is one: what is in flight by it ends with
 * PEER_LOST, and sends fail until it is connected again. */
void channel_ucx_disconnect(struct channel *channel, uint32_t peer);

/* Takes UCX_* out of the environment, but UCX_MODULE_DIR and UCX_MEM_*, and names in a line what it
 * took. While the process has one thread: for who starts processes; channel_ucx_setup() does it,
 * too. */
void channel_ucx_clear_environment(void);

/* Can the peer, which was lost, be connected again? Not over RDMA, logged. */
bool channel_ucx_connects_again(const struct channel *channel, uint32_t peer);

/* Once a process, before its threads start and before the first open: UCX's signal handlers off,
 * its log silent, its environment cleared. */
void channel_ucx_setup(void);

/* The transports that are used: tls, or, where it is "", what drives the net devices: tcp, ib, or
 * both. Pure. */
const char *channel_ucx_tls(const char *net_devices, const char *tls);

/* Do some of these transports need an RDMA device? Pure. */
bool channel_ucx_is_verbs(const char *tls);

/* UCX's version, as text. */
const char *channel_ucx_version(void);

/* The interface that has this numeric IP address -> name; "" when none has. */
void channel_ucx_device_of(const char *ip, char *name, size_t bytes);

/* The RDMA device and port behind a network interface, such as "mlx5_0:1" -> name; "" when none
 * is. */
void channel_ucx_rdma_of(const char *interface, char *name, size_t bytes);

#endif
