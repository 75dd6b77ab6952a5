#include "server/service.h"

#include "base/assert.h"
#include "base/log.h"
#include "proto/tensor_list.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

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
             "%.2f max %" PRIu64 ", %" PRIu64 " skipped, %" PRIu64 " repeated, %" PRIu64
             " stale, %" PRIu64 " damaged",
             shard->config.id, shard->block_count, counters->pushes,
             (double)counters->staleness_sum / pushes, counters->staleness_max, counters->skipped,
             counters->duplicates, counters->stale, counters->corrupt + counters->breaches);
}

void service_free(struct service *service) {
    for (uint32_t i = 0; i < service->running; i++) {
        if (service->config.threads) {
            shard_thread_stop(&service->threads[i]);
        }
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
        status = plan_build(&service->plan, list, tensors->n_tensors, service->member.shard_count,
                            (uint64_t)service->job->block_values);
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

/* The workers' addresses: connects every shard to every worker and sets the shards going. */
static enum status take_start(struct service *service, const Rubato__Start *start) {
    if (!service->planned || service->running > 0 ||
        start->n_workers != (size_t)service->job->workers) {
        return STATUS_CORRUPT;
    }
    uint64_t *sessions = memory_zeroed(start->n_workers, sizeof *sessions);
    enum status status = STATUS_OK;
    for (size_t rank = 0; rank < start->n_workers; rank++) {
        const Rubato__Peer *worker = start->workers[rank];
        sessions[rank] = worker->session;
        for (uint32_t i = 0; i < service->shard_count && status == STATUS_OK; i++) {
            struct channel *channel = service->channels[i];
            status = channel->ops->connect(channel, (uint32_t)rank, worker->address.data,
                                           worker->address.len);
        }
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

static void take_verdict(struct service *service, const Rubato__Verdict *message) {
    struct vote_verdict verdict = {.round = message->round,
                                   .skip = message->skip,
                                   .scale = message->scale,
                                   .norm = message->norm};
    for (uint32_t i = 0; i < service->running; i++) {
        if (service->shards[i].block_count == 0) {
            continue; /* it has no part in rounds */
        }
        /* A shard takes each report's verdict before it reports again, so there is room. */
        ASSERT(ring_push(&service->shards[i].verdicts, &verdict) == STATUS_OK);
        if (service->config.threads) {
            wake_signal(&service->threads[i].wake);
        }
    }
}

static enum status take_message(struct service *service, const Rubato__Message *message) {
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
        take_verdict(service, message->verdict);
        return STATUS_OK;
    default:
        return STATUS_OK;
    }
}

static bool send_reports(struct service *service) {
    bool worked = false;
    struct vote_report report;
    for (uint32_t i = 0; i < service->running; i++) {
        while (ring_pop(&service->shards[i].reports, &report) == STATUS_OK) {
            Rubato__Report wire = RUBATO__REPORT__INIT;
            Rubato__Message message = RUBATO__MESSAGE__INIT;
            wire.round = report.round;
            wire.shard = report.shard;
            wire.contributors = report.contributors;
            wire.nonfinite = report.nonfinite;
            wire.n_blocks = wire.n_sums_of_squares = (size_t)report.block_count;
            wire.blocks = (uint64_t *)report.blocks;
            wire.sums_of_squares = (double *)report.sums_of_squares;
            message.body_case = RUBATO__MESSAGE__BODY_REPORT;
            message.report = &wire;
            enum status status = member_send(&service->member, &message);
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

/* A worker whose data channel broke, though nothing has ended the job for a lease: it never will.
 */
static void check_channels(struct service *service, int64_t now_ns) {
    char reason[96];
    for (uint32_t i = 0; i < service->running; i++) {
        int64_t worker = atomic_load(&service->shards[i].lost_worker);
        if (worker < 0 || service->member.state == MEMBER_ENDED) {
            continue;
        }
        if (service->lost_ns == 0) {
            service->lost_ns = now_ns;
        }
        if (now_ns - service->lost_ns > job_lease_ns(service->job)) {
            (void)snprintf(reason, sizeof reason, "its data channel to worker %" PRId64 " broke",
                           worker);
            log_error("%s", reason);
            member_leave(&service->member, reason, EXIT_CODE_UNREACHABLE);
        }
    }
}

bool service_poll(struct service *service, int64_t now_ns) {
    bool worked = false;
    const Rubato__Message *message;
    while ((message = member_poll(&service->member, now_ns)) != NULL) {
        enum status status = take_message(service, message);
        worked = true;
        if (status != STATUS_OK) {
            member_leave(&service->member, status_text(status), (int)status_exit_code(status));
            return true;
        }
    }
    for (uint32_t i = 0; i < service->running && !service->config.threads; i++) {
        worked = shard_poll(&service->shards[i]) || worked;
    }
    check_channels(service, now_ns);
    return send_reports(service) || worked;
}

int64_t service_deadline_ns(const struct service *service) {
    return member_deadline_ns(&service->member);
}
