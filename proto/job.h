/* job.h - the options of a job: the one table, the struct it fills, and how processes agree.
 *
 * Every program parses its command line into struct job by job_table. AGREED options must end up
 * the same in every process of a job: each process says in its join which of them its user gave;
 * the coordinator merges them (job_agree) and tells all. Two different given values are a conflict,
 * refused on both sides with a line an option.
 * The table is also the source of --help, of RUBATO_* variables, of --print-config and of README's
 * table (base/options.h).
 */
#ifndef RUBATO_PROTO_JOB_H
#define RUBATO_PROTO_JOB_H

#include "base/options.h"
#include "base/status.h"
#include "proto/plan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* So many gradients in a row that are not finite (rounds in sync, a worker's pushes else): the job
 * has diverged and ends. */
enum { JOB_NONFINITE_MAX = 10 };

enum job_role { JOB_SERVER = 1, JOB_WORKER = 2, JOB_LAUNCH = 4 };

struct job {
    /* AGREED: the shape of the job */
    int64_t servers, workers;    /* processes */
    char mode[OPTION_TEXT_MAX];  /* sync | ssp:S | async | local:H | diloco:H */
    char model[OPTION_TEXT_MAX]; /* gpt2:NAME | gpt2:LxCxH | llama:... | path */
    int64_t vocab;               /* 0: from the data's format */
    int64_t seq_len;             /* T, tokens of one sequence */
    int64_t pad_token;           /* a token that is no target; -1: none */
    int64_t batch;               /* B, sequences of a worker at once */
    int64_t accumulate;          /* batches a worker and step */
    int64_t steps;               /* steps of each worker */
    int64_t seed;
    double dropout; /* part of the activations that is dropped; 0: none */
    /* AGREED: the discipline of time, where the mode's own numbers are not wanted (discipline.h) */
    int64_t local_steps;                   /* 0: the mode's */
    char staleness[OPTION_TEXT_MAX];       /* auto: the mode's | any | reports */
    char quorum[OPTION_TEXT_MAX];          /* auto: the mode's | all | workers */
    int64_t backup_workers;                /* a quorum of all but so many */
    char grace[OPTION_TEXT_MAX];           /* auto | milliseconds */
    char late[OPTION_TEXT_MAX];            /* auto | drop | join */
    char staleness_scale[OPTION_TEXT_MAX]; /* none | inverse | exp */
    int64_t max_staleness;                 /* updates; a staler push is dropped; -1: never */
    double delay_comp;                     /* lambda of DC-ASGD; 0: off */
    char delay_base[OPTION_TEXT_MAX];      /* copies | moments */
    int64_t sync_warmup;                   /* per-push modes: steps that are sync at first; -1: */
                                           /* a quarter of all (job_sync_warmup) */
    double push_momentum, push_beta2;      /* per-push modes; push_beta2 0: beta2^(1/workers) */
    /* AGREED: local steps */
    char outer[OPTION_TEXT_MAX];       /* auto: the mode's | average | sgd | nesterov | adamw ... */
    double outer_lr, outer_momentum;   /* outer_lr 0: the outer optimizer's usual one */
    char inner_state[OPTION_TEXT_MAX]; /* keep | reset */
    int64_t fragments, overlap;
    double mix;       /* part of its own weights that a worker keeps at an install */
    bool adapt_steps; /* each worker's local steps follow its speed */
    /* AGREED: optimizer */
    char optimizer[OPTION_TEXT_MAX]; /* adamw | sgd | ... | worker:NAME: job_optimizer() */
    char moments[OPTION_TEXT_MAX];   /* f32 | bf16 | int8 */
    char rates[OPTION_TEXT_MAX];     /* PATTERN=FACTOR,...: learning rates of tensors; 0: frozen */
    char decays[OPTION_TEXT_MAX];    /* PATTERN=FACTOR,...: weight decays of tensors */
    char schedule[OPTION_TEXT_MAX];  /* cosine | linear | wsd | constant */
    double lr, lr_min_ratio;
    char lr_scale[OPTION_TEXT_MAX]; /* none | sqrt | linear, in the number of workers */
    int64_t warmup;                 /* steps */
    double cooldown;                /* wsd: part of the steps */
    double beta1, beta2, eps, momentum, weight_decay;
    int64_t freeze_v_after; /* adamw: steps after which the second moment stays; 0: never */
    double clip;            /* global norm; 0: off */
    /* AGREED: the wire */
    char push[OPTION_TEXT_MAX];        /* a codec's text: proto/codec_spec.h */
    char push_policy[OPTION_TEXT_MAX]; /* auto | all | file: compression/push_codec.h */
    char residual[OPTION_TEXT_MAX];    /* f32 | bf16 | int8 */
    int64_t dense_warmup;       /* pushes that topk, powersgd, onebit send dense; -1: usual */
    int64_t density_schedule;   /* pushes over which topk's density falls; -1: usual */
    char pull[OPTION_TEXT_MAX]; /* bf16 | none | delta-int8 | delta-int4 */
    char wire[OPTION_TEXT_MAX]; /* auto | plain | auth | encrypt: frames of channel tls */
    int64_t block_values;       /* values a block aims at */
    double lease;               /* seconds; every timer derives from it */
    /* LOCAL: where and how */
    char listen[OPTION_TEXT_MAX]; /* host:port of the coordinator, on the coordinator */
    char join[OPTION_TEXT_MAX];   /* host:port of the coordinator, everywhere else */
    char bind[OPTION_TEXT_MAX];   /* address to listen at, if not the one of --listen */
    int64_t index;                /* wanted place among the servers or workers; -1: any */
    char key_file[OPTION_TEXT_MAX];
    bool insecure;
    double join_timeout;               /* seconds; 0: 12 leases */
    char channel[OPTION_TEXT_MAX];     /* auto | shm | ucx | tls: of data */
    char net_devices[OPTION_TEXT_MAX]; /* for UCX; empty: the interface of the control connection */
    char tls[OPTION_TEXT_MAX];         /* UCX's transports; empty: as the devices need */
    char poll[OPTION_TEXT_MAX];        /* sleep | adaptive | busy: see base/idle.h */
    char log_level[OPTION_TEXT_MAX];
    int64_t shards;             /* server: shard threads of this process */
    bool stay;                  /* server: wait for the next job when one ends */
    char data[OPTION_TEXT_MAX]; /* worker */
    char val_data[OPTION_TEXT_MAX];
    int64_t eval_every, eval_batches;
    int64_t threads;                     /* 0: all cores of the process */
    char device[OPTION_TEXT_MAX];        /* what computes: base/device_name.h */
    char compute[OPTION_TEXT_MAX];       /* auto | f32 | bf16 | tf32 */
    double peak_tflops;                  /* of a device's products; 0: by its name */
    char profile_steps[OPTION_TEXT_MAX]; /* empty, or FIRST:LAST: job_profile_steps() */
    char recompute[OPTION_TEXT_MAX];     /* none | attention | every:N */
    bool accumulate_apart;               /* batches' gradients are added when they are complete */
    bool push_overlap;                   /* blocks leave during backward; else when it is done */
    bool host_encode;                    /* pushes are encoded there, wherever gradients are */
    bool forward_overlap;       /* a step starts while weights of the last round still come */
    char init[OPTION_TEXT_MAX]; /* random | path of safetensors; of worker 0 */
    char cpus[OPTION_TEXT_MAX]; /* cores that the process is confined to; empty: all */
    char run_dir[OPTION_TEXT_MAX];
    int64_t sample_tokens;
    char prompt[OPTION_TEXT_MAX];
    char tokenizer[OPTION_TEXT_MAX]; /* file[,pattern] of the data's vocabulary */
    char progress[OPTION_TEXT_MAX];  /* auto | line | off */
    char link[OPTION_TEXT_MAX];      /* none, or a rate that data channels are paced to */
    double slow;                     /* a worker computes so many times slower, for tests; 1: not */
    int64_t leave_after;             /* a worker leaves the job after so many steps; 0: never */
};

extern const struct option job_table[];
extern const size_t job_table_count;

/* Timers, all from the lease. Nanoseconds. */
int64_t job_lease_ns(const struct job *job);
int64_t job_heartbeat_ns(const struct job *job);    /* lease / 10 */
int64_t job_join_timeout_ns(const struct job *job); /* --join-timeout, or 12 leases */

/* The highest learning rate: lr, or by --lr-scale lr * sqrt(workers) or lr * workers. Pure. */
double job_peak_rate(const struct job *job);

/* The learning rate of update `step` (0-based), where peak is job_peak_rate(): warm-up from
 * peak / warmup to peak over `warmup` steps; then a fall to peak * lr_min_ratio at `steps`, along a
 * half cosine, along a line, or (wsd) along a line that begins `cooldown` * steps before the end;
 * or constant. Pure. */
double job_learning_rate(const struct job *job, int64_t step);

/* What --recompute says -> *every, *attention. none: 0, false; attention: 0, true; every:N: N >= 1,
 * false. INVALID for another text. Pure. */
enum status job_recompute(const char *text, int64_t *every, bool *attention) WARN_UNUSED;

/* What --profile-steps says, FIRST:LAST with 1 <= FIRST <= LAST, or FIRST alone -> *first, *last; 0
 * and 0 of the empty text: none. INVALID for another text. Pure. */
enum status job_profile_steps(const char *text, int64_t *first, int64_t *last) WARN_UNUSED;

/* Does what computes fit --device? INVALID with the reason in why [why_bytes]. Pure. */
enum status job_check_device(const struct job *job, char *why, size_t why_bytes) WARN_UNUSED;

/* Has --accumulate-apart a use with so many devices? INVALID with the reason in why [why_bytes].
 * Pure. */
enum status job_check_apart(const struct job *job, int devices, char *why,
                            size_t why_bytes) WARN_UNUSED;

/* Do the options fit each other, and has each that was given a use in the job's mode? INVALID with
 * the reason in why [why_bytes], naming the options: to be asked before a job starts. Pure. */
enum status job_check(const struct job *job, char *why, size_t why_bytes) WARN_UNUSED;

/* The servers' optimizer after local steps: average (plain SGD with rate 1), or a name for
 * optimizer_find(). Pure. */
const char *job_outer(const struct job *job);

/* The optimizer's name for optimizer_find() (kernels/optimizer_state.h): --optimizer NAME or
 * worker:NAME. Pure. */
const char *job_optimizer(const struct job *job);

/* --optimizer worker:NAME: each worker steps a replica of the weights by itself, all the same
 * steps, and servers send the mean gradient instead of weights. Pure. */
bool job_workers_step(const struct job *job);

/* --optimizer worker:1bit-adam, AdamW whose moments travel: after so many steps, for which servers
 * average gradients, the second moment stays and they average first moments. 0: gradients for ever.
 * Tang et al., "1-bit Adam", ICML 2021. Pure. */
int64_t job_momentum_after(const struct job *job);

/* The plan's options for this job on so many shards. Pure. */
struct plan_options job_plan_options(const struct job *job, uint64_t shards);

/* Tokens that one worker reads in a step. Pure. */
int64_t job_step_tokens(const struct job *job);

/* Is a --model a path (it has a / or ends in .json) rather than a name? Pure. */
bool job_model_is_path(const char *model);

/* A list of (name, value) of AGREED options, as they travel in a join. */
#define JOB_AGREED_MAX 96
struct job_values {
    size_t count;
    const char *names[JOB_AGREED_MAX];            /* rows' own names */
    char values[JOB_AGREED_MAX][OPTION_TEXT_MAX]; /* as options_text writes them */
};

/* A preset of --push may stand for more than a codec (docs/COMPRESSION.md): sets those options that
 * nobody gave, unless somebody gave a --mode, or the job could not be with them. given
 * [OPTIONS_MAX]: who gave what, or NULL: as the options' origins say. True, with one line about it
 * in what [what_bytes], if it set some. --push itself stays the preset's name, which codec_parse()
 * reads. */
bool job_expand_preset(struct options *options, const bool *given, char *what, size_t what_bytes);

/* The AGREED options that a user gave this process (or, with `all`, every one at its value). */
void job_given(const struct options *options, bool all, struct job_values *values);

/* The coordinator's record of who gave what. */
struct job_agreement {
    bool given[OPTIONS_MAX];
    char by[OPTIONS_MAX][64]; /* "worker on host:pid", for the diff */
};

/* Merges what `peer` (its name, for messages) gave into the coordinator's options. MISMATCH: a
 * value differs from one given before; diff [diff_bytes] gets one line an option,
 * "lr: 0.001 (server on a:1) is not 0.002 (worker on b:2)", and nothing is merged. INVALID: a name
 * or value that this build does not know; diff says which, and nothing is merged. What the
 * coordinator's own user gave counts as given, by "the coordinator" until it is agreed. */
enum status job_agree(struct options *options, struct job_agreement *agreement,
                      const struct job_values *values, const char *peer, char *diff,
                      size_t diff_bytes) WARN_UNUSED;

/* Takes the job's values into a member's options with ORIGIN_JOB. INVALID as above, or for another
 * value than the one that was given here; logged, and nothing is taken. */
enum status job_adopt(struct options *options, const struct job_values *values) WARN_UNUSED;

/* host:port -> parts; an IPv6 host is in brackets, which are taken off. Port 0..65535. False with
 * no change if malformed or too long for host [host_bytes], port [port_bytes]. Pure. */
bool job_split_address(const char *address, char *host, size_t host_bytes, char *port,
                       size_t port_bytes);

#endif
