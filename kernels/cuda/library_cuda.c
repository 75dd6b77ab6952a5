#include "kernels/cuda/library_cuda.h"

#include "kernels/cuda/device_cuda.h"

#include <stdarg.h>
#include <stdio.h>

/* Set once, when the library is loaded. */
static library_log_fn *program_log;

const struct device_backend *rubato_cuda_backend(library_log_fn *log) {
    program_log = log;
    return &device_cuda;
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
