/* group_battery.h - what each kind of group must do (kernels/group.h), among threads of a process:
 * test_group.c for the host, cuda_on_cpu/test_cuda_group.c for NCCL.
 */
#ifndef RUBATO_TESTS_GROUP_BATTERY_H
#define RUBATO_TESTS_GROUP_BATTERY_H

#include "kernels/group.h"

/* Sums, spreads and gathers of small whole numbers, exact in any order, against closed forms: odd
 * sizes and large ones, several pieces in a call, gathers in place and not, many in a row on one
 * memory. */
void group_battery_collectives(const struct group_ops *ops, struct device *const *devices,
                               int count);

/* The first member, and then the last, gives up instead of calling: the others' waits, and calls
 * from then on, end. */
void group_battery_abort(const struct group_ops *ops, struct device *const *devices, int count);

/* The first member, and then the last, does not come for twice the group's time: the others' waits
 * end by time, and so does what it calls later. */
void group_battery_timeout(const struct group_ops *ops, struct device *const *devices, int count,
                           int timeout_ms);

/* Collectives fail by themselves from the first one on: all members' waits end with DEVICE. */
void group_battery_failure(const struct group_ops *ops, struct device *const *devices, int count,
                           int timeout_ms);

#endif
