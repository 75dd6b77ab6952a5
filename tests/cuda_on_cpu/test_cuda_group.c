/* test_cuda_group.c - members of a group on CUDA devices, through NCCL: the battery of all groups
 * (tests/group_battery.h), and that the numbers of NCCL which are written down in
 * kernels/cuda/group_nccl.c are its header's. An NCCL that fails or hangs, as the stand-in's can,
 * ends the group or the process in its time, with a line that says where: each in a process of its
 * own, all at once.
 *
 * The same program runs on a machine with GPUs and NCCL; where there are not two, it skips.
 */
#include "base/log.h"
#include "kernels/cuda/library_cuda.h"
#include "kernels/group.h"
#include "tests/group_battery.h"
#include "tests/test.h"

#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

_Static_assert(ncclSuccess == 0 && ncclInt8 == 0 && ncclFloat32 == 7 && ncclSum == 0,
               "as in kernels/cuda/group_nccl.c");
_Static_assert(sizeof(ncclComm_t) == sizeof(void *) && sizeof(ncclResult_t) == sizeof(int) &&
                   sizeof(ncclDataType_t) == sizeof(int) && sizeof(ncclRedOp_t) == sizeof(int),
               "as in kernels/cuda/group_nccl.c");

/* AWAY_MS, FAULT_MS: a group's time where it passes; NCCL opens a group in it, and a busy machine
 * gives all threads a turn. ALARM_S: until a process counts as stuck. */
enum { MEMBERS = 2, AWAY_MS = 4000, FAULT_MS = 8000, ALARM_S = 100 };

static const struct device_backend *cuda;
static struct device *devices[MEMBERS];

static void one_member(void) {
    group_battery_collectives(cuda->group, devices, 1);
}

static void collectives(void) {
    group_battery_collectives(cuda->group, devices, MEMBERS);
}

/* A group that has ended is no harm to the next one. */
static void ended(void) {
    group_battery_abort(cuda->group, devices, MEMBERS);
    group_battery_timeout(cuda->group, devices, MEMBERS, AWAY_MS);
    group_battery_collectives(cuda->group, devices, MEMBERS);
}

static void refused(void) {
    struct device *twice[] = {devices[0], devices[0]};
    struct group *group = NULL;
    CHECK_INT(cuda->group->open(&group, twice, MEMBERS, 1000), STATUS_DEVICE);
    CHECK(group == NULL);
}

/* ---- an NCCL that fails or hangs */

static void collectives_fail(void) {
    group_battery_failure(cuda->group, devices, MEMBERS, FAULT_MS);
}

static void member_gives_up(void) {
    struct group *group = NULL;
    CHECK_INT(cuda->group->open(&group, devices, MEMBERS, FAULT_MS), STATUS_OK);
    cuda->group->abort(group, 1);
}

static void closing_hangs(void) {
    struct group *group = NULL;
    CHECK_INT(cuda->group->open(&group, devices, MEMBERS, FAULT_MS), STATUS_OK);
    CHECK_INT(cuda->group->close(group), STATUS_TIMEOUT);
    _exit(0); /* as a worker does: devices must not be closed */
}

static const struct fault {
    const char *setting; /* the stand-in's CUDA_ON_CPU_NCCL */
    void (*run)(void);
    int exit_code;
    const char *line;
} faults[] = {
    {"fail:1", collectives_fail, 0, "a sum among 2 devices failed: NCCL: an error of"},
    {"async:1", collectives_fail, 0, "a collective among 2 devices failed: NCCL: an error of"},
    {"hang:1", collectives_fail, 72,
     "is stuck, also after its group was aborted: the process ends"},
    {"init", collectives_fail, 72, "NCCL hangs: ncclCommInitAll of cuda:0,1 has not returned in"},
    {"abort", member_gives_up, 72, "NCCL hangs: ncclCommAbort of cuda:0,1 has not returned in"},
    {"destroy", closing_hangs, 0, "NCCL hangs: ncclCommDestroy of cuda:0,1 has not returned in"},
};
enum { FAULTS = sizeof faults / sizeof faults[0] };

static pid_t start_fault(const struct fault *fault, FILE *log) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) return child;
    dup2(fileno(log), STDERR_FILENO);
    setenv("CUDA_ON_CPU_NCCL", fault->setting, 1);
    alarm(ALARM_S);
    execl("/proc/self/exe", "test_cuda_group", fault->setting, (char *)NULL);
    _exit(127);
}

static void check_fault(const struct fault *fault, pid_t child, FILE *log) {
    static char text[1 << 14];
    int status = 0;
    CHECK_INT(waitpid(child, &status, 0), child);
    rewind(log);
    text[fread(text, 1, sizeof text - 1, log)] = '\0';
    const bool right = WIFEXITED(status) && WEXITSTATUS(status) == fault->exit_code;
    if (right && strstr(text, fault->line)) return;
    fprintf(stderr, "CUDA_ON_CPU_NCCL=%s: wait status %#x, expected exit code %d and \"%s\":\n%s",
            fault->setting, (unsigned)status, fault->exit_code, fault->line, text);
    exit(1);
}

static void nccl_faults(void) {
    pid_t children[FAULTS];
    FILE *logs[FAULTS];
    for (int i = 0; i < FAULTS; i++) {
        logs[i] = tmpfile();
        CHECK(logs[i] != NULL);
        children[i] = start_fault(&faults[i], logs[i]);
    }
    for (int i = 0; i < FAULTS; i++) {
        check_fault(&faults[i], children[i], logs[i]);
        CHECK_INT(fclose(logs[i]), 0);
    }
}

static void run_fault(const char *setting) {
    for (int i = 0; i < FAULTS; i++)
        if (strcmp(faults[i].setting, setting) == 0) faults[i].run();
}

int main(int argc, char **argv) {
    const struct library_abi abi = library_abi();
    cuda = rubato_cuda_library(&abi, log_write);
    if (cuda->count() < MEMBERS) TEST_SKIP("needs two CUDA devices");
    for (int i = 0; i < MEMBERS; i++)
        CHECK_INT(cuda->open(&devices[i], i), STATUS_OK);
    if (argc > 1) {
        run_fault(argv[1]);
        return 0;
    }
    if (strcmp(devices[0]->name, "CUDA on CPU") == 0) TEST_RUN(nccl_faults);
    TEST_RUN(refused);
    TEST_RUN(one_member);
    TEST_RUN(collectives);
    TEST_RUN(ended);
    for (int i = 0; i < MEMBERS; i++)
        cuda->close(devices[i]);
    return 0;
}
