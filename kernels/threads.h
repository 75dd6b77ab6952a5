/* threads.h - how many threads the kernels use.
 *
 * The kernels run on OpenMP's pool, as oneDNN below them does, so that one number rules both. The
 * setting belongs to the calling thread: a process with several models gives each its share.
 * Threads stay within the process's affinity mask (taskset, Slurm, a container, threads_confine),
 * which also says how many there are by default. So a process is pinned to its cores, not each
 * thread to one of them: libgomp ends the threads that a smaller parallel region has no use for
 * (oneDNN opens such ones), and a pin would be lost with its thread. OMP_PROC_BIND=true in the
 * environment pins each for good, since libgomp then binds every thread that it starts.
 */
#ifndef RUBATO_KERNELS_THREADS_H
#define RUBATO_KERNELS_THREADS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* For the calling thread's kernels from now on; count >= 1. */
void threads_set(int count);

/* Cores that this process may run on, by its affinity mask; at least 1. Any thread. */
int threads_available(void);

/* Confines the calling thread, and those that it starts from now on, to the cores of a list such
 * as "0-3,8" (--cpus). Its parts may also be "node:N" and "package:N", with ranges, too
 * (topology.h): of these, the cores that the process may use. INVALID, logged: no such list, node
 * or package, a build without hwloc, or a core that the process may not use. */
enum status threads_confine(const char *list) WARN_UNUSED;

/* Cores first .. first + count - 1 of those that the process may run on -> a list for
 * threads_confine, text [bytes]. False where there are not so many, or no room. */
bool threads_cores(int first, int count, char *text, size_t bytes);

#endif
