/* either.h - a data channel of two kinds: shared memory on this host, a network beyond it.
 *
 * It has one channel of each kind that the process may use, under one set of peer numbers. Its
 * address holds both channels' addresses; connect() takes shared memory where both sides have it
 * and it leads there, else the network where both have it. Each side chooses for what it sends, so
 * that processes with different --channel work together as long as they have a kind in common.
 * offset size field of an address: 0 4 magic "REIT", 4 4 bytes of the shm address, 8 4 bytes of the
 * network's, 12 4 CRC32C of these 16 bytes with the CRC32C of the rest in this place; then the two
 * addresses, either of which may be missing.
 */
#ifndef RUBATO_TRANSPORT_EITHER_H
#define RUBATO_TRANSPORT_EITHER_H

#include "transport/channel.h"

/* Takes over both channels, of which one may be NULL, opened with `config`; they are closed in any
 * case. Each holds as many slots and sends as the config says. IO, logged. */
enum status either_open(struct channel *shm, struct channel *network,
                        const struct channel_config *config, struct channel **channel) WARN_UNUSED;

#endif
