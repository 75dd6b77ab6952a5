/* Proves of kernels/device.h: which texts name a device; the peaks of known cards; that the host is
 * a device whose calls have done their work when they return; and what is said where CUDA cannot be
 * used. For the latter a copy of this program in a folder of its own is run with what it may find
 * there: no library, one that is none, one that is something else, one beside the program and
 * another where LD_LIBRARY_PATH says.
 */
#include "kernels/compute.h"
#include "kernels/device_peak.h"
#include "tests/log_capture.h"

#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { CODE_BASE = 100 }; /* the copy's exit code is this and the status */

static void test_parse(void) {
    static const struct {
        const char *text;
        enum device_kind kind;
        int index; /* -1: not a device */
    } cases[] = {
        {"cpu", DEVICE_CPU, 0},         {"cuda", DEVICE_CPU, -1},
        {"cuda:0", DEVICE_CUDA, 0},     {"cuda:12", DEVICE_CUDA, 12},
        {"cpu:0", DEVICE_CPU, -1},      {"", DEVICE_CPU, -1},
        {"cuda:", DEVICE_CPU, -1},      {"cuda:-1", DEVICE_CPU, -1},
        {"cuda:1x", DEVICE_CPU, -1},    {"cuda1", DEVICE_CPU, -1},
        {"CUDA", DEVICE_CPU, -1},       {"gpu", DEVICE_CPU, -1},
        {"cuda:0,1", DEVICE_CPU, -1},   {"cuda: 1", DEVICE_CPU, -1},
        {"cpu ", DEVICE_CPU, -1},       {"cuda:9999", DEVICE_CUDA, 9999},
        {"cuda:10000", DEVICE_CPU, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        enum device_kind kind = DEVICE_KINDS;
        int index = -7;
        bool is_device = device_name_parse(cases[i].text, &kind, &index);
        if (is_device != (cases[i].index >= 0)) fprintf(stderr, "\"%s\"\n", cases[i].text);
        CHECK(is_device == (cases[i].index >= 0));
        CHECK_INT(kind, is_device ? cases[i].kind : DEVICE_KINDS);
        CHECK_INT(index, is_device ? cases[i].index : -7);
    }
}

/* A card whose figures of three types are there, one with a longer name, and a part of one, which
 * has no row of its own. */
static void test_peak(void) {
    CHECK_NEAR(device_peak_tflops("NVIDIA A100-SXM4-80GB", COMPUTE_BF16), 312, 0);
    CHECK_NEAR(device_peak_tflops("NVIDIA A100-SXM4-80GB", COMPUTE_TF32), 156, 0);
    CHECK_NEAR(device_peak_tflops("NVIDIA A100-SXM4-80GB", COMPUTE_F32), 19.5, 0);
    CHECK_NEAR(device_peak_tflops("NVIDIA H200", COMPUTE_BF16), 989.4, 0);
    CHECK_NEAR(device_peak_tflops("NVIDIA H200 NVL", COMPUTE_BF16), 835.5, 0);
    CHECK_NEAR(device_peak_tflops("NVIDIA H200 MIG 1g.18gb", COMPUTE_BF16), 0, 0);
    CHECK_NEAR(device_peak_tflops("cpu", COMPUTE_BF16), 0, 0);
    CHECK_NEAR(device_peak_tflops("", COMPUTE_F32), 0, 0);
}

static void test_host(void) {
    struct device *device = NULL;
    struct device_memory memory;
    unsigned char from[1000];
    CHECK_INT(device_count(DEVICE_CPU), 1);
    CHECK_INT(device_open(&device, DEVICE_CPU, 0), STATUS_OK);
    CHECK(device == device_host() && device_is_host(device));
    CHECK(device->compute == &compute_cpu && strcmp(device->name, "cpu") == 0);
    device_memory(device, &memory);
    CHECK(memory.total > 0);
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (unsigned char)(i % 251 + 1);
    unsigned char *there = device_take(device, sizeof from);
    unsigned char *pinned = device_take_pinned(device, 1);
    CHECK(there != NULL && (uintptr_t)there % 256 == 0 && pinned != NULL);
    CHECK(device_pin(device, from, sizeof from));
    struct device_event *event = device_event_open(device);
    CHECK_INT(device_done(device, event), STATUS_OK);
    device_copy(device, DEVICE_COPY_IN, there, from, sizeof from, DEVICE_TO);
    device_event_record(device, event, DEVICE_COPY_IN);
    CHECK(memcmp(there, from, sizeof from) == 0);
    device_event_wait(device, DEVICE_COMPUTE, event);
    device_zero(device, DEVICE_COMPUTE, there + 1, 998);
    CHECK(there[0] == from[0] && there[1] == 0 && there[998] == 0 && there[999] == from[999]);
    CHECK_INT(device_done(device, event), STATUS_OK);
    CHECK_INT(device_sync(device, event), STATUS_OK);
    CHECK_INT(device_wait(device, DEVICE_COMPUTE), STATUS_OK);
    device_event_close(device, event);
    char bus_id[32];
    CHECK(!device_bus_id(device, bus_id, sizeof bus_id));
    device_enter(device);
    device_range_begin(device, "nothing");
    device_range_end(device);
    CHECK(!device_record(device, true));
    device_unpin(device, from);
    device_give(device, there);
    device_give_pinned(device, pinned);
    device_close(device);
    device_close(NULL);
    log_restart();
    CHECK_INT(device_open(&device, DEVICE_CPU, 1), STATUS_DEVICE);
    EXPECT_LOG(" error ", 1);
    EXPECT_LOG("there is no cpu:1", 1);
    CHECK(device_take(device_host(), SIZE_MAX) == NULL);
    EXPECT_LOG("out of memory", 1);
}

/* ---- where CUDA's library is, and is not ---- */

struct place {
    char folder[64], program[96], beside[96], elsewhere[96];
};

static void copy_file(const char *from, const char *to) {
    char content[65536];
    int source = open(from, O_RDONLY), target = open(to, O_CREAT | O_TRUNC | O_WRONLY, 0755);
    ssize_t bytes = 0;
    CHECK(source >= 0 && target >= 0);
    while ((bytes = read(source, content, sizeof content)) > 0)
        CHECK(write(target, content, (size_t)bytes) == bytes);
    CHECK_INT(bytes, 0);
    close(source);
    CHECK_INT(close(target), 0);
}

static void write_file(const char *path, const char *content) {
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(content, file) >= 0 && fclose(file) == 0);
}

static void make_place(struct place *place) {
    static const char *const folders[] = {"bin", "lib", "elsewhere"};
    char path[96];
    snprintf(place->folder, sizeof place->folder, "/tmp/rubato-test-XXXXXX");
    CHECK(mkdtemp(place->folder) != NULL);
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", place->folder, folders[i]);
        CHECK_INT(mkdir(path, 0755), 0);
    }
    snprintf(place->program, sizeof place->program, "%s/bin/program", place->folder);
    snprintf(place->beside, sizeof place->beside, "%s/lib/librubato_cuda.so", place->folder);
    snprintf(place->elsewhere, sizeof place->elsewhere, "%s/elsewhere/librubato_cuda.so",
             place->folder);
    copy_file("/proc/self/exe", place->program);
}

static void remove_place(const struct place *place) {
    static const char *const paths[] = {"bin/program",
                                        "lib/librubato_cuda.so",
                                        "elsewhere/librubato_cuda.so",
                                        "bin",
                                        "lib",
                                        "elsewhere",
                                        ""};
    char path[160];
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", place->folder, paths[i]);
        (void)remove(path);
    }
}

/* The copy opens a CUDA device -> the status that it got; its log is this one's. */
static int open_there(const struct place *place) {
    char variable[128];
    char program[sizeof place->program];
    char word[] = "open";
    char *argv[] = {program, word, NULL}, *envp[] = {variable, NULL};
    pid_t child = 0;
    int state = 0;
    snprintf(program, sizeof program, "%s", place->program);
    snprintf(variable, sizeof variable, "LD_LIBRARY_PATH=%s/elsewhere", place->folder);
    log_restart();
    CHECK_INT(posix_spawn(&child, place->program, NULL, NULL, argv, envp), 0);
    CHECK(waitpid(child, &state, 0) == child && WIFEXITED(state));
    EXPECT_LOG(" error ", 1);
    EXPECT_LOG("no CUDA device can be used", 1);
    return WEXITSTATUS(state) - CODE_BASE;
}

/* The file of a library that this program has loaded: any that is not ours. */
static void find_library(char *path, size_t path_bytes) {
    char line[PATH_MAX + 128];
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    path[0] = 0;
    while (path[0] == 0 && fgets(line, sizeof line, maps) != NULL) {
        char *name = strchr(line, '/');
        if (name == NULL || strstr(name, "/libm.so") == NULL) continue;
        name[strcspn(name, "\n")] = 0;
        snprintf(path, path_bytes, "%s", name);
    }
    fclose(maps);
    CHECK(path[0] != 0);
}

static void test_missing_library(void) {
    struct place place;
    char other[PATH_MAX];
    make_place(&place);
    CHECK_INT(open_there(&place), STATUS_DEVICE);
    EXPECT_LOG("there is no librubato_cuda.so", 1);

    write_file(place.beside, "this is no library");
    CHECK_INT(open_there(&place), STATUS_DEVICE);
    EXPECT_LOG("/lib/librubato_cuda.so: file too short", 1);
    EXPECT_LOG("libcublas", 1);

    find_library(other, sizeof other);
    copy_file(other, place.beside);
    CHECK_INT(open_there(&place), STATUS_DEVICE);
    EXPECT_LOG("of another build than this program", 1);

    write_file(place.elsewhere, "this is no library either");
    CHECK_INT(open_there(&place), STATUS_DEVICE);
    EXPECT_LOG("/elsewhere/librubato_cuda.so: file too short", 1);
    remove_place(&place);
}

int main(int argc, char **argv) {
    struct device *device = NULL;
    if (argc == 2 && strcmp(argv[1], "open") == 0)
        return CODE_BASE + (int)device_open(&device, DEVICE_CUDA, 0);
    log_capture();
    TEST_RUN(test_parse);
    TEST_RUN(test_peak);
    TEST_RUN(test_host);
    TEST_RUN(test_missing_library);
    return 0;
}
