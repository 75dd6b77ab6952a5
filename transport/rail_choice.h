/* rail_choice.h - by which RDMA device each CUDA device of a process sends.
 *
 * A GPU and a network card on one PCIe switch reach each other at full speed, others far below it.
 * So where payloads may leave from several CUDA devices, or by several RDMA devices, each CUDA
 * device sends by the RDMA device that is nearest to it (kernels/topology.h), of those that are in
 * use (--net-devices). Of equally near ones each takes its share, by the CUDA devices' numbers, so
 * that processes with one device each are spread, too: those with --device cuda:N, not those that
 * CUDA_VISIBLE_DEVICES tells apart, to whom each device is number 0.
 */
#ifndef RUBATO_TRANSPORT_RAIL_CHOICE_H
#define RUBATO_TRANSPORT_RAIL_CHOICE_H

#include "kernels/group.h"

/* Longer names of --net-devices, and more of them, are not looked at. */
enum { RAIL_NAME_BYTES = 64, RAIL_NAMES_MAX = 64 };

struct rail_choice {
    int count; /* devices; 0: there is nothing to choose, all send by one context */
    char names[GROUP_MAX][RAIL_NAME_BYTES]; /* "mlx5_0:1" */
};

/* For devices [count <= GROUP_MAX], of net_devices and tls as channel_ucx_open() has them. */
void rail_choice_make(struct rail_choice *choice, struct device *const *devices, int count,
                      const char *net_devices, const char *tls);

/* depths [count][name_count]: the deepest is the nearest; numbers [count]: of the CUDA devices ->
 * chosen [count]: names. Pure. */
void rail_choice_spread(const int *depths, const int *numbers, int count, int name_count,
                        int *chosen);

#endif
