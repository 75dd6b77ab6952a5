#include "server/service.h"

#include "base/clock.h"
#include "base/log.h"
#include "proto/tensor_list.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status service_init(struct service *service, const struct service_config *config,
                         int64_t now_ns) {
    *service = (struct service){.config = *config,
                                .job = config->member.options->config,
                                .shard_count = config->member.shards};
    service->channels = memory_zeroed(service->shard_count, sizeof *service->channels);
    service->shards = memory_zeroed(service->shard_count, sizeof *service->shards);
    service->threads = memory_zeroed(service->shard_count, sizeof *service->threads);
    return member_init(&service->member, &config->member, now_ns);
}

static void log_counters(const struct shard *shard) {
    const struct shard_counters *counters = &shard->counters;
    double pushes = counters->pushes > 0 ? (double)counters->pushes : 1;
    log_info("shard %" PRIu64 ": %" PRIu64 " blocks, %" PRIu64 " pushes applied, staleness mean "
             "%.2f max %" PRIu64 ", %" PRIu64 " dropped, %" PRIu64 " skipped, %" PRIu64
             " repeated, %" PRIu64 " stale, %" PRIu64 " damaged",
             shard->config.id, shard->block_count, counters->pushes - counters->dropped,
             (double)counters->staleness_sum / pushes, counters->staleness_max, counters->dropped,
             counters->skipped, counters->duplicates, counters->stale,
             counters->corrupt + counters->breaches);
}

/* The shard whose counts of reports stand for all: the first that takes part in rounds. */
static const struct shard *typical_shard(const struct service *service) {
    for (uint32_t i = 0; i < service->running; i++) {
        const struct shard *shard = &service->shards[i];
        if (shard->block_count > 0 && shard_part(shard, shard->round) > 0) {
            return shard;
        }
    }
    return NULL;
}

/* One line a worker: what it gave to this run, as the shard counted it (in the fragments that it
 * has blocks of). */
static void log_workers(const struct service *service) {
    const struct shard *shard = typical_shard(service);
    if (shard == NULL || service->started_ns == 0) {
        return;
    }
    int64_t interval = discipline_interval(&shard->discipline);
    for (uint32_t rank = 0; rank < shard->workers; rank++) {
        const struct shard_worker *worker = &shard->ranks[rank];
        const struct service_worker *known = &service->workers[rank];
        int64_t end_ns = known->gone_ns != 0 ? known->gone_ns : service->polled_ns;
        double seconds = (double)(end_ns - service->started_ns) / (double)CLOCK_S;
        uint64_t reports = worker->counted + worker->dropped;
        log_info("%s: %" PRIu64 " reports counted, %" PRIu64
                 " dropped, staleness mean %.2f, %.2f steps/s%s",
                 known->name, worker->counted, worker->dropped,
                 (double)worker->staleness_sum / (double)(reports > 0 ? reports : 1),
                 seconds > 0 ? (double)worker->last_seq * (double)interval / seconds : 0,
                 known->gone_ns != 0 ? " until it left" : "");
    }
}

void service_free(struct service *service) {
    for (uint32_t i = 0; i < service->running && service->config.threads; i++) {
        shard_thread_stop(&service->threads[i]);
    }
    log_workers(service);
    for (uint32_t i = 0; i < service->running; i++) {
        log_counters(&service->shards[i]);
        shard_free(&service->shards[i]);
    }
    for (uint32_t i = 0; i < service->shard_count; i++) {
        if (service->channels[i] != NULL) {
            service->channels[i]->ops->close(service->channels[i]);
        }
    }
    if (service->planned) {
        plan_free(&service->plan);
    }
    free(service->channels);
    free(service->shards);
    free(service->threads);
    free(service->workers);
    free(service->addresses);
    member_free(&service->member);
    *service = (struct service){0};
}

static enum status send_ready(struct service *service) {
    Rubato__Ready ready = RUBATO__READY__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    message.body_case = RUBATO__MESSAGE__BODY_READY;
    message.ready = &ready;
    return member_send(&service->member, &message);
}

/* The tensors make the plan, the plan the channels; their addresses go to the coordinator. */
static enum status take_tensors(struct service *service, const Rubato__Tensors *tensors) {
    struct tensor *list = memory_zeroed(tensors->n_tensors + 1, sizeof *list);
    enum status status = STATUS_CORRUPT;
    if (!service->planned && tensor_list_unpack(tensors->tensors, tensors->n_tensors, list)) {
        struct plan_options options = job_plan_options(service->job, service->member.shard_count);
        status = plan_build(&service->plan, list, tensors->n_tensors, &options);
        service->planned = status == STATUS_OK;
    }
    free(list);
    TRY(status);
    Rubato__Armed armed = RUBATO__ARMED__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    ProtobufCBinaryData *addresses = memory_zeroed(service->shard_count, sizeof *addresses);
    uint8_t *bytes = memory_zeroed(service->shard_count, CHANNEL_ADDRESS_MAX);
    for (uint32_t i = 0; i < service->shard_count && status == STATUS_OK; i++) {
        struct channel_config config;
        struct channel **channel = &service->channels[i];
        shard_channel_config(service->job, &service->plan, service->member.first_shard + i,
                             &config);
        status = service->config.open_channel(service->config.context, &config, channel);
        if (status == STATUS_OK) {
            addresses[i].data = bytes + i * CHANNEL_ADDRESS_MAX;
            status = (*channel)->ops->address(*channel, addresses[i].data, &addresses[i].len);
        }
    }
    if (status == STATUS_OK) {
        armed.plan_digest = service->plan.digest;
        armed.n_addresses = service->shard_count;
        armed.addresses = addresses;
        message.body_case = RUBATO__MESSAGE__BODY_ARMED;
        message.armed = &armed;
        status = member_send(&service->member, &message);
    }
    free(addresses);
    free(bytes);
    return status;
}

static enum status start_shard(struct service *service, uint32_t i, const uint64_t *sessions) {
    struct shard_config config = {.job = service->job,
                                  .plan = &service->plan,
                                  .id = service->member.first_shard + i,
                                  .job_id = service->member.job,
                                  .epoch = service->member.epoch,
                                  .channel = service->channels[i],
                                  .addresses = service->addresses,
                                  .sessions = sessions,
                                  .reported = service->config.wake};
    TRY(shard_init(&service->shards[i], &config));
    service->channels[i] = NULL;
    if (service->config.threads) {
        enum status status = shard_thread_start(&service->threads[i], &service->shards[i]);
        if (status != STATUS_OK) {
            shard_free(&service->shards[i]);
            return status;
        }
    }
    service->running++;
    return STATUS_OK;
}

static void log_shared(const struct service *service, size_t workers) {
    uint32_t shared = 0;
    for (uint32_t i = 0; i < service->shard_count; i++) {
        struct channel_stats stats;
        service->channels[i]->ops->stats(service->channels[i], &stats);
        shared += stats.shared_peers;
    }
    if (shared > 0) {
        log_info("data: %u of %zu connections to workers by shared memory", shared,
                 workers * service->shard_count);
    }
}

/* The workers' addresses: connects every shard to every worker and sets the shards going. */
static enum status take_start(struct service *service, const Rubato__Start *start) {
    if (!service->planned || service->running > 0 ||
        start->n_workers != (size_t)service->job->workers) {
        return STATUS_CORRUPT;
    }
    uint64_t *sessions = memory_zeroed(start->n_workers, sizeof *sessions);
    service->workers = memory_zeroed(start->n_workers, sizeof *service->workers);
    service->addresses = memory_zeroed(start->n_workers, sizeof *service->addresses);
    (void)snprintf(service->mode, sizeof service->mode, "%s", service->job->mode);
    enum status status = STATUS_OK;
    for (size_t rank = 0; rank < start->n_workers && status == STATUS_OK; rank++) {
        const Rubato__Peer *worker = start->workers[rank];
        sessions[rank] = worker->session;
        (void)snprintf(service->workers[rank].name, sizeof service->workers[rank].name, "%s",
                       worker->name);
        status = channel_address_keep(&service->addresses[rank], worker->address.data,
                                      worker->address.len);
        for (uint32_t i = 0; i < service->shard_count && status == STATUS_OK; i++) {
            struct channel *channel = service->channels[i];
            status = channel->ops->connect(channel, (uint32_t)rank, worker->address.data,
                                           worker->address.len);
        }
    }
    if (status == STATUS_OK) {
        log_shared(service, start->n_workers);
    }
    for (uint32_t i = 0; i < service->shard_count && status == STATUS_OK; i++) {
        status = start_shard(service, i, sessions);
    }
    free(sessions);
    TRY(status);
    Rubato__Connected connected = RUBATO__CONNECTED__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    message.body_case = RUBATO__MESSAGE__BODY_CONNECTED;
    message.connected = &connected;
    return member_send(&service->member, &message);
}

/* Gives the order to the shards that have a part in `round`, or to all (round 0). CORRUPT: more
 * orders than any coordinator has reason to send. */
static enum status order_shards(struct service *service, const struct shard_order *order,
                                uint64_t round) {
    for (uint32_t i = 0; i < service->running; i++) {
        struct shard *shard = &service->shards[i];
        if (round > 0 && shard_part(shard, round) == 0) {
            continue;
        }
        if (ring_push(&shard->orders, order) != STATUS_OK) {
            return STATUS_CORRUPT;
        }
        if (service->config.threads) {
            wake_signal(&service->threads[i].wake);
        }
    }
    return STATUS_OK;
}

static enum status take_verdict(struct service *service, const Rubato__Verdict *verdict) {
    const struct shard_order order = {
        .kind = SHARD_VERDICT,
        .verdict = {.round = verdict->round, .skip = verdict->skip, .scale = verdict->scale}};
    return verdict->round == 0 ? STATUS_CORRUPT : order_shards(service, &order, verdict->round);
}

static enum status take_close(struct service *service, const Rubato__Close *close) {
    struct shard_order order = {.kind = SHARD_CLOSE, .close = {.round = close->round}};
    for (size_t i = 0; i < close->n_ranks; i++) {
        if (close->ranks[i] >= SHARD_WORKERS_MAX) {
            return STATUS_CORRUPT;
        }
        shard_ranks_add(&order.close.ranks, close->ranks[i]);
    }
    return close->round == 0 ? STATUS_CORRUPT : order_shards(service, &order, close->round);
}

static enum status take_drop(struct service *service, const Rubato__Drop *drop) {
    const struct shard_order order = {.kind = SHARD_DROP,
                                      .drop = {.seq = drop->seq, .rank = drop->rank}};
    return order_shards(service, &order, 0);
}

static enum status take_gone(struct service *service, uint32_t rank, int64_t now_ns) {
    const struct shard_order order = {.kind = SHARD_GONE, .gone = rank};
    if (service->running == 0 || rank >= (uint64_t)service->job->workers) {
        return STATUS_CORRUPT;
    }
    log_info("%s has gone: nothing waits for it", service->workers[rank].name);
    service->workers[rank].gone_ns = now_ns;
    return order_shards(service, &order, 0);
}

/* A stage of a change of mode. */
static enum status take_change(struct service *service, const Rubato__Change *change) {
    struct shard_order order = {.kind = SHARD_RELEASE};
    char why[256];
    if (change->stage == RUBATO__CHANGE__STAGE__APPLY) {
        order.kind = SHARD_CHANGE;
        if (discipline_change(service->job, change->mode, &order.discipline, why, sizeof why) !=
            STATUS_OK) {
            return STATUS_CORRUPT;
        }
        log_info("mode changed from %s to %s at step %" PRIu64 " by %.64s", service->mode,
                 change->mode, change->step, change->by);
        (void)snprintf(service->mode, sizeof service->mode, "%s", change->mode);
        service->changed = 0;
    } else if (change->stage != RUBATO__CHANGE__STAGE__LIMIT) {
        return STATUS_CORRUPT;
    }
    return order_shards(service, &order, 0);
}

static enum status take_message(struct service *service, const Rubato__Message *message,
                                int64_t now_ns) {
    switch (message->body_case) {
    case RUBATO__MESSAGE__BODY_ASSIGN:
        log_info("this is server %u of %" PRId64 ", shards %" PRIu64 " to %" PRIu64,
                 service->member.index, service->job->servers, service->member.first_shard,
                 service->member.first_shard + service->shard_count - 1);
        return send_ready(service);
    case RUBATO__MESSAGE__BODY_TENSORS:
        return take_tensors(service, message->tensors);
    case RUBATO__MESSAGE__BODY_START:
        return take_start(service, message->start);
    case RUBATO__MESSAGE__BODY_VERDICT:
        return take_verdict(service, message->verdict);
    case RUBATO__MESSAGE__BODY_CLOSE:
        return take_close(service, message->close);
    case RUBATO__MESSAGE__BODY_DROP:
        return take_drop(service, message->drop);
    case RUBATO__MESSAGE__BODY_GONE:
        return take_gone(service, message->gone->rank, now_ns);
    case RUBATO__MESSAGE__BODY_CHANGE:
        return take_change(service, message->change);
    case RUBATO__MESSAGE__BODY_GO:
        service->started_ns = now_ns;
        return STATUS_OK;
    default:
        return STATUS_OK;
    }
}

static enum status send_report(struct service *service, const struct vote_report *report) {
    Rubato__Report wire = RUBATO__REPORT__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    wire.round = report->round;
    wire.shard = report->shard;
    wire.contributors = report->contributors;
    wire.weight = report->weight;
    wire.nonfinite = report->nonfinite;
    wire.n_blocks = wire.n_sums_of_squares = (size_t)report->block_count;
    wire.blocks = (uint64_t *)report->blocks;
    wire.sums_of_squares = (double *)report->sums_of_squares;
    message.body_case = RUBATO__MESSAGE__BODY_REPORT;
    message.report = &wire;
    return member_send(&service->member, &message);
}

static enum status send_arrived(struct service *service, uint64_t shard,
                                const struct shard_arrival *arrival) {
    Rubato__Arrived arrived = RUBATO__ARRIVED__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    arrived.round = arrival->round;
    arrived.shard = shard;
    arrived.rank = arrival->rank;
    arrived.seq = arrival->seq;
    message.body_case = RUBATO__MESSAGE__BODY_ARRIVED;
    message.arrived = &arrived;
    return member_send(&service->member, &message);
}

/* One more shard has taken the new mode; the last of them says so for all. */
static enum status send_applied(struct service *service) {
    Rubato__Change change = RUBATO__CHANGE__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    service->changed++;
    if (service->changed < service->running) {
        return STATUS_OK;
    }
    change.stage = RUBATO__CHANGE__STAGE__APPLIED;
    message.body_case = RUBATO__MESSAGE__BODY_CHANGE;
    message.change = &change;
    return member_send(&service->member, &message);
}

static enum status send_note(struct service *service, const struct shard *shard,
                             const struct shard_note *note) {
    switch (note->kind) {
    case SHARD_REPORT:
        return send_report(service, &note->report);
    case SHARD_ARRIVED:
        return send_arrived(service, shard->config.id, &note->arrival);
    case SHARD_CHANGED:
    default:
        return send_applied(service);
    }
}

static bool send_notes(struct service *service) {
    bool worked = false;
    struct shard_note note;
    for (uint32_t i = 0; i < service->running; i++) {
        struct shard *shard = &service->shards[i];
        while (ring_pop(&shard->notes, &note) == STATUS_OK) {
            enum status status = send_note(service, shard, &note);
            /* A lost coordinator shows in the member's state; anything else would stop the round
             * without a word. */
            if (status != STATUS_OK && status != STATUS_PEER_LOST) {
                member_leave(&service->member, "it cannot report a round",
                             (int)status_exit_code(status));
            }
            worked = true;
        }
    }
    return worked;
}

/* A worker that is out of reach and not known to have gone. */
static int64_t lost_worker(const struct service *service) {
    for (uint32_t i = 0; i < service->running; i++) {
        int64_t worker = atomic_load(&service->shards[i].lost_worker);
        if (worker >= 0) {
            return worker;
        }
    }
    return -1;
}

/* A data channel that broke and could not be made again for a lease, though the coordinator has not
 * said what it means: it never will. */
static void check_channels(struct service *service) {
    char reason[96];
    int64_t worker = lost_worker(service);
    if (worker < 0 || service->member.state == MEMBER_ENDED) {
        return;
    }
    (void)snprintf(reason, sizeof reason, "its data channel to worker %" PRId64 " broke", worker);
    log_error("%s", reason);
    member_leave(&service->member, reason, EXIT_CODE_UNREACHABLE);
}

bool service_poll(struct service *service, int64_t now_ns) {
    bool worked = false;
    const Rubato__Message *message;
    service->polled_ns = now_ns;
    while ((message = member_poll(&service->member, now_ns)) != NULL) {
        enum status status = take_message(service, message, now_ns);
        worked = true;
        if (status != STATUS_OK) {
            member_leave(&service->member, status_text(status), (int)status_exit_code(status));
            return true;
        }
    }
    for (uint32_t i = 0; i < service->running && !service->config.threads; i++) {
        worked = shard_poll(&service->shards[i], now_ns) || worked;
    }
    check_channels(service);
    return send_notes(service) || worked;
}

int64_t service_deadline_ns(const struct service *service) {
    int64_t deadline_ns = member_deadline_ns(&service->member);
    for (uint32_t i = 0; i < service->running && !service->config.threads; i++) {
        int64_t shard_ns = shard_deadline_ns(&service->shards[i]);
        deadline_ns = shard_ns < deadline_ns ? shard_ns : deadline_ns;
    }
    return deadline_ns;
}
