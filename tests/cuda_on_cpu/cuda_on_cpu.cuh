/* cuda_on_cpu.cuh - read ahead of a .cu file (g++ -xc++ -include), makes it C++ for the CPU.
 *
 * Types and declarations are those of NVIDIA's own headers, which compile without nvcc; what they
 * keep for nvcc is added here and in device_sync.cuh, device_atomics.cuh, device_math.cuh and
 * wmma_on_cpu.cuh. A
 * kernel is a plain function that simt.cpp calls once for each CUDA thread, each on a stack of its
 * own, one block after another and one kernel at a time. So the built-in variables can be plain
 * globals, and __shared__ plain statics, gathered in a section that is filled with NaNs before
 * each block. A launch goes through cudaLaunchKernelEx(), which becomes a template below.
 *
 * README.md has the rules for authors of kernels.
 */
#ifndef RUBATO_TESTS_CUDA_ON_CPU_CUH
#define RUBATO_TESTS_CUDA_ON_CPU_CUH

#include <cuda_runtime.h>
#include <functional>
#include <stdint.h>
#include <string.h>
#include <tuple>
#include <type_traits>

// Where code and data go: everything to the CPU.
#undef __shared__
#undef __constant__
#undef __device__
#undef __global__
#undef __host__
#undef __launch_bounds__
#define __shared__   static __attribute__((section("cuda_shared")))
#define __constant__ static
#define __device__
#define __global__
#define __host__
#define __launch_bounds__(...)
/* In kernels/cuda/launch.cuh it is extern __shared__; the array itself is simt.cpp's. */
#define DYNAMIC_SHARED extern

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static constexpr int warpSize = 32;

namespace cuda_on_cpu {

/* Prints the text, the kernel, the block and the thread, and aborts. Any thread. */
[[noreturn]] __attribute__((format(printf, 1, 2))) void die(const char *format, ...);

struct launch {
    const void *function; /* the kernel: its name in reports, its attributes */
    dim3 grid, block;
    size_t shared_bytes;        /* dynamic shared memory */
    std::function<void()> body; /* calls the kernel with its arguments */
};

/* Checks the launch and queues it on the stream. pointers [count]: the kernel's direct pointer
 * arguments, which must be live device memory of the stream's device or pinned memory. */
cudaError_t enqueue_kernel(const struct launch &launch, cudaStream_t stream,
                           const void *const *pointers, int count);

/* One in each library of kernels: where its __shared__ variables lie. */
struct shared_section {
    shared_section(char *begin, char *end);
};

template <class T> void collect_pointer(const void **pointers, int &count, const T &argument) {
    if constexpr (std::is_pointer_v<T>) pointers[count++] = (const void *)argument;
}

/* In the place of cudaLaunchKernelEx(). The arguments are converted to the parameters' types and
 * copied at the call, as CUDA does. */
template <class... P, class... A>
cudaError_t launch_kernel(const cudaLaunchConfig_t *config, void (*kernel)(P...),
                          A &&...arguments) {
    std::tuple<std::decay_t<P>...> values(static_cast<P>(arguments)...);
    const void *pointers[sizeof...(P) + 1];
    int count = 0;
    std::apply([&](const auto &...value) { (collect_pointer(pointers, count, value), ...); },
               values);
    struct launch launch = {(const void *)kernel, config->gridDim, config->blockDim,
                            config->dynamicSmemBytes,
                            [kernel, values]() { std::apply(kernel, values); }};
    return enqueue_kernel(launch, config->stream, pointers, count);
}

/* A value of up to 8 bytes as bits, and back. */
template <class T> uint64_t to_bits(T value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8, "of up to 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return bits;
}
template <class T> T from_bits(uint64_t bits) {
    T value;
    memcpy((void *)&value, &bits, sizeof value);
    return value;
}

} // namespace cuda_on_cpu

#define cudaLaunchKernelEx cuda_on_cpu::launch_kernel

// The linker defines these two for a section whose name is an identifier.
extern "C" __attribute__((weak, visibility("hidden"))) char __start_cuda_shared[];
extern "C" __attribute__((weak, visibility("hidden"))) char __stop_cuda_shared[];
namespace {
[[maybe_unused]] cuda_on_cpu::shared_section this_library(__start_cuda_shared, __stop_cuda_shared);
}

/* The typed form, which cuda_runtime.h keeps for nvcc. */
template <class R, class... P>
cudaError_t cudaFuncSetAttribute(R (*kernel)(P...), cudaFuncAttribute attribute, int value) {
    return cudaFuncSetAttribute((const void *)kernel, attribute, value);
}

#include "device_atomics.cuh"
#include "device_math.cuh"
#include "device_sync.cuh"
#include "wmma_on_cpu.cuh"

#endif
