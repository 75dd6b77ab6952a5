#include "base/signals.h"

#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

static void ending_signals(sigset_t *set) {
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
}

enum status signals_open(int *fd) {
    sigset_t set;
    ending_signals(&set);
    (void)signal(SIGPIPE, SIG_IGN);
    int opened = pthread_sigmask(SIG_BLOCK, &set, NULL) == 0
                     ? signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC)
                     : -1;
    if (opened < 0) {
        log_error("no signalfd: %s", strerror(errno));
        return STATUS_IO;
    }
    *fd = opened;
    return STATUS_OK;
}

int signals_read(int fd) {
    struct signalfd_siginfo info;
    sigset_t set;
    if (fd < 0 || read(fd, &info, sizeof info) != (ssize_t)sizeof info) {
        return 0;
    }
    ending_signals(&set);
    /* A process that a shell put into the background has them ignored. */
    (void)signal(SIGINT, SIG_DFL);
    (void)signal(SIGTERM, SIG_DFL);
    (void)pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    return (int)info.ssi_signo;
}

const char *signals_name(int number) {
    return number == SIGINT ? "SIGINT" : number == SIGTERM ? "SIGTERM" : "a signal";
}
