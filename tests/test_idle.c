/* What a thread without work does: the three modes over a made-up clock. sleep never looks again;
 * adaptive does so for IDLE_SPIN_NS after the last work and not a nanosecond longer; busy always;
 * all look again after work. Other texts are refused.
 */
#include "base/idle.h"
#include "tests/test.h"

#define START_NS INT64_C(1000000)

static struct idle idle_of(const char *mode) {
    struct idle idle;
    CHECK_INT(idle_init(&idle, mode, START_NS), STATUS_OK);
    return idle;
}

static void test_sleep(void) {
    struct idle idle = idle_of("sleep");
    CHECK(!idle_looks_again(&idle, false, START_NS));
    CHECK(idle_looks_again(&idle, true, START_NS));
    CHECK(!idle_looks_again(&idle, false, START_NS));
}

static void test_adaptive(void) {
    struct idle idle = idle_of("adaptive");
    CHECK(idle_looks_again(&idle, false, START_NS + IDLE_SPIN_NS - 1));
    CHECK(!idle_looks_again(&idle, false, START_NS + IDLE_SPIN_NS));
    int64_t worked_ns = START_NS + 10 * IDLE_SPIN_NS;
    CHECK(idle_looks_again(&idle, true, worked_ns));
    CHECK(idle_looks_again(&idle, false, worked_ns + IDLE_SPIN_NS - 1));
    CHECK(!idle_looks_again(&idle, false, worked_ns + IDLE_SPIN_NS));
}

static void test_busy(void) {
    struct idle idle = idle_of("busy");
    CHECK(idle_looks_again(&idle, false, INT64_MAX));
}

static void test_refused(void) {
    struct idle idle;
    CHECK_INT(idle_init(&idle, "", START_NS), STATUS_INVALID);
    CHECK_INT(idle_init(&idle, "Busy", START_NS), STATUS_INVALID);
}

int main(void) {
    TEST_RUN(test_sleep);
    TEST_RUN(test_adaptive);
    TEST_RUN(test_busy);
    TEST_RUN(test_refused);
    return 0;
}
