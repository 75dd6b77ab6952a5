#include "worker/train.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "kernels/device_peak.h"
#include "worker/finish.h"
#include "worker/gate.h"
#include "worker/hf_config.h"
#include "worker/hf_weights.h"
#include "worker/model_flops.h"
#include "worker/step.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

enum status trainer_check_length(const struct data *data, const struct data *val_data,
                                 const struct job *job) {
    struct data_stream train;
    struct data_stream val;
    return open_streams(data, val_data, job, &train, &val);
}

enum status trainer_check_vocab(const struct data *data, const struct data *val_data,
                                int64_t vocab) {
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
    *trainer = (struct trainer){.config = *config,
                                .job = config->options->config,
                                .limit = INT64_MAX,
                                .step = {.val_loss = NAN}};
    if (config->device_count == 0) {
        trainer->host = device_host();
        trainer->config.devices = &trainer->host;
        trainer->config.device_count = 1;
    }
}

enum status trainer_free(struct trainer *trainer) {
    if (trainer->recording) {
        (void)device_record(trainer->config.devices[0], false);
    }
    if (trainer->plan != NULL) {
        bucket_free(&trainer->bucket);
    }
    local_free(&trainer->local);
    TRY(node_close(trainer->node));
    if (trainer->pinned) {
        device_unpin(trainer->config.devices[0], trainer->arena.base);
    }
    arena_free(&trainer->arena);
    squares_free(&trainer->squares);
    free(trainer->raw.codecs);
    free(trainer->ready);
    free(trainer->late);
    free(trainer->fragment_tokens);
    free(trainer->tensors);
    return STATUS_OK;
}

void trainer_tell(struct trainer *trainer, const struct session_command *command) {
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

void trainer_fail(struct trainer *trainer, const char *reason, int exit_code) {
    struct session_command leave = {
        .kind = SESSION_LEAVE, .reason = reason, .exit_code = exit_code};
    trainer->exit_code = exit_code;
    trainer->state = TRAINER_LEAVING;
    trainer_tell(trainer, &leave);
}

void trainer_fail_device(struct trainer *trainer) {
    trainer_fail(trainer, "a device of its own failed", EXIT_CODE_DEVICE);
}

bool trainer_lost_device(struct trainer *trainer) {
    if (node_status(trainer->node) == STATUS_OK) {
        return false;
    }
    trainer_fail_device(trainer);
    return true;
}

/* The job's options are here: what is the model, and does the data fit it? */
static void take_assigned(struct trainer *trainer, const struct session_event *event) {
    static const char *const types[] = {
        [COMPUTE_F32] = "f32", [COMPUTE_BF16] = "bf16", [COMPUTE_TF32] = "tf32"};
    const struct job *job = trainer->job;
    struct model_options options;
    trainer->rank = event->rank;
    enum status status =
        hf_config_of_job(job, data_default_vocab(trainer->config.data), &trainer->shape);
    if (status != STATUS_OK) {
        trainer_fail(trainer, "it cannot build the job's --model", trainer_input_exit_code(status));
        return;
    }
    status = open_streams(trainer->config.data, trainer->config.val_data, job, &trainer->train,
                          &trainer->val);
    if (status == STATUS_OK) {
        status = trainer_check_vocab(trainer->config.data, trainer->config.val_data,
                                     trainer->shape.vocab);
    }
    if (status != STATUS_OK) {
        trainer_fail(trainer, "its data does not fit the job's --vocab or --seq-len",
                     trainer_input_exit_code(status));
        return;
    }
    char why[256];
    if (job_discipline(job, &trainer->discipline, why, sizeof why) != STATUS_OK ||
        job_check_apart(job, trainer->config.device_count, why, sizeof why) != STATUS_OK) {
        log_error("%s", why);
        trainer_fail(trainer, "the job's options do not fit each other", EXIT_CODE_USAGE);
        return;
    }
    ASSERT(job_profile_steps(job->profile_steps, &trainer->profile_first, &trainer->profile_last) ==
           STATUS_OK);
    if (trainer->profile_last > job->steps) {
        log_error("--profile-steps %s: the job has %" PRId64 " --steps", job->profile_steps,
                  job->steps);
        trainer_fail(trainer, "its --profile-steps are not in the job", EXIT_CODE_USAGE);
        return;
    }
    trainer->reports = discipline_reports(&trainer->discipline, job->steps);
    trainer_model_options(job, &options);
    log_info("this is worker %u of %" PRId64 ": %s, mode %s, push %s, pull %s, compute %s on %s",
             trainer->rank, job->workers, job->model, job->mode, job->push,
             job_workers_step(job) ? "likewise" : job->pull, types[options.type],
             trainer->config.devices[0]->name);
    trainer->tensors = model_tensors(&trainer->shape, &trainer->tensor_count);
    struct session_command ready = {
        .kind = SESSION_READY, .tensors = trainer->tensors, .count = trainer->tensor_count};
    trainer_tell(trainer, &ready);
    trainer->state = TRAINER_PLANNING;
}

/* Worker 0's, by --init; the others' come from the servers. */
static enum status make_first_weights(struct trainer *trainer, float *weights) {
    const char *init = trainer->job->init;
    if (trainer->rank == 0 && strcmp(init, "random") != 0) {
        return hf_weights_load(init, trainer->plan, weights);
    }
    if (trainer->rank == 0) {
        trainer->config.first_weights(trainer, weights);
    }
    return STATUS_OK;
}

void trainer_model_options(const struct job *job, struct model_options *options) {
    bool fast = strncmp(job->device, "cuda", 4) == 0 || linear_bf16_is_fast();
    bool bf16 = strcmp(job->compute, "bf16") == 0 || (strcmp(job->compute, "auto") == 0 && fast);
    bool tf32 = strcmp(job->compute, "tf32") == 0;
    bool attention = false;
    int64_t every = 0;
    ASSERT(job_recompute(job->recompute, &every, &attention) == STATUS_OK);
    *options = (struct model_options){.B = job->batch,
                                      .T = job->seq_len,
                                      .training = true,
                                      .type = bf16   ? COMPUTE_BF16
                                              : tf32 ? COMPUTE_TF32
                                                     : COMPUTE_F32,
                                      .dropout = (float)job->dropout,
                                      .recompute = every > 0   ? MODEL_RECOMPUTE_EVERY
                                                   : attention ? MODEL_RECOMPUTE_ATTENTION
                                                               : MODEL_RECOMPUTE_NONE,
                                      .recompute_every = every,
                                      .apart = job->accumulate_apart};
}

/* Operations that all its devices could do in a second; 0: of one of them it is not known. */
static double peak_flops(const struct trainer *trainer, enum compute_type type) {
    double sum = 0;
    for (int i = 0; i < trainer->config.device_count; i++) {
        double own = trainer->job->peak_tflops > 0
                         ? trainer->job->peak_tflops
                         : device_peak_tflops(trainer->config.devices[i]->name, type);
        if (own == 0) {
            return 0;
        }
        sum += own * 1e12;
    }
    return sum;
}

/* Weights and gradient of the host, and the batch. */
static enum status take_arrays(struct trainer *trainer, bool vectors) {
    const struct job *job = trainer->job;
    struct arena *arena = &trainer->arena;
    struct device *device = trainer->config.devices[0];
    size_t vector = (size_t)trainer->plan->value_count * sizeof(float);
    size_t batch = (size_t)(job->batch * job->seq_len) * sizeof(int32_t);
    TRY(arena_init(arena, (vectors ? 2 * arena_need(vector) : 0) + 2 * arena_need(batch)));
    trainer->pinned =
        vectors && !device_is_host(device) && device_pin(device, arena->base, arena->bytes);
    trainer->tokens = arena_take(arena, batch);
    trainer->targets = arena_take(arena, batch);
    if (vectors) {
        trainer->weights = arena_take(arena, vector);
        trainer->grad = arena_take(arena, vector);
    }
    return STATUS_OK;
}

/* Local steps are made where weights and gradient are, if these devices can. False: on the host,
 * and a line says why if there are such devices. */
static bool open_local_there(struct trainer *trainer) {
    const struct trainer_config *config = &trainer->config;
    struct device *first = config->devices[0];
    struct local_place places[GROUP_MAX];
    if (device_is_host(first)) {
        return false;
    }
    if (!inner_can(trainer->job, first)) {
        log_info("local steps are made on the host: a device has only adamw and sgd, with "
                 "--moments f32");
        return false;
    }
    for (int i = 0; i < config->device_count; i++) {
        places[i] = (struct local_place){.device = config->devices[i],
                                         .weights = node_device_weights(trainer->node, i),
                                         .grad = node_device_gradient(trainer->node, i)};
    }
    if (local_init(&trainer->local, trainer->job, trainer->plan, trainer->node, places,
                   config->device_count) != STATUS_OK) {
        log_info("local steps are made on the host: there is no memory left for them");
        return false;
    }
    if (config->device_count == 1) {
        log_info("local steps are made on %s:%d", first->backend->name, first->index);
    } else {
        log_info("local steps are made on all %d devices", config->device_count);
    }
    return true;
}

/* What steps are made on and with, besides the model. */
static enum status take_vectors(struct trainer *trainer) {
    const struct plan *plan = trainer->plan;
    bool local = trainer->discipline.local;
    if (local && open_local_there(trainer)) {
        return take_arrays(trainer, false);
    }
    TRY(take_arrays(trainer, true));
    if (job_momentum_after(trainer->job) > 0) {
        TRY(squares_init(&trainer->squares, plan, device_host(), NULL, 0));
    }
    const struct local_place place = {
        .device = device_host(), .weights = trainer->weights, .grad = trainer->grad};
    return local ? local_init(&trainer->local, trainer->job, plan, NULL, &place, 1) : STATUS_OK;
}

static enum status take_memory(struct trainer *trainer) {
    const struct job *job = trainer->job;
    const struct plan *plan = trainer->plan;
    struct model_options options;
    struct device *device = trainer->config.devices[0];
    trainer_model_options(job, &options);
    TRY(node_check_batch(trainer->config.device_count, job->batch));
    trainer->peak_flops = peak_flops(trainer, options.type);
    trainer->step_flops = model_flops(&trainer->shape, job->seq_len) * (double)job_step_tokens(job);
    bucket_init(&trainer->bucket, plan);
    trainer->ready = memory_zeroed((size_t)bucket_most(&trainer->bucket), sizeof(uint64_t));
    trainer->late = memory_zeroed((size_t)plan->tensor_count, sizeof(uint64_t));
    trainer->fragment_tokens = memory_zeroed((size_t)plan->fragment_count, sizeof(uint64_t));
    if (raw_weights_wanted(job, trainer->discipline.local, device)) {
        trainer->raw.codecs = memory_zeroed((size_t)plan->block_count, sizeof(uint8_t));
        options.codecs = trainer->raw.codecs;
    }
    TRY(node_open(&trainer->node, &trainer->shape, plan, &options, trainer->config.devices,
                  trainer->config.device_count, (int)(NODE_LEASES * job_lease_ns(job) / CLOCK_MS)));
    TRY(take_vectors(trainer));
    trainer->raw.plan = plan;
    trainer->raw.values = trainer->weights;
    if (!device_is_host(device)) {
        struct device_memory memory;
        device_memory(device, &memory);
        log_info("the model takes %.2f GiB of the%s device's %.2f", (double)memory.used / (1 << 30),
                 trainer->config.device_count > 1 ? " first" : "",
                 (double)memory.total / (1 << 30));
    }
    return STATUS_OK;
}

/* Where pushes can be encoded: on the devices that have the gradient, if nothing is made of it
 * here. */
static struct exchange_devices find_encoders(const struct trainer *trainer) {
    const struct trainer_config *config = &trainer->config;
    const char *why = NULL;
    if (device_is_host(config->devices[0])) {
        return (struct exchange_devices){0};
    }
    if (trainer->job->host_encode) {
        why = "--host-encode says so";
    } else if (trainer->grad != NULL && trainer->discipline.local) {
        why = "what local steps have come to is there";
    } else if (job_momentum_after(trainer->job) > 0) {
        why = "first moments are made there";
    }
    if (why != NULL) {
        log_info("pushes are encoded on the host: %s", why);
        return (struct exchange_devices){0};
    }
    return (struct exchange_devices){.devices = config->devices,
                                     .count = config->device_count,
                                     .group = node_group(trainer->node)};
}

/* The plan is here: memory, first weights, and the first pull. */
static void take_planned(struct trainer *trainer, const struct session_event *event) {
    trainer->plan = event->plan;
    enum status status = take_memory(trainer);
    if (status != STATUS_OK) {
        trainer_fail(trainer,
                     status == STATUS_MEMORY    ? "out of memory for the model"
                     : status == STATUS_INVALID ? "its devices cannot share its batch"
                                                : "its device cannot compute the model",
                     (int)status_exit_code(status));
        return;
    }
    float *installed = trainer->discipline.local ? trainer->local.anchor : trainer->weights;
    status = make_first_weights(trainer, installed);
    if (status != STATUS_OK) {
        trainer_fail(trainer, "it cannot load its --init", trainer_input_exit_code(status));
        return;
    }
    if (trainer->config.report != NULL &&
        report_open(trainer->config.report, trainer->config.options, trainer->rank,
                    trainer->config.data->format == DATA_BYTES) != STATUS_OK) {
        trainer_fail(trainer, "it cannot write the run's folder", EXIT_CODE_CREATE);
        return;
    }
    struct session_command memory = {.kind = SESSION_MEMORY,
                                     .weights = installed,
                                     .codecs = trainer->raw.codecs,
                                     .devices = find_encoders(trainer)};
    struct session_command pull = {.kind = SESSION_PULL, .first = trainer->rank == 0};
    trainer_tell(trainer, &memory);
    trainer_tell(trainer, &pull);
    trainer->state = TRAINER_STEPPING;
}

void trainer_first_weights(const struct trainer *trainer, float *weights) {
    model_init_weights(&trainer->shape, trainer->plan, (uint64_t)trainer->job->seed, weights);
}

void trainer_mask_padding(struct trainer *trainer) {
    const struct job *job = trainer->job;
    for (int64_t i = 0; job->pad_token >= 0 && i < job->batch * job->seq_len; i++) {
        if (trainer->targets[i] == job->pad_token) {
            trainer->targets[i] = -1;
        }
    }
}

/* The final weights are here. */
static void save_run(struct trainer *trainer) {
    struct session_command saved = {.kind = SESSION_SAVED};
    if (trainer->discipline.local && local_install(&trainer->local, LOCAL_ALL) != STATUS_OK) {
        trainer_fail_device(trainer);
        return;
    }
    enum status status = finish_run(trainer);
    if (status == STATUS_OK) {
        trainer_tell(trainer, &saved);
        trainer->state = TRAINER_LEAVING;
    } else if (status == STATUS_STALE) {
        trainer->state = TRAINER_LEAVING; /* the session's last event tells why */
    } else if (trainer_lost_device(trainer)) {
        return; /* the job was told */
    } else if (status == STATUS_CORRUPT) {
        log_error("diverged: the validation loss is not finite, no weights are written; try a "
                  "lower --lr");
        trainer_fail(trainer, "its model diverged", EXIT_CODE_TRAINING);
    } else {
        trainer_fail(trainer, "it cannot write the run's files", EXIT_CODE_IO);
    }
}

static void take_settled(struct trainer *trainer, const struct session_event *event) {
    bool first = trainer->computed == 0 && trainer->reports_done == 0;
    trainer->answered = true;
    trainer->counters = event->counters;
    trainer->version = event->version_most;
    trainer->behind = event->version_least < event->version_most;
    if (trainer->state == TRAINER_SAVING) {
        save_run(trainer);
    } else if (first && trainer->config.report != NULL) {
        trainer->config.report->started_ns = clock_now_ns();
    }
}

static void take_drained(struct trainer *trainer, const struct session_event *event) {
    struct session_command pull = {.kind = SESSION_PULL, .exact = true};
    if (trainer->state != TRAINER_DRAINING) {
        return;
    }
    trainer->step.start_ns = clock_now_ns();
    trainer->step.job_tokens = atomic_load(&trainer->config.session->job_tokens);
    if (trainer->rank == event->saver) {
        trainer->answered = false;
        trainer->state = TRAINER_SAVING;
        if (job_workers_step(trainer->job)) {
            save_run(trainer); /* its replica is as good as any */
        } else {
            trainer_tell(trainer, &pull);
        }
    }
    /* The others stay as they are: when the saver is lost, another of them is named. */
}

/* The mode is to change: how far shall I go at most before I hear more? One step, which may be
 * under way at others already. */
static void take_promise(struct trainer *trainer) {
    bool more = trainer->state == TRAINER_STEPPING && trainer->base < trainer->reports;
    trainer->limit = trainer->steps_done + (more ? 1 : 0);
    struct session_command promised = {.kind = SESSION_PROMISED, .step = (uint64_t)trainer->limit};
    trainer->told_held = true; /* not before the limit is known */
    trainer_tell(trainer, &promised);
}

static void tell_held(struct trainer *trainer) {
    struct session_command held = {.kind = SESSION_HELD, .step = (uint64_t)trainer->steps_done};
    trainer->told_held = true;
    trainer_tell(trainer, &held);
}

static void take_resume(struct trainer *trainer) {
    char why[256];
    trainer->limit = INT64_MAX;
    if (discipline_change(trainer->job, trainer->job->mode, &trainer->discipline, why,
                          sizeof why) != STATUS_OK) {
        trainer_fail(trainer, "it cannot change the mode", EXIT_CODE_PROTOCOL);
        return;
    }
    if (trainer->config.report != NULL) {
        report_mode(trainer->config.report, trainer->job->mode);
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
    case SESSION_PROMISE:
        take_promise(trainer);
        break;
    case SESSION_LIMIT:
        trainer->limit = (int64_t)event->step;
        trainer->told_held = false;
        if (trainer->state == TRAINER_DRAINING) {
            tell_held(trainer);
        }
        break;
    case SESSION_RESUME:
        take_resume(trainer);
        break;
    case SESSION_DRAINED:
        take_drained(trainer, event);
        break;
    case SESSION_ENDED:
    default:
        if (trainer->exit_code == EXIT_CODE_OK) {
            trainer->exit_code = event->exit_code;
        }
        trainer->state = TRAINER_ENDED;
    }
}

static void leave(struct trainer *trainer) {
    struct session_command command = {.kind = SESSION_LEAVE, .reason = "it was asked to leave"};
    step_close(trainer);
    trainer->state = TRAINER_LEAVING;
    trainer_tell(trainer, &command);
}

static bool is_leaving(const struct trainer *trainer) {
    int64_t after = trainer->job->leave_after;
    return atomic_load(&trainer->config.session->leave) ||
           (after > 0 && trainer->computed >= after);
}

static enum cadence next_of(const struct trainer *trainer) {
    const struct cadence_progress progress = {.workers = trainer->job->workers,
                                              .reports = trainer->reports,
                                              .reached = trainer->base,
                                              .step = trainer->steps_done,
                                              .limit = trainer->limit,
                                              .interval = trainer->interval,
                                              .since = trainer->since,
                                              .answered = trainer->answered,
                                              .installed = trainer->installed,
                                              .open = !trainer->answered && gate_is_open(trainer),
                                              .behind = trainer->behind,
                                              .leaving = is_leaving(trainer)};
    return cadence_next(&trainer->discipline, &progress);
}

/* Does what cadence says; false when that is to wait. */
static bool carry_on(struct trainer *trainer) {
    struct session_command done = {.kind = SESSION_DONE};
    struct session_command pull = {.kind = SESSION_PULL_BEHIND};
    switch (next_of(trainer)) {
    case CADENCE_PULL:
        trainer->answered = false;
        trainer_tell(trainer, &pull);
        return true;
    case CADENCE_INSTALL:
        step_install(trainer);
        return true;
    case CADENCE_COMPUTE:
        step_compute(trainer);
        return true;
    case CADENCE_REPORT:
        step_report(trainer);
        return true;
    case CADENCE_HOLD:
        if (trainer->told_held) {
            return false;
        }
        tell_held(trainer);
        return true;
    case CADENCE_LEAVE:
        leave(trainer);
        return true;
    case CADENCE_FINISH:
        step_close(trainer);
        trainer->state = TRAINER_DRAINING;
        trainer_tell(trainer, &done);
        if (trainer->limit != INT64_MAX && !trainer->told_held) {
            tell_held(trainer);
        }
        return true;
    case CADENCE_WAIT:
    default:
        return false;
    }
}

bool trainer_listen(struct trainer *trainer) {
    struct session_event event;
    if (ring_pop(&trainer->config.session->events, &event) != STATUS_OK) {
        return false;
    }
    if (trainer->state != TRAINER_ENDED &&
        (trainer->state != TRAINER_LEAVING || event.kind == SESSION_ENDED)) {
        take_event(trainer, &event);
    }
    return true;
}

bool trainer_poll(struct trainer *trainer) {
    return trainer_listen(trainer) || (trainer->state == TRAINER_STEPPING && carry_on(trainer));
}
