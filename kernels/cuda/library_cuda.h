/* library_cuda.h - the one entry of librubato_cuda.so, for who loads it (kernels/device.c). Needs
 * no header of CUDA.
 *
 * The library has copies of its own of what it needs from base/, all without state. The level of
 * messages is state, and the program's: it hands its log_write() over, and the library's goes there
 * (library_cuda.c). So the program need not export anything, and any program can load the library.
 * Both must have been built from the same tables. The program says what it knows of them, and a
 * library of another build refuses to be used; one that is older than this check has no such entry.
 */
#ifndef RUBATO_KERNELS_CUDA_LIBRARY_CUDA_H
#define RUBATO_KERNELS_CUDA_LIBRARY_CUDA_H

#include "base/log.h"
#include "kernels/compute.h"
#include "kernels/device.h"
#include "kernels/group.h"

/* To be raised with each change of what program and library share that the sizes below do not show:
 * a function's arguments or meaning, the order of a table, an enum, compression/cuda's table. */
enum { LIBRARY_ABI_VERSION = 6 };

/* What one side knows of the tables and structs that it shares with the other. */
struct library_abi {
    uint32_t bytes; /* of this struct: first, so that older and newer ones can be told apart */
    uint32_t version;
    uint32_t backend, device, memory, reading; /* bytes of device.h's structs, */
    uint32_t compute, need, linear, attention; /* of compute.h's and of what it includes, */
    uint32_t group;                            /* and of group.h's table */
};

/* Of who calls it. */
static inline struct library_abi library_abi(void) {
    return (struct library_abi){.bytes = sizeof(struct library_abi),
                                .version = LIBRARY_ABI_VERSION,
                                .backend = sizeof(struct device_backend),
                                .device = sizeof(struct device),
                                .memory = sizeof(struct device_memory),
                                .reading = sizeof(struct device_reading),
                                .compute = sizeof(struct compute_ops),
                                .need = sizeof(struct compute_need),
                                .linear = sizeof(struct linear_shape),
                                .attention = sizeof(struct attention_shape),
                                .group = sizeof(struct group_ops)};
}

/* log_write(), or one like it. */
typedef void library_log_fn(enum log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* "rubato_cuda_library" of the library, found by name: CUDA as kernels/device.h has it; NULL,
 * logged: `abi` is not the library's own. `log` takes all messages from now on. Ahead of other
 * threads that use the library. */
typedef const struct device_backend *library_entry_fn(const struct library_abi *abi,
                                                      library_log_fn *log);

__attribute__((visibility("default"))) const struct device_backend *
rubato_cuda_library(const struct library_abi *abi, library_log_fn *log);

#endif
