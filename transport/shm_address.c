#include "transport/shm_address.h"

#include "base/checksum.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(struct shm_address) == 40, "part of the published address");

#define BOOT_PATH "/proc/sys/kernel/random/boot_id"

static uint32_t check_of(const struct shm_address *address) {
    return checksum_crc32c(address, offsetof(struct shm_address, crc32c));
}

enum status shm_address_make(struct shm_address *address, const uint8_t name[SHM_NAME_BYTES]) {
    char text[64];
    int fd = open(BOOT_PATH, O_RDONLY | O_CLOEXEC);
    ssize_t bytes = fd >= 0 ? read(fd, text, sizeof text) : -1;
    if (fd >= 0) close(fd);
    if (bytes < 32) {
        log_error("cannot read %s: %s; --channel ucx does not need it", BOOT_PATH, strerror(errno));
        return STATUS_IO;
    }
    const uint64_t digests[] = {checksum_xxh3(text, (size_t)bytes),
                                checksum_xxh3(text, (size_t)bytes / 2)};
    _Static_assert(sizeof digests == SHM_NAME_BYTES, "the boot is two digests");
    *address = (struct shm_address){.magic = SHM_MAGIC};
    memcpy(address->boot, digests, sizeof digests);
    memcpy(address->name, name, SHM_NAME_BYTES);
    address->crc32c = check_of(address);
    return STATUS_OK;
}

enum status shm_address_read(struct shm_address *address, const uint8_t *bytes, size_t length,
                             const struct shm_address *own) {
    if (length != sizeof *address) return STATUS_INVALID;
    memcpy(address, bytes, sizeof *address);
    if (address->magic != SHM_MAGIC || address->crc32c != check_of(address)) return STATUS_INVALID;
    bool here = memcmp(address->boot, own->boot, sizeof own->boot) == 0;
    return here ? STATUS_OK : STATUS_UNSUPPORTED;
}
