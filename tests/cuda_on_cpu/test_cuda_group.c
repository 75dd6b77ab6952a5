/* test_cuda_group.c - members of a group on CUDA devices, through NCCL: the battery of all groups
 * (tests/group_battery.h), and that the numbers of NCCL which are written down in
 * kernels/cuda/group_nccl.c are its header's.
 *
 * The same program runs on a machine with GPUs and NCCL; where there are not two, it skips.
 */
#include "base/log.h"
#include "kernels/cuda/library_cuda.h"
#include "kernels/group.h"
#include "tests/group_battery.h"
#include "tests/test.h"

#include <nccl.h>

_Static_assert(ncclSuccess == 0 && ncclInt8 == 0 && ncclFloat32 == 7 && ncclSum == 0,
               "as in kernels/cuda/group_nccl.c");
_Static_assert(sizeof(ncclComm_t) == sizeof(void *) && sizeof(ncclResult_t) == sizeof(int) &&
                   sizeof(ncclDataType_t) == sizeof(int) && sizeof(ncclRedOp_t) == sizeof(int),
               "as in kernels/cuda/group_nccl.c");

enum { MEMBERS = 2 };

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
    group_battery_timeout(cuda->group, devices, MEMBERS);
    group_battery_collectives(cuda->group, devices, MEMBERS);
}

static void refused(void) {
    struct device *twice[] = {devices[0], devices[0]};
    struct group *group = NULL;
    CHECK_INT(cuda->group->open(&group, twice, MEMBERS, 1000), STATUS_DEVICE);
    CHECK(group == NULL);
}

int main(void) {
    const struct library_abi abi = library_abi();
    cuda = rubato_cuda_library(&abi, log_write);
    if (cuda->count() < MEMBERS) TEST_SKIP("needs two CUDA devices");
    for (int i = 0; i < MEMBERS; i++)
        CHECK_INT(cuda->open(&devices[i], i), STATUS_OK);
    TEST_RUN(refused);
    TEST_RUN(one_member);
    TEST_RUN(collectives);
    TEST_RUN(ended);
    for (int i = 0; i < MEMBERS; i++)
        cuda->close(devices[i]);
    return 0;
}
