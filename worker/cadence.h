/* cadence.h - what a worker does next: compute, push, wait, or finish. A pure function.
 *
 * The counterpart of the server's admission: the mode's numbers (struct discipline) and the
 * worker's own progress decide; nothing here knows of threads or networks.
 */
#ifndef RUBATO_WORKER_CADENCE_H
#define RUBATO_WORKER_CADENCE_H

#include "proto/job.h"

#include <stdbool.h>
#include <stdint.h>

enum cadence {
    CADENCE_WAIT,    /* for answers to what was asked or pushed */
    CADENCE_COMPUTE, /* one step, and push its gradient */
    CADENCE_FINISH   /* all steps are done and answered */
};

struct cadence_progress {
    int64_t steps_done; /* computed and pushed */
    int64_t steps;      /* to do */
    bool answered;      /* every block that was asked for or pushed is installed */
};

/* Whether each push must be followed by a commit: so when it is applied by itself. */
bool cadence_commits(const struct discipline *discipline);

enum cadence cadence_next(const struct cadence_progress *progress);

#endif
