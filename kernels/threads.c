#define _GNU_SOURCE /* sched_getaffinity and cpu_set_t; NOLINT(*-identifier*) */
#include "kernels/threads.h"

#include "base/assert.h"
#include "base/log.h"
#include "kernels/topology.h"

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

/* What a comma parts in a list: cores, or whole nodes or packages. */
struct part {
    bool whole;
    enum topology_kind kind; /* of what is whole */
    long first, last;
};

/* One "3", "0-3" or "node:0-1" up to a comma or the end, from *text on. */
static bool read_part(const char **text, struct part *part) {
    static const char node[] = "node:", package[] = "package:";
    const char *at = *text;
    *part = (struct part){.whole = false};
    if (strncmp(at, node, sizeof node - 1) == 0) {
        *part = (struct part){.whole = true, .kind = TOPOLOGY_NODE};
        at += sizeof node - 1;
    } else if (strncmp(at, package, sizeof package - 1) == 0) {
        *part = (struct part){.whole = true, .kind = TOPOLOGY_PACKAGE};
        at += sizeof package - 1;
    }
    char *end = NULL;
    if (*at < '0' || *at > '9') return false;
    part->first = part->last = strtol(at, &end, 10);
    if (*end == '-' && end[1] >= '0' && end[1] <= '9') part->last = strtol(end + 1, &end, 10);
    bool more = *end == ',' && end[1] != '\0';
    *text = end + (more ? 1 : 0);
    return (more || *end == '\0') && part->first <= part->last && part->last < CPU_SETSIZE;
}

/* Adds cores first .. last, each of which the process may use. */
static enum status add_cores(const char *list, const struct part *part, const cpu_set_t *allowed,
                             cpu_set_t *wanted) {
    for (long core = part->first; core <= part->last; core++) {
        if (!CPU_ISSET((size_t)core, allowed)) {
            log_error("--cpus %s: this process may not run on core %ld", list, core);
            return STATUS_INVALID;
        }
        CPU_SET((size_t)core, wanted);
    }
    return STATUS_OK;
}

/* Adds those cores of the nodes or packages that the process may use, of each some. */
static enum status add_whole(const char *list, const struct part *part, const cpu_set_t *allowed,
                             cpu_set_t *wanted) {
    for (long number = part->first; number <= part->last; number++) {
        bool cores[CPU_SETSIZE] = {false};
        bool any = false;
        char why[160];
        if (topology_cores(part->kind, (unsigned)number, cores, CPU_SETSIZE, why, sizeof why) !=
            STATUS_OK) {
            log_error("--cpus %s: %s", list, why);
            return STATUS_INVALID;
        }
        for (size_t core = 0; core < CPU_SETSIZE; core++) {
            if (!cores[core] || !CPU_ISSET(core, allowed)) continue;
            CPU_SET(core, wanted);
            any = true;
        }
        if (!any) {
            log_error("--cpus %s: this process may run on no core of %s %ld", list,
                      part->kind == TOPOLOGY_NODE ? "node" : "package", number);
            return STATUS_INVALID;
        }
    }
    return STATUS_OK;
}

enum status threads_confine(const char *list) {
    cpu_set_t allowed, wanted;
    CPU_ZERO(&wanted);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        log_error("--cpus %s: this machine does not say which cores there are", list);
        return STATUS_INVALID;
    }
    for (const char *text = list; *text != '\0';) {
        struct part part;
        if (!read_part(&text, &part)) {
            log_error("--cpus %s: not a list of cores such as 0-3,8, node:0 or package:1", list);
            return STATUS_INVALID;
        }
        TRY(part.whole ? add_whole(list, &part, &allowed, &wanted)
                       : add_cores(list, &part, &allowed, &wanted));
    }
    ASSERT(CPU_COUNT(&wanted) > 0);
    if (sched_setaffinity(0, sizeof wanted, &wanted) == 0) {
        log_info("confined to %d cores, %s", CPU_COUNT(&wanted), list);
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
