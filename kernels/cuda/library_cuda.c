#include "kernels/cuda/library_cuda.h"

#include "kernels/cuda/device_cuda.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Set once, when the library is loaded. */
static library_log_fn *program_log;

const struct device_backend *rubato_cuda_library(const struct library_abi *abi,
                                                 library_log_fn *log) {
    const struct library_abi own = library_abi();
    program_log = log;
    if (abi->bytes == own.bytes && memcmp(abi, &own, sizeof own) == 0) return &device_cuda;
    log_write(LOG_ERROR,
              "no CUDA device can be used: the librubato_cuda.so that was found (its interface: "
              "version %" PRIu32 ", tables of %" PRIu32 " and %" PRIu32
              " bytes) is of another build than this program (version %" PRIu32
              "); build both from the same source, or set LD_LIBRARY_PATH to the right one",
              own.version, own.backend, own.compute, abi->version);
    return NULL;
}

/* The library's log_write(), in the place of base's. Hidden, so that it never takes the place of
 * the program's, too. */
__attribute__((visibility("hidden"))) void log_write(enum log_level level, const char *format,
                                                     ...) {
    char line[2048];
    va_list arguments;
    if (!program_log) return;
    va_start(arguments, format);
    /* clang-tidy 14 errs where it reads a file twice, as it does each flavour's.
     * NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized) */
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    program_log(level, "%s", line);
}
