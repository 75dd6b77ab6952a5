/* train.h - a worker's training: data, model, one step after the other, and what is left.
 *
 * The trainer computes and tells the session (session.h) what to send; it owns model, weights and
 * gradient.
 *   JOINING   until the job's options are there: model shape, tensors
 *   PLANNING  until the plan is there: memory, first weights
 *   STEPPING  what cadence.h says: in gradient modes forward, backward, each block pushed as soon
 *             as its gradient is final (--push-overlap), and wait until all have come back, or
 *             those that the next forward starts with (gate.h); in local modes steps of its own
 *             (local.h) and reports of what came of them
 *   DRAINING  own reports are made; until the job ends, or this worker is named to save it
 *   SAVING    the saver fetches the final weights, validates, writes the run's files and a sample
 *   LEAVING   until the session has ended
 * A state machine: trainer_poll() does what can be done, a whole step at most, which waits (await)
 * only if it started before all its weights were there. In modes with rounds of all workers the
 * result of a run depends on the options and the data alone, never on time.
 */
#ifndef RUBATO_WORKER_TRAIN_H
#define RUBATO_WORKER_TRAIN_H

#include "base/memory.h"
#include "worker/bucket.h"
#include "worker/cadence.h"
#include "worker/data.h"
#include "worker/local.h"
#include "worker/node.h"
#include "worker/report.h"
#include "worker/session.h"
#include "worker/vocabulary.h"

enum trainer_state {
    TRAINER_JOINING,
    TRAINER_PLANNING,
    TRAINER_STEPPING,
    TRAINER_DRAINING,
    TRAINER_SAVING,
    TRAINER_LEAVING,
    TRAINER_ENDED
};

struct trainer;

struct trainer_config {
    struct options *options; /* the member's; its job is read once assigned */
    struct session *session;
    const struct wake *wake;       /* rung after each command; NULL without threads */
    const struct data *data;       /* open; the caller's */
    const struct data *val_data;   /* NULL: the last twentieth of data */
    struct vocabulary vocabulary;  /* of the data */
    struct report *report;         /* the caller's; NULL: nothing is written or printed */
    struct device *const *devices; /* [device_count] what computes, the caller's; */
    int device_count;              /* 0: the host */
    /* Worker 0's first weights [plan.value_count]: trainer_first_weights, or a test's own. */
    void (*first_weights)(const struct trainer *trainer, float *weights);
    /* Where batches come from: NULL for the data's stream, or a test's own. `sequence` numbers the
     * first of the B sequences over all workers and steps (data.h). */
    void (*read_batch)(void *context, uint64_t sequence, int64_t B, int32_t *tokens,
                       int32_t *targets);
    void *batch_context;
    float *keep_weights; /* NULL, or [value_count]: the saver's final weights, for tests */
    void (*loss)(void *context, int64_t step, float loss); /* NULL, or told each step's loss */
    void *loss_context;
    /* Sleeps until the session may have installed blocks or told an event, or for a while. NULL:
     * no step starts before all its weights are there. */
    void (*await)(void *context);
    void *await_context;
    /* NULL, or how long the step that was just computed took, in a test's own time. */
    int64_t (*step_ns)(void *context);
    void *step_context;
};

struct trainer {
    struct trainer_config config;
    enum trainer_state state;
    const struct job *job;
    uint32_t rank;
    struct model_shape shape;
    struct data_stream train, val;
    struct tensor *tensors;
    uint64_t tensor_count;
    const struct plan *plan; /* the session's */
    struct bucket bucket;
    uint64_t *ready;     /* scratch of bucket_mark */
    uint64_t *late;      /* [tensor_count] --no-push-overlap: whose gradients are final and whose */
    uint64_t late_count; /* blocks wait for the end of backward, in order */
    struct device *host; /* config.devices where none are given */
    struct node *node;
    struct arena arena;
    bool pinned;                         /* the arena, for copies from and to the device */
    struct device_reading reading;       /* of the first device, */
    int64_t watched_ns;                  /* at this time */
    double peak_flops, step_flops;       /* a second, of all devices, 0: not known; of a step */
    int64_t profile_first, profile_last; /* steps that a profiler is to record; 0: none */
    bool recording;                      /* it was told to start */
    /* [plan.value_count] weights: those that steps are made on. NULL: both are on the device, and
     * steps are made there. */
    float *weights, *grad;
    struct raw_weights raw;    /* of the weights: how they are installed; codecs NULL: decoded */
    int32_t *tokens, *targets; /* [batch, seq_len] */
    struct discipline discipline;
    struct local local; /* local modes */
    /* Progress. A place in the job is counted in steps of a worker at the usual pace. */
    int64_t steps_done;      /* the place that is reached */
    int64_t computed;        /* steps that this worker has computed */
    int64_t reports;         /* to be made, or rounds of the job */
    int64_t reports_done;    /* sent: the last one's seq */
    int64_t base;            /* reports before the interval under way: own, or rounds */
    int64_t interval, usual; /* steps of the interval under way: here, and at the usual pace */
    int64_t since;           /* steps since the last report */
    int64_t limit;           /* cadence.h */
    uint64_t version;        /* the highest that is installed */
    bool answered, installed, behind; /* cadence.h */
    bool told_held;                   /* HELD was told, or is not to be yet */
    struct squares squares;           /* of gradients that are whole before they are pushed */
    uint64_t *fragment_tokens;        /* [fragments] that count, since the fragment's last report */
    struct exchange_report report;
    uint64_t step_tokens;     /* that count, in the step under way, */
    double step_loss;         /* and the sum of their losses */
    bool step_open;           /* its line is not written yet */
    int64_t interval_ns;      /* computing since the last report */
    double pace_ns;           /* a step, over the last reports; 0: not known */
    int64_t nonfinite_in_row; /* local steps */
    int64_t validated;        /* the last place at which worker 0 validated */
    struct exchange_counters counters;
    struct report_step step;   /* the one under way */
    struct report_step before; /* the one before, while its answers come during this one */
    bool before_open;          /* then: its line is not written yet */
    int exit_code;
};

/* Is the data long enough for sequences of --seq-len? IO: it is too short, logged. */
enum status trainer_check_length(const struct data *data, const struct data *val_data,
                                 const struct job *job) WARN_UNUSED;

/* Are all tokens below `vocab`? CORRUPT: one is not, logged. */
enum status trainer_check_vocab(const struct data *data, const struct data *val_data,
                                int64_t vocab) WARN_UNUSED;

/* The exit code for an input file that brought this status: unreadable 66, bad content 65. */
int trainer_input_exit_code(enum status status);

/* The usual first weights: from the model and --seed. */
void trainer_first_weights(const struct trainer *trainer, float *weights);

/* How a worker with these options opens its model: --batch, --seq-len, --dropout, --recompute, and
 * --compute on --device; the device itself is not set. */
void trainer_model_options(const struct job *job, struct model_options *options);

/* To the session; waits while its ring is full, which the session empties in any state. */
void trainer_tell(struct trainer *trainer, const struct session_command *command);

/* Something failed here: the job is told, and ends. `reason` is a constant. */
void trainer_fail(struct trainer *trainer, const char *reason, int exit_code);

/* Has the device failed? Then the job is told, and this worker ends. */
bool trainer_lost_device(struct trainer *trainer);

/* It has: likewise. */
void trainer_fail_device(struct trainer *trainer);

/* Targets in the batch that are --pad-token become -1: nothing is to be predicted there. */
void trainer_mask_padding(struct trainer *trainer);

void trainer_init(struct trainer *trainer, const struct trainer_config *config);

/* TIMEOUT, of several CUDA devices only: they hang and cannot be closed; the process has to end by
 * _exit(). */
enum status trainer_free(struct trainer *trainer);

/* Takes the session's next event; false when there is none. */
bool trainer_listen(struct trainer *trainer);

/* True when something was done. */
bool trainer_poll(struct trainer *trainer);

#endif
