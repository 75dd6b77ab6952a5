/* test_threads.c - how many cores there are, lists of cores, and that a confined process stays.
 *
 * The oracle is the affinity mask that the system reports, of this thread and of one started later.
 */
#define _GNU_SOURCE /* sched_getaffinity and cpu_set_t; NOLINT(*-identifier*) */
#include "base/log.h"
#include "kernels/threads.h"
#include "tests/test.h"

#include <omp.h>
#include <sched.h>
#include <string.h>

static void wrong_lists(void) {
    static const char *const wrong[] = {",",   "x",    "0,",   "-1",    "0-",      "1-0",
                                        "0;1", "0,,1", "0 ,1", "99999", "0-99999", "0x1"};
    int before = threads_available();
    log_set_level(LOG_ERROR);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK_INT(threads_confine(wrong[i]), STATUS_INVALID);
        CHECK_INT(threads_available(), before);
    }
}

static void shares(void) {
    char text[256];
    char small[2];
    int cores = threads_available();
    CHECK(cores >= 1);
    CHECK(threads_cores(0, cores, text, sizeof text));
    CHECK_INT(threads_confine(text), STATUS_OK); /* all: nothing changes */
    CHECK_INT(threads_available(), cores);
    CHECK(!threads_cores(0, cores + 1, text, sizeof text));
    CHECK(!threads_cores(cores, 1, text, sizeof text));
    CHECK(!threads_cores(0, 0, text, sizeof text));
    CHECK(cores < 2 || !threads_cores(0, 2, small, sizeof small));
}

/* Confined to the last core, this thread and the kernels' run there alone. */
static void confined(void) {
    char text[256];
    cpu_set_t set;
    int core = -1;
    CHECK(threads_cores(threads_available() - 1, 1, text, sizeof text));
    CHECK_INT(threads_confine(text), STATUS_OK);
    CHECK_INT(threads_available(), 1);
    CHECK_INT(sched_getaffinity(0, sizeof set, &set), 0);
    CHECK(CPU_ISSET((size_t)atoi(text), &set));
    threads_set(2);
#pragma omp parallel reduction(max : core)
    core = sched_getcpu();
    CHECK_INT(core, atoi(text));
}

int main(void) {
    TEST_RUN(wrong_lists);
    TEST_RUN(shares);
    TEST_RUN(confined);
    return 0;
}
