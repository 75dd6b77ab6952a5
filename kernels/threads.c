#define _GNU_SOURCE /* sched_getaffinity and cpu_set_t; NOLINT(*-identifier*) */
#include "kernels/threads.h"

#include "base/assert.h"
#include "base/log.h"

#include <errno.h>
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* One "3" or "0-3" up to a comma or the end, from *text on. */
static bool read_range(const char **text, long *first, long *last) {
    char *end = NULL;
    if (**text < '0' || **text > '9') return false;
    *first = *last = strtol(*text, &end, 10);
    if (*end == '-' && end[1] >= '0' && end[1] <= '9') *last = strtol(end + 1, &end, 10);
    bool more = *end == ',' && end[1] != '\0';
    *text = end + (more ? 1 : 0);
    return (more || *end == '\0') && *first <= *last && *last < CPU_SETSIZE;
}

enum status threads_confine(const char *list) {
    cpu_set_t allowed, wanted;
    CPU_ZERO(&wanted);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        log_error("--cpus %s: this machine does not say which cores there are", list);
        return STATUS_INVALID;
    }
    for (const char *text = list; *text != '\0';) {
        long first = 0, last = 0;
        if (!read_range(&text, &first, &last)) {
            log_error("--cpus %s: not a list of cores such as 0-3,8", list);
            return STATUS_INVALID;
        }
        for (long core = first; core <= last; core++) {
            if (!CPU_ISSET((size_t)core, &allowed)) {
                log_error("--cpus %s: this process may not run on core %ld", list, core);
                return STATUS_INVALID;
            }
            CPU_SET((size_t)core, &wanted);
        }
    }
    ASSERT(CPU_COUNT(&wanted) > 0);
    if (sched_setaffinity(0, sizeof wanted, &wanted) == 0) {
        log_info("confined to cores %s", list);
        return STATUS_OK;
    }
    log_error("--cpus %s: %s", list, strerror(errno));
    return STATUS_INVALID;
}

bool threads_cores(int first, int count, char *text, size_t bytes) {
    cpu_set_t set;
    size_t used = 0;
    int place = 0;
    if (count < 1 || sched_getaffinity(0, sizeof set, &set) != 0) return false;
    for (size_t core = 0; core < CPU_SETSIZE && place < first + count; core++) {
        if (!CPU_ISSET(core, &set)) continue;
        if (place++ < first) continue;
        int more = snprintf(text + used, bytes - used, "%s%zu", used > 0 ? "," : "", core);
        if (more < 0 || (size_t)more >= bytes - used) return false;
        used += (size_t)more;
    }
    return place == first + count;
}
