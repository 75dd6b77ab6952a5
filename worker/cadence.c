#include "worker/cadence.h"

bool cadence_commits(const struct discipline *discipline) {
    return discipline->quorum != 0;
}

enum cadence cadence_next(const struct cadence_progress *progress) {
    if (!progress->answered) {
        return CADENCE_WAIT;
    }
    return progress->steps_done < progress->steps ? CADENCE_COMPUTE : CADENCE_FINISH;
}
