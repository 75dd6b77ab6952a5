#include "kernels/topology.h"

#include <hwloc.h>
#include <stdio.h>

static enum status find(hwloc_topology_t topology, enum topology_kind kind, unsigned number,
                        bool *cores, size_t count, char *why, size_t why_bytes) {
    hwloc_obj_type_t type = kind == TOPOLOGY_NODE ? HWLOC_OBJ_NUMANODE : HWLOC_OBJ_PACKAGE;
    const char *name = kind == TOPOLOGY_NODE ? "memory node" : "package";
    hwloc_obj_t object = NULL;
    do {
        object = hwloc_get_next_obj_by_type(topology, type, object);
    } while (object != NULL && object->os_index != number);
    if (object == NULL || object->cpuset == NULL) {
        snprintf(why, why_bytes, "there is no %s %u, of %d", name, number,
                 hwloc_get_nbobjs_by_type(topology, type));
        return STATUS_INVALID;
    }
    for (size_t core = 0; core < count; core++) {
        if (hwloc_bitmap_isset(object->cpuset, (unsigned)core)) cores[core] = true;
    }
    return STATUS_OK;
}

enum status topology_cores(enum topology_kind kind, unsigned number, bool *cores, size_t count,
                           char *why, size_t why_bytes) {
    hwloc_topology_t topology;
    enum status status = STATUS_UNSUPPORTED;
    snprintf(why, why_bytes, "hwloc cannot tell what this machine is made of");
    if (hwloc_topology_init(&topology) != 0) return status;
    if (hwloc_topology_load(topology) == 0) {
        status = find(topology, kind, number, cores, count, why, why_bytes);
    }
    hwloc_topology_destroy(topology);
    return status;
}
