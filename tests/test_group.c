/* test_group.c - members of a group on the host, and how groups are named.
 *
 * Proved: the battery of all groups (group_battery.h) with 1 to 5 members; sums in f32 and in rank
 * order, to the bit, of values whose sum depends on the order; what --device texts mean.
 */
#include "kernels/group.h"
#include "tests/group_battery.h"
#include "tests/test.h"

#include <pthread.h>

enum { MEMBERS = 5 };

static struct device *hosts[GROUP_MAX];

static void battery(void) {
    for (int count = 1; count <= MEMBERS; count++)
        group_battery_collectives(&group_cpu, hosts, count);
    for (int count = 2; count <= MEMBERS; count += 3) {
        group_battery_abort(&group_cpu, hosts, count);
        group_battery_timeout(&group_cpu, hosts, count, 300);
    }
}

/* ---- the order of sums */

enum { SIZE = 40000 };

struct summand {
    struct group *group;
    int rank;
    float *values; /* [MEMBERS, SIZE] */
};

static void *sum_main(void *argument) {
    const struct summand *summand = argument;
    struct device_event *event = device_event_open(hosts[0]);
    struct group_piece sums[MEMBERS];
    for (int root = 0; root < MEMBERS; root++)
        sums[root] = (struct group_piece){summand->values + root * SIZE, SIZE, root};
    group_sum_to(summand->group, summand->rank, DEVICE_COMPUTE, sums, MEMBERS);
    CHECK_INT(group_sync(summand->group, summand->rank, event), STATUS_OK);
    device_event_close(hosts[0], event);
    return NULL;
}

/* Of very different sizes: adding in another order gives other bits. */
static float uneven(uint32_t *state) {
    *state = *state * 1664525U + 1013904223U;
    const float size = *state >> 30 == 0 ? 1e6F : 1.0F;
    return size * ((float)(*state >> 8) / (float)(1 << 23) - 1.0F);
}

static void rank_order(void) {
    struct summand summands[MEMBERS];
    pthread_t threads[MEMBERS];
    float *before[MEMBERS];
    struct group *group = NULL;
    uint32_t state = 1;
    int differ = 0;
    CHECK_INT(group_open(&group, hosts, MEMBERS, 60000), STATUS_OK);
    for (int rank = 0; rank < MEMBERS; rank++) {
        float *values = calloc(MEMBERS * SIZE, sizeof *values);
        before[rank] = calloc(MEMBERS * SIZE, sizeof *values);
        CHECK(values && before[rank]);
        for (int i = 0; i < MEMBERS * SIZE; i++)
            before[rank][i] = values[i] = uneven(&state);
        summands[rank] = (struct summand){group, rank, values};
        CHECK_INT(pthread_create(&threads[rank], NULL, sum_main, &summands[rank]), 0);
    }
    for (int rank = 0; rank < MEMBERS; rank++)
        CHECK_INT(pthread_join(threads[rank], NULL), 0);
    for (int i = 0; i < MEMBERS * SIZE; i++) {
        float up = before[0][i];
        float down = before[MEMBERS - 1][i];
        for (int rank = 1; rank < MEMBERS; rank++) {
            up += before[rank][i];
            down += before[MEMBERS - 1 - rank][i];
        }
        differ += up != down;
        CHECK(summands[i / SIZE].values[i] == up);
    }
    CHECK(differ > 100); /* or the test could not tell */
    for (int rank = 0; rank < MEMBERS; rank++) {
        free(summands[rank].values);
        free(before[rank]);
    }
    CHECK_INT(group_close(group), STATUS_OK);
    CHECK_INT(group_close(NULL), STATUS_OK);
}

/* ---- names */

static void check_parse(const char *text, enum device_kind kind, int count, const int *indices) {
    struct device_names devices;
    memset(&devices, 0xff, sizeof devices);
    CHECK(device_names_parse(text, &devices));
    CHECK_INT(devices.kind, kind);
    CHECK_INT(devices.count, count);
    for (int i = 0; i < count; i++)
        CHECK_INT(devices.indices[i], indices[i]);
}

static void names(void) {
    static const int zeros[GROUP_MAX] = {0};
    static const char *const bad[] = {"",
                                      "gpu",
                                      "cpu:",
                                      "cpu:0",
                                      "cpu:17",
                                      "cpu:-1",
                                      "cpu:2,3",
                                      "cuda:",
                                      "cuda:0,",
                                      "cuda:,1",
                                      "cuda:0,0",
                                      "cuda:0 ,1",
                                      "cuda:0:1",
                                      "cuda:99999",
                                      "cpu:2x",
                                      "CPU",
                                      "cpux:2",
                                      "cuda:a",
                                      "cuda:all",
                                      "averylongname:1",
                                      "cuda:0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16"};
    check_parse("cpu", DEVICE_CPU, 1, zeros);
    check_parse("cpu:1", DEVICE_CPU, 1, zeros);
    check_parse("cpu:16", DEVICE_CPU, 16, zeros);
    check_parse("cuda", DEVICE_CUDA, 0, zeros); /* all */
    check_parse("cuda:3", DEVICE_CUDA, 1, (const int[]){3});
    check_parse("cuda:2,0,11", DEVICE_CUDA, 3, (const int[]){2, 0, 11});
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct device_names devices;
        if (device_names_parse(bad[i], &devices)) fprintf(stderr, "taken: %s\n", bad[i]);
        CHECK(!device_names_parse(bad[i], &devices));
    }
}

int main(void) {
    for (int i = 0; i < GROUP_MAX; i++)
        hosts[i] = device_host();
    TEST_RUN(names);
    TEST_RUN(rank_order);
    TEST_RUN(battery);
    return 0;
}
