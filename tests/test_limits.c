/* Proves that a process is told before its job starts when the system's limits are too low for it,
 * that a soft limit is raised as far as the hard one allows, and no further.
 *
 * Each case sets limits in a child of its own, as they cannot be raised again. The kernel is the
 * oracle: as many files as were granted are opened, as much memory is locked.
 */
#include "tests/test.h"
#include "transport/limits.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOBODY 65534

static void set_limit(int resource, rlim_t soft, rlim_t hard) {
    const struct rlimit limit = {.rlim_cur = soft, .rlim_max = hard};
    CHECK_INT(setrlimit((__rlimit_resource_t)resource, &limit), 0);
}

/* Runs the case in a child, which must end well. */
static void in_child(void (*run)(void)) {
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        run();
        _exit(0);
    }
    int how = 0;
    CHECK_INT(waitpid(child, &how, 0), child);
    CHECK(WIFEXITED(how));
    CHECK_INT(WEXITSTATUS(how), 0);
}

static void files(void) {
    set_limit(RLIMIT_NOFILE, 20, 60);
    CHECK_INT(limits_files(20, LOG_ERROR), STATUS_OK);
    CHECK_INT(open("/dev/null", O_RDONLY) < 20, 1);
    CHECK_INT(limits_files(61, LOG_ERROR), STATUS_IO);
    CHECK_INT(limits_files(60, LOG_ERROR), STATUS_OK);
    int last = 0;
    for (int file = 0; file >= 0; file = open("/dev/null", O_RDONLY)) {
        last = file;
    }
    CHECK_INT(last, 59);
}

static void locked_without_privilege(void) {
    set_limit(RLIMIT_MEMLOCK, 0, 1 << 20);
    if (geteuid() == 0) CHECK_INT(setuid(NOBODY), 0); /* root may lock anything */
    CHECK_INT(limits_locked((1 << 20) + 4096, LOG_ERROR), STATUS_MEMORY);
    CHECK_INT(limits_locked(1 << 20, LOG_ERROR), STATUS_OK);
    void *memory = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    CHECK_INT(mlock(memory, 1 << 20), 0); /* asking has kept nothing */
}

static void test_files(void) {
    in_child(files);
}

static void test_locked(void) {
    in_child(locked_without_privilege);
}

int main(void) {
    TEST_RUN(test_files);
    TEST_RUN(test_locked);
    return 0;
}
