#include "kernels/cuda/nvml.h"

#include "base/log.h"
#include "base/memory.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* NVML's own: nvmlReturn_t 0 is success, nvmlDevice_t a pointer, sensor 0 the GPU's. */
struct nvml_memory {
    unsigned long long total, unused, used;
};
struct nvml_utilisation {
    unsigned gpu, memory;
};

struct nvml_calls {
    int (*init)(void);
    int (*shut_down)(void);
    const char *(*error_text)(int code);
    int (*find)(const char *bus_id, void **device);
    int (*memory)(void *device, struct nvml_memory *memory);
    int (*utilisation)(void *device, struct nvml_utilisation *utilisation);
    int (*temperature)(void *device, int sensor, unsigned *celsius);
};

static const struct {
    const char *name;
    size_t offset;
} symbols[] = {{"nvmlInit_v2", offsetof(struct nvml_calls, init)},
               {"nvmlShutdown", offsetof(struct nvml_calls, shut_down)},
               {"nvmlErrorString", offsetof(struct nvml_calls, error_text)},
               {"nvmlDeviceGetHandleByPciBusId_v2", offsetof(struct nvml_calls, find)},
               {"nvmlDeviceGetMemoryInfo", offsetof(struct nvml_calls, memory)},
               {"nvmlDeviceGetUtilizationRates", offsetof(struct nvml_calls, utilisation)},
               {"nvmlDeviceGetTemperature", offsetof(struct nvml_calls, temperature)}};

struct nvml {
    void *library;
    void *device;
    struct nvml_calls calls;
};

/* NULL, or the name of a function that the library lacks. */
static const char *load_calls(struct nvml *nvml) {
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *symbol = dlsym(nvml->library, symbols[i].name);
        if (!symbol) return symbols[i].name;
        /* As POSIX has it: ISO C does not convert a pointer to data into one to a function. */
        memcpy((char *)&nvml->calls + symbols[i].offset, &symbol, sizeof symbol);
    }
    return NULL;
}

static enum status find_device(struct nvml *nvml, const char *bus_id) {
    int code = nvml->calls.init();
    if (code != 0) {
        log_warn("no readings of GPU %s: NVML does not start: %s", bus_id,
                 nvml->calls.error_text(code));
        return STATUS_UNSUPPORTED;
    }
    code = nvml->calls.find(bus_id, &nvml->device);
    if (code == 0) return STATUS_OK;
    log_warn("no readings of GPU %s: NVML: %s", bus_id, nvml->calls.error_text(code));
    (void)nvml->calls.shut_down();
    return STATUS_UNSUPPORTED;
}

enum status nvml_open(struct nvml **nvml, const char *library, const char *bus_id) {
    struct nvml *opened = memory_zeroed(1, sizeof *opened);
    enum status status = STATUS_UNSUPPORTED;
    opened->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!opened->library) {
        log_warn("no readings of GPU %s (memory of all processes, utilisation, temperature): %s; "
                 "it comes with NVIDIA's driver",
                 bus_id, dlerror());
        goto free_opened;
    }
    const char *missing = load_calls(opened);
    if (missing) {
        log_warn("no readings of GPU %s: %s has no %s", bus_id, library, missing);
        goto close_library;
    }
    status = find_device(opened, bus_id);
    if (status != STATUS_OK) goto close_library;
    *nvml = opened;
    return STATUS_OK;

close_library:
    dlclose(opened->library);
free_opened:
    free(opened);
    return status;
}

void nvml_close(struct nvml *nvml) {
    if (!nvml) return;
    (void)nvml->calls.shut_down();
    dlclose(nvml->library);
    free(nvml);
}

enum status nvml_read(struct nvml *nvml, struct device_reading *reading) {
    struct nvml_memory memory;
    struct nvml_utilisation utilisation;
    unsigned celsius = 0;
    if (nvml->calls.memory(nvml->device, &memory) != 0) return STATUS_DEVICE;
    *reading = (struct device_reading){.memory_total = memory.total,
                                       .memory_used = memory.used,
                                       .utilisation = -1,
                                       .temperature = -1};
    if (nvml->calls.utilisation(nvml->device, &utilisation) == 0)
        reading->utilisation = (int)utilisation.gpu;
    if (nvml->calls.temperature(nvml->device, 0, &celsius) == 0)
        reading->temperature = (int)celsius;
    return STATUS_OK;
}
