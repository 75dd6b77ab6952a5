/* session_thread.h - the thread of a worker's session: polls it, and does as --poll says when it
 * has no work. */
#ifndef RUBATO_WORKER_SESSION_THREAD_H
#define RUBATO_WORKER_SESSION_THREAD_H

#include "base/idle.h"
#include "worker/session.h"

#include <pthread.h>
#include <stdatomic.h>

struct session_thread {
    struct session *session; /* the thread's while it runs */
    struct idle idle;        /* the thread's, likewise */
    struct wake wake;        /* the trainer rings it after a command */
    int signals;             /* signalfd (base/signals.h), or -1: a signal makes the worker leave */
    pthread_t thread;
    atomic_bool stop;
};

/* MEMORY when no thread can be had. */
enum status session_thread_start(struct session_thread *thread, struct session *session,
                                 int signals) WARN_UNUSED;

/* Ends the thread and waits for it. */
void session_thread_stop(struct session_thread *thread);

#endif
