/* device_math.cuh - the arithmetic and the loads that NVIDIA's headers keep for nvcc.
 *
 * Operations with a named rounding (__fmul_rn, fmaf, __float2int_rn, ...) give a GPU's bits. The
 * approximate ones (__expf, rsqrtf, ...) are computed better than a GPU does, so a comparison with
 * a reference needs a tolerance that is the GPU's.
 */
#ifndef RUBATO_TESTS_DEVICE_MATH_CUH
#define RUBATO_TESTS_DEVICE_MATH_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <limits>
#include <math.h>

static inline int __float_as_int(float value) {
    return cuda_on_cpu::from_bits<int>(cuda_on_cpu::to_bits(value));
}
static inline unsigned __float_as_uint(float value) {
    return cuda_on_cpu::from_bits<unsigned>(cuda_on_cpu::to_bits(value));
}
static inline float __int_as_float(int value) {
    return cuda_on_cpu::from_bits<float>(cuda_on_cpu::to_bits(value));
}
static inline float __uint_as_float(unsigned value) {
    return cuda_on_cpu::from_bits<float>(cuda_on_cpu::to_bits(value));
}

// Built with -ffp-contract=off, so each is one rounded operation.
static inline float __fmul_rn(float a, float b) {
    return a * b;
}
static inline float __fadd_rn(float a, float b) {
    return a + b;
}
static inline float __fsub_rn(float a, float b) {
    return a - b;
}
static inline float __fdiv_rn(float a, float b) {
    return a / b;
}
static inline float __fmaf_rn(float a, float b, float c) {
    return fmaf(a, b, c);
}
static inline float __frcp_rn(float a) {
    return 1.0F / a;
}
static inline float __fsqrt_rn(float a) {
    return sqrtf(a);
}
static inline double __dadd_rn(double a, double b) {
    return a + b;
}
static inline double __dmul_rn(double a, double b) {
    return a * b;
}
static inline double __dsqrt_rn(double a) {
    return sqrt(a);
}
static inline float rsqrtf(float a) {
    return (float)(1.0 / sqrt((double)a));
}
static inline float __fdividef(float a, float b) {
    return a / b;
}
static inline float __saturatef(float a) {
    return a > 0.0F ? fminf(a, 1.0F) : 0.0F; // NaN gives 0
}

// Macros, since glibc declares functions of these names.
#define __expf(a)    expf(a)
#define __exp2f(a)   exp2f(a)
#define __logf(a)    logf(a)
#define __log2f(a)   log2f(a)
#define __sinf(a)    sinf(a)
#define __cosf(a)    cosf(a)
#define __powf(a, b) powf(a, b)
#define __tanhf(a)   tanhf(a)

namespace cuda_on_cpu {
// CUDA's conversions clamp, and NaN gives 0.
template <class I> I to_integer(double rounded) {
    const I low = std::numeric_limits<I>::min(), high = std::numeric_limits<I>::max();
    if (isnan(rounded)) return 0;
    if (rounded <= (double)low) return low;
    return rounded >= (double)high ? high : (I)rounded;
}
} // namespace cuda_on_cpu
static inline int __float2int_rn(float a) {
    return cuda_on_cpu::to_integer<int>(rint((double)a));
}
static inline int __float2int_rz(float a) {
    return cuda_on_cpu::to_integer<int>(trunc((double)a));
}
static inline int __float2int_rd(float a) {
    return cuda_on_cpu::to_integer<int>(floor((double)a));
}
static inline int __float2int_ru(float a) {
    return cuda_on_cpu::to_integer<int>(ceil((double)a));
}
static inline unsigned __float2uint_rn(float a) {
    return cuda_on_cpu::to_integer<unsigned>(rint((double)a));
}
static inline float __int2float_rn(int a) {
    return (float)a;
}
static inline float __uint2float_rn(unsigned a) {
    return (float)a;
}

static inline int __popc(unsigned a) {
    return __builtin_popcount(a);
}
static inline int __popcll(unsigned long long a) {
    return __builtin_popcountll(a);
}
static inline int __ffs(int a) {
    return __builtin_ffs(a);
}
static inline int __clz(int a) {
    return a != 0 ? __builtin_clz((unsigned)a) : 32;
}
static inline int __clzll(long long a) {
    return a != 0 ? __builtin_clzll((unsigned long long)a) : 64;
}
static inline unsigned __brev(unsigned a) {
    unsigned reversed = 0;
    for (int i = 0; i < 32; i++)
        reversed |= ((a >> i) & 1U) << (31 - i);
    return reversed;
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)(((uint64_t)a * b) >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    __extension__ typedef unsigned __int128 wide;
    return (unsigned long long)(((wide)a * b) >> 64);
}

template <class A, class B> static inline std::common_type_t<A, B> min(A a, B b) {
    using both = std::common_type_t<A, B>;
    return (both)b < (both)a ? (both)b : (both)a;
}
template <class A, class B> static inline std::common_type_t<A, B> max(A a, B b) {
    using both = std::common_type_t<A, B>;
    return (both)a < (both)b ? (both)b : (both)a;
}

#define CACHED_LOAD(name)                                                                          \
    template <class T> static inline T name(const T *place) {                                      \
        return *place;                                                                             \
    }
CACHED_LOAD(__ldg)
CACHED_LOAD(__ldca)
CACHED_LOAD(__ldcg)
CACHED_LOAD(__ldcs)
#undef CACHED_LOAD
#define CACHED_STORE(name)                                                                         \
    template <class T> static inline void name(T *place, cuda_on_cpu::operand<T> value) {          \
        *place = value;                                                                            \
    }
CACHED_STORE(__stcg)
CACHED_STORE(__stcs)
#undef CACHED_STORE

#endif
