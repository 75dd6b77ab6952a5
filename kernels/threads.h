/* threads.h - how many threads the kernels use. */
#ifndef RUBATO_KERNELS_THREADS_H
#define RUBATO_KERNELS_THREADS_H

/* For the calling thread's kernels from now on; count >= 1. */
void threads_set(int count);

/* Cores that this process may run on. */
int threads_available(void);

#endif
