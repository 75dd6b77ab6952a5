/* topology.h - which cores a memory node or a package (socket) of this machine has, for --cpus.
 *
 * One file a build: topology_hwloc.c asks hwloc, where CMake found it; topology_none.c refuses.
 * hwloc's own variables count (HWLOC_SYNTHETIC, HWLOC_XMLFILE): so other machines can be tried.
 */
#ifndef RUBATO_KERNELS_TOPOLOGY_H
#define RUBATO_KERNELS_TOPOLOGY_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum topology_kind { TOPOLOGY_NODE, TOPOLOGY_PACKAGE };

/* Sets cores[i] for each core i < count of the node or package to which the system gives this
 * number (as numactl and lscpu show it); leaves the others. UNSUPPORTED: a build without hwloc, or
 * hwloc does not know this machine; INVALID: there is no such one. `why` [why_bytes] says which. */
enum status topology_cores(enum topology_kind kind, unsigned number, bool *cores, size_t count,
                           char *why, size_t why_bytes) WARN_UNUSED;

#endif
