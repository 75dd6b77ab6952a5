#define _GNU_SOURCE /* mlock2; NOLINT(*-identifier*) */
#include "transport/limits.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum status limits_files(uint64_t files, enum log_level level) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= files) return STATUS_OK;
    struct rlimit wanted = {.rlim_cur = files, .rlim_max = limit.rlim_max};
    if (files <= limit.rlim_max && setrlimit(RLIMIT_NOFILE, &wanted) == 0) return STATUS_OK;
    log_write(level,
              "this process may open %" PRIu64 " files and needs %" PRIu64
              " for its connections: raise it with `ulimit -n`, LimitNOFILE= of a systemd unit, or "
              "nofile in /etc/security/limits.conf",
              (uint64_t)limit.rlim_max, files);
    return STATUS_IO;
}

/* The kernel's own answer, which also knows of capabilities. Nothing is touched: ONFAULT only
 * counts. */
static bool may_lock(size_t bytes) {
    void *probe = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (probe == MAP_FAILED) return false;
    bool locked = mlock2(probe, bytes, MLOCK_ONFAULT) == 0;
    (void)munmap(probe, bytes);
    return locked;
}

enum status limits_locked(uint64_t bytes, enum log_level level) {
    struct rlimit limit;
    if (may_lock(bytes) || getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return STATUS_OK;
    struct rlimit wanted = {.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
    if (setrlimit(RLIMIT_MEMLOCK, &wanted) == 0 && may_lock(bytes)) return STATUS_OK;
    log_write(level,
              "RDMA needs about %" PRIu64
              " MiB of locked memory, and this process may lock %" PRIu64
              " KiB: raise it with `ulimit -l unlimited`, LimitMEMLOCK=infinity of a systemd unit, "
              "or memlock in /etc/security/limits.conf; or use --tls tcp",
              (bytes >> 20) + 1, (uint64_t)limit.rlim_max >> 10);
    return STATUS_MEMORY;
}
