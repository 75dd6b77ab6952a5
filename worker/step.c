#include "worker/step.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "worker/finish.h"
#include "worker/gate.h"

#include <math.h>
#include <time.h>

/* By then every buffer has been used; later the step loop must not allocate. */
enum { WARM_STEPS = 3 };

/* A worker's pace follows its last reports: each counts for a quarter, those before it for less. */
#define PACE_PART 0.25

#define SLOW_SLICE_NS (10 * CLOCK_MS)

/* Asking a GPU's driver takes some ms. */
#define WATCH_NS CLOCK_S

static bool by_version(const struct trainer *trainer) {
    return cadence_by_version(&trainer->discipline, trainer->job->workers);
}

static int64_t place_of(const struct trainer *trainer, int64_t report) {
    return cadence_place(&trainer->discipline, trainer->job->steps, report);
}

/* Tokens of the next report at the usual pace: of the steps since its fragment's last one. */
static int64_t usual_tokens(const struct trainer *trainer) {
    const struct job *job = trainer->job;
    int64_t steps = 1;
    if (trainer->discipline.local) {
        int64_t report = trainer->base + 1;
        int64_t before = report - trainer->discipline.fragments;
        steps = place_of(trainer, report) - place_of(trainer, before > 0 ? before : 0);
    }
    return steps * job_step_tokens(job);
}

/* How many steps the next report is of. */
static void begin_interval(struct trainer *trainer) {
    const struct session *session = trainer->config.session;
    trainer->usual = place_of(trainer, trainer->base + 1) - place_of(trainer, trainer->base);
    trainer->interval = trainer->usual;
    if (trainer->job->adapt_steps && trainer->pace_ns > 0) {
        trainer->interval = cadence_adapted(trainer->usual, (double)CLOCK_S / trainer->pace_ns,
                                            atomic_load(&session->job_speed),
                                            (int64_t)atomic_load(&session->job_workers));
    }
}

static void take_place(struct trainer *trainer) {
    const struct trainer *t = trainer;
    if (t->discipline.local) {
        int64_t since = t->interval > 0 ? t->since * t->usual / t->interval : 0;
        trainer->steps_done = place_of(trainer, trainer->base) + since;
    } else {
        trainer->steps_done = t->base;
    }
    atomic_store(&trainer->config.session->step, (uint64_t)trainer->steps_done);
}

/* ---- the line of a step ---- */

/* What all workers have read so far. Where they step together it is known; else their Beats tell,
 * a little late. */
static uint64_t tokens_of_all(const struct trainer *trainer) {
    const struct job *job = trainer->job;
    const struct session *session = trainer->config.session;
    uint64_t own = (uint64_t)(trainer->computed * job_step_tokens(job));
    uint64_t told = atomic_load(&session->job_tokens);
    uint32_t left = atomic_load(&session->job_workers);
    bool together = discipline_needs_all(&trainer->discipline, job->workers) && !job->adapt_steps &&
                    (left == 0 || left == (uint32_t)job->workers);
    if (together) {
        return own * (uint64_t)job->workers;
    }
    return told > own ? told : own;
}

bool step_validates(const struct trainer *trainer) {
    const struct job *job = trainer->job;
    int64_t place = trainer->step.step;
    return trainer->step_open && trainer->config.report != NULL && trainer->rank == 0 &&
           job->eval_every > 0 && place < job->steps &&
           place / job->eval_every > trainer->validated / job->eval_every;
}

/* What the first device is at. */
static void watch_device(struct trainer *trainer, struct report_step *step) {
    struct device *device = trainer->config.devices[0];
    struct device_memory memory;
    int64_t now_ns = clock_now_ns();
    if (device_is_host(device)) {
        return;
    }
    device_memory(device, &memory);
    step->device_bytes = memory.used;
    step->device_bytes_most = memory.most;
    if (now_ns - trainer->watched_ns >= WATCH_NS) {
        trainer->watched_ns = now_ns;
        if (!device_watch(device, &trainer->reading)) {
            trainer->reading.memory_total = 0;
        }
    }
    step->reading = trainer->reading;
}

/* The answer to the step's report has come. */
static void write_line(struct trainer *trainer, struct report_step *step) {
    int64_t took_ns = step->forward_ns + step->backward_ns + step->wait_ns;
    double could = trainer->peak_flops * (double)took_ns / (double)CLOCK_S;
    step->mfu = could > 0 ? trainer->step_flops / could : 0;
    watch_device(trainer, step);
    step->counters = trainer->counters;
    step->round = (int64_t)trainer->version;
    step->job_tokens = tokens_of_all(trainer);
    if (trainer->config.loss != NULL) {
        trainer->config.loss(trainer->config.loss_context, step->step, step->loss);
    }
    if (trainer->config.report != NULL) {
        report_step(trainer->config.report, step);
    }
}

/* Since the step started, all that was not computing. */
static void note_wait(struct report_step *step) {
    step->wait_ns = clock_now_ns() - step->start_ns - step->forward_ns - step->backward_ns;
}

/* A profiler records from the start of step profile_first to that of the one after profile_last, or
 * to its line. */
static void record_steps(struct trainer *trainer, int64_t next) {
    bool wanted = next >= trainer->profile_first && next <= trainer->profile_last;
    if (wanted == trainer->recording) {
        return;
    }
    trainer->recording = wanted;
    bool told = device_record(trainer->config.devices[0], wanted);
    if (told && wanted) {
        log_info("a profiler may record now, to the end of step %lld",
                 (long long)trainer->profile_last);
    }
}

void step_close(struct trainer *trainer) {
    struct report_step *step = &trainer->step;
    if (!trainer->step_open) {
        return;
    }
    note_wait(step);
    if (step->step >= trainer->profile_last) {
        record_steps(trainer, step->step + 1);
    }
    if (step_validates(trainer)) {
        trainer->validated = step->step;
        step->val_loss = finish_validate(trainer);
    }
    trainer->step_open = false;
    write_line(trainer, step);
}

/* ---- a step that starts before the last report is answered (gate.h) ---- */

static bool awaits_answer(const struct trainer *trainer) {
    return !trainer->discipline.local && !trainer->answered;
}

/* The next step starts, and the line of the last one is still to be written. */
static void keep_before(struct trainer *trainer) {
    note_wait(&trainer->step);
    trainer->before = trainer->step;
    trainer->before_open = trainer->step_open;
    trainer->step_open = false;
}

/* Its answer is here. False: the job has ended. */
static bool take_answer(struct trainer *trainer) {
    memory_forbid(false);
    bool settled = gate_settle(trainer);
    if (settled) {
        step_install(trainer);
        if (trainer->before_open) {
            write_line(trainer, &trainer->before);
        }
        trainer->before_open = false;
    }
    memory_forbid(trainer->computed > WARM_STEPS);
    return settled;
}

/* ---- computing ---- */

/* Where the next batch is read. Workers that do not keep the usual pace count by themselves, so
 * that none reads a sequence twice. */
static uint64_t sequence_of(const struct trainer *trainer, int64_t micro) {
    const struct job *job = trainer->job;
    int64_t place = job->adapt_steps ? trainer->computed : trainer->steps_done;
    uint64_t turn = (uint64_t)place * (uint64_t)job->workers + trainer->rank;
    return (turn * (uint64_t)job->accumulate + (uint64_t)micro) * (uint64_t)job->batch;
}

/* Batch `micro` of the step -> its targets that count. A step's batches follow each other in the
 * stream, so that B, N and W may change places: the sequences of all workers' step are the same. */
static int64_t read_batch(struct trainer *trainer, int64_t micro) {
    const struct trainer_config *config = &trainer->config;
    const struct job *job = trainer->job;
    uint64_t sequence = sequence_of(trainer, micro);
    int64_t count = 0;
    if (config->read_batch != NULL) {
        config->read_batch(config->batch_context, sequence, job->batch, trainer->tokens,
                           trainer->targets);
    } else {
        data_stream_read(&trainer->train, sequence, job->batch, trainer->tokens, trainer->targets);
    }
    trainer_mask_padding(trainer);
    for (int64_t i = 0; i < job->batch * job->seq_len; i++) {
        count += trainer->targets[i] >= 0;
    }
    return count;
}

/* The device that has what is pushed encodes it. */
static bool pushed_there(const struct trainer *trainer) {
    return exchange_on_device(&trainer->config.session->exchange);
}

/* A block's values, of the host, or of the device that encodes them: then they are final behind
 * `ready`. */
static void push_values(struct trainer *trainer, uint64_t id, const float *values,
                        const struct device_event *ready) {
    struct session_command push = {.kind = SESSION_PUSH,
                                   .block = id,
                                   .report = trainer->report,
                                   .values = values,
                                   .ready = ready};
    struct report_step *step = &trainer->step;
    trainer_tell(trainer, &push);
    step->last_push_ns = clock_now_ns() - step->start_ns;
    if (step->first_push_ns < 0) {
        step->first_push_ns = step->last_push_ns;
    }
}

/* Pushes the blocks that are complete with this tensor. */
static void push_blocks(struct trainer *trainer, uint64_t tensor) {
    bool stays = pushed_there(trainer);
    uint64_t count = bucket_mark(&trainer->bucket, tensor, trainer->ready);
    for (uint64_t i = 0; i < count; i++) {
        const struct plan_block *block = &trainer->plan->blocks[trainer->ready[i]];
        const float *values = trainer->grad;
        const struct device_event *ready = NULL;
        if (stays) {
            values = node_device_gradient(trainer->node, node_owner(trainer->node, block->id));
            ready = node_ready_event(trainer->node, block->id, tensor);
        }
        if (block->fragment != PLAN_FROZEN) {
            push_values(trainer, block->id, values + block->offset, ready);
        }
    }
}

/* A tensor's gradient is final, or will be behind its event. */
static void take_ready(void *context, uint64_t tensor) {
    struct trainer *trainer = context;
    if (trainer->job->push_overlap) {
        push_blocks(trainer, tensor);
    } else {
        trainer->late[trainer->late_count++] = tensor;
    }
}

/* Backward is done. */
static void push_late(struct trainer *trainer) {
    for (uint64_t i = 0; i < trainer->late_count; i++) {
        push_blocks(trainer, trainer->late[i]);
    }
    trainer->late_count = 0;
}

static void name_report(struct trainer *trainer, uint64_t tokens) {
    int64_t seq = trainer->reports_done + 1;
    trainer->report = (struct exchange_report){
        .seq = (uint64_t)seq,
        .weight = (double)tokens / (double)usual_tokens(trainer),
        .clip = 1,
        .commits = cadence_commits(&trainer->discipline, seq),
    };
}

/* First moments travel in this round (stepper.h): the gradient must be whole before it is clipped
 * and pushed. */
static bool pushes_moments(const struct trainer *trainer) {
    int64_t gradients = job_momentum_after(trainer->job);
    return gradients > 0 && trainer->reports_done >= gradients;
}

/* Forward and backward of batch `micro`, which start where what is counted of the step ends; in
 * gradient modes the last one's backward pushes. False: weights will not come, or the device
 * failed. */
static bool compute_batch(struct trainer *trainer, int64_t micro) {
    const struct job *job = trainer->job;
    struct report_step *step = &trainer->step;
    bool pushes =
        micro + 1 == job->accumulate && !trainer->discipline.local && !pushes_moments(trainer);
    int64_t start_ns = step->start_ns + step->forward_ns + step->backward_ns;
    int64_t count = read_batch(trainer, micro);
    trainer->step_tokens += (uint64_t)count;
    if (pushes) {
        name_report(trainer, trainer->step_tokens);
    }
    struct model_batch batch = {.tokens = trainer->tokens,
                                .targets = trainer->targets,
                                .B = job->batch,
                                .T = job->seq_len,
                                .dropout_seed = (uint64_t)job->seed,
                                .dropout_step = sequence_of(trainer, micro)};
    /* Without targets the gradient is 0, whatever its scale, which must not be 0. */
    struct model_gradient gradient = {
        .values = pushed_there(trainer) ? NULL : trainer->grad,
        .scale = count > 0 ? (double)count / (double)job_step_tokens(job) : 1,
        .add = micro > 0,
        .more = micro + 1 < job->accumulate};
    float loss = node_forward(trainer->node, &batch, &gradient);
    if (trainer_lost_device(trainer) || (awaits_answer(trainer) && !take_answer(trainer))) {
        return false;
    }
    int64_t forward_ns = clock_now_ns();
    node_backward(trainer->node, &batch, &gradient, pushes ? take_ready : NULL, trainer);
    if (trainer_lost_device(trainer)) {
        return false;
    }
    trainer->step_loss += (double)loss * (double)count;
    step->forward_ns += forward_ns - start_ns;
    step->backward_ns += clock_now_ns() - forward_ns;
    push_late(trainer);
    return true;
}

/* --slow: sleeps until the step has lasted so many times as long. */
static void slow_down(const struct trainer *trainer, int64_t took_ns) {
    int64_t left_ns = (int64_t)((trainer->job->slow - 1) * (double)took_ns);
    while (left_ns > 0 && !atomic_load(&trainer->config.session->over)) {
        int64_t slice_ns = left_ns < SLOW_SLICE_NS ? left_ns : SLOW_SLICE_NS;
        const struct timespec pause = {.tv_nsec = (long)slice_ns};
        (void)nanosleep(&pause, NULL);
        left_ns -= slice_ns;
    }
}

static void note_pace(struct trainer *trainer, int64_t steps) {
    double pace_ns = (double)trainer->interval_ns / (double)steps;
    trainer->interval_ns = 0;
    if (pace_ns <= 0) {
        return;
    }
    trainer->pace_ns = trainer->pace_ns > 0
                           ? trainer->pace_ns + PACE_PART * (pace_ns - trainer->pace_ns)
                           : pace_ns;
    atomic_store(&trainer->config.session->speed, (double)CLOCK_S / trainer->pace_ns);
}

/* The step's gradient is complete, and in a gradient mode on its way. */
static void send_commit(struct trainer *trainer) {
    struct session_command commit = {.kind = SESSION_COMMIT, .report = trainer->report};
    trainer->reports_done++;
    trainer->base++;
    trainer->answered = false;
    trainer->installed = false;
    trainer->step.weight = trainer->report.weight;
    trainer_tell(trainer, &commit);
}

static void push_moments(struct trainer *trainer) {
    name_report(trainer, trainer->step_tokens);
    double norm = 0;
    ASSERT(squares_norm(&trainer->squares, trainer->grad, &norm) == STATUS_OK);
    if (trainer->report.weight > 0) {
        trainer->report.clip = gradient_clip(trainer->job, norm / trainer->report.weight);
    }
    for (uint64_t id = 0; id < trainer->plan->block_count; id++) {
        const struct plan_block *block = &trainer->plan->blocks[id];
        if (block->fragment == 0) push_values(trainer, id, trainer->grad + block->offset, NULL);
    }
}

/* False: the device failed. */
static bool step_own_weights(struct trainer *trainer, double weight) {
    for (uint64_t f = 0; f < trainer->plan->fragment_count; f++) {
        trainer->fragment_tokens[f] += trainer->step_tokens;
    }
    if (weight == 0) {
        return true;
    }
    device_range_begin(trainer->config.devices[0], "optimizer");
    enum status status = local_step(&trainer->local, weight, trainer->step.lr);
    device_range_end(trainer->config.devices[0]);
    trainer->nonfinite_in_row = status == STATUS_CORRUPT ? trainer->nonfinite_in_row + 1 : 0;
    if (status == STATUS_CORRUPT) {
        log_warn("the gradient of step %lld is not finite: the step is left out",
                 (long long)trainer->step.step);
    } else if (status != STATUS_OK) {
        trainer_fail_device(trainer);
        return false;
    }
    return true;
}

static void set_weights(struct trainer *trainer) {
    const struct model_gate gate = {.wait = gate_wait, .context = trainer};
    if (awaits_answer(trainer)) {
        node_expect_weights(trainer->node, trainer->weights, &gate);
    } else {
        node_set_weights(trainer->node, trainer->weights);
    }
}

/* False: the job has ended, here at least, and the step is dropped. */
static bool compute_batches(struct trainer *trainer) {
    const struct job *job = trainer->job;
    struct report_step *step = &trainer->step;
    step->step = trainer->steps_done + 1;
    step->lr = job_learning_rate(job, trainer->steps_done);
    step->start_ns = clock_now_ns();
    step->forward_ns = 0;
    step->forward_wait_ns = 0;
    step->backward_ns = 0;
    step->first_push_ns = -1;
    step->last_push_ns = -1;
    trainer->step_tokens = 0;
    trainer->step_loss = 0;
    bucket_reset(&trainer->bucket);
    set_weights(trainer);
    for (int64_t micro = 0; micro < job->accumulate; micro++) {
        if (!compute_batch(trainer, micro)) {
            return false;
        }
    }
    step->forward_ns -= step->forward_wait_ns;
    return true;
}

/* What becomes of the gradient. False: the device failed, and the step is dropped. */
static bool use_gradient(struct trainer *trainer) {
    struct report_step *step = &trainer->step;
    double weight = (double)trainer->step_tokens / (double)job_step_tokens(trainer->job);
    double targets = (double)(trainer->step_tokens > 0 ? trainer->step_tokens : 1);
    step->loss = (float)(trainer->step_loss / targets);
    if (trainer->discipline.local) {
        return step_own_weights(trainer, weight);
    }
    if (pushes_moments(trainer)) {
        push_moments(trainer);
    }
    send_commit(trainer);
    return true;
}

void step_compute(struct trainer *trainer) {
    const struct job *job = trainer->job;
    struct report_step *step = &trainer->step;
    if (awaits_answer(trainer)) {
        keep_before(trainer);
    } else {
        step_close(trainer);
    }
    record_steps(trainer, trainer->steps_done + 1);
    memory_forbid(trainer->computed > WARM_STEPS);
    device_range_begin(trainer->config.devices[0], "step");
    bool computed = compute_batches(trainer) && use_gradient(trainer);
    device_range_end(trainer->config.devices[0]);
    memory_forbid(false);
    if (!computed) {
        return;
    }
    trainer->step_open = true;
    trainer->computed++;
    trainer->since++;
    atomic_store(&trainer->config.session->tokens,
                 (uint64_t)(trainer->computed * job_step_tokens(job)));
    slow_down(trainer, clock_now_ns() - step->start_ns - step->forward_wait_ns);
    trainer->interval_ns += trainer->config.step_ns != NULL
                                ? trainer->config.step_ns(trainer->config.step_context)
                                : clock_now_ns() - step->start_ns - step->forward_wait_ns;
    if (!trainer->discipline.local) {
        step->local_steps = 1;
        trainer->since = 0;
        note_pace(trainer, 1);
    }
    take_place(trainer);
    if (trainer->nonfinite_in_row >= JOB_NONFINITE_MAX) {
        log_error("diverged: %d gradients in a row were not finite; try a lower --lr",
                  JOB_NONFINITE_MAX);
        trainer_fail(trainer, "its gradients diverged", EXIT_CODE_TRAINING);
    }
}

/* False: a device failed. */
static bool push_delta(struct trainer *trainer, uint64_t fragment) {
    const struct plan *plan = trainer->plan;
    bool there = pushed_there(trainer);
    device_range_begin(trainer->config.devices[0], "push");
    enum status status = local_delta(&trainer->local, fragment, trainer->report.weight, there);
    for (uint64_t id = 0; id < plan->block_count && status == STATUS_OK; id++) {
        const struct device_event *ready;
        const float *delta = local_delta_of(&trainer->local, id, &ready);
        if (plan->blocks[id].fragment == fragment) push_values(trainer, id, delta, ready);
    }
    device_range_end(trainer->config.devices[0]);
    if (status != STATUS_OK) trainer_fail_device(trainer);
    return status == STATUS_OK;
}

void step_report(struct trainer *trainer) {
    uint64_t fragment = (uint64_t)trainer->reports_done % trainer->plan->fragment_count;
    name_report(trainer, trainer->fragment_tokens[fragment]);
    trainer->fragment_tokens[fragment] = 0;
    if (!push_delta(trainer, fragment)) {
        return;
    }
    send_commit(trainer);
    trainer->step.local_steps = trainer->since;
    if (trainer->since > 0) {
        note_pace(trainer, trainer->since);
    }
    trainer->since = 0;
    begin_interval(trainer);
    take_place(trainer);
}

void step_install(struct trainer *trainer) {
    uint64_t fragments = trainer->plan->fragment_count;
    bool first = trainer->reports_done == 0;
    trainer->installed = true;
    if (trainer->discipline.local) {
        uint64_t fragment = first ? LOCAL_ALL : ((uint64_t)trainer->reports_done - 1) % fragments;
        if (local_install(&trainer->local, fragment) != STATUS_OK) {
            trainer_fail_device(trainer);
            return;
        }
    }
    bool moved = by_version(trainer) && trainer->base != (int64_t)trainer->version;
    if (moved) {
        trainer->base = (int64_t)trainer->version;
    }
    if (trainer->discipline.local && (first || moved)) {
        begin_interval(trainer);
    }
    take_place(trainer);
}
