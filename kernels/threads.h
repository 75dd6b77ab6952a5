/* threads.h - how many threads the kernels use.
 *
 * The kernels run on OpenMP's pool, as oneDNN below them does, so that one number rules both. The
 * setting belongs to the calling thread: a process with several models gives each its share.
 */
#ifndef RUBATO_KERNELS_THREADS_H
#define RUBATO_KERNELS_THREADS_H

/* For the calling thread's kernels from now on; count >= 1. */
void threads_set(int count);

/* Cores that this process may run on, by its affinity mask; at least 1. Any thread. */
int threads_available(void);

#endif
