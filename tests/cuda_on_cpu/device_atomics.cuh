/* device_atomics.cuh - CUDA's atomics and fences, for kernels on the CPU.
 *
 * All are loops of compare and exchange by the compiler's atomics, so that the thread sanitizer
 * knows them as such. They are acquire and release, stronger than CUDA's relaxed ones, and fences
 * do nothing: a fault that only a weaker memory model shows is not seen here.
 */
#ifndef RUBATO_TESTS_DEVICE_ATOMICS_CUH
#define RUBATO_TESTS_DEVICE_ATOMICS_CUH

namespace cuda_on_cpu {

template <size_t BYTES>
using word_of =
    std::conditional_t<BYTES == 2, uint16_t, std::conditional_t<BYTES == 4, uint32_t, uint64_t>>;

// Keeps a parameter from taking part in the deduction of T: atomicAdd(float *, int) is allowed.
template <class T> struct same { using type = T; };
template <class T> using operand = typename same<T>::type;

/* *place = change(*place), at once; the old value is returned. */
template <class T, class F> T atomic_update(T *place, F change) {
    using word = word_of<sizeof(T)>;
    static_assert(sizeof(T) == sizeof(word), "of 2, 4 or 8 bytes");
    word *bits = (word *)place;
    word seen = __atomic_load_n(bits, __ATOMIC_RELAXED);
    for (;;) {
        T old;
        memcpy((void *)&old, &seen, sizeof seen);
        T made = change(old);
        word next;
        memcpy(&next, (const void *)&made, sizeof next);
        if (__atomic_compare_exchange_n(bits, &seen, next, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE))
            return old;
    }
}

} // namespace cuda_on_cpu

#define ATOMIC_OPERATION(name, expression)                                                         \
    template <class T> static inline T name(T *place, cuda_on_cpu::operand<T> value) {             \
        return cuda_on_cpu::atomic_update(place, [=](T old) { return (T)(expression); });          \
    }
ATOMIC_OPERATION(atomicAdd, old + value)
ATOMIC_OPERATION(atomicSub, old - value)
ATOMIC_OPERATION(atomicMax, old > value ? old : value)
ATOMIC_OPERATION(atomicMin, old < value ? old : value)
ATOMIC_OPERATION(atomicAnd, old &value)
ATOMIC_OPERATION(atomicOr, old | value)
ATOMIC_OPERATION(atomicXor, old ^ value)
#undef ATOMIC_OPERATION

template <class T> static inline T atomicExch(T *place, cuda_on_cpu::operand<T> value) {
    return cuda_on_cpu::atomic_update(place, [=](T) { return value; });
}
template <class T>
static inline T atomicCAS(T *place, cuda_on_cpu::operand<T> expected,
                          cuda_on_cpu::operand<T> value) {
    return cuda_on_cpu::atomic_update(place, [=](T old) { return old == expected ? value : old; });
}
static inline unsigned atomicInc(unsigned *place, unsigned last) {
    return cuda_on_cpu::atomic_update(place,
                                      [=](unsigned old) { return old >= last ? 0U : old + 1; });
}
static inline unsigned atomicDec(unsigned *place, unsigned last) {
    return cuda_on_cpu::atomic_update(
        place, [=](unsigned old) { return old == 0 || old > last ? last : old - 1; });
}

static inline void __threadfence() {
}
static inline void __threadfence_block() {
}
static inline void __threadfence_system() {
}

#endif
