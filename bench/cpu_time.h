/* cpu_time.h - the processor time of the calling thread: what others on the core take does not
 * count, though their share of the caches and of the memory's bandwidth does. */
#ifndef RUBATO_BENCH_CPU_TIME_H
#define RUBATO_BENCH_CPU_TIME_H

#include <stdint.h>
#include <time.h>

static inline double cpu_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
