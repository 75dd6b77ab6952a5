/* shm_address.h - where a process is found by those of its host: the published address of
 * channel_shm.
 *
 * offset size field: 0 4 magic, 4 16 digest of the boot, 20 16 name of a Unix socket
 * (shm_socket.h), 36 4 CRC32C of what is before it. The boot is the kernel's random number of this
 * boot, which all containers of the host see and no other host has.
 */
#ifndef RUBATO_TRANSPORT_SHM_ADDRESS_H
#define RUBATO_TRANSPORT_SHM_ADDRESS_H

#include "base/status.h"
#include "transport/shm_socket.h"

#include <stddef.h>
#include <stdint.h>

struct shm_address {
    uint32_t magic; /* SHM_MAGIC */
    uint8_t boot[SHM_NAME_BYTES];
    uint8_t name[SHM_NAME_BYTES];
    uint32_t crc32c;
};

/* That of a socket of this host. IO, logged. */
enum status shm_address_make(struct shm_address *address,
                             const uint8_t name[SHM_NAME_BYTES]) WARN_UNUSED;

/* bytes [length] -> *address. INVALID: it is none; UNSUPPORTED: of another host than `own`. */
enum status shm_address_read(struct shm_address *address, const uint8_t *bytes, size_t length,
                             const struct shm_address *own) WARN_UNUSED;

#endif
