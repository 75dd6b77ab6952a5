#include "kernels/topology.h"

#include <hwloc.h>
#include <stdio.h>
#include <string.h>

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

static hwloc_obj_t find_rdma(hwloc_topology_t topology, const char *name) {
    hwloc_obj_t object = NULL;
    while ((object = hwloc_get_next_osdev(topology, object)) != NULL) {
        if (object->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS && object->name != NULL &&
            strcmp(object->name, name) == 0)
            return object;
    }
    return NULL;
}

/* hwloc's own depths of bridges and devices say what they are, not how deep they lie. */
static int depth_of(hwloc_obj_t object) {
    int depth = 0;
    for (; object->parent != NULL; object = object->parent)
        depth++;
    return depth;
}

static int common_depth(hwloc_obj_t a, hwloc_obj_t b) {
    if (a == NULL || b == NULL) return 0;
    while (a != b) {
        if (depth_of(a) >= depth_of(b)) {
            a = a->parent;
        } else {
            b = b->parent;
        }
    }
    return depth_of(a);
}

void topology_nearness(const char *const *buses, int bus_count, const char *const *names,
                       int name_count, int *depths) {
    hwloc_topology_t topology;
    memset(depths, 0, (size_t)bus_count * (size_t)name_count * sizeof *depths);
    if (hwloc_topology_init(&topology) != 0) return;
    if (hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_ALL) == 0 &&
        hwloc_topology_load(topology) == 0) {
        for (int i = 0; i < bus_count * name_count; i++) {
            hwloc_obj_t gpu = hwloc_get_pcidev_by_busidstring(topology, buses[i / name_count]);
            depths[i] = common_depth(gpu, find_rdma(topology, names[i % name_count]));
        }
    }
    hwloc_topology_destroy(topology);
}
