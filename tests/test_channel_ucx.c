/* Proves that the UCX channel does what every data channel must (channel_battery.h), over the
 * loopback interface and under hostile UCX_* variables; that it names what devices it cannot use;
 * and that closing returns even where UCX has requests that cannot end.
 */
#include "tests/channel_battery.h"
#include "tests/test.h"
#include "transport/channel_ucx.h"

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

static enum status open_ucx(struct channel **channel, const struct channel_config *config) {
    return channel_ucx_open(channel, config, "lo", "");
}

static void test_devices(void) {
    struct channel *channel = NULL;
    CHECK_INT(channel_ucx_open(&channel, &channel_battery_config, "nonesuch0", ""), STATUS_DEVICE);
    CHECK(!channel);
    char name[64] = "x";
    channel_ucx_device_of("127.0.0.1", name, sizeof name);
    CHECK_TEXT(name, "lo");
    channel_ucx_device_of("203.0.113.77", name, sizeof name);
    CHECK_TEXT(name, "");
}

/* A stopped sender that we have no endpoint to leaves requests that UCX cannot end. Close must
 * return all the same. What it does not free is left in a process of its own, out of leak checkers'
 * sight. */
static void test_close_without_an_end(void) {
    pid_t child = channel_battery_spawn("lonely", NULL, NULL);
    int code = 0;
    CHECK_INT(waitpid(child, &code, 0), child);
    CHECK(WIFEXITED(code));
    CHECK_INT(WEXITSTATUS(code), 0);
}

int main(int argc, char **argv) {
    char program[4096];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    CHECK(length > 0);
    program[length] = 0;
    const struct channel_battery battery = {
        .open = open_ucx, .program = program, .sent_least = 1001};
    channel_battery_begin(&battery);
    /* What a user may have exported must not matter. */
    setenv("UCX_TLS", "nonsense", 1);
    setenv("UCX_NET_DEVICES", "nonsense", 1);
    setenv("UCX_TCP_TX_SEG_SIZE", "1m", 1);
    setenv("UCX_TCP_RX_SEG_SIZE", "2k", 1);
    setenv("UCX_ZCOPY_THRESH", "0", 1);
    channel_ucx_setup();
    int code = channel_battery_role(argc, argv);
    if (code >= 0) return code;
    if (argc == 2 && strcmp(argv[1], "lonely") == 0) {
        channel_battery_close_while_fetching(true, false);
        _exit(0);
    }
    channel_battery_run();
    TEST_RUN(test_devices);
    TEST_RUN(test_close_without_an_end);
    return 0;
}
