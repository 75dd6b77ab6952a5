#include "kernels/topology.h"

#include <stdio.h>

enum status topology_cores(enum topology_kind kind, unsigned number, bool *cores, size_t count,
                           char *why, size_t why_bytes) {
    (void)kind;
    (void)number;
    (void)cores;
    (void)count;
    snprintf(why, why_bytes,
             "this build has no hwloc, which knows nodes and packages: name cores, such as 0-3, "
             "or build with libhwloc-dev");
    return STATUS_UNSUPPORTED;
}

void topology_nearness(const char *const *buses, int bus_count, const char *const *names,
                       int name_count, int *depths) {
    (void)buses;
    (void)names;
    for (int i = 0; i < bus_count * name_count; i++)
        depths[i] = 0;
}
