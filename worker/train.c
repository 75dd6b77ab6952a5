#include "worker/train.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "kernels/threads.h"
#include "worker/cadence.h"
#include "worker/finish.h"
#include "worker/hf_config.h"
#include "worker/hf_weights.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* By then every buffer has been used; later the step loop must not allocate. */
enum { WARM_STEPS = 3 };

/* Without --val-data, this part of the data is kept for validation. */
enum { VALIDATION_PART = 20 };

static enum status open_streams(const struct data *data, const struct data *val_data,
                                const struct job *job, struct data_stream *train,
                                struct data_stream *val) {
    uint64_t held = val_data == NULL ? data->count / VALIDATION_PART : 0;
    if (val_data == NULL && held < (uint64_t)job->seq_len + 1) {
        held = data->count < (uint64_t)job->seq_len + 1 ? data->count : (uint64_t)job->seq_len + 1;
    }
    uint64_t seed = (uint64_t)job->seed;
    TRY(data_stream_open(train, data, 0, data->count - held, job->seq_len, seed));
    if (val_data != NULL) {
        return data_stream_open(val, val_data, 0, val_data->count, job->seq_len, seed);
    }
    return data_stream_open(val, data, data->count - held, held, job->seq_len, seed);
}

enum status trainer_check_data(const struct data *data, const struct data *val_data,
                               const struct job *job) {
    struct data_stream train;
    struct data_stream val;
    TRY(open_streams(data, val_data, job, &train, &val));
    int64_t vocab = job->vocab != 0 ? job->vocab : data_default_vocab(data);
    if (job_model_is_path(job->model)) {
        struct model_shape shape;
        TRY(hf_config_of_job(job, vocab, &shape));
        vocab = shape.vocab;
    }
    TRY(data_check_vocab(data, vocab));
    return val_data != NULL ? data_check_vocab(val_data, vocab) : STATUS_OK;
}

int trainer_input_exit_code(enum status status) {
    if (status == STATUS_IO) {
        return EXIT_CODE_NO_INPUT;
    }
    return status == STATUS_UNSUPPORTED ? EXIT_CODE_DATA : (int)status_exit_code(status);
}

void trainer_init(struct trainer *trainer, const struct trainer_config *config) {
    *trainer = (struct trainer){
        .config = *config, .job = config->options->config, .step = {.val_loss = NAN}};
}

void trainer_free(struct trainer *trainer) {
    if (trainer->plan != NULL) {
        bucket_free(&trainer->bucket);
    }
    if (trainer->model != NULL) {
        model_close(trainer->model);
    }
    arena_free(&trainer->arena);
    free(trainer->ready);
    free(trainer->tensors);
}

/* To the session; waits while its ring is full, which the session empties in any state. */
static void tell(struct trainer *trainer, const struct session_command *command) {
    const struct timespec pause = {.tv_nsec = 50000};
    while (ring_push(&trainer->config.session->commands, command) != STATUS_OK) {
        ASSERT(trainer->config.wake != NULL);
        wake_signal(trainer->config.wake);
        (void)nanosleep(&pause, NULL);
    }
    if (trainer->config.wake != NULL) {
        wake_signal(trainer->config.wake);
    }
}

/* Something failed here: the job is told, and ends. */
static void fail(struct trainer *trainer, const char *reason, int exit_code) {
    struct session_command leave = {
        .kind = SESSION_LEAVE, .reason = reason, .exit_code = exit_code};
    trainer->exit_code = exit_code;
    trainer->state = TRAINER_LEAVING;
    tell(trainer, &leave);
}

/* The job's options are here: what is the model, and does the data fit it? */
static void take_assigned(struct trainer *trainer, const struct session_event *event) {
    const struct job *job = trainer->job;
    struct model_options options;
    trainer->rank = event->rank;
    enum status status =
        hf_config_of_job(job, data_default_vocab(trainer->config.data), &trainer->shape);
    if (status != STATUS_OK) {
        fail(trainer, "it cannot build the job's --model", trainer_input_exit_code(status));
        return;
    }
    trainer->vocab = trainer->shape.vocab;
    status = trainer_check_data(trainer->config.data, trainer->config.val_data, job);
    if (status == STATUS_OK) {
        status = open_streams(trainer->config.data, trainer->config.val_data, job, &trainer->train,
                              &trainer->val);
    }
    if (status != STATUS_OK) {
        fail(trainer, "its data does not fit the job's --vocab or --seq-len",
             trainer_input_exit_code(status));
        return;
    }
    trainer_model_options(job, &options);
    log_info("this is worker %u of %" PRId64 ": %s, mode %s, push %s, pull %s, compute %s",
             trainer->rank, job->workers, job->model, job->mode, job->push, job->pull,
             options.type == COMPUTE_BF16 ? "bf16" : "f32");
    trainer->tensors = model_tensors(&trainer->shape, &trainer->tensor_count);
    struct session_command ready = {
        .kind = SESSION_READY, .tensors = trainer->tensors, .count = trainer->tensor_count};
    tell(trainer, &ready);
    trainer->state = TRAINER_PLANNING;
}

/* Worker 0's, by --init; the others' come from the servers. */
static enum status make_first_weights(struct trainer *trainer) {
    const char *init = trainer->job->init;
    if (trainer->rank == 0 && strcmp(init, "random") != 0) {
        return hf_weights_load(init, trainer->plan, trainer->weights);
    }
    if (trainer->rank == 0) {
        trainer->config.first_weights(trainer, trainer->weights);
    }
    return STATUS_OK;
}

void trainer_model_options(const struct job *job, struct model_options *options) {
    bool bf16 = strcmp(job->compute, "bf16") == 0 ||
                (strcmp(job->compute, "auto") == 0 && linear_bf16_is_fast());
    bool attention = false;
    int64_t every = 0;
    ASSERT(job_recompute(job->recompute, &every, &attention) == STATUS_OK);
    *options = (struct model_options){.B = job->batch,
                                      .T = job->seq_len,
                                      .training = true,
                                      .type = bf16 ? COMPUTE_BF16 : COMPUTE_F32,
                                      .recompute = every > 0   ? MODEL_RECOMPUTE_EVERY
                                                   : attention ? MODEL_RECOMPUTE_ATTENTION
                                                               : MODEL_RECOMPUTE_NONE,
                                      .recompute_every = every};
}

/* The plan is here: memory, first weights, and the first pull. */
static void take_planned(struct trainer *trainer, const struct session_event *event) {
    const struct job *job = trainer->job;
    struct arena *arena = &trainer->arena;
    struct model_options options;
    trainer_model_options(job, &options);
    trainer->plan = event->plan;
    bucket_init(&trainer->bucket, trainer->plan);
    trainer->ready = memory_zeroed((size_t)bucket_most(&trainer->bucket), sizeof(uint64_t));
    size_t vector = (size_t)trainer->plan->value_count * sizeof(float);
    size_t batch = (size_t)(job->batch * job->seq_len) * sizeof(int32_t);
    if (arena_init(arena, 2 * arena_need(vector) + 2 * arena_need(batch)) != STATUS_OK ||
        model_open(&trainer->model, &trainer->shape, trainer->plan, &options) != STATUS_OK) {
        fail(trainer, "out of memory for the model", EXIT_CODE_MEMORY);
        return;
    }
    trainer->weights = arena_take(arena, vector);
    trainer->grad = arena_take(arena, vector);
    trainer->tokens = arena_take(arena, batch);
    trainer->targets = arena_take(arena, batch);
    enum status status = make_first_weights(trainer);
    if (status != STATUS_OK) {
        fail(trainer, "it cannot load its --init", trainer_input_exit_code(status));
        return;
    }
    if (trainer->config.report != NULL &&
        report_open(trainer->config.report, trainer->config.options, trainer->rank,
                    trainer->config.data->format == DATA_BYTES) != STATUS_OK) {
        fail(trainer, "it cannot write the run's folder", EXIT_CODE_CREATE);
        return;
    }
    struct session_command memory = {.kind = SESSION_MEMORY, .weights = trainer->weights};
    struct session_command pull = {.kind = SESSION_PULL, .first = trainer->rank == 0};
    tell(trainer, &memory);
    tell(trainer, &pull);
    trainer->state = TRAINER_STEPPING;
}

void trainer_first_weights(const struct trainer *trainer, float *weights) {
    model_init_weights(&trainer->shape, trainer->plan, (uint64_t)trainer->job->seed, weights);
}

/* A tensor's gradient is final: pushes the blocks that are complete with it. */
static void push_ready(void *context, uint64_t tensor) {
    struct trainer *trainer = context;
    uint64_t count = bucket_mark(&trainer->bucket, tensor, trainer->ready);
    for (uint64_t i = 0; i < count; i++) {
        const struct plan_block *block = &trainer->plan->blocks[trainer->ready[i]];
        struct session_command push = {.kind = SESSION_PUSH,
                                       .block = block->id,
                                       .seq = (uint64_t)trainer->step.step,
                                       .grad = trainer->grad + block->offset};
        tell(trainer, &push);
    }
}

void trainer_mask_padding(struct trainer *trainer) {
    const struct job *job = trainer->job;
    for (int64_t i = 0; job->pad_token >= 0 && i < job->batch * job->seq_len; i++) {
        if (trainer->targets[i] == job->pad_token) {
            trainer->targets[i] = -1;
        }
    }
}

/* Batch `micro` of the step. A step's batches follow each other in the stream, so that B, N and W
 * may change places: the sequences of all workers' step are the same. */
static void read_batch(struct trainer *trainer, int64_t micro) {
    const struct trainer_config *config = &trainer->config;
    const struct job *job = trainer->job;
    uint64_t turn = (uint64_t)trainer->steps_done * (uint64_t)job->workers + trainer->rank;
    uint64_t sequence = (turn * (uint64_t)job->accumulate + (uint64_t)micro) * (uint64_t)job->batch;
    if (config->read_batch != NULL) {
        config->read_batch(config->batch_context, sequence, job->batch, trainer->tokens,
                           trainer->targets);
    } else {
        data_stream_read(&trainer->train, sequence, job->batch, trainer->tokens, trainer->targets);
    }
    trainer_mask_padding(trainer);
}

/* Forward and backward of batch `micro`; the gradient is pushed in the last one's backward. */
static void compute_batch(struct trainer *trainer, int64_t micro) {
    const struct job *job = trainer->job;
    struct report_step *step = &trainer->step;
    bool last = micro + 1 == job->accumulate;
    float part = 1.0F / (float)job->accumulate;
    int64_t start_ns = clock_now_ns();
    read_batch(trainer, micro);
    struct model_batch batch = {trainer->tokens, trainer->targets, job->batch, job->seq_len};
    struct model_gradient gradient = {.values = trainer->grad, .scale = part, .add = micro > 0};
    float loss = model_forward(trainer->model, &batch, &gradient);
    int64_t forward_ns = clock_now_ns();
    model_backward(trainer->model, &batch, &gradient, last ? push_ready : NULL, trainer);
    step->loss += loss * part;
    step->forward_ns += forward_ns - start_ns;
    step->backward_ns += clock_now_ns() - forward_ns;
}

static void compute_step(struct trainer *trainer) {
    struct report_step *step = &trainer->step;
    memory_forbid(trainer->steps_done > WARM_STEPS);
    step->step = trainer->steps_done + 1;
    step->start_ns = clock_now_ns();
    step->loss = 0;
    step->forward_ns = 0;
    step->backward_ns = 0;
    bucket_reset(&trainer->bucket);
    model_set_weights(trainer->model, trainer->weights);
    for (int64_t micro = 0; micro < trainer->job->accumulate; micro++) {
        compute_batch(trainer, micro);
    }
    struct session_command commit = {.kind = SESSION_COMMIT, .seq = (uint64_t)step->step};
    tell(trainer, &commit);
    memory_forbid(false);
    trainer->answered = false;
    trainer->steps_done++;
    atomic_store(&trainer->config.session->step, (uint64_t)trainer->steps_done);
    atomic_store(&trainer->config.session->tokens,
                 (uint64_t)(trainer->steps_done * job_step_tokens(trainer->job)));
}

/* What all workers have read so far. Where they step together it is known; else their Beats tell,
 * a little late. */
static uint64_t tokens_of_all(const struct trainer *trainer) {
    const struct job *job = trainer->job;
    uint64_t own = (uint64_t)(trainer->steps_done * job_step_tokens(job));
    uint64_t told = atomic_load(&trainer->config.session->job_tokens);
    if (!trainer->config.session->commits) {
        return own * (uint64_t)job->workers;
    }
    return told > own ? told : own;
}

/* The weights are back: the step is over. */
static void close_step(struct trainer *trainer, const struct session_event *event) {
    const struct job *job = trainer->job;
    struct report_step *step = &trainer->step;
    step->wait_ns = clock_now_ns() - step->start_ns - step->forward_ns - step->backward_ns;
    step->counters = event->counters;
    step->job_tokens = tokens_of_all(trainer);
    if (trainer->config.loss != NULL) {
        trainer->config.loss(trainer->config.loss_context, step->step, step->loss);
    }
    if (trainer->config.report == NULL) {
        return;
    }
    if (trainer->rank == 0 && job->eval_every > 0 && step->step % job->eval_every == 0 &&
        step->step < job->steps) {
        step->val_loss = finish_validate(trainer);
    }
    report_step(trainer->config.report, step);
}

/* The final weights are here. */
static void save_run(struct trainer *trainer) {
    struct session_command saved = {.kind = SESSION_SAVED};
    enum status status = finish_run(trainer);
    if (status == STATUS_OK) {
        tell(trainer, &saved);
        trainer->state = TRAINER_LEAVING;
    } else if (status == STATUS_STALE) {
        trainer->state = TRAINER_LEAVING; /* the session's last event tells why */
    } else if (status == STATUS_CORRUPT) {
        log_error("diverged: the validation loss is not finite, no weights are written; try a "
                  "lower --lr");
        fail(trainer, "its model diverged", EXIT_CODE_TRAINING);
    } else {
        fail(trainer, "it cannot write the run's files", EXIT_CODE_IO);
    }
}

static void take_settled(struct trainer *trainer, const struct session_event *event) {
    trainer->answered = true;
    if (trainer->state == TRAINER_SAVING) {
        save_run(trainer);
    } else if (trainer->steps_done > 0) {
        close_step(trainer, event);
    } else if (trainer->config.report != NULL) {
        trainer->config.report->started_ns = clock_now_ns();
    }
}

static void take_drained(struct trainer *trainer) {
    struct session_command pull = {.kind = SESSION_PULL};
    const struct job *job = trainer->job;
    if (trainer->state != TRAINER_DRAINING) {
        return;
    }
    trainer->step.start_ns = clock_now_ns();
    trainer->step.job_tokens = (uint64_t)(job->steps * job->workers * job_step_tokens(job));
    if (trainer->rank == 0) {
        trainer->answered = false;
        trainer->state = TRAINER_SAVING;
        tell(trainer, &pull);
    } else {
        trainer->state = TRAINER_LEAVING;
    }
}

static void take_event(struct trainer *trainer, const struct session_event *event) {
    switch (event->kind) {
    case SESSION_ASSIGNED:
        take_assigned(trainer, event);
        break;
    case SESSION_PLANNED:
        take_planned(trainer, event);
        break;
    case SESSION_SETTLED:
        take_settled(trainer, event);
        break;
    case SESSION_DRAINED:
        take_drained(trainer);
        break;
    case SESSION_ENDED:
    default:
        if (trainer->exit_code == EXIT_CODE_OK) {
            trainer->exit_code = event->exit_code;
        }
        trainer->state = TRAINER_ENDED;
    }
}

bool trainer_poll(struct trainer *trainer) {
    struct session_event event;
    struct session_command done = {.kind = SESSION_DONE};
    if (ring_pop(&trainer->config.session->events, &event) == STATUS_OK) {
        if (trainer->state != TRAINER_ENDED &&
            (trainer->state != TRAINER_LEAVING || event.kind == SESSION_ENDED)) {
            take_event(trainer, &event);
        }
        return true;
    }
    if (trainer->state != TRAINER_STEPPING) {
        return false;
    }
    struct cadence_progress progress = {.steps_done = trainer->steps_done,
                                        .steps = trainer->job->steps,
                                        .answered = trainer->answered};
    switch (cadence_next(&progress)) {
    case CADENCE_COMPUTE:
        compute_step(trainer);
        return true;
    case CADENCE_FINISH:
        trainer->state = TRAINER_DRAINING;
        tell(trainer, &done);
        return true;
    case CADENCE_WAIT:
    default:
        return false;
    }
}
