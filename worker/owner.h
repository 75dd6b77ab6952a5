/* owner.h - which member of a node's team (model_team.h) has the sum of a block's gradient, makes
 * local steps on it, and encodes it.
 *
 * Blocks in order of id, each to the member with the fewest values so far, the lowest of several;
 * frozen ones count none, since nothing of them is pushed. So no member has more values to push
 * than another by more than the longest block, and those that backward completes one after the
 * other go to different ones, so that all encode at the same time.
 * A pure function of the plan and the number of members.
 */
#ifndef RUBATO_WORKER_OWNER_H
#define RUBATO_WORKER_OWNER_H

#include "proto/plan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Is the block this member's? owners NULL: there is one member. */
static inline bool owner_is(const uint8_t *owners, uint64_t block, int rank) {
    return owners == NULL || owners[block] == rank;
}

/* 1 <= members <= GROUP_MAX -> owners [plan.block_count]: ranks. */
void owner_assign(const struct plan *plan, int members, uint8_t *owners);

#endif
