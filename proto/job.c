#include "proto/job.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/device_name.h"
#include "proto/discipline.h"
#include "proto/number.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define RECOMPUTE_MAX     1000
#define PROFILE_STEPS_MAX 999999999
#define PI                3.14159265358979323846

/* ---- timers ---- */

int64_t job_lease_ns(const struct job *job) {
    return (int64_t)(job->lease * (double)CLOCK_S);
}

int64_t job_heartbeat_ns(const struct job *job) {
    return job_lease_ns(job) / 10;
}

int64_t job_join_timeout_ns(const struct job *job) {
    if (job->join_timeout > 0) return (int64_t)(job->join_timeout * (double)CLOCK_S);
    return 12 * job_lease_ns(job);
}

/* ---- what the texts mean ---- */

double job_peak_rate(const struct job *job) {
    if (strcmp(job->lr_scale, "sqrt") == 0) return job->lr * sqrt((double)job->workers);
    if (strcmp(job->lr_scale, "linear") == 0) return job->lr * (double)job->workers;
    return job->lr;
}

double job_learning_rate(const struct job *job, int64_t step) {
    ASSERT_OP(step, >=, 0);
    double peak = job_peak_rate(job);
    double least = peak * job->lr_min_ratio;
    double start = (double)job->warmup; /* of the fall */
    double end = (double)job->steps;
    if (step < job->warmup) return peak * (double)(step + 1) / (double)job->warmup;
    if (strcmp(job->schedule, "constant") == 0) return peak;
    if (strcmp(job->schedule, "wsd") == 0) start = fmax(start, end - job->cooldown * end);
    if ((double)step >= end) return least;
    if ((double)step <= start) return peak;
    double progress = ((double)step - start) / (end - start);
    if (strcmp(job->schedule, "cosine") == 0)
        return least + 0.5 * (peak - least) * (1.0 + cos(PI * progress));
    return peak - (peak - least) * progress;
}

enum status job_recompute(const char *text, int64_t *every, bool *attention) {
    static const char prefix[] = "every:";
    int64_t number = 0;
    if (strncmp(text, prefix, sizeof prefix - 1) == 0) {
        const char *digits = text + sizeof prefix - 1;
        if (!number_read(digits, strlen(digits), RECOMPUTE_MAX, &number) || number == 0)
            return STATUS_INVALID;
    } else if (strcmp(text, "none") != 0 && strcmp(text, "attention") != 0) {
        return STATUS_INVALID;
    }
    *every = number;
    *attention = strcmp(text, "attention") == 0;
    return STATUS_OK;
}

enum status job_profile_steps(const char *text, int64_t *first, int64_t *last) {
    const char *colon = strchr(text, ':');
    size_t bytes = colon != NULL ? (size_t)(colon - text) : strlen(text);
    int64_t from = 0, to = 0;
    if (text[0] != 0) {
        if (!number_read(text, bytes, PROFILE_STEPS_MAX, &from)) return STATUS_INVALID;
        to = from;
        if (colon != NULL && !number_read(colon + 1, strlen(colon + 1), PROFILE_STEPS_MAX, &to))
            return STATUS_INVALID;
        if (from < 1 || to < from) return STATUS_INVALID;
    }
    *first = from;
    *last = to;
    return STATUS_OK;
}

enum status job_check_device(const struct job *job, char *why, size_t why_bytes) {
    struct device_names names;
    ASSERT(device_names_parse(job->device, &names));
    if (names.kind == DEVICE_CUDA) return STATUS_OK;
    if (strcmp(job->compute, "tf32") == 0) {
        (void)snprintf(why, why_bytes,
                       "--compute tf32 is a number type of CUDA devices: give --device cuda, or "
                       "--compute f32 or bf16");
        return STATUS_INVALID;
    }
    if (job->profile_steps[0] != 0) {
        (void)snprintf(why, why_bytes,
                       "--profile-steps marks steps for profilers of CUDA devices, and --device %s "
                       "is none: perf and others record a worker on the host as it is",
                       job->device);
        return STATUS_INVALID;
    }
    return STATUS_OK;
}

enum status job_check_apart(const struct job *job, int devices, char *why, size_t why_bytes) {
    if (!job->accumulate_apart) return STATUS_OK;
    if (devices > 1) {
        (void)snprintf(why, why_bytes,
                       "--accumulate-apart makes one device add as several do, and --device %s "
                       "names %d: give one of them, --accumulate %d and 1/%d of --batch",
                       job->device, devices, devices, devices);
        return STATUS_INVALID;
    }
    if (job->accumulate == 1) {
        (void)snprintf(why, why_bytes,
                       "--accumulate-apart says how gradients of several batches are added, and "
                       "--accumulate is 1: give a larger one");
        return STATUS_INVALID;
    }
    return STATUS_OK;
}

const char *job_outer(const struct job *job) {
    if (strcmp(job->outer, "auto") != 0) return job->outer;
    return strncmp(job->mode, "diloco", strlen("diloco")) == 0 ? "nesterov" : "average";
}

static bool outer_has_momentum(const struct job *job) {
    return strcmp(job_outer(job), "sgd") == 0 || strcmp(job_outer(job), "nesterov") == 0;
}

/* An option with another value than its default that nothing in the job's mode would read: what it
 * is for. NULL: there is none. */
static const char *idle_option(const struct job *job, const struct discipline *discipline) {
    struct options options;
    struct job usual;
    options_init(&options, job_table, job_table_count, &usual);
    bool by_round = discipline_by_round(discipline);
    bool outer_momentum = job->outer_momentum != usual.outer_momentum;
    if (by_round &&
        (job->max_staleness >= 0 || strcmp(job->staleness_scale, usual.staleness_scale) != 0))
        return "--max-staleness and --staleness-scale are for modes with staleness (ssp:S, async)";
    if ((by_round || discipline->local) &&
        (job->sync_warmup > 0 || job->delay_comp > 0 || job->push_momentum != usual.push_momentum ||
         job->push_beta2 != usual.push_beta2))
        return "--sync-warmup, --delay-comp, --push-momentum and --push-beta2 are for gradients "
               "that are updates by themselves (ssp:S, async)";
    if (job->delay_comp <= 0 && strcmp(job->delay_base, usual.delay_base) != 0)
        return "--delay-base says what --delay-comp starts from: give that, too";
    if (!discipline->local && (strcmp(job->outer, usual.outer) != 0 || job->outer_lr > 0 ||
                               outer_momentum || strcmp(job->inner_state, usual.inner_state) != 0))
        return "--outer, --outer-lr, --outer-momentum and --inner-state are for --mode local:H and "
               "diloco:H";
    if (outer_momentum && !outer_has_momentum(job))
        return "--outer-momentum is for --outer sgd and nesterov (--mode diloco:H has nesterov)";
    return NULL;
}

enum status job_check(const struct job *job, char *why, size_t why_bytes) {
    struct discipline discipline;
    struct device_names names;
    ASSERT(device_names_parse(job->device, &names));
    TRY(job_check_device(job, why, why_bytes));
    TRY(job_check_apart(job, names.count, why, why_bytes));
    TRY(job_discipline(job, &discipline, why, why_bytes));
    const char *optimizer = job_optimizer(job);
    bool blockwise = strcmp(optimizer, "lamb") != 0 && strcmp(optimizer, "muon") != 0 &&
                     strcmp(optimizer, "adafactor") != 0;
    if (!blockwise && strcmp(job->moments, "f32") != 0) {
        (void)snprintf(why, why_bytes, "--optimizer %s keeps its moments as f32 (--moments)",
                       job->optimizer);
        return STATUS_INVALID;
    }
    bool plain = strcmp(optimizer, "sgd") == 0 || strcmp(optimizer, "nesterov") == 0;
    if (plain && job->momentum == 0 && job->push_momentum > 0) {
        (void)snprintf(why, why_bytes,
                       "--push-momentum needs the memory that --momentum takes: give both");
        return STATUS_INVALID;
    }
    const char *reason = idle_option(job, &discipline);
    if (reason != NULL) {
        (void)snprintf(why, why_bytes, "%s", reason);
        return STATUS_INVALID;
    }
    return STATUS_OK;
}

struct plan_options job_plan_options(const struct job *job, uint64_t shards) {
    const char *optimizer = job_optimizer(job);
    return (struct plan_options){.shards = shards,
                                 .block_values = (uint64_t)job->block_values,
                                 .fragments = (uint64_t)job->fragments,
                                 .whole = strcmp(optimizer, "lamb") == 0 ||
                                          strcmp(optimizer, "muon") == 0,
                                 .rates = job->rates,
                                 .decays = job->decays};
}

int64_t job_step_tokens(const struct job *job) {
    return job->accumulate * job->batch * job->seq_len;
}

bool job_split_address(const char *address, char *host, size_t host_bytes, char *port,
                       size_t port_bytes) {
    const char *host_start = address;
    const char *host_end = strrchr(address, ':');
    const char *allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
    int64_t number = 0;
    if (host_end == NULL) return false;
    const char *port_start = host_end + 1;
    size_t port_length = strlen(port_start);
    if (port_length > 5 || !number_read(port_start, port_length, 65535, &number)) return false;
    if (*address == '[') {
        host_start++;
        host_end--;
        if (host_end <= host_start || *host_end != ']') return false;
        /* %eth0 names the interface of a link-local address. */
        allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:%";
    }
    size_t host_length = (size_t)(host_end - host_start);
    if (host_length == 0 || strspn(host_start, allowed) < host_length) return false;
    if (host_length >= host_bytes || port_length >= port_bytes) return false;
    memcpy(host, host_start, host_length);
    host[host_length] = 0;
    memcpy(port, port_start, port_length + 1);
    return true;
}

/* A path: the shape is in a config.json, there or in that folder. */
bool job_model_is_path(const char *text) {
    static const char end[] = ".json";
    size_t bytes = strlen(text);
    if (strchr(text, '/') != NULL) return true;
    return bytes >= sizeof end && strcmp(text + bytes - (sizeof end - 1), end) == 0;
}
