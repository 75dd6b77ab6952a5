/* topology.h - what this machine is made of: which cores a memory node or a package (socket) has,
 * for --cpus; which RDMA device is near to which GPU.
 *
 * One file a build: topology_hwloc.c asks hwloc, where CMake found it; topology_none.c knows
 * nothing.
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

/* How near each PCI device, as lspci writes it ("0000:65:00.0"), is to each RDMA device ("mlx5_0"):
 * the depth, in hwloc's tree, of the innermost part of the machine that both are in (a switch, a
 * root port, a package) -> depths [bus_count][name_count]. 0: the whole machine; so it is where
 * hwloc does not know one of them, and in a build without it. Takes up to a second. */
void topology_nearness(const char *const *buses, int bus_count, const char *const *names,
                       int name_count, int *depths);

#endif
