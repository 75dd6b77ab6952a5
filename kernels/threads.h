/* threads.h - how many threads the kernels use.
 *
 * The kernels run on OpenMP's pool, as oneDNN below them does, so that one number rules both. The
 * setting belongs to the calling thread: a process with several models gives each its share.
 * Threads stay within the process's affinity mask (taskset, Slurm, a container), which also says
 * how many there are by default. They are not pinned to single cores from here: several processes
 * of a job may share a host, and would pin themselves to the same cores; and libgomp ends the
 * threads that a smaller parallel region has no use for (oneDNN opens such ones), so that a pin
 * would be lost with its thread. Where a process has its cores for itself, OMP_PROC_BIND=true in
 * its environment pins for good, since libgomp then binds each thread that it starts.
 */
#ifndef RUBATO_KERNELS_THREADS_H
#define RUBATO_KERNELS_THREADS_H

/* For the calling thread's kernels from now on; count >= 1. */
void threads_set(int count);

/* Cores that this process may run on, by its affinity mask; at least 1. Any thread. */
int threads_available(void);

#endif
