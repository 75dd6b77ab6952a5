/* Proves the member's state machine: back-off within its bounds, the waiting lines and their
 * timing, the join deadline, the lease, the Beats' cadence, what becomes of every way a connection
 * can end, of End, of Assign with good and bad options and of messages out of turn, and that
 * nothing is allocated after member_init().
 * How: a control object made by hand (struct fake), whose events the test scripts and whose sends
 * and dials it records, in virtual time. The log is read back from a file in standard error's
 * place. One case runs over TCP with a tiny coordinator.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "fake_control.h"
#include "log_capture.h"
#include "test.h"
#include "transport/control_tcp.h"
#include "transport/member.h"

#include <poll.h>
#include <unistd.h>

#define START_NS (500 * CLOCK_S)

static const struct control_ops fake_ops = {.name = "fake",
                                            .dial = fake_dial,
                                            .send = fake_send,
                                            .poll = fake_poll,
                                            .hang_up = fake_hang_up};

/* A member with its options and its fake network. */
struct rig {
    struct fake fake;
    struct member member;
    struct job job;
    struct options options;
    int64_t now_ns;
    const Rubato__Message *got;
};

static void rig_open(struct rig *rig) {
    memset(rig, 0, sizeof(*rig));
    rig->fake.control.ops = &fake_ops;
    rig->now_ns = START_NS;
    options_init(&rig->options, job_table, job_table_count, &rig->job);
    rig->job.lease = 5;
    rig->job.join_timeout = 60;
    const struct member_config config = {.control = &rig->fake.control,
                                         .options = &rig->options,
                                         .role = JOB_WORKER,
                                         .host = "h",
                                         .port = "7",
                                         .seed = 3};
    CHECK_INT(member_init(&rig->member, &config, rig->now_ns), STATUS_OK);
    memory_forbid(true);
    log_restart();
}

static void rig_close(struct rig *rig) {
    memory_forbid(false);
    member_free(&rig->member);
}

static void script(struct rig *rig, const struct control_event *event) {
    CHECK(rig->fake.event_count < 16);
    rig->fake.events[rig->fake.event_count] = *event;
    rig->fake.events[rig->fake.event_count].connection = rig->fake.dials - 1;
    rig->fake.event_count++;
}

static void script_opened(struct rig *rig) {
    script(rig, &(struct control_event){.kind = CONTROL_OPENED, .text = "1.2.3.4:7"});
}

static void script_closed(struct rig *rig, enum status status, const char *text) {
    script(rig, &(struct control_event){.kind = CONTROL_CLOSED, .status = status, .text = text});
}

static void script_message(struct rig *rig, const Rubato__Message *message) {
    uint8_t *packet = rig->fake.packets[rig->fake.event_count];
    size_t bytes = 0;
    CHECK_INT(message_pack(message, packet, sizeof(rig->fake.packets[0]), &bytes), STATUS_OK);
    script(rig, &(struct control_event){
                    .kind = CONTROL_PACKET, .packet = packet, .packet_bytes = bytes});
}

static void script_waiting(struct rig *rig, const char *missing) {
    Rubato__Waiting waiting = RUBATO__WAITING__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    waiting.missing = (char *)missing;
    message.body_case = RUBATO__MESSAGE__BODY_WAITING;
    message.waiting = &waiting;
    script_message(rig, &message);
}

static void script_end(struct rig *rig, const char *reason, uint32_t exit_code) {
    Rubato__End end = RUBATO__END__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    end.reason = (char *)reason;
    end.exit_code = exit_code;
    message.body_case = RUBATO__MESSAGE__BODY_END;
    message.end = &end;
    script_message(rig, &message);
}

static void script_beat(struct rig *rig, uint64_t tokens) {
    Rubato__Beat beat = RUBATO__BEAT__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    beat.tokens = tokens;
    message.body_case = RUBATO__MESSAGE__BODY_BEAT;
    message.beat = &beat;
    script_message(rig, &message);
}

static void script_assign(struct rig *rig, const char *name, const char *value) {
    Rubato__Pair pair = RUBATO__PAIR__INIT;
    Rubato__Pair *pairs[1] = {&pair};
    Rubato__Assign assign = RUBATO__ASSIGN__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    pair.name = (char *)name;
    pair.value = (char *)value;
    assign.job = 11;
    assign.epoch = 12;
    assign.session = 13;
    assign.index = 14;
    assign.first_shard = 15;
    assign.shard_count = 16;
    assign.n_agreed = 1;
    assign.agreed = pairs;
    message.body_case = RUBATO__MESSAGE__BODY_ASSIGN;
    message.assign = &assign;
    script_message(rig, &message);
}

static void script_bare(struct rig *rig, Rubato__Message__BodyCase body) {
    Rubato__Go go = RUBATO__GO__INIT;
    Rubato__Drained drained = RUBATO__DRAINED__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    message.body_case = body;
    if (body == RUBATO__MESSAGE__BODY_GO) {
        message.go = &go;
    } else {
        message.drained = &drained;
    }
    script_message(rig, &message);
}

/* Polls at the present time until NULL; the last message is in got. */
static void poll_all(struct rig *rig) {
    const Rubato__Message *message;
    rig->got = NULL;
    while ((message = member_poll(&rig->member, rig->now_ns)) != NULL) {
        rig->got = message;
    }
}

/* Lets `ns` pass, stopping at every deadline that the member names. */
static void pass(struct rig *rig, int64_t ns) {
    int64_t until_ns = rig->now_ns + ns;
    for (int i = 0; i < 100000; i++) {
        int64_t next_ns = member_deadline_ns(&rig->member);
        rig->now_ns = next_ns < until_ns ? next_ns : until_ns;
        poll_all(rig);
        if (rig->now_ns == until_ns) return;
        // A deadline in the past that polling does not move would be a busy loop.
        CHECK(member_deadline_ns(&rig->member) > rig->now_ns);
    }
    CHECK(false);
}

static void join(struct rig *rig) {
    rig_open(rig);
    poll_all(rig);
    CHECK_INT(rig->fake.dials, 1);
    script_opened(rig);
    poll_all(rig);
    CHECK_INT(rig->member.state, MEMBER_JOINING);
    CHECK_INT(rig->fake.sent[RUBATO__MESSAGE__BODY_JOIN], 1);
}

static void activate(struct rig *rig) {
    join(rig);
    script_assign(rig, "lease", "4");
    poll_all(rig);
    CHECK_INT(rig->member.state, MEMBER_ACTIVE);
    CHECK(rig->got != NULL && rig->got->body_case == RUBATO__MESSAGE__BODY_ASSIGN);
}

static void check_ended(struct rig *rig, int exit_code, const char *reason) {
    uint32_t hang_ups = rig->fake.hang_ups;
    CHECK_INT(rig->member.state, MEMBER_ENDED);
    CHECK_INT(rig->member.exit_code, exit_code);
    if (strstr(rig->member.reason, reason) == NULL) {
        dprintf(error_fd, "reason: %s\n", rig->member.reason);
        CHECK(false);
    }
    CHECK(member_deadline_ns(&rig->member) == INT64_MAX);
    rig->now_ns += 1000 * CLOCK_S;
    poll_all(rig);
    CHECK(rig->got == NULL && rig->fake.hang_ups == hang_ups);
    rig_close(rig);
}

/* Every dial is refused at once: the pauses double from 0.2 s to one lease, within the jitter. */
static void test_backoff(void) {
    struct rig rig;
    double pause_s = 0.2;
    int exact = 0;
    rig_open(&rig);
    poll_all(&rig);
    for (uint32_t dials = 1; dials < 12; dials++) {
        CHECK_INT(rig.fake.dials, dials);
        script_closed(&rig, STATUS_PEER_LOST, "connection refused");
        poll_all(&rig);
        CHECK_INT(rig.member.state, MEMBER_DIALING);
        double passed_s = (double)(rig.member.dial_at_ns - rig.now_ns) / (double)CLOCK_S;
        CHECK(passed_s >= 0.749 * pause_s && passed_s <= 1.251 * pause_s);
        exact += fabs(passed_s - pause_s) < 1e-9;
        rig.now_ns = rig.member.dial_at_ns - 1;
        poll_all(&rig);
        CHECK_INT(rig.fake.dials, dials);
        rig.now_ns++;
        poll_all(&rig);
        pause_s = pause_s * 2 < 5 ? pause_s * 2 : 5;
    }
    CHECK(exact < 11); // there is a jitter
    rig_close(&rig);
}

static void test_waiting_lines(void) {
    struct rig rig;
    rig_open(&rig);
    poll_all(&rig);
    script_closed(&rig, STATUS_PEER_LOST, "connection refused");
    pass(&rig, 900 * CLOCK_MS);
    EXPECT_LOG("waiting", 0);
    pass(&rig, 1100 * CLOCK_MS); // within 2 s
    EXPECT_LOG("waiting for the coordinator at h:7 (connection refused), 59 s left", 1);
    pass(&rig, 8900 * CLOCK_MS);
    EXPECT_LOG("waiting", 1);
    pass(&rig, 200 * CLOCK_MS);
    EXPECT_LOG("waiting for the coordinator at h:7 (connection refused), 49 s left", 1);
    script_opened(&rig);
    script_waiting(&rig, "1 of 2 servers, 2 of 2 workers");
    poll_all(&rig);
    EXPECT_LOG("waiting for 1 of 2 servers, 2 of 2 workers (coordinator h:7)", 1);
    for (int i = 0; i < 4; i++) {
        pass(&rig, 2 * CLOCK_S);
        script_waiting(&rig, "1 of 2 servers, 2 of 2 workers");
        poll_all(&rig);
    }
    EXPECT_LOG("waiting for 1 of 2", 1); // no change, 8 s
    script_waiting(&rig, "1 of 2 workers\n\x1b[31m");
    poll_all(&rig);
    EXPECT_LOG("waiting for 1 of 2 workers??[31m (coordinator h:7)", 1);
    for (int i = 0; i < 3; i++) {
        pass(&rig, 3400 * CLOCK_MS);
        script_beat(&rig, 0);
        poll_all(&rig);
    }
    EXPECT_LOG("waiting for 1 of 2 workers", 2);
    rig_close(&rig);
}

static void test_join_deadline(void) {
    struct rig rig;
    rig_open(&rig);
    rig.fake.dial_status = STATUS_IO;
    pass(&rig, 60 * CLOCK_S - 1);
    CHECK_INT(rig.member.state, MEMBER_DIALING);
    CHECK(rig.fake.dials > 10 && rig.fake.dials < 30);
    pass(&rig, 1);
    EXPECT_LOG("error no coordinator at h:7 within 60 s", 1);
    check_ended(&rig, EXIT_CODE_UNREACHABLE, "no coordinator at h:7 within 60 s");

    join(&rig); // joined, but the others do not come
    script_waiting(&rig, "1 of 2 workers");
    for (int i = 0; i < 59; i++) {
        pass(&rig, CLOCK_S);
        script_beat(&rig, 0);
    }
    CHECK_INT(rig.member.state, MEMBER_JOINING);
    pass(&rig, CLOCK_S);
    CHECK_INT(rig.fake.hang_ups, 1);
    check_ended(&rig, EXIT_CODE_UNREACHABLE, "waiting for 1 of 2 workers");

    activate(&rig); // assigned, but Go does not come; the deadline is counted from the start
    for (int i = 0; i < 59; i++) {
        pass(&rig, CLOCK_S);
        script_beat(&rig, 0);
    }
    CHECK_INT(rig.member.state, MEMBER_ACTIVE);
    pass(&rig, CLOCK_S);
    check_ended(&rig, EXIT_CODE_UNREACHABLE, "did not start within 60 s: waiting for all members");

    activate(&rig); // Go lifts it
    script_bare(&rig, RUBATO__MESSAGE__BODY_GO);
    poll_all(&rig);
    CHECK(rig.got != NULL && rig.got->body_case == RUBATO__MESSAGE__BODY_GO);
    for (int i = 0; i < 100; i++) {
        pass(&rig, CLOCK_S);
        script_beat(&rig, 0);
    }
    CHECK_INT(rig.member.state, MEMBER_ACTIVE);
    EXPECT_LOG("waiting", 0);
    rig_close(&rig);
}

/* The Join says who we are and only what our user gave. */
static void test_join_content(void) {
    struct rig rig;
    struct message_scratch scratch;
    const Rubato__Message *message;
    char why[128];
    rig_open(&rig);
    CHECK_INT(options_set(&rig.options, options_find(&rig.options, "steps"), "123", ORIGIN_FLAG,
                          why, sizeof(why)),
              STATUS_OK);
    poll_all(&rig);
    script_opened(&rig);
    poll_all(&rig);
    memory_forbid(false);
    CHECK_INT(message_scratch_init(&scratch, MESSAGE_MAX), STATUS_OK);
    CHECK_INT(message_unpack(&scratch, rig.fake.last, rig.fake.last_bytes, &message), STATUS_OK);
    CHECK_INT(message->body_case, RUBATO__MESSAGE__BODY_JOIN);
    CHECK_INT(message->join->protocol, 1);
    CHECK_INT(message->join->role, JOB_WORKER);
    CHECK_INT(message->join->pid, getpid());
    CHECK(message->join->host[0] != 0 && message->join->build[0] != 0);
    CHECK_INT(message->join->n_given, 1);
    CHECK_TEXT(message->join->given[0]->name, "steps");
    CHECK_TEXT(message->join->given[0]->value, "123");
    message_scratch_free(&scratch);
    rig_close(&rig);
}

static void test_assign(void) {
    struct rig rig;
    activate(&rig);
    CHECK_NEAR(rig.job.lease, 4, 0);
    CHECK_INT(rig.member.job, 11);
    CHECK_INT(rig.member.epoch, 12);
    CHECK_INT(rig.member.session, 13);
    CHECK_INT(rig.member.index, 14);
    CHECK_INT(rig.member.first_shard, 15);
    CHECK_INT(rig.member.shard_count, 16);
    script_assign(&rig, "lease", "4"); // twice is once too often
    poll_all(&rig);
    check_ended(&rig, EXIT_CODE_PROTOCOL, "out of turn: assign");

    join(&rig);
    script_assign(&rig, "no-such-option", "1");
    poll_all(&rig);
    CHECK(rig.got == NULL);
    check_ended(&rig, EXIT_CODE_MISMATCH, "do not suit");

    char value[300];
    memset(value, '1', sizeof(value));
    value[sizeof(value) - 1] = 0;
    join(&rig);
    script_assign(&rig, "lease", value);
    poll_all(&rig);
    check_ended(&rig, EXIT_CODE_PROTOCOL, "too long");
}

/* Beats come every tenth of the lease that Assign brought, with the owner's numbers. */
static void test_beats(void) {
    struct rig rig;
    activate(&rig);
    uint32_t *beats = &rig.fake.sent[RUBATO__MESSAGE__BODY_BEAT];
    CHECK_INT(*beats, 1);
    for (int i = 1; i <= 20; i++) {
        pass(&rig, 400 * CLOCK_MS - 1);
        CHECK_INT(*beats, i);
        script_beat(&rig, (uint64_t)i * 1000);
        pass(&rig, 1);
        CHECK_INT(*beats, i + 1);
        CHECK_INT(rig.member.job_tokens, i * 1000);
    }
    rig.fake.send_status = STATUS_AGAIN; // a full queue is nothing
    pass(&rig, CLOCK_S);
    CHECK_INT(rig.member.state, MEMBER_ACTIVE);
    rig_close(&rig);
}

static void test_lease(void) {
    struct rig rig;
    activate(&rig);
    pass(&rig, 4 * CLOCK_S - 1);
    CHECK_INT(rig.member.state, MEMBER_ACTIVE);
    script_beat(&rig, 0);
    poll_all(&rig);
    pass(&rig, 4 * CLOCK_S - 1);
    CHECK_INT(rig.member.state, MEMBER_ACTIVE);
    pass(&rig, 1);
    EXPECT_LOG("error coordinator h:7 silent for 4.0 s (lease)", 1);
    CHECK_INT(rig.fake.hang_ups, 1);
    check_ended(&rig, EXIT_CODE_UNREACHABLE, "coordinator h:7 silent for 4.0 s (lease)");

    join(&rig);
    pass(&rig, 5 * CLOCK_S);
    check_ended(&rig, EXIT_CODE_UNREACHABLE, "silent for 5.0 s");

    activate(&rig); // we slept: what came in meanwhile counts
    script_beat(&rig, 5);
    rig.now_ns += 30 * CLOCK_S;
    poll_all(&rig);
    CHECK_INT(rig.member.state, MEMBER_ACTIVE);
    rig_close(&rig);
}

static void test_closed(void) {
    struct rig rig;
    activate(&rig);
    script_closed(&rig, STATUS_PEER_LOST, "connection reset by peer");
    poll_all(&rig);
    EXPECT_LOG("error coordinator h:7 lost: connection reset by peer", 1);
    check_ended(&rig, EXIT_CODE_UNREACHABLE, "coordinator h:7 lost: connection reset by peer");

    rig_open(&rig);
    poll_all(&rig);
    script_closed(&rig, STATUS_DENIED, "key does not match");
    poll_all(&rig);
    check_ended(&rig, EXIT_CODE_DENIED, "key does not match");

    rig_open(&rig);
    poll_all(&rig);
    script_closed(&rig, STATUS_CORRUPT, "does not speak our protocol");
    poll_all(&rig);
    check_ended(&rig, EXIT_CODE_PROTOCOL, "does not speak our protocol");

    join(&rig); // lost before Assign: dialled again
    script_closed(&rig, STATUS_PEER_LOST, "closed by the other side");
    poll_all(&rig);
    CHECK_INT(rig.member.state, MEMBER_DIALING);
    pass(&rig, CLOCK_S);
    CHECK_INT(rig.fake.dials, 2);
    script_opened(&rig);
    poll_all(&rig);
    CHECK_INT(rig.member.state, MEMBER_JOINING);
    CHECK_INT(rig.fake.sent[RUBATO__MESSAGE__BODY_JOIN], 2);
    rig_close(&rig);
}

static void test_end(void) {
    struct rig rig;
    activate(&rig);
    script_end(&rig, "lr: 0.1 is not 0.2\nsteps: 1 is not 2\n", EXIT_CODE_MISMATCH);
    script_beat(&rig, 9); // what comes behind it is nothing to us
    poll_all(&rig);
    EXPECT_LOG("error lr: 0.1 is not 0.2\n", 1);
    EXPECT_LOG("error steps: 1 is not 2\n", 1);
    CHECK_INT(rig.member.job_tokens, 0);
    CHECK_INT(rig.fake.hang_ups, 1);
    check_ended(&rig, EXIT_CODE_MISMATCH, "lr: 0.1 is not 0.2\nsteps: 1 is not 2\n");

    join(&rig);
    script_end(&rig, "", 0);
    poll_all(&rig);
    EXPECT_LOG("error", 0);
    check_ended(&rig, 0, "");

    activate(&rig);
    script_end(&rig, "", 70);
    poll_all(&rig);
    EXPECT_LOG("error coordinator h:7 ended the job with exit code 70", 1);
    check_ended(&rig, 70, "ended the job");
}

static void test_out_of_turn(void) {
    struct rig rig;
    join(&rig);
    script_bare(&rig, RUBATO__MESSAGE__BODY_GO);
    poll_all(&rig);
    CHECK(rig.got == NULL);
    check_ended(&rig, EXIT_CODE_PROTOCOL, "out of turn: go");

    activate(&rig);
    script(&rig, &(struct control_event){.kind = CONTROL_PACKET,
                                         .packet = (const uint8_t *)"\xff\xff",
                                         .packet_bytes = 2});
    poll_all(&rig);
    check_ended(&rig, EXIT_CODE_PROTOCOL, "cannot be read");

    activate(&rig); // the owner's messages, one a call
    script_bare(&rig, RUBATO__MESSAGE__BODY_GO);
    script_bare(&rig, RUBATO__MESSAGE__BODY_DRAINED);
    const Rubato__Message *first = member_poll(&rig.member, rig.now_ns);
    CHECK(first != NULL && first->body_case == RUBATO__MESSAGE__BODY_GO);
    const Rubato__Message *second = member_poll(&rig.member, rig.now_ns);
    CHECK(second != NULL && second->body_case == RUBATO__MESSAGE__BODY_DRAINED);
    CHECK(member_poll(&rig.member, rig.now_ns) == NULL);
    rig_close(&rig);
}

static void test_leave(void) {
    struct rig rig;
    Rubato__Done done = RUBATO__DONE__INIT;
    Rubato__Message message = RUBATO__MESSAGE__INIT;
    message.body_case = RUBATO__MESSAGE__BODY_DONE;
    message.done = &done;
    activate(&rig);
    CHECK_INT(member_send(&rig.member, &message), STATUS_OK);
    member_leave(&rig.member, "interrupted", 130);
    CHECK_INT(rig.fake.sent[RUBATO__MESSAGE__BODY_LEAVE], 1);
    CHECK_INT(rig.fake.hang_ups, 1);
    CHECK_INT(member_send(&rig.member, &message), STATUS_PEER_LOST);
    check_ended(&rig, 130, "interrupted");

    rig_open(&rig); // while a dial is under way there is nobody to tell
    poll_all(&rig);
    member_leave(&rig.member, "interrupted", 130);
    CHECK_INT(rig.fake.sent[RUBATO__MESSAGE__BODY_LEAVE], 0);
    CHECK_INT(rig.fake.hang_ups, 1);
    check_ended(&rig, 130, "interrupted");
}

/* The same over TCP: a coordinator that answers the Join with Waiting, Assign and End. */
static void test_over_tcp(void) {
    struct rig rig;
    struct control *coordinator, *control;
    struct control_event event;
    char port[8];
    int joins = 0;
    rig_open(&rig);
    memory_forbid(false);
    CHECK_INT(control_tcp_open(&coordinator, NULL), STATUS_OK);
    CHECK_INT(coordinator->ops->listen(coordinator, "127.0.0.1", "0"), STATUS_OK);
    CHECK_INT(control_tcp_open(&control, NULL), STATUS_OK);
    snprintf(port, sizeof(port), "%u", control_tcp_port(coordinator));
    rig.member.config.control = control;
    rig.member.config.host = "localhost";
    rig.member.config.port = port;
    for (int i = 0; i < 20000 && rig.member.state != MEMBER_ENDED; i++) {
        poll_all(&rig);
        while (coordinator->ops->poll(coordinator, rig.now_ns, &event)) {
            if (event.kind != CONTROL_PACKET || joins++ > 0) continue;
            script_waiting(&rig, "1 of 1 servers");
            script_assign(&rig, "lease", "4");
            script_end(&rig, "enough", 3);
            for (int n = 0; n < 3; n++) {
                CHECK_INT(coordinator->ops->send(coordinator, event.connection,
                                                 rig.fake.events[n].packet,
                                                 rig.fake.events[n].packet_bytes),
                          STATUS_OK);
            }
        }
        struct pollfd fds[2] = {{.fd = control->ops->wait_fd(control), .events = POLLIN},
                                {.fd = coordinator->ops->wait_fd(coordinator), .events = POLLIN}};
        poll(fds, 2, 1);
    }
    CHECK(joins >= 1);
    CHECK_INT(rig.member.session, 13);
    CHECK_INT(rig.member.exit_code, 3);
    CHECK_TEXT(rig.member.reason, "enough");
    control->ops->close(control, 0);
    coordinator->ops->close(coordinator, 0);
    rig_close(&rig);
}

int main(void) {
    log_capture();
    TEST_RUN(test_backoff);
    TEST_RUN(test_waiting_lines);
    TEST_RUN(test_join_deadline);
    TEST_RUN(test_join_content);
    TEST_RUN(test_assign);
    TEST_RUN(test_beats);
    TEST_RUN(test_lease);
    TEST_RUN(test_closed);
    TEST_RUN(test_end);
    TEST_RUN(test_out_of_turn);
    TEST_RUN(test_leave);
    TEST_RUN(test_over_tcp);
    return 0;
}
