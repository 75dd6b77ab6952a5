/* coordinator_start.c - from the first Join to Go. See coordinator.h for the phases. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "proto/tensor_list.h"
#include "server/coordinator.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROTOCOL_VERSION = 1 };

#define DIFF_MAX ((size_t)4096)

/* A shard's report, some 12 bytes a block, must fit one control message. */
#define SHARD_BLOCKS_MAX ((uint64_t)65536)

void coordinator_refuse(struct coordinator *coordinator, uint32_t connection, const char *reason,
                        int exit_code) {
    struct control *control = coordinator->config.control;
    Rubato__End end = RUBATO__END__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    end.reason = (char *)reason;
    end.exit_code = (uint32_t)exit_code;
    message.body_case = RUBATO__MESSAGE__BODY_END;
    message.end = &end;
    coordinator_send(coordinator, connection, &message);
    control->ops->hang_up(control, connection);
}

/* One error line a line of the text. */
static void log_lines(const char *text) {
    for (const char *line = text; *line != '\0';) {
        size_t bytes = strcspn(line, "\n");
        log_error("%.*s", (int)bytes, line);
        line += bytes + (line[bytes] == '\n' ? 1 : 0);
    }
}

/* What a join says its user gave -> new memory, or NULL when it is malformed. */
static struct job_values *take_given(const Rubato__Join *join) {
    if (join->n_given > JOB_AGREED_MAX) {
        return NULL;
    }
    struct job_values *given = memory_zeroed(1, sizeof *given);
    for (size_t i = 0; i < join->n_given; i++) {
        const Rubato__Pair *pair = join->given[i];
        const char *name = pair->name;
        for (size_t row = 0; row < job_table_count; row++) {
            /* The table's name outlives the message. */
            name = strcmp(job_table[row].name, pair->name) == 0 ? job_table[row].name : name;
        }
        if (strlen(pair->value) >= OPTION_TEXT_MAX) {
            free(given);
            return NULL;
        }
        given->names[i] = name;
        (void)snprintf(given->values[i], OPTION_TEXT_MAX, "%s", pair->value);
        given->count++;
    }
    return given;
}

void coordinator_settle(struct coordinator *coordinator) {
    char diff[256];
    struct job_values *own = memory_zeroed(1, sizeof *own);
    options_init(&coordinator->options, job_table, job_table_count, &coordinator->job);
    coordinator->agreement = (struct job_agreement){0};
    job_given(coordinator->config.own, false, own);
    ASSERT(job_agree(&coordinator->options, &coordinator->agreement, own, "the coordinator", diff,
                     sizeof diff) == STATUS_OK);
    free(own);
    for (uint32_t i = 0; i < coordinator->membership.capacity; i++) {
        const struct peer *peer = &coordinator->membership.peers[i];
        if (peer->state != PEER_FREE) {
            ASSERT(job_agree(&coordinator->options, &coordinator->agreement, peer->given, peer->who,
                             diff, sizeof diff) == STATUS_OK);
        }
    }
}

/* False, with the newcomer turned away, when its user gave something else than the others'. */
static bool agree(struct coordinator *coordinator, uint32_t connection,
                  const struct job_values *given, const char *who) {
    char *diff = memory_zeroed(DIFF_MAX, 1);
    bool agreed = job_agree(&coordinator->options, &coordinator->agreement, given, who, diff,
                            DIFF_MAX) == STATUS_OK;
    if (!agreed) {
        log_error("refused %s: its AGREED options differ", who);
        log_lines(diff);
        coordinator_refuse(coordinator, connection, diff, EXIT_CODE_MISMATCH);
        if (coordinator->phase == COORDINATOR_GATHERING) {
            /* Nobody can tell who is right, and the job lacks a peer: end it for all. */
            coordinator_end(coordinator, diff, EXIT_CODE_MISMATCH);
        }
    }
    free(diff);
    return agreed;
}

/* Why there is no place for another peer of the role, or NULL. */
static const char *no_place(const struct coordinator *coordinator, enum job_role role,
                            uint32_t place) {
    const struct membership *membership = &coordinator->membership;
    const struct job *job = &coordinator->job;
    int64_t places = role == JOB_SERVER ? job->servers : job->workers;
    if (membership_count(membership, role, PEER_JOINED) < places &&
        coordinator->phase == COORDINATOR_GATHERING) {
        return place <= places ? NULL : "the job has no such place (--index counts from 0)";
    }
    return role == JOB_SERVER ? "the job has all its servers (--servers)"
                              : "the job has all its workers (--workers)";
}

static uint64_t lay_shards(struct coordinator *coordinator) {
    uint64_t shards = 0;
    for (uint32_t index = 0; index < (uint32_t)coordinator->job.servers; index++) {
        struct peer *server = membership_by_index(&coordinator->membership, JOB_SERVER, index);
        ASSERT(server != NULL);
        server->first_shard = shards;
        shards += server->shards;
    }
    return shards;
}

/* Do the options that users gave in different places fit each other? Ends the job where not. */
static bool check_job(struct coordinator *coordinator) {
    char why[256];
    if (job_expand_preset(&coordinator->options, coordinator->agreement.given, why, sizeof why)) {
        log_info("%s", why);
    }
    if (job_check(&coordinator->job, why, sizeof why) == STATUS_OK &&
        job_discipline(&coordinator->job, &coordinator->discipline, why, sizeof why) == STATUS_OK) {
        return true;
    }
    log_error("%s", why);
    coordinator_end(coordinator, why, EXIT_CODE_USAGE);
    return false;
}

/* All are here: tells each its place and the job's options. */
static void assign(struct coordinator *coordinator, int64_t now_ns) {
    struct job_values *agreed = memory_zeroed(1, sizeof *agreed);
    Rubato__Pair pairs[JOB_AGREED_MAX];
    Rubato__Pair *pointers[JOB_AGREED_MAX];
    uint64_t shards = lay_shards(coordinator);
    job_given(&coordinator->options, true, agreed);
    for (size_t i = 0; i < agreed->count; i++) {
        rubato__pair__init(&pairs[i]);
        pairs[i].name = (char *)agreed->names[i];
        pairs[i].value = agreed->values[i];
        pointers[i] = &pairs[i];
    }
    coordinator->phase = COORDINATOR_ASSIGNED;
    for (uint32_t i = 0; i < coordinator->membership.capacity; i++) {
        struct peer *peer = &coordinator->membership.peers[i];
        if (peer->state == PEER_FREE) {
            continue;
        }
        peer->session = random_u64(&coordinator->random);
        peer->heard_ns = now_ns; /* the lease begins: members beat from Assign on */
        Rubato__Assign assign = RUBATO__ASSIGN__INIT;
        Rubato__Message message = RUBATO__MESSAGE__INIT;
        assign.job = coordinator->job_id;
        assign.epoch = coordinator->epoch;
        assign.session = peer->session;
        assign.index = peer->index;
        assign.first_shard = peer->first_shard;
        assign.shard_count = shards;
        assign.n_agreed = agreed->count;
        assign.agreed = pointers;
        message.body_case = RUBATO__MESSAGE__BODY_ASSIGN;
        message.assign = &assign;
        coordinator_send(coordinator, peer->connection, &message);
    }
    free(agreed);
}

/* What a newcomer's options change, to be put back where it finds no place. */
struct settled {
    struct job job;
    struct options options; /* their config stays the coordinator's job */
    struct job_agreement agreement;
};

static struct settled *settled_now(const struct coordinator *coordinator) {
    struct settled *settled = memory_zeroed(1, sizeof *settled);
    *settled = (struct settled){coordinator->job, coordinator->options, coordinator->agreement};
    return settled;
}

/* A peer of the newcomer's making, or NULL, with the newcomer turned away. */
static struct peer *admit(struct coordinator *coordinator, uint32_t connection,
                          const Rubato__Join *join, const char *who) {
    struct membership_newcomer newcomer = {.role = (enum job_role)join->role,
                                           .connection = connection,
                                           .host = join->host,
                                           .pid = join->pid,
                                           .place = join->place};
    struct job_values *given = take_given(join);
    if (given == NULL) {
        coordinator_refuse(coordinator, connection, "malformed options", EXIT_CODE_PROTOCOL);
        return NULL;
    }
    struct settled *before = settled_now(coordinator);
    if (!agree(coordinator, connection, given, who)) {
        free(before);
        free(given);
        return NULL;
    }
    const char *full = no_place(coordinator, newcomer.role, join->place);
    struct peer *peer = full == NULL ? membership_add(&coordinator->membership, &newcomer) : NULL;
    if (peer == NULL) {
        full = full != NULL ? full : "its place is taken (--index)";
        log_warn("refused %s: %s", who, full);
        coordinator_refuse(coordinator, connection, full, EXIT_CODE_CREATE);
        /* Without what it gave, and as it was: a running job's givers may have gone. */
        coordinator->job = before->job;
        coordinator->options = before->options;
        coordinator->agreement = before->agreement;
        free(before);
        free(given);
        return NULL;
    }
    free(before);
    peer->given = given;
    (void)snprintf(peer->who, sizeof peer->who, "%s", who);
    return peer;
}

void coordinator_take_join(struct coordinator *coordinator, uint32_t connection,
                           const Rubato__Join *join, int64_t now_ns) {
    char who[64];
    const struct job *job = &coordinator->job;
    bool server = join->role == JOB_SERVER;
    if (join->protocol != PROTOCOL_VERSION || (!server && join->role != JOB_WORKER) ||
        join->shards > 256 || (server && join->shards == 0)) {
        coordinator_refuse(coordinator, connection, "another version of the protocol",
                           EXIT_CODE_PROTOCOL);
        return;
    }
    (void)snprintf(who, sizeof who, "%s on %.24s:%" PRIu64, server ? "server" : "worker",
                   join->host, join->pid);
    struct peer *peer = admit(coordinator, connection, join, who);
    if (peer == NULL) {
        return;
    }
    peer->shards = server ? join->shards : 1;
    peer->heard_ns = now_ns;
    log_info("%s joined", peer->name);
    coordinator->nag_at_ns = now_ns;
    if (membership_count(&coordinator->membership, JOB_SERVER, PEER_JOINED) ==
            (uint32_t)job->servers &&
        membership_count(&coordinator->membership, JOB_WORKER, PEER_JOINED) ==
            (uint32_t)job->workers) {
        coordinator->nag_at_ns = now_ns + CLOCK_S;
        if (check_job(coordinator)) {
            assign(coordinator, now_ns);
        }
    }
}

/* True when all peers are in `state` or beyond. */
static bool all_in(const struct coordinator *coordinator, enum peer_state state) {
    const struct membership *membership = &coordinator->membership;
    return membership_count(membership, JOB_SERVER, state) == (uint32_t)coordinator->job.servers &&
           membership_count(membership, JOB_WORKER, state) == (uint32_t)coordinator->job.workers;
}

/* Keeps worker 0's tensor list. False: malformed. */
static bool keep_tensors(struct coordinator *coordinator, const Rubato__Ready *ready) {
    free(coordinator->tensors);
    coordinator->tensor_count = ready->n_tensors;
    coordinator->tensors = memory_zeroed(ready->n_tensors + 1, sizeof(struct tensor));
    return tensor_list_unpack(ready->tensors, ready->n_tensors, coordinator->tensors);
}

/* Blocks of the shard that owns the most. */
static uint64_t most_blocks(const struct plan *plan) {
    uint64_t most = 0;
    uint64_t *counts = memory_zeroed((size_t)plan->shard_count, sizeof *counts);
    for (uint64_t id = 0; id < plan->block_count; id++) {
        uint64_t count = ++counts[plan->blocks[id].shard];
        most = count > most ? count : most;
    }
    free(counts);
    return most;
}

/* All are ready: compares what the workers' models are made of, and sends the tensors on. */
static void send_tensors(struct coordinator *coordinator) {
    char reason[512];
    uint64_t digest = plan_tensor_digest(coordinator->tensors, coordinator->tensor_count);
    for (uint32_t rank = 0; rank < (uint32_t)coordinator->job.workers; rank++) {
        const struct peer *worker = membership_by_index(&coordinator->membership, JOB_WORKER, rank);
        if (worker->tensor_digest != digest) {
            (void)snprintf(
                reason, sizeof reason,
                "the model of %s has other tensors than that of worker 0: check --vocab, "
                "--model and the data's format",
                worker->name);
            log_error("%s", reason);
            coordinator_end(coordinator, reason, EXIT_CODE_MISMATCH);
            return;
        }
    }
    struct plan_options options = job_plan_options(&coordinator->job, lay_shards(coordinator));
    if (plan_build(&coordinator->plan, coordinator->tensors, coordinator->tensor_count, &options) !=
        STATUS_OK) {
        coordinator_end(coordinator,
                        "the model makes no plan: see --model, --block-values, --fragments and "
                        "--rates; the coordinator's log says more",
                        EXIT_CODE_USAGE);
        return;
    }
    coordinator->allocated = true;
    if (most_blocks(&coordinator->plan) > SHARD_BLOCKS_MAX) {
        coordinator_end(
            coordinator,
            "a shard would own more than 65536 blocks: raise --block-values or --shards",
            EXIT_CODE_USAGE);
        return;
    }
    vote_init(&coordinator->vote, &coordinator->plan);
    coordinator_open_rounds(coordinator);
    if (log_enabled(LOG_INFO)) {
        plan_print(&coordinator->plan, stderr);
    }
    coordinator->phase = COORDINATOR_PLANNED;
    Rubato__Tensors tensors = RUBATO__TENSORS__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    struct tensor_list list;
    tensor_list_pack(coordinator->tensors, coordinator->tensor_count, &list);
    tensors.n_tensors = (size_t)coordinator->tensor_count;
    tensors.tensors = list.pointers;
    message.body_case = RUBATO__MESSAGE__BODY_TENSORS;
    message.tensors = &tensors;
    coordinator_send_all(coordinator, 0, &message);
    tensor_list_free(&list);
}

void coordinator_take_ready(struct coordinator *coordinator, struct peer *peer,
                            const Rubato__Ready *ready) {
    if (coordinator->phase != COORDINATOR_ASSIGNED || peer->state != PEER_JOINED) {
        return;
    }
    if (peer->role == JOB_WORKER && peer->index == 0 && !keep_tensors(coordinator, ready)) {
        coordinator_end(coordinator, "worker 0 sent malformed tensors", EXIT_CODE_PROTOCOL);
        return;
    }
    peer->tensor_digest = ready->tensor_digest;
    peer->state = PEER_READY;
    if (all_in(coordinator, PEER_READY)) {
        send_tensors(coordinator);
    }
}

static size_t count_addresses(const struct coordinator *coordinator, enum job_role role) {
    size_t count = 0;
    for (uint32_t i = 0; i < coordinator->membership.capacity; i++) {
        const struct peer *peer = &coordinator->membership.peers[i];
        count += peer->state != PEER_FREE && peer->role == role ? peer->shards : 0;
    }
    return count;
}

/* The role's peers, one an address, in order of index -> entries, pointers [count_addresses]. */
static void list_peers(const struct coordinator *coordinator, enum job_role role,
                       Rubato__Peer *entries, Rubato__Peer **pointers) {
    size_t used = 0;
    uint32_t peers = membership_count(&coordinator->membership, role, PEER_JOINED);
    for (uint32_t index = 0; index < peers; index++) {
        const struct peer *peer = membership_by_index(&coordinator->membership, role, index);
        for (uint32_t i = 0; i < peer->shards; i++, used++) {
            rubato__peer__init(&entries[used]);
            entries[used].address.data = peer->addresses + (size_t)i * CHANNEL_ADDRESS_MAX;
            entries[used].address.len = peer->address_bytes[i];
            entries[used].session = peer->session;
            entries[used].name = (char *)peer->name;
            pointers[used] = &entries[used];
        }
    }
}

/* All plans are equal: tells everyone where everyone is. */
static void start(struct coordinator *coordinator) {
    Rubato__Start start = RUBATO__START__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    start.n_shards = count_addresses(coordinator, JOB_SERVER);
    start.n_workers = count_addresses(coordinator, JOB_WORKER);
    size_t count = start.n_shards + start.n_workers;
    Rubato__Peer *entries = memory_zeroed(count, sizeof *entries);
    Rubato__Peer **pointers = memory_zeroed(count, sizeof *pointers);
    start.shards = pointers;
    start.workers = pointers + start.n_shards;
    list_peers(coordinator, JOB_SERVER, entries, start.shards);
    list_peers(coordinator, JOB_WORKER, entries + start.n_shards, start.workers);
    message.body_case = RUBATO__MESSAGE__BODY_START;
    message.start = &start;
    coordinator->phase = COORDINATOR_STARTED;
    coordinator_send_all(coordinator, 0, &message);
    free(entries);
    free(pointers);
}

void coordinator_take_armed(struct coordinator *coordinator, struct peer *peer,
                            const Rubato__Armed *armed) {
    char reason[512];
    if (coordinator->phase != COORDINATOR_PLANNED || peer->state != PEER_READY) {
        return;
    }
    if (armed->plan_digest != coordinator->plan.digest) {
        (void)snprintf(reason, sizeof reason,
                       "%s made another plan from the same tensors: all processes must run the "
                       "same build",
                       peer->name);
        log_error("%s", reason);
        coordinator_end(coordinator, reason, EXIT_CODE_MISMATCH);
        return;
    }
    bool sound = armed->n_addresses == peer->shards;
    peer->addresses = memory_zeroed(peer->shards, CHANNEL_ADDRESS_MAX);
    peer->address_bytes = memory_zeroed(peer->shards, sizeof(size_t));
    for (size_t i = 0; sound && i < armed->n_addresses; i++) {
        sound = armed->addresses[i].len <= CHANNEL_ADDRESS_MAX;
        if (sound && armed->addresses[i].len > 0) {
            memcpy(peer->addresses + i * CHANNEL_ADDRESS_MAX, armed->addresses[i].data,
                   armed->addresses[i].len);
            peer->address_bytes[i] = armed->addresses[i].len;
        }
    }
    if (!sound) {
        coordinator_end(coordinator, "a peer sent malformed addresses", EXIT_CODE_PROTOCOL);
        return;
    }
    peer->state = PEER_ARMED;
    if (all_in(coordinator, PEER_ARMED)) {
        start(coordinator);
    }
}

void coordinator_take_connected(struct coordinator *coordinator, struct peer *peer) {
    Rubato__Go go = RUBATO__GO__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    if (coordinator->phase != COORDINATOR_STARTED || peer->state != PEER_ARMED) {
        return;
    }
    peer->state = PEER_CONNECTED;
    if (!all_in(coordinator, PEER_CONNECTED)) {
        return;
    }
    coordinator->phase = COORDINATOR_RUNNING;
    message.body_case = RUBATO__MESSAGE__BODY_GO;
    message.go = &go;
    coordinator_send_all(coordinator, 0, &message);
    log_info("all %" PRId64 " servers and %" PRId64 " workers are connected: training starts",
             coordinator->job.servers, coordinator->job.workers);
}
