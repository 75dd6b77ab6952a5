/* wake.h - rings a sleeping thread's bell: an eventfd that the sleeper polls. */
#ifndef RUBATO_BASE_WAKE_H
#define RUBATO_BASE_WAKE_H

#include "base/status.h"

#include <stdint.h>

struct wake {
    int fd; /* readable while a signal is pending */
};

/* IO when the process is out of descriptors (logged). */
enum status wake_init(struct wake *wake) WARN_UNUSED;
void wake_free(struct wake *wake);

/* Any thread, also from a signal handler; never blocks. */
void wake_signal(const struct wake *wake);

/* Forgets pending signals; call before looking for work, never after. Sleeper only. */
void wake_clear(const struct wake *wake);

/* Sleeps until one of `fds` [count <= 8] is readable or `timeout_ns` (>= 0) has passed. An fd of -1
 * is skipped. */
void wake_wait(const int *fds, int count, int64_t timeout_ns);

#endif
