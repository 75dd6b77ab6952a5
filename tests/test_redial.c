/* Proves when a data connection that broke is dialled, when it is back and when it has failed, to
 * the nanosecond, over a channel made by hand; and that a peer that has gone, or that has no
 * address, is not dialled.
 */
#include "base/clock.h"
#include "base/log.h"
#include "tests/fake_channel.h"
#include "tests/test.h"
#include "transport/redial.h"

#define LEASE_NS (32 * CLOCK_S)
#define START_NS (1000 * CLOCK_S)

struct rig {
    struct fake_channel fake;
    struct redial redial;
    int64_t now_ns;
};

static void rig_open(struct rig *rig, const struct channel_address *addresses) {
    fake_channel_open(&rig->fake);
    rig->now_ns = START_NS;
    redial_init(&rig->redial, &(struct redial_config){.channel = &rig->fake.channel,
                                                      .addresses = addresses,
                                                      .count = 3,
                                                      .kind = "peer",
                                                      .lease_ns = LEASE_NS});
}

static void rig_close(struct rig *rig) {
    redial_free(&rig->redial);
    rig->fake.channel.ops->close(&rig->fake.channel);
}

/* To the deadline, where peer 1 may be dialled. True: it is connected anew. */
static bool to_deadline(struct rig *rig) {
    uint32_t peer = 0;
    uint32_t connects = rig->fake.connects[1];
    int64_t deadline_ns = redial_deadline_ns(&rig->redial);
    CHECK(deadline_ns > rig->now_ns);
    CHECK(!redial_next(&rig->redial, deadline_ns - 1, &peer)); /* nothing to do before */
    CHECK_INT(rig->fake.connects[1], connects);
    rig->now_ns = deadline_ns;
    bool next = redial_next(&rig->redial, rig->now_ns, &peer);
    CHECK(!next || peer == 1);
    return next;
}

static void greet(struct rig *rig, enum status status) {
    redial_greeted(&rig->redial, 1, status, rig->now_ns);
}

/* Nobody answers: the waits double up to a quarter of a lease, and end after one. */
static void test_out_of_reach(void) {
    static const int64_t at_s[] = {1, 3, 7, 15, 23, 31};
    static struct rig rig;
    rig_open(&rig, fake_channel_addresses);
    CHECK_INT(redial_deadline_ns(&rig.redial), INT64_MAX);
    rig.fake.connect_status = STATUS_PEER_LOST;
    redial_lost(&rig.redial, 1, rig.now_ns);
    redial_lost(&rig.redial, 1, rig.now_ns); /* it knows */
    for (uint32_t i = 0; i < sizeof at_s / sizeof at_s[0]; i++) {
        CHECK(!to_deadline(&rig));
        CHECK_INT(rig.now_ns, START_NS + at_s[i] * CLOCK_S);
        CHECK_INT(rig.fake.connects[1], i + 1);
        CHECK_INT(redial_failed(&rig.redial), -1);
    }
    CHECK(redial_is_down(&rig.redial, 1) && !redial_is_down(&rig.redial, 0));
    CHECK(!to_deadline(&rig));
    CHECK_INT(rig.now_ns, START_NS + LEASE_NS);
    CHECK_INT(redial_failed(&rig.redial), 1);
    CHECK_INT(redial_deadline_ns(&rig.redial), INT64_MAX);
    redial_lost(&rig.redial, 1, rig.now_ns);
    redial_gone(&rig.redial, 1);
    CHECK_INT(redial_failed(&rig.redial), -1);
    CHECK_INT(rig.fake.connects[1], sizeof at_s / sizeof at_s[0]);
    rig_close(&rig);
}

/* It can be dialled, but breaks before anything has left: the lease goes on. So it does while a
 * greeting finds no room, and while it does not leave. */
static void test_never_proven(void) {
    static struct rig rig;
    rig_open(&rig, fake_channel_addresses);
    redial_lost(&rig.redial, 1, rig.now_ns);
    redial_sent(&rig.redial, 1, rig.now_ns); /* by the old one */
    CHECK(to_deadline(&rig));
    redial_sent(&rig.redial, 1, rig.now_ns);
    greet(&rig, STATUS_PEER_LOST);
    CHECK(to_deadline(&rig));
    greet(&rig, STATUS_OK);
    redial_lost(&rig.redial, 1, rig.now_ns);
    CHECK(to_deadline(&rig));
    CHECK_INT(rig.now_ns, START_NS + 7 * CLOCK_S);
    greet(&rig, STATUS_AGAIN);
    uint32_t peer = 0;
    CHECK(redial_next(&rig.redial, rig.now_ns, &peer) && peer == 1);
    CHECK_INT(rig.fake.connects[1], 3);
    greet(&rig, STATUS_OK);
    CHECK(!redial_is_down(&rig.redial, 1));
    CHECK(!to_deadline(&rig));
    CHECK_INT(rig.now_ns, START_NS + LEASE_NS);
    CHECK_INT(redial_failed(&rig.redial), 1);
    rig_close(&rig);
}

static void come_back(struct rig *rig) {
    CHECK(to_deadline(rig));
    greet(rig, STATUS_OK);
    redial_sent(&rig->redial, 1, rig->now_ns);
    CHECK_INT(redial_deadline_ns(&rig->redial), INT64_MAX);
    CHECK_INT(redial_failed(&rig->redial), -1);
}

/* A connection that is back has a lease again when it breaks; the waits begin anew once it has held
 * for one. When it never does for twelve, it has failed. */
static void test_again_and_again(void) {
    static const int64_t wait_s[] = {1, 2, 4, 8, 8};
    static struct rig rig;
    rig_open(&rig, fake_channel_addresses);
    for (int series = 0; series < 2; series++) {
        for (uint32_t i = 0; i < sizeof wait_s / sizeof wait_s[0]; i++) {
            int64_t lost_ns = rig.now_ns;
            redial_lost(&rig.redial, 1, lost_ns);
            come_back(&rig);
            CHECK_INT(rig.now_ns - lost_ns, wait_s[i] * CLOCK_S);
            rig.now_ns += LEASE_NS - 1;
        }
        rig.now_ns += 1;
    }
    int64_t start_ns = rig.now_ns;
    while (redial_failed(&rig.redial) < 0) {
        redial_lost(&rig.redial, 1, rig.now_ns);
        if (redial_failed(&rig.redial) < 0) {
            come_back(&rig);
            rig.now_ns += LEASE_NS - 1;
        }
    }
    CHECK(rig.now_ns >= start_ns + 12 * LEASE_NS && rig.now_ns < start_ns + 14 * LEASE_NS);
    rig_close(&rig);
}

/* What cannot be dialled fails after a lease. */
static void test_not_dialled(void) {
    static struct rig rig;
    for (int times = 0; times < 2; times++) {
        rig_open(&rig, times == 0 ? NULL : fake_channel_addresses);
        rig.fake.connect_status = STATUS_UNSUPPORTED;
        redial_gone(&rig.redial, 0);
        redial_lost(&rig.redial, 0, rig.now_ns);
        CHECK_INT(redial_deadline_ns(&rig.redial), INT64_MAX);
        redial_lost(&rig.redial, 1, rig.now_ns);
        if (times == 1) CHECK(!to_deadline(&rig));
        CHECK(!to_deadline(&rig));
        CHECK_INT(rig.now_ns, START_NS + LEASE_NS);
        CHECK_INT(rig.fake.connects[0], 0);
        CHECK_INT(rig.fake.connects[1], times);
        CHECK_INT(redial_failed(&rig.redial), 1);
        rig_close(&rig);
    }
}

int main(void) {
    log_set_level(LOG_ERROR);
    TEST_RUN(test_out_of_reach);
    TEST_RUN(test_never_proven);
    TEST_RUN(test_again_and_again);
    TEST_RUN(test_not_dialled);
    return 0;
}
