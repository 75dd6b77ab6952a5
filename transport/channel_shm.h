/* channel_shm.h - the data channel between processes of one host: payloads stay where they are.
 *
 * What memory() gives lies in a memfd that peers map for reading. A payload from there is sent by
 * its offset: the receiver reads it in place, and the sender's CHANNEL_SENT comes when the receiver
 * has released the slot. A payload from elsewhere (slot_bytes at most) is copied once, into a ring
 * of the channel's. The parts: shm_link.h (one direction), shm_memory.h, shm_socket.h.
 * Peers find each other by an address that names the host's boot and a Unix socket. connect() fails
 * with PEER_LOST where there is no such path: another host, another network namespace, another
 * user, a process that has ended. A peer's end is seen as its socket's; what it has sent completely
 * is still received, and its memory stays mapped until all slots in it are released.
 *
 * Trust. Peers are processes of the same user; others are refused. Each maps the other's memory
 * for reading only, sealed against truncation; indices, offsets and lengths are taken once and
 * checked, and a peer that has them wrong loses the connection. But a sender can still change a
 * payload after its checksum was verified. Decoders check a payload before they add it, and would
 * be deceived. This is left so, for the sake of "no copy": a process of the same user can as well
 * attach to this one as a debugger or replace its program. Ours do not touch a payload before its
 * CHANNEL_SENT.
 */
#ifndef RUBATO_TRANSPORT_CHANNEL_SHM_H
#define RUBATO_TRANSPORT_CHANNEL_SHM_H

#include "transport/channel.h"

/* MEMORY or IO, logged. Its connect() logs why it fails as debug messages: there may be another
 * way to the peer. */
enum status channel_shm_open(struct channel **channel,
                             const struct channel_config *config) WARN_UNUSED;

#endif
