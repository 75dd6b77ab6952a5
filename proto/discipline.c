#include "proto/discipline.h"

#include "base/assert.h"
#include "base/clock.h"
#include "proto/job.h"
#include "proto/number.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NUMBER_MAX 1000000

/* "name:N" with N from `least` -> N. */
static bool read_mode(const char *mode, const char *name, int64_t least, int64_t *number) {
    size_t bytes = strlen(name);
    return strncmp(mode, name, bytes) == 0 && mode[bytes] == ':' &&
           number_of(mode + bytes + 1, NUMBER_MAX, number) && *number >= least;
}

enum status discipline_of_mode(const char *mode, int64_t workers, struct discipline *discipline) {
    struct discipline made = {.local_steps = 1, .fragments = 1, .quorum = workers};
    int64_t number = 0;
    if (strcmp(mode, "async") == 0) {
        made.staleness = STALENESS_ANY;
    } else if (read_mode(mode, "ssp", 0, &number)) {
        made.staleness = number;
    } else if (read_mode(mode, "local", 1, &number) || read_mode(mode, "diloco", 1, &number)) {
        made.local = true;
        made.local_steps = number;
    } else if (strcmp(mode, "sync") != 0) {
        return STATUS_INVALID;
    }
    if (made.staleness != 0) made.quorum = 1;
    *discipline = made;
    return STATUS_OK;
}

static enum status refuse(char *why, size_t why_bytes, const char *reason) {
    (void)snprintf(why, why_bytes, "%s", reason);
    return STATUS_INVALID;
}

/* --staleness over the mode's. */
static enum status take_staleness(const struct job *job, struct discipline *discipline) {
    if (strcmp(job->staleness, "auto") == 0) return STATUS_OK;
    discipline->staleness = STALENESS_ANY;
    if (strcmp(job->staleness, "any") != 0 &&
        !number_of(job->staleness, NUMBER_MAX, &discipline->staleness))
        return STATUS_INVALID;
    discipline->quorum = discipline->staleness == 0 ? job->workers : 1;
    return STATUS_OK;
}

/* --quorum and --backup-workers over the mode's. */
static enum status take_quorum(const struct job *job, struct discipline *discipline, char *why,
                               size_t why_bytes) {
    bool given = strcmp(job->quorum, "auto") != 0;
    int64_t quorum = discipline->quorum;
    if (given && job->backup_workers > 0)
        return refuse(why, why_bytes,
                      "--quorum and --backup-workers say the same in two ways: give one");
    if (strcmp(job->quorum, "all") == 0) {
        quorum = job->workers;
    } else if (given && !number_of(job->quorum, NUMBER_MAX, &quorum)) {
        return refuse(why, why_bytes, "--quorum is auto, all or a number of workers");
    } else if (job->backup_workers > 0) {
        quorum = job->workers - job->backup_workers;
    }
    if (quorum < 1 || quorum > job->workers) {
        (void)snprintf(why, why_bytes, "a quorum of %" PRId64 " of %" PRId64 " workers (--quorum)",
                       quorum, job->workers);
        return STATUS_INVALID;
    }
    if (discipline->staleness != 0 && quorum != 1)
        return refuse(why, why_bytes,
                      "with staleness each report is an update by itself: --quorum and "
                      "--backup-workers are for rounds (sync, local:H, diloco:H)");
    discipline->quorum = quorum;
    return STATUS_OK;
}

/* --grace and --late, for rounds that close without some workers. */
static enum status take_grace(const struct job *job, struct discipline *discipline, char *why,
                              size_t why_bytes) {
    int64_t milliseconds = 0;
    bool automatic = strcmp(job->grace, "auto") == 0;
    if (!automatic && !number_of(job->grace, NUMBER_MAX, &milliseconds))
        return refuse(why, why_bytes, "--grace is auto or milliseconds");
    discipline->grace_ns = automatic ? GRACE_AUTO : milliseconds * CLOCK_MS;
    bool late_given = strcmp(job->late, "auto") != 0;
    if ((discipline->grace_ns != 0 || late_given) &&
        (!discipline_by_round(discipline) || discipline_needs_all(discipline, job->workers)))
        return refuse(why, why_bytes,
                      "--grace and --late are for rounds that need fewer than all workers: give "
                      "--quorum or --backup-workers too");
    discipline->late_joins = late_given ? strcmp(job->late, "join") == 0 : discipline->local;
    return STATUS_OK;
}

static enum status check_local(const struct job *job, const struct discipline *discipline,
                               char *why, size_t why_bytes) {
    if (!discipline->local) {
        if (discipline->local_steps != 1 || discipline->fragments != 1 ||
            discipline->overlap != 0 || job->mix != 0 || job->adapt_steps)
            return refuse(why, why_bytes,
                          "--local-steps, --fragments, --overlap, --mix and --adapt-steps are for "
                          "--mode local:H and diloco:H");
        return STATUS_OK;
    }
    if (discipline->local_steps % discipline->fragments != 0)
        return refuse(why, why_bytes, "--fragments must divide the local steps");
    if (discipline->fragments > 1 && discipline_by_round(discipline) &&
        discipline->quorum < job->workers)
        return refuse(why, why_bytes,
                      "with --fragments every round needs all workers: no --quorum and no "
                      "--backup-workers");
    if (discipline->overlap > discipline_interval(discipline))
        return refuse(why, why_bytes,
                      "--overlap may be the local steps over --fragments at most: a report is "
                      "installed before the next is sent");
    return STATUS_OK;
}

enum status job_discipline(const struct job *job, struct discipline *discipline, char *why,
                           size_t why_bytes) {
    struct discipline made;
    if (discipline_of_mode(job->mode, job->workers, &made) != STATUS_OK)
        return refuse(why, why_bytes, "no such --mode");
    if (job->local_steps > 0) made.local_steps = job->local_steps;
    made.fragments = job->fragments;
    made.overlap = job->overlap;
    if (take_staleness(job, &made) != STATUS_OK)
        return refuse(why, why_bytes, "--staleness is auto, any, or a number of reports");
    TRY(take_quorum(job, &made, why, why_bytes));
    TRY(take_grace(job, &made, why, why_bytes));
    TRY(check_local(job, &made, why, why_bytes));
    if (made.staleness != 0 && !made.local && job->workers > 1)
        made.sync_warmup = job->sync_warmup >= 0 ? job->sync_warmup : job->steps / 4;
    TRY(job_check_optimizer(job, &made, why, why_bytes));
    *discipline = made;
    return STATUS_OK;
}

void job_change_mode(struct job *job, const char *mode) {
    (void)snprintf(job->mode, sizeof job->mode, "%s", mode);
    (void)snprintf(job->staleness, sizeof job->staleness, "auto");
    (void)snprintf(job->quorum, sizeof job->quorum, "auto");
}

enum status discipline_change(const struct job *job, const char *mode,
                              struct discipline *discipline, char *why, size_t why_bytes) {
    struct job changed = *job;
    if (strlen(mode) >= sizeof changed.mode) return refuse(why, why_bytes, "no such --mode");
    job_change_mode(&changed, mode);
    changed.sync_warmup = 0;
    TRY(job_check(&changed, why, why_bytes));
    return job_discipline(&changed, discipline, why, why_bytes);
}

bool discipline_by_round(const struct discipline *discipline) {
    return discipline->staleness == 0;
}

bool discipline_needs_all(const struct discipline *discipline, int64_t workers) {
    return discipline->staleness == 0 && discipline->quorum == workers;
}

int64_t discipline_interval(const struct discipline *discipline) {
    return discipline->local_steps / discipline->fragments;
}

int64_t discipline_reports(const struct discipline *discipline, int64_t steps) {
    int64_t interval = discipline_interval(discipline);
    return (steps + interval - 1) / interval + discipline->fragments - 1;
}
