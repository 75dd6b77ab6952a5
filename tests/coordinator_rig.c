#include "tests/coordinator_rig.h"

#include "base/memory.h"
#include "proto/tensor_list.h"
#include "tests/test.h"

static size_t rig_split(char *text, char **names, char **values, size_t capacity) {
    char *rest = NULL;
    size_t count = 0;
    for (char *word = strtok_r(text, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        CHECK(count < capacity && strchr(word, '=') != NULL);
        names[count] = word;
        values[count] = strchr(word, '=') + 1;
        values[count++][-1] = '\0';
    }
    return count;
}

void rig_open(struct rig *rig, const char *own) {
    const struct loop_faults faults = {.delay_min_ns = CLOCK_MS, .delay_max_ns = CLOCK_MS};
    char copy[512], why[256], *names[16], *values[16];
    memset(rig, 0, sizeof *rig);
    CHECK_INT(message_scratch_init(&rig->scratch, 1 << 20), STATUS_OK);
    CHECK_INT(loop_open(&rig->loop, 1, &faults), STATUS_OK);
    CHECK_INT(loop_control(rig->loop, 0, &rig->listening), STATUS_OK);
    CHECK_INT(rig->listening->ops->listen(rig->listening, "10.0.0.1", "29600"), STATUS_OK);
    options_init(&rig->options, job_table, job_table_count, &rig->job);
    (void)snprintf(copy, sizeof copy, "%s", own);
    size_t count = rig_split(copy, names, values, 16);
    for (size_t i = 0; i < count; i++) {
        CHECK_INT(options_set(&rig->options, options_find(&rig->options, names[i]), values[i],
                              ORIGIN_FLAG, why, sizeof why),
                  STATUS_OK);
    }
    const struct coordinator_config config = {
        .control = rig->listening,
        .own = &rig->options,
        .seed = 7,
        .join_timeout_ns = rig->job.join_timeout > 0 ? job_join_timeout_ns(&rig->job) : 0};
    CHECK_INT(coordinator_init(&rig->coordinator, &config, 0), STATUS_OK);
}

void rig_close(struct rig *rig) {
    for (int i = 0; i < SIDES; i++) {
        if (rig->sides[i].control != NULL) {
            rig->sides[i].control->ops->close(rig->sides[i].control, 0);
        }
    }
    coordinator_free(&rig->coordinator);
    message_scratch_free(&rig->scratch);
    rig->listening->ops->close(rig->listening, 0);
    loop_close(rig->loop);
}

static void side_append(char *text, size_t bytes, const Rubato__Peer *peer) {
    size_t used = strlen(text);
    (void)snprintf(text + used, bytes - used, "%s %.*s %d, ", peer->name, (int)peer->address.len,
                   (const char *)peer->address.data, peer->session != 0);
}

static void side_take_assign(struct side *side, const Rubato__Assign *assign) {
    side->job = assign->job;
    side->epoch = assign->epoch;
    side->session = assign->session;
    side->index = assign->index;
    side->first_shard = assign->first_shard;
    side->shard_count = assign->shard_count;
    for (size_t i = 0; i < assign->n_agreed; i++) {
        const char *value = assign->agreed[i]->value;
        if (strcmp(assign->agreed[i]->name, "lr") == 0) {
            (void)snprintf(side->lr, sizeof side->lr, "%s", value);
        } else if (strcmp(assign->agreed[i]->name, "push") == 0) {
            (void)snprintf(side->push, sizeof side->push, "%s", value);
        }
    }
}

static void side_take_running(struct side *side, const Rubato__Message *message) {
    const Rubato__Change *change = message->change;
    switch (message->body_case) {
    case RUBATO__MESSAGE__BODY_CLOSE:
        (void)snprintf(side->close, sizeof side->close, "%d:", (int)message->close->round);
        for (size_t i = 0; i < message->close->n_ranks; i++) {
            size_t used = strlen(side->close);
            (void)snprintf(side->close + used, sizeof side->close - used, " %u",
                           message->close->ranks[i]);
        }
        break;
    case RUBATO__MESSAGE__BODY_DROP:
        (void)snprintf(side->drop, sizeof side->drop, "%u %d", message->drop->rank,
                       (int)message->drop->seq);
        break;
    case RUBATO__MESSAGE__BODY_GONE:
        side->gone = message->gone->rank;
        break;
    case RUBATO__MESSAGE__BODY_DRAINED:
        side->saver = message->drained->saver;
        side->drained_tokens = message->drained->tokens;
        break;
    case RUBATO__MESSAGE__BODY_CHANGE:
        (void)snprintf(side->change, sizeof side->change, "%d %d %s %s", (int)change->stage,
                       (int)change->step, change->mode, change->by);
        break;
    default:
        break;
    }
}

static void side_take(struct side *side, const Rubato__Message *message) {
    side->got[message->body_case]++;
    switch (message->body_case) {
    case RUBATO__MESSAGE__BODY_ASSIGN:
        side_take_assign(side, message->assign);
        break;
    case RUBATO__MESSAGE__BODY_END:
        (void)snprintf(side->reason, sizeof side->reason, "%s", message->end->reason);
        side->exit_code = message->end->exit_code;
        break;
    case RUBATO__MESSAGE__BODY_WAITING:
        (void)snprintf(side->missing, sizeof side->missing, "%s", message->waiting->missing);
        break;
    case RUBATO__MESSAGE__BODY_VERDICT:
        side->verdict = (struct vote_verdict){.round = message->verdict->round,
                                              .skip = message->verdict->skip,
                                              .scale = message->verdict->scale};
        break;
    case RUBATO__MESSAGE__BODY_BEAT:
        side->beat_tokens = message->beat->tokens;
        side->beat_speed = message->beat->speed;
        side->beat_workers = message->beat->workers;
        break;
    case RUBATO__MESSAGE__BODY_TENSORS:
        side->tensors = message->tensors->n_tensors;
        break;
    case RUBATO__MESSAGE__BODY_START:
        for (size_t i = 0; i < message->start->n_shards; i++) {
            side_append(side->start, sizeof side->start, message->start->shards[i]);
        }
        for (size_t i = 0; i < message->start->n_workers; i++) {
            side_append(side->start, sizeof side->start, message->start->workers[i]);
        }
        break;
    default:
        side_take_running(side, message);
        break;
    }
}

static void side_poll(struct rig *rig, struct side *side) {
    struct control_event event;
    const Rubato__Message *message = NULL;
    while (side->control->ops->poll(side->control, rig->now_ns, &event)) {
        if (event.kind == CONTROL_OPENED) {
            side->opened = true;
        } else if (event.kind == CONTROL_CLOSED) {
            side->closed = true;
        } else {
            CHECK_INT(message_unpack(&rig->scratch, event.packet, event.packet_bytes, &message),
                      STATUS_OK);
            side_take(side, message);
        }
    }
}

void side_say(struct rig *rig, int side, const Rubato__Message *message) {
    static uint8_t packet[MESSAGE_MAX];
    size_t bytes = 0;
    struct side *from = &rig->sides[side];
    CHECK_INT(message_pack(message, packet, sizeof packet, &bytes), STATUS_OK);
    /* One who was hung up on may still speak. */
    (void)!from->control->ops->send(from->control, from->connection, packet, bytes);
    rig_settle(rig);
}

/* A Beat without waiting: rig_run() sends them, too. */
static void side_send_beat(struct rig *rig, int side, uint64_t step, uint64_t tokens) {
    Rubato__Beat beat = RUBATO__BEAT__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    uint8_t packet[64];
    size_t bytes = 0;
    struct side *from = &rig->sides[side];
    CHECK(from->control != NULL);
    beat.step = step;
    beat.tokens = tokens;
    message.body_case = RUBATO__MESSAGE__BODY_BEAT;
    message.beat = &beat;
    CHECK_INT(message_pack(&message, packet, sizeof packet, &bytes), STATUS_OK);
    (void)!from->control->ops->send(from->control, from->connection, packet, bytes);
}

void side_beat(struct rig *rig, int side, uint64_t step, uint64_t tokens) {
    side_send_beat(rig, side, step, tokens);
    rig_settle(rig);
}

void rig_run(struct rig *rig, int64_t ns) {
    int64_t end_ns = rig->now_ns + ns;
    while (rig->now_ns < end_ns) {
        bool long_way = end_ns - rig->now_ns > 100 * CLOCK_MS && rig->now_ns % (10 * CLOCK_MS) == 0;
        rig->now_ns += long_way ? 10 * CLOCK_MS : CLOCK_MS;
        loop_advance(rig->loop, rig->now_ns);
        coordinator_poll(&rig->coordinator, rig->now_ns);
        for (int i = 0; i < SIDES; i++) {
            struct side *side = &rig->sides[i];
            if (side->control != NULL) {
                side_poll(rig, side);
            }
            if (rig->beating && side->opened && !side->closed &&
                rig->now_ns % (500 * CLOCK_MS) == 0) {
                side_send_beat(rig, i, 0, 0);
            }
        }
    }
}

void rig_settle(struct rig *rig) {
    rig_run(rig, 5 * CLOCK_MS);
}

void side_dial(struct rig *rig, int side) {
    struct side *made = &rig->sides[side];
    memset(made, 0, sizeof *made);
    CHECK_INT(loop_control(rig->loop, (uint32_t)side + 1, &made->control), STATUS_OK);
    CHECK_INT(made->control->ops->dial(made->control, "10.0.0.1", "29600", &made->connection),
              STATUS_OK);
    rig_settle(rig);
    CHECK(made->opened);
}

void side_join(struct rig *rig, int side, enum job_role role, uint32_t shards, const char *given) {
    char copy[512], host[16], *names[16], *values[16];
    Rubato__Pair pairs[16], *pointers[16];
    Rubato__Join join = RUBATO__JOIN__INIT;
    (void)snprintf(host, sizeof host, "h%d", side);
    (void)snprintf(copy, sizeof copy, "%s", given);
    join.n_given = rig_split(copy, names, values, 16);
    for (size_t i = 0; i < join.n_given; i++) {
        rubato__pair__init(&pairs[i]);
        pairs[i].name = names[i];
        pairs[i].value = values[i];
        pointers[i] = &pairs[i];
    }
    join.protocol = 1;
    join.role = role;
    join.host = host;
    join.pid = 100 + (uint64_t)side;
    join.shards = shards;
    join.given = pointers;
    if (rig->sides[side].control == NULL) {
        side_dial(rig, side);
    }
    SIDE_SAY(rig, side, JOIN, join, &join);
}

void side_send_raw(struct rig *rig, int side, const char *bytes, size_t count) {
    struct side *from = &rig->sides[side];
    CHECK_INT(
        from->control->ops->send(from->control, from->connection, (const uint8_t *)bytes, count),
        STATUS_OK);
    rig_settle(rig);
}

void side_leave(struct rig *rig, int side, const char *reason) {
    Rubato__Leave leave = RUBATO__LEAVE__INIT;
    leave.reason = (char *)reason;
    leave.exit_code = 74;
    SIDE_SAY(rig, side, LEAVE, leave, &leave);
}

void side_depart(struct rig *rig, int side, uint64_t tokens) {
    Rubato__Leave leave = RUBATO__LEAVE__INIT;
    leave.reason = (char *)"it was asked to leave";
    leave.tokens = tokens;
    SIDE_SAY(rig, side, LEAVE, leave, &leave);
}

void side_pace(struct rig *rig, int side, uint64_t step, double speed) {
    Rubato__Beat beat = RUBATO__BEAT__INIT;
    beat.step = step;
    beat.speed = speed;
    SIDE_SAY(rig, side, BEAT, beat, &beat);
}

void side_arrived(struct rig *rig, int side, uint64_t round, uint64_t shard, uint32_t rank,
                  uint64_t seq) {
    Rubato__Arrived arrived = RUBATO__ARRIVED__INIT;
    arrived.round = round;
    arrived.shard = shard;
    arrived.rank = rank;
    arrived.seq = seq;
    SIDE_SAY(rig, side, ARRIVED, arrived, &arrived);
}

void side_change(struct rig *rig, int side, Rubato__Change__Stage stage, uint64_t step) {
    Rubato__Change change = RUBATO__CHANGE__INIT;
    change.stage = stage;
    change.step = step;
    SIDE_SAY(rig, side, CHANGE, change, &change);
}

void side_set(struct rig *rig, int side, const char *mode) {
    Rubato__Set set = RUBATO__SET__INIT;
    set.mode = (char *)mode;
    side_dial(rig, side);
    SIDE_SAY(rig, side, SET, set, &set);
}

void side_drop(struct rig *rig, int side) {
    rig->sides[side].control->ops->close(rig->sides[side].control, 0);
    memset(&rig->sides[side], 0, sizeof rig->sides[side]);
    rig_settle(rig);
}

void side_expect_end(const struct rig *rig, int side, uint32_t exit_code, const char *reason) {
    const struct side *ended = &rig->sides[side];
    CHECK_INT(ended->got[RUBATO__MESSAGE__BODY_END], 1);
    CHECK_TEXT(ended->reason, reason);
    CHECK_INT(ended->exit_code, exit_code);
    CHECK(ended->closed);
}

void rig_expect_end(const struct rig *rig, int except, uint32_t exit_code, const char *reason) {
    CHECK_INT(rig->coordinator.phase, COORDINATOR_ENDED);
    CHECK_INT(rig->coordinator.exit_code, exit_code);
    CHECK_TEXT(rig->coordinator.reason, reason);
    for (int side = 0; side < PEERS; side++) {
        if (side != except) {
            side_expect_end(rig, side, exit_code, reason);
        }
    }
}

void rig_expect_all(const struct rig *rig, Rubato__Message__BodyCase kind, uint32_t times) {
    for (int side = 0; side < PEERS; side++) {
        CHECK_INT(rig->sides[side].got[kind], times);
    }
}

/* ---- from Join to Go ---- */

const struct tensor rig_tensors[2] = {
    {.name = "w", .dims = 2, .shape = {60, 2}, .decay = true},
    {.name = "b", .dims = 1, .shape = {3}},
};

void side_ready(struct rig *rig, int side, uint64_t wrong) {
    struct tensor_list list = {0};
    Rubato__Ready ready = RUBATO__READY__INIT;
    ready.tensor_digest = plan_tensor_digest(rig_tensors, 2) + wrong;
    if (side == WORKER_0) {
        tensor_list_pack(rig_tensors, 2, &list);
        ready.n_tensors = 2;
        ready.tensors = list.pointers;
    }
    SIDE_SAY(rig, side, READY, ready, &ready);
    tensor_list_free(&list);
}

void side_arm(struct rig *rig, int side, uint64_t wrong, uint32_t addresses) {
    struct plan plan;
    char texts[4][16];
    ProtobufCBinaryData data[4];
    Rubato__Armed armed = RUBATO__ARMED__INIT;
    struct plan_options options =
        job_plan_options(&rig->coordinator.job, rig->sides[side].shard_count);
    CHECK_INT(plan_build(&plan, rig_tensors, 2, &options), STATUS_OK);
    armed.plan_digest = plan.digest + wrong;
    plan_free(&plan);
    CHECK(addresses <= 4);
    for (uint32_t i = 0; i < addresses; i++) {
        data[i].len = (size_t)snprintf(texts[i], sizeof texts[i], "a%d-%u", side, i);
        data[i].data = (uint8_t *)texts[i];
    }
    armed.n_addresses = addresses;
    armed.addresses = data;
    SIDE_SAY(rig, side, ARMED, armed, &armed);
}

void side_connected(struct rig *rig, int side) {
    Rubato__Connected connected = RUBATO__CONNECTED__INIT;
    SIDE_SAY(rig, side, CONNECTED, connected, &connected);
}

void side_report(struct rig *rig, int side, const struct vote_report *report) {
    Rubato__Report wire = RUBATO__REPORT__INIT;
    wire.round = report->round;
    wire.shard = report->shard;
    wire.contributors = report->contributors;
    wire.weight = report->weight;
    wire.nonfinite = report->nonfinite;
    wire.n_blocks = wire.n_sums_of_squares = (size_t)report->block_count;
    wire.blocks = (uint64_t *)report->blocks;
    wire.sums_of_squares = (double *)report->sums_of_squares;
    SIDE_SAY(rig, side, REPORT, report, &wire);
}

void side_done(struct rig *rig, int side, uint64_t tokens) {
    Rubato__Done done = RUBATO__DONE__INIT;
    done.tokens = tokens;
    SIDE_SAY(rig, side, DONE, done, &done);
}

void side_saved(struct rig *rig, int side) {
    Rubato__Saved saved = RUBATO__SAVED__INIT;
    SIDE_SAY(rig, side, SAVED, saved, &saved);
}

void rig_open_at(struct rig *rig, const char *own, enum coordinator_phase phase) {
    rig_open(rig, own);
    if (phase >= COORDINATOR_ASSIGNED) {
        side_join(rig, SERVER, JOB_SERVER, 2, "");
        side_join(rig, WORKER_0, JOB_WORKER, 0, "");
        side_join(rig, WORKER_1, JOB_WORKER, 0, "");
    }
    for (int side = 0; side < PEERS && phase >= COORDINATOR_PLANNED; side++) {
        side_ready(rig, side, 0);
    }
    for (int side = 0; side < PEERS && phase >= COORDINATOR_STARTED; side++) {
        side_arm(rig, side, 0, side == SERVER ? 2 : 1);
    }
    for (int side = 0; side < PEERS && phase >= COORDINATOR_RUNNING; side++) {
        side_connected(rig, side);
    }
    CHECK_INT(rig->coordinator.phase, phase);
}
