#include "worker/owner.h"

#include "base/assert.h"
#include "kernels/group.h"

void owner_assign(const struct plan *plan, int members, uint8_t *owners) {
    uint64_t values[GROUP_MAX] = {0};
    ASSERT(members >= 1 && members <= GROUP_MAX);
    for (uint64_t id = 0; id < plan->block_count; id++) {
        int least = 0;
        for (int rank = 1; rank < members; rank++) {
            if (values[rank] < values[least]) least = rank;
        }
        owners[id] = (uint8_t)least;
        if (plan->blocks[id].fragment != PLAN_FROZEN) values[least] += plan->blocks[id].count;
    }
}
