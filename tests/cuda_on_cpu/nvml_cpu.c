/* nvml_cpu.c - in the place of NVIDIA's management library: two GPUs, of which the second tells
 * neither utilisation nor temperature, as a part of a GPU (MIG) does not.
 */
#include <stddef.h>
#include <string.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

struct gpu {
    const char *bus_id;
    unsigned long long memory[3]; /* total, free, used */
    int whole;
};
static struct gpu gpus[] = {{"0000:01:00.0", {80000000000, 50000000000, 30000000000}, 1},
                            {"0000:02:00.0", {40000000000, 39000000000, 1000000000}, 0}};
static int users;

/* NVIDIA's names. NOLINTBEGIN(readability-identifier-naming) */
int nvmlInit_v2(void);
int nvmlShutdown(void);
const char *nvmlErrorString(int code);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **device);
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory);
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates);
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius);

int nvmlInit_v2(void) {
    users++;
    return SUCCESS;
}

int nvmlShutdown(void) {
    if (users == 0) return UNINITIALIZED;
    users--;
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    return code == NOT_FOUND ? "Not Found" : "another error";
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **device) {
    for (size_t i = 0; i < sizeof gpus / sizeof gpus[0]; i++) {
        if (strcmp(bus_id, gpus[i].bus_id) != 0) continue;
        *device = &gpus[i];
        return SUCCESS;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) {
    if (users == 0) return UNINITIALIZED;
    memcpy(memory, ((struct gpu *)device)->memory, sizeof gpus[0].memory);
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
    if (!((struct gpu *)device)->whole) return NOT_SUPPORTED;
    rates[0] = 97;
    rates[1] = 12;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    if (!((struct gpu *)device)->whole) return NOT_SUPPORTED;
    *celsius = sensor == 0 ? 61 : 0;
    return SUCCESS;
}
/* NOLINTEND(readability-identifier-naming) */
