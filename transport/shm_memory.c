#define _GNU_SOURCE /* memfd_create, F_ADD_SEALS; NOLINT(*-identifier*) */

#include "transport/shm_memory.h"

#include "base/assert.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define SIZE_SEALS      (F_SEAL_SHRINK | F_SEAL_GROW)
#define OWN_SEALS       (SIZE_SEALS | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)
#define BYTES_MAX       ((uint64_t)1 << 46)
#define HUGE_PAGE_BYTES ((size_t)2 << 20)

enum status shm_memory_create(struct shm_memory *memory, size_t bytes) {
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    ASSERT(bytes >= 1 && bytes <= BYTES_MAX);
    size_t whole_bytes = (bytes + page_bytes - 1) & ~(page_bytes - 1);
    void *base = MAP_FAILED;
    int fd = memfd_create("rubato", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 && ftruncate(fd, (off_t)whole_bytes) == 0) {
        base = mmap(NULL, whole_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (base == MAP_FAILED || fcntl(fd, F_ADD_SEALS, OWN_SEALS) != 0) {
        log_error("cannot make %zu bytes of shared memory: %s; --channel ucx needs none",
                  whole_bytes, strerror(errno));
        if (base != MAP_FAILED) munmap(base, whole_bytes);
        if (fd >= 0) close(fd);
        return STATUS_MEMORY;
    }
    /* Only advice: where huge pages are off, ordinary ones do. */
    if (whole_bytes >= HUGE_PAGE_BYTES) (void)madvise(base, whole_bytes, MADV_HUGEPAGE);
    *memory = (struct shm_memory){.base = base, .bytes = whole_bytes, .fd = fd};
    return STATUS_OK;
}

/* Sealed, of this size, and on tmpfs: a fault in a hugetlbfs page may be a SIGBUS, too. */
static bool is_sound(int fd, uint64_t bytes) {
    struct stat file;
    struct statfs system;
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & SIZE_SEALS) == SIZE_SEALS && fstat(fd, &file) == 0 &&
           bytes >= 1 && bytes <= BYTES_MAX && (uint64_t)file.st_size == bytes &&
           fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC;
}

enum status shm_memory_map(struct shm_memory *memory, int fd, uint64_t bytes) {
    enum status status = STATUS_CORRUPT;
    if (is_sound(fd, bytes)) {
        void *base = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0);
        status = base == MAP_FAILED ? STATUS_MEMORY : STATUS_OK;
        if (status == STATUS_OK) {
            *memory = (struct shm_memory){.base = base, .bytes = (size_t)bytes, .fd = -1};
        }
    }
    close(fd);
    return status;
}

void shm_memory_free(struct shm_memory *memory) {
    if (memory->base) {
        munmap(memory->base, memory->bytes);
        if (memory->fd >= 0) close(memory->fd);
    }
    *memory = (struct shm_memory){.fd = -1};
}
