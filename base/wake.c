#define _GNU_SOURCE /* ppoll; NOLINT(*-identifier*) */

#include "base/wake.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define WAIT_FDS_MAX 8

enum status wake_init(struct wake *wake) {
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (fd < 0) {
        log_error("cannot make an eventfd: %s", strerror(errno));
        return STATUS_IO;
    }
    wake->fd = fd;
    return STATUS_OK;
}

void wake_free(struct wake *wake) {
    if (wake->fd >= 0) close(wake->fd);
    wake->fd = -1;
}

void wake_signal(const struct wake *wake) {
    int saved_errno = errno; /* a signal handler must leave it as it was */
    uint64_t one = 1;
    /* EAGAIN means that the counter is at its top: then the bell is rung already. */
    ssize_t written = write(wake->fd, &one, sizeof one);
    (void)written;
    errno = saved_errno;
}

void wake_clear(const struct wake *wake) {
    uint64_t count;
    ssize_t bytes = read(wake->fd, &count, sizeof count);
    (void)bytes; /* EAGAIN: there was none */
}

void wake_wait(const int *fds, int count, int64_t timeout_ns) {
    ASSERT(count >= 0 && count <= WAIT_FDS_MAX);
    ASSERT(timeout_ns >= 0);
    struct pollfd polled[WAIT_FDS_MAX];
    for (int i = 0; i < count; i++)
        polled[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / CLOCK_S),
                               .tv_nsec = (long)(timeout_ns % CLOCK_S)};
    /* An interrupted wait returns early, which callers must expect anyway: a signal handler may
     * have set the flag that they look at. */
    (void)ppoll(polled, (nfds_t)count, &timeout, NULL);
}
