/* nvml.h - what NVIDIA's management library (NVML) tells of a GPU: memory of all processes,
 * utilisation, temperature.
 *
 * The library comes with the driver and is loaded when it is first asked for; its few functions
 * that are used here are declared in nvml.c, so that no header of it is needed. Any thread may
 * call, one at a time for each object; a reading takes some 10 us to some ms.
 */
#ifndef RUBATO_KERNELS_CUDA_NVML_H
#define RUBATO_KERNELS_CUDA_NVML_H

#include "base/status.h"
#include "kernels/device.h"

#define NVML_LIBRARY "libnvidia-ml.so.1"

struct nvml;

/* `library`: NVML_LIBRARY; `bus_id`: cudaDeviceGetPCIBusId()'s. UNSUPPORTED: there is no such
 * library, or not one that knows the device; logged as a warning, since training needs none. */
enum status nvml_open(struct nvml **nvml, const char *library, const char *bus_id) WARN_UNUSED;

/* Harmless on NULL. */
void nvml_close(struct nvml *nvml);

/* DEVICE, in silence: not even the memory is told now. */
enum status nvml_read(struct nvml *nvml, struct device_reading *reading) WARN_UNUSED;

#endif
