/* discipline.h - a mode as numbers: what there is to decide about time, in one struct.
 *
 * Presets come from --mode, each number also from its own flag (struct job). The server's admission
 * and the worker's cadence are pure functions of these numbers; docs/MODES.md explains them.
 *
 *   mode       local_steps  staleness  quorum  worker's optimizer  server's optimizer
 *   sync       1            0          all     none                --optimizer
 *   ssp:S      1            S          1       none                --optimizer, each push by itself
 *   async      1            any        1       none                --optimizer, each push by itself
 *   local:H    H            0          all     --optimizer         average
 *   diloco:H   H            0          all     --optimizer         nesterov
 *
 * A *report* is what a worker pushes at once: the gradient of a step, or after local steps the
 * weights that it started from minus those that it ended with. Reports of a worker are numbered
 * from 1 (the seq of its frames). With F fragments, report n carries the blocks of fragment
 * (n - 1) mod F.
 * staleness 0: reports make rounds. A round closes when `quorum` workers have reported, or `grace`
 * after that; its update is the mean, weighted by tokens. Any other staleness: each report is an
 * update by itself. So ssp:0 is sync.
 */
#ifndef RUBATO_PROTO_DISCIPLINE_H
#define RUBATO_PROTO_DISCIPLINE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct job;

#define STALENESS_ANY INT64_C(-1)
#define GRACE_AUTO    INT64_C(-1)

struct discipline {
    bool local;          /* workers step weights of their own */
    int64_t local_steps; /* H >= 1: steps from one report of a block to the next */
    int64_t fragments;   /* F >= 1, divides H: a fragment reports every H / F steps */
    int64_t overlap;     /* steps from sending a report to installing the answer, <= H / F */
    int64_t staleness;   /* 0: rounds; else reports that a worker may be ahead of the slowest */
    int64_t quorum;      /* workers whose reports close a round, 1 .. workers; 1 without rounds */
    int64_t grace_ns;    /* for the others, once the quorum is there; GRACE_AUTO */
    bool late_joins;     /* a report that missed its round counts in the next; else it is dropped */
    int64_t sync_warmup; /* with staleness: reports that make rounds of all at first. A job whose */
                         /* mode changes while it runs has none: discipline_change() */
};

/* The presets of a mode's text for so many workers. INVALID: no such mode. Pure. */
enum status discipline_of_mode(const char *mode, int64_t workers,
                               struct discipline *discipline) WARN_UNUSED;

/* The job's: the mode's presets with what its own flags say. INVALID with the reason in why
 * [why_bytes] where they do not fit each other. Pure. */
enum status job_discipline(const struct job *job, struct discipline *discipline, char *why,
                           size_t why_bytes) WARN_UNUSED;

/* The job's mode is now this one, with the staleness and the quorum that it says. */
void job_change_mode(struct job *job, const char *mode);

/* The numbers of a running job that changes to `mode`: those of job_change_mode(), no warm-up.
 * INVALID with the reason where job_check() would refuse such a job. Pure. */
enum status discipline_change(const struct job *job, const char *mode,
                              struct discipline *discipline, char *why,
                              size_t why_bytes) WARN_UNUSED;

/* Does --optimizer worker:NAME fit the discipline and the job's other options? INVALID with the
 * reason; another optimizer always does. job_discipline() asks it. Pure. */
enum status job_check_optimizer(const struct job *job, const struct discipline *discipline,
                                char *why, size_t why_bytes) WARN_UNUSED;

/* Do reports make rounds? Pure. */
bool discipline_by_round(const struct discipline *discipline);

/* Does a round need all workers, so that shards need not be told who is in it? Pure. */
bool discipline_needs_all(const struct discipline *discipline, int64_t workers);

/* Steps from one report to the next: H / F. Pure. */
int64_t discipline_interval(const struct discipline *discipline);

/* Reports that a worker makes for `steps` steps at the usual number of steps each, the last ones
 * such that every fragment has been reported after the last step. Pure. */
int64_t discipline_reports(const struct discipline *discipline, int64_t steps);

#endif
