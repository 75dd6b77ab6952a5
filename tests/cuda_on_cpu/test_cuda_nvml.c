/* test_cuda_nvml.c - what NVML tells of a GPU (kernels/cuda/nvml.h, device_watch), from a library
 * in its place (nvml_cpu.c) whose answers are known: all of a GPU, less of one that does not tell
 * all, and the ways in which there is nothing to read: no library, one that is not NVML, a device
 * that it does not know.
 */
#include "base/log.h"
#include "kernels/cuda/library_cuda.h"
#include "kernels/cuda/nvml.h"
#include "tests/test.h"

#include <stdarg.h>

static const struct device_backend *cuda;
static int lines;

__attribute__((format(printf, 2, 3))) static void count_line(enum log_level level,
                                                             const char *format, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    /* As in kernels/cuda/library_cuda.c. NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized) */
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    log_write(level, "%s", line);
    lines++;
}

static const struct device_reading whole = {80000000000, 30000000000, 97, 61};
static const struct device_reading part = {40000000000, 1000000000, -1, -1};

static void check_same(const struct device_reading *actual, const struct device_reading *expected) {
    CHECK_INT(actual->memory_total, expected->memory_total);
    CHECK_INT(actual->memory_used, expected->memory_used);
    CHECK_INT(actual->utilisation, expected->utilisation);
    CHECK_INT(actual->temperature, expected->temperature);
}

static void check_reading(struct nvml *nvml, const struct device_reading *expected) {
    struct device_reading reading;
    CHECK_INT(nvml_read(nvml, &reading), STATUS_OK);
    check_same(&reading, expected);
}

/* Closing one does not end the other's. */
static void readings(void) {
    struct nvml *first = NULL, *second = NULL;
    CHECK_INT(nvml_open(&first, NVML_LIBRARY, "0000:01:00.0"), STATUS_OK);
    CHECK_INT(nvml_open(&second, NVML_LIBRARY, "0000:02:00.0"), STATUS_OK);
    check_reading(first, &whole);
    check_reading(second, &part);
    nvml_close(first);
    check_reading(second, &part);
    nvml_close(second);
    nvml_close(NULL);
    CHECK_INT(lines, 0);
}

static void check_refused(const char *library, const char *bus_id) {
    struct nvml *nvml = NULL;
    int before = lines;
    CHECK_INT(nvml_open(&nvml, library, bus_id), STATUS_UNSUPPORTED);
    CHECK(nvml == NULL);
    CHECK_INT(lines, before + 1);
}

static void refused(void) {
    check_refused(NVML_LIBRARY, "0000:03:00.0");
    check_refused("libno-such-library.so.1", "0000:01:00.0");
    check_refused("libm.so.6", "0000:01:00.0");
}

/* The stand-in's devices have these bus ids. */
static void devices(void) {
    for (int i = 0; i < cuda->count() && i < 2; i++) {
        struct device *device = NULL;
        CHECK_INT(cuda->open(&device, i), STATUS_OK);
        for (int round = 0; round < 2; round++) {
            struct device_reading reading;
            CHECK(cuda->watch(device, &reading));
            check_same(&reading, i == 0 ? &whole : &part);
        }
        cuda->close(device);
    }
    CHECK_INT(lines, 0);
}

int main(void) {
    const struct library_abi abi = library_abi();
    cuda = rubato_cuda_library(&abi, count_line);
    TEST_RUN(readings);
    TEST_RUN(devices);
    TEST_RUN(refused);
    return 0;
}
