/* sanitizer_hooks.cuh - what the stand-in tells the sanitizers; nothing in the plain flavour.
 *
 * The stand-in itself is never instrumented: it would see its own scheduling as races and its own
 * filling of memory as overruns. It is linked with the sanitizer that kernels and tests are built
 * with, which CUDA_ON_CPU_ASAN or CUDA_ON_CPU_TSAN names. The only file with an #ifdef for that,
 * but for the stacks in fiber.cpp.
 */
#ifndef RUBATO_TESTS_SANITIZER_HOOKS_CUH
#define RUBATO_TESTS_SANITIZER_HOOKS_CUH

#include <stddef.h>
#include <stdint.h>

#if defined(CUDA_ON_CPU_ASAN)
#include <sanitizer/asan_interface.h>
#elif defined(CUDA_ON_CPU_TSAN)
#include <sanitizer/tsan_interface.h>
// libtsan exports them without a header; together they make it forget who accessed a range.
extern "C" void __tsan_java_alloc(unsigned long start, unsigned long bytes);
extern "C" void __tsan_java_free(unsigned long start, unsigned long bytes);
#endif

namespace cuda_on_cpu {

#if defined(CUDA_ON_CPU_ASAN)
constexpr bool WITH_ASAN = true;
#else
constexpr bool WITH_ASAN = false;
#endif
#if defined(CUDA_ON_CPU_TSAN)
constexpr bool WITH_TSAN = true;
#else
constexpr bool WITH_TSAN = false;
#endif

/* What happened before a release(tag) in one thread has happened after an acquire(tag) in another;
 * the thread sanitizer knows no other order among CUDA threads. */
inline void order_release([[maybe_unused]] void *tag) {
#if defined(CUDA_ON_CPU_TSAN)
    __tsan_release(tag);
#endif
}
inline void order_acquire([[maybe_unused]] void *tag) {
#if defined(CUDA_ON_CPU_TSAN)
    __tsan_acquire(tag);
#endif
}

/* The range is new memory: earlier accesses to it race with nothing. */
inline void order_forget([[maybe_unused]] char *start, [[maybe_unused]] size_t bytes) {
#if defined(CUDA_ON_CPU_TSAN)
    uintptr_t first = (uintptr_t)start & ~(uintptr_t)7;
    uintptr_t length = ((uintptr_t)start + bytes + 7 - first) & ~(uintptr_t)7;
    if (bytes == 0) return;
    __tsan_java_free(first, length);
    __tsan_java_alloc(first, length);
#endif
}

/* Nobody may touch the range; everybody may. */
inline void fence_off([[maybe_unused]] const void *start, [[maybe_unused]] size_t bytes) {
#if defined(CUDA_ON_CPU_ASAN)
    __asan_poison_memory_region(start, bytes);
#endif
}
inline void fence_open([[maybe_unused]] const void *start, [[maybe_unused]] size_t bytes) {
#if defined(CUDA_ON_CPU_ASAN)
    __asan_unpoison_memory_region(start, bytes);
#endif
}

} // namespace cuda_on_cpu

#endif
