/* group.h - the devices of one process that train as one: sums, spreads and gathers among them.
 *
 * Each member is a device and the thread that drives it, with a rank 0 .. count - 1. All members
 * call the same collectives, with the same sizes, in the same order. A call queues its work on a
 * queue of the member's device, like the calls of kernels/device.h, so what it makes is there when
 * the queue has come so far; members need not be there at the same time. On the host a call waits
 * for the other members, and its work is done when it returns.
 * Memory of a device must not be given back while others' collectives wait for this member: CUDA
 * may wait for all devices then.
 * Sums: the host's in f32 and in rank order, so that they are the ones that a server makes of the
 * members' gradients; NCCL's in an order of its own, which for two members is the same to the bit.
 *
 * Nobody is stuck: a member that is not there within the group's time (in a call, or while another
 * one waits in group_sync), a member that gives up, and an error of NCCL end the whole group. Then
 * each call returns at once, what was made is worth nothing, and group_sync says why. Logged once.
 * Where NCCL hangs so that nothing can be ended (while it opens or aborts, or with a member that
 * does not come back from that), the process ends within twice the group's time: exit code 72.
 */
#ifndef RUBATO_KERNELS_GROUP_H
#define RUBATO_KERNELS_GROUP_H

#include "base/status.h"
#include "kernels/device.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GROUP_MAX = DEVICE_NAMES_MAX };

struct group;

/* `values` [count] of each member, which member `root` is to have the sum of, or has and spreads.
 * */
struct group_piece {
    float *values;
    int64_t count;
    int root;
};

/* What a kind of device has (struct device_backend): kernels/group_cpu.c, and
 * kernels/cuda/group_nccl.c, which loads NCCL when a group is first opened. */
struct group_ops {
    enum status (*open)(struct group **group, struct device *const *devices, int count,
                        int timeout_ms);
    enum status (*close)(struct group *group);
    void (*sum_to)(struct group *group, int rank, enum device_queue queue,
                   const struct group_piece *sums, uint64_t count);
    void (*spread)(struct group *group, int rank, enum device_queue queue,
                   const struct group_piece *pieces, uint64_t count);
    void (*gather)(struct group *group, int rank, enum device_queue queue, const void *from,
                   void *to, size_t bytes);
    enum status (*sync)(struct group *group, int rank, const struct device_event *event);
    enum status (*status)(struct group *group);
    void (*abort)(struct group *group, int rank);
};

extern const struct group_ops group_cpu;

/* Of `count` open devices of one kind, member r is devices[r]; 1 .. GROUP_MAX. A member waits
 * `timeout_ms` for the others, and so long may opening and closing take. DEVICE, MEMORY;
 * UNSUPPORTED: NCCL is not here. Logged. One thread calls this, and group_close when no member is
 * in a call. */
enum status group_open(struct group **group, struct device *const *devices, int count,
                       int timeout_ms) WARN_UNUSED;

/* Harmless on NULL. TIMEOUT: NCCL hangs, logged; what was made is right all the same, but the
 * devices must not be touched again, and the process has to end by _exit(). */
enum status group_close(struct group *group) WARN_UNUSED;

/* sums [count], of all members with the same counts and roots: each in place at its root, while the
 * other members' values stay as they are; the sums overlap nowhere. All in one call, since links
 * between devices are busy in one direction alone while there is one root. The array is free on
 * return. */
void group_sum_to(struct group *group, int rank, enum device_queue queue,
                  const struct group_piece *sums, uint64_t count);

/* pieces [count], of all members with the same counts and roots: each root's -> all other members';
 * otherwise as group_sum_to. */
void group_spread(struct group *group, int rank, enum device_queue queue,
                  const struct group_piece *pieces, uint64_t count);

/* from [bytes] -> to [members, bytes], in rank order, the same for all. `from` may be
 * to + rank * bytes, and must not overlap `to` otherwise. */
void group_gather(struct group *group, int rank, enum device_queue queue, const void *from,
                  void *to, size_t bytes);

/* Waits until a place behind collectives is reached. OK: what all collectives of the group made so
 * far is right. TIMEOUT, PEER_LOST, DEVICE: the group has ended. */
enum status group_sync(struct group *group, int rank, const struct device_event *event) WARN_UNUSED;

/* OK, or why the group has ended; waits for nothing, so it says of collectives that are known to be
 * done, and of no others, that they are right. Any thread. */
enum status group_status(struct group *group) WARN_UNUSED;

/* This member gives up: the others' waits end with PEER_LOST. */
void group_abort(struct group *group, int rank);

/* What each kind's own struct begins with. */
struct group {
    const struct group_ops *ops;
    int count;
};

#endif
