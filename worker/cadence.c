#include "worker/cadence.h"

#include <math.h>

enum { ADAPTED_MOST = 8 }; /* times the usual interval */

static int64_t least_of(int64_t a, int64_t b) {
    return a < b ? a : b;
}

bool cadence_by_version(const struct discipline *discipline, int64_t workers) {
    return discipline_by_round(discipline) && !discipline_needs_all(discipline, workers);
}

bool cadence_commits(const struct discipline *discipline, int64_t seq) {
    return !discipline_by_round(discipline) && seq > discipline->sync_warmup;
}

int64_t cadence_place(const struct discipline *discipline, int64_t steps, int64_t report) {
    int64_t interval = discipline_interval(discipline);
    return report <= steps / interval ? report * interval : steps;
}

int64_t cadence_adapted(int64_t usual, double speed, double sum, int64_t workers) {
    double most = (double)(ADAPTED_MOST * usual);
    if (usual == 0 || !(speed > 0) || !(sum > 0) || workers < 1) {
        return usual;
    }
    double steps = round((double)usual * speed * (double)workers / sum);
    steps = fmin(fmax(steps, 1), most);
    return (int64_t)steps;
}

/* May the next step start on the blocks that have come of an answer? Where all the others will have
 * the same versions, and nobody waits for this worker to stand still. */
static bool may_start(const struct discipline *discipline,
                      const struct cadence_progress *progress) {
    return progress->open && !discipline->local && discipline_by_round(discipline) &&
           discipline_needs_all(discipline, progress->workers) &&
           progress->reached < progress->reports && progress->limit == INT64_MAX &&
           !progress->leaving;
}

/* An answer is under way, or was, and is not in the worker's own weights yet. */
static enum cadence with_answer_due(const struct discipline *discipline,
                                    const struct cadence_progress *progress) {
    int64_t until = least_of(discipline->overlap, progress->interval);
    bool drops = cadence_by_version(discipline, progress->workers) && !discipline->late_joins;
    if (progress->since < until && !progress->leaving) {
        return CADENCE_COMPUTE;
    }
    if (!progress->answered) {
        return may_start(discipline, progress) ? CADENCE_COMPUTE : CADENCE_WAIT;
    }
    /* A report on weights of several versions is late in some shard, and so dropped. */
    return drops && progress->behind ? CADENCE_PULL : CADENCE_INSTALL;
}

enum cadence cadence_next(const struct discipline *discipline,
                          const struct cadence_progress *progress) {
    if (!progress->answered || !progress->installed) {
        return with_answer_due(discipline, progress);
    }
    if (progress->reached >= progress->reports) {
        return CADENCE_FINISH;
    }
    if (progress->leaving) {
        return CADENCE_LEAVE;
    }
    if (progress->step >= progress->limit) {
        return CADENCE_HOLD;
    }
    if (discipline->local && progress->since >= progress->interval) {
        return CADENCE_REPORT;
    }
    return CADENCE_COMPUTE;
}
