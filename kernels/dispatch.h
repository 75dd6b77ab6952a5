/* dispatch.h - one build for every x86-64 chip: hot loops are compiled several times, and the
 * dynamic linker picks the clone that the chip can run (gcc's target_clones, an ifunc each).
 *
 * KERNEL_CLONES goes before a static function that holds plain loops. Such a function must not hold
 * an OpenMP parallel region: the compiler moves its body to a function of its own, without the
 * clones. `omp simd` is fine. The build defines RUBATO_NO_CLONES under the sanitizers, whose
 * run-time is not ready yet when ifuncs are resolved.
 */
#ifndef RUBATO_KERNELS_DISPATCH_H
#define RUBATO_KERNELS_DISPATCH_H

#include <stdbool.h>
#include <stddef.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(RUBATO_NO_CLONES)
#define KERNEL_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define KERNEL_CLONES
#endif

/* Asks for the line of memory `bytes` behind p. It may be behind the end of p's array: there often
 * lies what is worked on next. */
static inline void kernel_prefetch(const void *p, size_t bytes) {
    __builtin_prefetch((const char *)p + bytes);
}

/* For what helps one maker's chips and costs on another's. Never for what changes a result. */
static inline bool kernel_chip_is_amd(void) {
#if defined(__x86_64__) && defined(__GNUC__)
    return __builtin_cpu_is("amd") != 0;
#else
    return false;
#endif
}

#endif
