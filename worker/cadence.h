/* cadence.h - what a worker does next: compute, report, install, wait, hold, leave. Pure functions.
 *
 * The counterpart of the server's admission: the mode's numbers (struct discipline) and the
 * worker's own progress decide; nothing here knows of threads or networks.
 *
 * A step of a gradient mode reports by itself (its blocks are pushed while it computes). In rounds
 * of all workers the next one may start when the first blocks are back (gate.h). Local
 * steps make intervals, each of which ends with a report; an answer is installed `overlap` steps
 * after its report was sent, or at the end of the interval where that is shorter, so that at most
 * one report is under way. The last reports follow each other without steps (their intervals are
 * empty), until every fragment has been reported after the last step.
 * Under a quorum rounds go on without this worker: then its place in the job is the number of
 * rounds that its weights have seen (their version), not its own count.
 */
#ifndef RUBATO_WORKER_CADENCE_H
#define RUBATO_WORKER_CADENCE_H

#include "proto/discipline.h"

#include <stdbool.h>
#include <stdint.h>

enum cadence {
    CADENCE_WAIT,    /* for answers to what was asked or pushed */
    CADENCE_PULL,    /* blocks that are behind the others, before the answer is installed */
    CADENCE_INSTALL, /* take the answer into the weights that steps are made on */
    CADENCE_COMPUTE, /* one step; in gradient modes it is reported at once */
    CADENCE_REPORT,  /* push a fragment's local steps */
    CADENCE_HOLD,    /* say that the limit is reached (once), and wait until it is lifted */
    CADENCE_LEAVE,   /* the job, for good */
    CADENCE_FINISH   /* all reports are made and answered */
};

struct cadence_progress {
    int64_t workers;  /* of the job */
    int64_t reports;  /* that this worker is to make, or rounds of the job */
    int64_t reached;  /* reports that it has made, or rounds that its weights have seen */
    int64_t step;     /* place in the job, in steps: made, or by the version */
    int64_t limit;    /* a step not to be passed; INT64_MAX: none */
    int64_t interval; /* local modes: steps of the interval under way, 0 or more */
    int64_t since;    /* local modes: steps since the last report */
    bool answered;    /* every block that was asked for or pushed has come */
    bool installed;   /* and is in the weights that steps are made on */
    bool open;        /* not answered, but the blocks that a step reads first have come */
    bool behind;      /* blocks have different versions */
    bool leaving;
};

/* Is the place in the job told by versions? */
bool cadence_by_version(const struct discipline *discipline, int64_t workers);

/* Whether report `seq` must be followed by a commit: so when it is applied by itself. */
bool cadence_commits(const struct discipline *discipline, int64_t seq);

/* The place in the job, in steps, of a worker at the usual pace after `report` reports. */
int64_t cadence_place(const struct discipline *discipline, int64_t steps, int64_t report);

/* Local steps that a worker makes instead of `usual` so that all report at the same time: in the
 * proportion of its speed (steps a second) to the mean of `workers` speeds that add up to `sum`;
 * from 1 to 8 times as many; as usual where a speed is not known (0). */
int64_t cadence_adapted(int64_t usual, double speed, double sum, int64_t workers);

enum cadence cadence_next(const struct discipline *discipline,
                          const struct cadence_progress *progress);

#endif
