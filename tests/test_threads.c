/* test_threads.c - how many cores there are, lists of cores, and that a confined process stays.
 *
 * The oracle is the affinity mask that the system reports, of this thread and of one started later.
 * Nodes and packages are those of a made-up machine.
 */
#define _GNU_SOURCE /* sched_getaffinity and cpu_set_t; NOLINT(*-identifier*) */
#include "base/log.h"
#include "kernels/threads.h"
#include "tests/test.h"

#include <omp.h>
#include <sched.h>
#include <string.h>

static void wrong_lists(void) {
    static const char *const wrong[] = {",",       "x",           "0,",    "-1",     "0-",
                                        "1-0",     "0;1",         "0,,1",  "0 ,1",   "99999",
                                        "0-99999", "0x1",         "node:", "node:x", "node:1-0",
                                        "package", "package:0,x", "core:0"};
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

/* A machine of two packages with two nodes of a core each, as hwloc's own variable describes it:
 * whole nodes and packages, mixed with cores, and what is not there. */
static void nodes_and_packages(void) {
    static const char *const wrong[] = {"node:4", "package:2", "node:0-4", "node:3"};
    static const struct {
        const char *list;
        int cores; /* a bit a core */
    } cases[] = {{"node:1", 2}, {"node:0-1", 3}, {"package:0", 3}, {"node:1,0", 3}, {"node:0", 1}};
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(0, &set);
    CPU_SET(1, &set);
    if (threads_available() < 2 || sched_setaffinity(0, sizeof set, &set) != 0) {
        printf("fewer than two cores: nothing about nodes and packages was tried\n");
        return;
    }
    CHECK_INT(setenv("HWLOC_SYNTHETIC", "package:2 numa:2 pu:1", 1), 0);
    if (threads_confine("node:0") != STATUS_OK) {
        printf("a build without hwloc: it refuses nodes and packages\n");
        CHECK_INT(threads_available(), 2);
        return;
    }
    CHECK_INT(sched_setaffinity(0, sizeof set, &set), 0);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK_INT(threads_confine(wrong[i]), STATUS_INVALID); /* node 3's core is not allowed */
        CHECK_INT(threads_available(), 2);
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cpu_set_t now;
        CHECK_INT(threads_confine(cases[i].list), STATUS_OK);
        CHECK_INT(sched_getaffinity(0, sizeof now, &now), 0);
        CHECK_INT(CPU_ISSET(0, &now) | CPU_ISSET(1, &now) << 1, cases[i].cores);
        CHECK_INT(sched_setaffinity(0, sizeof set, &set), 0);
    }
}

int main(void) {
    TEST_RUN(wrong_lists);
    TEST_RUN(shares);
    TEST_RUN(nodes_and_packages);
    TEST_RUN(confined);
    return 0;
}
