/* library_cuda.h - the one entry of librubato_cuda.so, for who loads it (kernels/device.c). Needs
 * no header of CUDA.
 *
 * The library has copies of its own of what it needs from base/, all without state. The level of
 * messages is state, and the program's: it hands its log_write() over, and the library's goes there
 * (library_cuda.c). So the program need not export anything, and any program can load the library.
 */
#ifndef RUBATO_KERNELS_CUDA_LIBRARY_CUDA_H
#define RUBATO_KERNELS_CUDA_LIBRARY_CUDA_H

#include "base/log.h"

struct device_backend;

/* log_write(), or one like it. */
typedef void library_log_fn(enum log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* "rubato_cuda_backend" of the library, found by name: CUDA as kernels/device.h has it. `log` takes
 * all messages from now on. Ahead of other threads that use the library. */
typedef const struct device_backend *library_entry_fn(library_log_fn *log);

__attribute__((visibility("default"))) const struct device_backend *
rubato_cuda_backend(library_log_fn *log);

#endif
