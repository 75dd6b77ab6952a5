/* shard_thread.h - the thread of a shard: polls it, and does as --poll says when there is nothing
 * to do. */
#ifndef RUBATO_SERVER_SHARD_THREAD_H
#define RUBATO_SERVER_SHARD_THREAD_H

#include "base/idle.h"
#include "server/shard.h"

#include <pthread.h>
#include <stdatomic.h>

struct shard_thread {
    struct shard *shard; /* the thread's while it runs */
    struct idle idle;    /* the thread's, likewise */
    struct wake wake;    /* signal it after a verdict */
    pthread_t thread;
    atomic_bool stop;
};

/* MEMORY when no thread can be had. */
enum status shard_thread_start(struct shard_thread *thread, struct shard *shard) WARN_UNUSED;

/* Ends the thread and waits for it; the shard is the caller's again. */
void shard_thread_stop(struct shard_thread *thread);

#endif
