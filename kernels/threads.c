#define _GNU_SOURCE /* sched_getaffinity and cpu_set_t; NOLINT(*-identifier*) */
#include "kernels/threads.h"

#include "base/assert.h"

#include <omp.h>
#include <sched.h>
#include <unistd.h>

void threads_set(int count) {
    ASSERT_OP(count, >=, 1);
    omp_set_num_threads(count);
}

int threads_available(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        int count = CPU_COUNT(&set);
        if (count >= 1) return count;
    }
    /* More cores than a cpu_set_t holds. */
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online >= 1 ? (int)online : 1;
}
