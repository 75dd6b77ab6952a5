/* Proves the coordinator's way from the first Join to Go: what each phase waits for and tells, and
 * who is turned away or ends the job, with which words and exit code.
 *
 * One struct coordinator on the simulated network, with peers made by hand (coordinator_rig.h) that
 * say what the test wants, also what no real peer would. Texts that users read are compared whole.
 */
#include "base/log.h"
#include "tests/coordinator_rig.h"
#include "tests/test.h"

#define OWN "workers=2 block-values=64"

/* ---- the way as it should be ---- */

static void test_phases(void) {
    static struct rig rig;
    rig_open(&rig, OWN " lr=0.25");
    side_join(&rig, SERVER, JOB_SERVER, 2, "");
    side_join(&rig, WORKER_0, JOB_WORKER, 0, "push=int8");
    CHECK_INT(rig.coordinator.phase, COORDINATOR_GATHERING);
    CHECK_INT(rig.sides[WORKER_0].got[RUBATO__MESSAGE__BODY_ASSIGN], 0);
    side_join(&rig, WORKER_1, JOB_WORKER, 0, "push=int8 lr=2.5e-1");
    CHECK_INT(rig.coordinator.phase, COORDINATOR_ASSIGNED);
    rig_expect_all(&rig, RUBATO__MESSAGE__BODY_ASSIGN, 1);
    for (int side = 0; side < PEERS; side++) {
        const struct side *peer = &rig.sides[side];
        CHECK_INT(peer->index, side == WORKER_1 ? 1 : 0);
        CHECK_INT(peer->shard_count, 2);
        CHECK_INT(peer->epoch, rig.sides[0].epoch);
        CHECK(peer->job == rig.sides[0].job && peer->job != 0 && peer->session != 0);
        CHECK_TEXT(peer->lr, "0.25");
        CHECK_TEXT(peer->push, "int8");
    }
    CHECK(rig.sides[0].session != rig.sides[1].session);
    CHECK(rig.sides[1].session != rig.sides[2].session);
    side_ready(&rig, WORKER_0, 0);
    side_ready(&rig, WORKER_1, 0);
    rig_expect_all(&rig, RUBATO__MESSAGE__BODY_TENSORS, 0);
    side_ready(&rig, SERVER, 0);
    rig_expect_all(&rig, RUBATO__MESSAGE__BODY_TENSORS, 1);
    CHECK_INT(rig.sides[SERVER].tensors, 2);
    side_arm(&rig, WORKER_1, 0, 1);
    side_arm(&rig, SERVER, 0, 2);
    rig_expect_all(&rig, RUBATO__MESSAGE__BODY_START, 0);
    side_arm(&rig, WORKER_0, 0, 1);
    rig_expect_all(&rig, RUBATO__MESSAGE__BODY_START, 1);
    for (int side = 0; side < PEERS; side++) {
        CHECK_TEXT(rig.sides[side].start, "server 0 (h0:100) a0-0 1, server 0 (h0:100) a0-1 1, "
                                          "worker 0 (h1:101) a1-0 1, worker 1 (h2:102) a2-0 1, ");
    }
    side_connected(&rig, SERVER);
    side_connected(&rig, WORKER_1);
    rig_expect_all(&rig, RUBATO__MESSAGE__BODY_GO, 0);
    side_connected(&rig, WORKER_0);
    rig_expect_all(&rig, RUBATO__MESSAGE__BODY_GO, 1);
    CHECK_INT(rig.coordinator.phase, COORDINATOR_RUNNING);
    rig_close(&rig);
}

/* Shards are numbered over the servers in order of their index, whoever comes first. */
static void test_shard_numbers(void) {
    static struct rig rig;
    rig_open(&rig, "servers=3");
    side_join(&rig, 3, JOB_WORKER, 0, "");
    side_join(&rig, 2, JOB_SERVER, 3, "");
    side_join(&rig, 0, JOB_SERVER, 1, "");
    side_join(&rig, 1, JOB_SERVER, 2, "");
    static const uint64_t first_shards[] = {3, 4, 0};
    static const uint32_t indices[] = {1, 2, 0};
    for (int side = 0; side < 3; side++) {
        CHECK_INT(rig.sides[side].first_shard, first_shards[side]);
        CHECK_INT(rig.sides[side].index, indices[side]);
        CHECK_INT(rig.sides[side].shard_count, 6);
    }
    rig_close(&rig);
}

/* What comes before its time, or twice, changes nothing. */
static void test_out_of_turn(void) {
    static struct rig rig;
    rig_open_at(&rig, OWN, COORDINATOR_ASSIGNED);
    side_connected(&rig, WORKER_0);
    side_done(&rig, WORKER_0, 0);
    side_saved(&rig, WORKER_0);
    side_arm(&rig, WORKER_0, 99, 4);
    for (int i = 0; i < 3; i++) {
        side_ready(&rig, SERVER, 0);
        side_ready(&rig, WORKER_0, 0);
    }
    side_join(&rig, WORKER_0, JOB_WORKER, 0, "lr=7"); /* it is in already */
    CHECK_INT(rig.coordinator.phase, COORDINATOR_ASSIGNED);
    side_ready(&rig, WORKER_1, 0);
    CHECK_INT(rig.coordinator.phase, COORDINATOR_PLANNED);
    side_ready(&rig, WORKER_1, 99);
    for (int i = 0; i < 3; i++) {
        side_arm(&rig, SERVER, 0, 2);
        side_arm(&rig, WORKER_1, 0, 1);
        side_connected(&rig, SERVER);
    }
    side_arm(&rig, SERVER, 99, 2); /* also if it says something else now */
    CHECK_INT(rig.coordinator.phase, COORDINATOR_PLANNED);
    side_arm(&rig, WORKER_0, 0, 1);
    CHECK_INT(rig.coordinator.phase, COORDINATOR_STARTED);
    side_connected(&rig, SERVER);
    side_connected(&rig, SERVER);
    side_connected(&rig, WORKER_0);
    side_done(&rig, WORKER_1, 0);
    CHECK_INT(rig.coordinator.phase, COORDINATOR_STARTED);
    rig_expect_all(&rig, RUBATO__MESSAGE__BODY_START, 1);
    rig_expect_all(&rig, RUBATO__MESSAGE__BODY_END, 0);
    rig_close(&rig);
}

/* ---- options ---- */

/* While gathering nobody can tell who is right: the job ends, with the diff for everyone. */
static void test_conflict(void) {
    static struct rig rig;
    const char *diff = "push: bf16 (worker on h1:101) is not int8 (worker on h2:102)\n"
                       "lr: 0.001 (worker on h1:101) is not 0.002 (worker on h2:102)";
    rig_open(&rig, OWN);
    side_join(&rig, SERVER, JOB_SERVER, 2, "");
    side_join(&rig, WORKER_0, JOB_WORKER, 0, "lr=0.001 push=bf16 clip=2");
    side_join(&rig, WORKER_1, JOB_WORKER, 0, "push=int8 clip=2.0 lr=2e-3");
    rig_expect_end(&rig, -1, EXIT_CODE_MISMATCH, diff);
    side_join(&rig, LATE, JOB_WORKER, 0, ""); /* nobody gets in any more */
    CHECK_INT(rig.sides[LATE].got[RUBATO__MESSAGE__BODY_ASSIGN], 0);
    rig_close(&rig);
}

static void test_conflict_with_the_coordinator(void) {
    static struct rig rig;
    rig_open(&rig, OWN " lr=0.5");
    side_join(&rig, SERVER, JOB_SERVER, 2, "");
    side_join(&rig, WORKER_0, JOB_WORKER, 0, "lr=0.5");
    side_join(&rig, WORKER_1, JOB_WORKER, 0, "lr=0.6");
    rig_expect_end(&rig, -1, EXIT_CODE_MISMATCH,
                   "lr: 0.5 (the coordinator) is not 0.6 (worker on h2:102)");
    rig_close(&rig);
}

/* Who goes away while gathering takes what its user gave along. */
static void test_departed_options(void) {
    static struct rig rig;
    rig_open(&rig, OWN);
    side_join(&rig, SERVER, JOB_SERVER, 2, "");
    side_join(&rig, WORKER_0, JOB_WORKER, 0, "lr=0.001 push=int8");
    side_drop(&rig, WORKER_0);
    side_join(&rig, WORKER_0, JOB_WORKER, 0, "lr=0.002");
    side_join(&rig, WORKER_1, JOB_WORKER, 0, "");
    CHECK_TEXT(rig.sides[WORKER_1].lr, "0.002");
    CHECK_TEXT(rig.sides[WORKER_1].push, "bf16");
    rig_close(&rig);
}

static void test_unknown_option(void) {
    static struct rig rig;
    rig_open(&rig, OWN);
    side_join(&rig, SERVER, JOB_SERVER, 2, "");
    side_join(&rig, WORKER_0, JOB_WORKER, 0, "warp-factor=9");
    side_expect_end(&rig, WORKER_0, EXIT_CODE_MISMATCH,
                    "warp-factor: not an agreed option of this build");
    rig_close(&rig);
}

/* Options that are each allowed but do not fit each other, from different users: nobody starts. */
static void test_options_that_do_not_fit(void) {
    static struct rig rig;
    rig_open(&rig, OWN " quorum=1");
    side_join(&rig, SERVER, JOB_SERVER, 2, "");
    side_join(&rig, WORKER_0, JOB_WORKER, 0, "backup-workers=1");
    side_join(&rig, WORKER_1, JOB_WORKER, 0, "");
    rig_expect_end(&rig, -1, EXIT_CODE_USAGE,
                   "--quorum and --backup-workers say the same in two ways: give one");
    rig_expect_all(&rig, RUBATO__MESSAGE__BODY_ASSIGN, 0);
    rig_close(&rig);
}

/* ---- who is turned away ---- */

/* A peer for whom there is no place is refused, and leaves no trace: none of its options count. */
static void test_extra_peers(void) {
    static struct rig rig;
    rig_open(&rig, OWN);
    side_join(&rig, WORKER_0, JOB_WORKER, 0, "");
    side_join(&rig, WORKER_1, JOB_WORKER, 0, "");
    side_join(&rig, LATE, JOB_WORKER, 0, "lr=0.125 push=int8"); /* while gathering */
    side_expect_end(&rig, LATE, EXIT_CODE_CREATE, "the job has all its workers (--workers)");
    CHECK_INT(rig.coordinator.phase, COORDINATOR_GATHERING);
    side_join(&rig, SERVER, JOB_SERVER, 2, "");
    CHECK_INT(rig.coordinator.phase, COORDINATOR_ASSIGNED);
    CHECK_TEXT(rig.sides[WORKER_1].lr, "0.001");
    CHECK_TEXT(rig.sides[WORKER_1].push, "bf16");
    side_join(&rig, LATE + 1, JOB_SERVER, 1, "clip=77 lease=33");
    side_expect_end(&rig, LATE + 1, EXIT_CODE_CREATE, "the job has all its servers (--servers)");
    side_join(&rig, LATE + 2, JOB_WORKER, 0, "lease=33");
    side_expect_end(&rig, LATE + 2, EXIT_CODE_CREATE, "the job has all its workers (--workers)");
    CHECK_NEAR(rig.coordinator.job.clip, 1, 0); /* what the others were told */
    CHECK_NEAR(rig.coordinator.job.lease, 5, 0);
    for (int side = 0; side < PEERS; side++) {
        side_ready(&rig, side, 0);
    }
    CHECK_INT(rig.coordinator.phase, COORDINATOR_PLANNED); /* the job goes on */
    rig_expect_all(&rig, RUBATO__MESSAGE__BODY_END, 0);
    rig_close(&rig);
}

/* Once the job has begun, a newcomer's conflict is the newcomer's alone. */
static void test_late_conflict(void) {
    static struct rig rig;
    rig_open_at(&rig, OWN " lr=0.5", COORDINATOR_STARTED);
    side_join(&rig, LATE, JOB_WORKER, 0, "lr=0.6");
    side_expect_end(&rig, LATE, EXIT_CODE_MISMATCH,
                    "lr: 0.5 (the coordinator) is not 0.6 (worker on h3:103)");
    rig_expect_all(&rig, RUBATO__MESSAGE__BODY_END, 0);
    for (int side = 0; side < PEERS; side++) {
        side_connected(&rig, side);
    }
    rig_expect_all(&rig, RUBATO__MESSAGE__BODY_GO, 1);
    rig_close(&rig);
}

static void test_other_protocols(void) {
    static const struct {
        uint32_t protocol, role, shards;
    } table[] = {{0, JOB_WORKER, 0}, {2, JOB_WORKER, 0},  {UINT32_MAX, JOB_SERVER, 1},
                 {1, 0, 1},          {1, JOB_LAUNCH, 1},  {1, 77, 1},
                 {1, JOB_SERVER, 0}, {1, JOB_SERVER, 257}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        static struct rig rig;
        Rubato__Join join = RUBATO__JOIN__INIT;
        rig_open(&rig, OWN);
        side_join(&rig, WORKER_0, JOB_WORKER, 0, "");
        side_dial(&rig, LATE);
        join.protocol = table[i].protocol;
        join.role = table[i].role;
        join.shards = table[i].shards;
        SIDE_SAY(&rig, LATE, JOIN, join, &join);
        side_expect_end(&rig, LATE, EXIT_CODE_PROTOCOL, "another version of the protocol");
        CHECK_INT(rig.sides[WORKER_0].got[RUBATO__MESSAGE__BODY_END], 0);
        CHECK(!rig.sides[WORKER_0].closed);
        rig_close(&rig);
    }
}

/* ---- models and plans that differ ---- */

static void test_other_tensors(void) {
    static struct rig rig;
    rig_open_at(&rig, OWN, COORDINATOR_ASSIGNED);
    side_ready(&rig, WORKER_1, 1);
    side_ready(&rig, SERVER, 12345); /* a server has no model: its word does not count */
    side_ready(&rig, WORKER_0, 0);
    rig_expect_end(&rig, -1, EXIT_CODE_MISMATCH,
                   "the model of worker 1 (h2:102) has other tensors than that of worker 0: check "
                   "--vocab, --model and the data's format");
    rig_close(&rig);
}

/* Worker 0's digest must be that of the tensors it sent. */
static void test_wrong_digest_of_worker_0(void) {
    static struct rig rig;
    rig_open_at(&rig, OWN, COORDINATOR_ASSIGNED);
    side_ready(&rig, WORKER_0, 1);
    side_ready(&rig, WORKER_1, 0);
    side_ready(&rig, SERVER, 0);
    CHECK_INT(rig.coordinator.phase, COORDINATOR_ENDED);
    CHECK_INT(rig.sides[SERVER].exit_code, EXIT_CODE_MISMATCH);
    CHECK(strstr(rig.sides[SERVER].reason, "worker 0 (h1:101)") != NULL);
    rig_close(&rig);
}

static void test_other_plan(void) {
    for (int wrong = 0; wrong < PEERS; wrong++) {
        static const char *const names[] = {"server 0 (h0:100)", "worker 0 (h1:101)",
                                            "worker 1 (h2:102)"};
        static struct rig rig;
        char reason[256];
        rig_open_at(&rig, OWN, COORDINATOR_PLANNED);
        side_arm(&rig, wrong, 1, wrong == SERVER ? 2 : 1);
        (void)snprintf(reason, sizeof reason,
                       "%s made another plan from the same tensors: all processes must run the "
                       "same build",
                       names[wrong]);
        rig_expect_end(&rig, -1, EXIT_CODE_MISMATCH, reason);
        rig_close(&rig);
    }
}

static void test_malformed_tensors(void) {
    char name[TENSOR_NAME_MAX + 1];
    uint64_t shape[TENSOR_DIMS_MAX + 1] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    memset(name, 'n', sizeof name);
    name[TENSOR_NAME_MAX] = '\0';
    for (int wrong = 0; wrong < 3; wrong++) {
        static struct rig rig;
        Rubato__Tensor tensor = RUBATO__TENSOR__INIT;
        Rubato__Tensor *tensors[1] = {&tensor};
        Rubato__Ready ready = RUBATO__READY__INIT;
        tensor.name = wrong == 0 ? name : (char *)"w";
        tensor.n_shape = wrong == 1 ? TENSOR_DIMS_MAX + 1 : 1;
        tensor.shape = shape;
        ready.n_tensors = wrong == 2 ? 0 : 1; /* none at all */
        ready.tensors = tensors;
        ready.tensor_digest = plan_tensor_digest(NULL, 0);
        rig_open_at(&rig, OWN, COORDINATOR_ASSIGNED);
        SIDE_SAY(&rig, WORKER_0, READY, ready, &ready);
        if (wrong == 2) {
            SIDE_SAY(&rig, WORKER_1, READY, ready, &ready);
            side_ready(&rig, SERVER, 0);
        }
        rig_expect_end(&rig, -1, wrong == 2 ? EXIT_CODE_USAGE : EXIT_CODE_PROTOCOL,
                       wrong == 2
                           ? "the model makes no plan: see --model, --block-values, --fragments "
                             "and --rates; the coordinator's log says more"
                           : "worker 0 sent malformed tensors");
        rig_close(&rig);
    }
}

static void test_malformed_addresses(void) {
    static struct rig rig;
    static uint8_t bytes[CHANNEL_ADDRESS_MAX + 1];
    for (uint32_t count = 0; count < 4; count++) {
        if (count == 2) {
            continue; /* one a shard: sound */
        }
        rig_open_at(&rig, OWN, COORDINATOR_PLANNED);
        side_arm(&rig, SERVER, 0, count);
        rig_expect_end(&rig, -1, EXIT_CODE_PROTOCOL, "a peer sent malformed addresses");
        rig_close(&rig);
    }
    for (size_t length = CHANNEL_ADDRESS_MAX; length <= CHANNEL_ADDRESS_MAX + 1; length++) {
        ProtobufCBinaryData address = {.len = length, .data = bytes};
        Rubato__Armed armed = RUBATO__ARMED__INIT;
        rig_open_at(&rig, OWN, COORDINATOR_PLANNED);
        armed.plan_digest = rig.coordinator.plan.digest;
        armed.n_addresses = 1;
        armed.addresses = &address;
        SIDE_SAY(&rig, WORKER_0, ARMED, armed, &armed);
        CHECK_INT(rig.coordinator.phase,
                  length == CHANNEL_ADDRESS_MAX ? COORDINATOR_PLANNED : COORDINATOR_ENDED);
        rig_close(&rig);
    }
}

/* ---- who is missing ---- */

static void test_waiting(void) {
    static struct rig rig;
    rig_open(&rig, "servers=2 workers=2");
    side_join(&rig, 0, JOB_WORKER, 0, "");
    CHECK_TEXT(rig.sides[0].missing, "2 of 2 servers, 1 of 2 workers");
    side_join(&rig, 1, JOB_SERVER, 1, "");
    CHECK_TEXT(rig.sides[0].missing, "1 of 2 servers, 1 of 2 workers"); /* told at once */
    CHECK_TEXT(rig.sides[1].missing, "1 of 2 servers, 1 of 2 workers");
    uint32_t told = rig.sides[1].got[RUBATO__MESSAGE__BODY_WAITING];
    rig_run(&rig, 10 * CLOCK_S); /* twice the lease, in which members do not beat yet */
    CHECK(rig.sides[1].got[RUBATO__MESSAGE__BODY_WAITING] >= told + 5);
    CHECK(!rig.sides[0].closed && !rig.sides[1].closed);
    side_join(&rig, 2, JOB_SERVER, 1, "");
    CHECK_TEXT(rig.sides[2].missing, "1 of 2 workers");
    side_join(&rig, 3, JOB_WORKER, 0, "");
    CHECK_INT(rig.sides[0].got[RUBATO__MESSAGE__BODY_ASSIGN], 1);
    rig_run(&rig, 2 * CLOCK_S);
    CHECK_TEXT(rig.sides[0].missing, "worker 0 (h0:100), server 0 (h1:101), server 1 (h2:102), "
                                     "worker 1 (h3:103)");
    rig_close(&rig);
}

/* The deadline for everyone, and who kept them waiting, while gathering and later. */
static void test_join_deadline(void) {
    static struct rig rig;
    rig_open(&rig, "workers=3 join-timeout=20");
    side_join(&rig, SERVER, JOB_SERVER, 2, "");
    side_join(&rig, WORKER_0, JOB_WORKER, 0, "");
    rig_run(&rig, 19 * CLOCK_S);
    CHECK_INT(rig.coordinator.phase, COORDINATOR_GATHERING);
    rig_run(&rig, CLOCK_S);
    side_expect_end(&rig, SERVER, EXIT_CODE_UNREACHABLE,
                    "gave up waiting for 2 of 3 workers after 20 s (--join-timeout)");
    side_expect_end(&rig, WORKER_0, EXIT_CODE_UNREACHABLE, rig.sides[SERVER].reason);
    CHECK_INT(rig.coordinator.exit_code, EXIT_CODE_UNREACHABLE);
    rig_close(&rig);

    rig_open_at(&rig, OWN " join-timeout=20", COORDINATOR_PLANNED);
    rig.beating = true; /* alive, but one does not get on */
    side_arm(&rig, SERVER, 0, 2);
    side_arm(&rig, WORKER_0, 0, 1);
    rig_run(&rig, 20 * CLOCK_S);
    rig_expect_end(&rig, -1, EXIT_CODE_UNREACHABLE,
                   "gave up waiting for worker 1 (h2:102) after 20 s (--join-timeout)");
    rig_close(&rig);
}

int main(void) {
    log_set_level(LOG_ERROR);
    TEST_RUN(test_phases);
    TEST_RUN(test_shard_numbers);
    TEST_RUN(test_out_of_turn);
    TEST_RUN(test_conflict);
    TEST_RUN(test_conflict_with_the_coordinator);
    TEST_RUN(test_departed_options);
    TEST_RUN(test_unknown_option);
    TEST_RUN(test_options_that_do_not_fit);
    TEST_RUN(test_extra_peers);
    TEST_RUN(test_late_conflict);
    TEST_RUN(test_other_protocols);
    TEST_RUN(test_other_tensors);
    TEST_RUN(test_wrong_digest_of_worker_0);
    TEST_RUN(test_other_plan);
    TEST_RUN(test_malformed_tensors);
    TEST_RUN(test_malformed_addresses);
    TEST_RUN(test_waiting);
    TEST_RUN(test_join_deadline);
    return 0;
}
