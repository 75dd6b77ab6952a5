/* job_optimizer.c - what --optimizer says: which one, and whose. */
#include "proto/codec_spec.h"
#include "proto/discipline.h"
#include "proto/job.h"

#include <stdio.h>
#include <string.h>

static const char workers_own[] = "worker:";

bool job_workers_step(const struct job *job) {
    return strncmp(job->optimizer, workers_own, sizeof workers_own - 1) == 0;
}

static bool moments_travel(const struct job *job) {
    return strcmp(job->optimizer, "worker:1bit-adam") == 0;
}

const char *job_optimizer(const struct job *job) {
    if (moments_travel(job)) return "adamw";
    return job->optimizer + (job_workers_step(job) ? sizeof workers_own - 1 : 0);
}

int64_t job_momentum_after(const struct job *job) {
    if (!moments_travel(job)) return 0;
    int64_t after = job->dense_warmup >= 0 ? job->dense_warmup : job->steps / 4;
    return after > 0 ? after : 1;
}

enum status job_check_optimizer(const struct job *job, const struct discipline *discipline,
                                char *why, size_t why_bytes) {
    const char *problem = NULL;
    struct codec_spec push;
    if (!codec_parse(job->push, &push, why, why_bytes)) return STATUS_INVALID;
    if (!job_workers_step(job)) {
        if (push.codec != CODEC_POWERSGD_SHARED) return STATUS_OK;
        (void)snprintf(why, why_bytes,
                       "--push %s is for --optimizer worker:NAME, where all know the last mean",
                       job->push);
        return STATUS_INVALID;
    }
    if (discipline->local || !discipline_needs_all(discipline, job->workers))
        problem = "needs the same mean for all workers: --mode sync without --quorum and "
                  "--backup-workers";
    else if (strcmp(job->pull, "bf16") != 0)
        problem = "pulls the mean gradient by --push's codec: leave --pull out";
    else if (strcmp(job->push_policy, "auto") != 0 && strcmp(job->push_policy, "all") != 0)
        problem = "takes no file as --push-policy, which servers do not have";
    else if (moments_travel(job) && strcmp(job->moments, "f32") != 0)
        problem = "sends its moments, which are f32 (--moments)";
    else if (moments_travel(job) && job->freeze_v_after > 0)
        problem = "freezes the second moment after --dense-warmup steps: leave --freeze-v-after "
                  "out";
    else if (moments_travel(job) && job->dense_warmup == 0)
        problem = "needs some steps of --dense-warmup, or there is no second moment";
    else if (moments_travel(job) && job->beta1 <= 0)
        problem = "needs a first moment: --beta1 above 0";
    if (problem == NULL) return STATUS_OK;
    (void)snprintf(why, why_bytes, "--optimizer %s %s", job->optimizer, problem);
    return STATUS_INVALID;
}
