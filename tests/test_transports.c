/* Proves what is made of --tls and --net-devices: which transports are accepted, which are used
 * when none are named, which need an RDMA device, and that a machine without one says so; and which
 * of the RDMA devices each GPU sends by.
 *
 * Tables of cases, and a machine that two_switches.xml describes to hwloc: two PCIe switches with a
 * GPU and an RDMA device each, those with different numbers together (01:00.0 and mlx5_1, 02:00.0
 * and mlx5_0); on the same host bridge, but behind no switch, mlx5_2; in another package a third
 * GPU, 80:00.0. That the transports then carry a job is for test_channel_ucx (TCP) and tests/roce
 * (RDMA).
 */
#include "kernels/topology.h"
#include "proto/job.h"
#include "tests/test.h"
#include "transport/channel_ucx.h"
#include "transport/endpoint.h"
#include "transport/rail_choice.h"

#include <unistd.h>

static void test_option(void) {
    static const struct {
        const char *text;
        bool allowed;
    } cases[] = {
        {"tcp", true},     {"rc", true},      {"rc_v,self", true},
        {"ib,tcp", true},  {"ud_x,dc", true}, {"sm", false},
        {"posix", false},  {"all", false},    {"rc_verbs", false},
        {"rc,", false},    {",rc", false},    {"rc,,tcp", false},
        {"rc tcp", false}, {"RC", false},     {"tcp_and_a_name_that_is_long", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct options options;
        struct job job;
        char name[] = "test", flag[] = "--tls", value[64];
        (void)snprintf(value, sizeof value, "%s", cases[i].text);
        char *arguments[] = {name, flag, value, NULL};
        options_init(&options, job_table, job_table_count, &job);
        enum status status = options_parse(&options, JOB_WORKER, 3, arguments);
        CHECK_INT(status == STATUS_OK, cases[i].allowed);
        if (status == STATUS_OK) CHECK_TEXT(job.tls, cases[i].text);
    }
}

static void test_default(void) {
    static const struct {
        const char *devices, *tls, *used;
    } cases[] = {
        {"", "", "tcp"},
        {"eth0", "", "tcp"},
        {"lo,eth0", "", "tcp"},
        {"mlx5_0:1", "", "ib"},
        {"mlx5_0:1,mlx5_1:2", "", "ib"},
        {"mlx5_0:1,eth0", "", "ib,tcp"},
        {"eth0,mlx5_0:1", "", "ib,tcp"},
        {"mlx5_0:1", "rc_x", "rc_x"},
        {"eth0", "rc", "rc"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_TEXT(channel_ucx_tls(cases[i].devices, cases[i].tls), cases[i].used);
    }
}

static void test_verbs(void) {
    static const char *const with[] = {"ib", "rc", "rc_v,self", "tcp,ud", "self,dc_x"};
    static const char *const without[] = {"tcp", "self", "tcp,self"};
    for (size_t i = 0; i < sizeof with / sizeof with[0]; i++) {
        CHECK(channel_ucx_is_verbs(with[i]));
    }
    for (size_t i = 0; i < sizeof without / sizeof without[0]; i++) {
        CHECK(!channel_ucx_is_verbs(without[i]));
    }
}

/* The loopback interface has no RDMA device on any machine but one made for this very purpose. */
static void test_no_rdma_device(void) {
    char name[64] = "unchanged";
    channel_ucx_rdma_of("lo", name, sizeof name);
    if (name[0] != '\0') TEST_SKIP("an RDMA device belongs to lo");
    static struct job job;
    static struct options options;
    static struct endpoint endpoint;
    options_init(&options, job_table, job_table_count, &job);
    (void)snprintf(job.join, sizeof job.join, "127.0.0.1:29600");
    (void)snprintf(job.tls, sizeof job.tls, "rc");
    CHECK_INT(endpoint_init(&endpoint, &job), STATUS_OK);
    CHECK_INT(endpoint_choose_device(&endpoint, &job, "127.0.0.1"), STATUS_INVALID);
    job.tls[0] = '\0';
    CHECK_INT(endpoint_init(&endpoint, &job), STATUS_OK);
    CHECK_INT(endpoint_choose_device(&endpoint, &job, "127.0.0.1"), STATUS_OK);
    CHECK_TEXT(endpoint.net_devices, "lo");
    CHECK_TEXT(endpoint.tls, "tcp");
}

static void test_spread(void) {
    enum { GPUS = 4, CARDS = 3 };
    static const struct {
        int depths[GPUS][CARDS], numbers[GPUS], count, card_count, chosen[GPUS];
    } cases[] = {
        /* The nearest one, where there is one. */
        {{{1, 3, 2}, {3, 1, 2}}, {0, 1}, 2, CARDS, {1, 0}},
        {{{0, 1, 0}, {0, 1, 0}, {0, 0, 2}}, {0, 1, 2}, 3, CARDS, {1, 1, 2}},
        /* Nothing is known: each card has its share, whichever GPUs a process has. */
        {{{0}}, {0, 1, 2, 3}, 4, CARDS, {0, 1, 2, 0}},
        {{{0}}, {0, 3, 6}, 3, CARDS, {0, 1, 2}},
        {{{0}}, {5}, 1, CARDS, {2}},
        {{{0}}, {0, 1}, 2, 1, {0, 0}},
        /* Two equally near ones, of three. */
        {{{2, 1, 2}, {2, 1, 2}, {2, 1, 2}, {1, 2, 1}}, {0, 1, 2, 3}, 4, CARDS, {0, 2, 0, 1}},
        {{{2, 0, 2}, {2, 0, 2}}, {1, 3}, 2, CARDS, {2, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int depths[GPUS * CARDS], chosen[GPUS];
        for (int k = 0; k < cases[i].count * cases[i].card_count; k++)
            depths[k] = cases[i].depths[k / cases[i].card_count][k % cases[i].card_count];
        rail_choice_spread(depths, cases[i].numbers, cases[i].count, cases[i].card_count, chosen);
        for (int k = 0; k < cases[i].count; k++)
            CHECK_INT(chosen[k], cases[i].chosen[k]);
    }
}

enum { GPUS = 3 };

static bool tell_bus(struct device *device, char *bus_id, size_t bytes) {
    static const char *const buses[GPUS] = {"0000:01:00.0", "0000:02:00.0", "0000:80:00.0"};
    (void)snprintf(bus_id, bytes, "%s", buses[device->index]);
    return true;
}

#define MACHINE "tests/two_switches.xml" // from the root of the sources, where ctest runs it

static bool has_hwloc(void) {
    bool core;
    char why[256];
    enum status status = topology_cores(TOPOLOGY_NODE, 0, &core, 1, why, sizeof why);
    return status != STATUS_UNSUPPORTED || strstr(why, "no hwloc") == NULL;
}

static void check_machine(void) {
    static const char *const buses[] = {"0000:01:00.0", "0000:02:00.0", "0000:80:00.0",
                                        "0000:99:00.0", ""};
    static const char *const cards[] = {"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_7"};
    /* Machine, package, host bridge, switch. */
    static const int wanted[5][4] = {{2, 3, 2, 0}, {3, 2, 2, 0}};
    int depths[5][4];
    CHECK_INT(access(MACHINE, R_OK), 0);
    CHECK_INT(setenv("HWLOC_XMLFILE", MACHINE, 1), 0);
    topology_nearness(buses, 5, cards, 4, &depths[0][0]);
    for (int i = 0; i < 5 * 4; i++)
        CHECK_INT(depths[i / 4][i % 4], wanted[i / 4][i % 4]);
}

static void test_nearest(void) {
    static const struct device_backend backend = {.name = "gpu", .bus_id = tell_bus};
    static const struct {
        const char *net_devices, *tls;
        int count;
        const char *chosen[GPUS]; /* NULL: nothing is chosen */
    } cases[] = {
        {"mlx5_0:1,mlx5_1:1", "ib", 2, {"mlx5_1:1", "mlx5_0:1"}},
        {"mlx5_0:1,mlx5_1:1", "ib", 1, {"mlx5_1:1"}},
        {"mlx5_0:1,mlx5_1:1", "ib", 3, {"mlx5_1:1", "mlx5_0:1", "mlx5_0:1"}},
        {"mlx5_2:1,mlx5_1:2", "rc_x", 2, {"mlx5_1:2", "mlx5_2:1"}},
        {"mlx5_2:1,mlx5_9:1", "rc", 2, {"mlx5_2:1", "mlx5_2:1"}}, /* one is not known */
        {"mlx5_0:1", "rc", 2, {"mlx5_0:1", "mlx5_0:1"}},
        {"eth0,mlx5_0:1", "rc", 2, {"mlx5_0:1", "mlx5_0:1"}},
        {"mlx5_0:1", "rc", 1, {NULL}},
        {"mlx5_0:1,mlx5_1:1", "rc", 0, {NULL}},
        {"mlx5_0:1,mlx5_1:1", "ib,tcp", 2, {NULL}},
        {"mlx5_0:1,mlx5_1:1", "tcp", 2, {NULL}},
        {"eth0,eth1", "ud", 2, {NULL}},
        {"", "tcp", 2, {NULL}},
    };
    struct device gpus[GPUS];
    struct device *list[GPUS];
    if (!has_hwloc()) {
        printf("a build without hwloc: which RDMA device is near is not known\n");
        return;
    }
    check_machine();
    for (int i = 0; i < GPUS; i++) {
        gpus[i] = (struct device){.backend = &backend, .index = i};
        list[i] = &gpus[i];
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rail_choice choice;
        rail_choice_make(&choice, list, cases[i].count, cases[i].net_devices, cases[i].tls);
        CHECK_INT(choice.count, cases[i].chosen[0] != NULL ? cases[i].count : 0);
        for (int k = 0; k < choice.count; k++)
            CHECK_TEXT(choice.names[k], cases[i].chosen[k]);
    }
}

int main(void) {
    TEST_RUN(test_option);
    TEST_RUN(test_default);
    TEST_RUN(test_verbs);
    TEST_RUN(test_spread);
    TEST_RUN(test_nearest);
    TEST_RUN(test_no_rdma_device);
    return 0;
}
