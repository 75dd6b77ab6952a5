/* Proves what is made of --tls and --net-devices: which transports are accepted, which are used
 * when none are named, which need an RDMA device, and that a machine without one says so.
 *
 * Tables of cases. That the transports then carry a job is for test_channel_ucx (TCP) and
 * tests/roce (RDMA).
 */
#include "proto/job.h"
#include "tests/test.h"
#include "transport/channel_ucx.h"
#include "transport/endpoint.h"

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

int main(void) {
    TEST_RUN(test_option);
    TEST_RUN(test_default);
    TEST_RUN(test_verbs);
    TEST_RUN(test_no_rdma_device);
    return 0;
}
