#include "worker/session.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "proto/discipline.h"
#include "proto/tensor_list.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The plan's block count is bounded (PLAN_BLOCKS_MAX) but unknown when the ring is made; a trainer
 * that meets a full ring waits for the session, which never waits for the trainer. */
enum { COMMAND_ITEMS = 4096, EVENT_ITEMS = 64 };

/* While a device encodes, which rings no bell. A block takes about as long. */
#define LOOK_AT_DEVICE_NS (CLOCK_MS / 20)

enum status session_init(struct session *session, const struct session_config *config,
                         int64_t now_ns) {
    *session = (struct session){.config = *config, .job = config->member.options->config};
    TRY(ring_init(&session->commands, sizeof(struct session_command), COMMAND_ITEMS));
    TRY(ring_init(&session->events, sizeof(struct session_event), EVENT_ITEMS));
    return member_init(&session->member, &config->member, now_ns);
}

void session_free(struct session *session) {
    if (session->exchanging) {
        exchange_leave_device(&session->exchange);
    }
    if (session->channel != NULL) {
        session->channel->ops->close(session->channel);
    }
    if (session->exchanging) {
        exchange_free(&session->exchange);
    }
    if (session->planned) {
        plan_free(&session->plan);
    }
    free(session->addresses);
    ring_free(&session->commands);
    ring_free(&session->events);
    member_free(&session->member);
}

/* `number`: the step, or the saver. */
static void tell_trainer(struct session *session, enum session_event_kind kind, uint64_t number) {
    struct session_event event = {.kind = kind,
                                  .rank = session->member.index,
                                  .saver = (uint32_t)number,
                                  .step = number,
                                  .plan = session->planned ? &session->plan : NULL,
                                  .counters = session->exchange.counters,
                                  .exit_code = session->member.exit_code};
    if (session->exchanging) {
        exchange_versions(&session->exchange, &event.version_least, &event.version_most);
    }
    /* The trainer gets one event for each thing it asked, plus a handful: there is always room. */
    ASSERT(ring_push(&session->events, &event) == STATUS_OK);
    if (session->config.trainer != NULL) {
        wake_signal(session->config.trainer);
    }
}

static enum status send_ready(struct session *session, const struct session_command *command) {
    Rubato__Ready ready = RUBATO__READY__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    struct tensor_list list = {0};
    ready.tensor_digest = plan_tensor_digest(command->tensors, command->count);
    if (session->member.index == 0) {
        tensor_list_pack(command->tensors, command->count, &list);
        ready.n_tensors = (size_t)command->count;
        ready.tensors = list.pointers;
    }
    message.body_case = RUBATO__MESSAGE__BODY_READY;
    message.ready = &ready;
    enum status status = member_send(&session->member, &message);
    tensor_list_free(&list);
    session->tensors = command->tensors;
    session->tensor_count = command->count;
    return status;
}

/* The job's tensors are the trainer's own, or there is no plan to agree on. */
static enum status take_tensors(struct session *session, const Rubato__Tensors *tensors) {
    struct channel_config config;
    uint8_t bytes[CHANNEL_ADDRESS_MAX];
    ProtobufCBinaryData address = {.data = bytes};
    Rubato__Armed armed = RUBATO__ARMED__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    if (session->planned || tensors->n_tensors != session->tensor_count) {
        return STATUS_CORRUPT;
    }
    struct plan_options options = job_plan_options(session->job, session->member.shard_count);
    TRY(plan_build(&session->plan, session->tensors, session->tensor_count, &options));
    session->planned = true;
    session->addresses =
        memory_zeroed((size_t)session->plan.shard_count, sizeof *session->addresses);
    exchange_channel_config(&session->plan, &config);
    TRY(session->config.open_channel(session->config.context, &config, &session->channel));
    TRY(session->channel->ops->address(session->channel, bytes, &address.len));
    armed.plan_digest = session->plan.digest;
    armed.n_addresses = 1;
    armed.addresses = &address;
    message.body_case = RUBATO__MESSAGE__BODY_ARMED;
    message.armed = &armed;
    TRY(member_send(&session->member, &message));
    tell_trainer(session, SESSION_PLANNED, 0);
    return STATUS_OK;
}

static void log_shared(const struct session *session, size_t shards) {
    struct channel_stats stats;
    session->channel->ops->stats(session->channel, &stats);
    if (stats.shared_peers > 0) {
        log_info("data: %u of %zu connections to shards by shared memory", stats.shared_peers,
                 shards);
    }
}

static enum status take_start(struct session *session, const Rubato__Start *start) {
    Rubato__Connected connected = RUBATO__CONNECTED__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    if (!session->planned || session->connected || start->n_shards != session->plan.shard_count) {
        return STATUS_CORRUPT;
    }
    for (size_t i = 0; i < start->n_shards; i++) {
        const ProtobufCBinaryData *address = &start->shards[i]->address;
        TRY(session->channel->ops->connect(session->channel, (uint32_t)i, address->data,
                                           address->len));
        TRY(channel_address_keep(&session->addresses[i], address->data, address->len));
    }
    session->connected = true;
    log_shared(session, start->n_shards);
    message.body_case = RUBATO__MESSAGE__BODY_CONNECTED;
    message.connected = &connected;
    return member_send(&session->member, &message);
}

/* The new mode goes into the options before the trainer hears of it, who holds until then. */
static enum status resume(struct session *session, const Rubato__Change *change) {
    struct job *job = session->config.member.options->config;
    struct discipline discipline;
    char why[256];
    char before[OPTION_TEXT_MAX];
    (void)snprintf(before, sizeof before, "%s", job->mode);
    if (strlen(change->mode) >= sizeof job->mode) {
        return STATUS_CORRUPT;
    }
    if (change->mode[0] != '\0') {
        job_change_mode(job, change->mode);
    }
    if (discipline_change(job, job->mode, &discipline, why, sizeof why) != STATUS_OK) {
        return STATUS_CORRUPT;
    }
    if (strcmp(before, job->mode) != 0) {
        log_info("mode changed from %s to %s at step %" PRIu64 " by %.64s", before, job->mode,
                 (uint64_t)atomic_load(&session->step), change->by);
    }
    tell_trainer(session, SESSION_RESUME, 0);
    return STATUS_OK;
}

static enum status take_change(struct session *session, const Rubato__Change *change) {
    if (!session->exchanging) {
        return STATUS_CORRUPT;
    }
    switch (change->stage) {
    case RUBATO__CHANGE__STAGE__PROMISE:
        tell_trainer(session, SESSION_PROMISE, 0);
        return STATUS_OK;
    case RUBATO__CHANGE__STAGE__LIMIT:
        tell_trainer(session, SESSION_LIMIT, change->step);
        return STATUS_OK;
    case RUBATO__CHANGE__STAGE__RESUME:
        return resume(session, change);
    default:
        return STATUS_CORRUPT;
    }
}

static enum status take_message(struct session *session, const Rubato__Message *message) {
    switch (message->body_case) {
    case RUBATO__MESSAGE__BODY_ASSIGN:
        tell_trainer(session, SESSION_ASSIGNED, 0);
        return STATUS_OK;
    case RUBATO__MESSAGE__BODY_TENSORS:
        return take_tensors(session, message->tensors);
    case RUBATO__MESSAGE__BODY_START:
        return take_start(session, message->start);
    case RUBATO__MESSAGE__BODY_GO:
        session->going = true;
        return STATUS_OK;
    case RUBATO__MESSAGE__BODY_CHANGE:
        return take_change(session, message->change);
    case RUBATO__MESSAGE__BODY_DRAINED:
        session->drained = true;
        session->member.job_tokens = message->drained->tokens;
        atomic_store(&session->job_tokens, message->drained->tokens);
        tell_trainer(session, SESSION_DRAINED, message->drained->saver);
        return STATUS_OK;
    default:
        return STATUS_OK;
    }
}

static enum status send_done(struct session *session) {
    Rubato__Done done = RUBATO__DONE__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    done.tokens = atomic_load(&session->tokens);
    message.body_case = RUBATO__MESSAGE__BODY_DONE;
    message.done = &done;
    return member_send(&session->member, &message);
}

static enum status send_saved(struct session *session) {
    Rubato__Saved saved = RUBATO__SAVED__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    message.body_case = RUBATO__MESSAGE__BODY_SAVED;
    message.saved = &saved;
    return member_send(&session->member, &message);
}

static enum status send_change(struct session *session, Rubato__Change__Stage stage,
                               uint64_t step) {
    Rubato__Change change = RUBATO__CHANGE__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    change.stage = stage;
    change.step = step;
    message.body_case = RUBATO__MESSAGE__BODY_CHANGE;
    message.change = &change;
    return member_send(&session->member, &message);
}

static enum status start_exchange(struct session *session, const struct session_command *command) {
    struct exchange_config config = {.job = session->job,
                                     .plan = &session->plan,
                                     .channel = session->channel,
                                     .addresses = session->addresses,
                                     .job_id = session->member.job,
                                     .epoch = session->member.epoch,
                                     .session = session->member.session,
                                     .rank = session->member.index,
                                     .weights = command->weights,
                                     .codecs = command->codecs,
                                     .devices = command->devices};
    TRY(exchange_init(&session->exchange, &config));
    session->exchanging = true;
    return STATUS_OK;
}

static enum status push(struct exchange *exchange, const struct session_command *command) {
    if (exchange_on_device(exchange)) {
        return exchange_push_device(exchange, &command->report, command->block, command->values,
                                    command->ready);
    }
    return exchange_push(exchange, &command->report, command->block, command->values);
}

/* AGAIN: later. Other failures end the session. */
static enum status carry_out(struct session *session, const struct session_command *command) {
    switch (command->kind) {
    case SESSION_READY:
        return send_ready(session, command);
    case SESSION_MEMORY:
        return start_exchange(session, command);
    case SESSION_PULL:
        if (!session->going) {
            return STATUS_AGAIN;
        }
        if (command->exact) {
            exchange_pull_exact(&session->exchange);
        } else {
            exchange_pull_all(&session->exchange, command->first);
        }
        session->settling = true;
        return STATUS_OK;
    case SESSION_PULL_BEHIND:
        exchange_pull_behind(&session->exchange);
        session->settling = true;
        return STATUS_OK;
    case SESSION_PUSH:
        return push(&session->exchange, command);
    case SESSION_COMMIT:
        if (command->report.commits) {
            exchange_commit(&session->exchange, command->report.seq);
        }
        session->settling = true;
        return STATUS_OK;
    case SESSION_PROMISED:
        return send_change(session, RUBATO__CHANGE__STAGE__PROMISED, command->step);
    case SESSION_HELD:
        return send_change(session, RUBATO__CHANGE__STAGE__HELD, command->step);
    case SESSION_DONE:
        return send_done(session);
    case SESSION_SAVED:
        return send_saved(session);
    case SESSION_LEAVE:
    default:
        session->member.tokens = atomic_load(&session->tokens);
        member_leave(&session->member, command->reason, command->exit_code);
        return STATUS_OK;
    }
}

/* True when a command was carried out. A few pushes at most, which may be encoded here: neither
 * beats nor what was encoded before shall wait until a whole report is. */
static bool take_commands(struct session *session) {
    bool worked = false;
    int pushes = 0;
    while (session->member.state != MEMBER_ENDED && pushes < EXCHANGE_PUSHES_A_POLL) {
        if (!session->held && ring_pop(&session->commands, &session->command) != STATUS_OK) {
            break;
        }
        enum status status = carry_out(session, &session->command);
        session->held = status == STATUS_AGAIN;
        if (session->held) {
            break;
        }
        worked = true;
        pushes += session->command.kind == SESSION_PUSH ? 1 : 0;
        if (status != STATUS_OK) {
            member_leave(&session->member, status_text(status), (int)status_exit_code(status));
        }
    }
    return worked;
}

static void end(struct session *session) {
    if (!session->ended) {
        session->ended = true;
        atomic_store(&session->over, true);
        tell_trainer(session, SESSION_ENDED, 0);
    }
}

/* What goes wrong without any message: a device that fails, a data channel that broke and could not
 * be made again for a lease, though the coordinator says nothing, and a model that has diverged. */
static void check_exchange(struct session *session) {
    const struct exchange *exchange = &session->exchange;
    int64_t shard = redial_failed(&exchange->redial);
    char reason[96];
    if (exchange->device_status != STATUS_OK) {
        member_leave(&session->member, "a device of its own failed before a push was encoded",
                     EXIT_CODE_DEVICE);
    } else if (shard >= 0) {
        (void)snprintf(reason, sizeof reason, "its data channel to shard %" PRId64 " broke", shard);
        log_error("%s", reason);
        member_leave(&session->member, reason, EXIT_CODE_UNREACHABLE);
    } else if (exchange->nonfinite_in_row >= JOB_NONFINITE_MAX) {
        log_error("diverged: %d gradients in a row were not finite; try a lower --lr",
                  JOB_NONFINITE_MAX);
        member_leave(&session->member, "its gradients diverged", EXIT_CODE_TRAINING);
    }
}

static bool poll_exchange(struct session *session, int64_t now_ns) {
    uint64_t answers = session->exchange.counters.answers;
    bool worked = exchange_poll(&session->exchange, now_ns);
    check_exchange(session);
    if (session->settling && exchange_settled(&session->exchange)) {
        session->settling = false;
        tell_trainer(session, SESSION_SETTLED, 0);
    } else if (session->exchange.counters.answers > answers && session->job->forward_overlap &&
               session->config.trainer != NULL) {
        wake_signal(session->config.trainer);
    }
    return worked;
}

bool session_poll(struct session *session, int64_t now_ns) {
    bool worked = false;
    const Rubato__Message *message;
    session->member.step = atomic_load(&session->step);
    session->member.tokens = atomic_load(&session->tokens);
    session->member.speed = atomic_load(&session->speed);
    while ((message = member_poll(&session->member, now_ns)) != NULL) {
        enum status status = take_message(session, message);
        worked = true;
        if (status != STATUS_OK) {
            member_leave(&session->member, status_text(status), (int)status_exit_code(status));
        }
    }
    atomic_store(&session->job_tokens, session->member.job_tokens);
    atomic_store(&session->job_speed, session->member.job_speed);
    atomic_store(&session->job_workers, session->member.job_workers);
    if (session->member.state == MEMBER_ENDED) {
        end(session);
        while (ring_pop(&session->commands, &session->command) == STATUS_OK) {
            worked = true; /* a trainer may wait for room */
        }
        return worked;
    }
    worked = take_commands(session) || worked;
    if (session->exchanging && session->connected) {
        worked = poll_exchange(session, now_ns) || worked;
    }
    if (session->member.state == MEMBER_ENDED) {
        end(session);
    }
    return worked;
}

bool session_ask_to_leave(struct session *session) {
    if (!session->going || !session->exchanging || session->drained || session->ended) {
        return false;
    }
    atomic_store(&session->leave, true);
    if (session->config.trainer != NULL) {
        wake_signal(session->config.trainer);
    }
    return true;
}

int64_t session_deadline_ns(const struct session *session) {
    int64_t deadline_ns = member_deadline_ns(&session->member);
    if (!session->exchanging) {
        return deadline_ns;
    }
    int64_t look_ns = exchange_deadline_ns(&session->exchange);
    if (exchange_encodes(&session->exchange)) {
        look_ns = clock_now_ns() + LOOK_AT_DEVICE_NS;
    }
    return look_ns < deadline_ns ? look_ns : deadline_ns;
}
